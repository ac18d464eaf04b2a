"""The fields of an impact index, their similarities, and Lucene's own statistics about them.

id         of the document: stored, searchable, and as doc values for sorting
contents   the impacts: term frequencies without positions
text       ordinary analysed text for BM25 (optional)
meta.KEY   one field for each key of the documents' metadata

Counts and compares over a whole Lucene index, by the Java class IndexCensus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import Exclusive, java_calls, java_cast, java_class, java_errors, our_class
from lexvl_anserini.engines.lucene.versions import newer_refused
from lexvl_anserini.ground.errors import ArtefactError

ID = "id"
CONTENTS = "contents"
TEXT = "text"
META = "meta."


@java_calls()
def impact_similarity() -> Any:
    """Score = frequency x boost, as Anserini has it."""
    return java_class("io.anserini.search.similarity.ImpactSimilarity")()


# Of BM25 in the field `text`: Anserini's defaults.
K1 = 0.9
B = 0.4


@java_calls()
def field_similarity() -> Any:
    """Impacts in `contents`, BM25 in all other fields."""
    bm25 = java_class("org.apache.lucene.search.similarities.BM25Similarity")(K1, B)
    return our_class("FieldSimilarity")(CONTENTS, impact_similarity(), bm25)


@java_calls()
def text_analyzer() -> Any:
    """The analyser of the field `text`: Anserini's English default (Porter's stems, no stop words)."""
    return java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()


@java_calls()
def java_path(path: Path) -> Any:
    """A Java path."""
    return java_class("java.nio.file.Paths").get(str(path.absolute()))


@java_calls()
def java_map(values: Mapping[str, str]) -> Any:
    """A Java map of strings."""
    made = java_class("java.util.HashMap")()
    for key, value in values.items():
        made.put(key, value)
    return made


@java_calls()
def open_directory(index: Path) -> Any:
    """Lucene's folder."""
    return java_class("org.apache.lucene.store.FSDirectory").open(java_path(index))


@java_calls()
def open_reader(index: Path) -> Any:
    """A reader of the index's last commit."""
    with newer_refused(index):
        return java_class("org.apache.lucene.index.DirectoryReader").open(open_directory(index))


@java_calls()
def close(reader: Any) -> None:
    """Closes a reader and its files."""
    reader.close()


@java_calls()
def commit_files(reader: Any) -> list[str]:
    """The names of the files that an open index consists of."""
    return [str(name) for name in reader.getIndexCommit().getFileNames().toArray()]


def as_reader(reader: Any) -> Any:
    """For pyjnius, which does not choose overloads by a parent class."""
    return java_cast("org.apache.lucene.index.IndexReader", reader)


@java_calls()
def count_index(index: Path) -> dict[str, int]:
    """Counts of a Lucene index, from its own statistics."""
    reader = open_reader(index)
    try:
        terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(as_reader(reader), CONTENTS)
        documents = int(reader.maxDoc())
        return {
            "documents": documents,
            "empty": documents - (int(terms.getDocCount()) if terms else 0),
            "postings": int(terms.getSumDocFreq()) if terms else 0,
            "impacts": int(terms.getSumTotalTermFreq()) if terms else 0,
        }
    finally:
        reader.close()


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
    """
    jvm.start()
    with java_errors(f"{index}: cannot be read"), census(index) as whole:
        lines = whole.keywords(META + key).tostring().decode().split("\n")[:-1]
    return dict(line.split(" ", 1) for line in lines)
