"""Settings chosen on one split and reported on another.

python -m lexvl_plugins.bench.tune --run A.dev --run B.dev --test-run A.test --test-run B.test

Settings are of fusion, or of how queries are encoded and refined; topics are those that runs rank, or that a search of
an index ranks. Every setting of a grid is measured on the development topics. The best (of equal ones the first) and
the untuned one are measured on the test topics, and no other: what is reported was not chosen by what it is reported
on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from lexvl_eval import options
from lexvl_eval.measures.inputs import JudgementSource, choose_source, describe_run, read_judgements
from lexvl_eval.measures.metrics import MeasuringRules, check_levels, judgements, mean, values_of
from lexvl_eval.measures.names import Measure, parse_measure
from lexvl_eval.measures.ties import checked_hits, find, relevant_of, some
from lexvl_eval.report.render import Table, check_format, render
from lexvl_eval.report.tables import FOUR_DECIMALS, MISSING, Column, split_names

from lexvl_anserini.cli import DataDir, Verbose, expanded, parse_settings, run
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.opening import index_path
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import CorpusRef, EncoderRef
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.queries.feedback import RM3, Feedback
from lexvl_anserini.runs.fusion import RRF_K, Fusion, fuse_rankings, read_rankings
from lexvl_anserini.runs.trec import DEFAULT_HITS
from lexvl_anserini.searching.refine import Refinement, SearchSettings

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class TuningSetting:
    """A row of the grid: options of the command that applies it, and a `Fusion` or a `QuerySetting`."""

    options: Mapping[str, Any]
    value: Any

    @property
    def arguments(self) -> list[str]:
        """The options as arguments of the command that applies them."""
        return [
            part
            for name, value in self.options.items()
            for item in (value if isinstance(value, tuple) else (value,))
            for part in (f"--{name.replace('_', '-')}", str(item))
        ]


class QuerySetting(NamedTuple):
    """How a search encodes and refines its queries: options of the encoder's query side, and a refinement."""

    options: Mapping[str, str] = {}
    refinement: Refinement | None = None


@dataclass(frozen=True)
class Split:
    """Topics with judgements, under a label; `rank` maps a setting's value to the ranked documents of all topics."""

    label: str
    qrels: Sequence[Qrel]
    rank: Callable[[Any], Iterable[ScoredDoc]]
    remove_query: bool = False

    def values(self, value: Any, measure: Measure) -> dict[str, float]:
        """The values of the judged topics; of one that is not ranked 0."""
        relevant = relevant_of(judgements(self.qrels, self.label))
        check_levels(relevant, [measure], self.label)
        places = find([checked_hits(self.rank(value), self.label)], relevant, self.remove_query)
        measured = values_of(places, relevant, np.arange(len(relevant.topics)), [measure], MeasuringRules())[measure]
        return dict(zip(relevant.topics, map(float, measured), strict=True))

    def measure(self, value: Any, measure: Measure) -> float:
        """The mean over the judged topics."""
        return mean(self.values(value, measure).values())


def draw_parts(query_ids: Iterable[str], label: str, seed: int, folds: int | None = None) -> list[list[str]]:
    """Distinct topics in two halves, of which the first has the odd topic, or in so many folds.

    Their order is that of SHA-256 of `<seed>:<query_id>`: a half is what it begins or ends with, a fold every Nth.

    Raises:
        DataError: fewer topics than parts.
    """
    distinct, parts = set(query_ids), folds or 2
    if len(distinct) < parts:
        what = f"{folds} folds" if folds else "two halves"
        raise DataError(f"{label}: {len(distinct)} topics have judgements; {what} need {parts} or more")
    drawn = sorted(distinct, key=lambda query_id: sha256(f"{seed}:{query_id}".encode()).digest())
    if folds:
        return [drawn[number::folds] for number in range(folds)]
    middle = (len(drawn) + 1) // 2
    return [drawn[:middle], drawn[middle:]]


