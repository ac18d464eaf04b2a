"""Pages through ModernVBERT (arXiv 2510.01149): an image is cut into tiles, which lie among the tokens of a prompt.

The image is enlarged or reduced, cut into squares, and followed by the whole of it in one square, by the numbers of
Idefics3's image processor in transformers. SigLIP reads each tile; a pixel shuffle and a linear map make a few cells of
each, which take the places of the image tokens in ModernBERT's input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.parts.images.pixels import Box, Pixels, read_preprocessing
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.tokens import TextReader
from lexvl_anserini.encoders.parts.towers import Batch
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError

# Pillow's numbers of its filters, as preprocessor_config.json writes them.
LANCZOS, FILTERS = 1, range(6)

# The longest side in pixels that the image processor makes.
LONGEST = 4096

HALF = (0.5, 0.5, 0.5)
STEPS = ("do_resize", "do_image_splitting", "do_rescale", "do_normalize")

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"

# Tiles of one forward pass of SigLIP on a CPU: the states of more would not fit its caches, and take memory.
PIECE = 4

# Width and height.
Size = tuple[int, int]


class TiledPage(NamedTuple):
    """An image in squares, uint8 [T, R, R, 3]: the tiles, row by row, then the whole; if rows is 0 the whole alone."""

    tiles: np.ndarray
    rows: int
    columns: int


@dataclass(frozen=True)
class Tiles(Pixels):
    """How an image becomes tiles of `resolution` R.

    Its longer side is resized to `longest`, whatever it was, by the filter of Pillow's number `resample`; then both
    sides to the next multiples of `resolution`.
    """

    mean: tuple[float, float, float] = HALF
    std: tuple[float, float, float] = HALF
    longest: int = 2048
    resample: int = LANCZOS

    def cut(self, image: Any) -> TiledPage:
        """The tiles of an RGB PIL image."""
        side = self.resolution
        resized = self.fit(image.size)
        wide, high = self.round_up(resized)
        # Two steps, as in the reference: one would give other pixels.
        canvas = image.resize(resized, self.resample).resize((wide, high), self.resample)
        whole = np.asarray(canvas.resize((side, side), self.resample), dtype=np.uint8)[None]
        columns, rows = wide // side, high // side
        if rows * columns == 1:
            return TiledPage(whole, 0, 0)
        tiles = np.asarray(canvas, dtype=np.uint8).reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        return TiledPage(np.concatenate([tiles.reshape(rows * columns, side, side, 3), whole]), rows, columns)

    def fit(self, size: Size) -> Size:
        """The longer side becomes `longest`, the other an even number that keeps the shape, or 1."""
        width, height = size
        other = int(self.longest / (width / height)) if width >= height else int(self.longest * (width / height))
        other = max(1, other + other % 2)
        return (self.longest, other) if width >= height else (other, self.longest)

    def round_up(self, size: Size) -> Size:
        """Multiples of the side of a tile: the longer side first, then the other from its shape."""
        width, height = size
        shape, side = width / height, self.resolution
        longer = ceil(max(size) / side) * side
        other = ceil(int(longer / shape if width >= height else longer * shape) / side) * side
        return (longer, other) if width >= height else (other, longer)

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [T, R, R, 3] of an RGB PIL image: its tiles."""
        return self.cut(image).tiles

    def region(self, size: Size) -> Box:
        """The whole image."""
        return 0.0, 0.0, float(size[0]), float(size[1])


def read_tiles(folder: Path, side: int) -> Tiles:
    """The tiles that a transformers folder describes; without a description, the published ones of `side` pixels."""
    path, described = read_preprocessing(folder)
    if without := [step for step in STEPS if described.get(step) is False]:
        raise CheckpointError(f"{path}: without {', '.join(without)}; expected the tiles of Idefics3's image processor")
    sizes = ((described.get("size"), Tiles.longest), (described.get("max_image_size"), side))
    longest, tile = (size.get("longest_edge") if isinstance(size, Mapping) else usual for size, usual in sizes)
    if tile != side or not isinstance(longest, int) or not side <= longest <= LONGEST:
        expected = f"it reads tiles of {side}, at most in {LONGEST}"
        raise CheckpointError(f"{path}: tiles of {tile} pixels in {longest}; {expected}")
    mean, std = (described.get(key, HALF) for key in ("image_mean", "image_std"))
    resample = described.get("resample", LANCZOS)
    if not (is_colour(mean) and is_colour(std) and all(std) and type(resample) is int and resample in FILTERS):
        raise CheckpointError(f"{path}: image_mean {mean!r:.80}, image_std {std!r:.80} or resample {resample!r:.80}")
    return Tiles(side, tuple(mean), tuple(std), longest, resample)


