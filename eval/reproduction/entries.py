"""The form of `runs/expected/<paper>.yaml`: one entry per table, in the shape of the paper.

A person can compare such a file with the paper line by line:

    paper: Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)
    tables:
      table5:
        title: cross-modal retrieval by the number K of dimensions kept
        protocol: COCO 5k and Flickr30k 1k test images
        columns:
          - text-to-image coco/test [R@1, R@5, R@10]     # three columns
        rows:
          "32": 15.8 35.7 46.8                           # a dash is a cell that the paper leaves out
        systems:
          "32": {encoder: vdr-crossmodal, checkpoint: vsearch/vdr-cross-modal, options: {topk: 32}}

Rows name systems and columns quantities; with `rows_are: quantities` it is the reverse. `unit` (%) and `status`
(printed) hold for the table; `units`, `statuses` and `notes` have exceptions by row, column or "row | column". `terms`
instead of `rows` lists terms and weights. `runs` says where published runs of the rows are. A table without numbers
says in `missing` why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lexvl_anserini.data.strict_yaml import Spot
from lexvl_anserini.ground.errors import DataError, UnknownName

UNITS: Mapping[str, str] = {
    "%": "100 times the measure",
    "1": "the measure itself, a weight or a rate",
    "count": "a number of things",
    "M": "millions",
    "x": "times as much",
    "tokens": "tokens of a text",
    "words": "words of a text",
    "queries/s": "queries per second",
    "GHz": "clock of a processor",
    "hours": "hours",
    "GB": "gigabytes",
}

STATUSES: Mapping[str, str] = {
    "printed": "the paper prints it",
    "secondary": "another text reports that the paper prints it",
    "derived": "computed from printed numbers, or from published files",
}


class UnitName(str):
    """A key of `UNITS`."""

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> UnitName:
        """Raises DataError for an unknown unit."""
        return cls(_known("unit", text, UNITS, spot))


class StatusName(str):
    """A key of `STATUSES`."""

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> StatusName:
        """Raises DataError for an unknown status."""
        return cls(_known("status", text, STATUSES, spot))


class AxisName(str):
    """What the rows of a table are: `systems` or `quantities`."""

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> AxisName:
        """Raises DataError for another word."""
        return cls(_known("kind of rows", text, ("systems", "quantities"), spot))


class PrintedNumber(NamedTuple):
    """A number and how many decimals the source prints."""

    value: float
    decimals: int


class PrintedRow(NamedTuple):
    """The numbers of a row, None where the source has a dash, and the row's place in the file."""

    numbers: tuple[PrintedNumber | None, ...]
    spot: Spot

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> PrintedRow:
        """Raises DataError for what is neither a number nor a dash."""
        return cls(tuple(None if word == "-" else _number(word, spot) for word in text.split()), spot)


class PrintedTerms(NamedTuple):
    """Terms and their weights, in the order of the source: `dog 1.5, ##gy 0.7`."""

    weights: Mapping[str, PrintedNumber]

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> PrintedTerms:
        """Raises DataError for a term without a weight or with two."""
        weights: dict[str, PrintedNumber] = {}
        for pair in text.split(","):
            term, _, number = pair.strip().rpartition(" ")
            if not term:
                raise DataError(f"{spot}: {pair.strip()!r}, expected a term and its weight")
            if term in weights:
                raise DataError(f"{spot}: two values for one cell, the weight of {term!r}")
            weights[term] = _number(number, spot)
        return cls(weights)


class Headings(NamedTuple):
    """Headings of columns: one, or `COCO [R@1, R@5]` for `COCO R@1` and `COCO R@5`; and their place in the file."""

    names: tuple[str, ...]
    spot: Spot

    @classmethod
    def from_text(cls, text: str, spot: Spot) -> Headings:
        """Splits a heading with brackets, which may be at its end or before its last words."""
        before, bracket, rest = text.partition("[")
        if not bracket:
            return cls((text,), spot)
        inside, _, after = rest.partition("]")
        return cls(tuple(f"{before}{word.strip()}{after}" for word in inside.split(",")), spot)


class PublishedSystem(NamedTuple):
    """What this project runs for a row: an encoder, a published checkpoint (empty for none), and its options.

    options  those of `--set`. `prompt` is of retrieval only: zero-shot classification has prompts of its own
    rerank   documents of each list that the complete vectors score again; 0 for none
    corpora  another corpus to read in the place of a collection, as stored vectors of its images and texts
    """

    encoder: str
    checkpoint: str = ""
    options: Mapping[str, str] = {}
    rerank: int = 0
    corpora: Mapping[str, str] = {}


class PublishedRuns(NamedTuple):
    """Runs that other people publish, one per row of a table.

    files   their names in the data folder, with {} in the place of the row's heading
    qrels   the judgements in the data folder
    origin  where both are published
    """

    files: str
    qrels: str
    origin: str


class TableEntry(NamedTuple):
    """An entry of `tables` as the file has it."""

    title: str
    protocol: str = ""
    unit: UnitName = UnitName("%")
    status: StatusName = StatusName("printed")
    rows_are: AxisName = AxisName("systems")
    columns: tuple[Headings, ...] = ()
    rows: Mapping[str, PrintedRow] = {}
    terms: Mapping[str, PrintedTerms] = {}
    units: Mapping[str, UnitName] = {}
    statuses: Mapping[str, StatusName] = {}
    notes: Mapping[str, str] = {}
    systems: Mapping[str, PublishedSystem] = {}
    runs: PublishedRuns | None = None
    missing: str = ""


class PaperEntry(NamedTuple):
    """A file: the paper, what its tables here lack, and its tables."""

    paper: str
    tables: Mapping[str, TableEntry]
    missing: tuple[str, ...] = ()


def _number(word: str, spot: Spot) -> PrintedNumber:
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", word):
        raise DataError(f"{spot}: {word!r} is no number; a dash is a cell that the paper leaves out")
    return PrintedNumber(float(word), len(word.partition("e")[0].partition(".")[2]))


def _known(kind: str, text: str, known: Iterable[str], spot: Spot) -> str:
    if text not in known:
        raise DataError(f"{spot}: {UnknownName(kind, text, known)}")
    return text
