"""Classifies images by prompts of class names, or by a linear probe.

python -m eval.analyses.classify --images pets:FOLDER
python -m eval.analyses.classify --images pets --train pets --encoder clip

The linear probe is logistic regression on the vectors of images, with the protocol of CLIP (appendix A.3): L-BFGS with
at most 1,000 iterations and an L2 penalty of strength lambda (scikit-learn's 1 / C). Lambda is chosen on held-out
training images: the best of 10^-6, 10^-4, ..., 10^6, then of the steps around the best, each half of those before, down
to 8 steps a decade (96 over the range). The classifier that is measured is trained on all training images.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, expand_options, run
from lexvl_anserini.ground.errors import OnError, UsageError
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..report.tables import CLASSES, COUNT, DATASET, IMAGES, SYSTEM, TOP_1, TOP_5, FieldColumn, print_records
from .classes.class_sets import load_labelled, read_classes
from .classes.classification import measure_accuracies, rank_images, run_linear_probe

MEASURED = (IMAGES, CLASSES, FieldColumn("mean over", "mean_over"), TOP_1, TOP_5)
ACCURACIES = (SYSTEM, DATASET, *MEASURED)
PROBE = FieldColumn("trained on", "trained_on", COUNT), FieldColumn("lambda", "strength", "{:.3g}".format)
PROBE_ACCURACIES = (SYSTEM, DATASET, *PROBE, *MEASURED)


@expand_options
def command(
    images: options.ClassifiedImages,
    encoder: options.ImageEncoderOptions,
    templates: Annotated[
        list[str] | None,
        typer.Option("--template", help="Zero-shot: a prompt with {} for the class; repeatable. Default: CLIP's."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(help="A linear probe, trained on these images, named as --images; a set's name for its own."),
    ] = None,
    classes: options.ClassFile = None,
    data_dir: DataDir = None,
    on_error: options.OnUnreadable = "fail",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Classify images: zero-shot, by prompts that name the classes, or by a classifier trained on vectors.

    Example: python -m eval.analyses.classify --images pets --template "a photo of a {}, a type of pet."
    """
    if train and templates:
        raise UsageError("--template is for zero-shot classification, --train for a linear probe; leave out one")
    policy, named = OnError(on_error), read_classes(classes) if classes else None
    training = load_labelled(train, named, data_dir, "train") if train else None
    labelled = load_labelled(images, training.classes if training else named, data_dir)
    labelled = labelled.with_templates(templates or ())
    model = encoder.load()
    others = training.images if training else [prompt for texts in labelled.classes.prompts() for prompt in texts]
    with progress_bar("classify", len(labelled.images) + len(others), "items") as advance:
        if training:
            probed = run_linear_probe(model, training, labelled, encoder.batch_size, advance, policy)
            print_records(probed, PROBE_ACCURACIES, output_format)
        else:
            ranks = rank_images(model, labelled, encoder.batch_size, advance, policy)
            print_records(measure_accuracies(model.name, labelled, ranks), ACCURACIES, output_format)


if __name__ == "__main__":
    run(command)
