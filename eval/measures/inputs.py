"""The judgements of a run: those that the caller names, else those of the dataset in the run's manifest.

For analyses on impact shards also their queries: encoded by the encoder of the shards, with their judgements.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.lines import remove_packing
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import expect_lexical, name_manifest, read_manifest, read_run_manifest
from lexvl_anserini.ground.records import CorpusRef, ImpactQuery, Qrel, Topic

log = logging.getLogger(__name__)

# A reference without a name, for what the run's manifest completes.
UNNAMED = CorpusRef("")


class JudgementSource(NamedTuple):
    """Where judgements come from: a file of qrels, else a dataset, whose empty name is that of the run's manifest.

    The name of a dataset beside a file is the label of its judgements.
    """

    qrels: Path | None = None
    corpus: CorpusRef = UNNAMED


class Judgements(NamedTuple):
    """Judgements under a label for rows and messages; `remove_query` is the dataset's rule, None if unknown."""

    label: str
    qrels: tuple[Qrel, ...]
    remove_query: bool | None = None


@dataclass(frozen=True)
class RunCard:
    """A run on disk and the contents of its manifest; only the path for a run that another program wrote.

    Attributes:
        system: the encoder's name and options, else the name of the file
        corpus: the dataset of the topics that it answers and of their judgements
        hits: the largest length of its lists
        ties: the order of equal scores that its origin asks for: "rank" where its manifest vouches for its lines
        sha256: the digest of its file, if it was compared with the manifest
    """

    path: Path
    system: str
    corpus: CorpusRef = UNNAMED
    remove_query: bool = False
    efficiency: Mapping[str, float] = field(default_factory=dict)
    hits: int | None = None
    ties: str = "trec_eval"
    sha256: str = ""


def format_system(encoder: Mapping[str, Any]) -> str:
    """An encoder's name with its options in brackets, without the direction; a fusion's method and runs."""
    name, settings = str(encoder.get("name", "?")), encoder.get("options") or {}
    if name == "fusion":
        runs = (run_name(str(run).partition("@")[0]) for run in settings.get("runs", ()))
        return f"{settings.get('method', name)} of {', '.join(runs)}"
    options = ", ".join(
        f"{option}={value}" for option, value in settings.items() if value is not None and option != "direction"
    )
    return f"{name} ({options})" if options else name


def run_name(file: str) -> str:
    """A run's file name without `.trec` and the suffix of its compression."""
    return remove_packing(file).removesuffix(".trec")


def describe_run(path: Path) -> RunCard:
    """The card of a run, without parsing its lines."""
    if not path.is_file():
        raise DataError(f"{path}: no such run; write one with python -m lexvl_anserini.search")
    manifest = read_run_manifest(path)
    if manifest is None:
        return RunCard(path, system=run_name(path.name))
    # A manifest of an older version has no digest and is believed.
    digest = compute_sha256(path) if manifest.sha256 else ""
    if digest != manifest.sha256:
        log.warning("%s: changed since %s was written; a run of unknown origin", path, name_manifest(path).name)
    if recall := manifest.encoder.options.get("approximate"):
        log.info("%s: approximate search, recall %s", path, recall)
    return RunCard(
        path,
        system=format_system(manifest.encoder),
        ties="rank" if digest == manifest.sha256 else "trec_eval",
        sha256=digest,
        corpus=manifest.judged or UNNAMED,
        remove_query=manifest.remove_query,
        efficiency=manifest.efficiency,
        hits=manifest.hits,
    )


def complete_reference(named: CorpusRef, known: CorpusRef) -> CorpusRef:
    """A dataset whose name, split, folder, ids and direction come from a known one where they are not given."""
    fields = ("name", "split", "data_dir", "escape_ids", "direction")
    return CorpusRef(**{field: getattr(named, field) or getattr(known, field) for field in fields})


def choose_source(card: RunCard, requested: JudgementSource) -> JudgementSource:
    """The judgements that the caller names, completed by the run's manifest."""
    if requested.qrels:
        return requested
    named = requested.corpus
    corpus = complete_reference(named, card.corpus if named.name in ("", card.corpus.name) else UNNAMED)
    if not corpus.name:
        raise UsageError(f"{card.path}: no manifest beside it names its dataset; give --qrels FILE or --dataset NAME")
    return JudgementSource(corpus=corpus)


def read_judgements(source: JudgementSource) -> Judgements:
    """Reads all judgements of a source."""
    if source.qrels:
        from lexvl_anserini.data.topics import read_qrels

        label = source.corpus.name or str(source.qrels)
        return Judgements(label, tuple(read_qrels(source.qrels, source.corpus.escape_ids)))
    from lexvl_anserini.data.dataset import load_reference

    dataset = load_reference(source.corpus)
    label = f"{dataset.name}/{dataset.split}".rstrip("/")
    if dataset.direction != "text-to-text":
        label += f" {dataset.direction}"
    return Judgements(label, tuple(dataset.qrels()), dataset.remove_query)


def encode_shard_queries(
    shards: Path, topics: str | None, data_dir: str | None, checkpoint: str | None, device: str
) -> tuple[list[ImpactQuery], list[Qrel], bool]:
    """Queries for impact shards, their judgements if a dataset has them, and its rule on a topic's own document."""
    from lexvl_anserini.data.dataset import load_reference
    from lexvl_anserini.encoders.loading import load_encoder_from
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