def halves(split: Split, seed: int) -> tuple[Split, Split]:
    """The judged topics of a split in two halves, drawn by the seed; the first half has the odd topic.

    Raises:
        DataError: fewer than two topics are judged.
    """
    parts = draw_parts((qrel.query_id for qrel in split.qrels), split.label, seed)
    first, second = (
        replace(
            split,
            label=f"{split.label} half {name} of seed {seed}",
            qrels=[q for q in split.qrels if q.query_id in half],
        )
        for name, half in enumerate(map(set, parts), start=1)
    )
    return first, second


@dataclass(frozen=True)
class Tuned:
    """The settings with their values on the development topics, and the position of the best.

    The first is the untuned one; `on_test` has the values of both on the test topics.
    """

    measure: str
    development: str
    test: str
    grid: Sequence[tuple[TuningSetting, float]] = field(default_factory=tuple)
    chosen: int = 0
    on_test: tuple[float, float] = (0.0, 0.0)

    def to_json(self) -> dict[str, Any]:
        """The chosen setting with its values and arguments, then the grid."""
        setting, value = self.grid[self.chosen]
        untuned = self.grid[0][1]
        return {
            "measure": self.measure,
            "chosen": dict(setting.options),
            "arguments": setting.arguments,
            "development": {"topics": self.development, "untuned": untuned, "chosen": value},
            "test": {"topics": self.test, "untuned": self.on_test[0], "chosen": self.on_test[1]},
            "grid": [{**item.options, "value": value} for item, value in self.grid],
        }


def tune(settings: Sequence[TuningSetting], development: Split, test: Split, measure: Measure) -> Tuned:
    """Measures all settings on the development topics, and the best and the first on the test topics."""
    common = sorted({q.query_id for q in development.qrels} & {q.query_id for q in test.qrels})
    if common:
        raise DataError(
            f"{len(common)} topics are in {development.label} and in {test.label} ({some(common)}); what is "
            "reported must not be what settings are chosen by: name other topics with --test (of runs --test-run), or "
            "leave it out for --split-seed 1, which tunes on one half of the topics and reports on the other"
        )
    grid = [(setting, development.measure(setting.value, measure)) for setting in settings]
    chosen = max(range(len(grid)), key=lambda number: grid[number][1])
    values = [test.measure(settings[number].value, measure) for number in dict.fromkeys((0, chosen))]
    return Tuned(str(measure), development.label, test.label, tuple(grid), chosen, (values[0], values[-1]))


class FoldResult(NamedTuple):
    """A fold: its topics, the setting that is best on those of the others, and the mean values on its own."""

    topics: int
    setting: TuningSetting
    untuned: float
    chosen: float


@dataclass(frozen=True)
class CrossValidated:
    """The folds of a split; `untuned` and `chosen` are means over all its topics."""

    measure: str
    topics: str
    folds: Sequence[FoldResult]

    def total(self, name: str) -> float:
        """The mean of `untuned` or `chosen` over all topics."""
        return sum(f.topics * getattr(f, name) for f in self.folds) / sum(f.topics for f in self.folds)

    def to_json(self) -> dict[str, Any]:
        """The means, then the folds with the options that each chose."""
        means = {name: self.total(name) for name in ("untuned", "chosen")}
        folds = [{**f._asdict(), "setting": dict(f.setting.options)} for f in self.folds]
        return {"measure": self.measure, "topics": self.topics, **means, "folds": folds}


def cross_validate(
    settings: Sequence[TuningSetting], whole: Split, folds: int, seed: int, measure: Measure
) -> CrossValidated:
    """Measures all settings on all topics; each fold is reported by the setting that is best on the other folds.

    Raises:
        DataError: fewer topics than folds are judged.
    """
    parts = draw_parts((qrel.query_id for qrel in whole.qrels), whole.label, seed, folds)
    drawn = [query_id for part in parts for query_id in part]
    by_topic = [whole.values(setting.value, measure) for setting in settings]
    values = np.array([[of[query_id] for query_id in drawn] for of in by_topic])  # [settings, topics]
    fold_of = np.repeat(np.arange(folds), list(map(len, parts)))
    results = []
    for fold in range(folds):
        chosen = int(values[:, fold_of != fold].mean(axis=1).argmax())
        own = values[:, fold_of == fold].mean(axis=1)
        results.append(FoldResult(int((fold_of == fold).sum()), settings[chosen], float(own[0]), float(own[chosen])))
    return CrossValidated(str(measure), f"{whole.label}, {folds} folds of seed {seed}", results)


