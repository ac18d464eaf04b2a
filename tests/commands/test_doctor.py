"""What the doctor shows: the machine, extras with their commands, and the exit code."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from invoking import call_command

from lexvl_anserini import doctor
from lexvl_anserini.ground import machine as installed
from lexvl_anserini.ground.errors import JavaError

REQUIRES = [
    "numpy>=1",
    'fastapi>=0.1; extra == "serve"',
    'no-such-package>=3; extra == "serve"',
    'numpy>=1000; extra == "photos"',
    'lexvl-anserini[photos,serve]; extra == "all"',
    'gone; python_version < "3"',
]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines = list(REQUIRES)
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    versions = {"numpy": "2.1", "fastapi": "0.120", "lexvl-anserini": "0.3"}
    for module in (installed, doctor):
        monkeypatch.setattr(module, "find_version", versions.get)
    monkeypatch.setattr(installed, "list_extras", lambda: ["all", "photos", "serve", "test"])
    return lines


def invoke(*arguments: str) -> tuple[int, str]:
    done = call_command(doctor.command, *arguments)
    return done.exit_code, done.output


def test_unmet_requirements(declared: list[str]) -> None:
    assert installed.list_unmet_requirements() == []
    assert installed.list_unmet_requirements("serve") == ["no-such-package>=3"]
    assert installed.list_unmet_requirements("all") == ["numpy>=1000", "no-such-package>=3"]
    declared.append("missing<2")
    assert installed.list_unmet_requirements() == ["missing<2"]


def test_everything_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path))
    monkeypatch.setenv("LEXVL_STORAGE", str(tmp_path / "file" / "below"))
    status, shown = invoke("--format", "json")
    rows = json.loads(shown)
    assert status == 0, rows
    assert list(rows)[: len(doctor.CHECKS)] == [*doctor.CHECKS]
    assert rows["measures"].endswith("compiles and computes")
    assert rows["caches"].startswith(f"{tmp_path}")


def test_what_is_missing_has_its_command_and_the_exit_code(declared, monkeypatch) -> None:
    checks = {"Java": Mock(side_effect=JavaError("no Java >= 21 found")), "lexvl-anserini": doctor.check_packages}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    status, shown = invoke()
    assert status == 1
    assert shown.splitlines() == [
        "Java            error: no Java >= 21 found",
        "lexvl-anserini  0.3, everything that it needs is installed",
        "[all]           pip install 'lexvl-anserini[all]' (missing: numpy>=1000, no-such-package>=3)",
        "[photos]        pip install 'lexvl-anserini[photos]' (missing: numpy>=1000)",
        "[serve]         pip install 'lexvl-anserini[serve]' (missing: no-such-package>=3)",
    ]
    declared.append("missing<2")
    del checks["Java"]
    assert invoke()[0] == 1 and "0.3 lacks what it needs; pip install 'missing<2'" in invoke()[1]
    # A checkout that is not installed.
    monkeypatch.setattr(doctor, "find_version", lambda name: None)
    expected = "lexvl-anserini  a checkout that is not installed; bash runs/setup.sh installs it\n"
    assert invoke() == (0, expected)
