"""Settings chosen on one split and reported on another: of fusion, and of how queries are refined.

Every setting of a grid is measured on the development topics. The best (of equal ones the first) and the untuned one
are measured on the test topics, and no other: what is reported was not chosen by what it is reported on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.queries.feedback import Feedback
from lexvl_anserini.runs.fusion import Fusion
from lexvl_anserini.searching.refine import Refinement

from ..measures.found import find, relevant_of
from ..measures.metrics import MeasuringRules, check_levels, judgements, mean, values_of
from ..measures.names import Measure
from ..measures.ties import checked_hits, some


@dataclass(frozen=True)
class TuningSetting:
    """A row of the grid.

    options    of the command that applies it, by name; empty for the untuned one
    value      a `Fusion` or a `Refinement` (None: the queries as they are)
    """

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


@dataclass(frozen=True)
class Split:
    """Topics with judgements, and what ranks them.

    label         of the judgements, for rows and messages
    qrels         judgements
    rank          a setting's value -> ranked documents of all topics
    remove_query  a hit whose doc_id is the query_id does not count
    """

    label: str
    qrels: Sequence[Qrel]
    rank: Callable[[Any], Iterable[ScoredDoc]]
    remove_query: bool = False

    def measure(self, value: Any, measure: Measure) -> float:
        """The mean over the judged topics; one that is not ranked counts 0."""
        relevant = relevant_of(judgements(self.qrels, self.label))
        check_levels(relevant, [measure], self.label)
        places = find([checked_hits(self.rank(value), self.label)], relevant, self.remove_query)
        return mean(values_of(places, relevant, np.arange(len(relevant.topics)), [measure], MeasuringRules())[measure])


@dataclass(frozen=True)
class Tuned:
    """The outcome.

    development, test  labels of the two splits
    grid               settings with their values on the development topics; the first is the untuned one
    chosen             position of the best in the grid
    on_test            values of the untuned and of the chosen one on the test topics
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
            "grid": [{**item.options, "value": found} for item, found in self.grid],
        }


def tune(settings: Sequence[TuningSetting], development: Split, test: Split, measure: Measure) -> Tuned:
    """Measures all settings on the development topics, and the best and the first on the test topics."""
    common = sorted({q.query_id for q in development.qrels} & {q.query_id for q in test.qrels})
    if common:
        raise DataError(
            f"{len(common)} topics are in {development.label} and in {test.label} ({some(common)}); what is "
            "reported must not be what settings are chosen by"
        )
    grid = [(setting, development.measure(setting.value, measure)) for setting in settings]
    chosen = max(range(len(grid)), key=lambda number: grid[number][1])
    values = [test.measure(settings[number].value, measure) for number in dict.fromkeys((0, chosen))]
    return Tuned(str(measure), development.label, test.label, tuple(grid), chosen, (values[0], values[-1]))


def fusion_settings(
    runs: int, methods: Sequence[str], normalisations: Sequence[str], steps: int, constants: Sequence[float]
) -> list[TuningSetting]:
    """The grid of fusion: the untuned one of the command `fuse`, then rrf by constant, interpolation by weights.

    Args:
        runs: their number.
        methods: rrf, interpolation.
        normalisations: of interpolation.
        steps: of each weight of interpolation, from 0 to 1; weights sum to 1.
        constants: k of rrf.
    """
    if runs < 2:
        raise UsageError("nothing to fuse: give --run twice or more")
    settings = [TuningSetting({"method": Fusion().method, "k": Fusion().k}, Fusion())]
    for method in methods:
        if method == "interpolation":
            settings += [
                TuningSetting(
                    {"method": method, "normalisation": name, "weight": weights},
                    Fusion(method, weights, normalisation=name),
                )
                for name in normalisations
                for weights in simplex(runs, steps)
            ]
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
) -> list[TuningSetting]:
    """The grid of a search: first the queries as they are, then all combinations.

    Args:
        query_terms: numbers of heaviest terms to keep; all terms are tried too.
        documents: of feedback; none is tried too.
        terms, alphas, betas: of feedback, see `Feedback`.
    """
    if not (query_terms or documents):
        raise UsageError("nothing to tune; give --query-terms or --feedback, repeatedly")
    feedbacks = [Feedback(*numbers) for numbers in product(documents, terms, alphas, betas)]
    settings = []
    for heaviest, feedback in product((None, *query_terms), (None, *feedbacks)):
        options: dict[str, Any] = {} if heaviest is None else {"query_terms": heaviest}
        if feedback is not None:
            options |= {"feedback": feedback.documents, "feedback_terms": feedback.terms}
            options |= {"feedback_alpha": feedback.alpha, "feedback_beta": feedback.beta}
        refinement = Refinement(query_terms=heaviest, feedback=feedback)
        settings.append(TuningSetting(options, refinement if options else None))
    return settings
