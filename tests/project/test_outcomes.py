"""What .ci/run expects of skipped tests: at most so many, no file as a whole, and their reasons at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from invoking import run_process

pytestmark = pytest.mark.extended

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_skipped(number):
    pytest.skip("no lamp here" if number else "no rope here")

def test_passed():
    assert True
"""
WHOLE = "import pytest\npytest.importorskip('no_such_module', reason='no module')\n"


@pytest.mark.parametrize(
    ("most", "code", "message"),
    [(None, 0, ""), ("3", 0, ""), ("2", 1, "FAILED: 3 tests are skipped, expected at most LEXVL_MOST_SKIPPED=2")],
)
def test_too_many_skipped_tests_are_a_failure(tmp_path: Path, most, code, message) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run(tmp_path, most=most)
    *said, last = done.stdout.splitlines()
    assert done.returncode == code and "1 passed, 3 skipped" in last, done.stdout + done.stderr
    reasons = ["    2 no lamp here", "    1 no rope here", *filter(None, [message])]
    assert said[-len(reasons) :] == reasons if most else "no rope here" not in done.stdout


def test_a_file_that_is_skipped_as_a_whole_is_a_failure(tmp_path: Path) -> None:
    """Also where workers run the tests, as in .ci/run."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text(WHOLE)
    done = run(tmp_path, "-p", "xdist", "-n", "1", most="20")
    assert "    2 no lamp here\n    1 no module\n    1 no rope here\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1 and "FAILED: files skipped as a whole: test_whole.py" in done.stdout


def test_the_rest_is_what_earlier_runs_did_not_pass(tmp_path: Path) -> None:
    """Tests of plug-ins run again; without an earlier run there is no rest."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_some.py").write_text(TESTS + "def test_other():\n    pass\n")
    (tmp_path / "tests/plugins").mkdir(parents=True)
    (tmp_path / "tests/plugins/test_plugin.py").write_text("def test_open():\n    pass\n")
    refused = run(tmp_path, "--rest", most=None)
    assert refused.returncode == 4 and "--rest: no earlier run" in refused.stderr, refused.stdout + refused.stderr
    runs = [run(tmp_path, *arguments, most=None) for arguments in (["-k", "not other"], ["--rest"], ["--rest"])]
    assert [re.sub(" in .*", "", done.stdout.splitlines()[-1]) for done in runs] == [
        "2 passed, 3 skipped, 1 deselected",
        "2 passed, 3 skipped, 1 deselected",
        "1 passed, 3 skipped, 2 deselected",
    ]


def run(folder: Path, *arguments: str, most: str | None) -> subprocess.CompletedProcess[str]:
    """The tests of a folder, with the hooks of this suite."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LEXVL_MOST"))}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ |= {} if most is None else {"LEXVL_MOST_SKIPPED": most}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes", *arguments, str(folder)]
    return run_process(command, cwd=folder, env=environ)
