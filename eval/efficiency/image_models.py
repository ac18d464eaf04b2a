"""VDR cross-modal's image side in ViT-B/32's shape with random weights, and the plain formula; runs in children."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.files import write_json

from .encode import Encoding, alternate, copy_tokenizer, memory, model_folder

# The text side of a checkpoint in the published layout; it is not used here, so it has the smallest sizes.
TEXT_SIZES: Mapping[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 16,
}

# Size of the synthetic images, common for photographs in captioned corpora.
WIDTH, HEIGHT = 500, 375


def make(
    folder: str, shape: str, documents: int, tokens: int, corpus: str | None, data_dir: str | None, seed: int
) -> dict[str, Any]:
    """Writes the model if it does not exist, and the images; returns the folder and the paths of the images."""
    path = model_folder(folder)
    if not (path / "config.json").is_file():
        write_model(path, seed)
    images = path / f"pictures-{seed}"
    images.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    names = [images / f"{number:05d}.jpg" for number in range(documents)]
    for name in names:
        write_image(name, random)
    return {"folder": folder, "cases": {"pictures": [str(name) for name in names]}}


def write_model(folder: Path, seed: int, **sizes: Any) -> None:
    """A checkpoint in VDR cross-modal's published layout, ViT-B/32 at 224 pixels (or of other `sizes`)."""
    import transformers
    from safetensors.torch import save_file

    from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
    from lexvl_anserini.encoders.parts.texts.tokens import columns_ascii

    tokenizer = copy_tokenizer(folder)
    torch.manual_seed(seed)
    config = transformers.BertConfig(vocab_size=len(tokenizer), **TEXT_SIZES)
    (folder / "text").mkdir(exist_ok=True)
    config.save_pretrained(folder / "text")
    bert: Any = transformers.BertModel(config, add_pooling_layer=False)
    shape: dict[str, Any] = {"resolution": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12, **sizes}
    vision = PatchTransformer(**shape)
    size = len(columns_ascii(tokenizer).vocabulary)
    norm = torch.nn.LayerNorm(config.hidden_size)
    weights = {
        **{f"encoder_q.bert_model.{key}": value for key, value in bert.state_dict().items()},
        **{f"encoder_q.ln.{key}": value for key, value in norm.state_dict().items()},
        **{f"encoder_p.{key}": value for key, value in vision.state_dict().items()},
        "encoder_p.proj": torch.randn(size, shape["width"]) * 0.02,
    }
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors")
    text_side = {"type": "vdr_crossmodal_text", "model_id": "text", "max_len": 64, "shift_vocab_num": 999}
    about = {"encoder_q": text_side, "encoder_p": {"type": "vdr_crossmodal_image", **shape}}
    write_json(folder / "config.json", {"model_type": "vdr", **about})


def write_image(path: Path, random: np.random.Generator) -> None:
    """Writes a JPEG of soft coloured patches, which costs about as much to decode as a photograph."""
    from PIL import Image

    coarse = random.integers(0, 256, (HEIGHT // 12, WIDTH // 12, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=90)


def load(shape: str, folder: str) -> Any:
    """The image tower, through the public loader."""
    return load_encoder("vdr-crossmodal", checkpoint=folder, device="cpu").document


def naive_pooled(tower: Any) -> Callable[..., Tensor]:
    """The formula on all logits at once: max over patches of elu1p(<h, P>), L2-normalised."""
    vision, projection = tower.composition.backbone, tower.composition.head.matrix

    def pooled(inputs: tuple[Tensor, ...], masked: Tensor | None = None) -> Tensor:
        logits = vision(*inputs) @ projection.T  # [B, P, V]
        return torch.nn.functional.normalize((torch.nn.functional.elu(logits) + 1).amax(dim=1), dim=1)

    return pooled


def as_naive(tower: Any) -> Any:
    """The same tower with the plain formula; reading images and keeping the top k do not change."""
    tower.pooled = naive_pooled(tower)
    return tower


LOADERS: Mapping[str, Callable[[str, str], Any]] = {
    "ours": load,
    "naive": lambda shape, folder: as_naive(load(shape, folder)),
}


def compare(
    shape: str, folder: str, inputs: list[str], batch_size: int, threads: int, systems: list[str], repeats: int
) -> dict[str, Any]:
    """Costs per system and round, the difference of their vectors from ours, and the parts of our time."""
    torch.set_num_threads(threads)
    loaded = {name: LOADERS[name](shape, folder) for name in systems}
    timed = TimedTower(loaded["ours"]) if "ours" in loaded else None
    turns = {name: as_encoding(tower) for name, tower in loaded.items()}
    if timed is not None:
        turns["ours"] = turns["ours"]._replace(vectors=timed.vectors)
    compared = alternate(turns, inputs, batch_size, repeats)
    figures: dict[str, Any] = {"vocabulary": compared.dimensions}
    if timed is not None:
        wall_s = sum(cost["wall_s"] for cost in compared.costs["ours"])
        figures["forward_share"] = round(timed.forward_s / wall_s, 4)
        figures["pictures_share"] = round(timed.images_s / wall_s, 4)
        figures["other_share"] = round(1 - (timed.forward_s + timed.images_s) / wall_s, 4)
    return {"costs": compared.costs, "differences": compared.differences, "figures": figures}


def as_encoding(tower: Any) -> Encoding:
    """A tower as a system of the suite."""
    return Encoding(tower.weights, tower.dense_weights)


class TimedTower:
    """Counts the time that a tower spends in the forward pass (backbone, head, pooling) and waiting for images.

    Threads decode images during the forward pass; the count is the time in which the tower waits for them, and
    normalises them.
    """

    def __init__(self, tower: Any):
        self.tower = tower
        self.forward_s = self.images_s = 0.0
        self.pooled, self.batches = tower.pooled, tower.batches

    def vectors(self, inputs: Sequence[str], batch_size: int) -> Any:
        """The tower's vectors, timed."""
        self.tower.pooled, self.tower.batches = self._timed_pooled, self._timed_batches
        try:
            return self.tower.weights(inputs, batch_size)
        finally:
            self.tower.pooled, self.tower.batches = self.pooled, self.batches

    def _timed_pooled(self, *arguments: Any) -> Tensor:
        started = time.perf_counter()
        weights: Tensor = self.pooled(*arguments)
        self.forward_s += time.perf_counter() - started
        return weights

    def _timed_batches(self, *arguments: Any) -> Iterator[Any]:
        stream = self.batches(*arguments)
        while True:
            started = time.perf_counter()
            batch = next(stream, None)
            self.images_s += time.perf_counter() - started
            if batch is None:
                return
            yield batch


def peak(shape: str, folder: str, inputs: list[str], batch_size: int, threads: int, system: str) -> dict[str, int]:
    """Resident memory of the loaded system, and the additional memory while it encodes."""
    torch.set_num_threads(threads)
    return memory(as_encoding(LOADERS[system](shape, folder)), inputs, batch_size)
