"""Settings chosen on one split and reported on another, of fusion, or of how queries are encoded and refined.

Every setting of a grid is measured on the development topics. The best (of equal ones the first) and the untuned one
are measured on the test topics, and no other: what is reported was not chosen by what it is reported on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from lexvl_eval import options
from lexvl_eval.measures import metrics
from lexvl_eval.measures.inputs import (
    JudgementSource,
    check_hits,
    choose_source,
    collect_relevant,
    describe_run,
    find,
    read_judgements,
    some,
)
from lexvl_eval.report.tables import FOUR_DECIMALS, MISSING, Column, Table, check_format, render

from lexvl_anserini.cli import DataDir, Verbose, expand_options, parse_settings, run
from lexvl_anserini.engines.engine import index_path
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.ground.records import CorpusRef, Qrel, ScoredDoc
from lexvl_anserini.queries.query_source import find_topic_source, find_vocabulary_file
from lexvl_anserini.queries.query_vectors import RM3, Feedback, encode_queries
from lexvl_anserini.runs.fusion import RRF_K, Fusion, fuse_rankings, read_rankings
from lexvl_anserini.runs.trec import DEFAULT_HITS
from lexvl_anserini.searching.search import EncoderChanges, Search, change_weights
from lexvl_anserini.searching.searcher import Searcher, close_after
from lexvl_plugins.bench.command import offer

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class TuningSetting:
    """A row of the grid: options of the command that applies it, and a `Fusion` or a `QuerySetting`."""

    options: Mapping[str, Any]
    value: Any

    @property
    def arguments(self) -> list[str]:
        """The options as arguments of the command that applies them."""
        pairs = [(name, v) for name, value in self.options.items() for v in list_values(value)]
        return [part for name, value in pairs for part in (f"--{name.replace('_', '-')}", str(value))]


def list_values(value: Any) -> tuple[Any, ...]:
    """The values of an option that may be repeated."""
    return value if isinstance(value, tuple) else (value,)


class QuerySetting(NamedTuple):
    """How a search encodes and refines its queries: options of the encoder's query side, and a refinement."""

    options: Mapping[str, str] = {}
    search: Search = Search()


def simplex(parts: int, steps: int) -> Iterator[tuple[float, ...]]:
    """All weights that sum to 1, in steps of 1 / `steps`.

    >>> list(simplex(2, 2))
    [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    """
    for counts in product(range(steps + 1), repeat=parts - 1):
        if (rest := steps - sum(counts)) >= 0:
            yield tuple(count / steps for count in (*counts, rest))


def weigh_fields(encoder: EncoderRef, steps: int) -> list[dict[str, str]]:
    """All weights of an index's fields, as shares of `steps`, times each field's own: `{"text.weight": "510"}`."""
    own = {key: encoder.options[key] for key in (f"{field.name}.weight" for field in encoder.fields)}
    if len(own) < 2:
        raise UsageError(f"--field-steps is for an index of two fields or more, this one has {len(own)}")
    pairs = (zip(own.items(), shares, strict=True) for shares in simplex(len(own), steps))
    return [{key: str(round(share * steps) * weight) for (key, weight), share in each} for each in pairs]


# Options that may be repeated.
Paths = list[Path] | None
Texts = list[str] | None
Integers = list[int] | None
Floats = list[float] | None


@dataclass(frozen=True)
class FusionGrid:
    """Runs to fuse, and the settings of fusion to try."""

    runs: Annotated[Paths, offer("To fuse: a run of the development topics; give two or more.", "--run")] = None
    test_runs: Annotated[Paths, offer("The same systems on the test topics, in the same order.", "--test-run")] = None
    method: Annotated[Texts, offer("rrf or interpolation; repeatable, default both.")] = None
    normalisation: Annotated[Texts, offer("min-max, z-score or none; repeatable, default the first two.")] = None
    steps: Annotated[int, offer("Steps of a weight from 0 to 1.", min=1, max=100)] = 10
    k: Annotated[Floats, offer("Constant of rrf; repeatable, default 10, 60, 100.", "--k")] = None

    def settings(self, halved: bool) -> list[TuningSetting]:
        """The untuned one of `fuse`, rrf by constant, interpolation by weights; test runs unless topics are halved."""
        runs, tests = len(self.runs or ()), len(self.test_runs or ())
        if halved and tests:
            raise UsageError("--split-seed halves the topics of --run; leave --test-run out")
        if tests != runs and not halved:
            raise UsageError(f"{runs} development runs and {tests} test runs; give --test-run once for each --run")
        if runs < 2:
            raise UsageError("nothing to fuse: give --run twice or more")
        settings = [TuningSetting({"method": Fusion().method, "k": Fusion().k}, Fusion())]
        for method in self.method or ("rrf", "interpolation"):
            if method != "interpolation":
                constants = self.k or (10, RRF_K, 100)
                settings += [TuningSetting({"method": method, "k": k}, Fusion(method, k=k)) for k in constants]
                continue
            for name, weights in product(self.normalisation or ("min-max", "z-score"), simplex(runs, self.steps)):
                applied = {"method": method, "normalisation": name, "weight": weights}
                settings.append(TuningSetting(applied, Fusion(method, weights, normalisation=name)))
        return list({tuple(setting.options.items()): setting for setting in settings}.values())


