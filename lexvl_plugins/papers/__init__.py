"""The tables of papers: the numbers that they print, measured again and compared."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow

REPRODUCE = CommandRow(f"{__name__}.command", "Evaluate runs", "Measure tables of papers and compare the numbers")
