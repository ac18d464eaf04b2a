"""The tables of papers: the numbers that they print, measured again and compared."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow, Way

REPRODUCE = CommandRow(f"{__name__}.command", "Evaluate runs", "Measure tables of papers and compare the numbers")

_HOME, _NEEDED = f"{__name__}.vqa", f"{__name__}.prepared"
DISTRIBUTION = Way(
    f"{__name__}.boxes:measure_boxes", f"{_NEEDED}:list_retrieval_needs", f"{_NEEDED}:estimate_retrieval"
)
VQA = Way(f"{_HOME}:measure_vqa", f"{_HOME}:list_vqa_needs", f"{_HOME}:estimate_vqa")
