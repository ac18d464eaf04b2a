"""Classifies images by prompts of class names, or by a linear probe.

python -m eval.analyses.classify --images pets:FOLDER
python -m eval.analyses.classify --images pets --by linear-probe --encoder clip

The linear probe is logistic regression on the vectors of images, with the protocol of CLIP (appendix A.3): L-BFGS with
at most 1,000 iterations and an L2 penalty of strength lambda (scikit-learn's 1 / C). Lambda is chosen on held-out
training images: the best of 10^-6, 10^-4, ..., 10^6, then of the steps around the best, each half of those before, down
to 8 steps a decade (96 over the range). The classifier that is measured is trained on all training images.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, run
from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.progress import Progress, progress_bar, silent

from .. import options
from ..report.render import print_records
from ..report.tables import ACCURACIES, PROBE_ACCURACIES
from .classes.class_sets import CLASS_SETS, load_labelled
from .classes.classification import Vectors, encode_pieces, measure_accuracies, rank_classes, rank_images
from .classes.labelled import read_classes

if TYPE_CHECKING:
    from .classes.labelled import LabelledImages


# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.analyses.classify")

ITERATIONS = 1000

# Exponents of 10: the range of lambda, the first steps, and the finest.
LEAST, MOST, FIRST_STEP, LAST_STEP = -6.0, 6.0, 2.0, 0.125

# One of so many training images of a class is held out, the last of them.
HELD_OUT_EVERY = 5


class ProbeAccuracy(NamedTuple):
    """The accuracy of a classifier, how many images it was trained on, and with which strength of its penalty."""

    system: str
    dataset: str
    trained_on: int
    strength: float
    images: int
    classes: int
    mean_over: str
    top_1: float
    top_5: float


def find_exponent(score: Callable[[float], float]) -> float:
    """The exponent with the best score, searched by halved steps; of equal scores the largest exponent.

    Args:
        score: an exponent of 10 -> how good the classifier is. It is called once for each exponent, at most 15 times.
    """
    scores = {float(exponent): score(exponent) for exponent in np.arange(LEAST, MOST + 1, FIRST_STEP)}
    step = FIRST_STEP
    while True:
        best = max(scores, key=lambda exponent: (scores[exponent], exponent))
        if step <= LAST_STEP:
            return best
        step /= 2
        for exponent in (best - step, best + step):
            if LEAST <= exponent <= MOST and exponent not in scores:
                scores[exponent] = score(exponent)


def choose_held_out(labels: np.ndarray) -> np.ndarray:
    """Which training images choose lambda, bool [n]: of each class every fifth, in their order."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise DataError(f"training images of {len(classes)} classes, expected at least 2")
    chosen = np.zeros(len(labels), dtype=bool)
    for number in classes:
        own = np.flatnonzero(labels == number)
        chosen[own[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    if not chosen.any():
        raise DataError(f"no class has {HELD_OUT_EVERY} training images, of which one chooses the penalty")
    return chosen


def fit_classifier(vectors: Vectors, labels: np.ndarray, exponent: float) -> Any:
    """A classifier with the penalty 10^exponent."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the log says it of the classifier that is measured
        return LogisticRegression(C=10**-exponent, max_iter=ITERATIONS).fit(vectors, labels)


def score_classes(classifier: Any, vectors: Vectors, classes: int) -> np.ndarray:
    """Scores [n, classes]; minus infinity for a class that the classifier has not seen."""
    values = classifier.decision_function(vectors)
    scores = np.full((vectors.shape[0], classes), -np.inf)
    scores[:, classifier.classes_] = values if values.ndim == 2 else np.stack([-values, values], axis=1)
    return scores


def encode_images(
    model: Encoder, labelled: LabelledImages, batch_size: int, progress: Progress = silent, on_error: OnError = FAIL
) -> tuple[Vectors, LabelledImages]:
    """The vectors of images, and the images without those that were skipped."""
    from scipy import sparse

    pieces = list(encode_pieces(model, labelled.images, batch_size, progress, on_error))
    places = np.concatenate([positions for positions, _ in pieces])
    if not len(places):
        raise DataError(f"{labelled.name}: none of its {len(labelled.images):,} images can be read")
    rows = [vectors for _, vectors in pieces]
    stacked = sparse.vstack(rows, format="csr") if sparse.issparse(rows[0]) else np.concatenate(rows)
    return stacked, labelled._replace(images=[labelled.images[i] for i in places], labels=labelled.labels[places])


def run_linear_probe(
    model: Encoder,
    train: LabelledImages,
    test: LabelledImages,
    batch_size: int = 32,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> list[ProbeAccuracy]:
    """The accuracies of a classifier over images and over classes, first the mean that papers print."""
    vectors, train = encode_images(model, train, batch_size, progress, on_error.fresh())
    choosing = choose_held_out(train.labels)
    # Before the search, so that an image that cannot be read ends the command early.
    test_vectors, test = encode_images(model, test, batch_size, progress, on_error.fresh())

    def score(exponent: float) -> float:
        classifier = fit_classifier(vectors[~choosing], train.labels[~choosing], exponent)
        share = float(classifier.score(vectors[choosing], train.labels[choosing]))
        log.debug("lambda 10^%g: %.4f of %d held-out images", exponent, share, choosing.sum())
        return share

    exponent = find_exponent(score)
    classifier = fit_classifier(vectors, train.labels, exponent)
    if classifier.n_iter_.max() >= ITERATIONS:
        log.warning("L-BFGS did not converge in %d iterations; CLIP's protocol stops there", ITERATIONS)
    ranks = rank_classes(score_classes(classifier, test_vectors, len(test.classes)), test.labels)
    trained_on, strength = len(train.labels), 10**exponent
    rows = measure_accuracies(model.name, test, ranks)
    return [ProbeAccuracy(row.system, row.dataset, trained_on, strength, *row[2:]) for row in rows]


@dataclass(frozen=True)
class ClassifierOptions:
    """How images get classes."""

    by: Annotated[
        Literal["zero-shot", "linear-probe"],
        typer.Option(help="By prompts that name the classes, or by logistic regression on vectors of training images."),
    ] = "zero-shot"
    templates: Annotated[
        list[str] | None,
        typer.Option("--template", help="zero-shot: a prompt with {} for the class; repeatable. Default: CLIP's."),
    ] = None
    train: Annotated[
        str | None, typer.Option(help="linear-probe: images to train on, named as --images; default the set's own.")
    ] = None

    def check(self, images: str) -> None:
        """Raises UsageError for options of the other way, and for a probe without images to train on."""
        if (self.by == "zero-shot" and self.train) or (self.by == "linear-probe" and self.templates):
            raise UsageError("--template is of --by zero-shot, --train of --by linear-probe")
        if self.by == "linear-probe" and not self.train and images.partition(":")[0] not in CLASS_SETS:
            raise UsageError(f"{images} is no known set with images to train on; name some with --train")


@expanded
def command(
    images: options.ClassifiedImages,
    encoder: options.ImageEncoderOptions,
    classifier: ClassifierOptions,
    classes: options.ClassFile = None,
    data_dir: DataDir = None,
    on_error: options.OnUnreadable = "fail",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Classify images: zero-shot, by prompts that name the classes, or by a classifier trained on vectors.

    Example: python -m eval.analyses.classify --images pets --template "a photo of a {}, a type of pet."
    """
    classifier.check(images)
    policy, named = OnError(on_error), read_classes(classes) if classes else None
    probes = classifier.by == "linear-probe"
    training = load_labelled(classifier.train or images, named, data_dir, "train") if probes else None
    labelled = load_labelled(images, training.classes if training else named, data_dir)
    labelled = labelled.with_templates(classifier.templates or ())
    model = encoder.load()
    others = training.images if training else [prompt for texts in labelled.classes.prompts() for prompt in texts]
    with progress_bar(classifier.by, len(labelled.images) + len(others), "items") as advance:
        if training:
            probed = run_linear_probe(model, training, labelled, encoder.batch_size, advance, policy)
            print_records(probed, PROBE_ACCURACIES, output_format)
        else:
            ranks = rank_images(model, labelled, encoder.batch_size, advance, policy)
            print_records(measure_accuracies(model.name, labelled, ranks), ACCURACIES, output_format)


if __name__ == "__main__":
    run(command)