def is_colour(values: Any) -> bool:
    """True for three numbers."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(isinstance(v, int | float) for v in values)


class PageNetwork(nn.Module):
    """Tiles and their layout to the states of all positions of a ModernVBertModel; the prompt has `IMAGE`."""

    def __init__(self, model: Any, reader: TextReader, prompt: str):
        super().__init__()
        self.model, self.reader, self.prompt = model, reader, prompt

    def forward(self, tiles: Tensor, layout: Tensor) -> Tensor:
        """States [1, L, D] of tiles [T, 3, R, R], row by row and then the whole image; `layout` is (rows, columns)."""
        ids = self.tokenise(layout).to(tiles.device)  # first: it may refuse the page
        pieces = tiles.split(PIECE) if tiles.device.type == "cpu" else (tiles,)
        states = (self.model.vision_model(pixel_values=piece).last_hidden_state for piece in pieces)
        cells = torch.cat([self.model.connector(state) for state in states])  # [T, S, D]
        hidden: Tensor = self.model(input_ids=ids, image_hidden_states=list(cells)).last_hidden_state
        return hidden

    def tokenise(self, layout: Tensor) -> Tensor:
        """Token ids [1, L] of the prompt with the image tokens of all tiles."""
        rows, columns = layout.tolist()
        text = self.prompt.replace(IMAGE, write_tiles(rows, columns, self.model.image_seq_len))
        ids = torch.tensor(self.reader([text]))
        if ids.eq(self.model.config.image_token_id).sum() < (rows * columns + 1) * self.model.image_seq_len:
            page, most = f"a page of {rows} x {columns} tiles and the prompt", self.reader.max_length
            raise CheckpointError(f"{page} have more tokens than the {most} positions of the model")
        return ids

    def select_cells(self, states: Tensor, layout: Tensor) -> Tensor:
        """States [1, L, C] at the cells of the tiles, [1, rows * side, columns * side, C].

        The last tile, the whole image, has no cell, unless it is the only one.
        """
        rows, columns = (max(number, 1) for number in layout.tolist())
        at_image = self.tokenise(layout)[0] == self.model.config.image_token_id
        side, cells = isqrt(self.model.image_seq_len), states[0, at_image.to(states.device)]
        grid = cells[: rows * columns * side * side].unflatten(0, (rows, columns, side, side))
        return grid.transpose(1, 2).reshape(1, rows * side, columns * side, -1)


def write_tiles(rows: int, columns: int, cells: int) -> str:
    """What takes the place of the image in the prompt: the tokens of rows * columns tiles, then of the whole image."""
    whole = f"{AROUND}{WHOLE}{IMAGE * cells}{AROUND}"
    if rows == 0:
        return whole
    tile = f"{AROUND}<row_{{}}_col_{{}}>{IMAGE * cells}"
    lines = ("".join(tile.format(row + 1, column + 1) for column in range(columns)) for row in range(rows))
    return "".join(f"{line}\n" for line in lines) + f"\n{whole}"


class PageTower(ImageTower):
    """Pages to lexical vectors, one per forward pass: pages have different numbers of tiles."""

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs; threads decode and cut them beside the forward pass."""
        tiles = self.pixels
        assert isinstance(tiles, Tiles), "a tower of pages has tiles"
        for position, page in read_images(inputs, on_error=on_error, prepare=tiles.cut):
            pixels = tiles.normalise(torch.from_numpy(page.tiles).to(self.device))
            layout = torch.tensor([page.rows, page.columns])
            yield Batch(np.array([position], dtype=np.int64), (pixels, layout))

    def cells(self, states: Tensor, batch: Batch) -> Tensor:
        """States of a page at the cells of its tiles, which the whole page covers."""
        network = self.composition.backbone
        assert isinstance(network, PageNetwork), "a tower of pages has a network of pages"
        return network.select_cells(states, batch.inputs[1])
