"""The public API as a user's type checker sees it, and as it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/user_program.py"


def checked(program: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """`mypy --strict` of a program alone; our packages count as installed ones, whose own lines are not reported."""
    options = ["--strict", "--follow-imports=silent", "--warn-unused-ignores", f"--cache-dir={cache}", "--config-file="]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cache, env=environment)


def test_a_program_passes_a_strict_type_checker(tmp_path: Path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert "type: ignore" not in PROGRAM.read_text()
    done = checked(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # The same checker finds what is wrong.
    wrong = tmp_path / "wrong.py"
    text = PROGRAM.read_text()
    text = text.replace('index.search("a boat", k=2)', 'index.search("a boat", k="2")')
    wrong.write_text(text.replace("batch_size=8", "prompt='query: '"))
    done = checked(wrong, tmp_path)
    assert done.returncode == 1 and done.stdout.count("error:") >= 2, done.stdout
    assert '"search"' in done.stdout and "encode_query" in done.stdout


def test_the_program_runs(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from user_program import main

    assert main(str(golden / "splade/ckpt_bert"), tmp_path) == 0
    assert "nDCG@10" in capsys.readouterr().out
    assert main(str(tmp_path / "nothing"), tmp_path) == 1
