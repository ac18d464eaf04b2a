"""What a query tree means, computed document by document: the oracle of the tests."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.queries import clauses
from lexvl_anserini.queries.clauses import All, AnyOf, Clause, Equals, Ids, Impacts, Range, Term


class Doc(NamedTuple):
    doc_id: str
    vector: Mapping[str, int]
    text: str = ""
    metadata: Mapping[str, Any] = {}


class Oracle:
    """All documents, and the statistics BM25 wants; words are parted by blanks."""

    def __init__(self, documents: Sequence[Doc]):
        self.documents = documents
        self.lengths = [len(d.text.split()) for d in documents]
        self.with_text = sum(length > 0 for length in self.lengths)

    def ranked(self, clause: Clause, hits: int) -> list[tuple[str, float]]:
        found = [(d.doc_id, self.score(clause, d)) for d in self.documents]
        matching = [(doc_id, score) for doc_id, score in found if score is not None]
        return sorted(matching, key=lambda hit: (-hit[1], hit[0]))[:hits]

    def score(self, clause: Clause, document: Doc) -> float | None:
        """The score, or None where the clause does not match."""
        if isinstance(clause, Impacts | Term):
            vector = clause.vector if isinstance(clause, Impacts) else {clause.term: clause.weight}
            shared = [w * document.vector[t] for t, w in vector.items() if t in document.vector]
            return sum(shared) if shared else None
        if isinstance(clause, clauses.Text):
            return self.bm25(clause, document)
        if isinstance(clause, Equals | Range | Ids):
            return 0 if holds(clause, document) else None
        scores = [self.score(child, document) for child in clause.children()]
        if isinstance(clause, All):
            required = scores[: len(clause.clauses)]
            return None if None in required else sum(s for s in scores if s is not None)
        if isinstance(clause, AnyOf):
            return None if all(s is None for s in scores) else sum(s for s in scores if s is not None)
        [below] = scores
        if isinstance(clause, clauses.Not):
            return 0 if below is None else None
        assert isinstance(clause, clauses.Boost | clauses.Unscored)
        factor = clause.weight if isinstance(clause, clauses.Boost) else 0
        return None if below is None else factor * below

    def bm25(self, clause: clauses.Text, document: Doc, k1: float = 0.9, b: float = 0.4) -> float | None:
        words = document.text.split()
        average = sum(self.lengths) / max(1, self.with_text)
        total = None
        for word in clause.string.split():
            if word in words:
                holding = sum(word in d.text.split() for d in self.documents)
                idf = np.log(1 + (self.with_text - holding + 0.5) / (holding + 0.5))
                frequency = words.count(word)
                norm = k1 * (1 - b + b * len(words) / average)
                total = (total or 0) + clause.weight * idf * frequency / (frequency + norm)
        return total


def holds(clause: Equals | Range | Ids, document: Doc) -> bool:
    if isinstance(clause, Ids):
        return document.doc_id in clause.doc_ids
    value = document.metadata.get(clause.field.removeprefix("meta."))
    if value is None:
        return False
    if isinstance(clause, Equals):
        return bool(value == read(clause.value, value))
    low, high = (None if end is None else read(end, value) for end in (clause.low, clause.high))
    above = low is None or low < value or (clause.include_low and low == value)
    return above and (high is None or value < high or (clause.include_high and high == value))


def read(written: Any, like: Any) -> Any:
    """A value as it may be written in a query, as the type of the document's."""
    if isinstance(written, str) and isinstance(like, int | float):
        return float(written)
    return str(written) if isinstance(written, date) else written


def by_passages(scores: Mapping[str, float], best: int) -> dict[str, float]:
    """The sums of the `best` best passages of each document, of all passages; an id before its first `#` is one's."""
    documents: dict[str, list[float]] = {}
    for passage_id, score in scores.items():
        head, delimiter, _ = passage_id[1:].partition("#")
        documents.setdefault(passage_id[:1] + head if delimiter else passage_id, []).append(score)
    return {doc_id: sum(sorted(every, reverse=True)[:best]) for doc_id, every in documents.items()}
