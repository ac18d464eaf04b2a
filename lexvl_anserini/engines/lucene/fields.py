"""The fields of an impact index, their similarities, Lucene's statistics about them, and what it holds of a document.

id         of the document: stored, searchable, and as doc values for sorting
contents   the impacts: term frequencies without positions
text       ordinary analysed text for BM25 (optional)
meta.KEY   one field for each key of the documents' metadata

The Java class IndexCensus counts and compares over a whole index. A document's impacts for given terms are read from
the postings, its vector from its term vector, its text from the stored fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.encoders.families.bm25 import ENGLISH, BM25Settings
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import refuse_newer
from lexvl_anserini.engines.jvm import Exclusive, call_cast, call_java, get_java_class, get_our_class, raise_java_errors
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError

ID = "id"
CONTENTS = "contents"
TEXT = "text"
META = "meta."


@call_java()
def make_similarity() -> Any:
    """Impacts in `contents`, where a score is frequency x boost as in Anserini; BM25 in all other fields."""
    impacts = get_java_class("io.anserini.search.similarity.ImpactSimilarity")()
    bm25 = get_java_class("org.apache.lucene.search.similarities.BM25Similarity")(BM25Settings.k1, BM25Settings.b)
    return get_our_class("FieldSimilarity")(CONTENTS, impacts, bm25)


@call_java()
def make_text_analyzer() -> Any:
    """The analyser of the field `text`: Anserini's English default (Porter's stems, no stop words)."""
    return get_java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()


@call_java()
def make_java_map(values: Mapping[str, str]) -> Any:
    """A Java map of strings."""
    hash_map = get_java_class("java.util.HashMap")()
    for key, value in values.items():
        hash_map.put(key, value)
    return hash_map


@call_java()
def open_reader(index: Path, place: Path | None = None) -> Any:
    """A reader of the index's last commit, whose files are in another place, if that is given."""
    path = get_java_class("java.nio.file.Paths").get(str((place or index).absolute()))
    with refuse_newer(index):
        folder = get_java_class("org.apache.lucene.store.FSDirectory").open(path)
        return get_java_class("org.apache.lucene.index.DirectoryReader").open(folder)


@call_java()
def close(reader: Any) -> None:
    """Closes a reader and its files."""
    reader.close()


@contextmanager
def get_reader(index: Path) -> Iterator[Any]:
    """Yields a reader of the index's last commit, which it closes."""
    with raise_java_errors(f"{index}: cannot be opened as a Lucene index"):
        reader = open_reader(index)
    try:
        yield reader
    finally:
        close(reader)


@call_java()
def list_commit_files(reader: Any) -> list[str]:
    """The names of the files that an open index consists of."""
    return [str(name) for name in reader.getIndexCommit().getFileNames().toArray()]


def as_reader(reader: Any) -> Any:
    """For pyjnius, which does not choose overloads by a parent class."""
    return call_cast("org.apache.lucene.index.IndexReader", reader)


LONGEST = 10  # posting lists that index.json names

LARGEST_INT = 2**31 - 1


class Segment(NamedTuple):
    """A segment of Lucene; `state` is a text that no other content has, whatever of it is deleted."""

    documents: int
    deleted: int
    state: str
    # The file that marks deleted documents; "" without one.
    live: str


@dataclass(frozen=True)
class WholeIndex:
    """Questions about an open index; deleted documents are none of it. `java` is the `IndexCensus` that answers."""

    java: Any

    def check_integrity(self) -> None:
        """Reads every file and compares checksums; Java raises for one that is damaged."""
        self.java.checkIntegrity()

    def counts(self) -> dict[str, int]:
        """Numbers of documents, of empty ones and of postings, and the sum of impacts, by Lucene's statistics."""
        raw = self.java.counts(CONTENTS).tostring()
        documents, with_terms, postings, impacts = np.frombuffer(raw, "<i8").tolist()
        return {"documents": documents, "empty": documents - with_terms, "postings": postings, "impacts": impacts}

    def segments(self) -> list[Segment]:
        """The segments, in the order of their documents."""
        rows = map(str.split, str(self.java.segments()).splitlines())
        return [Segment(int(all_of), int(deleted), state, live.strip("-")) for all_of, deleted, state, live in rows]

    def max_impact(self, most: int | None = None) -> int:
        """The greatest impact; found sooner if it is known that none is above `most`."""
        return int(self.java.maxImpact(CONTENTS, LARGEST_INT if most is None else most))

    def duplicate(self) -> str | None:
        """An id that two documents have; None if each has its own."""
        return self.java.duplicate()

    def refuse_duplicates(self) -> None:
        """Raises ArtefactError if two documents have one id."""
        if (twice := self.duplicate()) is not None:
            raise ArtefactError(f"document id {twice!r} occurs twice in the shards; ids must be distinct")

    def common(self, other: Any) -> str | None:
        """An id that a document of another reader has too; None if there is none."""
        return self.java.common(other)

    def missing(self, doc_ids: Iterable[str]) -> list[str]:
        """Those of the ids that no document has, in their order."""
        lines = "".join(f"{doc_id}\n" for doc_id in doc_ids).encode()
        return self.java.missing(lines).tostring().decode().split("\n")[:-1]

    def longest_lists(self) -> list[list[Any]]:
        """The terms of the most documents: [documents, term], the largest number first."""
        lines = self.java.longest(CONTENTS, LONGEST).tostring().decode().splitlines()
        return [[int(documents), term] for documents, term in (line.split(" ", 1) for line in lines)]


