"""The typed records that pass from each step to the next.

    corpus   --> encoder --> quantiser  --> shards         --> index --> run       --> measures
    Document     CSR [N, V]  CSR [N, V]     ImpactDocument     Index     ScoredDoc     Measurement
                 float32     int64 (impacts)

A topic takes the same way: `Topic`, CSR [N, V] float32, CSR int64, then `ImpactQuery`. Streaming records are
NamedTuples; the manifest beside an artefact on disk is a frozen dataclass (`manifest.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

if TYPE_CHECKING:
    import numpy as np

    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.manifest import Manifest
    from lexvl_anserini.queries.clauses import Query

# Lucene sums scores in 32-bit floats, which represent every integer up to this one.
SCORE_LIMIT = 1 << 24

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class Document(NamedTuple):
    """One item of a corpus: a text, an image, or both.

    `image` is a path or `archive.tar::member`; in a corpus of embeddings `table.parquet::id`, the place of a vector.
    """

    doc_id: str
    title: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA

    @property
    def contents(self) -> str:
        """Title and text joined by one blank, either may be absent; BM25 and most encoders read this."""
        return " ".join(part for part in (self.title, self.text) if part)


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


@dataclass(frozen=True)
class Index:
    """A built index: its folder, the manifest of the shards it was built from, and its number of documents."""

    path: Path
    manifest: Manifest
    documents: int

    def __repr__(self) -> str:
        """Folder, kind, number of documents, and the encoder."""
        about = f"{self.manifest.kind}, {self.documents:,} documents, encoder {self.manifest.encoder.get('name')!r}"
        return f"Index({str(self.path)!r}, {about})"

    @overload
    def search(  # type: ignore[overload-overlap]  # a text and a Topic are iterables too; mypy takes the first that fits
        self, query: str | Query, k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[ScoredDoc]: ...

    @overload
    def search(
        self, query: Iterable[str | Query], k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[list[ScoredDoc]]: ...

    def search(
        self,
        query: str | Query | Iterable[str | Query],
        k: int = 10,
        model: Encoder | None = None,
        device: str = "auto",
    ) -> list[ScoredDoc] | list[list[ScoredDoc]]:
        """The `k` best documents of a text, a topic or an encoded query: a list of `ScoredDoc`.

        Args:
            query: one of them; of several, the result is a list of such lists. `search_index` explains both.
            k: the length of a list at most.
            model: encodes texts and topics; default the encoder in the index's manifest, which is loaded once.
            device: of the default model.

        Raises:
            LexvlError: as `search_index`.
        """
        # By name: records come before all that uses them.
        found: list[ScoredDoc] | list[list[ScoredDoc]]
        found = import_module("lexvl_anserini.searching.searcher").found_in(self, query, k, model, device)
        return found
