"""How well pages are read: `python -m eval.analyses.pages.word_error --read pages:DIR/pages --true beir:DIR`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import typer

from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import DataError

from ... import options
from ...report.render import FieldColumn, Table, check_format, render
from ...report.tables import COUNT


class Edits(NamedTuple):
    """The fewest edits that make the true words of what was read, and the true words that were read at any place.

    words        true words
    substituted  words read as another word
    missing      true words that were not read
    added        words read that are not there
    read         true words among those read, in any order (each as often as it was read)
    """

    words: int = 0
    substituted: int = 0
    missing: int = 0
    added: int = 0
    read: int = 0


class PageErrors(NamedTuple):
    """A row: a page, or all of them.

    error      edits per true word: above 1 where much is added
    any_order  the share of the true words that were read at any place
    """

    page: str
    pages: int
    words: int
    error: float
    substituted: int
    missing: int
    added: int
    any_order: float

    @classmethod
    def of(cls, page: str, pages: int, edits: Edits) -> PageErrors:
        """The row of some edits."""
        words, changes = edits.words, (edits.substituted, edits.missing, edits.added)
        return cls(page, pages, words, sum(changes) / max(words, 1), *changes, edits.read / max(words, 1))


COLUMNS = (
    FieldColumn("page", "page"),
    FieldColumn("pages", "pages", COUNT),
    FieldColumn("words", "words", COUNT),
    FieldColumn("word error", "error", "{:.4f}".format),
    FieldColumn("substituted", "substituted", COUNT),
    FieldColumn("missing", "missing", COUNT),
    FieldColumn("added", "added", COUNT),
    FieldColumn("in any order", "any_order", "{:.4f}".format),
)


def command(
    read: Annotated[str, typer.Option(help="The corpus as read, for example pages:DIR/pages.")],
    true: Annotated[str, typer.Option(help="The corpus with the true texts, under the same ids: beir:DIR.")],
    worst: Annotated[int, typer.Option(min=0, help="List the pages with the highest rates.")] = 0,
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State the word error rate of pages: edits per true word, after lower-casing.

    Columns of print that are read across the page count as errors of order; "in any order" is the share of the true
    words that were read anywhere, which is what a search by words sees.

    Example: python -m eval.analyses.pages.word_error --read pages:pages-scifact/pages --true beir:pages-scifact
    """
    check_format(output_format)
    edits = errors_of_pages(read, true, data_dir)
    rows = [PageErrors.of("all", len(edits), Edits(*map(sum, zip(*edits.values(), strict=True))))]
    pages = [PageErrors.of(doc_id, 1, of_page) for doc_id, of_page in edits.items()]
    rows += sorted(pages, key=lambda row: (-row.error, row.page))[:worst]
    sys.stdout.write(render(Table.of_fields(rows, COLUMNS), rows, output_format))


def errors_of_pages(read: str, true: str, data_dir: str | None = None) -> dict[str, Edits]:
    """The edits of each page; a page with a problem has no word.

    Raises:
        DataError: the two corpora do not have the same ids.
    """
    texts = load_dataset(true, data_dir=data_dir).documents()
    expected = {document.doc_id: _words(document.contents) for document in texts}
    edits: dict[str, Edits] = {}
    for document in load_dataset(read, data_dir=data_dir).documents():
        if document.doc_id not in expected:
            raise DataError(f"{true}: no document {document.doc_id!r}, which {read} has")
        words = _words(document.text or "") if document.problem is None else []
        edits[document.doc_id] = edits_of(words, expected[document.doc_id])
    if absent := expected.keys() - edits.keys():
        raise DataError(f"{read}: no page {min(absent)!r} of {true}, nor {len(absent) - 1} others")
    return edits


def edits_of(read: Sequence[str], true: Sequence[str]) -> Edits:
    """The edits of one text, by a shortest alignment; where there are several, one with most substitutions.

    >>> edits_of("a red cat".split(), "the red cat sat".split())
    Edits(words=4, substituted=1, missing=1, added=0, read=2)
    """
    numbers = {word: number for number, word in enumerate({*read, *true})}
    across = np.array([numbers[word] for word in read], np.int64)
    places = np.arange(len(read) + 1)
    rows = [places.astype(np.int32)]  # [true words so far][words read so far]: fewest edits between the two
    for word in true:
        above = rows[-1]
        row = above + 1
        row[1:] = np.minimum(row[1:], above[:-1] + (across != numbers[word]))
        rows.append((np.minimum.accumulate(row - places) + places).astype(np.int32))
    substituted = missing = added = 0
    down, right = len(true), len(read)
    while down or right:
        here = rows[down][right]
        same = bool(down and right) and across[right - 1] == numbers[true[down - 1]]
        if down and right and here == rows[down - 1][right - 1] + (not same):
            substituted += not same
            down, right = down - 1, right - 1
        elif down and here == rows[down - 1][right] + 1:
            missing, down = missing + 1, down - 1
        else:
            added, right = added + 1, right - 1
    return Edits(len(true), substituted, missing, added, (Counter(read) & Counter(true)).total())


def _words(text: str) -> list[str]:
    return text.lower().split()


if __name__ == "__main__":
    run(command)
