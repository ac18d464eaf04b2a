"""What is measured: a run in the strict order that every evaluator sees, and its judgements.

`rank` uses a run's own ranks if they agree with its scores, else score descending, then doc_id ascending.
`trec_eval` does what trec_eval does: scores are read as float32, and equal scores are ordered by doc_id descending.

A table has one of the two rules (`measure_runs.py`): `rank` for runs whose manifest vouches for them, because their
lines have the order of the index; `trec_eval` for runs of other systems, whose published figures are trec_eval's.
Judgements are those that the caller names, else those of the dataset in the run's manifest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.data.lines import remove_packing, some
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError, describe_error
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import name_manifest, read_run_manifest
from lexvl_anserini.ground.records import CorpusRef, Measurement, Qrel, ScoredDoc
from lexvl_anserini.runs.columns import Hits, build_text_array, distinct, fingerprints, read_hits

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
    """A run on disk and the contents of its manifest; only the path for a run that another program wrote."""

    path: Path
    system: str  # the encoder's name and options, else the name of the file
    corpus: CorpusRef = UNNAMED
    remove_query: bool = False
    efficiency: Mapping[str, float] = field(default_factory=dict)
    hits: int | None = None  # the largest length of its lists
    ties: str = "trec_eval"  # the order of equal scores that its origin asks for; "rank" if its manifest vouches
    sha256: str = ""  # the digest of its file, if it was compared with the manifest


def format_system(encoder: Mapping[str, Any]) -> str:
    """An encoder's name with its options in brackets, without the direction; a fusion's method and runs."""
    name, settings = str(encoder.get("name", "?")), encoder.get("options") or {}
    if name == "fusion":
        runs = (run_name(str(run).partition("@")[0]) for run in settings.get("runs", ()))
        return f"{settings.get('method', name)} of {', '.join(runs)}"
    named = {option: value for option, value in settings.items() if value is not None and option != "direction"}
    options = ", ".join(f"{option}={value}" for option, value in named.items())
    return f"{name} ({options})" if options else name


def run_name(file: str) -> str:
    """A run's file name without `.trec` and the suffix of its compression."""
    return remove_packing(file).removesuffix(".trec")


def make_slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "x"


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


def label_runs(cards: Sequence[RunCard], labels: Sequence[str] | None) -> list[RunCard]:
    """The runs under the system names that the user gives, if any."""
    if not labels:
        return list(cards)
    if len(labels) != len(cards):
        raise UsageError(f"{len(labels)} labels for {len(cards)} runs; give one --label per --run, or none")
    return [replace(card, system=label) for card, label in zip(cards, labels, strict=True)]


def name_systems(cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]]) -> list[list[Measurement]]:
    """The measurements of each run under the name of its system."""
    return [[row._replace(run=card.system) for row in rows] for card, rows in zip(cards, measured, strict=True)]


def name_datasets(measured: Sequence[Sequence[Measurement]], labels: Sequence[str] | None) -> list[list[Measurement]]:
    """The measurements under other names of datasets, if any are given: one per dataset, in order of appearance."""
    if not labels:
        return [list(rows) for rows in measured]
    datasets = list(dict.fromkeys(rows[0].dataset for rows in measured))
    if len(labels) != len(datasets):
        raise UsageError(
            f"{len(labels)} --dataset-label for {len(datasets)} datasets ({', '.join(datasets)}); give one each or none"
        )
    names = dict(zip(datasets, labels, strict=True))
    return [[row._replace(dataset=names[row.dataset]) for row in rows] for rows in measured]


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


class Preference(NamedTuple):
    """What orders the documents of each topic: larger values [n] first, of equal ones the smallest (or largest) doc_id.

    Ids are compared by code points.
    """

    values: np.ndarray
    largest_id: bool = False


def rank_by_run(hits: Hits) -> Preference:
    """The ranks of a topic if they agree with its scores, else the scores."""
    contradict = np.isin(np.arange(len(hits.query_ids)), find_contradicting(hits))
    return Preference(np.where(contradict[hits.topics()], hits.scores, -hits.ranks.astype(np.float64)))


def find_contradicting(hits: Hits) -> list[int]:
    """The topics (places in `query_ids`) whose ranks are not distinct, or with a score that increases with the rank."""
    ranks, scores, topics = hits.ranks, hits.scores, hits.topics()
    falling = (ranks[1:] > ranks[:-1]) & (scores[1:] <= scores[:-1])
    suspects = np.unique(topics[1:][~falling & (topics[1:] == topics[:-1])])
    return [t for t in suspects.tolist() if not _check_order(ranks[(at := slice(*hits.starts[t : t + 2]))], scores[at])]


def _check_order(ranks: np.ndarray, scores: np.ndarray) -> bool:
    order = np.argsort(ranks)
    ranks, scores = ranks[order], scores[order]
    return bool((ranks[1:] > ranks[:-1]).all() and (scores[1:] <= scores[:-1]).all())


