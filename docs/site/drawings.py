"""Draws the chart of README.md from the tables of docs/performance.md, and its badges from setup.cfg.

Usage: python docs/site/drawings.py        (writes docs/drawings/*.svg; a test compares them with what this file draws)
"""

from __future__ import annotations

import configparser
import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "drawings"


class Ratio(NamedTuple):
    """CPU time over that of our engine, with its lowest and highest round, if the table has some."""

    value: float
    low: float
    high: float


class Bar(NamedTuple):
    """A row of the chart: a system, and its ratios for the first ten hits and the first thousand."""

    system: str
    ten: Ratio
    thousand: Ratio


# Group -> (system, start of its row in docs/performance.md, cells of the two ratios, which value of a cell counts).
ROWS: dict[str, list[tuple[str, str, tuple[int, int], tuple[int, int]]]] = {
    "20,000 VDR-like, 768 terms": [
        ("stock Pyserini", "VDR-like, 20k: stock / ours", (2, 3), (0, 0)),
        ("FAISS flat", "VDR-like, 20k: FAISS flat / ours", (2, 3), (0, 0)),
        ("FAISS HNSW", "VDR-like, 20k: HNSW / ours", (2, 3), (0, 0)),
    ],
    "100,000 VDR-like, 768 terms": [
        ("FAISS flat", "VDR-like, 100k: FAISS flat / ours", (2, 3), (0, 0)),
        ("FAISS HNSW", "VDR-like, 100k: HNSW / ours", (2, 3), (0, 0)),
    ],
    "100,000 SPLADE-like, 120 terms": [
        ("FAISS flat", "SPLADE-like, 100k: FAISS flat / ours", (2, 3), (0, 0)),
        ("FAISS HNSW", "SPLADE-like, 100k: HNSW / ours", (2, 3), (0, 0)),
    ],
    "500,000 SPLADE++ mixtures, 143 terms": [
        ("SINDI, exact", "SINDI, all postings", (3, 6), (0, 0)),
        ("SINDI, 99 % of the hits", "SINDI, pruned, scored again", (3, 6), (0, 0)),
        ("Seismic, 99 % of the hits", "Seismic", (3, 6), (0, 0)),
    ],
    "SciFact, 5,183 texts, 768 terms": [
        ("FAISS flat", "SciFact, `topk=768`", (5, 5), (0, 1)),
        ("FAISS HNSW", "SciFact, `topk=768`", (6, 6), (0, 1)),
    ],
}

NUMBER = r"\d+(?:\.\d+)?"


def ratios(cell: str) -> list[Ratio]:
    """The ratios of a cell: `1.61 (1.54 to 1.67)`, or `0.41, 0.39` without rounds."""
    found = re.findall(rf"({NUMBER})(?: \(({NUMBER}) to ({NUMBER})\))?", cell)
    return [Ratio(float(value), float(low or value), float(high or value)) for value, low, high in found]


def bars(text: str) -> dict[str, list[Bar]]:
    """The groups of the chart, from the text of docs/performance.md."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    groups: dict[str, list[Bar]] = {}
    for group, rows in ROWS.items():
        for system, start, (ten, thousand), (first, second) in rows:
            row = next(row for row in cells if row[0] == start)  # the first table that has it
            groups.setdefault(group, []).append(Bar(system, ratios(row[ten])[first], ratios(row[thousand])[second]))
    return groups


# Pixels: the width, where the axis begins and ends, and the height of a line.
WIDTH, LEFT, RIGHT, LINE = 860, 270, 830, 22
AXIS = (0.3, 100.0)
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)

NOTES = (
    "Logarithmic axis. A line goes from the lowest to the highest round, where there are some. One thread, one query",
    "at a time. FAISS searches as many synthetic vectors of 512 numbers; HNSW finds 99 % of the hits of FAISS flat.",
)

STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .card { fill: #fff } .group { font-weight: 600 }
.grid { stroke: #d0d7de } .one { stroke: #1f2328; stroke-width: 1.5 } .soft { fill: #59636e }
.ten { fill: #0969da; stroke: #0969da } .thousand { fill: #fff; stroke: #bc4c00; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .card { fill: #0d1117 } .grid { stroke: #3d444d }
.one { stroke: #e6edf3 } .soft { fill: #9198a1 } .ten { fill: #4493f8; stroke: #4493f8 }
.thousand { fill: #0d1117; stroke: #f0883e } }"""


