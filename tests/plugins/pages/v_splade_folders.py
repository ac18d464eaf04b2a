"""Tiny folders in the layouts of V-SPLADE: random weights, and a tokenizer whose ids lie as the published one's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiny_encoders import Tiny

# Rows of the published masked-LM head, and of the tokens of tiles after them.
PUBLISHED, ADDITIONAL = 50368, 40
WORDS = (
    *("User", ":", "Assistant", "\u010a", "\u010a\u010a", "\u0120", "  "),
    *("page", "report", "annual", "revenue", "dog", "dogs", "horse"),
    *("signed", "forms", "records", "office", "chart", "table", "of", "the", "a", ".", ",", "-", "2024", "on", "beach"),
)
SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
TILES = (
    "<fake_token_around_image>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<global-img>", "<end_of_utterance>", "<image>"),
)
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | capitalize }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
TEXT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
THETAS = {"global_rope_theta": 160000.0, "local_rope_theta": 1000.0}
LOCAL = {"local_attention": 8, "global_attn_every_n_layers": 3, **THETAS}
IMAGE = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "image_size": 32, "patch_size": 4}


@dataclass(frozen=True)
class Draws:
    """Numbers of a seed, the same in every version of numpy; rows from `rows` on that are not special are 0."""

    size: int
    seed: int = 7

    def tensor(self, name: str, *shape: int) -> np.ndarray:
        """float32 of N(0, 0.3^2); of the norms' scales N(1, 0.3^2)."""
        random = np.random.RandomState([self.seed, *name.encode()])
        values = 0.3 * random.standard_normal((min(shape[0], 600), *shape[1:]))
        whole = np.zeros(shape, dtype=np.float32)
        if shape[0] > 600:  # a matrix over the vocabulary: its first and its last rows
            whole[:300], whole[-300:] = values[:300], values[-300:]
        else:
            whole[:] = values
        return whole + np.float32("norm" in name and name.endswith("weight"))


def special_start(size: int) -> int:
    """The first special token: 50280 of 50368."""
    return size - 88


def token_ids(size: int) -> dict[str, int]:
    """Words, fillers, special tokens, fillers, and the tokens of tiles after `size` tokens."""
    ids = {f"[unused{number}]": number for number in range(size)}
    start = special_start(size)
    terms = dict(enumerate(WORDS)) | {start + n: token for n, token in enumerate(SPECIALS)}
    ids = {terms.get(number, token): number for token, number in ids.items()}
    return ids | {token: size + n for n, token in enumerate(TILES)}


def write_tokenizer(folder: Path, size: int) -> None:
    """Words, blanks and runs of line ends are tokens, in the characters that GPT-2 writes bytes with."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = token_ids(size)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words = pre_tokenizers.Split(Regex(r"\n+|[^\S\n]|\w+|[^\w\s]"), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.add_tokens([AddedToken("  ", normalized=True)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*SPECIALS, *TILES)])
    ends = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    inputs = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **named).save_pretrained(str(folder))


def shapes(size: int) -> dict[str, tuple[int, ...]]:
    """The weights of the authors' export."""
    width, inner, vision = TEXT["hidden_size"], TEXT["intermediate_size"], 12
    wide, side, patch = IMAGE["intermediate_size"], IMAGE["image_size"] // IMAGE["patch_size"], IMAGE["patch_size"]
    network: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.patch_embedding.weight": (vision, 3, patch, patch),
        "vision_model.embeddings.patch_embedding.bias": (vision,),
        "vision_model.embeddings.position_embedding.weight": (side * side, vision),
        "vision_model.post_layernorm.weight": (vision,),
        "vision_model.post_layernorm.bias": (vision,),
        "connector.modality_projection.proj.weight": (width, 16 * vision),
        "text_model.embeddings.tok_embeddings.weight": (size, width),
        "text_model.embeddings.tok_embeddings.additional_embedding.weight": (ADDITIONAL, width),
        "text_model.embeddings.norm.weight": (width,),
        "text_model.final_norm.weight": (width,),
    }
    for layer in range(IMAGE["num_hidden_layers"]):
        square = {f"self_attn.{kind}_proj": (vision, vision) for kind in ("q", "k", "v", "out")}
        for part, (out, before) in {**square, "mlp.fc1": (wide, vision), "mlp.fc2": (vision, wide)}.items():
            network[f"vision_model.encoder.layers.{layer}.{part}.weight"] = (out, before)
            network[f"vision_model.encoder.layers.{layer}.{part}.bias"] = (out,)
        for part in ("layer_norm1", "layer_norm2"):
            network[f"vision_model.encoder.layers.{layer}.{part}.weight"] = (vision,)
            network[f"vision_model.encoder.layers.{layer}.{part}.bias"] = (vision,)
    for layer in range(TEXT["num_hidden_layers"]):
        parts = {"attn.Wqkv": (3 * width, width), "attn.Wo": (width, width), "mlp.Wi": (2 * inner, width)}
        for part, shape in {**parts, "mlp.Wo": (width, inner), "mlp_norm": (width,), "attn_norm": (width,)}.items():
            if layer or part != "attn_norm":
                network[f"text_model.layers.{layer}.{part}.weight"] = shape
    return {
        **{f"encoder.encoder.model.{key}": shape for key, shape in network.items()},
        "encoder.mlm_head.dense.weight": (width, width),
        "encoder.mlm_head.decoder.weight": (size, width),
        "encoder.mlm_head.decoder.bias": (size,),
        **{f"encoder.mlm_head.{key}": (width,) for key in ("dense.bias", "norm.weight", "norm.bias")},
        "query_encoder.embeddings.weight": (size, width),
        "query_encoder.projection.weight": (1, width),
        "query_encoder.projection.bias": (1,),
    }


