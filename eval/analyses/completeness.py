"""The completeness probe: whether an image is more similar to a complete sentence than to a partial one (FDT, 4.4).

python -m eval.analyses.completeness --pairs flickr8k

FDT makes the pairs of the annotated objects of COCO's training images: one sentence describes all objects, the other
some of them; the wording is in its supplement, which is not public. Here the complete sentence names every category of
an image's objects once, "a photo of a dog, a frisbee and a person", and each partial one leaves one of them out.
Captions give pairs without annotations: the partial sentence is a caption up to its first "and" or "with".

Vectors of texts have unit length here, so that a longer sentence does not win by its norm; equal similarities do not
count. A second row compares each pair with another image: it says how often the complete sentence wins by itself.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, run
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..report.render import Table, check_format, render
from ..report.tables import COMPLETENESS
from .sentence_pairs import completeness, sentence_pairs


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

    Example: python -m eval.analyses.completeness --pairs flickr8k/val
    """
    check_format(output_format)
    sentences = sentence_pairs(pairs, data_dir)
    model = encoder.load()
    count = len({pair.image for pair in sentences}) + 2 * len(sentences)
    with progress_bar("completeness", count, "images and sentences") as advance:
        rows = completeness(model, pairs, sentences, encoder.batch_size, advance)
    sys.stdout.write(render(Table.of_fields(rows, COMPLETENESS), rows, output_format))


if __name__ == "__main__":
    run(command)
