"""The formats of shard files, with a writer per kind and format; and several encoded corpora as one.

Of several corpora: what must be equal, the manifest of the whole, and the folders of parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.ground.claims import Claim, claim, compare_requests, ensure
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import clear_remains, compute_sha256, open_gzip, sync_to
from lexvl_anserini.ground.manifest import (
    MANIFEST,
    Counts,
    EncodedCorpus,
    LayoutEntry,
    Manifest,
    ShardRecord,
    read_manifest,
    write_manifest,
)
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import VOCABULARY, Vocabulary
from lexvl_anserini.ground.typed import check_count

log = logging.getLogger(__name__)

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
        if kind == "multi-vector":
            raise UsageError("no index holds a vector per token; search with another encoder, then rerank --encoder")
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


def ensure_shards(
    output: Path,
    request: Mapping[str, Any],
    describe: Callable[[Manifest], Mapping[str, Any]],
    overwrite: bool,
    write: Callable[[], Manifest],
) -> Manifest:
    """The manifest of shards that `write` makes, unless they are there; `describe` finds their request in it."""

    def find() -> Manifest | None:
        clear_remains(output)
        there = read_manifest(output) if output.exists() else None
        decision = claim(output, "shards", request, None if there is None else describe(there), overwrite)
        return there if decision is Claim.DONE else None

    return ensure(output, find, write, folder=True)


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


# Keys of a corpus that distinguish it from another.
IDENTITY = ("name", "split", "direction", "documents", "digest", "contents", "part")


def name_part_folder(part: Part) -> str:
    """`part-00003-of-00100`."""
    return f"part-{part.number:05}-of-{part.of:05}"


def list_part_folders(folder: Path) -> list[Path]:
    """The folders of shards in a folder: of all parts of a corpus, else the folder itself."""
    parts = sorted(folder.glob("part-*-of-*"))
    if not parts or (folder / MANIFEST).exists():
        return [folder]
    whole = [folder / name_part_folder(Part(number, len(parts))) for number in range(len(parts))]
    if parts != whole or not all((part / MANIFEST).is_file() for part in parts):
        raise ArtefactError(f"{folder}: parts that are not all encoded; run the same encode command again")
    return whole


def source_digest(manifest: Manifest) -> str:
    """Equal for shards of equal bytes (16 hex digits)."""
    return sha256("".join(str(shard.sha256) for shard in manifest.shards).encode()).hexdigest()[:16]


def check_same_meaning(first: Manifest, other: Manifest, where: Path) -> None:
    """Checks that the impacts of two corpora mean the same."""
    same = compare_requests(first.meaning(), other.meaning())
    if not same:
        hint = ""
        if list(same.differing) == ["quantiser"] and (sides := Quantiser.from_json(first.quantiser)).document.scale:
            hint = f"; encode with --quantiser fixed --scale {sides.document.scale!r}"
            hint += f" --bits {sides.document.bits}" if sides.document.bits else ""
            hint += f" --query-bits {sides.query.bits}" if sides.query.bits else ""
        raise ArtefactError(f"{where}: not as the other shards ({same}); their scores cannot be compared{hint}")


def combine_manifests(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Manifest:
    """The manifest of several corpora in one index, in their order."""
    first = manifests[0]
    digests: dict[str, Path] = {}
    for manifest, folder in zip(manifests, folders, strict=True):
        check_same_meaning(first, manifest, folder)
        digest = source_digest(manifest)
        if digest in digests:
            raise ArtefactError(f"{folder}: the same shards as {digests[digest]}; name each once")
        digests[digest] = folder
    if len(manifests) == 1:
        return first
    every = [manifest.counts for manifest in manifests]
    counts = Counts({name: sum(c[name] for c in every) for name in SUMMED if all(name in c for c in every)})
    if all(c.max_impact is not None for c in every):
        counts["max_impact"] = max(c["max_impact"] for c in every)
    shards = tuple(shard for manifest in manifests for shard in manifest.shards)
    corpus = merge_corpora([manifest.corpus for manifest in manifests], counts.documents)
    return replace(first, corpus=corpus, counts=counts, shards=shards)


def merge_corpora(corpora: Sequence[EncodedCorpus], documents: int) -> EncodedCorpus:
    """The entry of the whole: all parts of one corpus are that corpus, others are listed one by one."""
    base = {key: value for key, value in corpora[0].items() if key not in ("part", "parts", "contents")}
    if deleted := sum(corpus.deleted for corpus in corpora):
        base["deleted"] = deleted
    parts = [part for corpus in corpora for part in corpus.parts or (corpus,)]
    missing = find_missing_parts(parts)
    if missing == [] and len(parts) == parts[0]["part"]["num"]:
        whole: dict[str, Any] = {"documents": parts[0].documents, "digest": parts[0].digest}
        contents = [part.contents for part in sorted(parts, key=lambda part: part.part.id if part.part else 0)]
        if None not in contents:
            whole["contents"] = sha256("".join(map(str, contents)).encode()).hexdigest()
        return EncodedCorpus({**base, **whole})
    if missing:
        numbers = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        what = f"parts {numbers} of {parts[0]['part']['num']} of {parts[0].name}"
        log.warning("%s are not among these folders; the index lacks their documents", what)
    listed = [{key: part[key] for key in IDENTITY if part.get(key) is not None} for part in parts]
    digest = sha256(orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return EncodedCorpus({**base, "documents": documents, "digest": digest, "parts": listed})


def find_missing_parts(corpora: Sequence[EncodedCorpus]) -> list[int] | None:
    """The numbers of the parts of one corpus that are not there; None where these are not parts of one corpus."""
    parts = [corpus.part for corpus in corpora if corpus.part]
    wholes = {(corpus.digest, part.num) for corpus, part in zip(corpora, parts, strict=False)}
    if len(parts) < len(corpora) or len(wholes) > 1:
        return None
    return sorted(set(range(parts[0].num)) - {part.id for part in parts})
