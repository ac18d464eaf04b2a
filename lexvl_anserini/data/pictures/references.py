"""References of pictures: a path, `archive.tar::member` or `table.parquet::row`; of a page, `scan.tif#3`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.ground.user_folders import expanded_path

# A member of an archive.
MEMBER = re.compile(r"(?P<archive>.+?\.tar)::(?P<member>.+)", re.IGNORECASE | re.DOTALL)

# A row of a table, from 0.
CELL = re.compile(r"(?P<table>.+?\.parquet)::(?P<row>[0-9]{1,12})", re.IGNORECASE | re.DOTALL)

# A page of a file: its number follows the suffix of the file.
_PAGE = re.compile(r"(?P<file>.+\.[A-Za-z0-9]+)#(?P<page>[1-9][0-9]{0,8})", re.DOTALL)


class PageReference(NamedTuple):
    """A page: the file (or member of an archive), and the number of the page in it, from 1."""

    file: str
    page: int

    def __str__(self) -> str:
        return f"{self.file}#{self.page}"


def page_of(reference: str) -> PageReference | None:
    """The page that a reference names; None for a whole file.

    >>> page_of("reports/a.tif#3")
    PageReference(file='reports/a.tif', page=3)
    """
    match = _PAGE.fullmatch(reference)
    return PageReference(match["file"], int(match["page"])) if match else None


def file_of(reference: str) -> Path:
    """The file that a reference leads into: of a member of an archive, the archive; of a row, the table."""
    page = page_of(reference)
    whole = page.file if page else reference
    match = MEMBER.fullmatch(whole) or CELL.fullmatch(whole)
    return expanded_path(match[1] if match else whole)
