"""The inputs of suites: shards with queries, synthetic or a user's own; and a corpus of demo texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery, TermWeights, Vocabulary
from lexvl_plugins.bench.processes import run_once

if TYPE_CHECKING:
    # With the modules of reports, which no system that is measured needs.
    from lexvl_plugins.bench.command import Options

QUERY_COUNT = 200
# The collection of suites for which the user names none.
SHAPE = "mixture"
# A matrix of impacts instead of shards, or of queries.
MATRIX = ".npz"


class Collection(NamedTuple):
    """Shards, and queries for them as JSON lines."""

    shards: Path
    queries: Path
    documents: int


@contextmanager
def open_workdir(options: Options) -> Iterator[Path]:
    """The user's `workdir`, which remains, or a temporary folder."""
    temporary = TemporaryDirectory(prefix="lexvl-efficiency-")
    with temporary if options.workdir is None else nullcontext(options.workdir) as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)


def prepare(options: Options, folder: Path, documents: int, shard_format: str = "parquet") -> Collection:
    """Writes synthetic data and queries in a child; a user's shards stay, a matrix of impacts becomes shards."""
    if options.shards is None and options.queries is not None:
        raise UsageError("--queries are for --shards; synthetic documents have terms of their own")
    if options.shards is not None and (options.documents or options.shape or options.terms):
        raise UsageError("--shards has its own documents; leave out --documents, --shape and --terms")
    drawn = {"count": options.query_count or QUERY_COUNT, "terms": options.query_terms}
    if options.seed is not None:
        drawn["seed"] = options.seed
    law = {"name": options.single("shape", SHAPE), "terms": options.terms}
    inputs: dict[str, Any] = {"law": law, "documents": documents, "shard_format": shard_format}
    inputs |= {"shards": options.shards, "queries": options.queries, "drawn": drawn}
    place, queries, count = run_once(".collection:write", folder=folder, **inputs).result
    return Collection(Path(place), Path(queries), count)


def write(
    folder: str,
    drawn: Mapping[str, int],
    law: Mapping[str, Any],
    documents: int,
    shard_format: str,
    shards: str | None,
    queries: str | None,
) -> tuple[str, str, int]:
    """What a child of `prepare` runs; returns the paths of shards and queries, and the number of documents."""
    from lexvl_anserini.queries.query_vectors import write_queries
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary
    from lexvl_plugins.bench import vectors

    path = Path(shards or "")
    if shards is None:
        shape, seed = vectors.find_shape(**law), drawn.get("seed", vectors.SEED)
        # The name states the contents, so that a folder that is kept can hold several.
        path = Path(folder) / f"{law['name']}-{shape.terms}-{documents}-{seed}.{shard_format}"
        vectors.write_synthetic(path, shape, documents, seed, shard_format)
    elif path.suffix.lower() == MATRIX:
        path = Path(folder) / f"{path.name}.parquet"
        vectors.write_matrix(path, Path(shards))
    manifest = read_manifest(path)
    if manifest.kind != "impact":
        raise UsageError(f"{path}: {manifest.kind} shards; these suites compare lexical ones (kind 'impact')")
    vocabulary = read_vocabulary(path, manifest)
    if shards is None:
        chosen = vectors.draw_queries(shape, **drawn)
    elif queries is None:
        chosen = vectors.draw_from_pool(read_impacts(path, manifest, vocabulary), **drawn)
    elif queries.lower().endswith(MATRIX):
        matrix = vectors.read_impact_matrix(Path(queries))
        if matrix.shape[1] != len(vocabulary):
            raise UsageError(f"{queries}: {matrix.shape[1]:,} columns, {path} has {len(vocabulary):,} terms")
        chosen = vectors.make_queries(matrix[: drawn["count"]], vocabulary.terms)
    else:
        chosen = vectors.read_encoded(Path(queries), drawn["count"])
    target = Path(folder) / f"queries-{path.name}.jsonl"
    write_queries(chosen, target)
    return str(path), str(target), manifest.counts.documents


def describe(options: Options, shards: Path) -> dict[str, Any]:
    """The collection, for the settings of a report."""
    counts = read_manifest(shards).counts
    vectors, per_document = options.shards or options.single("shape", SHAPE), counts.postings / counts.documents
    sizes = {"documents": counts.documents, "postings": counts.postings}
    return {"vectors": str(vectors), **sizes, "terms_per_document": round(per_document, 1)}


def read_queries(path: str) -> list[ImpactQuery]:
    """The queries that `prepare` wrote, as an encoder gives them: columns over one vocabulary."""
    rows = [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]
    vocabulary = Vocabulary(sorted({term for row in rows for term in row["vector"]}))
    queries = []
    for row in rows:
        dimensions = np.array([vocabulary.dimension[term] for term in row["vector"]], np.int32)
        weights = np.array(list(row["vector"].values()), np.int64)
        queries.append(ImpactQuery(row["id"], TermWeights(vocabulary, dimensions, weights)))
    return queries


def write_corpus(folder: Path, documents: int) -> None:
    """Writes a corpus in BEIR's layout: `documents` demo captions under new ids, one query, one judgement."""
    from lexvl_anserini.data.dataset import load_dataset

    texts = cycle([document.contents for document in load_dataset("demo", direction="text-to-text").documents()])
    folder.mkdir(parents=True)
    with open(folder / "corpus.jsonl", "wb") as out:
        for number, text in enumerate(islice(texts, documents)):
            out.write(orjson.dumps({"_id": f"d{number}", "title": "", "text": text}) + b"\n")
    (folder / "queries.jsonl").write_bytes(orjson.dumps({"_id": "q0", "text": "a boat"}) + b"\n")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
