"""STAIR and LexLIP: lexical pairs without published checkpoints, which `train` writes.

Of STAIR there is no public code either. Each choice that the paper does not state is a field of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import build, load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder, Tower
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import ImageTower, PatchTransformer, ResidualBlock
from lexvl_anserini.encoders.parts.pretrained import TEXT, NetworkPair, TokenHead, build_token_heads, is_pair, read_pair
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, load_tokenizer, make_all_columns
from lexvl_anserini.encoders.parts.towers import (
    Backbone,
    Composition,
    Direction,
    Head,
    TextTower,
    TowerOf,
    in_direction,
    log1p_relu,
    pool_max,
    with_topk,
)
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import atomic_write, write_json
from lexvl_anserini.ground.typed import plain

WEIGHTS = "model.safetensors"
MODEL_TYPE = "stair"
Stage = Literal["single", "1", "2", "3"]

# An unknown key is an error, here and below.
STRICT = {"extra": "forbid"}


@dataclass(frozen=True)
class TextShape:
    """The text transformer, by default of section 4.2; no text says whether it is causal, and all states are pooled."""

    __pydantic_config__ = STRICT
    width: int = 512
    layers: int = 12
    heads: int = 8
    max_length: int = 76
    causal: bool = False


@dataclass(frozen=True)
class ImageShape:
    """The vision transformer, by default of section 4.2, which states neither resolution (CLIP-B/16's) nor class token.

    A class token counts in the maximum, but has no cell in a localisation map.
    """

    __pydantic_config__ = STRICT
    resolution: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    class_token: bool = True
    stem: dict[str, list[int]] | None = None


@dataclass(frozen=True)
class StairConfig:
    """A STAIR model as in its config.json.

    Attributes:
        vocab_size: tokens of the tokenizer, which are the dimensions.
        bridge: how TRANSFORM, which equation 4 leaves open, fits an embedding of another width: True keeps the states'
            width and maps linearly afterwards, False lets its first layer change the width. True, as the image encoder
            then has the 86.8 M parameters of table 1, and 86.2 M otherwise: so that number is no test of this network.
        layer_norm_eps: of the heads; not stated in the paper, 1e-12 is that of BERT's head.
        stage: the stage of training that wrote the weights: 1, 2, 3, or single. After stage 1 texts stay masked.
        mask_specials: [CLS] and [SEP] count among a text's own tokens; not stated in the paper.
        padding: none: the maximum ignores padding; max_length: it does not. Not stated in the paper.
        prompt: is put before each text, but not in a bag of tokens.
    """

    __pydantic_config__ = STRICT
    vocab_size: int = 30522
    text: TextShape = field(default_factory=TextShape)
    image: ImageShape = field(default_factory=ImageShape)
    bridge: bool = True
    layer_norm_eps: float = 1e-12
    stage: Stage = "single"
    mask_specials: bool = False
    padding: Literal["none", "max_length"] = "none"
    prompt: str = "a photo of "

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str) -> StairConfig:
        """Reads the contents of a config.json."""
        from pydantic import TypeAdapter, ValidationError

        if content.get("model_type") != MODEL_TYPE:
            what = f"model_type {content.get('model_type')!r}, expected {MODEL_TYPE!r}"
            raise CheckpointError(f"{where}: {what}; STAIR checkpoints are those that `save_stair` wrote")
        try:
            config = TypeAdapter(cls).validate_python({k: v for k, v in content.items() if k != "model_type"})
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(f"{where}: {'.'.join(map(str, first['loc']))}: {plain(first)}") from error
        for name, shape in (("text", config.text), ("image", config.image)):
            if shape.width % shape.heads:
                raise CheckpointError(f"{where}: {name}: width {shape.width} does not divide by {shape.heads} heads")
        return config

    def to_json(self) -> dict[str, Any]:
        """The contents of a config.json, for `read`."""
        return {"model_type": MODEL_TYPE, **asdict(self)}


class MaskedBlock(ResidualBlock):
    """The residual block of CLIP for texts: no token attends to padding."""

    def forward(self, x: Tensor, padded: Tensor | None = None, causal: Tensor | None = None) -> Tensor:  # [B, L, D]
        """States of the next layer; no attention to `padded` [B, L], nor from row to column of `causal` [L, L]."""
        normed, masks = self.ln_1(x), {"key_padding_mask": padded, "attn_mask": causal}
        x = x + self.attn(normed, normed, normed, **masks, need_weights=False, is_causal=False)[0]
        return x + self.mlp(self.ln_2(x))


class TextTransformer(nn.Module):
    """Captions to a state per token; its parts have the names in CLIP checkpoints."""

    def __init__(self, vocab_size: int, shape: TextShape):
        super().__init__()
        self.causal = shape.causal
        self.token_embedding = nn.Embedding(vocab_size, shape.width)
        self.positional_embedding = nn.Parameter(torch.zeros(shape.max_length, shape.width))
        self.transformer: Any = nn.Module()
        self.transformer.resblocks = nn.ModuleList(MaskedBlock(shape.width, shape.heads) for _ in range(shape.layers))
        self.ln_final = nn.LayerNorm(shape.width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # [B, L], [B, L]
        """States [B, L, D]."""
        length = input_ids.shape[1]
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        padded = attention_mask == 0
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1) if self.causal else None
        for block in self.transformer.resblocks:
            x = block(x, padded, later)
        return self.ln_final(x)


class ClassPatchTransformer(PatchTransformer):
    """The vision transformer with CLIP's class token before the patches."""

    def __init__(self, shape: ImageShape):
        super().__init__(shape.resolution, shape.patch_size, shape.width, shape.layers, shape.heads, shape.stem)
        self.class_embedding = nn.Parameter(torch.zeros(shape.width))
        self.positional_embedding = nn.Parameter(torch.zeros(len(self.positional_embedding) + 1, shape.width))

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """States [B, 1 + P, D], the class token first."""
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)  # [B, P, D]
        x = torch.cat([self.class_embedding.expand(len(patches), 1, -1), patches], dim=1)
        x = self.ln_pre(x + self.positional_embedding)
        for block in self.transformer.resblocks:  # type: ignore[union-attr]
            x = block(x)
        return self.ln_post(x)


