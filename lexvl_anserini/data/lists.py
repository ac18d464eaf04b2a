"""Lists that people write: tables of a few named columns, one row a line, as `.csv` or `.tsv`; lists of words."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from lexvl_anserini.ground.errors import DataError

# Suffixes of lists, and what separates their columns.
LISTS = {".csv": ",", ".tsv": "\t"}


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Streams the rows of a list, each with its place for errors; a heading of these columns is skipped.

    Args:
        path: a file with a suffix of `LISTS`, in UTF-8.
        columns: their names.

    Raises:
        DataError: the file cannot be read, or a row has other columns or an empty one.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.reader(lines, delimiter=LISTS[path.suffix.lower()]), start=1):
                cells = [cell.strip() for cell in row]
                if not row or (number == 1 and cells == list(columns)):
                    continue
                where = f"{path} line {number}"
                if len(cells) != len(columns):
                    raise DataError(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)})")
                if "" in cells:
                    raise DataError(f"{where}: the {columns[cells.index('')]} is empty")
                yield where, cells
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem


FOLDER = Path(__file__).parents[1] / "assets" / "words"
FUNCTION_WORDS, LEFT_OUT = FOLDER / "function-words.txt", FOLDER / "left-out-words.txt"


def function_words() -> frozenset[str]:
    """Words that name nothing in an image: articles, pronouns, prepositions, conjunctions, auxiliaries and so on."""
    return read_words(FUNCTION_WORDS)


def left_out_words() -> frozenset[str]:
    """Words that name something, and that a model must not say of a picture: people's descent, and monkeys."""
    return read_words(LEFT_OUT)


@cache
def read_words(path: Path) -> frozenset[str]:
    """The words of a list, in lower case."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