def rank_as_trec_eval(hits: Hits) -> Preference:
    """Scores as trec_eval stores them: float32, infinite above its largest number."""
    with np.errstate(over="ignore"):
        return Preference(hits.scores.astype(np.float32), largest_id=True)


TIES: dict[str, Callable[[Hits], Preference]] = {"rank": rank_by_run, "trec_eval": rank_as_trec_eval}

# What each rule does with documents of equal scores, for tables.
ABOUT = {"rank": "equal scores in the order of the run's ranks", "trec_eval": "equal scores by doc id, descending"}


def check_ties(ties: str) -> None:
    """Raises an error for an unknown rule."""
    if ties not in TIES:
        raise UnknownName("order of ties", ties, TIES)


def find_places(hits: Hits, preference: Preference, lines: np.ndarray) -> np.ndarray:
    """How many documents of its topic come before each of some lines: int [m], from 0 on."""
    if not len(lines):
        return np.zeros(0, np.int64)
    values, topics = preference.values, hits.topics()
    new_topic = np.concatenate([[True], topics[1:] != topics[:-1]])
    order = np.arange(len(values))
    if not ((values[1:] <= values[:-1]) | new_topic[1:]).all():
        order = np.lexsort((-values, topics))
    sorted_values = values[order]
    firsts = np.flatnonzero(new_topic | np.concatenate([[True], sorted_values[1:] != sorted_values[:-1]]))
    where = np.empty_like(order)
    where[order] = np.arange(len(order))
    groups = np.searchsorted(firsts, where[lines], side="right") - 1  # of lines with equal values in a topic
    positions = firsts[groups] - hits.starts[topics[lines]]
    sizes = np.diff(firsts, append=len(values))
    for group in np.unique(groups[sizes[groups] > 1]).tolist():
        equal = order[firsts[group] : firsts[group] + sizes[group]]
        ids = hits.read_ids(equal)
        by_id = sorted(range(len(ids)), key=ids.__getitem__, reverse=preference.largest_id)
        place = dict(zip(equal[by_id].tolist(), range(len(ids)), strict=True))
        members = np.flatnonzero(groups == group)
        positions[members] += [place[line] for line in lines[members].tolist()]
    return positions


@contextmanager
def expect_records(items: Any, kind: type[ScoredDoc | Qrel], name: str) -> Iterator[Callable[[Iterable[Any]], None]]:
    """Turns what objects of other forms raise, while their items are read, into one line; yields a check of ids."""

    def check_texts(ids: Iterable[Any]) -> None:
        if strange := [item_id for item_id in ids if not isinstance(item_id, str)]:
            raise TypeError(f"the id {strange[0]!r:.80} is no text")

    try:
        # A dictionary and a frame of pandas give their keys and the names of their columns.
        if not isinstance(items, Iterable) or isinstance(items, Mapping | str) or hasattr(items, "columns"):
            raise TypeError("no items of this form")
        yield check_texts
    except (TypeError, ValueError, AttributeError, OverflowError) as problem:
        expected = f"{kind.__name__}({', '.join(kind._fields)}), whose ids are texts"
        hint = "lexvl_eval.measures.exchange converts objects of ranx"
        what = f"{type(items).__name__} ({describe_error(problem)})"
        raise UsageError(f"{name}: {what}, expected an iterable of {expected}; {hint}") from problem


def check_hits(run: Iterable[ScoredDoc], name: str) -> Hits:
    """A run as columns."""
    with expect_records(run, ScoredDoc, name) as check_texts:
        hits = read_hits(run)
        check_texts(hits.query_ids)
    if not hits.query_ids:
        raise DataError(f"{name}: the run is empty")
    if problems := list(_find_problems(hits)):
        raise DataError(f"{name}: {some(problems)}")
    return hits


def _find_problems(hits: Hits) -> Iterator[str]:
    """The errors among hits: documents listed twice in a topic, scores that are not numbers."""
    if distinct(hits.prints) and not np.isnan(hits.scores).any():
        return
    seen: set[tuple[int, str]] = set()
    for topic, doc_id, score in zip(hits.topics().tolist(), hits.doc_ids.to_pylist(), hits.scores, strict=True):
        if (topic, doc_id) in seen:
            yield f"topic {hits.query_ids[topic]!r} lists document {doc_id!r} more than once"
        if np.isnan(score):
            yield f"topic {hits.query_ids[topic]!r}, document {doc_id!r}: the score is not a number"
        seen.add((topic, doc_id))


def sort_strictly(
    run: Iterable[ScoredDoc], ties: str = "rank", remove_query: bool = False, name: str = "run"
) -> dict[str, list[str]]:
    """A run as doc_ids per topic, best first."""
    check_ties(ties)
    hits = check_hits(run, name)
    if ties == "rank":
        report_ranks([hits.query_ids[t] for t in find_contradicting(hits)], len(hits.query_ids), name)
    places = find_places(hits, TIES[ties](hits), np.arange(len(hits.ranks)))
    best_first = hits.read_ids(np.lexsort((places, hits.topics())))
    return {
        query_id: [doc_id for doc_id in best_first[start:stop] if not (remove_query and doc_id == query_id)]
        for query_id, start, stop in zip(hits.query_ids, hits.starts, hits.starts[1:], strict=False)
    }


