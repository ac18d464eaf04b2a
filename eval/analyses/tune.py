"""Settings chosen on one split and reported on another: `python -m eval.analyses.tune --run DEV --test-run TEST`.

The splits of tuning: topics that runs rank, or that a search of an index ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.queries.feedback import Feedback
from lexvl_anserini.runs.fusion import RRF_K
from lexvl_anserini.runs.trec import DEFAULT_HITS

from .. import options
from ..measures.inputs import JudgementSource, choose_source, describe_run, read_judgements
from ..measures.names import parse_measure
from ..report.labels import split_names
from ..report.render import check_format, render
from ..report.tables import tuning_table
from .tuning import Split, TuningSetting, fusion_settings, search_settings, tune

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class FusionGrid:
    """Runs to fuse, and the settings of fusion to try."""

    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="To fuse: a run of the development topics; give two or more.")
    ] = None
    test_runs: Annotated[
        list[Path] | None, typer.Option("--test-run", help="The same systems on the test topics, in the same order.")
    ] = None
    method: Annotated[list[str] | None, typer.Option(help="rrf or interpolation; repeatable, default both.")] = None
    normalisation: Annotated[
        list[str] | None, typer.Option(help="min-max, z-score or none; repeatable, default the first two.")
    ] = None
    steps: Annotated[int, typer.Option(min=1, max=100, help="Of a weight, from 0 to 1.")] = 10
    k: Annotated[list[float] | None, typer.Option("--k", help="Constant of rrf; repeatable, default 10, 60, 100.")] = (
        None
    )

    def settings(self) -> list[TuningSetting]:
        """The grid."""
        runs, tests = len(self.runs or ()), len(self.test_runs or ())
        if tests != runs:
            raise UsageError(f"{runs} development runs and {tests} test runs; give --test-run once for each --run")
        methods, normalisations = self.method or ["rrf", "interpolation"], self.normalisation or ["min-max", "z-score"]
        return fusion_settings(runs, methods, normalisations, self.steps, self.k or [10, RRF_K, 100])


@dataclass(frozen=True)
class SearchGrid:
    """An index to search, and the settings of queries to try."""

    index: Annotated[Path | None, typer.Option(help="To search: folder that index wrote, of impacts.")] = None
    dev: Annotated[
        str | None, typer.Option(help="Development topics: dataset/split, a topics file, or encoded queries.")
    ] = None
    test: Annotated[str | None, typer.Option(help="Test topics, named in the same ways.")] = None
    query_terms: Annotated[
        list[int] | None, typer.Option(min=1, help="Keep that many heaviest terms of a query; repeatable.")
    ] = None
    feedback: Annotated[
        list[int] | None, typer.Option(min=1, help="Expand queries by that many documents; repeatable.")
    ] = None
    feedback_terms: Annotated[
        list[int] | None, typer.Option(min=1, help="Terms that feedback adds; repeatable, default 20.")
    ] = None
    feedback_alpha: Annotated[
        list[float] | None, typer.Option(min=0, help="Share of the query; repeatable, default 1.")
    ] = None
    feedback_beta: Annotated[
        list[float] | None, typer.Option(min=0, help="Share of the documents; repeatable, default 0.5.")
    ] = None
    feedback_shards: Annotated[
        Path | None, typer.Option(help="The index's shards; default its term vectors, if it was built with them.")
    ] = None

    def settings(self) -> list[TuningSetting]:
        """The grid."""
        if not (self.dev and self.test):
            raise UsageError("name the topics of the index: --dev beir/nfcorpus/dev --test beir/nfcorpus/test")
        return search_settings(
            self.query_terms or (),
            self.feedback or (),
            self.feedback_terms or [Feedback.terms],
            self.feedback_alpha or [Feedback.alpha],
            self.feedback_beta or [Feedback.beta],
        )


@dataclass(frozen=True)
class SplitOptions:
    """The judgements of both splits, and their names in the output."""

    qrels: options.QrelsFile = None
    test_qrels: Annotated[Path | None, typer.Option(help="Judgements of the test topics, as --qrels.")] = None
    data_dir: DataDir = None
    dataset_labels: Annotated[
        list[str] | None,
        typer.Option("--dataset-label", help="In the output: the development topics' name, then the test topics'."),
    ] = None


@expanded
def command(
    *,
    fusion: FusionGrid,
    search: SearchGrid,
    splits: SplitOptions,
    measure: Annotated[
        str, typer.Option(help="Which the chosen setting has the most of.", autocompletion=options.measure_names)
    ] = MEASURE,
    hits: Annotated[int, typer.Option(min=1, help="Per topic.")] = DEFAULT_HITS,
    output: Annotated[Path | None, typer.Option(help="JSON file: the chosen setting, its arguments, the grid.")] = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Choose a setting of fusion, or of search, on development topics, and report it on test topics.

    Example: python -m eval.analyses.tune --index indexes/demo --dev demo/val --test demo/test --query-terms 16
    """
    check_format(output_format)
    if bool(fusion.runs) == bool(search.index):
        raise UsageError("give runs to fuse (--run, --test-run), or an index to search (--index, --dev, --test)")
    grid, parsed = fusion.settings() if fusion.runs else search.settings(), parse_measure(measure)
    if fusion.runs:
        of_runs = ((fusion.runs, splits.qrels), (fusion.test_runs or [], splits.test_qrels))
        dev, test = (split_of_runs(runs, file, splits.data_dir, hits) for runs, file in of_runs)
    else:
        assert search.index and search.dev and search.test
        named = ((search.dev, splits.qrels), (search.test, splits.test_qrels))
        shards = search.feedback_shards
        dev, test = (
            split_of_search(search.index, topics, file, splits.data_dir, hits, shards) for topics, file in named
        )
    names = split_names([dev.label, test.label], splits.dataset_labels)
    tuned = replace(tune(grid, dev, test, parsed), development=names[0], test=names[1])
    if output is not None:
        write_json(output, tuned.to_json())
    sys.stdout.write(render(tuning_table(tuned), tuned.to_json(), output_format))


def split_of_runs(runs: Sequence[Path], qrels: Path | None, data_dir: str | None, hits: int) -> Split:
    """The topics of some runs, which are read once; a setting is a `Fusion`.

    Without a file of judgements they are those of the dataset that the first run's manifest names.
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
    """Topics that are encoded once and search an index; a setting is a `Refinement`, or None."""
    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.engines.opening import index_path
    from lexvl_anserini.queries.query_source import topic_source, vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries
    from lexvl_anserini.searching.refine import Refinement
    from lexvl_anserini.searching.retrieval import search_index
    from lexvl_anserini.searching.searcher import EncoderChanges

    index = index_path(index)
    manifest = index_manifest(index)
    source = topic_source(topics, index, manifest, data_dir, vocabulary_file(index, None))
    if qrels is None and source.judged is None:
        raise UsageError(f"{topics}: topics of a file have no judgements; give --qrels and --test-qrels")
    judged = read_judgements(JudgementSource(qrels, source.judged or CorpusRef("")))
    queries: list[Any] = list(source.stream())
    if not source.encoded:
        queries = list(encode_queries(EncoderChanges().load(manifest), queries, manifest))

    def rank(refinement: Refinement | None) -> Iterator[ScoredDoc]:
        lists = search_index(
            index, queries, hits, source.remove_query, refinement=refinement, feedback_shards=feedback_shards
        )
        return chain.from_iterable(lists)

    return Split(judged.label, judged.qrels, rank, source.remove_query)


if __name__ == "__main__":
    run(command)
