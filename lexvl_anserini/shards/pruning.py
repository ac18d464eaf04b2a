"""Static pruning: which postings of encoded documents are kept. What is pruned is gone from every score.

Lists of terms and the least impact come first, then each document's largest impacts, then each term's; among equal
impacts a document's first terms and a term's first documents, in the order of the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from lexvl_anserini.errors import UsageError
from lexvl_anserini.queries.refine import heaviest

Vector = Mapping[str, int]


@dataclass(frozen=True)
class Pruning:
    """What is kept; the default keeps all.

    only_terms      terms that documents may have; None allows all
    without_terms   terms that they may not have
    least_impact    smaller impacts go
    document_terms  that many largest impacts per document
    term_documents  that many largest impacts per term

    Raises:
        UsageError: a number below 1.
    """

    only_terms: frozenset[str] | None = None
    without_terms: frozenset[str] = frozenset()
    least_impact: int = 1
    document_terms: int | None = None
    term_documents: int | None = None

    def __post_init__(self) -> None:
        if any(n is not None and n < 1 for n in (self.least_impact, self.document_terms, self.term_documents)):
            raise UsageError("least impact, document terms and term documents: expected at least 1")

    def document(self, vector: Vector) -> dict[str, int]:
        """What is kept of one document, before `term_documents`, which takes all of them."""
        only, without, least = self.only_terms, self.without_terms, self.least_impact
        allowed = {t: i for t, i in vector.items() if i >= least and t not in without and (only is None or t in only)}
        return heaviest(allowed, self.document_terms)

    def to_json(self) -> dict[str, Any]:
        """For the manifest: numbers, and lists of terms by their digests."""
        lists = {"only_terms": self.only_terms, "without_terms": self.without_terms}
        digests = {
            name: sha256("\n".join(sorted(terms)).encode()).hexdigest() for name, terms in lists.items() if terms
        }
        numbers = {"document_terms": self.document_terms, "term_documents": self.term_documents}
        least = {"least_impact": self.least_impact} if self.least_impact > 1 else {}
        return {**digests, **least, **{name: number for name, number in numbers.items() if number is not None}}


@dataclass
class TermCuts:
    """Per term, which impacts are among its `count` largest: found in one pass, applied in a second."""

    count: int
    # (term, impact) -> documents; then, per term, the impact of the last kept and how many of that impact are.
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)
    cuts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, vector: Vector) -> None:
        """First pass: counts a document's impacts."""
        self.seen.update(vector.items())

    def settle(self) -> None:
        """Between the passes."""
        of_term: dict[str, list[tuple[int, int]]] = {}
        for (term, impact), documents in self.seen.items():
            of_term.setdefault(term, []).append((impact, documents))
        for term, impacts in of_term.items():
            left = self.count
            for impact, documents in sorted(impacts, reverse=True):
                if left <= documents:
                    self.cuts[term] = (impact, left)
                    break
                left -= documents
        self.seen.clear()

    def keep(self, vector: Vector) -> dict[str, int]:
        """Second pass, documents in the same order: what is kept of one."""
        kept = {}
        for term, impact in vector.items():
            cut, left = self.cuts.get(term, (0, 0))
            if impact > cut:
                kept[term] = impact
            elif impact == cut and left:
                kept[term] = impact
                self.cuts[term] = (cut, left - 1)
        return kept


def term_cuts(vectors: Iterable[Vector], pruning: Pruning) -> TermCuts | None:
    """The cuts per term, from all documents' vectors; None if there are to be none."""
    if pruning.term_documents is None:
        return None
    cuts = TermCuts(pruning.term_documents)
    for vector in vectors:
        cuts.note(pruning.document(vector))
    cuts.settle()
    return cuts
