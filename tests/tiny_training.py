"""What tests of training are given: a Karpathy corpus of a few pictures, and the weights that came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file


def write_corpus(folder: Path, pictures: Sequence[NDArray[Any]], told: Sequence[Sequence[str]], train: int) -> str:
    """Writes pictures with their captions, the first `train` to train with, the others to validate with; its name."""
    images, sentences = [], 0
    for number, (pixels, texts) in enumerate(zip(pictures, told, strict=True)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append(
            {
                "imgid": number,
                "filename": f"{number}.png",
                "split": "train" if number < train else "val",
                "sentences": [{"sentid": sentences + i, "raw": text} for i, text in enumerate(texts)],
            }
        )
        sentences += len(texts)
    (folder / "dataset.json").write_text(json.dumps({"images": images, "dataset": "squares"}))
    return f"karpathy:{folder}/dataset.json,{folder}"


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")
