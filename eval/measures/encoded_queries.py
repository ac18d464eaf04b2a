"""The queries of analyses on impact shards: encoded by the encoder of the shards, with their judgements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import ImpactQuery, Qrel


def encoded_queries(
    shards: Path, topics: str | None, data_dir: str | None, checkpoint: str | None, device: str
) -> tuple[list[ImpactQuery], list[Qrel], bool]:
    """The queries for impact shards, their judgements if a dataset has them, and its rule on documents that are topics.

    Args:
        shards: of impacts; their encoder encodes topics.
        topics: dataset/split, a file of topics or of encoded queries; None for those of the corpus.
        data_dir, checkpoint: where datasets and the encoder's checkpoint are now.
        device: of the encoder.

    Raises:
        UsageError: the shards hold no impacts.
        DataError: there is no topic.
    """
    from lexvl_anserini.data.dataset import dataset_of
    from lexvl_anserini.encoders.loading import load_encoder_of
    from lexvl_anserini.ground.manifest import read_manifest
    from lexvl_anserini.ground.records import Topic
    from lexvl_anserini.queries.query_source import topic_source, vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries

    manifest = read_manifest(shards)
    if manifest.kind != "impact":
        raise UsageError(f"{shards} is {manifest.kind}; expected lexical vectors (kind 'impact')")
    source = topic_source(topics, shards, manifest, data_dir, vocabulary_file(shards, None))
    queries: list[Any] = list(source.stream())
    if not queries:
        raise DataError(f"{source.label}: no topic")
    if isinstance(queries[0], Topic):
        model = load_encoder_of(manifest.encoder, checkpoint, device=device, vocabulary=manifest.vocabulary_digest)
        queries = list(encode_queries(model, queries, manifest))
    if source.judged is None:
        return queries, [], False
    return queries, list(dataset_of(source.judged).qrels()), source.remove_query
