"""Writes tests/golden/families/bge-m3.npz and uembed.npz: what the published packages make of the tiny folders.

Run it in an environment that has FlagEmbedding 1.4.2, or mteb 2.26.24 with torchvision, beside the packages of the
tests: `PYTHONPATH=.:tests python tests/plugins/models/write_golden.py bge-m3` (or `uembed`). It calls the packages and
has none of their code.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from declared import GOLDEN

from tests.plugins.models.model_folders import TEXTS, write_bge_m3, write_uembed

INSTRUCTION = "Find pictures of the text"
# Widths and heights that the model reads as they are, and others.
WHOLE, RESIZED = ((64, 64), (96, 64), (64, 128)), ((40, 30), (130, 61), (1, 90))


def write_bge_m3_golden(folder: Path) -> dict[str, np.ndarray]:
    """The lexical weights that FlagEmbedding gives each text, float32 [texts, V]."""
    from FlagEmbedding import BGEM3FlagModel

    model = BGEM3FlagModel(str(write_bge_m3(folder)), use_fp16=False, devices="cpu")
    found = model.encode(list(TEXTS), max_length=40, return_dense=False, return_sparse=True)["lexical_weights"]
    weights = np.zeros((len(TEXTS), model.model.vocab_size), dtype=np.float32)
    for row, by_token in enumerate(found):
        for token, weight in by_token.items():
            weights[row, int(token)] = weight
    return {"outputs/weights": weights, "inputs/texts": np.frombuffer(json.dumps(TEXTS).encode(), dtype=np.uint8)}


def write_uembed_golden(folder: Path) -> dict[str, np.ndarray]:
    """The weights that mteb's class gives texts, with and without an instruction, and pictures, float32 [items, V]."""
    import torch
    from mteb.models.model_implementations.uembed_models import UEmbedEncoder
    from PIL import Image

    write_uembed(folder)
    model = UEmbedEncoder(str(folder), device="cpu", pooling="splade.last", dtype=torch.float32).model
    arrays = {"inputs/texts": np.frombuffer(json.dumps(TEXTS).encode(), dtype=np.uint8)}
    for name, own in (("texts", {}), ("queries", {"instruction": INSTRUCTION})):
        # One by one, as pictures: padding changes the last digits.
        arrays[f"outputs/{name}"] = np.concatenate([model.process([{"text": text, **own}]).numpy() for text in TEXTS])
    random = np.random.RandomState(7)
    for width, height in (*WHOLE, *RESIZED):
        picture = random.randint(0, 256, (height, width, 3)).astype(np.uint8)
        arrays[f"inputs/{width}x{height}"] = picture
        arrays[f"outputs/{width}x{height}"] = model.process([{"image": Image.fromarray(picture)}]).numpy()[0]
    return arrays


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        name = sys.argv[1]
        arrays = {"bge-m3": write_bge_m3_golden, "uembed": write_uembed_golden}[name](Path(place) / "model")
    np.savez_compressed(GOLDEN / f"families/{name}.npz", **arrays)
    print(name, {key: value.shape for key, value in arrays.items()}, {k: int((v > 0).sum()) for k, v in arrays.items()})
