"""Classification of images for rows of tables: zero-shot, linear probe, and the class word among all words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.encoders.loading import load_encoder

from ..analyses.classes.class_sets import load_labelled
from ..analyses.classes.class_words import VOCABULARY, class_word_shares, dense_space, lexical_space
from ..analyses.classes.classification import accuracies, class_ranks
from ..analyses.probing import linear_probe
from .prepared import Prepared
from .retrieval import found_or_made
from .rows import Finding, RowPart, Workplace

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.progress import Progress

    from ..analyses.classes.labelled import LabelledImages

# (encoder, what loads the images of a split, items per forward pass, progress) -> a record with top_1, top_5, ...
Measuring = Callable[["Encoder", Callable[[str], "LabelledImages"], int, "Progress"], Any]


def zero_shot(model: Encoder, images: Callable[[str], LabelledImages], batch_size: int, progress: Progress) -> Any:
    """Accuracies by prompts that name the classes, averaged as papers do."""
    labelled = images("test")
    return accuracies(model.name, labelled, class_ranks(model, labelled, batch_size, progress))[0]


def probe(model: Encoder, images: Callable[[str], LabelledImages], batch_size: int, progress: Progress) -> Any:
    """Accuracies of logistic regression, averaged as papers do."""
    return linear_probe(model, images("train"), images("test"), batch_size, progress)[0]


def words(model: Encoder, images: Callable[[str], LabelledImages], batch_size: int, progress: Progress) -> Any:
    """Shares of images with a word of their class among the first ones of the vocabulary."""
    lexical = model.kind == "impact"
    space = lexical_space(model, batch_size) if lexical else dense_space(model, VOCABULARY, batch_size, progress)
    return class_word_shares(model.name, space, images("test"), progress)[0]


MEASURING: Mapping[str, Measuring] = {"zero-shot": zero_shot, "linear-probe": probe, "words": words}


def measure_classification(part: RowPart, place: Workplace) -> Finding:
    """Classifies a set of images, or finds the result."""
    return found_or_made(part, place, classified)


def classified(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The values of a part."""

    def images(split: str) -> LabelledImages:
        return some_of(load_labelled(work.corpus.name, None, place.data_dir, split), place.limit)

    name, options = work.system.encoder, {**work.weights.options, "direction": "text-to-image"}
    if "prompt" in {option.name for option in list_options(name)}:
        options["prompt"] = ""  # that of a published row is for captions; a class has prompts of its own
    model = load_encoder(name, work.weights.reference, device=place.device, **options)
    with place.bars(f"{part.task} {part.data}", None, "prompts and images") as progress:
        row = MEASURING[part.task](model, images, place.batch_size, progress)
    return {
        "values": {name: getattr(row, name.replace("-", "_")) for name in part.measures},
        "quantised": False,
        "documents": row.images,
    }


def some_of(found: LabelledImages, number: int | None) -> LabelledImages:
    """At most that many images, evenly from all of them, so that they are of many classes."""
    import numpy as np

    if number is None or number >= len(found.images):
        return found
    chosen: list[int] = np.linspace(0, len(found.images) - 1, number, dtype=np.int64).tolist()
    return found._replace(images=[found.images[place] for place in chosen], labels=found.labels[chosen])
