"""Measures of a run against judgements, with trec_eval's semantics; ranx computes.

The rules, in one place:

* The mean is over every topic of the qrels (`trec_eval -c`): a topic that is not in the run counts 0, and so does a
  topic without any relevant document. Topics of the run without judgements are ignored and reported.
* Relevance <= 0 is not relevant. nDCG has linear gain; its ideal ranking has all judged documents, retrieved or not.
* The least relevance that counts (`trec_eval -l`) is 1, or the measure's own: `AP(rel=2)`; nDCG has none.
* A measure sees a strict order (`inputs.py`), never scores.

The measures are compiled functions of ranx, or functions of the same parameters, on arrays of document numbers. The
relevant documents of a topic are numbered here, because ranx's own `Run` and `Qrels` number documents by a 64-bit hash
stored in a float64, sort equal scores by the order of a dictionary, and are modified by `make_comparable`. ranx runs on
numba's `workqueue` threads: call `compute_values` from one thread at a time.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import check_relevance
from lexvl_anserini.data.lines import some
from lexvl_anserini.ground.errors import DataError, InstallationError, UnknownName, UsageError
from lexvl_anserini.ground.records import Measurement, Qrel, ScoredDoc

from .inputs import Found, Relevant, check_hits, check_ties, collect_relevant, expect_records, find, report_ranks

log = logging.getLogger(__name__)

# Topics per call of ranx: limits the padded arrays to about 16 MB at a depth of 1,000.
BLOCK = 1000

# A difference whose corrected p is below this is marked in tables, see `significance.py`.
LEVEL = 0.05


class Measure(NamedTuple):
    """A measure, its cut, and the least relevance that counts in it: `AP(rel=2)@100` is ("AP", 100, 2)."""

    name: str
    k: int | None = None
    level: int | None = None

    def __str__(self) -> str:
        level = "" if self.level is None else f"(rel={self.level})"
        return f"{self.name}{level}" if self.k is None else f"{self.name}{level}@{self.k}"


# (judgements [T, J, 2], rankings [T, depth, 2], cut or 0, relevance level) -> values [T]; see `convert_to_arrays`.
MeasureFunction = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


class Definition(NamedTuple):
    """How a measure is computed: by a function of `ranx.metrics`, by its name, or one with the same parameters.

    In a `binary` one a least relevance decides which documents are relevant; else every relevance counts.
    """

    function: str | MeasureFunction
    needs_cut: bool
    binary: bool
    described: str


MEASURES: dict[str, Definition] = {
    "nDCG": Definition("ndcg", False, False, "normalised discounted cumulative gain, linear gain"),
    "RR": Definition("reciprocal_rank", False, True, "1 / rank of the first relevant document"),
    "AP": Definition("average_precision", False, True, "mean precision at the relevant documents"),
    "Recall": Definition("recall", True, True, "share of the relevant documents found"),
    "HitRate": Definition("hit_rate", True, True, "1 if any relevant document is found; R@k of the caption papers"),
    "P": Definition("precision", True, True, "share of the first k that is relevant"),
}


def set_level(measure: Measure, relevance_level: int) -> Measure:
    """The measure with a least relevance that counts, if it has none of its own and not every relevance counts in it.

    Relevance 1 is what all measures begin with, and stays unsaid.
    """
    unsaid = relevance_level == 1 or measure.level is not None or not MEASURES[measure.name].binary
    return measure if unsaid else measure._replace(level=relevance_level)


# In lower case: the names of other tools for the same measures.
ALIASES: dict[str, str] = {
    **{name.lower(): name for name in MEASURES},
    "mrr": "RR",
    "recip_rank": "RR",
    "map": "AP",
    "map_cut": "AP",
    "ndcg_cut": "nDCG",
    "precision": "P",
    **dict.fromkeys(("success", "hit", "hit_rate"), "HitRate"),
}

# nDCG@10, ndcg_cut_10 and ndcg_cut.10 (trec_eval), ndcg_at_10 (MTEB), AP(rel=2)@100 (ir_measures).
SHAPE = re.compile(r"(?P<name>[A-Za-z_]+?)(?:\((?P<settings>[^()]*)\))?(?:(?:@|_at_|[_.])(?P<cut>[0-9]+))?")


def parse_measure(text: str) -> Measure:
    """Parses a measure's name, ours or that of trec_eval or ir_measures; case is ignored.

    >>> parse_measure("recip_rank"), parse_measure("AP(rel=2)@100")
    (Measure(name='RR', k=None, level=None), Measure(name='AP', k=100, level=2))
    """
    shape = SHAPE.fullmatch(text)
    name = (shape["name"] if shape else text.partition("@")[0]).lower()
    if name == "r":
        if shape is None or shape["settings"] is None:
            raise UsageError(
                f"measure {text!r} means two things: HitRate@k (R@k of the caption papers) or Recall@k (trec_eval's)"
            )
        name = "recall"  # only ir_measures writes R(rel=2)@100
    if shape is None or name not in ALIASES:
        raise UnknownName("measure", text, (f"{known}@k" for known in MEASURES))
    definition = MEASURES[ALIASES[name]]
    level = None if shape["settings"] is None else _parse_level(text, shape["settings"], definition)
    measure = Measure(ALIASES[name], int(shape["cut"]) if shape["cut"] else None, level)
    if measure.k == 0 or (measure.k is None and definition.needs_cut):
        raise UsageError(f"measure {text!r} needs a cut of at least 1, such as {measure.name}@10")
    return measure


def _parse_level(text: str, settings: str, definition: Definition) -> int:
    """The level of relevance in the brackets of a measure."""
    if not (match := re.fullmatch(r"\s*rel\s*=\s*([0-9]{1,9})\s*", settings)) or int(match[1]) < 1:
        raise UsageError(f"measure {text!r}: ({settings}), expected the least relevance that counts, such as (rel=2)")
    if not definition.binary:
        raise UsageError(f"measure {text!r}: every level of relevance counts in it; leave out ({settings})")
    return int(match[1])


def parse_measures(texts: Iterable[str | Measure], relevance_level: int = 1) -> tuple[Measure, ...]:
    """Parses several measures, in order, without duplicates; those without a level of their own get the least one."""
    if relevance_level < 1:
        raise UsageError(f"relevance level {relevance_level} is below 1; relevance 0 is never relevant")
    measures = tuple(dict.fromkeys(set_level(parse_measure(str(text)), relevance_level) for text in texts))
    if not measures:
        raise UsageError("no measure given; name one, such as nDCG@10")
    return measures


class MeasuringRules(NamedTuple):
    """How a run is measured, see `evaluate`."""

    ties: str = "rank"
    remove_query: bool = False


def judgements(qrels: Iterable[Qrel], name: str = "qrels") -> dict[str, dict[str, int]]:
    """Qrels as relevance per document per topic, in order of first appearance."""
    topics: dict[str, dict[str, int]] = {}
    with expect_records(qrels, Qrel, name) as check_texts:
        for query_id, doc_id, relevance in qrels:
            if type(relevance) is not int:
                relevance = check_relevance(relevance, f"{name}: topic {query_id!r}, document {doc_id!r}")
            judged = topics.setdefault(query_id, {})
            if judged.setdefault(doc_id, relevance) != relevance:
                twice = f"twice, as {judged[doc_id]} and as {relevance}"
                raise DataError(f"{name}: topic {query_id!r} judges document {doc_id!r} {twice}")
        check_texts(item_id for topic, documents in topics.items() for item_id in (topic, *documents))
    if not topics:
        raise DataError(f"{name}: there are no judgements; expected lines of query-id, doc-id, relevance")
    return topics


def check_levels(relevant: Relevant, measures: Sequence[Measure], name: str) -> None:
    """Refuses measures whose least relevance no document has: every run would score 0."""
    largest = int(relevant.relevance.max(initial=0))
    for measure in measures:
        if (level := measure.level or 1) > largest:
            largest_level = f"the largest is {largest}" if largest else "there is none above 0"
            raise DataError(
                f"{name}: no document has relevance {level} ({largest_level}), so every run scores 0 by {measure}; "
                "lower --relevance-level or (rel=N), or give other judgements"
            )


def check_shared_topics(run: Sequence[str], judged: Collection[str], name: str) -> None:
    """Reports topics that only the run or only the qrels have; refuses a run that shares none with the qrels."""
    unjudged = [query_id for query_id in run if query_id not in judged]
    answered = set(run)
    missing = [query_id for query_id in judged if query_id not in answered]
    if len(missing) == len(judged):
        raise DataError(
            f"{name}: run and qrels share no topic; e.g. run has {unjudged[0]!r}, qrels have {missing[0]!r}"
            if unjudged
            else f"{name}: the run has no topic"
        )
    if unjudged:
        log.info("%s: %d topics without judgements are ignored (%s)", name, len(unjudged), some([*map(repr, unjudged)]))
    if missing:
        text = "%s: %d of %d topics are not in the run and count 0 (%s)"
        log.warning(text, name, len(missing), len(judged), some([*map(repr, missing)]))


def evaluate(
    run: Iterable[ScoredDoc],
    qrels: Iterable[Qrel],
    measures: Iterable[str | Measure],
    *,
    name: str = "run",
    dataset: str = "",
    relevance_level: int = 1,
    ties: str = "rank",
    remove_query: bool = False,
) -> list[Measurement]:
    """Measures a run: per measure one value per topic of the qrels, then the mean under query_id "all".

    Args:
        run: scored documents in any order.
        qrels: judgements; each of their topics counts.
        measures: such as "nDCG@10", "RR@10", "Recall@100", "HitRate@1", "AP", "P@5", "AP(rel=2)@100".
        name: of the run, and `dataset` of the qrels, for the rows and for messages.
        relevance_level: the least relevance that counts, of measures without their own, which have it in their names
            then: AP becomes AP(rel=2), nDCG has none. One that no document has gives 0, as trec_eval does.
        ties: "rank" or "trec_eval", see `inputs.py`. The caller has ranked the documents, so its ranks decide by
            default; for a run on disk `measure_runs` chooses by its origin.
        remove_query: a document whose doc_id is the query_id does not count and has no rank (BEIR's rule).
    """
    parsed, hits = parse_measures(measures, relevance_level), check_hits(run, name)
    relevant = collect_relevant(judgements(qrels, dataset or "qrels"))
    places = find([hits], relevant, remove_query)
    return measure(places, relevant, parsed, MeasuringRules(ties, remove_query), name, dataset)


def measure(
    found: Found, relevant: Relevant, measures: Sequence[Measure], rules: MeasuringRules, name: str, dataset: str
) -> list[Measurement]:
    """Measures what a run has found, as `evaluate`."""
    if not found.query_ids:
        raise DataError(f"{name}: the run is empty")
    if rules.ties == "rank":
        report_ranks(found.contradicting, len(found.query_ids), name)
    check_shared_topics(found.query_ids, relevant.topics, name)
    values = compute_values(found, relevant, np.arange(len(relevant.topics)), measures, rules)
    return [
        Measurement(name, dataset, str(metric), query_id, value, rules.ties)
        for metric in measures
        for query_id, value in (
            *zip(relevant.topics, values[metric].tolist(), strict=True),
            ("all", mean(values[metric])),
        )
    ]


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, rounded once: independent of the order of the topics."""
    values = list(values)
    return math.fsum(values) / len(values)


def measure_overlap(reference: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]], k: int) -> float:
    """Mean over the reference's topics with documents of the share of its first k that the other's first k contain."""
    lists = ((ranking[:k], other.get(query_id, ())[:k]) for query_id, ranking in reference.items() if ranking)
    return mean(len({*first} & {*others}) / len(first) for first, others in lists)


