"""What cutting queries or documents costs and saves: overlap with the exact ranking, latency, a measure.

python -m eval.pruning --shards impacts/scifact --data-dir DATA --query-terms 16 --threshold 0.3 --document-terms 128

Every setting is searched on the whole index (queries cut) or on an index of pruned shards (documents cut), all in one
process, one thread, one query after the other. Rounds of all settings follow each other, and of each query its best
round counts: what interrupts the machine for a while is not told as the cost of a setting.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from eval.measures.metrics import evaluate, means, parse_measure
from eval.measures.order import strict_order
from eval.quantisation import overlap
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format
from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.queries.feedback import Feedback
from lexvl_anserini.queries.refine import Asked, Refinement, TwoPhase, refined_queries, search_refined
from lexvl_anserini.records import ImpactQuery, Qrel, ScoredDoc
from lexvl_anserini.shards.pruning import Pruning

if TYPE_CHECKING:
    from lexvl_anserini.queries.feedback import VectorOf

log = logging.getLogger("eval.pruning")

DEPTHS = (10, 100)
MEASURE = "nDCG@10"
FORMATS = (*TABLE_FORMATS, "json")


@dataclass(frozen=True)
class Setting:
    """One row: how queries are refined, and how the shards are pruned (None: not at all)."""

    name: str
    refinement: Refinement = Refinement()
    pruning: Pruning | None = None


@dataclass
class Measured:
    """What one setting gave: its lists, each query's milliseconds, and the size of its index."""

    lists: list[list[ScoredDoc]]
    ms: list[float]
    postings: int
    terms_per_query: float

    @property
    def ms_per_query(self) -> float:
        """The mean over queries."""
        return sum(self.ms) / len(self.ms)

    def best(self, other: Measured) -> Measured:
        """Of each query the quicker of two rounds."""
        return replace(self, ms=list(map(min, self.ms, other.ms)))


class Searched:
    """An open index that answers refined queries."""

    def __init__(self, shards: Path, folder: Path, vector_of: VectorOf | None = None):
        from lexvl_anserini.engines.opening import open_impact_index
        from lexvl_anserini.index import build_index

        built = build_index(shards, folder)
        self.postings = built.manifest.counts["postings"]
        self.engine = open_impact_index(folder, built.manifest)
        self.vector_of = vector_of

    def measure(self, queries: Sequence[ImpactQuery], refinement: Refinement, hits: int) -> Measured:
        """One round."""
        ms: list[float] = []
        lists: list[list[ScoredDoc]] = []
        terms = 0
        # One after the other: a batch would hide what a single query waits for.
        for query in queries:
            started = time.perf_counter()
            [cut] = refined_queries([query], refinement)
            lists += search_refined(
                self.engine, self.engine.search_tree, [Asked(cut)], refinement, hits, vector_of=self.vector_of
            )
            ms.append((time.perf_counter() - started) * 1000)
            terms += len(cut.vector)
        return Measured(lists, ms, self.postings, terms / len(queries))


def settings_of(
    query_terms: Iterable[int] = (),
    thresholds: Iterable[float] = (),
    first_terms: Iterable[int] = (),
    candidates: int = 1000,
    feedback: Iterable[int] = (),
    document_terms: Iterable[int] = (),
    least_impacts: Iterable[int] = (),
    term_documents: Iterable[int] = (),
) -> list[Setting]:
    """The rows of the table; the first is exact."""
    return [
        Setting("exact"),
        *(Setting(f"query terms {n}", Refinement(query_terms=n)) for n in query_terms),
        *(Setting(f"threshold {share:g}", Refinement(threshold=share)) for share in thresholds),
        *(Setting(f"two phases {n}, {candidates}", Refinement(two_phase=TwoPhase(n, candidates))) for n in first_terms),
        *(Setting(f"feedback {n}", Refinement(feedback=Feedback(n))) for n in feedback),
        *(Setting(f"document terms {n}", pruning=Pruning(document_terms=n)) for n in document_terms),
        *(Setting(f"least impact {n}", pruning=Pruning(least_impact=n)) for n in least_impacts),
        *(Setting(f"term documents {n}", pruning=Pruning(term_documents=n)) for n in term_documents),
    ]


def measure_settings(
    shards: Path, queries: Sequence[ImpactQuery], settings: Sequence[Setting], hits: int, rounds: int
) -> dict[str, Measured]:
    """Searches all queries with every setting, `rounds` times; lists are those of the first round.

    Raises:
        ArtefactError: the shards are unfinished or damaged.
    """
    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.prune import prune_shards
    from lexvl_anserini.queries.feedback import ShardVectors

    needs_vectors = any(setting.refinement.feedback for setting in settings)
    vectors = ShardVectors(shards, read_manifest(shards)) if needs_vectors else None
    found: dict[str, Measured] = {}
    with TemporaryDirectory() as folder:
        opened: dict[Pruning | None, Searched] = {}
        for number, pruning in enumerate(dict.fromkeys(setting.pruning for setting in settings)):
            source = shards
            if pruning is not None:
                source = Path(folder) / f"shards-{number}"
                prune_shards(shards, source, pruning)
            opened[pruning] = Searched(source, Path(folder) / f"index-{number}", vectors)
        for number in range(rounds + 1):
            for setting in settings:
                measured = opened[setting.pruning].measure(queries, setting.refinement, hits)
                # The first round warms up Java's compiler and the page cache.
                found[setting.name] = measured if number <= 1 else found[setting.name].best(measured)
        for searched in opened.values():
            searched.engine.close()
    return found


