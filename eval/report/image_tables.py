"""The tables about what models see in images: words, classes, sentences and terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .render import COUNT, FOUR_DECIMALS, TWO_DECIMALS, Column, FieldColumn, Table, percent

if TYPE_CHECKING:
    from ..analyses.class_words import ClassWordShares
    from ..analyses.classification import ClassAccuracy
    from ..analyses.completeness import CompletenessShare
    from ..analyses.interpretability import NamedWords
    from ..analyses.probing import ProbeAccuracy
    from ..analyses.terms import DocumentTerm, TermProfile

RANKING, SYSTEM, DATASET = (FieldColumn(name, name) for name in ("ranking", "system", "dataset"))
IMAGES, CLASSES = FieldColumn("images", "images", COUNT), FieldColumn("classes", "classes", COUNT)
MEAN_OVER = FieldColumn("mean over", "mean_over")
TOP_1, TOP_5, TOP_10, TOP_50, TOP_100 = (FieldColumn(f"top {k} %", f"top_{k}", percent) for k in (1, 5, 10, 50, 100))


def named_table(rows: Sequence[NamedWords]) -> Table:
    """One row per ranking: shares of images in percent, then the mean number of words."""
    return Table.of_fields(
        rows, (RANKING, IMAGES, TOP_1, TOP_5, TOP_10, FieldColumn("of 10", "words_in_10", TWO_DECIMALS))
    )


def class_word_table(rows: Sequence[ClassWordShares]) -> Table:
    """One row per ranking, shares in percent."""
    return Table.of_fields(rows, (RANKING, DATASET, IMAGES, CLASSES, TOP_1, TOP_10, TOP_50, TOP_100))


def accuracy_table(rows: Sequence[ClassAccuracy]) -> Table:
    """One row per mean, shares in percent."""
    return Table.of_fields(rows, (SYSTEM, DATASET, IMAGES, CLASSES, MEAN_OVER, TOP_1, TOP_5))


def probe_table(rows: Sequence[ProbeAccuracy]) -> Table:
    """One row per mean, shares in percent."""
    trained = FieldColumn("trained on", "trained_on", COUNT), FieldColumn("lambda", "strength", "{:.3g}".format)
    return Table.of_fields(rows, (SYSTEM, DATASET, *trained, IMAGES, CLASSES, MEAN_OVER, TOP_1, TOP_5))


def completeness_table(rows: Sequence[CompletenessShare]) -> Table:
    """One row per ranking, shares in percent."""
    pairs = FieldColumn("pairs", "pairs", COUNT), FieldColumn("complete first %", "complete_first", percent)
    return Table.of_fields(rows, (RANKING, DATASET, IMAGES, *pairs))


def term_table(profiles: Sequence[TermProfile]) -> Table:
    """One row per term of each corpus, by its mean weight."""
    headings = ("shards", "rank", "term", "documents %", "mean", "maximum")
    cells = (
        (
            profile.shards,
            str(term.rank),
            term.term,
            percent(term.documents / profile.documents),
            FOUR_DECIMALS(term.mean),
            FOUR_DECIMALS(term.maximum),
        )
        for profile in profiles
        for term in profile.first
    )
    return Table(tuple(Column(heading, number=c not in (0, 2)) for c, heading in enumerate(headings)), tuple(cells))


def document_term_table(terms: Sequence[DocumentTerm]) -> Table:
    """One row per term of each document, by its weight there."""
    document, term = FieldColumn("document", "document"), FieldColumn("term", "term")
    rank, weight = FieldColumn("rank", "rank", COUNT), FieldColumn("weight", "weight", FOUR_DECIMALS)
    return Table.of_fields(terms, (document, rank, term, weight))