def means(measurements: Iterable[Measurement]) -> dict[str, float]:
    """The mean of each measure ("all" rows), by measure, in order."""
    return {row.measure: row.value for row in measurements if row.query_id == "all"}


def select_topics(measurements: Iterable[Measurement], measure: str) -> dict[str, float]:
    """The values of one measure by query_id, without the mean."""
    return {row.query_id: row.value for row in measurements if row.measure == measure and row.query_id != "all"}


@contextmanager
def make_ranx_importable() -> Iterator[Path]:
    """Yields the folder of ranx, which can be imported inside: numba keeps its code where our kernels are."""
    if (package := find_spec("ranx")) is None or package.origin is None:
        raise InstallationError("ranx is not installed; pip install ranx")
    from numba import config

    from lexvl_anserini.engines.compiling import keep_by_content

    config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]  # as ranx sets it
    with keep_by_content():
        yield Path(package.origin).parent


def load_ranx_metrics() -> ModuleType:
    """The module `ranx.metrics` without the rest of ranx, whose imports take three seconds and 150 MB."""
    name = "ranx.metrics"
    if name in sys.modules:
        return sys.modules[name]
    with make_ranx_importable() as ranx, warnings.catch_warnings():
        folder = ranx / "metrics"
        spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec and spec.loader
        module = sys.modules[name] = module_from_spec(spec)
        # From Python 3.12 on, compiling the sources of ranx 0.3 warns of backslashes in its strings.
        warnings.simplefilter("ignore", SyntaxWarning)
        spec.loader.exec_module(module)
    return module


