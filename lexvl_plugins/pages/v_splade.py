"""V-SPLADE: w_j = max_i log(1 + relu(logit_ij / d^1/4)) over the tiles of a page; texts: the sum of a weight per token.

Cho et al., arXiv 2605.30917. Equations and names of weights are those of the authors' code (naver/v-splade, commit
3f97737). A masked-LM head of 50,368 tokens over ModernVBERT reads pages, whose special tokens have weight 0. Texts need
no network: a table has a weight per token, and a token counts as often as a text has it.

Reads the authors' export, and the folders of sentence-transformers' SparseEncoder on the hub: the same files, with the
table beside them. Code of a folder is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from lexvl_anserini.encoders.checkpoints.find import CHAT_TEMPLATE, PROCESSOR, resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import (
    build_outline,
    check_repeated,
    complain,
    read_weights,
    take_below,
)
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import LOADING, Source
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, list_token_strings, load_tokenizer
from lexvl_anserini.encoders.parts.towers import (
    Activation,
    Composition,
    Head,
    in_direction,
    log1p_relu,
    pool_max,
    with_topk,
)
from lexvl_anserini.ground.errors import CheckpointError, InstallationError, UsageError, describe_error
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import find_package, find_version
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.pages.page_network import IMAGE, PageNetwork, PageTower, read_tiles

# Keys of the export: the network, the head, the table; in the network two matrices of embeddings and the connector.
NETWORK, HEAD, QUERIES = "encoder.encoder.model.", "encoder.mlm_head.", "query_encoder."
DECODER = f"{HEAD}decoder.weight"
EMBEDDINGS = "text_model.embeddings.tok_embeddings.weight"
FURTHER = "text_model.embeddings.tok_embeddings.additional_embedding.weight"
CONNECTOR = "connector.modality_projection"
# SigLIP's own pooling, and a norm that ModernBERT does not have.
UNUSED = (f"{NETWORK}vision_model.head.", f"{NETWORK}text_model.layers.0.attn_norm.")

Shapes = dict[str, tuple[int | None, ...]]

# The published networks, jhu-clsp/ettin-encoder-150m and google/siglip2-base-patch16-512: what a configuration that
# only names them leaves out. Other entries of a configuration are not read.
TEXT_SHAPE: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "norm_eps": 1e-5,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "layer_types": None,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 160000.0,
    "rope_parameters": None,
    "max_position_embeddings": 7999,
}
IMAGE_SHAPE: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 512,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
}
OUTER_SHAPE: Mapping[str, Any] = {"pixel_shuffle_factor": 4, "image_token_id": 50407, "additional_vocab_size": 40}


@dataclass(frozen=True)
class PageShape:
    """The entries of a `config.json` that the network is made of, with the published ones where it has none."""

    text: Mapping[str, Any]
    image: Mapping[str, Any]
    outer: Mapping[str, Any]

    @classmethod
    def read(cls, config: Mapping[str, Any], where: str) -> PageShape:
        """From a configuration."""
        check_repeated(config, where)
        text, image = (dict(config.get(key) or {}) for key in ("text_config", "vision_config"))
        if "embed_dim" in image:  # its name in older files
            image["hidden_size"] = image["embed_dim"]
        pairs = ((TEXT_SHAPE, text), (IMAGE_SHAPE, image), (OUTER_SHAPE, config))
        shape = cls(*({key: entries.get(key, usual[key]) for key in usual} for usual, entries in pairs))
        for usual, entries in ((TEXT_SHAPE, shape.text), (IMAGE_SHAPE, shape.image), (OUTER_SHAPE, shape.outer)):
            for key, value in entries.items():
                if type(usual[key]) is int and not (type(value) is int and value > 0):  # a bool is none
                    raise CheckpointError(f"{where}: {key} is {value!r:.80}, expected a positive number")
        side, cell = shape.image["image_size"], shape.image["patch_size"] * shape.outer["pixel_shuffle_factor"]
        if side % cell:
            raise CheckpointError(f"{where}: tiles of {side} pixels are no whole number of cells of {cell}")
        return shape

    def to_config(self, tokens: int) -> Any:
        """The configuration of a ModernVBertModel with `tokens` rows of embeddings."""
        from transformers import ModernVBertConfig

        ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        return ModernVBertConfig(
            text_config={"model_type": "modernbert", **self.text, **ids, "vocab_size": tokens},
            vision_config={"model_type": "siglip_vision_model", **self.image, "vision_use_head": False},
            image_token_id=self.outer["image_token_id"],
            pixel_shuffle_factor=self.outer["pixel_shuffle_factor"],
        )


def check_weights(weights: Mapping[str, Tensor], shape: PageShape, with_table: bool, where: str) -> None:
    """Compares names and shapes of all weights, with those of the table, with the configuration; makes no network."""
    known = list_shapes(shape, len(weights[DECODER]))
    needed = [key for key in known if not key.startswith(QUERIES) or (with_table and None not in known[key])]
    complain(
        where,
        missing=[key for key in needed if key not in weights],
        unexpected=[key for key in weights if key not in known and not key.startswith(UNUSED)],
        misshaped=[
            f"{key} {list(weights[key].shape)}, expected {list(shape)}"
            for key, shape in known.items()
            if key in weights and not has_shape(weights[key], shape)
        ],
    )


def list_shapes(shape: PageShape, size: int) -> Shapes:
    """The names and shapes of all weights, with `size` rows of the head; a low-rank change of the table may lack."""
    width = shape.text["hidden_size"]
    return {
        **{f"{NETWORK}{key}": value for key, value in {**list_text(shape, size), **list_image(shape)}.items()},
        **list_linear(f"{HEAD}dense", width, width),
        **norm(f"{HEAD}norm", width),
        **list_linear(f"{HEAD}decoder", size, width),
        f"{QUERIES}embeddings.weight": (size, width),
        **list_linear(f"{QUERIES}projection", 1, width),
        f"{QUERIES}lora_A": (size, None),
        f"{QUERIES}lora_B": (None, width),
    }


def list_linear(name: str, after: int, before: int) -> Shapes:
    """A matrix and its bias."""
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


def norm(name: str, width: int) -> Shapes:
    """A LayerNorm with bias."""
    return {f"{name}.{part}": (width,) for part in ("weight", "bias")}


def list_text(shape: PageShape, size: int) -> Shapes:
    """The weights of ModernBERT, whose embeddings are in two matrices."""
    width, inner = shape.text["hidden_size"], shape.text["intermediate_size"]
    layer: Shapes = {"attn.Wqkv": (3 * width, width), "attn.Wo": (width, width), "attn_norm": (width,)}
    layer |= {"mlp.Wi": (2 * inner, width), "mlp.Wo": (width, inner), "mlp_norm": (width,)}
    names = {f"layers.{n}.{part}": s for n in range(shape.text["num_hidden_layers"]) for part, s in layer.items()}
    del names["layers.0.attn_norm"]  # the embeddings have a norm of their own
    names |= {"embeddings.norm": (width,), "final_norm": (width,)}
    further: Shapes = {EMBEDDINGS: (size, width), FURTHER: (shape.outer["additional_vocab_size"], width)}
    return {f"text_model.{name}.weight": s for name, s in names.items()} | further


def list_image(shape: PageShape) -> Shapes:
    """The weights of SigLIP and of the map of its patches to the width of ModernBERT."""
    width, inner, patch = (shape.image[key] for key in ("hidden_size", "intermediate_size", "patch_size"))
    grid, factor = shape.image["image_size"] // patch, shape.outer["pixel_shuffle_factor"]
    names: Shapes = {
        "embeddings.patch_embedding.weight": (width, 3, patch, patch),
        "embeddings.patch_embedding.bias": (width,),
        "embeddings.position_embedding.weight": (grid * grid, width),
        **norm("post_layernorm", width),
    }
    for number in range(shape.image["num_hidden_layers"]):
        layer = f"encoder.layers.{number}"
        names |= norm(f"{layer}.layer_norm1", width) | norm(f"{layer}.layer_norm2", width)
        names |= list_linear(f"{layer}.mlp.fc1", inner, width) | list_linear(f"{layer}.mlp.fc2", width, inner)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            names |= list_linear(f"{layer}.self_attn.{part}", width, width)
    projection = {f"{CONNECTOR}.proj.weight": (shape.text["hidden_size"], factor * factor * width)}
    return {f"vision_model.{name}": s for name, s in names.items()} | projection


def has_shape(weight: Tensor, shape: tuple[int | None, ...]) -> bool:
    """True for a weight of a shape, in which None is any number."""
    return weight.dim() == len(shape) and all(b in (a, None) for a, b in zip(weight.shape, shape, strict=True))


def read_table(folder: Path, size: int) -> np.ndarray | None:
    """The table that a SparseEncoder folder has for queries, float32 [size]; None if it has none."""
    routes = folder / "router_config.json"
    if not routes.is_file():
        return None
    structure = read_json(routes, "router description", CheckpointError).get("structure")
    modules = structure.get("query") if isinstance(structure, Mapping) else None
    if not isinstance(modules, list) or len(modules) != 1:
        raise CheckpointError(f"{routes}: queries go through {modules!r:.80}, expected one module with a table")
    where = resolve_inside(folder, str(modules[0]), str(routes))
    stored = read_weights(where)
    shapes = {key: list(value.shape) for key, value in stored.items()}
    if list(shapes.values()) != [[size]]:
        raise CheckpointError(f"{where}: has {str(shapes):.200}, expected a weight for each of {size} tokens")
    return next(iter(stored.values())).float().numpy()


# What Idefics3's chat template makes of one image and an empty text, after the token that a text may begin with; and
# what such a template has.
PROMPT = f"User:{IMAGE}<end_of_utterance>\nAssistant:"
TEMPLATE_PARTS = ("capitalize", IMAGE, "<end_of_utterance>", "Assistant:", "add_generation_prompt")

# The tokens without a weight: ids 50280 to 50284 of the published tokenizer.
SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
# In the authors' code, padding has id 0 in a bag, so that the token of this id has no weight.
NO_BAG = 0

MODEL_TYPE = "modernvbert"
# A text has no limit in the authors' code.
MOST_TOKENS = 1 << 20

TableActivation = Literal["softplus", "relu"]
ACTIVATIONS: Mapping[str, Activation] = {"softplus": softplus, "relu": log1p_relu}


def load_v_splade(
    source: Source,
    direction: Literal["text-to-image", "image-to-text"] = "text-to-image",
    text: Literal["table", "bow"] = "table",
    table_activation: TableActivation | None = None,
    prompt: str | None = None,
    topk: int | None = None,
    query_topk: int | None = None,
    text_max_length: int | None = None,
) -> Encoder:
    """The authors' export, or a SparseEncoder folder around it. The network is loaded when a page is first encoded.

    Args:
        source: has configuration, weights, processor and tokenizer; `tokenizer` may name another folder for the
            tokenizer.
        direction: the modalities of queries and documents.
        text: table gives each token its learned weight, as often as a text has it; bow gives a text's distinct tokens
            the weight 1.
        table_activation: softplus(x), as published, or relu: log(1 + max(0, x)), of the projected embedding of a token;
            default the table that the folder stores, else softplus.
        prompt: has <image> where the page is; default what the folder's chat template makes of one
            image and an empty text.
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        text_max_length: tokens per text; default the tokenizer's.
    """
    export = read_export(source, text == "table", table_activation)
    tokenizer, columns = export.tokenizer, export.columns
    tiles = read_tiles(export.folder, export.shape.image["image_size"])
    text_of_page = read_prompt(export.folder) if prompt is None else prompt
    if text_of_page.count(IMAGE) != 1:
        raise UsageError(f"prompt {text_of_page!r:.80}: expected {IMAGE} once, where the page is")

    def build_texts(k: int | None) -> BagTower:
        limit = min(tokenizer.model_max_length, MOST_TOKENS) if text_max_length is None else text_max_length
        bag = TextReader(tokenizer, limit, specials=False)
        if export.table is None:
            return BagTower(bag, columns.without(NO_BAG), topk=k)
        return BagTower(bag, columns, export.table, topk=k, adds=True)

    def build_images(k: int | None) -> PageTower:
        load = load_when_used(partial(export.load, text_of_page, k, source.device))
        return PageTower(load, tiles, columns, source.device)

    query, document = with_topk(in_direction(direction, build_texts, build_images), topk, query_topk)
    return Encoder("v-splade", "impact", query=query, document=document)


@dataclass(frozen=True)
class PageModel:
    """What a folder has; `table` is float32 [V], None for bags."""

    folder: Path
    weights: Mapping[str, Tensor]
    shape: PageShape
    tokenizer: Any
    columns: TokenColumns
    table: np.ndarray | None

    def load(self, prompt: str, topk: int | None, device: torch.device) -> Composition:
        """The network of pages and its head, which are loaded now."""
        reader = TextReader(self.tokenizer, self.shape.text["max_position_embeddings"])
        network = PageNetwork(load_network(self.shape, self.weights, str(self.folder)).to(device), reader, prompt)
        head = load_head(self.weights, self.columns, device)
        return Composition(network, head, log1p_relu, pool_max, keep_top(topk))


def read_export(source: Source, with_table: bool, activation: TableActivation | None) -> PageModel:
    """A folder in either layout; all but the network, whose weights are checked alone."""
    checkpoint, transformers = source.required("v-splade"), find_package("transformers")
    if transformers and not (transformers / "models" / MODEL_TYPE).is_dir():
        release = f"transformers {find_version('transformers')}"
        raise InstallationError(f"{release} has no ModernVBERT, which v-splade needs; pip install 'transformers>=5.3'")
    folder, config = checkpoint.folder, checkpoint.config()
    if config.get("model_type") != MODEL_TYPE:
        kind = config.get("model_type")
        raise CheckpointError(f"{folder}: a {kind!r:.80} model, expected {MODEL_TYPE!r} of V-SPLADE")
    weights = read_weights(checkpoint.path)
    if DECODER not in weights:
        raise CheckpointError(f"{folder}: no {DECODER} among its weights; expected the export of V-SPLADE's authors")
    size = len(weights[DECODER])
    table = read_table(folder, size) if with_table and activation is None else None
    shape = PageShape.read(config, f"{folder}/config.json")
    check_weights(weights, shape, with_table and table is None, str(folder))
    if with_table and table is None:
        table = compute_table(weights, activation or "softplus")
    if table is not None and not np.isfinite(table).all():
        raise CheckpointError(f"{folder}: a weight of a token is not finite")
    with quietly():  # transformers does not know the types of the networks in the configuration, and says so
        tokenizer = load_tokenizer(source.tokenizer_folder())
    return PageModel(folder, weights, shape, tokenizer, build_columns(tokenizer, size, shape, str(folder)), table)


def load_network(shape: PageShape, weights: Mapping[str, Tensor], where: str) -> Any:
    """The ModernVBertModel of an export, on the CPU in float32."""
    import transformers

    own = {key: w for key, w in take_below(weights, NETWORK).items() if not f"{NETWORK}{key}".startswith(UNUSED)}
    own[EMBEDDINGS] = torch.cat([own[EMBEDDINGS], own.pop(FURTHER)])
    own[f"{CONNECTOR}.weight"] = own.pop(f"{CONNECTOR}.proj.weight")
    tokens, kind = len(own[EMBEDDINGS]), cast(Any, transformers.ModernVBertModel)
    # Some versions of transformers nest the weights of SigLIP.
    images = build_outline(lambda: kind(shape.to_config(tokens)), weights, f"{where}/config.json").vision_model
    prefix = "vision_model." * (2 if hasattr(images, "vision_model") else 1)
    # Copies, because the tensors are pages of the file.
    state = {key.replace("vision_model.", prefix): value.to(torch.float32, copy=True) for key, value in own.items()}
    try:
        with quietly():
            model, info = kind.from_pretrained(
                None, config=shape.to_config(tokens), state_dict=state, output_loading_info=True, dtype=torch.float32
            )
    except Exception as error:  # a wrong value in the configuration raises any error
        raise CheckpointError(f"{where}: the model cannot be loaded ({describe_error(error)})") from error
    complain(where, info["missing_keys"], info["unexpected_keys"], ())
    return model.eval()


class BeforeDecoder(nn.Module):
    """The masked-LM head up to its decoder: dense, GELU, LayerNorm."""

    def __init__(self, width: int):
        super().__init__()
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """States of the same shape."""
        features: Tensor = self.norm(nn.functional.gelu(self.dense(hidden)))
        return features


def load_head(weights: Mapping[str, Tensor], columns: TokenColumns, device: torch.device) -> Head:
    """The masked-LM head of an export: logits / width^1/4, and 0 for `SPECIALS`."""
    parts = {key: value.float() for key, value in take_below(weights, HEAD).items()}
    matrix, bias = parts.pop("decoder.weight"), parts.pop("decoder.bias")
    width = matrix.shape[1]
    transform = BeforeDecoder(width)
    transform.load_state_dict(parts)
    factor = torch.full((len(matrix),), width**-0.25)
    factor[[columns.vocabulary.dimension[token] for token in SPECIALS if token in columns.vocabulary.dimension]] = 0
    return Head(transform.eval().to(device), (matrix * factor[:, None]).to(device), (bias * factor).to(device))


@torch.inference_mode()
def compute_table(weights: Mapping[str, Tensor], activation: TableActivation) -> np.ndarray:
    """The weight of each token, float32 [V]: activation(<w, E_t + A_t B> + b), where exports have no A and B."""
    parts = {key: value.float() for key, value in take_below(weights, QUERIES).items()}
    projection = parts["projection.weight"]  # [1, D]
    logit = linear(parts["embeddings.weight"], projection, parts["projection.bias"])[:, 0]
    if "lora_A" in parts:
        logit = logit + parts["lora_A"] @ (parts["lora_B"] @ projection[0])
    table: np.ndarray = ACTIVATIONS[activation](logit).numpy()
    return table


def build_columns(tokenizer: Any, size: int, shape: PageShape, where: str) -> TokenColumns:
    """The first `size` tokens are dimensions; `SPECIALS`, and the tokens of tiles after them, count in no text."""
    terms = list_token_strings(tokenizer)
    most, place = size + shape.outer["additional_vocab_size"], shape.outer["image_token_id"]
    if not size <= len(terms) <= most or tokenizer.convert_tokens_to_ids(IMAGE) != place:
        raise CheckpointError(
            f"{where}: the tokenizer has {len(terms)} tokens, {IMAGE} at {tokenizer.convert_tokens_to_ids(IMAGE)}; the "
            f"model has {size} to {most}, {IMAGE} at {place}; name the model's own with --tokenizer"
        )
    of_token = np.arange(len(terms), dtype=np.int64)
    of_token[size:] = -1
    of_token[[number for number, term in enumerate(terms) if term in SPECIALS]] = -1
    return TokenColumns(Vocabulary(terms[:size], "the tokenizer's vocabulary"), of_token)


def read_prompt(folder: Path) -> str:
    """What the chat template of a folder makes of one image and an empty text; `PROMPT` in a folder without one.

    A template is a program, which is not run: templates of Idefics3's form differ in the token that they begin with.
    """
    template, processor = None, folder / PROCESSOR
    if processor.is_file():
        template = read_json(processor, "preprocessing", CheckpointError).get("chat_template")
        if (file := folder / CHAT_TEMPLATE).is_file():
            template = file.read_text(encoding="utf-8", errors="replace")
    if template is None:
        return PROMPT
    if not isinstance(template, str) or not all(part in template for part in TEMPLATE_PARTS):
        raise CheckpointError(f"{folder}: its chat template has not the form of Idefics3's; give the option prompt")
    return template.partition("{")[0] + PROMPT


def load_when_used(load: Callable[[], Composition]) -> Callable[[], Composition]:
    """The same load, once and under the lock, for a tower whose network is loaded when it is first used."""
    pending, loaded = [load], list[Composition]()

    def get() -> Composition:
        # Weights outlive the call that first needs them, which computes without gradients.
        with LOADING, torch.random.fork_rng(devices=()), torch.inference_mode(False):
            if not loaded:
                loaded.append(pending[0]())
                pending.clear()
        return loaded[0]

    return get
