"""The relevant documents that a run has, and how many documents come before each: all that measures need of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lexvl_anserini.runs.columns import Hits, build_text_array, fingerprints, map_run

from .ties import TIES, contradicting, places


class Relevant(NamedTuple):
    """The relevant documents of judged topics, R of them; those of a topic are together, by descending relevance.

    topics     query ids of all T judged topics, each with its number
    starts     [T + 1]: topic t has the documents from starts[t] to starts[t + 1]
    relevance  float64 [R], at least 1
    numbers    per topic the number of each document, from 0 to R - 1
    """

    topics: dict[str, int]
    starts: np.ndarray
    relevance: np.ndarray
    numbers: list[dict[str, int]]

    def topics_of(self, documents: np.ndarray) -> np.ndarray:
        """The number of the topic of each document, given by its number."""
        return np.searchsorted(self.starts, documents, side="right") - 1


class Found(NamedTuple):
    """The relevant documents of a run, M of them.

    query_ids      all topics of the run
    contradicting  those whose ranks contradict their scores
    hits           [T]: hits of each judged topic
    documents      [M]: numbers among the relevant ones
    places         per rule of ties, how many hits come before each: [M]
    """

    query_ids: list[str]
    contradicting: list[str]
    hits: np.ndarray
    documents: np.ndarray
    places: Mapping[str, np.ndarray]


def relevant_of(judged: Mapping[str, Mapping[str, int]]) -> Relevant:
    """The documents of relevance 1 and more, from relevance per document per topic."""
    best = [
        sorted(((relevance, doc_id) for doc_id, relevance in documents.items() if relevance > 0), key=lambda r: -r[0])
        for documents in judged.values()
    ]
    starts = np.cumsum([0, *map(len, best)])
    return Relevant(
        topics={topic: number for number, topic in enumerate(judged)},
        starts=starts,
        relevance=np.array([relevance for documents in best for relevance, _ in documents], np.float64),
        numbers=[
            {doc_id: number for number, (_, doc_id) in enumerate(documents, start)}
            for documents, start in zip(best, starts.tolist(), strict=False)
        ],
    )


def find_in_run(path: Path, relevant: Relevant, remove_query: bool = False) -> Found:
    """Looks for relevant documents in a run on disk, as `find`."""
    return map_run(path, lambda hits: find(hits, relevant, remove_query))


def find(parts: Iterable[Hits], relevant: Relevant, remove_query: bool = False) -> Found:
    """Looks for relevant documents among the hits of a run.

    Args:
        parts: each has all hits of its topics.
        relevant: of the judged topics.
        remove_query: a hit whose doc_id is the query_id has no rank.
    """
    query_ids, contradict, of_topic = list[str](), list[str](), np.zeros(len(relevant.topics), np.int64)
    documents, placed = [np.zeros(0, np.int64)], {rule: [np.zeros(0, np.int64)] for rule in TIES}
    for hits in parts:
        query_ids += hits.query_ids
        contradict += [hits.query_ids[topic] for topic in contradicting(hits)]
        topics, judged = hits.topics(), np.array([relevant.topics.get(topic, -1) for topic in hits.query_ids])
        own = hits.of_queries() if remove_query else np.zeros(0, np.int64)
        lengths = np.diff(hits.starts) - np.bincount(topics[own], minlength=len(judged))
        of_topic[judged[judged >= 0]] = lengths[judged >= 0]
        lines, numbers = _relevant_lines(hits, relevant, judged)
        others = ~np.isin(lines, own)
        lines = lines[others]
        documents.append(numbers[others])
        for rule, preference_of in TIES.items():
            preference = preference_of(hits)
            before, own_place = places(hits, preference, lines), np.full(len(judged), len(topics))
            own_place[topics[own]] = places(hits, preference, own)
            placed[rule].append(before - (own_place[topics[lines]] < before))
    return Found(
        query_ids, contradict, of_topic, np.concatenate(documents), {r: np.concatenate(p) for r, p in placed.items()}
    )


def _relevant_lines(hits: Hits, relevant: Relevant, judged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lines with relevant documents, and the numbers of these: both [m].

    Args:
        judged: the number of each topic of the hits among the judged ones, or -1.
    """
    nothing = np.zeros(0, np.int64)
    numbers = [relevant.numbers[number] if number >= 0 else {} for number in judged.tolist()]
    texts = build_text_array([doc_id for topic in numbers for doc_id in topic])
    prints = np.sort(fingerprints(texts, np.repeat(np.arange(len(numbers)), list(map(len, numbers)))))
    if not len(prints):
        return nothing, nothing
    nearest = prints[np.minimum(np.searchsorted(prints, hits.prints), len(prints) - 1)]
    lines = np.flatnonzero(nearest == hits.prints)
    # Another document may have the same print.
    documents_of_pairs = [
        numbers[topic].get(doc_id, -1)
        for topic, doc_id in zip(hits.topics()[lines].tolist(), hits.ids_of(lines), strict=True)
    ]
    documents = np.array(documents_of_pairs, np.int64)
    return lines[documents >= 0], documents[documents >= 0]
