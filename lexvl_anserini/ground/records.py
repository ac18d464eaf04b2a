"""The typed records that pass from each step to the next.

    corpus   --> encoder --> quantiser  --> shards         --> index --> run       --> measures
    Document     CSR [N, V]  CSR [N, V]     ImpactDocument     folder    ScoredDoc     Measurement
                 float32     int64 (impacts)

A topic takes the same way: `Topic`, CSR [N, V] float32, CSR int64, then `ImpactQuery`. Streaming records are
NamedTuples; the manifest beside an artefact on disk is a frozen dataclass (`manifest.py`).

Dimension (int) to term (str) and back: the only place that maps one to the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.typed import Entry

if TYPE_CHECKING:
    import numpy as np

SCORE_LIMIT = 1 << 24  # Lucene sums scores in 32-bit floats, which represent every integer up to this one
NO_METADATA: Mapping[str, Any] = MappingProxyType({})


def count_bits_over(score: float) -> int:
    """The number of bits that a score of `SCORE_LIMIT` or more must lose to be below it."""
    return (int(score) // SCORE_LIMIT).bit_length()


@dataclass(frozen=True)
class CorpusRef:
    """Which dataset: everything that `load_dataset` needs to load it.

    Attributes:
        name: `demo`, `beir/scifact`, `folder:<path>`, ...
        split: of topics and qrels; None for the dataset's default, "" where the dataset has no splits.
        data_dir: folder of the datasets; None for the default.
        escape_ids: percent-encode white space and control characters in ids.
        direction: text-to-text, text-to-image or image-to-text; None for the dataset's default.
        passages: `WORDS` or `WORDS:STRIDE`, the passages into which texts are split; None for whole documents.
    """

    name: str
    split: str | None = None
    data_dir: str | None = None
    escape_ids: bool = False
    direction: str | None = None
    passages: str | None = None

    def at(self, data_dir: str | None) -> CorpusRef:
        """The same dataset in another data folder; None keeps the folder."""
        return replace(self, data_dir=data_dir or self.data_dir)


class Document(NamedTuple):
    """One item of a corpus: a text, an image, or both.

    `image` is a path or `archive.tar::member`, of a page `scan.tif#3`; in a corpus of embeddings `table.parquet::id`,
    the place of a vector. `problem` is a reason why the document cannot be read: it is never encoded, but skipped or
    an error, as a picture that cannot be read.
    """

    doc_id: str
    title: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA
    problem: str | None = None

    @property
    def contents(self) -> str:
        """Title and text joined by one blank, either may be absent; BM25 and most encoders read this."""
        return " ".join(part for part in (self.title, self.text) if part)


DELIMITER = "#"


def get_document_id(passage_id: str) -> str:
    """The id of a passage's document."""
    end = passage_id.find(DELIMITER, 1)
    return passage_id if end < 0 else passage_id[:end]


class Topic(NamedTuple):
    """One information need: a text or an image."""

    query_id: str
    text: str | None = None
    image: str | None = None


class Qrel(NamedTuple):
    """One judgement; relevance 0 is judged and not relevant."""

    query_id: str
    doc_id: str
    relevance: int


class TeacherScore(NamedTuple):
    """The score that another system gives a document of a query, which a model in training imitates."""

    query_id: str
    doc_id: str
    score: float


class ImpactDocument(NamedTuple):
    """A document of an impact index: its id and the impact (int >= 1) of each of its terms."""

    doc_id: str
    vector: Mapping[str, int]
    contents: str = ""


def heaviest(vector: Mapping[str, int], count: int | None) -> dict[str, int]:
    """The `count` largest weights, in the order of the vector; of equal weights the first ones; None keeps all."""
    if count is None or len(vector) <= count:
        return dict(vector)
    terms = set(sorted(vector, key=lambda term: -vector[term])[:count])
    return {term: weight for term, weight in vector.items() if term in terms}


class ImpactQuery(NamedTuple):
    """A query of an impact index: a topic's id and the weight (int >= 1) of each of its terms."""

    query_id: str
    vector: Mapping[str, int]


class DenseQuery(NamedTuple):
    """A query of a dense index: a topic's id and its vector, float32 [D]."""

    query_id: str
    vector: np.ndarray


class ScoredDoc(NamedTuple):
    """One line of a run: ranks count from 1; order is score descending, then doc_id ascending (code points)."""

    query_id: str
    doc_id: str
    rank: int
    score: float


class Measurement(NamedTuple):
    """One value of one measure; `query_id` "all" is the mean over the topics of the qrels.

    `ties` is the order of equal scores that it was computed with, "rank" or "trec_eval".
    """

    run: str
    dataset: str
    measure: str
    query_id: str
    value: float
    ties: str = ""


VOCABULARY = "vocab.txt"  # the file beside shards or an index that holds their terms
MAX_TERM_BYTES = 32_766  # Lucene accepts no terms above 32,766 bytes
NOT_INDEXED = re.compile(r"[\s\x00-\x1f\x7f]")  # white space, and control characters


