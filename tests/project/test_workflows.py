"""Continuous integration: workflows call scripts of this repository and may do little; at most so many tests skip."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from declared import EXTRAS, ROOT, SETUP
from invoking import read_output, run_process, write_texts

from lexvl_anserini.doctor import OF_DEVELOPERS

pytestmark = pytest.mark.extended

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
READ = {"contents": "read"}
# Jobs that may write, and what; everything else only reads the checkout.
MAY = {
    ("docs", "publish"): {"pages": "write", "id-token": "write"},
    ("docs", "notebooks"): {"contents": "write"},
    ("release", "build"): {"contents": "read", "id-token": "write", "attestations": "write"},
    ("release", "publish"): {"id-token": "write"},
}
# Words of a command that are no file and no option.
VARIABLES = {"$GITHUB_REF_NAME"}

# YAML reads the key `on` as true.
WORKFLOWS = {
    path.stem: {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_bytes()).items()}
    for path in FILES
}
JOBS = [(name, job, content) for name, flow in WORKFLOWS.items() for job, content in flow["jobs"].items()]
STEPS = [(name, job, step) for name, job, content in JOBS for step in content["steps"]]


def test_every_job_may_do_the_least():
    """Jobs that may write run from branches of the repository alone; one checkout keeps a credential, and pushes."""
    assert {*WORKFLOWS} == {"tests", "nightly", "docs", "release"}
    assert all(flow["permissions"] == READ for flow in WORKFLOWS.values())
    assert {(name, job): content["permissions"] for name, job, content in JOBS if "permissions" in content} == MAY
    assert all("pull_request_target" not in flow["on"] for flow in WORKFLOWS.values())
    assert all(0 < content["timeout-minutes"] <= 300 for _, _, content in JOBS)
    for name, job, content in JOBS:
        if (name, job) in MAY and "pull_request" in WORKFLOWS[name]["on"]:
            assert content["if"] == "github.event_name == 'push'", (name, job)
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}}
    for name, job, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            kept = step.get("with", {}).get("persist-credentials", True)
            assert kept is ((name, job) == ("docs", "notebooks")), (name, job)


def test_actions_are_pinned_by_the_digest_of_a_commit():
    """One digest per action, and the version that a person reads beside it."""
    lines = [line for path in FILES for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = [re.fullmatch(r"\s*- uses: ([\w-]+/[\w-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in lines]
    assert len(lines) == sum("uses" in step for _, _, step in STEPS) and all(pinned), lines
    found = {(match[1], match[2], match[3]) for match in pinned}
    assert len(found) == len({name for name, _, _ in found})


def test_every_step_runs_a_script_of_the_repository_with_its_options():
    """No step has code of its own, and no expression becomes a part of a command."""
    runs = [step["run"] for _, _, step in STEPS if "run" in step]
    assert len(runs) >= 10
    for line in runs:
        assert "\n" not in line.strip() and "${{" not in line, line
        program, script, *words = shlex.split(line)
        assert program == "bash" and (ROOT / script).is_file(), line
        text = (ROOT / script).read_text(encoding="utf-8")
        usage = text + (ROOT / "tests/other_python.sh").read_text(encoding="utf-8") * (script == "tests/run.sh")
        for word in words:
            if word.startswith("--"):
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", usage), f"{script} has no option {word}"
            elif word not in VARIABLES:
                assert re.fullmatch(r"\d+(\.\d+)?|build/\w+|origin", word), line


def test_the_environment_has_extras_and_pythons_that_exist():
    pythons = [line.rpartition(" ")[2] for line in SETUP["metadata"]["classifiers"].splitlines() if "3." in line]
    assert WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == pythons
    for _, _, step in STEPS:
        environ = step.get("env", {})
        assert {*environ} <= {"PYTHON", "LEXVL_TEST_EXTRAS"}, step
        assert {*environ.get("LEXVL_TEST_EXTRAS", "test").split(",")} <= {*EXTRAS}
        assert environ.get("PYTHON", "python3.11").removeprefix("python") in (*pythons, "${{ matrix.python }}")


def run(script, *arguments, cwd=ROOT):
    return run_process(["bash", ROOT / script, *arguments], cwd=cwd)


def test_a_release_has_every_extra_of_users_and_the_version_of_its_tag():
    tried = re.findall(r"^  \[(\w+)\]='", (ROOT / ".ci/extras").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*tried} == {"none", *EXTRAS} - OF_DEVELOPERS
    done = run(".ci/dist", "v9.9.9")
    assert done.returncode == 1 and re.search(r"the tag is v9\.9\.9, but setup\.cfg has version \d", done.stderr)


def test_notebooks_replace_those_of_their_branch(tmp_path):
    def git(*arguments):
        return read_output(["git", *arguments], cwd=tmp_path / "clone").split()

    (tmp_path / "clone").mkdir()
    read_output(["git", "init", "--quiet", "--bare", tmp_path / "remote"])
    git("init", "--quiet")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "first")
    done = run(".ci/notebooks", str(tmp_path / "clone"), str(tmp_path / "remote"), cwd=tmp_path / "clone")
    assert done.returncode == 1 and "has no notebooks" in done.stderr
    for name in ("one", "two"):
        folder = write_texts(tmp_path / f"of {name}", {f"{name}.ipynb": '{"cells": []}'})
        done = run(".ci/notebooks", str(folder), str(tmp_path / "remote"), cwd=tmp_path / "clone")
        assert done.returncode == 0, done.stderr
        git("fetch", "--quiet", "--force", str(tmp_path / "remote"), "notebooks:notebooks")
        assert git("ls-tree", "--name-only", "notebooks") == [f"{name}.ipynb"]
    assert git("status", "--porcelain") == []


# Programs of the scratch checkout: each notes its name, its arguments and the variables that it sees.
NOTES = """#!/usr/bin/env bash
{ echo "$0 $*"; env -0 | tr '\\n\\0' ' \\n' | grep -Ev '^(_|SHLVL|PWD|OLDPWD|PS1)=' | sort; echo; } >>"$PWD/notes"
[ "$0 $*" != "${FAILS:-}" ]
"""
# The Python of the environment that the first command makes; `-m venv FOLDER` makes another one.
PYTHON = """
mkdir -p .venv/bin
echo 'mkdir -p "$3/bin" && touch "$3/bin/activate"' >.venv/bin/python
chmod +x .venv/bin/python
"""


def run_ci(folder: Path, environment: dict[str, str]) -> tuple[int, list[tuple[str, list[str]]]]:
    """Runs .ci/run in a scratch checkout with the README.md of this one; returns its exit code and the notes."""
    copies = {name: (ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "README.md")}
    scripts = {"tests/run.sh": NOTES, "tests/browser.sh": NOTES, ".venv/bin/left": ""}
    quickstart = f"set -e\ntest ! -e .venv\n{PYTHON}{NOTES}"
    write_texts(folder, {**copies, **scripts, "runs/quickstart.sh": quickstart})
    done = run_process(["bash", ".ci/run"], cwd=folder, env=environment)
    notes = (folder / "notes").read_text().strip().split("\n\n")
    return done.returncode, [(note.split("\n")[0], note.split("\n")[1:]) for note in notes]


def test_the_commands_of_the_readme_come_first_with_the_variables_of_a_reader(tmp_path: Path) -> None:
    """.ci/run runs them as a reader does; then every extra with the other tests."""
    reader = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    code, notes = run_ci(tmp_path / "checkout", {**reader, "VIRTUAL_ENV": "/nowhere"})
    commands = [command for command, _ in notes]
    for_reader = ["runs/quickstart.sh ", "tests/run.sh ", "tests/run.sh --lint"]
    assert code == 0 and commands[:3] == for_reader
    assert commands[3:] == ["tests/browser.sh --install", "tests/run.sh --lint", "tests/run.sh --rest"]
    assert all(variables == sorted(f"{name}={value}" for name, value in reader.items()) for _, variables in notes[:3])
    assert all("LEXVL_TEST_EXTRAS=test-all" in variables for _, variables in notes[3:])


@pytest.mark.parametrize("command", ["runs/quickstart.sh ", "tests/run.sh ", "tests/run.sh --rest"])
def test_a_command_that_fails_ends_it(tmp_path: Path, command: str) -> None:
    code, notes = run_ci(tmp_path / "checkout", {**os.environ, "FAILS": command})
    assert code != 0 and notes[-1][0] == command


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
    done = run_tests(tmp_path, most=most)
    *said, last = done.stdout.splitlines()
    assert done.returncode == code and "1 passed, 3 skipped" in last, done.stdout + done.stderr
    reasons = ["    2 no lamp here", "    1 no rope here", *filter(None, [message])]
    assert said[-len(reasons) :] == reasons if most else "no rope here" not in done.stdout


def test_a_file_that_is_skipped_as_a_whole_is_a_failure(tmp_path: Path) -> None:
    """Also where workers run the tests, as in .ci/run."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text(WHOLE)
    done = run_tests(tmp_path, "-p", "xdist", "-n", "1", most="20")
    assert "    2 no lamp here\n    1 no module\n    1 no rope here\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1 and "FAILED: files skipped as a whole: test_whole.py" in done.stdout


