"""The settings that `tune` tries: of fusion, and of how queries are encoded and refined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lexvl_anserini.cli import parse_settings
from lexvl_anserini.engines.engine import index_path
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.queries.query_vectors import RM3, Feedback
from lexvl_anserini.runs.fusion import RRF_K, Fusion
from lexvl_anserini.searching.search import Search
from lexvl_plugins.bench.command import offer


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
    return [
        {key: str(round(share * steps) * own[key]) for key, share in zip(own, shares, strict=True)}
        for shares in simplex(len(own), steps)
    ]


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
        defaults = {
            "feedback_terms": Feedback.terms,
            "feedback_alpha": Feedback.alpha,
            "feedback_beta": Feedback.beta,
            "rm3_terms": RM3.terms,
            "rm3_weight": RM3.weight,
        }
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
