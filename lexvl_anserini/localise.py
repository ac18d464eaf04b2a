"""Where in an image a query is: the values of its terms in each grid cell, as numbers and as an image."""

from __future__ import annotations

import logging
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.encoders.cards import choose_encoder
from lexvl_anserini.ground.files import atomic_write

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger("lexvl_anserini.localise")  # __name__ is "__main__" when the module runs as the command

Values = Literal["logit", "activation"]


class Map(NamedTuple):
    """One query in one image: `grid` is [rows][columns] from the top left of the image's centre crop."""

    image: str
    query: str
    grid: list[list[float]]


def write_overlay(model: Encoder, item: Map, path: Path) -> None:
    """Writes an image with a map, as PNG."""
    import numpy as np

    from lexvl_anserini.data.pictures.images import open_image
    from lexvl_anserini.encoders.parts.images.grounding import image_side, overlay

    image = open_image(item.image)
    drawn = overlay(image, image_side(model).pixels.region(image.size), np.array(item.grid))
    with atomic_write(path) as out:
        drawn.save(out, format="PNG")


def print_map(item: Map, style: str) -> None:
    """A map as rows of numbers, or as one JSON object on a line."""
    if style == "json":
        sys.stdout.write(orjson.dumps(item._asdict()).decode() + "\n")
        return
    typer.echo(f"{item.image}  {item.query!r}")
    for row in item.grid:
        typer.echo(" ".join(f"{value:7.3f}" for value in row))


def command(
    image: Annotated[list[str], typer.Option(help="An image, or archive.tar::member; repeatable.")],
    query: Annotated[list[str], typer.Option(help="A text; the maps of several tokens are averaged. Repeatable.")],
    encoder: cli.ImageEncoder = None,
    checkpoint: cli.Checkpoint = None,
    tokenizer: cli.Tokenizer = None,
    backbone_config: cli.BackboneConfig = None,
    device: cli.Device = "auto",
    settings: cli.Settings = None,
    values: Annotated[Values, typer.Option(help="logit or activation.")] = "logit",
    output: Annotated[str | None, typer.Option(help="Folder for a PNG per map; default none.")] = None,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Show where in images queries are.

    Example: python -m lexvl_anserini.localise --image beach.jpg --query "a dog" --output maps
    """
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.encoders.parts.images.grounding import localise

    name, default_checkpoint = choose_encoder("folder", "text-to-image", encoder)
    options = cli.parse_settings(settings or ())
    model = load_encoder(name, checkpoint or default_checkpoint, tokenizer, backbone_config, device, **options)
    for number, (path, text) in enumerate(product(image, query)):
        item = Map(path, text, localise(model, [path], text, values)[0].tolist())
        print_map(item, style)
        if output:
            drawn = Path(output) / f"{number:03d}.{Path(path).stem}.png"
            write_overlay(model, item, drawn)
            log.info("%s: %r", drawn, text)


if __name__ == "__main__":
    cli.run(command)