class Stair(nn.Module):
    """Both encoders up to the vocabulary: the weights that training saves and `load_stair` loads."""

    def __init__(self, config: StairConfig):
        super().__init__()
        self.config = config
        image, embedding = config.image, config.text.width
        self.text = TextTransformer(config.vocab_size, config.text)
        shape = {key: value for key, value in asdict(image).items() if key != "class_token"}
        self.image: nn.Module = ClassPatchTransformer(image) if image.class_token else PatchTransformer(**shape)
        heads = (config.vocab_size, config.bridge, config.layer_norm_eps)
        self.text_head = TokenHead(config.text.width, embedding, *heads)
        self.image_head = TokenHead(image.width, embedding, *heads)

    @property
    def embeddings(self) -> Tensor:
        """The matrix e of both heads, [V, D']: the text encoder's token embeddings."""
        return self.text.token_embedding.weight


class OwnTokenTower(TextTower):
    """Texts; a mask keeps the weights of their own tokens before they are normalised (equation 8)."""

    def __init__(self, composition: Composition, *args: Any, normalise: bool, **kwargs: Any):
        assert not composition.normalise, "the mask comes before the norm"
        super().__init__(composition, *args, **kwargs)
        self.normalise = normalise
        self.dimension_of = torch.from_numpy(self.columns.of_token).to(self.device)  # int64 [|T|], -1 for no dimension

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """Weights of the text's own tokens, float32 [B, V]."""
        input_ids, attention = inputs
        dims = self.dimension_of[input_ids].masked_fill(attention == 0, -1)  # [B, L]
        own = torch.zeros(len(dims), len(self.vocabulary) + 1, dtype=torch.float32, device=self.device)
        own.scatter_(1, dims + 1, 1.0)  # column 0 is for tokens without dimension
        weights = super().pool_batch(inputs, masked) * own[:, 1:]
        return unit_length(weights, dim=1) if self.normalise else weights


def load_stair(
    source: Source,
    direction: Direction = "text-to-image",
    text_encoder_free: bool = False,
    text_mask: Literal["none", "own"] | None = None,
    mask_specials: bool | None = None,
    padding: Literal["none", "max_length"] | None = None,
    prompt: str | None = None,
    normalise: bool = True,
    topk: int | None = None,
    query_topk: int | None = None,
    text_max_length: int | None = None,
) -> Encoder:
    """STAIR: w = log(1 + relu(max_j e TRANSFORM(h_j) + b)) for texts and images, e the token embeddings (EMNLP 2023).

    Both towers follow equations 4 and 5 of the paper; scores are cosines. It loads what `train` writes: a folder of
    `save_stair`, or a pair over networks, whose dimensions are words of its captions or tokens of its text network.

    Args:
        source: has configuration, weights and tokenizer; `tokenizer` may name another folder for the tokenizer.
        direction: the modalities of queries and documents.
        text_encoder_free: texts are binary bags of their own tokens, without prompt and without network (appendix E.2).
        text_mask: own keeps only a text's own tokens (equation 8); default own for checkpoints of stage 1, else none.
        mask_specials: [CLS] and [SEP] count as own tokens; default the checkpoint's (false).
        padding: max_length pads texts, and the maximum includes padding; default the checkpoint's (none).
        prompt: put before each text; default the checkpoint's ("a photo of ", as in zero-shot retrieval).
        normalise: divide by the L2 norm, so that scores are cosines (equation 2).
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        text_max_length: tokens per text; default the checkpoint's (76).
    """
    checkpoint = source.required("stair")
    if is_pair(checkpoint):
        model = load_stair_pair(source, read_pair(source, checkpoint, "stair", text_max_length))
        if padding == "max_length" or mask_specials:
            raise UsageError("padding and mask_specials are for the layout of `save_stair`; this one is another")
    else:
        model = load_stair_folder(source, checkpoint, mask_specials, padding, text_max_length)
    reader = replace(model.reader, prompt=model.prompt if prompt is None else prompt)
    own = text_mask == "own" or (text_mask is None and model.masked)
    whole, images = make_towers(model, reader, source.device, normalise)

    def texts(k: int | None) -> Tower:
        if text_encoder_free:
            return BagTower(TextReader(reader.tokenizer, reader.max_length), model.columns, topk=k)
        if own:
            parts = Composition(model.text, model.text_head, log1p_relu, pool_max, keep_top(k))
            return OwnTokenTower(parts, reader, model.columns, source.device, normalise=normalise)
        return whole(k)

    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("stair", "impact", query=query, document=document)