@contextmanager
def open_whole_index(folder: Path) -> Iterator[WholeIndex]:
    """Yields the open index of a folder."""
    with get_reader(folder) as reader:
        yield WholeIndex(Exclusive(get_our_class("IndexCensus")(reader)))


def read_keywords(index: Path, key: str) -> dict[str, str]:
    """The value of a metadata key by id of the documents that have it, where values are lines of text."""
    jvm.start()
    with raise_java_errors(f"{index}: cannot be read"), open_whole_index(index) as whole:
        lines = whole.java.keywords(META + key).tostring().decode().split("\n")[:-1]
    return dict(line.split(" ", 1) for line in lines)


@call_java()
def read_impacts(reader: Any, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
    """The document's impact for each of the terms that it has, in their order."""
    leaf, number = find_place(reader, doc_id)
    bytes_ref, frequencies = get_java_class("org.apache.lucene.util.BytesRef"), _postings().FREQS
    impacts: dict[str, int] = {}
    with raise_java_errors(f"document {doc_id!r} cannot be read"):
        held = leaf.terms(CONTENTS)
        if held is None:
            return impacts
        iterator = held.iterator()
        for term in terms:
            if iterator.seekExact(bytes_ref(term.encode())):
                postings = iterator.postings(None, frequencies)
                if postings.advance(number) == number:
                    impacts[term] = int(postings.freq())
    return impacts


@call_java()
def read_vector(reader: Any, doc_id: str) -> dict[str, int]:
    """The document's whole vector, from its term vector."""
    leaf, number = find_place(reader, doc_id)
    with raise_java_errors(f"document {doc_id!r} cannot be read"):
        vectors = leaf.termVectors().get(number)
        held = None if vectors is None else vectors.terms(CONTENTS)
    if held is None:
        fields = leaf.getFieldInfos()
        # Lucene 10 renamed this method.
        has_vectors = getattr(fields, "hasTermVectors", None) or fields.hasVectors
        if fields.fieldInfo(CONTENTS) is None or not has_vectors():
            raise UsageError(
                "this index has no term vectors; build it with --term-vectors, or name the shards (--feedback-shards)"
            )
        return {}
    iterator, vector = held.iterator(), {}
    while (term := iterator.next()) is not None:
        vector[str(term.utf8ToString())] = int(iterator.totalTermFreq())
    return vector


def load_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str]:
    """Texts by document, from an index that stores them."""
    jvm.start()
    texts = {}
    with get_reader(index) as reader:
        for doc_id in doc_ids:
            with call_java(), raise_java_errors(f"document {doc_id!r} cannot be read"):
                text = get_our_class("IndexCensus").stored(*find_place(reader, doc_id), TEXT)
                texts[doc_id] = "" if text is None else text.tostring().decode()
    return texts


@call_java()
def find_place(reader: Any, doc_id: str) -> tuple[Any, int]:
    """The segment that holds a document, and its number there."""
    term = get_java_class("org.apache.lucene.index.Term")(ID, doc_id)
    with raise_java_errors(f"document {doc_id!r} cannot be read"):
        leaves = reader.leaves()
        for place in range(leaves.size()):
            leaf = leaves.get(place).reader()
            postings, live = leaf.postings(term, _postings().NONE), leaf.getLiveDocs()
            while postings is not None and (number := postings.nextDoc()) != _postings().NO_MORE_DOCS:
                if live is None or live.get(number):
                    return leaf, int(number)
    raise DataError(f"no document {doc_id!r} in the index")


def _postings() -> Any:
    return get_java_class("org.apache.lucene.index.PostingsEnum")


@call_java()
def make_analyzer(settings: BM25Settings) -> Any:
    """The Java analyser of some settings."""
    if settings.language != ENGLISH:
        return get_java_class("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(settings.language)
    english = get_java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
    return english.fromArguments(settings.stemmer, settings.keep_stopwords, None)


def load_word_analysis(settings: BM25Settings) -> Callable[[str], list[str]]:
    """A function that returns the words of a text, in their order and as often as they occur."""
    jvm.start()
    analyzer = make_analyzer(settings)
    with call_java():
        analyse = get_java_class("io.anserini.analysis.AnalyzerUtils").analyze
        # One call for all words of a text.
        as_json = get_java_class("com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString

    def words(text: str) -> list[str]:
        with raise_java_errors("Anserini could not analyse a text"), call_java():
            split: list[str] = orjson.loads(as_json(analyse(analyzer, text)))
        return split

    return words
