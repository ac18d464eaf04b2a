"""Measures pruning: `python -m eval.analyses.pruning --shards impacts/scifact --query-terms 16`.

What shorter queries or documents cost and save: overlap with the exact ranking, latency, a measure.

Each setting is searched on the whole index (shorter queries) or on an index of pruned shards (shorter documents), all
in one process, one thread, one query after the other. The settings take turns in rounds, and each query's fastest
round counts: an interruption of the machine does not count as the cost of a setting.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lexvl_anserini.cli import DataDir, Device, Verbose, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery, Qrel
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.searching.search import RefinedQuery, Search, cut_queries, search_refined
from lexvl_anserini.shards.pruning import Pruning

from .. import options
from ..measures.flops import encode_shard_queries
from ..measures.inputs import sort_strictly
from ..measures.metrics import evaluate, means, measure_overlap, parse_measure
from ..report.tables import build_setting_table, render

if TYPE_CHECKING:
    from lexvl_anserini.queries.query_vectors import VectorOf

MEASURE = "nDCG@10"

# How the numbers of a setting are shown; other counts as they are, other values with four decimals.
SHOWN = {"terms/query": "{:.1f}", "postings": "{:,}", "ms/query": "{:.2f}", "speed-up": "{:.1f}x"}


def command(
    shards: Annotated[Path, typer.Option(help="Folder that encode wrote, of impacts.")],
    topics: options.Topics = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first topics only.")] = None,
    data_dir: DataDir = None,
    query_terms: Annotated[list[int] | None, typer.Option(help="Keep a query's heaviest terms; repeatable.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Keep weights of that share of the largest; repeatable.")
    ] = None,
    first_terms: Annotated[list[int] | None, typer.Option(help="Two phases: terms of the first; repeatable.")] = None,
    candidates: Annotated[int, typer.Option(help="Documents that the first phase finds.")] = 1000,
    feedback: Annotated[
        list[int] | None, typer.Option(help="Expand queries by that many documents; repeatable.")
    ] = None,
    document_terms: Annotated[
        list[int] | None, typer.Option(help="Keep a document's largest impacts; repeatable.")
    ] = None,
    least_impact: Annotated[list[int] | None, typer.Option(help="Drop smaller impacts; repeatable.")] = None,
    term_documents: Annotated[list[int] | None, typer.Option(help="Keep a term's largest impacts; repeatable.")] = None,
    hits: Annotated[int, typer.Option(min=1, help="Documents per topic.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Each query's fastest round counts for time.")] = 3,
    measure: Annotated[
        str,
        typer.Option(help="Measure of the rankings, if there are judgements.", autocompletion=options.measure_names),
    ] = MEASURE,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint is now.")] = None,
    device: Device = "auto",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State what shorter queries and pruned documents cost in overlap and a measure, and save in time.

    Example: python -m eval.analyses.pruning --shards impacts/demo --query-terms 8 --document-terms 64
    """
    parse_measure(measure)
    of_queries = (query_terms or (), threshold or (), first_terms or (), candidates, feedback or ())
    settings = list_settings(*of_queries, document_terms or (), least_impact or (), term_documents or ())
    if len(settings) == 1:
        raise UsageError("nothing to compare; give --query-terms, --threshold, --document-terms, ... at least once")
    queries, qrels, remove_query = encode_shard_queries(shards, topics, data_dir, checkpoint, device)
    measured = measure_settings(shards, queries[:limit], settings, hits, rounds)
    topic_ids = {query.query_id for query in queries[:limit]}
    judged = [qrel for qrel in qrels if qrel.query_id in topic_ids]
    rows = [{**row, "ties": "rank"} for row in compare_settings(measured, judged, measure, remove_query)]
    sys.stdout.write(render(build_setting_table(rows, SHOWN), rows, output_format))


DEPTHS = (10, 100)


@dataclass(frozen=True)
class PruningSetting:
    """One row: how queries are refined, and how the shards are pruned (None: not at all)."""

    name: str
    search: Search = Search()
    pruning: Pruning | None = None


class Measured(NamedTuple):
    """The results of one setting: its lists, each query's milliseconds, and the size of its index."""

    lists: list[RankedList]
    ms: list[float]
    postings: int
    terms_per_query: float

    @property
    def ms_per_query(self) -> float:
        """The mean over queries."""
        return sum(self.ms) / len(self.ms)