def rows_of(
    measured: Mapping[str, Measured], qrels: Sequence[Qrel], measure: str, remove_query: bool = False
) -> list[dict[str, Any]]:
    """One row per setting, against the first.

    Args:
        qrels: of the topics; without any the measure is left out.
        remove_query: a hit whose doc_id is the query_id does not count.
    """
    exact = next(iter(measured.values()))
    rankings = {
        name: strict_order(flat(one.lists), remove_query=remove_query, name=name) for name, one in measured.items()
    }
    reference = rankings[next(iter(measured))]
    rows = []
    for name, one in measured.items():
        row: dict[str, Any] = {"setting": name, "terms/query": one.terms_per_query, "postings": one.postings}
        row |= {f"overlap@{k}": overlap(reference, rankings[name], k) for k in DEPTHS}
        if qrels:
            values = evaluate(flat(one.lists), qrels, [measure], name=name, remove_query=remove_query)
            [row[measure]] = means(values).values()
        rows.append({**row, "ms/query": one.ms_per_query, "speed-up": exact.ms_per_query / one.ms_per_query})
    return rows


def flat(lists: Iterable[Sequence[ScoredDoc]]) -> Iterator[ScoredDoc]:
    """All lines of a run."""
    return (document for documents in lists for document in documents)


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows, numbers rounded for reading."""
    shown = {"terms/query": "{:.1f}", "postings": "{:,}", "ms/query": "{:.2f}", "speed-up": "{:.1f}x"}

    def cell(name: str, value: Any) -> str:
        return value if isinstance(value, str) else shown.get(name, "{:.4f}").format(value)

    columns = tuple(Column(name, number=name != "setting") for name in rows[0])
    return Table(columns, tuple(tuple(cell(name, value) for name, value in row.items()) for row in rows))


def command(
    shards: Annotated[Path, typer.Option(help="Folder that encode wrote, of impacts.")],
    topics: Annotated[
        str | None, typer.Option(help="dataset/split, a topics file, or encoded queries; default the corpus's own.")
    ] = None,
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
    hits: Annotated[int, typer.Option(min=1, help="Per topic.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Of each query the best one counts for time.")] = 3,
    measure: Annotated[str, typer.Option(help="Of the rankings, where there are judgements.")] = MEASURE,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint lies now.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """State what cut queries and pruned documents cost in overlap and a measure, and save in time.

    Example: python -m eval.pruning --shards impacts/demo --query-terms 8 --document-terms 64
    """
    check_format(output_format, FORMATS)
    parse_measure(measure)
    settings = settings_of(
        query_terms or (),
        threshold or (),
        first_terms or (),
        candidates,
        feedback or (),
        document_terms or (),
        least_impact or (),
        term_documents or (),
    )
    if len(settings) == 1:
        raise UsageError("nothing to compare; give --query-terms, --threshold, --document-terms, ... at least once")
    queries, qrels, remove_query = read_inputs(shards, topics, data_dir, checkpoint, device)
    measured = measure_settings(shards, queries[:limit], settings, hits, rounds)
    asked = {query.query_id for query in queries[:limit]}
    rows = rows_of(measured, [qrel for qrel in qrels if qrel.query_id in asked], measure, remove_query)
    if output_format == "json":
        sys.stdout.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(TABLE_FORMATS[output_format](table_of(rows)))


def read_inputs(
    shards: Path, topics: str | None, data_dir: str | None, checkpoint: str | None, device: str
) -> tuple[list[ImpactQuery], list[Qrel], bool]:
    """The encoded queries, their judgements if a data set knows them, and its rule on documents that are topics.

    Raises:
        UsageError: the shards hold no impacts.
        DataError: there is no topic.
    """
    from lexvl_anserini.data.dataset import noted_dataset
    from lexvl_anserini.encode import encode_queries
    from lexvl_anserini.encoders.loading import load_encoder_of
    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.queries.topics import topic_source, vocabulary_file
    from lexvl_anserini.records import Topic

    manifest = read_manifest(shards)
    if manifest.kind != "impact":
        raise UsageError(f"{shards} is {manifest.kind}; only impacts are pruned")
    source = topic_source(topics, shards, manifest, data_dir, vocabulary_file(shards, None))
    asked: list[Any] = list(source.stream())
    if not asked:
        raise DataError(f"{source.label}: no topic")
    if isinstance(asked[0], Topic):
        model = load_encoder_of(manifest.encoder, checkpoint, device=device, vocabulary=manifest.vocabulary_digest)
        asked = list(encode_queries(model, asked, manifest))
    if not source.dataset:
        return asked, [], False
    judged = {**manifest.corpus, "name": source.dataset, "split": source.split, "data_dir": source.data_dir}
    dataset = noted_dataset(judged)
    return asked, list(dataset.qrels()), source.remove_query


if __name__ == "__main__":
    run(command)
