"""A listing: the documents of a corpus as JSON lines, for corpora whose own files have no places to begin at.

A line has the fields of a `Document`; pictures and vectors are named, not contained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.lines import LinePlace, parse_object, read_placed_lines
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.records import NO_METADATA, Document


def write_listing(documents: Iterable[Document], path: Path) -> None:
    """Writes the documents, one a line."""
    with atomic_write(path) as out:
        for document in documents:
            fields = document._replace(metadata=dict(document.metadata))._asdict()
            out.write(orjson.dumps({key: value for key, value in fields.items() if value not in (None, {})}) + b"\n")


def read_listing(path: Path, place: LinePlace = LinePlace()) -> Iterator[tuple[LinePlace, Document]]:
    """The documents from a place on, each with its place.

    Raises:
        DataError: no such file, or a line that is no document.
    """
    for here, line in read_placed_lines(path, place):
        fields = parse_object(line)
        if not set(fields) <= set(Document._fields) or "doc_id" not in fields:
            raise DataError(f"{line.where}: no document of a listing (keys {', '.join(fields)}); plan the corpus again")
        yield here, Document(**{"metadata": NO_METADATA, **fields})


def listed(dataset: Dataset, path: Path) -> Dataset:
    """The dataset with the places of its listing."""
    return replace(dataset, placed=partial(read_listing, path))