def x_of(ratio: float) -> float:
    """Where a ratio is on the axis, which is logarithmic."""
    low, high = map(math.log, AXIS)
    return round(LEFT + (math.log(ratio) - low) / (high - low) * (RIGHT - LEFT), 1)


def mark(ratio: Ratio, y: float, kind: str) -> str:
    """A point with the line from its lowest to its highest round."""
    ends = f'x1="{x_of(ratio.low)}" x2="{x_of(ratio.high)}" y1="{y}" y2="{y}"'
    title = f"{'k=10' if kind == 'ten' else 'k=1000'}: {ratio.value:g} ({ratio.low:g} to {ratio.high:g})"
    return (
        f'<g class="{kind}"><title>{title}</title><line {ends} stroke-width="2"/>'
        f'<circle cx="{x_of(ratio.value)}" cy="{y}" r="4.5"/></g>'
    )


def chart(groups: dict[str, list[Bar]]) -> str:
    """The chart, an SVG: one line per system, right of 1 where it needs more CPU time than our engine."""
    lines, y = [], 68
    for group, rows in groups.items():
        lines.append(f'<text class="group" x="14" y="{y + 4}">{escape(group)}</text>')
        for bar in rows:
            y += LINE
            lines.append(f'<text x="28" y="{y + 4}">{escape(bar.system)}</text>')
            lines += [mark(bar.ten, y - 3, "ten"), mark(bar.thousand, y + 4, "thousand")]
        y += LINE + 8
    bottom = y - 12
    grid = [
        f'<line class="{"one" if tick == 1 else "grid"}" x1="{x_of(tick)}" x2="{x_of(tick)}" y1="52" y2="{bottom}"/>'
        f'<text class="soft" x="{x_of(tick)}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in TICKS
    ]
    head = (
        '<text class="group" x="14" y="22">CPU time of one query, divided by that of our exact search</text>'
        f'<text class="soft" x="{x_of(1) - 8}" y="44" text-anchor="end">the other is faster</text>'
        f'<text class="soft" x="{x_of(1) + 8}" y="44">ours is faster</text>'
        f'<g class="ten"><circle cx="600" cy="18" r="4.5"/></g><text x="610" y="22">10 hits</text>'
        f'<g class="thousand"><circle cx="690" cy="18" r="4.5"/></g><text x="700" y="22">1,000 hits</text>'
    )
    height = bottom + 28 + 17 * len(NOTES)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    notes = [
        f'<text class="soft" x="14" y="{bottom + 38 + 17 * line}">{text}</text>' for line, text in enumerate(NOTES)
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" width="{WIDTH}" height="{height}" rx="6"/>',
            *grid,
            head,
            *lines,
            *notes,
            "</svg>\n",
        )
    )


def badge(name: str, value: str, colour: str = "#0969da") -> str:
    """A badge, an SVG; letters are about 6.6 pixels wide."""
    left, right = (round(6.6 * len(text) + 14) for text in (name, value))
    style = "font: 11px Verdana, sans-serif; fill: #fff"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{escape(name)}: {escape(value)}</title>"
        f'<rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<text x="7" y="14" style="{style}">{escape(name)}</text>'
        f'<text x="{left + 7}" y="14" style="{style}">{escape(value)}</text></svg>\n'
    )


def drawings() -> dict[str, str]:
    """Names of files and what is in them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    classifiers = setup["metadata"]["classifiers"].splitlines()
    pythons = [line.rpartition(" ")[2] for line in classifiers if "Python :: 3." in line]
    return {
        "chart.svg": chart(bars(TABLES.read_text(encoding="utf-8"))),
        "python.svg": badge("Python", " | ".join(pythons)),
        "licence.svg": badge("licence", setup["metadata"]["license"]),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
