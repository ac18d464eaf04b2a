"""The shards and queries a suite measures on: made up, or a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from eval.efficiency.options import Options
from eval.efficiency.processes import run_once
from lexvl_anserini.errors import UsageError

SHAPE = "splade"
QUERY_COUNT = 200
QUERY_TERMS = 30


class Collection(NamedTuple):
    """Shards, and queries for them as JSON lines."""

    shards: Path
    queries: Path
    documents: int


@contextmanager
def working_folder(options: Options) -> Iterator[Path]:
    """The user's `workdir`, which stays, or a temporary folder."""
    if options.workdir is not None:
        options.workdir.mkdir(parents=True, exist_ok=True)
        yield options.workdir
    else:
        with TemporaryDirectory(prefix="lexvl-efficiency-") as folder:
            yield Path(folder)


def one_shape(options: Options, default: str = SHAPE) -> str:
    """The shape of made-up vectors.

    Raises:
        UsageError: several were given.
    """
    shapes = options.shape or (default,)
    if len(shapes) > 1:
        raise UsageError("several --shape are for the suite encode; give one")
    return shapes[0]


def prepare(
    options: Options, folder: Path, documents: int, shard_format: str = "parquet", terms: int | None = None
) -> Collection:
    """Writes what is made up, in a child, and the queries; a user's shards are read where they are.

    Raises:
        LexvlError: the shards, the queries or the options do not fit.
    """
    if options.shards is not None and (options.documents or options.shape or options.terms):
        raise UsageError("--shards brings its own documents; leave out --documents, --shape and --terms")
    made = run_once(
        "eval.efficiency.collection:write",
        folder=str(folder),
        shards=options.shards and str(options.shards),
        queries=options.queries and str(options.queries),
        shape=one_shape(options),
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
    """What `prepare` lets a child do; returns where things are and how many documents there are."""
    from eval.efficiency import vectors
    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.shards.writing import write_queries

    seed = vectors.SEED if seed is None else seed
    given = vectors.read_given(Path(queries), query_count) if queries else None
    if shards is None:
        made = vectors.shape_of(shape, terms)
        first = vectors.terms_by_frequency(given) if given else []
        # The name says what is in it, so that a kept folder holds several.
        name = f"{shape}-{made.terms}-{documents}-{seed}{'-asked' if given else ''}.{shard_format}"
        where = Path(folder) / name
        manifest = vectors.write_shards(where, made, documents, seed, shard_format, first)
        vocabulary = vectors.made_up_terms(made, first)
        asked = given or vectors.make_queries(made, query_count, query_terms, vocabulary, seed)
    else:
        where = Path(shards)
        manifest = read_manifest(where)
        asked = given or pooled_queries(where, query_count, query_terms, seed)
    target = Path(folder) / f"queries-{where.name}.jsonl"
    write_queries(asked, target)
    return {"shards": str(where), "queries": str(target), "documents": manifest.counts["documents"]}


def pooled_queries(shards: Path, count: int, terms: int, seed: int) -> list:
    """Queries drawn from the postings of a user's shards.

    Raises:
        UsageError: the shards hold no impacts.
    """
    from eval.efficiency.vectors import queries_from_pool
    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    manifest = read_manifest(shards)
    if manifest.kind != "impact":
        raise UsageError(f"{shards}: {manifest.kind} shards; these suites compare lexical ones (kind 'impact')")
    vocabulary = read_vocabulary(shards, manifest)
    return queries_from_pool(read_impacts(shards, manifest, vocabulary), count, terms, vocabulary, seed)