def config_of(size: int, text: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """As the authors' conversion writes it; `text` and `image` are added to the networks' entries."""
    return {
        "model_type": "modernvbert",
        "architectures": ["BiModernVBert"],
        "vocab_size": size,
        "additional_vocab_size": ADDITIONAL,
        "image_token_id": size + ADDITIONAL - 1,
        "pixel_shuffle_factor": 4,
        "hidden_size": TEXT["hidden_size"],
        "freeze_config": {"freeze_text_layers": True},
        "text_config": {"model_type": "modernvbert_text", "vocab_size": size, **TEXT, **text},
        "vision_config": {"model_type": "modernvbert_vision", "embed_dim": 12, **IMAGE, **image},
    }


def write_export(folder: Path, size: int = 128, seed: int = 7, **config: Any) -> Path:
    """The authors' export, in a new folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, size)
    draws = Draws(size, seed)
    save_file({key: draws.tensor(key, *shape) for key, shape in shapes(size).items()}, folder / "model.safetensors")
    preprocessor = {
        **{f"do_{step}": True for step in ("convert_rgb", "image_splitting", "normalize", "pad", "rescale", "resize")},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 128},
        "max_image_size": {"longest_edge": IMAGE["image_size"]},
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
    }
    processor = {"image_seq_len": 4, "processor_class": "Idefics3Processor"}
    files = {"config": config_of(size, LOCAL, {}) | config, "preprocessor_config": preprocessor}
    for name, content in {**files, "processor_config": processor}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def add_modules(folder: Path, table: np.ndarray) -> Path:
    """Makes an export a folder of sentence-transformers: a router, and a module of queries with their table."""
    from safetensors.numpy import save_file

    query, document = "query_0_VSPLADEStaticEmbedding", "document_0_VSPLADETransformer"
    (folder / query).mkdir()
    save_file({"weight": table}, folder / query / "model.safetensors")
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.router.Router"}
    (folder / "modules.json").write_text(json.dumps([module]))
    types = {query: "modeling_st_vsplade.VSPLADEStaticEmbedding", document: "modeling_st_vsplade.VSPLADETransformer"}
    router = {"types": types, "structure": {"query": [query], "document": [document]}}
    (folder / "router_config.json").write_text(json.dumps(router))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    return folder


def make_v_splade(golden: Path, folder: Path) -> Path:
    """V-SPLADE with random weights, in the layout of its authors."""
    return write_export(folder / "v-splade")


TINY_ENCODERS = {
    "v-splade": Tiny("v-splade", make_v_splade),
    "v-splade bow": Tiny("v-splade", make_v_splade, {"text": "bow", "topk": 16}),
}
