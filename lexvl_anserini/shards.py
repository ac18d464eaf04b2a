"""Shards: encoded documents as bytes on disk, deterministic, one file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.errors import UsageError
from lexvl_anserini.files import packed, sync_to
from lexvl_anserini.vocabulary import Vocabulary

# Documents per shard: what is encoded again, at most, after a kill, and what is held in memory at once.
SHARD_SIZE = 4096


@dataclass(frozen=True)
class Layout:
    """How shards lie on disk.

    shard_format  jsonl (Anserini's JsonVectorCollection) or parquet (4 to 5 times smaller); dense shards are parquet
    compress      gzip the jsonl
    contents      store each document's text beside its vector
    """

    shard_format: str = "jsonl"
    shard_size: int = SHARD_SIZE
    compress: bool = False
    contents: bool = False

    def __post_init__(self) -> None:
        if self.shard_format not in ("jsonl", "parquet"):
            raise UsageError(f"shard format {self.shard_format!r}: expected jsonl or parquet")
        if self.shard_size < 1:
            raise UsageError(f"shard size {self.shard_size}: expected at least 1")

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)

    def of_kind(self, kind: str) -> Layout:
        """The layout as far as shards of that kind can have it: dense ones are parquet, text ones jsonl."""
        shard_format = {"dense": "parquet", "text": "jsonl"}.get(kind, self.shard_format)
        return replace(self, shard_format=shard_format, compress=self.compress and shard_format == "jsonl")

    def name(self, number: int) -> str:
        """Path of a shard inside its folder."""
        return f"docs/shard-{number:05d}.{self.shard_format}{'.gz' if self.compress else ''}"


class Shard(NamedTuple):
    """Encoded documents on their way to disk.

    vectors   CSR [n, V] int64 (impact), float32 [n, D] (dense), None (text)
    clipped   postings that quantising cut; dropped: those it rounded to 0
    """

    ids: Sequence[str]
    contents: Sequence[str]
    vectors: Any
    clipped: int = 0
    dropped: int = 0

    def counts(self) -> dict[str, int]:
        """Documents, empty ones, postings and what quantising did."""
        postings = np.diff(self.vectors.indptr) if hasattr(self.vectors, "indptr") else None
        if postings is None:
            return {"documents": len(self.ids), "empty": sum(not text.strip() for text in self.contents)}
        return {
            "documents": len(self.ids),
            "empty": int((postings == 0).sum()),
            "postings": int(postings.sum()),
            "clipped": self.clipped,
            "dropped": self.dropped,
            "max_impact": int(self.vectors.data.max()) if self.vectors.nnz else 0,
        }


def write_impact_jsonl(out: IO[bytes], shard: Shard, vocabulary: Vocabulary, contents: bool) -> None:
    """`{"id","contents","vector":{term:impact}}` per line, terms in the order of dimensions."""
    terms = np.array(vocabulary.terms, dtype=object)
    vectors = shard.vectors
    for row, doc_id in enumerate(shard.ids):
        span = slice(vectors.indptr[row], vectors.indptr[row + 1])
        vector = dict(zip(terms[vectors.indices[span]].tolist(), vectors.data[span].tolist(), strict=True))
        out.write(orjson.dumps({"id": doc_id, "contents": shard.contents[row] if contents else "", "vector": vector}))
        out.write(b"\n")


def write_impact_parquet(out: IO[bytes], shard: Shard, vocabulary: Vocabulary, contents: bool) -> None:
    """Columns id, term list<uint32> (dimensions of vocab.txt), impact list<uint32>, and contents if wanted; zstd."""
    import pyarrow as pa

    offsets = pa.array(shard.vectors.indptr, pa.int32())
    columns = {
        "id": pa.array(shard.ids, pa.string()),
        "term": pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.indices, pa.uint32())),
        "impact": pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.data, pa.uint32())),
    }
    write_parquet(out, columns, shard, contents)


def write_dense_parquet(out: IO[bytes], shard: Shard, vocabulary: Vocabulary | None, contents: bool) -> None:
    """Columns id, emb list<float32>, and contents if wanted; zstd."""
    import pyarrow as pa

    rows, width = shard.vectors.shape
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width, pa.int32())
    emb = pa.ListArray.from_arrays(offsets, pa.array(shard.vectors.reshape(-1), pa.float32()))
    write_parquet(out, {"id": pa.array(shard.ids, pa.string()), "emb": emb}, shard, contents)


def write_parquet(out: IO[bytes], columns: dict[str, Any], shard: Shard, contents: bool) -> None:
    """One row group of `columns`, zstd."""
    import pyarrow as pa
    from pyarrow import parquet

    if contents:
        columns["contents"] = pa.array(shard.contents, pa.string())
    parquet.write_table(pa.table(columns), out, compression="zstd", row_group_size=len(shard.ids) or 1)


def write_text_jsonl(out: IO[bytes], shard: Shard, vocabulary: Vocabulary | None, contents: bool) -> None:
    """`{"id","contents"}` per line: Anserini's JsonCollection."""
    for doc_id, text in zip(shard.ids, shard.contents, strict=True):
        out.write(orjson.dumps({"id": doc_id, "contents": text}))
        out.write(b"\n")


SHARD_WRITERS: Mapping[tuple[str, str], Callable[[IO[bytes], Shard, Any, bool], None]] = {
    ("impact", "jsonl"): write_impact_jsonl,
    ("impact", "parquet"): write_impact_parquet,
    ("dense", "parquet"): write_dense_parquet,
    ("text", "jsonl"): write_text_jsonl,
}


@contextmanager
def shard_stream(path: Path, compress: bool) -> Iterator[IO[bytes]]:
    """A file that is on disk when the block ends; gzip without time stamp or name, so that bytes repeat."""
    with open(path, "wb") as raw:
        with packed(raw, compress) as out:
            yield out
        sync_to(raw)
