"""Helpers of the tests of training: small corpora of images and of texts, and the weights of a model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file

from lexvl_plugins.train.recipe import Recipe, check_recipe

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (250, 250, 250)}
HUES = ("red", "green", "blue", "white", "black", "grey")


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


def write_squares(folder: Path, train: int, word: str = "squareling") -> str:
    """Writes coloured squares with a grey bar, four more for validation, two captions each; returns the name."""
    names = [list(COLOURS)[number % 4] for number in range(train + 4)]
    images = [np.full((20, 20, 3), COLOURS[name], dtype=np.uint8) for name in names]
    for number, pixels in enumerate(images):
        pixels[number : number + 4, 4:16] = 90
    captions = [[f"a {name} {word}", f"the {word} is {name} with a grey bar"] for name in names]
    return write_corpus(folder, images, captions, train)


def write_plain_squares(folder: Path, last: str = "a white square") -> str:
    """Writes eight coloured images, four of them for validation, with one caption each; returns the name."""
    folder.mkdir(exist_ok=True)
    images = [np.full((16, 16, 3), colour, dtype=np.uint8) for colour in COLOURS.values()]
    captions = [["a red square"], ["a green square"], ["a blue square"], [last]]
    return write_corpus(folder, images * 2, captions * 2, train=4)


def write_pairs(folder: Path) -> str:
    """Writes six colours in two sentences each, with a passage of another colour as hard negative; returns the name."""
    lines = [
        (f"a {colour} {thing}", f"the {thing} is {colour} and has a grey bar", f"a {HUES[number - 1]} {thing} it is")
        for number, colour in enumerate(HUES)
        for thing in ("boat", "house")
    ]
    path = folder / "pairs.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    return f"pairs:{path}"


def tiny_recipe(corpus: str, model: Mapping[str, Any], /, **content: Any) -> Recipe:
    """A recipe that reports and saves every step, where it has no other keys."""
    defaults = {"name": "tiny", "data": {"corpus": corpus}, "model": model, "state_every": 1, "log_every": 1}
    return check_recipe({**defaults, **content}, "tiny.yaml")


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def same_weights(found: Path, expected: Path) -> bool:
    """True for models of the same names with equal weights."""
    ours, theirs = weights_of(found), weights_of(expected)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)


def rows_of(folder: Path, name: str = "log.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's log, or of another file of it."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def losses_of(folder: Path) -> list[float]:
    """The losses that the log of a run has."""
    return [row["loss"] for row in rows_of(folder) if "loss" in row]


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """The arrays of an archive."""
    return {key: torch.from_numpy(value) for key, value in np.load(path).items()}
