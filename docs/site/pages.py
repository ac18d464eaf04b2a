"""The pages of the site: which files of the repository they are, and the folder that Sphinx reads.

The folder keeps the layout of the repository, so that a link between two files leads to the right place on both. Only
README.md becomes index.md, with the table of contents (`contents.md`) below it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTENTS = Path(__file__).with_name("contents.md")
HOME = "README.md"

# Blocks and spans of code have no links.
CODE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2`*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
NOTEBOOK = re.compile(r"\A---\nfile_format: mystnb\n")


def colab(repository: str, stem: str) -> str:
    """The address at which Colab opens a notebook of the branch `notebooks` of a repository on GitHub."""
    return f"https://colab.research.google.com/github/{repository}/blob/notebooks/{stem}.ipynb"


def links(text: str) -> Iterator[str]:
    """The targets of a page's links to other files."""
    for target, _ in LINK.findall(CODE.sub("", text)):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def files_of_the_site() -> list[Path]:
    """Pages, and the files that they show or link to, relative to the root of the repository.

    Raises:
        SystemExit: a link leads to no file.
    """
    waiting = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md")) if path != CONTENTS]
    waiting.append(Path(HOME))
    found: list[Path] = []
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.append(file)
        if file.suffix != ".md":
            continue
        for target in links((ROOT / file).read_text(encoding="utf-8")):
            path = (ROOT / file).parent / target
            if not path.exists():
                raise SystemExit(f"error: {file}: the link {target} leads to no file")
            waiting.append(path.resolve().relative_to(ROOT))
    return sorted(found)


def listed() -> list[str]:
    """The pages in the table of contents, without suffix."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", CONTENTS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]


def collect(folder: Path, repository: str = "") -> None:
    """Copies the files of the site to an empty folder; with a repository, tutorials lead to Colab."""
    for file in files_of_the_site():
        target = folder / ("index.md" if str(file) == HOME else file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copyfile(ROOT / file, target)
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        if str(file) == HOME:
            text += "\n" + CONTENTS.read_text(encoding="utf-8")
        if NOTEBOOK.match(text):
            there = f"; [open in Colab]({colab(repository, file.stem)})" if repository else ""
            text += f"\nThis page with its outputs, as a notebook: {{nb-download}}`{file.stem}.ipynb`{there}\n"
        target.write_text(text, encoding="utf-8")


def publish_texts(site: Path) -> None:
    """Writes what programs read at the root of the site: `llms.txt`, whose links lead to its pages, and `SKILL.md`."""
    for name in ("llms.txt", "SKILL.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        linked = re.sub(r"\]\((?!SKILL)([\w/-]+)\.md\)", r"](docs/\1.html)", text)
        (site / name).write_text(linked, encoding="utf-8")
