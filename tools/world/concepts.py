"""What an image model names in the demo's images: how many of its first concepts are things that are there.

The terms of an image's vector are read by descending weight; the first ten different concepts are compared with the
scene (`measures.word_meanings` defines concepts, and when one is correct). Four other rankings are compared too:

most frequent       concepts by their frequency in all training captions, the same for every image
colours and place   concepts by their frequency in the training captions of scenes in the same place, averaged over the
                    scene's colours: it knows both exactly, and of objects only what they make likely
another picture     the model's own vectors, each compared with the next image's scene: correct by chance
its five captions   concepts by their frequency in the image's own captions: what people name

Colours and place is what a model reaches that has learned these, but no objects; a model has learned objects to the
extent that it exceeds this ranking. Its five captions is near the maximum that these rules allow: concepts of every
sort compete for the first places, and some of a scene's objects are named by words of several concepts.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import expect_lexical
from world.grammar import captions
from world.meanings import Meaning, concepts_in, distinct, meanings, named, words_of
from world.scenes import Scene, scenes

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

PLACES = 10
# `two_objects` counts the images with at least this many correct objects among their first concepts.
ENOUGH = 2


class ConceptCounts(NamedTuple):
    """How many of one image's first concepts are correct, and how many of the objects are wrong."""

    objects: int
    wrong_objects: int
    colours: int
    place: int
    weather: int
    time: int


class ConceptMeans(NamedTuple):
    """Means over images; `two_objects` and `any_object` are shares of images."""

    ranking: str
    images: int
    two_objects: float
    any_object: float
    objects: float
    wrong_objects: float
    colours: float
    place: float
    weather: float
    time: float


class ConceptReport(NamedTuple):
    """The means of all rankings, and the model's concepts of each image."""

    rows: list[ConceptMeans]
    pictures: list[Mapping[str, object]]


def count_correct(found: Sequence[Meaning], scene: Scene) -> ConceptCounts:
    """Compares concepts with a scene."""
    truths = concepts_in(scene)
    right = (len(named(found, sort) & truths) for sort in ("colour", "place", "weather", "time"))
    objects = named(found, "object")
    return ConceptCounts(len(objects & truths), len(objects - truths), *right)


def concept_means(ranking: str, found: Iterable[Sequence[Meaning]], shown: Sequence[Scene]) -> ConceptMeans:
    """The means of one ranking; `found` has each image's concepts, in the order of the scenes."""
    counts = [count_correct(one, scene) for one, scene in zip(found, shown, strict=True)]
    means = (fmean(values) for values in zip(*counts, strict=True))
    return ConceptMeans(
        ranking,
        len(counts),
        fmean(count.objects >= ENOUGH for count in counts),
        fmean(count.objects >= 1 for count in counts),
        *means,
    )


# A place and a colour, or None for any.
Condition = tuple[str | None, str | None]
ANY: Condition = (None, None)


class ConceptFrequencies:
    """How often training captions name each concept: in all, by place, and by place and colour."""

    def __init__(self, training: Iterable[Scene]):
        self.counts: dict[Condition, Counter[Meaning]] = defaultdict(Counter)
        self.captions: Counter[Condition] = Counter()
        for scene in training:
            mentioned = [set(meanings(words_of(caption))) for caption in captions(scene)]
            for key in (ANY, (scene.place, None), *conditions(scene)):
                self.captions[key] += len(mentioned)
                for one in mentioned:
                    self.counts[key].update(one)

    def ranked(self, scene: Scene) -> list[Meaning]:
        """Concepts by mean frequency over the scene's colours in its place, the most frequent first."""
        return self._ranked([key for key in conditions(scene) if self.captions[key]] or [(scene.place, None)])

    def frequent(self) -> list[Meaning]:
        """Concepts by frequency in all captions."""
        return self._ranked([ANY])

    def _ranked(self, keys: Sequence[Condition]) -> list[Meaning]:
        shares: dict[Meaning, float] = defaultdict(float)
        for key in keys:
            for meaning, count in self.counts[key].items():
                shares[meaning] += count / self.captions[key] / len(keys)
        return sorted(shares, key=lambda meaning: (-shares[meaning], sorted(meaning.senses), not meaning.names))


def conditions(scene: Scene) -> list[Condition]:
    """The scene's place with each of its colours."""
    colours = sorted(concept.value for concept in concepts_in(scene) if concept.sort == "colour")
    return [(scene.place, colour) for colour in colours]


def in_own_captions(scene: Scene) -> list[Meaning]:
    """Concepts by the number of the scene's captions that name them; of equal ones, the first named is first."""
    counts: Counter[Meaning] = Counter()
    for caption in captions(scene):
        counts.update(list(dict.fromkeys(meanings(words_of(caption)))))
    return [meaning for meaning, _ in counts.most_common()]


def sample(count: int, images: int, seed: int) -> list[int]:
    """`images` different numbers below `count`, ascending.

    Raises:
        UsageError: there are fewer than `images`, or fewer than 2 are requested.
    """
    import numpy as np

    if not 2 <= images <= count:
        raise UsageError(f"--images {images}: expected 2 to {count}")
    numbers: list[int] = sorted(np.random.default_rng(seed).choice(count, images, replace=False).tolist())
    return numbers


def image_terms(
    model: Encoder, split: str, chosen: Sequence[int], data_dir: str | None, batch_size: int
) -> list[list[str]]:
    """The terms of the chosen images' vectors, heaviest first.

    Raises:
        UsageError: the encoder is not lexical, or its document side does not read images.
    """
    from lexvl_anserini.data.dataset import load_dataset

    expect_lexical(f"encoder {model.name!r}", model.kind, "only lexical vectors name concepts")
    documents = list(load_dataset("demo", split, data_dir, direction="text-to-image").documents())
    weights = as_lexical(model.document).weights(
        [model.document.read(documents[number]) for number in chosen], batch_size
    )
    return [[term for term, _ in terms] for terms in model.decode(weights)]


def concept_report(name: str, terms: Iterable[Sequence[str]], shown: Sequence[Scene], places: int) -> ConceptReport:
    """Counts the concepts of a model's terms and of the four rankings that it is compared with.

    Args:
        name: of the model.
        terms: per image, the terms of its vector, heaviest first.
        shown: the scenes of the images, at least 2.
        places: number of different concepts that are read per image.
    """
    found = [distinct(meanings(one), places) for one in terms]
    log.info("counts words in the training captions")
    frequencies = ConceptFrequencies(scenes("train"))
    frequent = distinct(frequencies.frequent(), places)
    rows = [
        concept_means(name, found, shown),
        concept_means("most frequent", [frequent] * len(shown), shown),
        concept_means("colours and place", (distinct(frequencies.ranked(one), places) for one in shown), shown),
        concept_means("another picture", [*found[1:], found[0]], shown),
        concept_means("its five captions", (distinct(in_own_captions(one), places) for one in shown), shown),
    ]
    return ConceptReport(rows, details(shown, found))


def details(shown: Sequence[Scene], found: Sequence[Sequence[Meaning]]) -> list[Mapping[str, object]]:
    """Per image, its concepts as text and the counts of correct ones."""
    return [
        {
            "image": scene.scene_id,
            "concepts": [_as_text(meaning) for meaning in one],
            **count_correct(one, scene)._asdict(),
        }
        for scene, one in zip(shown, found, strict=True)
    ]


def _as_text(meaning: Meaning) -> str:
    """`object bench`; in brackets if no word names one concept for certain."""
    senses = " or ".join(c.value if c.sort == "word" else f"{c.sort} {c.value}" for c in sorted(meaning.senses))
    return senses if meaning.names else f"({senses})"
