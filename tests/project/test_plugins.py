"""The core line runs without any door; a missing door, or package of an extra, is one line that names the extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from declared import EXTRAS, ROOT, package_of, packages

from lexvl_anserini import cli
from lexvl_anserini.ground.errors import MissingExtra
from lexvl_anserini.ground.registry import DOORS, EXTRA_PACKAGES, door, require

pytestmark = pytest.mark.extended

HOME = Path("lexvl_anserini/doors")

# A use of each door, as a command.
USES = {
    "cluster": ("encode", "--corpus", "samples", "--output", "s3://bucket/samples"),
    "onnx": ("export-onnx", "--encoder", "bag-of-tokens", "--checkpoint", "minilm", "--output", "exports"),
    "pages": ("encode", "--corpus", "pages:reports", "--output", "impacts/reports"),
    "serving": ("serve", "--index", "indexes/demo"),
    "sharing": ("push", "indexes/demo", "me/demo", "--licence", "other"),
    "stores": ("search", "--index", "qdrant+file:stores/demo", "--query", "a red boat"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The two packages without the folder of doors; its removal is that of each single door."""
    folder = tmp_path_factory.mktemp("core")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lexvl_anserini", folder / "lexvl_anserini", ignore=ignored)
    shutil.copytree(ROOT / "eval", folder / "eval", ignore=ignored)
    return folder


def called(
    copy: Path, *command: str, environ: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """A command of the copy: nothing of the checkout can be imported in its process.

    `-S` leaves out the finder of an editable installation, which would find the doors in the checkout.
    """
    outside = (str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/attack"), "")
    paths = [str(copy), *(path for path in sys.path if path not in outside and not _is_checkout(Path(path)))]
    changed = {"PYTHONPATH": os.pathsep.join(paths), "LEXVL_STORAGE": str(copy / "storage")}
    return subprocess.run(
        [sys.executable, "-S", "-P", "-m", *command],
        cwd=copy,
        env={**os.environ, **changed, **(environ or {})},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def _is_checkout(path: Path) -> bool:
    return (path / "lexvl_anserini").is_dir() or (path / "lexvl_eval").is_dir()


@pytest.fixture(scope="module")
def core(copy) -> Path:
    shutil.rmtree(copy / HOME)
    return copy


LINE = (
    ("lexvl_anserini", "--help"),
    ("lexvl_anserini.encode", "--corpus", "demo", "--output", "impacts/demo"),
    ("lexvl_anserini.index", "impacts/demo", "--index", "indexes/demo"),
    ("lexvl_anserini.search", "--index", "indexes/demo", "--hits", "10", "--output", "runs/demo.trec"),
    ("lexvl_anserini.explain", "--index", "indexes/demo", "--query", "a red boat"),
    ("eval.demo", "--run", "runs/demo.trec"),
)

# Runs commands, each with its arguments, one after another; a command of exit code 0 returns.
RUN_ALL = """
import runpy, sys
for command in sys.stdin.read().splitlines():
    sys.argv = command.split("|")
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_the_line_needs_no_door(core) -> None:
    """In one process, which loads the libraries once; Lucene's postings spare it the kernels, new for each folder."""
    (core / "run_all.py").write_text(RUN_ALL)
    commands = "\n".join("|".join(command) for command in LINE)
    done = called(core, "run_all", environ={"LEXVL_POSTINGS": "lucene"}, stdin=commands)
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    measured = done.stdout[done.stdout.rindex("R@1 ") :]
    assert re.search(r"0?\.\d|\d\d\.\d", measured)


@pytest.mark.parametrize("name", sorted(USES))
def test_a_missing_door_is_one_line(core, name) -> None:
    done = called(core, "lexvl_anserini", *USES[name])
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == MissingExtra.exit_code, done.stderr
    assert lines == [
        f"error: lexvl_anserini.doors.{name} (there is no module lexvl_anserini.doors) needs an extra: "
        f"pip install 'lexvl-anserini[{DOORS[name]}]'"
    ]
    assert "Traceback" not in done.stderr


def test_every_door_is_in_the_table_and_has_its_extra() -> None:
    folders = {path.name for path in (ROOT / HOME).iterdir() if (path / "__init__.py").exists()}
    assert folders == set(DOORS) == {*USES, "adapters"}  # which is for callers from Python
    assert {*DOORS.values(), *EXTRA_PACKAGES.values(), "all"} <= set(EXTRAS)
    for module, extra in EXTRA_PACKAGES.items():
        assert package_of(module) in packages(extra), (module, extra)


def test_few_packages_are_required() -> None:
    """The eight that this project is built on, and what else the core imports (tests/project/test_requirements.py)."""
    assert len(packages()) <= 28
    assert {"pyserini", "torch", "transformers", "faiss-cpu", "ir-datasets", "ranx", "pandas", "beir"} <= packages()
    assert not packages() & set(map(package_of, EXTRA_PACKAGES))


def test_an_error_inside_a_door_is_not_a_missing_extra() -> None:
    with pytest.raises(MissingExtra, match=r"doors.stores .*\[stores\]"):
        door("stores.no_such_module")


def test_a_missing_package_of_an_extra_is_one_line(monkeypatch, capsys) -> None:
    def fails() -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.figure")

    monkeypatch.setattr(sys, "argv", ["lexvl"])
    with pytest.raises(SystemExit) as ended:
        cli.guarded(fails)
    assert ended.value.code == MissingExtra.exit_code
    expected = "this command (matplotlib is not installed) needs an extra: pip install 'lexvl-anserini[plots]'"
    assert capsys.readouterr().err == f"error: {expected}\n"
    monkeypatch.setitem(EXTRA_PACKAGES, "no_such_package", "plots")
    require("matplotlib")
    with pytest.raises(MissingExtra, match=r"no_such_package is not installed.*\[plots\]"):
        require("matplotlib", "no_such_package")
