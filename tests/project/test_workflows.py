"""The workflows of GitHub: they call scripts of this repository, with options that exist, and may do little."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from lexvl_anserini.doctor import OF_DEVELOPERS

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
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


def read(path):
    """A workflow; YAML reads its key `on` as true."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in content.items()}


WORKFLOWS = {path.stem: read(path) for path in FILES}
JOBS = [(name, job, content) for name, flow in WORKFLOWS.items() for job, content in flow["jobs"].items()]
STEPS = [(name, job, step) for name, job, content in JOBS for step in content["steps"]]


def test_every_job_may_do_the_least():
    """Jobs that may write run from branches of the repository alone."""
    assert {*WORKFLOWS} == {"tests", "nightly", "docs", "release"}
    assert all(flow["permissions"] == READ for flow in WORKFLOWS.values())
    assert {(name, job): content["permissions"] for name, job, content in JOBS if "permissions" in content} == MAY
    assert all("pull_request_target" not in flow["on"] for flow in WORKFLOWS.values())
    assert all(0 < content["timeout-minutes"] <= 300 for _, _, content in JOBS)
    for name, job, content in JOBS:
        if (name, job) in MAY and "pull_request" in WORKFLOWS[name]["on"]:
            assert content["if"] == "github.event_name == 'push'", (name, job)
    assert WORKFLOWS["release"]["on"] == {"push": {"tags": ["v*"]}}


def test_actions_are_pinned_by_the_digest_of_a_commit():
    """One digest per action, and the version that a person reads beside it."""
    lines = [line for path in FILES for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = [re.fullmatch(r"\s*- uses: ([\w-]+/[\w-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line) for line in lines]
    assert len(lines) == sum("uses" in step for _, _, step in STEPS) and all(pinned), lines
    found = {(match[1], match[2], match[3]) for match in pinned}
    assert len(found) == len({name for name, _, _ in found})


def test_no_checkout_leaves_a_credential_behind_but_the_one_that_pushes():
    for name, job, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            kept = step.get("with", {}).get("persist-credentials", True)
            assert kept is ((name, job) == ("docs", "notebooks")), (name, job)


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
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {*setup["options.extras_require"]}
    pythons = [line.rpartition(" ")[2] for line in setup["metadata"]["classifiers"].splitlines() if "3." in line]
    assert WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == pythons
    for name, job, step in STEPS:
        environ = step.get("env", {})
        assert {*environ} <= {"PYTHON", "LEXVL_TEST_EXTRAS"}, (name, job)
        assert {*environ.get("LEXVL_TEST_EXTRAS", "test").split(",")} <= extras
        assert environ.get("PYTHON", "python3.11").removeprefix("python") in (*pythons, "${{ matrix.python }}")


def run(script, *arguments, cwd=ROOT, **environ):
    environment = {**os.environ, **environ}
    return subprocess.run(
        ["bash", ROOT / script, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_a_release_installs_every_extra_that_users_have():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    tried = re.findall(r"^  \[(\w+)\]='", (ROOT / ".ci/extras").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*tried} == {"none", *setup["options.extras_require"]} - OF_DEVELOPERS


def test_a_tag_has_the_version_of_the_package():
    done = run(".ci/dist", "v9.9.9")
    assert done.returncode == 1 and re.search(r"the tag is v9\.9\.9, but setup\.cfg has version \d", done.stderr)


def test_notebooks_replace_those_of_their_branch(tmp_path):
    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=tmp_path / "clone", capture_output=True, text=True, check=True)
        return done.stdout.split()

    (tmp_path / "clone").mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "remote"], check=True)
    git("init", "--quiet")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "first")
    done = run(".ci/notebooks", str(tmp_path / "clone"), str(tmp_path / "remote"), cwd=tmp_path / "clone")
    assert done.returncode == 1 and "has no notebooks" in done.stderr
    for name in ("one", "two"):
        folder = tmp_path / f"of {name}"
        folder.mkdir()
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": []}))
        done = run(".ci/notebooks", str(folder), str(tmp_path / "remote"), cwd=tmp_path / "clone")
        assert done.returncode == 0, done.stderr
        git("fetch", "--quiet", "--force", str(tmp_path / "remote"), "notebooks:notebooks")
        assert git("ls-tree", "--name-only", "notebooks") == [f"{name}.ipynb"]
    assert git("status", "--porcelain") == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "config":
        fields = [field for field in content["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert {"name", "description"} <= content.keys() and all(field["attributes"]["label"] for field in fields)
