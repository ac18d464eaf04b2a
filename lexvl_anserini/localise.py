"""Where in an image a query is: the values of its terms in each grid cell, as numbers and as an image.

python -m lexvl_anserini.localise --image beach.jpg --query "dog" --query "a red boat" --output maps
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.encoders.cards import choose_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import atomic_write

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.localise")

VALUES = ("logit", "activation")


class Map(NamedTuple):
    """One query in one image: `grid` is [rows][columns] from the top left of the image's centre crop."""

    image: str
    query: str
    grid: list[list[float]]


def localise_queries(model: Encoder, images: Sequence[str], queries: Sequence[str], values: str) -> Iterator[Map]:
    """The map of every query in every image, image by image."""
    from lexvl_anserini.encoders.parts.images.grounding import localise

    for image in images:
        for query in queries:
            [grid] = localise(model, [image], query, values)  # type: ignore[arg-type]
            yield Map(image, query, grid.tolist())


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
    encoder: Annotated[
        str | None,
        typer.Option(
            help="One that reads images; default as for a folder of pictures.", autocompletion=cli.encoder_names
        ),
    ] = None,
    checkpoint: cli.Checkpoint = None,
    tokenizer: cli.Tokenizer = None,
    backbone_config: cli.BackboneConfig = None,
    device: cli.Device = "auto",
    settings: cli.Settings = None,
    values: Annotated[str, typer.Option(help="logit or activation.")] = "logit",
    output: Annotated[str | None, typer.Option(help="Folder for a PNG per map; default none.")] = None,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Show where in images queries are.

    Example: python -m lexvl_anserini.localise --image beach.jpg --query "a dog" --output maps
    """
    if values not in VALUES:
        raise UsageError(f"--values {values!r}: expected {' or '.join(VALUES)}")
    from lexvl_anserini.encoders.loading import load_encoder

    name, default_checkpoint = choose_encoder("folder", "text-to-image", encoder)
    options = cli.parse_settings(settings or ())
    model = load_encoder(name, checkpoint or default_checkpoint, tokenizer, backbone_config, device, **options)
    for number, map_of_query in enumerate(localise_queries(model, image, query, values)):
        print_map(map_of_query, style)
        if output:
            path = Path(output) / f"{number:03d}.{Path(map_of_query.image).stem}.png"
            write_overlay(model, map_of_query, path)
            log.info("%s: %r", path, map_of_query.query)


if __name__ == "__main__":
    cli.run(command)
