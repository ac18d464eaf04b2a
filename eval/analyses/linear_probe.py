"""Trains linear classifiers on vectors: `python -m eval.analyses.linear_probe --images pets --encoder clip`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, run
from lexvl_anserini.data.pictures.images import OnError
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..report.render import Table, check_format, render
from ..report.tables import PROBE_ACCURACIES
from .classes.class_sets import CLASS_SETS, load_labelled
from .classes.labelled import read_classes
from .probing import linear_probe


@expanded
def command(
    images: options.ClassifiedImages,
    encoder: options.ImageEncoderOptions,
    train: Annotated[
        str | None, typer.Option(help="Images to train on, named as --images; default the set's own training images.")
    ] = None,
    classes: options.ClassFile = None,
    data_dir: DataDir = None,
    on_error: options.OnUnreadable = "fail",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Train logistic regression on vectors of training images, and classify images by it.

    Example: python -m eval.analyses.linear_probe --images pictures/test --train pictures/train
    """
    check_format(output_format)
    policy = OnError(on_error)
    if train is None and images.partition(":")[0] not in CLASS_SETS:
        raise UsageError(f"{images} is no known set with images to train on; name some with --train")
    named = read_classes(classes) if classes else None
    training = load_labelled(train or images, named, data_dir, "train")
    testing = load_labelled(images, training.classes, data_dir)
    model = encoder.load()
    with progress_bar("linear probe", len(training.images) + len(testing.images), "images") as advance:
        rows = linear_probe(model, training, testing, encoder.batch_size, advance, policy)
    sys.stdout.write(render(Table.of_fields(rows, PROBE_ACCURACIES), rows, output_format))


if __name__ == "__main__":
    run(command)