def fusion_settings(
    runs: int, methods: Sequence[str], normalisations: Sequence[str], steps: int, constants: Sequence[float]
) -> list[TuningSetting]:
    """The grid of fusion: the untuned one of the command `fuse`, then rrf by constant, interpolation by weights."""
    if runs < 2:
        raise UsageError("nothing to fuse: give --run twice or more")
    settings = [TuningSetting({"method": Fusion().method, "k": Fusion().k}, Fusion())]
    for method in methods:
        if method == "interpolation":
            for name, weights in product(normalisations, simplex(runs, steps)):
                applied = {"method": method, "normalisation": name, "weight": weights}
                settings.append(TuningSetting(applied, Fusion(method, weights, normalisation=name)))
        else:
            settings += [TuningSetting({"method": method, "k": k}, Fusion(method, k=k)) for k in constants]
    return list({tuple(setting.options.items()): setting for setting in settings}.values())


def simplex(parts: int, steps: int) -> Iterator[tuple[float, ...]]:
    """All weights that sum to 1, in steps of 1 / `steps`.

    >>> list(simplex(2, 2))
    [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    """
    for counts in product(range(steps + 1), repeat=parts - 1):
        if (rest := steps - sum(counts)) >= 0:
            yield tuple(count / steps for count in (*counts, rest))


def search_settings(
    query_terms: Sequence[int],
    documents: Sequence[int],
    terms: Sequence[int],
    alphas: Sequence[float],
    betas: Sequence[float],
    options: Sequence[str] = (),
    weights: Sequence[Mapping[str, str]] = (),
    rm3s: Sequence[RM3] = (),
) -> list[TuningSetting]:
    """The grid of a search: first the queries as they are, then all combinations, also without feedback or RM3.

    Options of the encoder are `KEY=VALUE`; a key may have several values, and its own is tried as well. `weights` are
    options too, of which all of one entry apply together.
    """
    if not (query_terms or documents or options or weights or rm3s):
        raise UsageError("nothing to tune; give --query-terms, --feedback, --rm3, --field-steps or --set, repeatedly")
    feedbacks = [Feedback(*numbers) for numbers in product(documents, terms, alphas, betas)]
    values: dict[str, list[str | None]] = {}
    for option in options:
        [(key, value)] = parse_settings([option]).items()
        values.setdefault(key, [None]).append(value)
    changes = [
        {**weighted, **{key: value for key, value in zip(values, chosen, strict=True) if value is not None}}
        for weighted in ({}, *weights)
        for chosen in product(*values.values())
    ]
    settings = []
    for changed, heaviest, feedback, rm3 in product(changes, (None, *query_terms), (None, *feedbacks), (None, *rm3s)):
        applied: dict[str, Any] = {"set": tuple(f"{key}={value}" for key, value in changed.items())} if changed else {}
        applied |= {} if heaviest is None else {"query_terms": heaviest}
        if feedback is not None:
            applied |= {"feedback": feedback.documents, "feedback_terms": feedback.terms}
            applied |= {"feedback_alpha": feedback.alpha, "feedback_beta": feedback.beta}
        if rm3 is not None:
            applied |= {"rm3": rm3.documents, "rm3_terms": rm3.terms, "rm3_weight": rm3.weight}
        refinement = Refinement(query_terms=heaviest, feedback=feedback, rm3=rm3)
        settings.append(
            TuningSetting(applied, QuerySetting(changed, None if refinement == Refinement() else refinement))
        )
    return settings


