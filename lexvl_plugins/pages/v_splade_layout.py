"""The layout of V-SPLADE's checkpoints (naver/v-splade, commit 3f97737): configuration, names and shapes, the table.

The authors' export has `config.json` and `model.safetensors`; a folder of sentence-transformers' SparseEncoder has the
same and, in the module of its queries, the table of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.checkpoints.find import resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import check_repeated, complain, read_weights
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import read_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

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
    """The entries of a `config.json` that the network is made of, with the published ones where it has none.

    Attributes:
        text: of ModernBERT: the keys of `TEXT_SHAPE`.
        image: of SigLIP: the keys of `IMAGE_SHAPE`.
        outer: the keys of `OUTER_SHAPE`.
    """

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
        **linear(f"{HEAD}dense", width, width),
        **norm(f"{HEAD}norm", width),
        **linear(f"{HEAD}decoder", size, width),
        f"{QUERIES}embeddings.weight": (size, width),
        **linear(f"{QUERIES}projection", 1, width),
        f"{QUERIES}lora_A": (size, None),
        f"{QUERIES}lora_B": (None, width),
    }


def linear(name: str, after: int, before: int) -> Shapes:
    """A matrix and its bias."""
    return {f"{name}.weight": (after, before), f"{name}.bias": (after,)}


def norm(name: str, width: int) -> Shapes:
    """A LayerNorm with bias."""
    return {f"{name}.{part}": (width,) for part in ("weight", "bias")}


def list_text(shape: PageShape, size: int) -> Shapes:
    """The weights of ModernBERT, whose embeddings are in two matrices."""
    width, inner = shape.text["hidden_size"], shape.text["intermediate_size"]
    layer: Shapes = {
        "attn.Wqkv": (3 * width, width),
        "attn.Wo": (width, width),
        "mlp.Wi": (2 * inner, width),
        "mlp.Wo": (width, inner),
        "mlp_norm": (width,),
        "attn_norm": (width,),
    }
    names = {f"layers.{n}.{part}": s for n in range(shape.text["num_hidden_layers"]) for part, s in layer.items()}
    del names["layers.0.attn_norm"]  # the embeddings have a norm of their own
    names |= {"embeddings.norm": (width,), "final_norm": (width,)}
    return {f"text_model.{name}.weight": s for name, s in names.items()} | {
        EMBEDDINGS: (size, width),
        FURTHER: (shape.outer["additional_vocab_size"], width),
    }


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
        names |= linear(f"{layer}.mlp.fc1", inner, width) | linear(f"{layer}.mlp.fc2", width, inner)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            names |= linear(f"{layer}.self_attn.{part}", width, width)
    return {f"vision_model.{name}": s for name, s in names.items()} | {
        f"{CONNECTOR}.proj.weight": (shape.text["hidden_size"], factor * factor * width)
    }


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