@contextmanager
def report_compilation() -> Iterator[None]:
    """Logs one line when numba begins to compile; what its cache on the disk holds is loaded without one."""
    from numba.core import event

    class FirstCompilation(event.Listener):
        begun = False

        def on_start(self, event: Any) -> None:
            if not self.begun:
                log.info("ranx compiles its measures, once per machine (up to half a minute)")
            self.begun = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", FirstCompilation()):
        yield


def compute_values(
    found: Found, relevant: Relevant, topics: np.ndarray, measures: Sequence[Measure], rules: MeasuringRules
) -> dict[Measure, np.ndarray]:
    """Values [t] of each measure on t judged topics, given by ascending numbers; a topic without hits counts 0."""
    check_ties(rules.ties)
    kernels = load_ranx_metrics()
    # A measure with a cut reads no further than the cut; one without reads the whole ranking.
    longest = max(1, int(found.hits[topics].max(initial=0)))
    depth = min(longest, max(measure.k or longest for measure in measures))
    values: dict[Measure, list[np.ndarray]] = {measure: [] for measure in measures}
    with report_compilation():
        for start in range(0, len(topics), BLOCK):
            judged, ranked = convert_to_arrays(found, rules.ties, relevant, topics[start : start + BLOCK], depth)
            for measure in measures:
                named = MEASURES[measure.name].function
                function = getattr(kernels, named) if isinstance(named, str) else named
                values[measure].append(function(judged, ranked, measure.k or 0, measure.level or 1))
    return {measure: np.concatenate(parts) for measure, parts in values.items()}


