"""The evaluation has two names, `eval` in a checkout and `lexvl_eval` everywhere, and each of its modules is one."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from declared import ROOT
from invoking import run_process, write_texts

LIBRARIES = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]


def python(*arguments: str, folder: Path = ROOT, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python in `folder`, with `first` before everything that is installed."""
    environ = {**os.environ, "PYTHONPATH": str(first or "")}
    command = [sys.executable, "-W", "error", *arguments]
    return run_process(command, cwd=folder, env=environ)


def printed(*arguments: str, **place: Path) -> str:
    done = python(*arguments, **place)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SAME = """
import importlib, pickle, sys
{imports}
names = ["", ".measures", ".measures.metrics", ".score", ".analyses.classes.class_sets"]
for name in names:
    ours = importlib.import_module("lexvl_eval" + name)
    assert ours is importlib.import_module("eval" + name) is sys.modules["eval" + name], name
    assert ours.__name__ == ours.__spec__.name == "lexvl_eval" + name, ours.__spec__
    assert importlib.util.find_spec("eval" + name).origin == ours.__file__
import eval, lexvl_eval.measures.metrics
assert eval.measures.metrics is lexvl_eval.measures.metrics
assert b"lexvl_eval" in pickle.dumps(lexvl_eval.measures.metrics.Measure)
assert importlib.util.find_spec("eval.nothing") is None
"""


@pytest.mark.parametrize(
    ("options", "imports"),
    [
        ((), "import eval.measures.metrics, lexvl_eval.score"),
        ((), "from lexvl_eval.measures import metrics; from eval import score"),
        ((), "import lexvl_plugins.photos.demo"),
        ((), "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('eval.beir')"),
        # `-S` leaves out the finder of an editable installation: the checkout is not installed.
        (("-S",), f"sys.path += {LIBRARIES}\nimport eval.score"),
    ],
)
def test_a_module_is_one_in_whatever_order_its_names_are_imported(options: tuple[str, ...], imports: str) -> None:
    printed(*options, "-c", SAME.format(imports=imports))


SPAWNED = """
import multiprocessing
from eval.measures.metrics import parse_measure

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measure = pool.apply(parse_measure, ["RR@10"])
    print(measure == parse_measure("RR@10"), type(measure).__module__)
"""


def test_objects_go_to_spawned_processes_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    assert printed(str(tmp_path / "spawned.py"), first=ROOT) == "True lexvl_eval.measures.metrics\n"


def test_a_folder_eval_of_the_user_is_another_package(tmp_path: Path) -> None:
    write_texts(tmp_path, {"eval/__init__.py": "mine = 1\n", "eval/score.py": "mine = 2\n"})
    code = "import lexvl_eval.score, eval.score; print(eval.mine, eval.score.mine, lexvl_eval.score.__name__)"
    assert printed("-c", code, folder=tmp_path) == "1 2 lexvl_eval.score\n"


@pytest.mark.parametrize(("package", "imports"), [("lexvl_anserini", "lexvl_eval.score"), ("eval", "eval.score")])
def test_packages_of_two_checkouts_are_one_line(tmp_path: Path, package: str, imports: str) -> None:
    """The other checkout lacks the second package, so that the second one comes from this checkout."""
    write_texts(tmp_path, {f"{package}/__init__.py": (ROOT / package / "__init__.py").read_text()})
    library, evaluation = (tmp_path, ROOT) if package == "lexvl_anserini" else (ROOT, tmp_path)
    done = python("-c", f"import {imports}", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: lexvl_anserini is in {library}, but its evaluation in {evaluation}, expected one folder; "
        "install the checkout that you use: pip install -e CHECKOUT\n"
    )
