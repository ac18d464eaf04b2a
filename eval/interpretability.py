"""States whether images' terms are words of their captions, and where the words of their classes are.

python -m eval.interpretability --shards impacts/demo
python -m eval.interpretability --images imagenet:FOLDER --encoder stair --checkpoint FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, progress_bar, run
from lexvl_anserini.ground.errors import UsageError

from . import options
from .analyses.caption_words import named_in
from .analyses.class_words import VOCABULARY, ClassWordShares, class_word_shares, dense_space, lexical_space
from .analyses.classes.class_sets import load_labelled
from .analyses.classes.classes import read_classes
from .report.image_tables import class_word_table, named_table
from .report.render import check_format, render


def class_words(
    images: str, encoder: options.ImageEncoderOptions, classes: Path | None, vocabulary: str, data_dir: str | None
) -> list[ClassWordShares]:
    """The rows of images with classes, as the options of the command name them."""
    found = load_labelled(images, read_classes(classes) if classes else None, data_dir)
    model = encoder.load()
    with progress_bar("class words", None, "words and images") as advance:
        lexical = model.kind == "impact"
        space = (
            lexical_space(model, encoder.batch_size)
            if lexical
            else dense_space(model, vocabulary, encoder.batch_size, advance)
        )
        return class_word_shares(model.name, space, found, advance)


@expanded
def command(
    encoder: options.ImageEncoderOptions,
    shards: Annotated[
        Path | None,
        typer.Option(help="Words of captions: a folder that encode wrote, of images of a captioned corpus."),
    ] = None,
    images: Annotated[str | None, options.CLASSIFIED_IMAGES] = None,
    classes: options.ClassFile = None,
    vocabulary: Annotated[
        str, typer.Option(help="Of a dense encoder: folder or hub id of a tokenizer, or a packaged name.")
    ] = VOCABULARY,
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State how often images' first terms are words of their captions, or the words of their classes.

    Captions are those of stored impacts (--shards), classes those of images (--images), which are encoded.

    Example: python -m eval.interpretability --shards impacts/demo
    """
    check_format(output_format)
    if shards and not images:
        named = named_in(shards, data_dir)
        sys.stdout.write(render(named_table(named), named, output_format))
    elif images and not shards:
        rows = class_words(images, encoder, classes, vocabulary, data_dir)
        sys.stdout.write(render(class_word_table(rows), rows, output_format))
    else:
        raise UsageError("give --shards (words of captions) or --images (words of classes)")


if __name__ == "__main__":
    run(command)
