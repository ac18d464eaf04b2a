"""Random views of training images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.training.recipe import Augmentation


def augment(
    pixels: Tensor, augmentation: Augmentation, draws: np.random.Generator, mirrored: np.ndarray | None = None
) -> Tensor:
    """A random view of each image [B, 3, R, R]: a crop, shifted and mirrored; bilinear, the border is repeated.

    Args:
        pixels: of the images.
        augmentation: bounds of the views.
        draws: random numbers.
        mirrored: bool [B], which images to mirror; None draws them if the augmentation mirrors.
    """
    if augmentation == Augmentation():
        return pixels
    batch, _, side, _ = pixels.shape
    zoom = draws.uniform(augmentation.zoom, 1.0, batch)
    room = (1 - zoom) + 2 * augmentation.shift / side  # in coordinates from -1 to 1
    moved = draws.uniform(-1, 1, (2, batch)) * room
    if mirrored is None:
        mirrored = augmentation.flip & (draws.random(batch) < 0.5)
    sign = np.where(mirrored, -1.0, 1.0)
    theta = np.zeros((batch, 2, 3), dtype=np.float32)
    theta[:, 0, 0], theta[:, 1, 1] = zoom * sign, zoom
    theta[:, 0, 2], theta[:, 1, 2] = moved
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta).to(pixels.device), list(pixels.shape), align_corners=False
    )
    return torch.nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