def check_term(term: str, where: str) -> None:
    """Refuses (ArtefactError) a term that an inverted index does not keep whole and distinct from others."""
    if not term:
        problem = "is empty"
    elif NOT_INDEXED.search(term):
        problem = "contains white space or a control character"
    elif len(term.encode("utf-8", "surrogatepass")) > MAX_TERM_BYTES:
        problem = f"is longer than {MAX_TERM_BYTES} UTF-8 bytes"
    else:
        return
    raise ArtefactError(f"{where}: term {term[:80]!r} {problem}; an impact index cannot hold it, rename the term")


def name_token(token: str) -> str:
    """The term of a token: the sign of a blank, or its number, in the place of a character that no term may have."""
    return NOT_INDEXED.sub(lambda found: "\u2423" if found[0] == " " else f"<0x{ord(found[0]):02X}>", token)


def mark_field(field: str, term: str) -> str:
    """The name of a field's term in an index of several fields: `text:boat`."""
    return f"{field}:{term}"


def get_field(term: str, fields: Collection[str]) -> str:
    """The field of such a term; empty for a term of an index without fields."""
    field, mark, _ = term.partition(":")
    return field if mark and field in fields else ""


class SideEntry(Entry):
    """One side of a quantiser in a manifest, see `quantise.SideQuantiser`."""

    scheme: str = ""
    bits: int | None = None
    scale: float | None = None
    percentile: float = 100.0

    def requested(self) -> dict[str, Any]:
        """The request of the user, without the scale that calibration found: equal requests give equal artefacts."""
        return {**self, "scale": None if self.scheme == "calibrated" else self.scale}

    def effect(self) -> dict[str, Any]:
        """The values that impacts depend on: a calibrated scale equals the same scale given by the user."""
        scheme = "fixed" if self.scheme == "calibrated" else self.scheme
        return {"scheme": scheme, "bits": self.bits, "scale": self.scale}


class QuantiserEntry(Entry):
    """A quantiser in a manifest; without keys where vectors are no impacts."""

    document: SideEntry = SideEntry()
    query: SideEntry = SideEntry()

    def sides(self) -> dict[str, SideEntry]:
        """Its sides by name."""
        return {"document": self.document, "query": self.query} if self else {}


class VocabularyEntry(Entry):
    """A vocabulary in a manifest; without keys where dimensions are no terms."""

    size: int = 0
    digest: str = ""


class Vocabulary(Sequence[str]):
    """The terms of a model's output dimensions, in order."""

    def __init__(self, terms: Iterable[str], where: str = "vocabulary"):
        self.terms: tuple[str, ...] = tuple(terms)
        for term in self.terms:
            check_term(term, where)
        if len(self.dimension) != len(self.terms):
            twice = next(t for i, t in enumerate(self.terms) if self.dimension[t] != i)
            raise ArtefactError(f"{where}: two dimensions have the term {twice!r}; terms must be distinct")

    def __len__(self) -> int:
        return len(self.terms)

    def __getitem__(self, dimension: Any) -> Any:
        return self.terms[dimension]

    @cached_property
    def dimension(self) -> dict[str, int]:
        """Term to dimension."""
        return {term: dimension for dimension, term in enumerate(self.terms)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the terms joined by line feeds: equal digests mean equal dimensions."""
        return sha256("\n".join(self.terms).encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> VocabularyEntry:
        """For the manifest."""
        return VocabularyEntry(size=len(self), digest=self.digest)

    def write(self, path: Path) -> None:
        """One term a line, in the order of dimensions."""
        with atomic_write(path) as out:
            out.write("".join(f"{term}\n" for term in self.terms).encode())

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Reads a file that `write` wrote."""
        try:
            terms = path.read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, UnicodeDecodeError) as error:
            raise ArtefactError(f"{path}: cannot be read as a vocabulary, one term a line ({error})") from error
        return cls(terms, where=str(path))


class TermWeights(Mapping[str, int]):
    """Term -> weight of a lexical vector, as columns [n] of integers; a term is looked up when somebody reads one."""

    def __init__(self, vocabulary: Vocabulary, dimensions: np.ndarray, weights: np.ndarray):
        self.vocabulary, self.dimensions, self.weights = vocabulary, dimensions, weights

    @cached_property
    def _by_term(self) -> dict[str, int]:
        terms = map(self.vocabulary.terms.__getitem__, self.dimensions.tolist())
        return dict(zip(terms, self.weights.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, term: str) -> int:
        return self._by_term[term]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_term)

    def keys(self) -> KeysView[str]:
        """The terms."""
        return self._by_term.keys()

    def values(self) -> ValuesView[int]:
        """The weights, as Python's own integers."""
        return self._by_term.values()

    def items(self) -> ItemsView[str, int]:
        """Terms and weights."""
        return self._by_term.items()

    def __repr__(self) -> str:
        return repr(self._by_term)

    def __reduce__(self) -> tuple[Any, ...]:  # another process has another vocabulary
        return dict, (self._by_term,)