class OpenIndex:
    """An open index that answers refined queries."""

    def __init__(self, shards: Path, folder: Path, vector_of: VectorOf | None = None):
        from lexvl_anserini.engines.engine import open_impact_index
        from lexvl_anserini.searching.building import build_index

        built = build_index(shards, folder)
        self.postings = built.manifest.counts.postings
        self.engine = open_impact_index(folder, built.manifest)
        self.vector_of = vector_of

    def measure(self, queries: Sequence[ImpactQuery], search: Search, hits: int) -> Measured:
        """One round, one query after the other: a batch would hide the latency of a single query."""
        measured = Measured([], [], self.postings, 0.0)
        terms = 0
        for query in queries:
            started = time.perf_counter()
            [shorter] = cut_queries([query], search)
            measured.lists.extend(search_refined(self.engine, [RefinedQuery(shorter)], search, hits, self.vector_of))
            measured.ms.append((time.perf_counter() - started) * 1000)
            terms += len(shorter.vector)
        return measured._replace(terms_per_query=terms / len(queries))


def list_settings(
    query_terms: Iterable[int] = (),
    thresholds: Iterable[float] = (),
    first_terms: Iterable[int] = (),
    candidates: int = 1000,
    feedback: Iterable[int] = (),
    document_terms: Iterable[int] = (),
    least_impacts: Iterable[int] = (),
    term_documents: Iterable[int] = (),
) -> list[PruningSetting]:
    """The rows of the table; the first is exact."""
    settings = [
        PruningSetting("exact"),
        *(PruningSetting(f"query terms {n}", Search(query_terms=n)) for n in query_terms),
        *(PruningSetting(f"threshold {share:g}", Search(threshold=share)) for share in thresholds),
        *(
            PruningSetting(f"two phases {n}, {candidates}", Search(first_terms=n, candidates=candidates))
            for n in first_terms
        ),
        *(PruningSetting(f"feedback {n}", Search(feedback=n)) for n in feedback),
        *(PruningSetting(f"document terms {n}", pruning=Pruning(document_terms=n)) for n in document_terms),
        *(PruningSetting(f"least impact {n}", pruning=Pruning(least_impact=n)) for n in least_impacts),
        *(PruningSetting(f"term documents {n}", pruning=Pruning(term_documents=n)) for n in term_documents),
    ]
    return list({setting.name: setting for setting in settings}.values())


def measure_settings(
    shards: Path, queries: Sequence[ImpactQuery], settings: Sequence[PruningSetting], hits: int, rounds: int
) -> dict[str, Measured]:
    """Searches all queries with every setting, `rounds` times; the lists are those of the first round."""
    from lexvl_anserini.ground.manifest import read_manifest
    from lexvl_anserini.queries.query_vectors import ShardVectors
    from lexvl_anserini.shards.pruning import prune_shards

    needs_vectors = any(setting.search.feedback for setting in settings)
    vectors = ShardVectors(shards, read_manifest(shards)) if needs_vectors else None
    measured_by: dict[str, Measured] = {}
    with TemporaryDirectory() as folder:
        opened: dict[Pruning | None, OpenIndex] = {}
        for number, pruning in enumerate(dict.fromkeys(setting.pruning for setting in settings)):
            source = shards
            if pruning is not None:
                source = Path(folder) / f"shards-{number}"
                prune_shards(shards, source, pruning)
            opened[pruning] = OpenIndex(source, Path(folder) / f"index-{number}", vectors)
        for number in range(rounds + 1):
            for setting in settings:
                measured = opened[setting.pruning].measure(queries, setting.search, hits)
                # The first round warms up Java's compiler and the page cache.
                if number > 1:  # the fastest round of each query counts
                    earlier = measured_by[setting.name]
                    measured = earlier._replace(ms=list(map(min, earlier.ms, measured.ms)))
                measured_by[setting.name] = measured
        for index in opened.values():
            index.engine.close()
    return measured_by


def compare_settings(
    measured: Mapping[str, Measured], qrels: Sequence[Qrel], measure: str, remove_query: bool = False
) -> list[dict[str, Any]]:
    """One row per setting, compared with the first; without judgements the measure is omitted."""
    exact, reference, rows = next(iter(measured.values())), dict[str, list[str]](), []
    for name, setting in measured.items():
        hits = list(chain.from_iterable(setting.lists))
        ranking = sort_strictly(hits, remove_query=remove_query, name=name)
        reference = reference or ranking
        row: dict[str, Any] = {"setting": name, "terms/query": setting.terms_per_query, "postings": setting.postings}
        row |= {f"overlap@{k}": measure_overlap(reference, ranking, k) for k in DEPTHS}
        if qrels:
            values = evaluate(hits, qrels, [measure], name=name, remove_query=remove_query)
            [row[measure]] = means(values).values()
        rows.append({**row, "ms/query": setting.ms_per_query, "speed-up": exact.ms_per_query / setting.ms_per_query})
    return rows


if __name__ == "__main__":
    run(command)
