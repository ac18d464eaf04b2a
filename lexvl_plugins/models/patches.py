"""Images as Qwen3.5 reads them: resized to whole cells, cut into patches that lie cell by cell.

The numbers are those of Qwen2-VL's image processor in transformers, with the limits of UEmbed's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.images.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, read_preprocessing
from lexvl_anserini.ground.errors import CheckpointError

# Cells of an image at least and at most: 4 and 1,800 squares of 32 pixels.
LEAST, MOST = 4, 1800
STEPS = ("do_resize", "do_rescale", "do_normalize")
SHAPE = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}


@dataclass(frozen=True)
class Patches:
    """How an image becomes squares of `patch` pixels, `merge` x `merge` of them in a cell, and each `frames` times."""

    patch: int
    merge: int
    frames: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def resize(self, image: Any) -> np.ndarray:
        """uint8 [H, W, 3] of an RGB PIL image: both sides are whole numbers of cells."""
        size = self.fit(*image.size)
        return np.array(image if image.size == size else image.resize(size, BICUBIC), dtype=np.uint8)

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """The nearest whole numbers of cells, of a smaller or larger image of this shape if they are too many or few.

        The published code refuses images 200 times as long as high. Here their longer side is cut to the most cells.
        """
        cell = self.patch * self.merge
        sides, area = (width, height), width * height
        cells = [round(side / cell) for side in sides]
        if cells[0] * cells[1] > MOST:
            factor = sqrt(area / MOST) / cell
            cells = [max(1, floor(side / factor / cell)) for side in sides]
        elif cells[0] * cells[1] < LEAST:
            factor = cell * sqrt(LEAST / area)
            cells = [ceil(side * factor / cell) for side in sides]
        across, down = (min(number, MOST) for number in cells)
        return across * cell, down * cell

    def cut(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised patches [P, 3 F p p], float32, of uint8 [H, W, 3], and their grid [1, 3]: 1, rows, columns."""
        mean, std = (torch.tensor(v, device=pixels.device) for v in (self.mean, self.std))
        values = (pixels.float() / 255.0 - mean) / std
        rows, columns = (side // self.patch for side in pixels.shape[:2])
        cells = values.view(
            rows // self.merge, self.merge, self.patch, columns // self.merge, self.merge, self.patch, 3
        )
        ordered = cells.permute(0, 3, 1, 4, 6, 2, 5).unsqueeze(5)  # cell, place in the cell, channel, frame, pixel
        repeated = ordered.expand(-1, -1, -1, -1, -1, self.frames, -1, -1)
        grid = torch.tensor([[1, rows, columns]], device=pixels.device)
        return repeated.reshape(rows * columns, -1), grid


def read_patches(folder: Path, config: Any) -> Patches:
    """The patches that a folder describes, which its network (`vision_config`) must read."""
    path, described = read_preprocessing(folder)
    if without := [step for step in STEPS if described.get(step) is False]:
        raise CheckpointError(f"{path}: without {', '.join(without)}; expected Qwen2-VL's image processor")
    shape: Mapping[str, Any] = {key: described.get(key, usual) for key, usual in SHAPE.items()}
    read = (config.patch_size, config.spatial_merge_size, config.temporal_patch_size)
    if tuple(shape.values()) != read:
        raise CheckpointError(f"{path}: {dict(shape)}, but the network reads {', '.join(map(str, read))}")
    mean, std = (tuple(described.get(key, (0.5,) * 3)) for key in ("image_mean", "image_std"))
    return Patches(*read, mean, std)
