"""The records that cross every hop of the line.

corpus -> encode -> quantise -> write -> index -> search -> measure
Document  SparseVector  ImpactVector  ImpactDocument  Index  ScoredDoc  Measurement

Streaming records are NamedTuples; what stands beside an artefact on disk (the manifest) is a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from lexvl_anserini.manifest import Manifest

# Lucene sums scores in 32-bit floats, which represent every integer up to this one.
SCORE_LIMIT = 1 << 24

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class Document(NamedTuple):
    """One item of a corpus: a text, an image, or both.

    `image` is a path, or `archive.tar::member`; in a corpus of embeddings `table.parquet::id`, a vector in its place.
    """

    doc_id: str
    title: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA

    @property
    def contents(self) -> str:
        """Title and text joined by one blank, either may be absent: what BM25 and most encoders read."""
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


class SparseVector(NamedTuple):
    """A lexical vector before quantising: `dims` int32 ascending, `weights` float32 > 0, equal lengths."""

    dims: np.ndarray
    weights: np.ndarray


class ImpactVector(NamedTuple):
    """A lexical vector after quantising: `dims` int32 ascending, `impacts` int64 >= 1, equal lengths."""

    dims: np.ndarray
    impacts: np.ndarray


class ImpactDocument(NamedTuple):
    """What an impact index stores: a document's id and the impact (int >= 1) of each of its terms."""

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
    """One value of one measure; `query_id` "all" is the mean over the topics of the qrels."""

    run: str
    dataset: str
    measure: str
    query_id: str
    value: float


@dataclass(frozen=True)
class Index:
    """A built index: its folder, the manifest of the shards it was built from, and its number of documents."""

    path: Path
    manifest: Manifest
    documents: int
