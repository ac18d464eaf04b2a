"""README.md: a sentence that compares is a link to the section of docs/ with its figures and their command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from declared import ROOT

# Words that compare. "More" and "most" before a noun do not ("say more", "most datasets are for research").
COMPARES = re.compile(
    r"\b(?:\w*(?:fast|slow|small|larg|bigg|strong|weak|cheap|quick|short|long)e(?:r|st)|better|best|worse|worst|"
    r"than|half of|twice|same ranking|\d times|as \w+ as)\b",
    re.IGNORECASE,
)
# What a measure gives: percent, decimals but for versions (3.11, 0.3.0, BY-SA 4.0), and multiples.
FIGURE = re.compile(
    r"(?<![\w.-])(?<!-SA )(?:\d+(?:\.\d+)?(?= %)|(?!3\.1[1-4]\b)\d*\.\d+(?![\d.]*[.-]\w)|\d+(?= times))"
)
# Numbers of a sentence that compares: all of them, without those inside words (nDCG@10, top2).
NUMBER = re.compile(r"(?<![\w@.-])(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?![\w-]|\.\d)")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
# A row of a table whose first cell names a former state; its figures are not those of this version.
FORMER = re.compile(r"^\|[^|]*\bbefore\b.*$", re.MULTILINE)
# A command with its program, or by its name and an option.
COMMAND = re.compile(
    r"(?:^|`)(?:lexvl [a-z]|python -m (?:lexvl_anserini|eval)\.|bash runs/|[a-z][a-z-]* --[a-z])", re.MULTILINE
)


def sentences(text: str) -> list[str]:
    """The sentences of a page, without headings, listings and pictures; a blank line and a bullet end one."""
    text = re.sub(r"^```.*?^```$|^#[^\n]*$|^\[?!\[[^\n]*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\* )", text)
    return [
        sentence.strip()
        for part in parts
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*\[`])", re.sub(r"\s+", " ", part).removeprefix("* "))
        if sentence.strip()
    ]


def sections(text: str) -> dict[str, str]:
    """The sections of a page by their anchors; those below belong to a section."""
    bare = re.sub(r"^```.*?^```$", lambda listing: " " * len(listing[0]), text, flags=re.DOTALL | re.MULTILINE)
    headings = [*re.finditer(r"^(#+) (.+)$", bare, re.MULTILINE)]
    by_anchor = {}
    for number, heading in enumerate(headings):
        after = (other.start() for other in headings[number + 1 :] if len(other[1]) <= len(heading[1]))
        anchor = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
        by_anchor[anchor] = text[heading.start() : next(after, len(text))]
    return by_anchor


def comparisons(text: str) -> list[str]:
    """The sentences of a page that compare, or have a figure."""
    return [one for one in sentences(text) if COMPARES.search(bare := LINK.sub("", one)) or FIGURE.search(bare)]


def problems(text: str, folder: Path) -> list[str]:
    """What is wrong with the comparisons of a page in `folder`."""
    wrong = []
    for sentence in comparisons(text):
        targets = []
        for page, anchor in LINK.findall(sentence):
            if not page.startswith("docs/") or not anchor:
                continue
            section = sections((folder / page).read_text(encoding="utf-8")).get(anchor)
            if section is None:
                wrong.append(f"{page} has no section {anchor}: {sentence}")
            elif not COMMAND.search(section) or not FIGURE.search(section):
                wrong.append(f"{page}#{anchor} has no figure, or no command: {sentence}")
            else:
                targets.append(FORMER.sub("", section))
        if not targets:
            wrong.append(f"compares without a link to its figure and command: {sentence}")
            continue
        there = {number for section in targets for number in NUMBER.findall(section)}
        stated = NUMBER.findall(LINK.sub("", sentence))
        wrong += [f"{one} is not in the sections of its links: {sentence}" for one in stated if one not in there]
    return wrong


def test_comparisons_of_the_readme_are_links_to_their_figures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert problems(text, ROOT) == []
    assert len(comparisons(text)) >= 6, "the test reads no comparison; does README.md have another form?"
    assert len(text.splitlines()) <= 120


TARGET = """# Page

## Speed, and size

It takes 0.41 of 1,000.

| ours before | 0.52 |

```
lexvl efficiency --suite search
```

## Bare

0.41
"""


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It is faster.", "compares without a link"),
        ("It takes .41 ([table](docs/page.md)).", "compares without a link"),
        ("It is as exact as others ([others](https://example.org#speed-and-size)).", "compares without a link"),
        ("It takes 0.42 of 1,000 ([table](docs/page.md#speed-and-size)).", "0.42 is not in"),
        ("It takes 0.41 of 2,000 ([table](docs/page.md#speed-and-size)).", "2,000 is not in"),
        ("It takes 0.41 ([table](docs/page.md#size)).", "has no section size"),
        ("It takes 0.41 ([table](docs/page.md#bare)).", "has no figure, or no command"),
        ("* One.\n* **Fast.** 0.41 of 1,000\n  ([table](docs/page.md#speed-and-size)). Python 3.11 says so.", None),
    ],
)
def test_a_comparison_needs_its_figure(sentence: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(TARGET, encoding="utf-8")
    got = problems(f"# Title\n\n{sentence}\n", tmp_path)
    assert (got == []) if expected is None else any(expected in problem for problem in got), got