@dataclass(frozen=True)
class SearchGrid:
    """An index to search, and the settings of queries to try."""

    index: Annotated[Path | None, offer("To search: folder that index wrote.")] = None
    dev: Annotated[str | None, offer("Development topics: dataset/split, a topics file, or encoded queries.")] = None
    test: Annotated[str | None, offer("Test topics, named in the same ways.")] = None
    query_terms: Annotated[Integers, offer("Keep that many heaviest terms of a query; repeatable.", min=1)] = None
    feedback: Annotated[Integers, offer("Expand queries by that many documents; repeatable.", min=1)] = None
    feedback_terms: Annotated[Integers, offer("Terms that feedback adds; repeatable, default 20.", min=1)] = None
    feedback_alpha: Annotated[Floats, offer("Share of the query; repeatable, default 1.", min=0)] = None
    feedback_beta: Annotated[Floats, offer("Share of the documents; repeatable, default 0.5.", min=0)] = None
    feedback_shards: Annotated[Path | None, offer("The index's shards; default its term vectors.")] = None
    rm3: Annotated[Integers, offer("BM25: expand queries by that many documents; repeatable.", min=1)] = None
    rm3_terms: Annotated[Integers, offer("Terms of RM3; repeatable, default 10.", min=1)] = None
    rm3_weight: Annotated[Floats, offer("Share of the query in RM3; repeatable, default 0.5.", min=0, max=1)] = None
    options: Annotated[Texts, offer("An option of the encoder's query side, KEY=VALUE; repeatable.", "--set")] = None
    field_steps: Annotated[int | None, offer("Try the weights of fields, in so many steps.", min=1, max=100)] = None

    def settings(self, halved: bool) -> list[TuningSetting]:
        """First the queries as they are, then all combinations, also without feedback or RM3."""
        if halved and self.test:
            raise UsageError("--split-seed halves the topics of --dev; leave --test out")
        if not (self.dev and (self.test or halved)):
            raise UsageError("name the topics of the index by --dev and --test, or by --dev alone with --split-seed 1")
        if not (self.query_terms or self.feedback or self.options or self.field_steps or self.rm3):
            raise UsageError("nothing to tune; give --query-terms, --feedback, --rm3, --field-steps or --set")
        defaults = {f"feedback_{name}": getattr(Feedback, name) for name in ("terms", "alpha", "beta")}
        defaults |= {f"rm3_{name}": getattr(RM3, name) for name in ("terms", "weight")}
        refinements = []
        for names in (("query_terms",), ("feedback", *list(defaults)[:3]), ("rm3", *list(defaults)[3:])):
            values = [getattr(self, name) or ([defaults[name]] if name in defaults else ()) for name in names]
            refinements.append([{}, *(dict(zip(names, chosen, strict=True)) for chosen in product(*values))])
        settings = []
        for changed, *parts in product(self.list_changes(), *refinements):
            search = {name: value for part in parts for name, value in part.items()}
            applied = {"set": tuple(map("=".join, changed.items()))} if changed else {}
            settings.append(TuningSetting({**applied, **search}, QuerySetting(changed, Search(**search))))
        return settings

    def list_changes(self) -> list[dict[str, str]]:
        """The options of the encoder to try, beginning with none."""
        weights: Sequence[Mapping[str, str]] = ()
        if self.field_steps:
            assert self.index is not None
            weights = weigh_fields(index_manifest(index_path(self.index)).encoder, self.field_steps)
        values: dict[str, list[str | None]] = {}
        for option in self.options or ():
            [(key, value)] = parse_settings([option]).items()
            values.setdefault(key, [None]).append(value)
        return [
            {**weighted, **{key: value for key, value in zip(values, chosen, strict=True) if value is not None}}
            for weighted in ({}, *weights)
            for chosen in product(*values.values())
        ]


