"""Classifies images by prompts of class names: `python -m eval.analyses.zeroshot --images pets:FOLDER`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, run
from lexvl_anserini.data.pictures.images import OnError
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..report.render import Table, check_format, render
from ..report.tables import ACCURACIES
from .classes.class_sets import load_labelled
from .classes.classification import accuracies, class_ranks
from .classes.labelled import read_classes


@expanded
def command(
    images: options.ClassifiedImages,
    encoder: options.ImageEncoderOptions,
    classes: options.ClassFile = None,
    templates: Annotated[
        list[str] | None,
        typer.Option(
            "--template", help="A prompt in which {} is the name of a class; repeatable. Default those of CLIP."
        ),
    ] = None,
    data_dir: DataDir = None,
    on_error: options.OnUnreadable = "fail",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Classify images by the similarity of their vectors to prompts that name the classes.

    Example: python -m eval.analyses.zeroshot --images pets --template "a photo of a {}, a type of pet."
    """
    check_format(output_format)
    policy = OnError(on_error)
    labelled = load_labelled(images, read_classes(classes) if classes else None, data_dir).with_templates(
        templates or ()
    )
    model = encoder.load()
    count = len(labelled.images) + sum(map(len, labelled.classes.prompts()))
    with progress_bar("zero-shot", count, "prompts and images") as advance:
        ranks = class_ranks(model, labelled, encoder.batch_size, advance, policy)
    rows = accuracies(model.name, labelled, ranks)
    sys.stdout.write(render(Table.of_fields(rows, ACCURACIES), rows, output_format))


if __name__ == "__main__":
    run(command)
