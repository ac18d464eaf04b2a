"""What an image model says of the demo's pictures: how many of its first concepts are things that are there.

A picture's vector is read as words by descending weight; the first ten different concepts are compared with the scene
(`eval.measures.meanings` says what a concept is, and when one is correct). Four rankings stand beside it:

most frequent       concepts by their frequency in all training captions, the same for every picture
colours and place   concepts by their frequency in the training captions of scenes in the same place, averaged over the
                    scene's colours: it knows both without fail, and of things only what they make likely
another picture     the model's own vectors, each compared with the next picture's scene: right by chance
its five captions   concepts by their frequency in the picture's own captions: what people name

Colours and place is what a model that has learned these, but no objects, can reach; a model has learned objects as far
as it is above it. Its five captions are near the most that these rules let anybody reach: concepts of every sort
compete for the first places, and some of a scene's things are named by words of several concepts.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

import orjson
import typer

from eval.measures.meanings import Meaning, concepts_in, distinct, meanings, named, words_of
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format
from lexvl_anserini.cli import DataDir, Verbose, parse_settings, run
from lexvl_anserini.data.demo import captions, scenes
from lexvl_anserini.data.world.scenes import Scene
from lexvl_anserini.encoders.cards import default_encoder
from lexvl_anserini.errors import UsageError

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("eval.concepts")

FORMATS = (*TABLE_FORMATS, "json")
PLACES = 10
# Correct objects that a picture's first concepts should hold.
ENOUGH = 2


class Tally(NamedTuple):
    """How much is right, and of objects wrong, among one picture's first concepts."""

    objects: int
    wrong_objects: int
    colours: int
    place: int
    weather: int
    time: int


class Row(NamedTuple):
    """Means over pictures; `two_objects` and `any_object` are shares of pictures."""

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


def tally(found: Sequence[Meaning], scene: Scene) -> Tally:
    """Compares concepts with a scene."""
    truths = concepts_in(scene)
    right = (len(named(found, sort) & truths) for sort in ("colour", "place", "weather", "time"))
    objects = named(found, "object")
    return Tally(len(objects & truths), len(objects - truths), *right)


def row(ranking: str, found: Iterable[Sequence[Meaning]], pictured: Sequence[Scene]) -> Row:
    """The means of one ranking; `found` has each picture's concepts, in the order of the scenes."""
    counts = [tally(one, scene) for one, scene in zip(found, pictured, strict=True)]
    means = (fmean(values) for values in zip(*counts, strict=True))
    return Row(
        ranking,
        len(counts),
        fmean(count.objects >= ENOUGH for count in counts),
        fmean(count.objects >= 1 for count in counts),
        *means,
    )


Given = tuple[str | None, str | None]
ANY: Given = (None, None)


class Likely:
    """How often training captions name each concept: in all, by place, and by place and colour."""

    def __init__(self, training: Iterable[Scene]):
        self.counts: dict[Given, Counter[Meaning]] = defaultdict(Counter)
        self.captions: Counter[Given] = Counter()
        for scene in training:
            said = [set(meanings(words_of(caption))) for caption in captions(scene)]
            for key in (ANY, (scene.place, None), *given(scene)):
                self.captions[key] += len(said)
                for told in said:
                    self.counts[key].update(told)

    def ranked(self, scene: Scene) -> list[Meaning]:
        """Concepts by mean frequency over the scene's colours in its place, the likeliest first."""
        return self._ranked([key for key in given(scene) if self.captions[key]] or [(scene.place, None)])

    def frequent(self) -> list[Meaning]:
        """Concepts by frequency in all captions."""
        return self._ranked([ANY])

    def _ranked(self, keys: Sequence[Given]) -> list[Meaning]:
        shares: dict[Meaning, float] = defaultdict(float)
        for key in keys:
            for meaning, count in self.counts[key].items():
                shares[meaning] += count / self.captions[key] / len(keys)
        return sorted(shares, key=lambda meaning: (-shares[meaning], sorted(meaning.senses), not meaning.names))


def given(scene: Scene) -> list[Given]:
    """The scene's place with each of its colours."""
    colours = sorted(concept.value for concept in concepts_in(scene) if concept.sort == "colour")
    return [(scene.place, colour) for colour in colours]


def in_own_captions(scene: Scene) -> list[Meaning]:
    """Concepts by the number of the scene's captions that name them, first named first."""
    counts: Counter[Meaning] = Counter()
    for caption in captions(scene):
        counts.update(list(dict.fromkeys(meanings(words_of(caption)))))
    return [meaning for meaning, _ in counts.most_common()]


