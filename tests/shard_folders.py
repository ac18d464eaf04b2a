"""Folders of shards as `encode` writes them, for tests of whatever reads shards."""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from brute_force import Doc

from lexvl_anserini.ground.files import compute_sha256, write_json
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

Documents = Sequence[tuple[str, Any]]
NUMBERS = pa.list_(pa.uint32())


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def read_all(folder: Path) -> dict[str, dict[str, int]]:
    """The vectors of a folder of impact shards by id."""
    manifest = read_manifest(folder)
    return {d.doc_id: dict(d.vector) for d in read_impacts(folder, manifest, read_vocabulary(folder, manifest))}


def publish_shards(
    folder: Path, kind: str, entries: list[dict[str, Any]], vocabulary: Vocabulary | None = None
) -> Manifest:
    """Writes the manifest of shards that lie in `folder` already."""
    for entry in entries:
        path = folder / entry["name"]
        entry |= {"bytes": path.stat().st_size, "sha256": compute_sha256(path)}
    names = [name for name in ("documents", "empty", "postings") if all(name in entry for entry in entries)]
    counts = {name: sum(entry[name] for entry in entries) for name in names}
    if greatest := [entry["max_impact"] for entry in entries if "max_impact" in entry]:
        counts["max_impact"] = max(greatest)
    manifest = Manifest(
        kind=kind,
        encoder={"name": "toy", "options": {}, "checkpoint": None, "checkpoint_digest": None},
        corpus={"name": "toy", "split": "test", "data_dir": None},
        counts=counts,
        vocabulary={"size": len(vocabulary), "digest": vocabulary.digest} if vocabulary else {},
        shards=tuple(entries),
    )
    if vocabulary:
        vocabulary.write(folder / "vocab.txt")
    write_json(folder / "manifest.json", manifest.to_json())
    return manifest


def write_files(
    folder: Path, shards: Iterable[Sequence[Any]], suffix: str, content: Callable[[Sequence[Any]], Any]
) -> list[str]:
    """A file of each shard, and their names; `content` gives the columns (parquet) or the rows of one."""
    (folder / "docs").mkdir(parents=True)
    names = []
    for number, documents in enumerate(shards):
        names.append(f"docs/shard-{number:05d}.{suffix}")
        if suffix == "parquet":
            pq.write_table(pa.table(content(documents)), folder / names[-1])
        else:
            data = jsonl(content(documents))
            (folder / names[-1]).write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    return names


def counts_of(vectors: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What a manifest says of the impact vectors of a shard."""
    return {
        "documents": len(vectors),
        "empty": sum(not vector for vector in vectors),
        "postings": sum(len(vector) for vector in vectors),
        "max_impact": max((impact for vector in vectors for impact in vector.values()), default=0),
    }


def write_shards(
    folder: Path, *shards: Documents, terms: Sequence[str] | None = None, suffix: str = "jsonl"
) -> Manifest:
    if terms is None:
        terms = sorted({term for shard in shards for _, vector in shard for term in vector})
    vocabulary = Vocabulary(terms)

    def content(documents: Documents) -> Any:
        if suffix != "parquet":
            return [{"id": doc_id, "contents": "", "vector": vector} for doc_id, vector in documents]
        return {
            "id": pa.array([doc_id for doc_id, _ in documents], pa.string()),
            "term": pa.array([[vocabulary.dimension[term] for term in vector] for _, vector in documents], NUMBERS),
            "impact": pa.array([list(vector.values()) for _, vector in documents], NUMBERS),
        }

    names = write_files(folder, shards, suffix, content)
    counts = [counts_of([vector for _, vector in shard]) for shard in shards]
    entries = [{"name": name, **count} for name, count in zip(names, counts, strict=True)]
    return publish_shards(folder, "impact", entries, vocabulary)


def write_described_shards(folder: Path, documents: Sequence[Doc], terms: Sequence[str]) -> Path:
    rows = [{"id": d.doc_id, "contents": d.text, "vector": d.vector, "metadata": d.metadata} for d in documents]
    [name] = write_files(folder, [rows], "jsonl", lambda rows: rows)
    publish_shards(folder, "impact", [{"name": name, **counts_of([d.vector for d in documents])}], Vocabulary(terms))
    return folder


def write_dense_shards(folder: Path, *shards: Documents) -> Manifest:

    def content(documents: Documents) -> Any:
        vectors = [np.asarray(vector, np.float32).tolist() for _, vector in documents]
        ids = pa.array([doc_id for doc_id, _ in documents], pa.string())
        return {"id": ids, "emb": pa.array(vectors, pa.list_(pa.float32()))}

    names = write_files(folder, shards, "parquet", content)
    counts = [{"documents": len(shard), "empty": 0, "postings": 0} for shard in shards]
    return publish_shards(folder, "dense", [{"name": n, **count} for n, count in zip(names, counts, strict=True)])


def write_text_shards(folder: Path, *shards: Documents) -> Manifest:
    rows = [[{"id": doc_id, "contents": text} for doc_id, text in shard] for shard in shards]
    names = write_files(folder, rows, "jsonl", lambda rows: rows)
    counts = [{"documents": len(shard), "empty": sum(not text.strip() for _, text in shard)} for shard in shards]
    return publish_shards(folder, "text", [{"name": n, **count} for n, count in zip(names, counts, strict=True)])
