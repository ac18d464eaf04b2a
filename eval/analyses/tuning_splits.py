"""The splits of tuning: topics that runs rank, or that a search of an index ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import ScoredDoc

from ..measures.inputs import JudgementSource, choose_source, describe_run, read_judgements
from .tuning import Split


def split_of_runs(runs: Sequence[Path], qrels: Path | None, data_dir: str | None, hits: int) -> Split:
    """The topics of some runs, which are read once; a setting is a `Fusion`.

    Args:
        runs: of the same topics.
        qrels: judgements; None for those of the dataset that the first run's manifest names.
        data_dir: folder of that dataset, instead of the run's.
        hits: of a fused list.

    Raises:
        LexvlError: a run or the judgements cannot be read.
    """
    from lexvl_anserini.runs.fusion import Fusion, fuse_rankings, read_rankings

    card = describe_run(runs[0])
    judged = read_judgements(choose_source(card, JudgementSource(qrels, CorpusRef("", data_dir=data_dir))))
    rankings = read_rankings(runs)

    def rank(fusion: Fusion) -> Iterator[ScoredDoc]:
        return chain.from_iterable(fuse_rankings(rankings, fusion, hits))

    return Split(judged.label, judged.qrels, rank, card.remove_query or bool(judged.remove_query))


def split_of_search(
    index: Path, topics: str, qrels: Path | None, data_dir: str | None, hits: int, feedback_shards: Path | None = None
) -> Split:
    """Topics that are encoded once and search an index; a setting is a `Refinement`, or None.

    Args:
        index: of impacts.
        topics: dataset/split, a topics file, or encoded queries.
        qrels: judgements; None for those of the dataset.
        data_dir: folder of the dataset.
        hits: of a list.
        feedback_shards: vectors for feedback, where the index has none.

    Raises:
        UsageError: the topics are a file, and there are no judgements.
        LexvlError: the index, its encoder, the topics or the judgements cannot be read.
    """
    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.engines.targets import index_path
    from lexvl_anserini.queries.query_source import topic_source, vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries
    from lexvl_anserini.searching.refine import Refinement
    from lexvl_anserini.searching.retrieval import search_index
    from lexvl_anserini.searching.searcher import EncoderChanges

    index = index_path(index)
    about = index_manifest(index)
    source = topic_source(topics, index, about, data_dir, vocabulary_file(index, None))
    if qrels is None and source.judged is None:
        raise UsageError(f"{topics}: topics of a file have no judgements; give --qrels and --test-qrels")
    judged = read_judgements(JudgementSource(qrels, source.judged or CorpusRef("")))
    queries: list[Any] = list(source.stream())
    if not source.encoded:
        queries = list(encode_queries(EncoderChanges().load(about), queries, about))

    def rank(refinement: Refinement | None) -> Iterator[ScoredDoc]:
        lists = search_index(
            index, queries, hits, source.remove_query, refinement=refinement, feedback_shards=feedback_shards
        )
        return chain.from_iterable(lists)

    return Split(judged.label, judged.qrels, rank, source.remove_query)
