"""The public API as a user's type checker sees it, and as it runs."""

import os
import sys
from pathlib import Path

import pytest
from invoking import run_process

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/user_program.py"


def test_a_program_passes_a_strict_type_checker(tmp_path: Path):
    """`mypy --strict`, for which our packages are installed ones; it reports the lines of a wrong copy alone."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    text = PROGRAM.read_text()
    assert "type: ignore" not in text
    wrong = tmp_path / "wrong.py"
    text = text.replace('index.search("a boat", k=2)', 'index.search("a boat", k="2")')
    wrong.write_text(text.replace("batch_size=8", "prompt='query: '"))
    options = "--strict --follow-imports=silent --warn-unused-ignores --cache-dir=/dev/null --config-file="
    command = [sys.executable, "-m", "mypy", *options.split(), str(PROGRAM), str(wrong)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = run_process(command, cwd=tmp_path, env=environment)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert done.returncode == 1 and len(errors) >= 2 and all(line.startswith("wrong.py:") for line in errors), done
    assert any('"search"' in line for line in errors) and any("encode_query" in line for line in errors), errors


def test_the_program_runs(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from user_program import main

    assert main(str(golden / "splade/ckpt_bert"), tmp_path) == 0
    assert "nDCG@10" in capsys.readouterr().out
    assert main(str(tmp_path / "nothing"), tmp_path) == 1
