"""Sparsity of both sides, and FLOPS: what exact search over lexical vectors costs, whatever the machine.

FLOPS is the expected number of terms that a random query and a random document share, the sum over terms t of p(t in
query) x p(t in document): the postings that a query touches per document, as SPLADE defines it (arXiv:2109.10086).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import expect_lexical, read_manifest
from lexvl_anserini.ground.records import ImpactQuery, Qrel

Vector = Mapping[str, int]


class TermCounts(NamedTuple):
    """How many vectors one side has, and how many of them each term; `most` is the largest number of terms of one."""

    vectors: int
    most: int
    frequency: Counter[str]


class Sparsity(NamedTuple):
    """A row of the command's table: the two sides of one system, and their FLOPS."""

    shards: str
    documents: int
    terms_per_document: float
    most_document_terms: int
    document_dimensions: int
    queries: int
    terms_per_query: float
    most_query_terms: int
    query_dimensions: int
    flops: float


def count_terms(vectors: Iterable[Vector], what: str) -> TermCounts:
    """Counts the terms of vectors, in one pass."""
    count = most = 0
    frequency: Counter[str] = Counter()
    for vector in vectors:
        count += 1
        most = max(most, len(vector))
        frequency.update(vector.keys())
    if not count:
        raise DataError(f"{what}: no vector in it")
    return TermCounts(count, most, frequency)


def compute_flops(queries: TermCounts, documents: TermCounts) -> float:
    """The expected number of terms that a query and a document share."""
    shared = sum(count * documents.frequency[term] for term, count in queries.frequency.items())
    return shared / (queries.vectors * documents.vectors)


def count_sparsity(shards: Path, queries: Iterable[Vector]) -> Sparsity:
    """The row of shards and of queries for them."""
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    manifest = read_manifest(shards)
    documents = read_impacts(shards, manifest, read_vocabulary(shards, manifest))
    sides = (
        count_terms((document.vector for document in documents), str(shards)),
        count_terms(queries, f"queries of {shards}"),
    )
    facts = (
        fact for count, most, frequency in sides for fact in (count, frequency.total() / count, most, len(frequency))
    )
    return Sparsity._make((str(shards), *facts, compute_flops(sides[1], sides[0])))


def encode_shard_queries(
    shards: Path, topics: str | None, data_dir: str | None, checkpoint: str | None, device: str
) -> tuple[list[ImpactQuery], list[Qrel], bool]:
    """Queries for impact shards, their judgements if a dataset has them, and its rule on a topic's own document."""
    from lexvl_anserini.data.dataset import load_reference
    from lexvl_anserini.encoders.loading import load_encoder_from
    from lexvl_anserini.ground.records import Topic
    from lexvl_anserini.queries.query_source import find_topic_source, find_vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries

    manifest = read_manifest(shards)
    expect_lexical(shards, manifest.kind, "expected lexical vectors (kind 'impact')")
    source = find_topic_source(topics, shards, manifest, data_dir, find_vocabulary_file(shards, None))
    queries: list[Any] = list(source.stream())
    if not queries:
        raise DataError(f"{source.label}: no topic")
    if isinstance(queries[0], Topic):
        model = load_encoder_from(manifest.encoder, checkpoint, device=device, vocabulary=manifest.vocabulary_digest)
        queries = list(encode_queries(model, queries, manifest))
    if source.judged is None:
        return queries, [], False
    return queries, list(load_reference(source.judged).qrels()), source.remove_query