def field_weights(encoder: EncoderRef, steps: int) -> list[dict[str, str]]:
    """All weights of an index's fields, as shares of `steps`, times each field's own: `{"text.weight": "510"}`.

    Raises:
        UsageError: an index of fewer than two fields.
    """
    own = {key: encoder.options[key] for key in (f"{field.name}.weight" for field in encoder.fields)}
    if len(own) < 2:
        raise UsageError(f"--field-steps is for an index of two fields or more, this one has {len(own)}")
    return [
        {key: str(round(share * steps) * own[key]) for key, share in zip(own, shares, strict=True)}
        for shares in simplex(len(own), steps)
    ]


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
    steps: Annotated[int, typer.Option(min=1, max=100, help="Steps of a weight from 0 to 1.")] = 10
    k: Annotated[list[float] | None, typer.Option("--k", help="Constant of rrf; repeatable, default 10, 60, 100.")] = (
        None
    )

    def settings(self, halved: bool) -> list[TuningSetting]:
        """The grid; there are test runs unless the topics are halved."""
        runs, tests = len(self.runs or ()), len(self.test_runs or ())
        if halved and tests:
            raise UsageError("--split-seed halves the topics of --run; leave --test-run out")
        if tests != runs and not halved:
            raise UsageError(f"{runs} development runs and {tests} test runs; give --test-run once for each --run")
        methods, normalisations = self.method or ["rrf", "interpolation"], self.normalisation or ["min-max", "z-score"]
        return fusion_settings(runs, methods, normalisations, self.steps, self.k or [10, RRF_K, 100])


@dataclass(frozen=True)
class SearchGrid:
    """An index to search, and the settings of queries to try."""

    index: Annotated[Path | None, typer.Option(help="To search: folder that index wrote.")] = None
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
    rm3: Annotated[
        list[int] | None, typer.Option(min=1, help="BM25: expand queries by that many documents; repeatable.")
    ] = None
    rm3_terms: Annotated[list[int] | None, typer.Option(min=1, help="Terms of RM3; repeatable, default 10.")] = None
    rm3_weight: Annotated[
        list[float] | None, typer.Option(min=0, max=1, help="Share of the query in RM3; repeatable, default 0.5.")
    ] = None
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option of the encoder's query side, KEY=VALUE (BM25: k1=1.2, b=0.75); repeatable."
        ),
    ] = None

    field_steps: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="Try the weights of an index of fields, in so many steps."),
    ] = None

    def settings(self, halved: bool) -> list[TuningSetting]:
        """The grid; there are test topics unless the development topics are halved."""
        if halved and self.test:
            raise UsageError("--split-seed halves the topics of --dev; leave --test out")
        if not (self.dev and (self.test or halved)):
            raise UsageError(
                "name the topics of the index: --dev beir/nfcorpus/dev --test beir/nfcorpus/test; or --dev alone, and "
                "--split-seed 1 to tune on one half of them"
            )
        weights: Sequence[Mapping[str, str]] = ()
        if self.field_steps:
            assert self.index is not None
            weights = field_weights(index_manifest(index_path(self.index)).encoder, self.field_steps)
        rm3_weights = self.rm3_weight or [RM3.weight]
        return search_settings(
            self.query_terms or (),
            self.feedback or (),
            self.feedback_terms or [Feedback.terms],
            self.feedback_alpha or [Feedback.alpha],
            self.feedback_beta or [Feedback.beta],
            self.options or (),
            weights,
            [RM3(*numbers) for numbers in product(self.rm3 or (), self.rm3_terms or [RM3.terms], rm3_weights)],
        )


@dataclass(frozen=True)
class SplitOptions:
    """The judgements of both splits, and their names in the output."""

    qrels: options.QrelsFile = None
    test_qrels: Annotated[Path | None, typer.Option(help="Judgements of the test topics, as --qrels.")] = None
    split_seed: Annotated[
        int | None,
        typer.Option(min=0, help="No test topics: tune on one half of the development topics, report on the other."),
    ] = None
    folds: Annotated[
        int | None,
        typer.Option(
            min=2, help="With --split-seed: tune on all folds but one in place of a half, report on this one, for each."
        ),
    ] = None
    data_dir: DataDir = None
    dataset_labels: Annotated[
        list[str] | None,
        typer.Option("--dataset-label", help="In the output: the development topics' name, then the test topics'."),
    ] = None