def convert_to_arrays(
    found: Found, ties: str, relevant: Relevant, topics: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The input of ranx: judgements [t, J, 2] and rankings [t, depth, 2], rows (document number, value).

    Documents are numbered within their topic: the relevant ones 0.. by descending relevance, all others -1. Padding is
    document -1 with relevance 0, which ranx drops; the value of a ranked document decreases by 1 per rank.
    """
    counts = np.diff(relevant.starts)[topics]  # [t] relevant documents
    rows = np.repeat(np.arange(len(topics)), counts)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    judged = np.zeros((len(topics), max(1, counts.max(initial=0)), 2))  # [t, J, 2]
    judged[:, :, 0] = -1
    judged[rows, numbers, 0] = numbers
    judged[rows, numbers, 1] = relevant.relevance[relevant.starts[topics][rows] + numbers]

    owners = relevant.split_topics(found.documents)
    row_of = np.full(len(relevant.topics), -1)
    row_of[topics] = np.arange(len(topics))
    places = found.places[ties]
    here = (row_of[owners] >= 0) & (places < depth)
    ranked = np.full((len(topics), depth, 2), -1.0)  # [t, depth, 2]
    ranked[:, :, 1] = np.arange(depth, 0, -1)
    ranked[row_of[owners[here]], places[here], 0] = found.documents[here] - relevant.starts[owners[here]]
    return judged, ranked


# R@k of papers on images with captions is 1 if *any* relevant item is among the first k, so it is HitRate@k; Recall@k,
# the fraction found, has its own heading. rsum adds R@1, R@5 and R@10, over both directions where a system has both.
SUMMED = {"HitRate@1": "R@1", "HitRate@5": "R@5", "HitRate@10": "R@10"}
HEADINGS: Mapping[str, str] = {**SUMMED, "RR@10": "MRR@10", "Recall@10": "recall@10"}
RSUM = "rsum"


def sum_recalls(values: Mapping[str, float]) -> float:
    """R@1 + R@5 + R@10 of one direction, in percent: at most 300."""
    return 100 * sum(values[measure] for measure in SUMMED)