@dataclass(frozen=True)
class Split:
    """Topics with judgements, under a label; `rank` maps a setting's value to the ranked documents of all topics."""

    label: str
    qrels: Sequence[Qrel]
    rank: Callable[[Any], Iterable[ScoredDoc]]
    remove_query: bool = False

    def values(self, value: Any, measure: metrics.Measure) -> dict[str, float]:
        """The values of the judged topics; of one that is not ranked 0."""
        relevant = collect_relevant(metrics.judgements(self.qrels, self.label))
        metrics.check_levels(relevant, [measure], self.label)
        places = find([check_hits(self.rank(value), self.label)], relevant, self.remove_query)
        numbers, rules = np.arange(len(relevant.topics)), metrics.MeasuringRules()
        measured = metrics.compute_values(places, relevant, numbers, [measure], rules)
        return dict(zip(relevant.topics, map(float, measured[measure]), strict=True))

    def measure(self, value: Any, measure: metrics.Measure) -> float:
        """The mean over the judged topics."""
        return metrics.mean(self.values(value, measure).values())


def draw_parts(query_ids: Iterable[str], label: str, seed: int, folds: int | None = None) -> list[list[str]]:
    """Distinct topics in two halves, of which the first has the odd topic, or in so many folds.

    Their order is that of SHA-256 of `<seed>:<query_id>`: a half is what it begins or ends with, a fold every Nth.
    """
    distinct, parts = set(query_ids), folds or 2
    if len(distinct) < parts:
        raise DataError(f"{label}: {len(distinct)} topics have judgements; {parts} parts need as many or more")
    drawn = sorted(distinct, key=lambda query_id: sha256(f"{seed}:{query_id}".encode()).digest())
    if folds:
        return [drawn[number::folds] for number in range(folds)]
    middle = (len(drawn) + 1) // 2
    return [drawn[:middle], drawn[middle:]]


def halve(split: Split, seed: int) -> list[Split]:
    """The judged topics of a split in two halves, drawn by the seed; the first half has the odd topic."""
    halves = [set(half) for half in draw_parts((qrel.query_id for qrel in split.qrels), split.label, seed)]
    drawn = [[qrel for qrel in split.qrels if qrel.query_id in half] for half in halves]
    return [replace(split, label=f"{split.label} half {n} of seed {seed}", qrels=q) for n, q in enumerate(drawn, 1)]


@dataclass(frozen=True)
class Tuned:
    """The settings, the first untuned, with values on the development topics; `on_test` of the first and the best."""

    measure: str
    development: str
    test: str
    grid: Sequence[tuple[TuningSetting, float]] = ()
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


def tune(settings: Sequence[TuningSetting], development: Split, test: Split, measure: metrics.Measure) -> Tuned:
    """Measures all settings on the development topics, and the best and the first on the test topics."""
    if common := sorted({q.query_id for q in development.qrels} & {q.query_id for q in test.qrels}):
        both = f"{len(common)} topics are in {development.label} and in {test.label} ({some(common)})"
        raise DataError(f"{both}; name other ones with --test (of runs --test-run), or halve them (--split-seed 1)")
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

    def mean(self, name: str) -> float:
        """The mean of `untuned` or `chosen` over all topics."""
        return sum(f.topics * getattr(f, name) for f in self.folds) / sum(f.topics for f in self.folds)

    def to_json(self) -> dict[str, Any]:
        """The means, then the folds with the options that each chose."""
        means = {name: self.mean(name) for name in ("untuned", "chosen")}
        folds = [{**f._asdict(), "setting": dict(f.setting.options)} for f in self.folds]
        return {"measure": self.measure, "topics": self.topics, **means, "folds": folds}