class LoadedStair(NamedTuple):
    """A model of either layout: states of each encoder, and equation 4 over them."""

    text: Backbone
    image: Backbone
    text_head: Head
    image_head: Head
    reader: TextReader  # of texts, without prompt
    prompt: str
    columns: TokenColumns
    pixels: Pixels
    masked: bool  # texts keep their own tokens alone, as after stage 1


def make_towers(
    model: LoadedStair, reader: TextReader, device: torch.device, normalise: bool
) -> tuple[TowerOf, TowerOf]:
    """The towers of texts and of images over all terms."""

    def compose(states: Backbone, head: Head, k: int | None) -> Composition:
        return Composition(states, head, log1p_relu, pool_max, keep_top(k), normalise)

    return (
        lambda k: TextTower(compose(model.text, model.text_head, k), reader, model.columns, device),
        lambda k: ImageTower(compose(model.image, model.image_head, k), model.pixels, model.columns, device),
    )


def load_stair_folder(
    source: Source,
    checkpoint: Checkpoint,
    mask_specials: bool | None,
    padding: Literal["none", "max_length"] | None,
    text_max_length: int | None,
) -> LoadedStair:
    """A folder that `save_stair` wrote; the options are those of `load_stair`."""
    config = StairConfig.read(checkpoint.config(), f"{checkpoint.folder}/config.json")
    weights = read_weights(checkpoint.folder)
    model = build(lambda: Stair(config), weights, f"{checkpoint.folder}/config.json")
    load_strictly(model, weights, str(checkpoint.folder))
    model.eval().to(source.device)
    with quietly():  # transformers does not know the type of the model beside the tokenizer, and says so
        tokenizer = load_tokenizer(source.tokenizer_folder(), config.vocab_size)
    limit = config.text.max_length
    longest = limit if text_max_length is None else text_max_length
    text_head, image_head = (
        Head(head, model.embeddings.detach(), head.bias.detach()) for head in (model.text_head, model.image_head)
    )
    reader = TextReader(tokenizer, longest, padding or config.padding, limit=limit)
    columns = make_all_columns(tokenizer, config.mask_specials if mask_specials is None else mask_specials)
    texts = (reader, config.prompt, columns)
    pixels, masked = Pixels(config.image.resolution), config.stage == "1"
    return LoadedStair(model.text, model.image, text_head, image_head, *texts, pixels, masked)


def load_stair_pair(source: Source, pair: NetworkPair) -> LoadedStair:
    """A pair over networks, which has no prompt; `text_mask` in its configuration is own after stage 1."""
    text_head, image_head = build_token_heads(pair, source.device)
    assert pair.columns is not None, "lexical heads have terms"
    masked = pair.config[TEXT].get("text_mask") == "own"
    return LoadedStair(pair.text, pair.image, text_head, image_head, pair.reader, "", pair.columns, pair.pixels, masked)


def save_stair(model: Stair, tokenizer: Any, folder: Path) -> None:
    """Writes a model as `load_stair` reads it. Each file appears whole; the configuration comes last."""
    from safetensors.torch import save

    assert len(tokenizer) == model.config.vocab_size, "the tokenizer's tokens are the model's dimensions"
    tokenizer.save_pretrained(str(folder))
    with atomic_write(folder / WEIGHTS) as out:
        out.write(save({key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}))
    write_json(folder / "config.json", model.config.to_json())


def load_lexlip(
    source: Source,
    direction: Direction = "text-to-image",
    normalise: bool = True,
    topk: int | None = None,
    query_topk: int | None = None,
    text_max_length: int | None = None,
) -> Encoder:
    """LexLIP: w_j = log(1 + max_i relu(logit_ij)) over one masked-LM head per modality, L2-normalised (ICCV 2023).

    It loads the pairs over networks that `train` writes, whose dimensions are words of their training captions or the
    tokens of their text network.

    Args:
        source: has configuration, weights and tokenizer; `tokenizer` may name another folder for the tokenizer.
        direction: the modalities of queries and documents.
        normalise: divide by the L2 norm, so that scores are cosines, by which the reference ranks.
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        text_max_length: tokens per caption; default the checkpoint's.
    """
    model = load_stair_pair(source, read_pair(source, source.required("lexlip"), "lexlip", text_max_length))
    texts, images = make_towers(model, model.reader, source.device, normalise)
    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("lexlip", "impact", query=query, document=document)
