"""Tiny SparseEncoder folders with random weights, written by sentence-transformers' own modules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder, SparseStaticEmbedding, SpladePooling
from tiny_encoders import BERT, DISTILBERT, WORDPIECES, Tiny
from transformers import AutoTokenizer

SIZE, WIDTH = 2000, 32


def read_masked_lm(golden: Path, name: str = BERT) -> list[Any]:
    return [Transformer(str(golden / name), transformer_task="fill-mask"), SpladePooling("max")]


def make_table(golden: Path, weight: torch.Tensor | None = None) -> SparseStaticEmbedding:
    tokenizer = AutoTokenizer.from_pretrained(str(golden / WORDPIECES))
    return SparseStaticEmbedding(tokenizer, torch.ones(len(tokenizer)) if weight is None else weight, frozen=True)


def make_weights(count: int = SIZE) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(3)) + 0.1


def make_autoencoder(width: int, normalize: bool = False) -> SparseAutoEncoder:
    torch.manual_seed(4)
    module = SparseAutoEncoder(width, hidden_dim=128, k=16, k_aux=0, normalize=normalize)
    with torch.no_grad():
        module.pre_bias.normal_(std=0.1)
        module.latent_bias.normal_(std=0.1)
    return module


def make_csr(golden: Path, mode: str = "mean", unit: bool = False, normalize: bool = False) -> list[Any]:
    end = [Normalize()] if unit else []
    network = Transformer(str(golden / BERT), transformer_task="feature-extraction")
    return [network, Pooling(WIDTH, pooling_mode=mode), *end, make_autoencoder(WIDTH, normalize)]


def make_clip(golden: Path, folder: Path) -> Path:
    """A CLIP that reads texts of the tiny WordPieces and images of 16 x 16 pixels."""
    import transformers

    torch.manual_seed(5)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.CLIPConfig(
        text_config={**shape, **ids, "vocab_size": SIZE, "max_position_embeddings": 64},
        vision_config={**shape, "image_size": 16, "patch_size": 8},
        projection_dim=24,
    )
    transformers.CLIPModel(config).save_pretrained(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(str(golden / WORDPIECES))
    tokenizer.model_max_length = 64
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.CLIPProcessor(transformers.CLIPImageProcessorPil(**size), tokenizer).save_pretrained(str(folder))
    return folder


def list_modules(golden: Path, folder: Path, name: str) -> list[Any]:
    """The modules of a folder of a name."""
    document = read_masked_lm(golden)
    made: Mapping[str, Callable[[], list[Any]]] = {
        "splade": lambda: document,
        "doc-only": lambda: [Router.for_query_document([make_table(golden)], document)],
        "router": lambda: [Router.for_query_document([make_table(golden, make_weights())], document)],
        "table": lambda: [make_table(golden, make_weights())],
        "two networks": lambda: [Router.for_query_document(read_masked_lm(golden, DISTILBERT), document)],
        "csr": lambda: make_csr(golden),
        "csr cls": lambda: make_csr(golden, "cls", unit=True, normalize=True),
        "csr last": lambda: make_csr(golden, "lasttoken"),
        "csr max": lambda: make_csr(golden, "max"),
        "clip": lambda: [Transformer(str(make_clip(golden, folder / "clip"))), make_autoencoder(24)],
    }
    return made[name]()


def make_folder(golden: Path, folder: Path, name: str, **settings: Any) -> Path:
    """Writes the folder of a name."""
    torch.manual_seed(2)
    model = SparseEncoder(modules=list_modules(golden, folder, name), device="cpu", **settings)
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def write(name: str) -> Callable[[Path, Path], Path]:
    """What a row of the table of tiny encoders takes."""
    return lambda golden, folder: make_folder(golden, folder, name)


CSR, CLIP, ROUTER = write("csr"), write("clip"), write("router")
LIBRARY = {"native": False}

TINY_ENCODERS: Mapping[str, Tiny] = {
    "sae": Tiny("sae", CSR),
    "sparse-encoder clip": Tiny("sparse-encoder", CLIP),
    "sparse-encoder texts": Tiny("sparse-encoder", ROUTER, {**LIBRARY, "direction": "text-to-text"}),
}