def cross_validate(
    settings: Sequence[TuningSetting], whole: Split, folds: int, seed: int, measure: metrics.Measure
) -> CrossValidated:
    """Measures all settings on all topics; each fold is reported by the setting that is best on the other folds."""
    parts = draw_parts((qrel.query_id for qrel in whole.qrels), whole.label, seed, folds)
    drawn = [query_id for part in parts for query_id in part]
    by_topic = [whole.values(setting.value, measure) for setting in settings]
    values = np.array([[row[query_id] for query_id in drawn] for row in by_topic])  # [settings, topics]
    fold_of = np.repeat(np.arange(folds), list(map(len, parts)))
    results = []
    for fold in range(folds):
        chosen = int(values[:, fold_of != fold].mean(axis=1).argmax())
        own = values[:, fold_of == fold].mean(axis=1)
        results.append(FoldResult(int((fold_of == fold).sum()), settings[chosen], float(own[0]), float(own[chosen])))
    return CrossValidated(str(measure), f"{whole.label}, {folds} folds of seed {seed}", results)


@dataclass(frozen=True)
class SplitOptions:
    """The judgements of both splits, and their names in the output."""

    qrels: options.QrelsFile = None
    test_qrels: Annotated[Path | None, offer("Judgements of the test topics, as --qrels.")] = None
    split_seed: Annotated[int | None, offer("Tune on one half of the --dev topics, report on the other.", min=0)] = None
    folds: Annotated[int | None, offer("With --split-seed: each of so many parts in place of a half.", min=2)] = None
    data_dir: DataDir = None
    dataset_labels: Annotated[Texts, offer("Names of development and test topics.", "--dataset-label")] = None


def tabulate_grid(tuned: Tuned) -> Table:
    """One row per setting of the grid; on the test topics only the untuned and the chosen one have values."""
    names = list(dict.fromkeys(name for setting, _ in tuned.grid for name in setting.options))
    tests = {0: tuned.on_test[0], tuned.chosen: tuned.on_test[1]}

    rows = []
    for number, (setting, value) in enumerate(tuned.grid):
        roles = [role for role, place in (("untuned", 0), ("chosen", tuned.chosen)) if place == number]
        on_test = FOUR_DECIMALS(tests[number]) if number in tests else MISSING
        rows.append((", ".join(roles), *format_options(setting, names), FOUR_DECIMALS(value), on_test))
    measured = [Column(tuned.measure, topics) for topics in (tuned.development, tuned.test)]
    columns = (Column("setting", number=False), *map(Column, names), *measured)
    best = frozenset((tuned.chosen, len(columns) - place) for place in (1, 2))
    return Table(columns, tuple(rows), best, "rank")


def tabulate_folds(tuned: CrossValidated) -> Table:
    """One row per fold with the options that it chose, then the means over all topics."""
    names = list(dict.fromkeys(name for fold in tuned.folds for name in fold.setting.options))
    columns = [Column("fold", number=False), *map(Column, ("topics", *names))]
    columns += [Column(f"{tuned.measure} {which}", tuned.topics) for which in ("untuned", "chosen")]
    rows = []
    for number, fold in enumerate(tuned.folds, start=1):
        chosen = (str(number), str(fold.topics), *format_options(fold.setting, names))
        rows.append((*chosen, FOUR_DECIMALS(fold.untuned), FOUR_DECIMALS(fold.chosen)))
    whole = ("all", str(sum(fold.topics for fold in tuned.folds)), *(MISSING for _ in names))
    rows.append((*whole, *(FOUR_DECIMALS(tuned.mean(which)) for which in ("untuned", "chosen"))))
    return Table(tuple(columns), tuple(rows), ties="rank")


def format_options(setting: TuningSetting, names: Sequence[str]) -> list[str]:
    """The options of these names, several values with blanks between them; a dash for none."""
    values = [list_values(setting.options[name]) if name in setting.options else (MISSING,) for name in names]
    return [" ".join(item if isinstance(item, str) else f"{item:g}" for item in each) for each in values]