def tuning_table(tuned: Tuned) -> Table:
    """One row per setting of the grid; on the test topics only the untuned and the chosen one have values."""
    names = list(dict.fromkeys(name for setting, _ in tuned.grid for name in setting.options))
    tests = {0: tuned.on_test[0], tuned.chosen: tuned.on_test[1]}

    def cells(number: int, setting: TuningSetting, value: float) -> tuple[str, ...]:
        roles = [role for role, place in (("untuned", 0), ("chosen", tuned.chosen)) if place == number]
        options = (format_option(setting.options.get(name)) for name in names)
        on_test = FOUR_DECIMALS(tests[number]) if number in tests else MISSING
        return (", ".join(roles), *options, FOUR_DECIMALS(value), on_test)

    columns = [Column("setting", number=False), *map(Column, names)]
    columns += [Column(tuned.measure, tuned.development), Column(tuned.measure, tuned.test)]
    best = {(tuned.chosen, len(columns) - 2), (tuned.chosen, len(columns) - 1)}
    rows = tuple(cells(number, *tried) for number, tried in enumerate(tuned.grid))
    return Table(tuple(columns), rows, frozenset(best), "rank")


def folds_table(tuned: CrossValidated) -> Table:
    """One row per fold with the options that it chose, then the means over all topics."""
    names = list(dict.fromkeys(name for fold in tuned.folds for name in fold.setting.options))
    columns = [Column("fold", number=False), *map(Column, ("topics", *names))]
    columns += [Column(f"{tuned.measure} {which}", tuned.topics) for which in ("untuned", "chosen")]
    rows = [
        (
            str(number),
            str(fold.topics),
            *(format_option(fold.setting.options.get(name)) for name in names),
            FOUR_DECIMALS(fold.untuned),
            FOUR_DECIMALS(fold.chosen),
        )
        for number, fold in enumerate(tuned.folds, start=1)
    ]
    whole = ("all", str(sum(fold.topics for fold in tuned.folds)), *(MISSING for _ in names))
    rows.append((*whole, *(FOUR_DECIMALS(tuned.total(which)) for which in ("untuned", "chosen"))))
    return Table(tuple(columns), tuple(rows), ties="rank")


def format_option(value: Any) -> str:
    """The value of an option, several values with blanks between them; a dash for none."""
    if value is None:
        return MISSING
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(item if isinstance(item, str) else f"{item:g}" for item in values)


