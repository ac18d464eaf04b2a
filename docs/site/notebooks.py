"""The tutorials as executed notebooks that run elsewhere too: the first cells install the package and lead to Colab.

The site has each at `notebooks/NAME.ipynb`. Colab opens notebooks of a repository on GitHub, and `.ci/notebooks` puts
them there.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pages import LINK, colab

# What the tutorials import.
INSTALL = "%pip install --quiet 'lexvl-anserini[photos,plots,train]'"
# The line that `pages.collect` adds, which leads from a page to its notebook.
DOWNLOAD = "{nb-download}"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def finish(site: Path, repository: str) -> list[Path]:
    """Gives every downloaded notebook of a built site its first cells, and a place of its own."""
    folder = site / "notebooks"
    folder.mkdir()
    written = []
    for path in sorted(site.glob("_downloads/*/*.ipynb")):
        text = json.dumps(finished(json.loads(path.read_text(encoding="utf-8")), path.stem, repository), indent=1)
        for place in (path, folder / path.name):
            place.write_text(f"{text}\n", encoding="utf-8")
        written.append(folder / path.name)
    return written


def finished(notebook: dict[str, Any], stem: str, repository: str) -> dict[str, Any]:
    """A notebook with its first cells; links to files lead to the repository, or are texts where it is unknown."""
    lead = f"[![Open in Colab]({BADGE})]({colab(repository, stem)})\n\n" if repository else ""
    note = f"{lead}A page of LexVL's documentation with its outputs. The next cell installs what it needs."
    first = [
        {"cell_type": "markdown", "id": "about", "metadata": {}, "source": note},
        {
            "cell_type": "code",
            "id": "install",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": INSTALL,
        },
    ]
    cells = [
        {**cell, "source": elsewhere(text_of(cell), repository)} if cell["cell_type"] == "markdown" else cell
        for cell in notebook["cells"]
    ]
    return {**notebook, "cells": [*first, *cells]}


def text_of(cell: dict[str, Any]) -> str:
    """The text of a cell, which the format may have as a list of lines."""
    return "".join(cell["source"])


def elsewhere(text: str, repository: str) -> str:
    """The Markdown of a tutorial away from its site."""
    lines = [line for line in text.split("\n") if DOWNLOAD not in line]

    def link(match: Any) -> str:
        target, anchor = match[1], match[2] or ""
        if urlsplit(target).scheme:
            return str(match[0])
        parts: list[str] = []
        for part in PurePosixPath("docs/tutorials", target).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return f"](https://github.com/{repository}/blob/main/{'/'.join(parts)}{anchor})" if repository else "]"

    return LINK.sub(link, "\n".join(lines)).rstrip()
