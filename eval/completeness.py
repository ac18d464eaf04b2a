"""States how often images prefer complete sentences to partial ones: `python -m eval.completeness --pairs flickr8k`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, progress_bar, run

from . import options
from .analyses.completeness import completeness
from .analyses.sentence_pairs import sentence_pairs
from .report.image_tables import completeness_table
from .report.render import check_format, render


@expanded
def command(
    pairs: Annotated[
        str,
        typer.Option(
            help="Captioned images (flickr8k/val), a list (.tsv or .csv: image, complete, partial), or COCO's "
            "instances_train2017.json,IMAGES."
        ),
    ],
    encoder: options.ImageEncoderOptions,
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State how often an image is more similar to a complete sentence than to one about a part of it.

    Example: python -m eval.completeness --pairs flickr8k/val
    """
    check_format(output_format)
    found = sentence_pairs(pairs, data_dir)
    model = encoder.load()
    count = len({pair.image for pair in found}) + 2 * len(found)
    with progress_bar("completeness", count, "images and sentences") as advance:
        rows = completeness(model, pairs, found, encoder.batch_size, advance)
    sys.stdout.write(render(completeness_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