def report_ranks(topics: Sequence[str], of: int, name: str) -> None:
    """Logs the topics of a run in which `rank` cannot use the ranks."""
    if topics:
        where = f"{len(topics)} of {of} topics ({some(list(map(repr, topics)))})"
        log.warning("%s: ranks contradict scores in %s; ordered by score, then doc_id, there", name, where)


class Relevant(NamedTuple):
    """The relevant documents of judged topics, R of them; those of a topic are together, by descending relevance."""

    topics: dict[str, int]  # query ids of all T judged topics, each with its number
    starts: np.ndarray  # [T + 1]: topic t has the documents from starts[t] to starts[t + 1]
    relevance: np.ndarray
    numbers: list[dict[str, int]]  # per topic the number of each document, from 0 to R - 1

    def split_topics(self, documents: np.ndarray) -> np.ndarray:
        """The number of the topic of each document, given by its number."""
        return np.searchsorted(self.starts, documents, side="right") - 1


class Found(NamedTuple):
    """The M relevant documents of a run, and its topics; ranks contradict scores in those of `contradicting`."""

    query_ids: list[str]
    contradicting: list[str]
    hits: np.ndarray  # [T]: hits of each judged topic
    documents: np.ndarray  # [M]: numbers among the relevant ones
    places: Mapping[str, np.ndarray]  # per rule of ties, how many hits come before each: [M]


def collect_relevant(judged: Mapping[str, Mapping[str, int]]) -> Relevant:
    """The documents of relevance 1 and more, from relevance per document per topic."""
    best = [
        sorted(((relevance, doc_id) for doc_id, relevance in documents.items() if relevance > 0), key=lambda r: -r[0])
        for documents in judged.values()
    ]
    starts = np.cumsum([0, *map(len, best)])
    relevance = np.array([relevance for documents in best for relevance, _ in documents], np.float64)
    numbers = [
        {doc_id: number for number, (_, doc_id) in enumerate(documents, start)}
        for documents, start in zip(best, starts.tolist(), strict=False)
    ]
    return Relevant({topic: number for number, topic in enumerate(judged)}, starts, relevance, numbers)


def find(parts: Iterable[Hits], relevant: Relevant, remove_query: bool = False) -> Found:
    """Looks for relevant documents among the hits of a run."""
    query_ids, contradict, of_topic = list[str](), list[str](), np.zeros(len(relevant.topics), np.int64)
    documents, placed = [np.zeros(0, np.int64)], {rule: [np.zeros(0, np.int64)] for rule in TIES}
    for hits in parts:
        query_ids += hits.query_ids
        contradict += [hits.query_ids[topic] for topic in find_contradicting(hits)]
        topics, judged = hits.topics(), np.array([relevant.topics.get(topic, -1) for topic in hits.query_ids])
        own = hits.select_queries() if remove_query else np.zeros(0, np.int64)
        lengths = np.diff(hits.starts) - np.bincount(topics[own], minlength=len(judged))
        of_topic[judged[judged >= 0]] = lengths[judged >= 0]
        lines, numbers = _find_relevant_lines(hits, relevant, judged)
        others = ~np.isin(lines, own)
        lines = lines[others]
        documents.append(numbers[others])
        for rule, preference_of in TIES.items():
            preference = preference_of(hits)
            before, own_place = find_places(hits, preference, lines), np.full(len(judged), len(topics))
            own_place[topics[own]] = find_places(hits, preference, own)
            placed[rule].append(before - (own_place[topics[lines]] < before))
    return Found(
        query_ids, contradict, of_topic, np.concatenate(documents), {r: np.concatenate(p) for r, p in placed.items()}
    )


def _find_relevant_lines(hits: Hits, relevant: Relevant, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lines with relevant documents, and the numbers of these: both [m]."""
    nothing = np.zeros(0, np.int64)
    numbers = [relevant.numbers[number] if number >= 0 else {} for number in judged.tolist()]
    texts = build_text_array([doc_id for topic in numbers for doc_id in topic])
    prints = np.sort(fingerprints(texts, np.repeat(np.arange(len(numbers)), list(map(len, numbers)))))
    if not len(prints):
        return nothing, nothing
    nearest = prints[np.minimum(np.searchsorted(prints, hits.prints), len(prints) - 1)]
    lines = np.flatnonzero(nearest == hits.prints)
    # Another document may have the same print.
    pairs = zip(hits.topics()[lines].tolist(), hits.read_ids(lines), strict=True)
    documents = np.array([numbers[topic].get(doc_id, -1) for topic, doc_id in pairs], np.int64)
    return lines[documents >= 0], documents[documents >= 0]