@expand_options
def command(
    *,
    fusion: FusionGrid,
    search: SearchGrid,
    splits: SplitOptions,
    measure: Annotated[
        str, offer("The chosen setting has the largest value of this measure.", autocompletion=options.measure_names)
    ] = MEASURE,
    hits: Annotated[int, offer("Documents per topic.", min=1)] = DEFAULT_HITS,
    output: Annotated[Path | None, offer("JSON file: the chosen setting, its arguments, the grid.")] = None,
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
    grid, parsed = (fusion if fusion.runs else search).settings(halved), metrics.parse_measure(measure)
    if splits.folds and not halved:
        raise UsageError("--folds draws the folds by a seed: give --split-seed 1 too")
    if halved and splits.test_qrels:
        raise UsageError("--split-seed halves the topics of --qrels; leave --test-qrels out")

    def load_split(runs: Sequence[Path] | None, topics: str | None, qrels: Path | None) -> Split:
        if fusion.runs:
            return load_runs(runs or (), qrels, splits.data_dir, hits)
        assert search.index and topics
        return load_search(search.index, topics, qrels, splits.data_dir, hits, search.feedback_shards)

    dev = load_split(fusion.runs, search.dev, splits.qrels)
    if splits.folds and splits.split_seed is not None:
        folded = cross_validate(grid, dev, splits.folds, splits.split_seed, parsed)
        folded = replace(folded, topics=split_names([folded.topics], splits.dataset_labels)[0])
        table, content = tabulate_folds(folded), folded.to_json()
    else:
        if splits.split_seed is not None:
            dev, test = halve(dev, splits.split_seed)
        else:
            test = load_split(fusion.test_runs, search.test, splits.test_qrels)
        names = split_names([dev.label, test.label], splits.dataset_labels)
        tuned = replace(tune(grid, dev, test, parsed), development=names[0], test=names[1])
        table, content = tabulate_grid(tuned), tuned.to_json()
    if output is not None:
        write_json(output, content)
    sys.stdout.write(render(table, content, output_format))


def split_names(judgements: Sequence[str], labels: Sequence[str] | None) -> list[str]:
    """Names for several splits: the user's, else their own; of files of judgements without folders, if still distinct.

    >>> split_names(["data/dev.qrels", "data/test.qrels"], None), split_names(["dev/a.tsv", "test/a.tsv"], None)
    (['dev.qrels', 'test.qrels'], ['dev/a.tsv', 'test/a.tsv'])
    """
    if labels and len(labels) != len(judgements):
        raise UsageError(f"{len(labels)} --dataset-label for {len(judgements)} splits; give one each or none")
    if labels:
        return list(labels)
    names = [Path(label).name for label in judgements]
    files = len(set(names)) == len(names) and all(Path(label).suffix for label in judgements)
    return names if files else list(judgements)


def load_runs(runs: Sequence[Path], qrels: Path | None, data_dir: str | None, hits: int) -> Split:
    """The topics of some runs, which are read once; a setting is a `Fusion`; judgements by default of the first run."""
    card = describe_run(runs[0])
    judged = read_judgements(choose_source(card, JudgementSource(qrels, CorpusRef("", data_dir=data_dir))))
    rankings = read_rankings(runs)

    def rank(fusion: Fusion) -> Iterator[ScoredDoc]:
        return chain.from_iterable(fuse_rankings(rankings, fusion, hits))

    return Split(judged.label, judged.qrels, rank, card.remove_query or bool(judged.remove_query))


def load_search(
    index: Path, topics: str, qrels: Path | None, data_dir: str | None, hits: int, feedback_shards: Path | None = None
) -> Split:
    """Topics that search an index, encoded once for all options of the encoder; a setting is a `QuerySetting`."""
    index = index_path(index)
    manifest = index_manifest(index)
    source = find_topic_source(topics, index, manifest, data_dir, find_vocabulary_file(index, None))
    if qrels is None and source.judged is None:
        raise UsageError(f"{topics}: topics of a file have no judgements; give --qrels and --test-qrels")
    judged = read_judgements(JudgementSource(qrels, source.judged or CorpusRef("")))
    topics_read: list[Any] = list(source.stream())

    load_encoder = cache(lambda options: EncoderChanges(options=dict(options)).load(manifest))

    @cache
    def encode(options: tuple[tuple[str, str], ...]) -> list[Any]:
        if source.encoded and options:
            raise UsageError(f"{topics}: encoded queries have no options; give topics for --set {options[0][0]}")
        if source.encoded:
            return topics_read
        weights = {key: value for key, value in options if manifest.fields and key.endswith(".weight")}
        model = load_encoder(tuple((key, value) for key, value in options if key not in weights))
        return list(encode_queries(change_weights(model, weights) if weights else model, topics_read, manifest))

    def rank(setting: QuerySetting) -> Iterator[ScoredDoc]:
        searcher = Searcher(index, encoder=EncoderChanges(options=setting.options))
        settings = replace(setting.search, remove_query=source.remove_query, feedback_shards=feedback_shards)
        lists = searcher.lists(encode(tuple(setting.options.items())), hits, settings)
        return chain.from_iterable(close_after(searcher, lists))

    return Split(judged.label, judged.qrels, rank, source.remove_query)


if __name__ == "__main__":
    run(command)
