"""Which part of an image gives a term of a lexical model its weight (STAIR, section 5.1 and appendix E.1).

Works with every model whose image side pools over patches: STAIR, LexLIP, VDR cross-modal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.images.pixels import Box
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.tokens import list_token_names
from lexvl_anserini.encoders.parts.towers import Head, TextTower
from lexvl_anserini.ground.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

# How an image looks where a map is weakest: grey, mixed with this share of white.
WHITE, PALENESS = (255, 255, 255), 0.6


def image_side(model: Encoder) -> ImageTower:
    """The tower of an encoder that reads images."""
    for tower in (model.document, model.query):
        if isinstance(tower, ImageTower):
            return tower
    raise UsageError(f"encoder {model.name!r} has no image side that pools over patches; maps need one")


def own_terms(model: Encoder, texts: Sequence[str]) -> list[list[int]]:
    """The dimensions of each text's own tokens, ascending, without prompt and special tokens."""
    towers = [tower for tower in (model.query, model.document) if isinstance(tower, (TextTower, BagTower))]
    if not towers:
        raise UsageError(f"encoder {model.name!r} reads no texts in this direction; use one with text")
    tower = towers[0]
    if not len(tower.columns.of_token):
        raise UsageError(f"the terms of encoder {model.name!r} are no words but {tower.vocabulary[0]!r} and so on")
    reader = replace(tower.reader, prompt="", specials=False, padding="none")
    return [own.tolist() for own in tower.columns.own(reader(texts))]


def compute_logits(head: Head, hidden: Tensor, dims: Sequence[int]) -> Tensor:
    """Logits [B, L, len(dims)] of some dimensions at each position of hidden states [B, L, D]."""
    rows = torch.as_tensor(dims, dtype=torch.long, device=head.matrix.device)
    bias = None if head.bias is None else head.bias[rows]
    return torch.nn.functional.linear(head.transform(hidden), head.matrix[rows], bias)


@torch.inference_mode()
def compute_patch_logits(tower: ImageTower, images: Sequence[Any], dims: Sequence[int]) -> np.ndarray:
    """Logits of some dimensions at each cell of the whole grid, float32 [n, rows, columns, len(dims)], from the top."""
    backbone = getattr(tower.composition.backbone, "fine", tower.composition.backbone)
    maps: list[np.ndarray] = []
    for batch in tower.batches(images, batch_size=8):
        logits = compute_logits(tower.composition.head, backbone(*batch.inputs), dims)  # [B, N, len(dims)]
        maps.append(tower.cells(logits, batch).cpu().numpy())
    if len({piece.shape[1:] for piece in maps}) > 1:
        raise UsageError("the maps of these images have different shapes; take the images one at a time")
    return np.concatenate(maps) if maps else np.empty((0, 0, 0, len(dims)), dtype=np.float32)


def compute_patch_activations(tower: ImageTower, images: Sequence[Any], dims: Sequence[int]) -> np.ndarray:
    """Activations of some dimensions at each grid cell, shaped as `compute_patch_logits`."""
    return tower.composition.activation(torch.from_numpy(compute_patch_logits(tower, images, dims))).numpy()


@torch.inference_mode()
def compute_token_logits(model: Encoder, texts: Sequence[str], dims: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Streams every token of texts, without special ones, with the logits of some dimensions there, float32 [dims]."""
    towers = [tower for tower in (model.query, model.document) if isinstance(tower, TextTower)]
    if not towers:
        raise UsageError(f"encoder {model.name!r} has no text side that pools over tokens")
    composition, names = towers[0].composition, list_token_names(towers[0].reader.tokenizer)
    for batch in towers[0].batches(texts, batch_size=32):
        input_ids, attention = batch.inputs
        logits = compute_logits(composition.head, composition.backbone(input_ids, attention), dims)[attention > 0]
        for token, values in zip(input_ids[attention > 0].tolist(), logits.cpu().numpy(), strict=True):
            if token in names:
                yield names[token], values


def localise(
    model: Encoder, images: Sequence[Any], query: str, values: Literal["logit", "activation"] = "logit"
) -> np.ndarray:
    """The value of a query in each grid cell of an image, float32 [n, grid, grid].

    The mean over the distinct own tokens of the query of their values in that cell.

    Args:
        images: paths, `archive.tar::member` or PIL images; the map covers their centre crop.
        values: logits, or activations (>= 0, as in the vectors). The paper does not say which.
    """
    tower, [dims] = image_side(model), own_terms(model, [query])
    if not dims:
        raise UsageError(f"query {query!r}: none of its tokens is a term of this model")
    compute = compute_patch_activations if values == "activation" else compute_patch_logits
    return compute(tower, images, dims).mean(axis=-1)


def compute_contributions(tower: ImageTower, image: Any, weights: Mapping[str, float]) -> np.ndarray:
    """The sum of weight x activation over the terms of a query in each grid cell of an image, float32 [grid, grid].

    The terms of a score can come from different cells; the map shows how much of the query each cell has by itself.
    """
    dims = [tower.vocabulary.dimension[term] for term in weights]
    activations = compute_patch_activations(tower, [image], dims)[0]  # [grid, grid, terms]
    return activations @ np.fromiter(weights.values(), np.float32, len(weights))


def overlay(image: Image, region: Box, grid: np.ndarray) -> Image:
    """An image in its colours where the map `grid` of a region is strong, fading to pale grey elsewhere."""
    import PIL.Image

    span = float(grid.max() - grid.min())
    shade = np.uint8((grid - grid.min()) / span * 255) if span else np.zeros(grid.shape, np.uint8)
    left, top, right, bottom = map(round, region)
    large = PIL.Image.fromarray(shade).resize((right - left, bottom - top), PIL.Image.Resampling.BICUBIC)
    mask = PIL.Image.new("L", image.size)
    mask.paste(large, (left, top))
    pale = PIL.Image.blend(image.convert("L").convert("RGB"), PIL.Image.new("RGB", image.size, WHITE), PALENESS)
    return PIL.Image.composite(image, pale, mask)
