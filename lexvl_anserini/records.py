"""The records that cross every hop of the line.

corpus -> encode -> quantise -> write -> index -> search -> measure
Document  SparseVector  ImpactVector  ImpactDocument  Index  ScoredDoc  Measurement

Streaming records are NamedTuples; what stands beside an artefact on disk (the manifest) is a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.errors import ArtefactError

if TYPE_CHECKING:
    import numpy as np

# The file beside an artefact that holds its Manifest.
MANIFEST = "manifest.json"

# Lucene adds scores up in floats of 32 bits; integers above are not all among them any more.
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
    """What an impact index is asked: a topic's id and the weight (int >= 1) of each of its terms."""

    query_id: str
    vector: Mapping[str, int]


class DenseQuery(NamedTuple):
    """What a dense index is asked: a topic's id and its vector, float32 [D]."""

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
class Manifest:
    """What stands beside an artefact (`manifest.json`), so that nonsense can be refused.

    kind        "impact" | "dense" | "text": what the shards hold, hence which engine indexes them
    encoder     name, options, checkpoint, checkpoint_digest: enough to load the query side again
    quantiser   `Quantiser.to_json()`; empty unless kind is "impact"
    vocabulary  size and digest; empty unless kind is "impact"
    corpus      name, split, data_dir, digest of ids and contents
    counts      documents, empty (documents without a posting), postings, clipped, dropped
    layout      format and size of the shards
    shards      per shard: name, documents, empty, postings, clipped, dropped, bytes, sha256
    versions    of what decides the bytes (lexvl_anserini, torch, transformers, ...)
    """

    kind: str
    encoder: Mapping[str, Any]
    corpus: Mapping[str, Any]
    counts: Mapping[str, int]
    quantiser: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = "lexvl/1"

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for `files.write_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "manifest") -> Manifest:
        """Checks the fields and the format.

        Raises:
            ArtefactError: a field is missing or unknown, or the format is not ours.
        """
        known = {f.name for f in fields(cls)}
        missing = {"kind", "encoder", "corpus", "counts", "format"} - set(data)
        unknown = set(data) - known
        if missing or unknown or data["format"] != "lexvl/1":
            raise ArtefactError(
                f"{where}: not a manifest of this version (missing {sorted(missing)}, unknown {sorted(unknown)}, "
                f"format {data.get('format')!r}, expected 'lexvl/1'); encode again"
            )
        return cls(**{**data, "shards": tuple(data.get("shards", ()))})


@dataclass(frozen=True)
class Index:
    """A built index: its folder, the manifest of the shards it was built from, and its number of documents."""

    path: Path
    manifest: Manifest
    documents: int
