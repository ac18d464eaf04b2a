"""Counts and compares over a whole Lucene index, by the Java class IndexCensus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import Exclusive, java_errors, our_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, META, close, open_reader
from lexvl_anserini.ground.errors import ArtefactError

# Posting lists that index.json names.
LONGEST = 10


@contextmanager
def census(folder: Path) -> Iterator[Any]:
    """Yields a Java object that counts and compares over a whole index."""
    reader = open_reader(folder)
    try:
        yield Exclusive(our_class("IndexCensus")(reader))
    finally:
        close(reader)


def refuse_duplicates(folder: Path) -> None:
    """Raises ArtefactError if two documents of an index have one id."""
    with census(folder) as whole:
        twice = whole.duplicate()
    if twice is not None:
        raise ArtefactError(f"document id {str(twice)!r} occurs twice in the shards; ids must be distinct")


def longest_lists(folder: Path) -> list[list[Any]]:
    """The terms of the most documents: [documents, term], the largest number first."""
    with census(folder) as whole:
        lines = whole.longest(CONTENTS, LONGEST).tostring().decode().splitlines()
    return [[int(documents), term] for documents, term in (line.split(" ", 1) for line in lines)]


def keywords(index: Path, key: str) -> dict[str, str]:
    """The value of a metadata key by document id, for a key whose values are texts without line feeds.

    Documents without the key are absent.

    Raises:
        ArtefactError: no Lucene index, or a damaged one.
    """
    jvm.start()
    with java_errors(f"{index}: cannot be read"), census(index) as whole:
        lines = whole.keywords(META + key).tostring().decode().split("\n")[:-1]
    return dict(line.split(" ", 1) for line in lines)