def seen(model: Encoder, split: str, chosen: Sequence[int], data_dir: str | None, batch_size: int) -> list[list[str]]:
    """The terms of some pictures' vectors, heaviest first.

    Raises:
        UsageError: the encoder is not lexical, or its document side does not read pictures.
    """
    from lexvl_anserini.data.dataset import load_dataset

    if model.kind != "impact":
        raise UsageError(f"encoder {model.name!r} is {model.kind}; only lexical vectors name concepts")
    documents = list(load_dataset("demo", split, data_dir, direction="text-to-image").documents())
    weights = model.document.weights([model.document.read(documents[number]) for number in chosen], batch_size)
    return [[term for term, _ in terms] for terms in model.decode(weights)]


def sample(count: int, images: int, seed: int) -> list[int]:
    """So many different numbers below `count`, ascending.

    Raises:
        UsageError: there are not as many.
    """
    import numpy as np

    if not 2 <= images <= count:
        raise UsageError(f"--images {images}: expected 2 to {count}")
    numbers: list[int] = sorted(np.random.default_rng(seed).choice(count, images, replace=False).tolist())
    return numbers


def details(pictured: Sequence[Scene], found: Sequence[Sequence[Meaning]]) -> list[Mapping[str, object]]:
    """Per picture, its concepts as text and what they are worth."""
    return [
        {
            "image": scene.scene_id,
            "concepts": [_told(meaning) for meaning in one],
            **tally(one, scene)._asdict(),
        }
        for scene, one in zip(pictured, found, strict=True)
    ]


def _told(meaning: Meaning) -> str:
    """`object bench`; in brackets what no word names for certain."""
    senses = " or ".join(c.value if c.sort == "word" else f"{c.sort} {c.value}" for c in sorted(meaning.senses))
    return senses if meaning.names else f"({senses})"


def concepts_table(rows: Sequence[Row]) -> Table:
    """One line per ranking: shares in percent, then means per picture."""
    shares = (Column(f">= {ENOUGH} objects %"), Column(">= 1 object %"))
    means = tuple(map(Column, ("objects", "wrong objects", "colours", "place", "weather", "time")))
    cells = (
        (row.ranking, *(f"{100 * share:.1f}" for share in row[2:4]), *(f"{value:.2f}" for value in row[4:]))
        for row in rows
    )
    return Table((Column("ranking", number=False), *shares, *means), tuple(cells))


def command(
    encoder: Annotated[str | None, typer.Option(help="A lexical one that reads images; default the demo's.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder or hub id (owner/name[@revision]).")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the encoder.")] = None,
    split: Annotated[str, typer.Option(help="val or test.")] = "test",
    images: Annotated[int, typer.Option(help="Pictures, drawn at random.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the drawing.")] = 1,
    places: Annotated[int, typer.Option(min=1, help="Different concepts read per picture.")] = PLACES,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures per forward pass.")] = 32,
    output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Count the correct objects, colours and places among the first concepts of the demo's pictures.

    Example: python -m eval.concepts --images 200 --seed 1
    """
    check_format(output_format, FORMATS)
    listed = list(scenes(split))
    chosen = sample(len(listed), images, seed)
    from lexvl_anserini.encoders.loading import load_encoder

    name, default_checkpoint = default_encoder("demo", "text-to-image", encoder)
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **parse_settings(settings or ()))
    pictured = [listed[number] for number in chosen]
    found = [distinct(meanings(terms), places) for terms in seen(model, split, chosen, data_dir, batch_size)]
    log.info("counting words in the training captions")
    likely = Likely(scenes("train"))
    frequent = distinct(likely.frequent(), places)
    rows = [
        row(model.name, found, pictured),
        row("most frequent", [frequent] * len(pictured), pictured),
        row("colours and place", (distinct(likely.ranked(scene), places) for scene in pictured), pictured),
        row("another picture", [*found[1:], found[0]], pictured),
        row("its five captions", (distinct(in_own_captions(scene), places) for scene in pictured), pictured),
    ]
    if output_format == "json":
        report = {"rows": [one._asdict() for one in rows], "pictures": details(pictured, found)}
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    sys.stdout.write(TABLE_FORMATS[output_format](concepts_table(rows)))


if __name__ == "__main__":
    run(command)