@expanded
def command(
    *,
    fusion: FusionGrid,
    search: SearchGrid,
    splits: SplitOptions,
    measure: Annotated[
        str,
        typer.Option(
            help="The measure that the chosen setting has the largest value of.", autocompletion=options.measure_names
        ),
    ] = MEASURE,
    hits: Annotated[int, typer.Option(min=1, help="Documents per topic.")] = DEFAULT_HITS,
    output: Annotated[Path | None, typer.Option(help="JSON file: the chosen setting, its arguments, the grid.")] = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Choose a setting of fusion, or of search, on development topics, and report it on test topics.

    Example: python -m lexvl_plugins.bench.tune --index indexes/demo --dev demo/val --test demo/test --query-terms 16
    """
    check_format(output_format)
    if bool(fusion.runs) == bool(search.index):
        raise UsageError("give runs to fuse (--run, --test-run), or an index to search (--index, --dev, --test)")
    halved = splits.split_seed is not None
    grid, parsed = (fusion if fusion.runs else search).settings(halved), parse_measure(measure)
    if splits.folds and not halved:
        raise UsageError("--folds draws the folds by a seed: give --split-seed 1 too")
    if halved and splits.test_qrels:
        raise UsageError("--split-seed halves the topics of --qrels; leave --test-qrels out")

    def of_runs(runs: Sequence[Path] | None, file: Path | None) -> Split:
        return split_of_runs(runs or (), file, splits.data_dir, hits)

    def of_search(topics: str | None, file: Path | None) -> Split:
        assert search.index and topics
        return split_of_search(search.index, topics, file, splits.data_dir, hits, search.feedback_shards)

    dev = of_runs(fusion.runs, splits.qrels) if fusion.runs else of_search(search.dev, splits.qrels)
    if splits.folds and splits.split_seed is not None:
        folded = cross_validate(grid, dev, splits.folds, splits.split_seed, parsed)
        folded = replace(folded, topics=split_names([folded.topics], splits.dataset_labels)[0])
        report(folds_table(folded), folded.to_json(), output, output_format)
        return
    if splits.split_seed is not None:
        dev, test = halves(dev, splits.split_seed)
    elif fusion.runs:
        test = of_runs(fusion.test_runs, splits.test_qrels)
    else:
        test = of_search(search.test, splits.test_qrels)
    names = split_names([dev.label, test.label], splits.dataset_labels)
    tuned = replace(tune(grid, dev, test, parsed), development=names[0], test=names[1])
    report(tuning_table(tuned), tuned.to_json(), output, output_format)


def report(table: Table, content: dict[str, Any], output: Path | None, output_format: str) -> None:
    """Prints a table, and writes what it shows as JSON to a file."""
    if output is not None:
        write_json(output, content)
    sys.stdout.write(render(table, content, output_format))


def split_of_runs(runs: Sequence[Path], qrels: Path | None, data_dir: str | None, hits: int) -> Split:
    """The topics of some runs, which are read once; a setting is a `Fusion`.

    Without a file of judgements they are those of the dataset that the first run's manifest names.
    """
    card = describe_run(runs[0])
    judged = read_judgements(choose_source(card, JudgementSource(qrels, CorpusRef("", data_dir=data_dir))))
    rankings = read_rankings(runs)

    def rank(fusion: Fusion) -> Iterator[ScoredDoc]:
        return chain.from_iterable(fuse_rankings(rankings, fusion, hits))

    return Split(judged.label, judged.qrels, rank, card.remove_query or bool(judged.remove_query))


def split_of_search(
    index: Path, topics: str, qrels: Path | None, data_dir: str | None, hits: int, feedback_shards: Path | None = None
) -> Split:
    """Topics that search an index, encoded once for all options of the encoder; a setting is a `QuerySetting`."""
    from lexvl_anserini.queries.query_source import topic_source, vocabulary_file
    from lexvl_anserini.queries.query_vectors import encode_queries
    from lexvl_anserini.searching.fields import reweighted
    from lexvl_anserini.searching.retrieval import to_the_end
    from lexvl_anserini.searching.searcher import EncoderChanges, Searcher

    index = index_path(index)
    manifest = index_manifest(index)
    source = topic_source(topics, index, manifest, data_dir, vocabulary_file(index, None))
    if qrels is None and source.judged is None:
        raise UsageError(f"{topics}: topics of a file have no judgements; give --qrels and --test-qrels")
    judged = read_judgements(JudgementSource(qrels, source.judged or CorpusRef("")))
    topics_read: list[Any] = list(source.stream())

    @cache
    def loaded(options: tuple[tuple[str, str], ...]) -> Encoder:
        return EncoderChanges(options=dict(options)).load(manifest)

    @cache
    def queries(options: tuple[tuple[str, str], ...]) -> list[Any]:
        if source.encoded and options:
            raise UsageError(f"{topics}: encoded queries have no options; give topics for --set {options[0][0]}")
        if source.encoded:
            return topics_read
        weights = {key: value for key, value in options if manifest.fields and key.endswith(".weight")}
        model = loaded(tuple((key, value) for key, value in options if key not in weights))
        return list(encode_queries(reweighted(model, weights) if weights else model, topics_read, manifest))

    def rank(setting: QuerySetting) -> Iterator[ScoredDoc]:
        searcher = Searcher(index, encoder=EncoderChanges(options=setting.options))
        settings = SearchSettings(source.remove_query, refinement=setting.refinement, feedback_shards=feedback_shards)
        lists = searcher.lists(queries(tuple(setting.options.items())), hits, settings)
        return chain.from_iterable(to_the_end(searcher, lists))

    return Split(judged.label, judged.qrels, rank, source.remove_query)


if __name__ == "__main__":
    run(command)
