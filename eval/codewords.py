"""Draws what terms stand for: images and words where they are strongest.

python -m eval.codewords --term fdt05675 --corpus coco/val --encoder fdt --checkpoint RUN-FOLDER --output codewords.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import (
    DataDir,
    Style,
    Verbose,
    check_style,
    corpus_names,
    expanded,
    print_rows,
    progress_bar,
    run,
)

from . import options
from .report.code_words import strips_of_terms
from .report.strips import draw_sheet


@expanded
def command(
    terms: Annotated[list[str], typer.Option("--term", help="A term of the encoder's vocabulary; repeatable.")],
    corpus: Annotated[
        str, typer.Option(help="Images, and their captions if it has some: flickr8k/val.", autocompletion=corpus_names)
    ],
    encoder: options.ImageEncoderOptions,
    images: Annotated[int, typer.Option(min=1, help="Images that are read, the first of the corpus.")] = 1000,
    output: Annotated[Path, typer.Option(help="PNG to write.")] = Path("codewords.png"),
    data_dir: DataDir = None,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Draw, for each term, the images and the words of captions where it is strongest.

    Example: python -m eval.codewords --term dog --term red --corpus flickr8k/val
    """
    check_style(style)
    from lexvl_anserini.data.dataset import load_dataset

    dataset = load_dataset(corpus, data_dir=data_dir, direction="text-to-image")
    model = encoder.load()
    with progress_bar("images", None, "images") as advance:
        strips = strips_of_terms(model, dataset, terms, images, advance)
    draw_sheet(strips, output, 0, maps=True)
    words = {strip.query.name: strip.query.text for strip in strips}
    print_rows({**words, "sheet": str(output), "bytes": output.stat().st_size}, style)


if __name__ == "__main__":
    run(command)
