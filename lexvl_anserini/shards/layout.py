"""The formats of shard files: their names, their fields, and a writer per kind and format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import compute_sha256, open_gzip, sync_to
from lexvl_anserini.ground.manifest import Counts, LayoutEntry, Manifest, ShardRecord, write_manifest
from lexvl_anserini.ground.records import VOCABULARY, Vocabulary
from lexvl_anserini.ground.typed import check_count

SHARD_SIZE = 4096  # documents per shard: the most that a killed command encodes again, and the most in memory at once
SUMMED = ("documents", "skipped", "empty", "postings", "clipped", "dropped")  # counts of a manifest that add up


@dataclass(frozen=True)
class Layout:
    """How shards are stored on disk.

    Attributes:
        shard_format: jsonl (Anserini's JsonVectorCollection) or parquet (4 to 5 times smaller); dense shards are
            parquet.
        compress: gzip the jsonl.
        contents: store each document's text beside its vector.
        metadata: store each document's metadata beside its vector.
    """

    shard_format: str = "jsonl"
    shard_size: int = SHARD_SIZE
    compress: bool = False
    contents: bool = False
    metadata: bool = False

    def __post_init__(self) -> None:
        if self.shard_format not in ("jsonl", "parquet"):
            raise UsageError(f"shard format {self.shard_format!r}: expected jsonl or parquet")
        check_count("shard size", self.shard_size)

    def to_json(self) -> LayoutEntry:
        """For the manifest; metadata only if stored, so that the request of older folders stays the same."""
        return LayoutEntry({key: value for key, value in asdict(self).items() if key != "metadata" or value})

    def fit_kind(self, kind: str) -> Layout:
        """The layout for shards of that kind: dense shards are always parquet, text shards always jsonl."""
        shard_format = {"dense": "parquet", "text": "jsonl"}.get(kind, self.shard_format)
        return replace(self, shard_format=shard_format, compress=self.compress and shard_format == "jsonl")

    def name(self, number: int) -> str:
        """Path of a shard inside its folder."""
        return f"docs/shard-{number:05d}.{self.shard_format}{'.gz' if self.compress else ''}"


class Part(NamedTuple):
    """One of several equal parts of a corpus, counted from 0, encoded separately and merged when indexed."""

    number: int = 0
    of: int = 1

    def span(self, documents: int) -> tuple[int, int]:
        """The position of its first document in the corpus, and its number of documents."""
        if not 0 <= self.number < self.of:
            raise UsageError(f"shard id {self.number} of {self.of}: expected 0 to {self.of - 1}")
        if self.of > documents:
            raise UsageError(f"{self.of} parts of a corpus of {documents} documents: expected at most {documents}")
        first = documents * self.number // self.of
        return first, documents * (self.number + 1) // self.of - first

    def describe(self, documents: int) -> dict[str, int]:
        """The manifest's entry; `documents` and `digest` beside it describe the whole corpus."""
        first, count = self.span(documents)
        return {"id": self.number, "num": self.of, "first": first, "documents": count}


class SkippedDocument(NamedTuple):
    """A document that is skipped because its image cannot be read."""

    doc_id: str
    image: str
    reason: str


class Shard(NamedTuple):
    """Encoded documents on their way to disk.

    Attributes:
        vectors: CSR [n, V] int64 (impact), float32 [n, D] (dense), None (text).
        clipped, dropped: numbers of postings that quantising changed.
        skipped: documents that the shard lacks.
    """

    ids: Sequence[str]
    contents: Sequence[str]
    vectors: Any
    clipped: int = 0
    dropped: int = 0
    skipped: Sequence[SkippedDocument] = ()
    metadata: Sequence[Mapping[str, Any]] = ()

    def counts(self) -> dict[str, int]:
        """Counts for the manifest: documents, skipped (if any), empty, postings, clipped, dropped, max_impact."""
        postings = np.diff(self.vectors.indptr) if hasattr(self.vectors, "indptr") else None
        documents = {"documents": len(self.ids), **({"skipped": len(self.skipped)} if self.skipped else {})}
        if postings is None:
            return {**documents, "empty": sum(not text.strip() for text in self.contents)}
        return {
            **documents,
            "empty": int((postings == 0).sum()),
            "postings": int(postings.sum()),
            "clipped": self.clipped,
            "dropped": self.dropped,
            "max_impact": int(self.vectors.data.max()) if self.vectors.nnz else 0,
        }


def write_impact_jsonl(out: IO[bytes], shard: Shard, vocabulary: Vocabulary, layout: Layout) -> None:
    """`{"id","contents","vector":{term:impact}}` a line, in the order of dimensions; `metadata` as the layout says."""
    terms = np.array(vocabulary.terms, dtype=object)
    vectors = shard.vectors
    for row, doc_id in enumerate(shard.ids):
        span = slice(vectors.indptr[row], vectors.indptr[row + 1])
        vector = dict(zip(terms[vectors.indices[span]].tolist(), vectors.data[span].tolist(), strict=True))
        contents = shard.contents[row] if layout.contents else ""
        _write_line(out, {"id": doc_id, "contents": contents, "vector": vector}, shard, row, layout)


def write_impact_parquet(out: IO[bytes], shard: Shard, vocabulary: Vocabulary, layout: Layout) -> None:
    """Columns id, term list<uint32> (dimensions of vocab.txt), impact list<uint32>, and optional ones; zstd."""
    import pyarrow as pa

    offsets = pa.array(shard.vectors.indptr, pa.int32())
    columns = {
        "id": pa.array(shard.ids, pa.string()),
        "term": pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.indices, pa.uint32())),
        "impact": pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.data, pa.uint32())),
    }
    write_parquet(out, columns, shard, layout)


