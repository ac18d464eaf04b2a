"""Helpers of the tests of training: write a small Karpathy corpus, read the weights of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file


def write_corpus(folder: Path, images: Sequence[NDArray[Any]], captions: Sequence[Sequence[str]], train: int) -> str:
    """Writes images with captions, the first `train` for training, the others for validation; returns the name."""
    entries, sentences = [], 0
    for number, (pixels, texts) in enumerate(zip(images, captions, strict=True)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
        entries.append(
            {
                "imgid": number,
                "filename": f"{number}.png",
                "split": "train" if number < train else "val",
                "sentences": [{"sentid": sentences + i, "raw": text} for i, text in enumerate(texts)],
            }
        )
        sentences += len(texts)
    (folder / "dataset.json").write_text(json.dumps({"images": entries, "dataset": "squares"}))
    return f"karpathy:{folder}/dataset.json,{folder}"


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")