def test_the_rest_is_what_earlier_runs_did_not_pass(tmp_path: Path) -> None:
    """Tests of plug-ins run again; without an earlier run there is no rest."""
    others = {"pytest.ini": "", "tests/plugins/test_plugin.py": "def test_open():\n    pass\n"}
    write_texts(tmp_path, {**others, "test_some.py": TESTS + "def test_other():\n    pass\n"})
    refused = run_tests(tmp_path, "--rest", most=None)
    assert refused.returncode == 4 and "--rest: no earlier run" in refused.stderr, refused.stdout + refused.stderr
    runs = [run_tests(tmp_path, *arguments, most=None) for arguments in (["-k", "not other"], ["--rest"], ["--rest"])]
    whole = "2 passed, 3 skipped, 1 deselected"
    said = [re.sub(" in .*", "", done.stdout.splitlines()[-1]) for done in runs]
    assert said == [whole, whole, "1 passed, 3 skipped, 2 deselected"]


def run_tests(folder: Path, *arguments: str, most: str | None) -> subprocess.CompletedProcess[str]:
    """The tests of a folder, with the hooks of this suite."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LEXVL_MOST"))}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ |= {} if most is None else {"LEXVL_MOST_SKIPPED": most}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes", *arguments, str(folder)]
    return run_process(command, cwd=folder, env=environ)
