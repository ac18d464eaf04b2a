"""The inputs of suites: shards with queries, synthetic or a user's own; and a corpus of demo texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import orjson

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery

from .processes import run_once
from .suite import Options

QUERY_COUNT = 200
QUERY_TERMS = 30


class Collection(NamedTuple):
    """Shards, and queries for them as JSON lines."""

    shards: Path
    queries: Path
    documents: int


@contextmanager
def working_folder(options: Options) -> Iterator[Path]:
    """The user's `workdir`, which remains, or a temporary folder."""
    if options.workdir is not None:
        options.workdir.mkdir(parents=True, exist_ok=True)
        yield options.workdir
    else:
        with TemporaryDirectory(prefix="lexvl-efficiency-") as folder:
            yield Path(folder)


def prepare(
    options: Options, folder: Path, documents: int, shard_format: str = "parquet", terms: int | None = None
) -> Collection:
    """Writes the synthetic data and the queries in a child; a user's shards stay where they are.

    Raises:
        LexvlError: the shards, the queries or the options do not fit.
    """
    if options.shards is not None and (options.documents or options.shape or options.terms):
        raise UsageError("--shards has its own documents; leave out --documents, --shape and --terms")
    made = run_once(
        ".collection:write",
        folder=str(folder),
        shards=options.shards and str(options.shards),
        queries=options.queries and str(options.queries),
        shape=options.one_shape(),
        terms=terms or options.terms,
        documents=documents,
        shard_format=shard_format,
        query_count=options.query_count or QUERY_COUNT,
        query_terms=options.query_terms or QUERY_TERMS,
        seed=options.seed,
    ).result
    return Collection(Path(made["shards"]), Path(made["queries"]), made["documents"])


def write(
    folder: str,
    shards: str | None,
    queries: str | None,
    shape: str,
    terms: int | None,
    documents: int,
    shard_format: str,
    query_count: int,
    query_terms: int,
    seed: int | None,
) -> dict[str, object]:
    """What the child of `prepare` runs; returns the paths and the number of documents."""
    from lexvl_anserini.ground.manifest import read_manifest
    from lexvl_anserini.queries.query_vectors import write_queries

    from . import vectors

    seed = vectors.SEED if seed is None else seed
    given = vectors.read_given(Path(queries), query_count) if queries else None
    if shards is None:
        law = vectors.shape_of(shape, terms)
        first = vectors.terms_by_frequency(given) if given else []
        # The name states the contents, so that a folder that is kept can hold several.
        name = f"{shape}-{law.terms}-{documents}-{seed}{'-asked' if given else ''}.{shard_format}"
        where = Path(folder) / name
        manifest = vectors.write_shards(where, law, documents, seed, shard_format, first)
        vocabulary = vectors.synthetic_terms(law, first)
        written = given or vectors.synthetic_queries(law, query_count, query_terms, vocabulary, seed)
    else:
        where = Path(shards)
        manifest = read_manifest(where)
        written = given or pooled_queries(where, query_count, query_terms, seed)
    target = Path(folder) / f"queries-{where.name}.jsonl"
    write_queries(written, target)
    return {"shards": str(where), "queries": str(target), "documents": manifest.counts.documents}


def pooled_queries(shards: Path, count: int, terms: int, seed: int) -> list[ImpactQuery]:
    """Queries drawn from the postings of a user's shards.

    Raises:
        UsageError: the shards hold no impacts.
    """
    from lexvl_anserini.ground.manifest import read_manifest
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    from .vectors import queries_from_pool

    manifest = read_manifest(shards)
    if manifest.kind != "impact":
        raise UsageError(f"{shards}: {manifest.kind} shards; these suites compare lexical ones (kind 'impact')")
    vocabulary = read_vocabulary(shards, manifest)
    return queries_from_pool(read_impacts(shards, manifest, vocabulary), count, terms, vocabulary, seed)


def read_queries(path: str) -> list[ImpactQuery]:
    """The queries that `prepare` wrote."""
    rows = (orjson.loads(line) for line in Path(path).read_bytes().splitlines())
    return [ImpactQuery(row["id"], row["vector"]) for row in rows]


def write_corpus(folder: Path, documents: int) -> None:
    """Writes a corpus in BEIR's layout: `documents` demo captions under new ids, one query, one judgement."""
    from lexvl_anserini.data.dataset import load_dataset

    def endless() -> Iterator[str]:
        while True:
            for document in load_dataset("demo", direction="text-to-text").documents():
                yield document.contents

    folder.mkdir(parents=True)
    with open(folder / "corpus.jsonl", "wb") as out:
        for number, text in enumerate(islice(endless(), documents)):
            out.write(orjson.dumps({"_id": f"d{number}", "title": "", "text": text}) + b"\n")
    (folder / "queries.jsonl").write_bytes(orjson.dumps({"_id": "q0", "text": "a boat"}) + b"\n")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
