"""Pages through ModernVBERT (arXiv 2510.01149): the tiles of an image among the tokens of a prompt.

SigLIP reads each tile; a pixel shuffle and a linear map make a few cells of each, which take the places of the image
tokens in ModernBERT's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.data.pictures.images import FAIL, OnError, read_images
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.encoders.parts.towers import Batch, Composition
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_plugins.pages.tiles import Tiles

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"

# Tiles of one forward pass of SigLIP on a CPU: the states of more would not fit its caches, and take memory.
PIECE = 4


class PageNetwork(nn.Module):
    """Tiles and their layout to the states of all positions.

    model   ModernVBertModel
    reader  of the prompt, with special tokens
    prompt  has `IMAGE` where the tiles are
    """

    def __init__(self, model: Any, reader: TextReader, prompt: str):
        super().__init__()
        self.model, self.reader, self.prompt = model, reader, prompt

    def forward(self, tiles: Tensor, layout: Tensor) -> Tensor:
        """States [1, L, D] of tiles [T, 3, R, R], row by row and then the whole image; `layout` is (rows, columns)."""
        ids = self.ids(layout).to(tiles.device)  # first: it may refuse the page
        pieces = tiles.split(PIECE) if tiles.device.type == "cpu" else (tiles,)
        states = (self.model.vision_model(pixel_values=piece).last_hidden_state for piece in pieces)
        cells = torch.cat([self.model.connector(state) for state in states])  # [T, S, D]
        hidden: Tensor = self.model(input_ids=ids, image_hidden_states=list(cells)).last_hidden_state
        return hidden

    def ids(self, layout: Tensor) -> Tensor:
        """Token ids [1, L] of the prompt with the image tokens of all tiles.

        Raises:
            CheckpointError: more tokens than the model has positions.
        """
        rows, columns = layout.tolist()
        text = self.prompt.replace(IMAGE, tile_text(rows, columns, self.model.image_seq_len))
        ids = torch.tensor(self.reader([text]))
        if ids.eq(self.model.config.image_token_id).sum() < (rows * columns + 1) * self.model.image_seq_len:
            raise CheckpointError(
                f"a page of {rows} x {columns} tiles and the prompt have more tokens than the {self.reader.max_length} "
                "positions of the model"
            )
        return ids

    def cells(self, states: Tensor, layout: Tensor) -> Tensor:
        """States [1, L, C] at the cells of the tiles, [1, rows * side, columns * side, C].

        The last tile, the whole image, has no cell, unless it is the only one.
        """
        rows, columns = layout.tolist()
        at_image = self.ids(layout)[0] == self.model.config.image_token_id
        side, cells = isqrt(self.model.image_seq_len), states[0, at_image.to(states.device)]
        rows, columns = max(rows, 1), max(columns, 1)
        grid = cells[: rows * columns * side * side].unflatten(0, (rows, columns, side, side))
        return grid.transpose(1, 2).reshape(1, rows * side, columns * side, -1)


def tile_text(rows: int, columns: int, cells: int) -> str:
    """What takes the place of the image in the prompt: the tokens of rows * columns tiles, then of the whole image."""
    whole = f"{AROUND}{WHOLE}{IMAGE * cells}{AROUND}"
    if rows == 0:
        return whole
    lines = (
        "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{IMAGE * cells}" for column in range(columns))
        for row in range(rows)
    )
    return "".join(f"{line}\n" for line in lines) + f"\n{whole}"


class PageTower(ImageTower):
    """Pages to lexical vectors, one per forward pass: pages have different numbers of tiles."""

    def __init__(
        self,
        composition: Composition | Callable[[], Composition],
        tiles: Tiles,
        columns: TokenColumns,
        device: torch.device | str = "cpu",
    ):
        super().__init__(composition, tiles, columns, device)
        self.tiles = tiles

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs; threads decode and cut them beside the forward pass."""
        for position, page in read_images(inputs, on_error=on_error, prepare=self.tiles.page):
            pixels = self.tiles.normalise(torch.from_numpy(page.tiles).to(self.device))
            layout = torch.tensor([page.rows, page.columns])
            yield Batch(np.array([position], dtype=np.int64), (pixels, layout))

    def cells(self, states: Tensor, batch: Batch) -> Tensor:
        """States of a page at the cells of its tiles, which the whole page covers."""
        network = self.composition.backbone
        assert isinstance(network, PageNetwork), "a tower of pages has a network of pages"
        return network.cells(states, batch.inputs[1])
