"""The tables about what models see in images: words, classes, sentences and terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .render import Column, Table
from .tables import format_percent

if TYPE_CHECKING:
    from ..analyses.class_words import ClassWordShares
    from ..analyses.classification import ClassAccuracy
    from ..analyses.completeness import CompletenessShare
    from ..analyses.interpretability import NamedWords
    from ..analyses.probing import ProbeAccuracy
    from ..analyses.terms import DocumentTerm, TermProfile


def named_table(rows: Sequence[NamedWords]) -> Table:
    """One row per ranking: shares of images in percent, then the mean number of words."""
    columns = (Column("ranking", number=False), *map(Column, ("images", "top 1 %", "top 5 %", "top 10 %", "of 10")))
    cells = ((r.ranking, f"{r.images:,}", *map(format_percent, r[2:5]), f"{r.words_in_10:.2f}") for r in rows)
    return Table(columns, tuple(cells))


def class_word_table(rows: Sequence[ClassWordShares]) -> Table:
    """One row per ranking, shares in percent."""
    texts = tuple(Column(heading, number=False) for heading in ("ranking", "dataset"))
    numbers = map(Column, ("images", "classes", "top 1 %", "top 10 %", "top 50 %", "top 100 %"))
    cells = ((*row[:2], f"{row.images:,}", f"{row.classes:,}", *map(format_percent, row[4:])) for row in rows)
    return Table((*texts, *numbers), tuple(cells))


def accuracy_table(rows: Sequence[ClassAccuracy]) -> Table:
    """One row per mean, shares in percent."""
    texts = tuple(Column(heading, number=False) for heading in ("system", "dataset"))
    columns = (*texts, Column("images"), Column("classes"), Column("mean over", number=False))
    cells = (
        (row.system, row.dataset, f"{row.images:,}", f"{row.classes:,}", row.mean_over, *map(format_percent, row[5:]))
        for row in rows
    )
    return Table((*columns, Column("top 1 %"), Column("top 5 %")), tuple(cells))


def probe_table(rows: Sequence[ProbeAccuracy]) -> Table:
    """One row per mean, shares in percent."""
    headings = ("system", "dataset", "trained on", "lambda", "images", "classes", "mean over", "top 1 %", "top 5 %")
    columns = tuple(Column(heading, number=c not in (0, 1, 6)) for c, heading in enumerate(headings))
    cells = (
        (
            *row[:2],
            f"{row.trained_on:,}",
            f"{row.strength:.3g}",
            f"{row.images:,}",
            f"{row.classes:,}",
            row.mean_over,
            *map(format_percent, row[7:]),
        )
        for row in rows
    )
    return Table(columns, tuple(cells))


def completeness_table(rows: Sequence[CompletenessShare]) -> Table:
    """One row per ranking, shares in percent."""
    texts = (Column("ranking", number=False), Column("dataset", number=False))
    numbers = (Column("images"), Column("pairs"), Column("complete first %"))
    cells = ((*row[:2], f"{row.images:,}", f"{row.pairs:,}", format_percent(row.complete_first)) for row in rows)
    return Table((*texts, *numbers), tuple(cells))


def term_table(profiles: Sequence[TermProfile]) -> Table:
    """One row per term of each corpus, by its mean weight."""
    headings = ("shards", "rank", "term", "documents %", "mean", "maximum")
    cells = (
        (
            profile.shards,
            str(term.rank),
            term.term,
            format_percent(term.documents / profile.documents),
            f"{term.mean:.4f}",
            f"{term.maximum:.4f}",
        )
        for profile in profiles
        for term in profile.first
    )
    return Table(tuple(Column(heading, number=c not in (0, 2)) for c, heading in enumerate(headings)), tuple(cells))


def document_term_table(terms: Sequence[DocumentTerm]) -> Table:
    """One row per term of each document, by its weight there."""
    columns = tuple(
        Column(heading, number=c in (1, 3)) for c, heading in enumerate(("document", "rank", "term", "weight"))
    )
    return Table(columns, tuple((term.document, str(term.rank), term.term, f"{term.weight:.4f}") for term in terms))