def write_dense_parquet(out: IO[bytes], shard: Shard, vocabulary: Vocabulary | None, layout: Layout) -> None:
    """Columns id, emb list<float32>, and optional ones; zstd."""
    import pyarrow as pa

    rows, width = shard.vectors.shape
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width, pa.int32())
    emb = pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.reshape(-1), pa.float32()))
    write_parquet(out, {"id": pa.array(shard.ids, pa.string()), "emb": emb}, shard, layout)


def write_parquet(out: IO[bytes], columns: dict[str, Any], shard: Shard, layout: Layout) -> None:
    """One row group of `columns`, with contents and metadata (JSON objects as strings) if the layout has them; zstd."""
    import pyarrow as pa
    from pyarrow import parquet

    if layout.contents:
        columns["contents"] = pa.array(shard.contents, pa.string())
    if layout.metadata:
        columns["metadata"] = pa.array([orjson.dumps(dict(entry)).decode() for entry in shard.metadata], pa.string())
    parquet.write_table(pa.table(columns), out, compression="zstd", row_group_size=len(shard.ids) or 1)


def write_text_jsonl(out: IO[bytes], shard: Shard, vocabulary: Vocabulary | None, layout: Layout) -> None:
    """`{"id","contents"}` per line: Anserini's JsonCollection; `metadata` as the layout says."""
    for row, (doc_id, text) in enumerate(zip(shard.ids, shard.contents, strict=True)):
        _write_line(out, {"id": doc_id, "contents": text}, shard, row, layout)


def _write_line(out: IO[bytes], line: dict[str, Any], shard: Shard, row: int, layout: Layout) -> None:
    metadata = {"metadata": dict(shard.metadata[row])} if layout.metadata else {}
    out.write(orjson.dumps({**line, **metadata}) + b"\n")


SHARD_WRITERS: Mapping[tuple[str, str], Callable[[IO[bytes], Shard, Any, Layout], None]] = {
    ("impact", "jsonl"): write_impact_jsonl,
    ("impact", "parquet"): write_impact_parquet,
    ("dense", "parquet"): write_dense_parquet,
    ("text", "jsonl"): write_text_jsonl,
}


def write_shard(folder: Path, name: str, shard: Shard, vocabulary: Vocabulary, layout: Layout) -> ShardRecord:
    """Writes a shard of impacts; returns its entry for the manifest."""
    path = folder / name
    with shard_stream(path, layout.compress) as out:
        SHARD_WRITERS["impact", layout.shard_format](out, shard, vocabulary, layout)
    return ShardRecord(name=name, **shard.counts(), bytes=path.stat().st_size, sha256=compute_sha256(path))


def write_shards(
    folder: Path,
    request: Manifest,
    vocabulary: Vocabulary,
    shards: Iterable[ShardRecord],
    kept: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Writes impact shards, their vocabulary and their manifest into a new folder.

    The request is the manifest without shards and counts. `shards` writes them into `docs/`, one after the other;
    `kept` are counts that they do not know, which are read when all are written.
    """
    (folder / "docs").mkdir()
    records = tuple(shards)
    vocabulary.write(folder / VOCABULARY)
    counts = Counts({**sum_counts(records), **kept})
    manifest = replace(request, vocabulary=vocabulary.to_json(), counts=counts, shards=records)
    write_manifest(folder, manifest)
    return manifest


def sum_counts(shards: Sequence[Counts]) -> Counts:
    """The counts of shards together."""
    keys = [key for key in SUMMED if any(key in shard for shard in shards)]
    counts = Counts({key: sum(shard.get(key, 0) for shard in shards) for key in keys})
    if any("max_impact" in shard for shard in shards):
        counts["max_impact"] = max(shard["max_impact"] for shard in shards)
    return counts


@contextmanager
def shard_stream(path: Path, compress: bool) -> Iterator[IO[bytes]]:
    """A file that is on disk when the block ends; gzip without time stamp or name, so that bytes repeat."""
    with open(path, "wb") as raw:
        with open_gzip(raw, ".gz" if compress else "") as out:
            yield out
        sync_to(raw)
