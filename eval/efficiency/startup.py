"""How long a command takes before it does anything."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping

from eval.efficiency.options import Options
from eval.efficiency.report import Report

REPEATS = 5


def measure(options: Options) -> Report:
    """Median seconds until a fresh interpreter has imported the package, and until a command has printed its help."""
    cases: Mapping[str, list[str]] = {
        "python_alone_s": ["-c", "pass"],
        "import_lexvl_anserini_s": ["-c", "import lexvl_anserini"],
        **{f"{hop}_help_s": ["-m", f"lexvl_anserini.{hop}", "--help"] for hop in ("encode", "index", "search")},
        "score_help_s": ["-m", "eval.score", "--help"],
    }
    figures = {}
    for name, arguments in cases.items():
        seconds = []
        for _ in range(options.repeats or REPEATS):
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        figures[name] = round(statistics.median(seconds), 3)
    return Report(figures)
