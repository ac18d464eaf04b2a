"""What is installed: Pythons and model libraries that do not fit are refused with one sentence before they are used."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import packaging
import pytest
from declared import ROOT, SETUP
from invoking import run_process
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lexvl_anserini.engines import jvm
from lexvl_anserini.ground.machine import (
    MODEL_LIBRARIES,
    find_lucene,
    find_version,
    list_versions,
    read_declared_versions,
)

CHECK = "from lexvl_anserini.ground.machine import check_model_libraries; check_model_libraries()"


def python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python in the checkout; packages in the folder `path` come before the installed ones."""
    known = [str(path) if path else "", os.environ.get("PYTHONPATH", ""), str(ROOT)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, known))}
    return run_process([sys.executable, *arguments], cwd=ROOT, env=environ)


def distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    """Metadata of a package without its modules."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (about / "METADATA").write_text("\n".join([*head, *lines]))


def test_the_package_is_imported_by_the_pythons_of_setup_cfg_only() -> None:
    code = (
        "import sys\n"
        "for minor in range(7, 21):\n"
        "    sys.version_info = (3, minor, 1)\n"
        "    sys.modules.pop('lexvl_anserini', None)\n"
        "    try:\n        import lexvl_anserini\n        print(minor, 'yes')\n"
        "    except SystemExit as refused:\n        print(minor, refused)\n"
    )
    said = dict(line.split(" ", 1) for line in python("-c", code).stdout.splitlines())
    accepted = [minor for minor, text in said.items() if text == "yes"]
    declared = SpecifierSet(SETUP["options"]["python_requires"])
    assert accepted == [str(minor) for minor in range(7, 21) if f"3.{minor}.1" in declared]
    assert said["10"].startswith("error: LexVL needs Python 3.11 to 3.14, ") and " is 3.10; make " in said["10"]


@pytest.mark.parametrize("module", ["setup.py", "lexvl_anserini/encode.py", "eval/score.py"])
def test_an_unsupported_python_gets_one_sentence(module: str) -> None:
    code = (
        "import runpy, sys, typer, numpy, orjson, setuptools\n"
        f"sys.version_info = (3, 10, 1)\nsys.argv[1:] = ['--version']\nrunpy.run_path({module!r}, run_name='__main__')"
    )
    done = python("-c", code)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"error: LexVL needs Python 3\.11 to 3\.14, .* is 3\.10; .*\n", done.stderr), done.stderr


@pytest.mark.parametrize("name", ["setup.py", "lexvl_anserini/__init__.py"])
def test_older_pythons_can_parse_the_refusal(name: str) -> None:
    ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 7))


def test_a_torch_of_another_version_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    distribution(tmp_path, "torch", "2.4.0")
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')\n")
    needed = ",".join(sorted(map(str, read_declared_versions()["torch"]), reverse=True))
    for command in (
        ("encode", "--encoder", "bag-of-tokens"),
        ("encode", "--describe", "vdr"),
        ("train", "--recipe", "runs/recipes/demo-vdr.yaml", "--dry-run"),
    ):
        done = python("-m", "lexvl_anserini", *command, path=tmp_path)
        expected = f"error: torch 2.4.0 is installed, expected {needed}; pip install 'torch{needed}'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


def test_missing_libraries_and_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """`-S` hides what is installed, links show the two packages without the metadata that may lie beside them."""
    (tmp_path / "packaging").symlink_to(Path(packaging.__file__).parent)
    (tmp_path / "lexvl_anserini").symlink_to(ROOT / "lexvl_anserini")

    def checked() -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return run_process([sys.executable, "-S", "-c", CHECK], cwd=tmp_path, env=environ)

    done = checked()
    assert done.stderr.splitlines()[-1].endswith("InstallationError: torch is not installed; pip install 'torch'")
    distribution(tmp_path, "lexvl-anserini", "0.1.0", "Requires-Dist: torch<3,>=2.9")
    done = checked()
    assert done.stderr.splitlines()[-1].endswith("torch is not installed; pip install 'torch>=2.9,<3'")
    for library in ("torch", "transformers"):  # modules without metadata: their import decides
        (tmp_path / f"{library}.py").touch()
    assert checked().returncode == 0


@pytest.mark.parametrize(
    ("version", "fits"), [("2.9.0", True), ("2.13.0+cpu", True), ("2.8.1", False), ("2.9.0rc1", False), ("3.0", True)]
)
def test_versions_at_the_ends_of_the_range(tmp_path: Path, version: str, fits: bool) -> None:
    distribution(tmp_path, "lexvl-anserini", "0.1.0", "Requires-Dist: torch<3,>=2.9", 'Requires-Dist: a; extra == "b"')
    distribution(tmp_path, "torch", version)
    assert (python("-c", CHECK, path=tmp_path).returncode == 0) is fits


def test_a_newer_version_than_the_tested_ones_is_one_remark(tmp_path: Path) -> None:
    tested = MODEL_LIBRARIES["torch"]
    log = "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s')"
    said = f"torch 2.99.1 is newer than {tested}, the newest version that was tested\n"
    for version, remark in (("2.99.1", said), (f"{tested}.7", "")):
        (tmp_path / version).mkdir()
        distribution(tmp_path / version, "torch", version)
        distribution(tmp_path / version, "transformers", MODEL_LIBRARIES["transformers"])
        done = python("-c", f"{log}\n{CHECK}\ncheck_model_libraries()", path=tmp_path / version)
        assert (done.returncode, done.stderr) == (0, remark)


def test_the_tested_versions_are_the_newest_of_the_constraints() -> None:
    """`tests/run.sh --python VERSION --pin` writes constraints; MODEL_LIBRARIES follows them by hand."""
    files = [file.read_text() for file in (ROOT / "constraints").glob("*.txt")]
    for library, tested in MODEL_LIBRARIES.items():
        pins = [re.search(f"^{library}==(.+)$", text, re.MULTILINE) for text in files]
        assert Version(tested).release == max(Version(pin[1]) for pin in pins if pin).release[:2]


def test_lucene_of_a_jar(tmp_path: Path) -> None:
    jvm.start()
    assert find_lucene(jvm.find_jar()) == ".".join(map(str, jvm.read_lucene_version()))
    (tmp_path / "text.jar").write_text("no archive")
    with ZipFile(tmp_path / "other.jar", "w") as archive:
        archive.writestr("a.txt", "")
    assert [find_lucene(tmp_path / name) for name in ("text.jar", "other.jar", "absent.jar")] == [None, None, None]


def test_versions_of_packages() -> None:
    assert find_version("packaging") == packaging.__version__
    assert list_versions(["numpy", "no-such-package"]) == {"numpy": find_version("numpy")}
    assert find_version("no-such-package") is None
