"""This machine: what does not fit is refused in one sentence; users without a home folder that can be written."""

import ast
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock
from zipfile import ZipFile

import packaging
import pytest
from corpus_folders import write_beir
from declared import GOLDEN, ROOT, SETUP
from invoking import run_process
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lexvl_anserini.engines import jvm
from lexvl_anserini.ground import machine
from lexvl_anserini.ground.machine import (
    MODEL_LIBRARIES,
    cache_folder,
    choose_kernels_folder,
    expand_path,
    find_home_folder,
    find_lucene,
    find_version,
    list_versions,
    make_private_folder,
    read_declared_versions,
    split_path,
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


def test_versions_of_packages_and_of_lucene(tmp_path: Path) -> None:
    jvm.start()
    assert find_lucene(jvm.find_jar()) == ".".join(map(str, jvm.read_lucene_version()))
    (tmp_path / "text.jar").write_text("no archive")
    with ZipFile(tmp_path / "other.jar", "w") as archive:
        archive.writestr("a.txt", "")
    assert [find_lucene(tmp_path / name) for name in ("text.jar", "other.jar", "absent.jar")] == [None, None, None]
    assert find_version("packaging") == packaging.__version__
    assert list_versions(["numpy", "no-such-package"]) == {"numpy": find_version("numpy")}
    assert find_version("no-such-package") is None


UID = 54321
CAPABILITY = "+dac_read_search"  # to read the checkout and the environment, wherever they are


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files; the private folder is looked for anew."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(machine, "gettempdir", lambda: str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    make_private_folder.cache_clear()
    yield folder
    make_private_folder.cache_clear()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "LEXVL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))


def test_a_home_folder_that_can_be_written(tmp_path, temporary, monkeypatch, caplog) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (find_home_folder(), cache_folder()) == (tmp_path, tmp_path / ".cache/lexvl")
    assert (expand_path("~/pictures"), expand_path("~")) == (tmp_path / "pictures", tmp_path)
    for plain in ("a/~", "./~/a", "~$report.png"):
        assert expand_path(plain) == Path(plain)
    for folder in ("a", "b,c", "b,c,d"):
        (tmp_path / folder).mkdir()
    found = [split_path(f"~/{name}") for name in ("a", "a,x,y", "b,c", "b,c,d,e", "no,x,y")]
    assert found == [("~/a", ""), ("~/a", "x,y"), ("~/b,c", ""), ("~/b,c,d", "e"), ("~/no", "x,y")]
    assert choose_kernels_folder() == tmp_path / ".cache/lexvl/kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert choose_kernels_folder() == tmp_path / "named"
    assert not caplog.records and not list(temporary.iterdir())


def test_without_a_home_folder(homeless: None, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    private = temporary / f"lexvl-{os.geteuid()}"
    assert find_home_folder() == private == make_private_folder()
    assert private.stat().st_mode & 0o777 == 0o700
    assert expand_path("~/pictures") == private / "pictures"
    assert expand_path("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert cache_folder() == private / ".cache/lexvl"
    assert [record.getMessage() for record in caplog.records] == [
        f"{private}: keeps what belongs in a home folder; set HOME to a folder that can be written"
    ]


def test_a_home_folder_that_cannot_be_written(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.devnull)  # not even root writes there
    private = temporary / f"lexvl-{os.geteuid()}"
    assert find_home_folder() == Path(os.devnull)
    assert cache_folder() == private / ".cache/lexvl"
    for named in ("", f"{os.devnull}/named"):
        monkeypatch.setenv("NUMBA_CACHE_DIR", named)
        assert choose_kernels_folder() == private / ".cache/lexvl/kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert choose_kernels_folder() == tmp_path / "named"
    # What is there can be read.
    (tmp_path / ".cache/lexvl").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(machine, "check_writable", lambda folder: False)
    assert cache_folder() == tmp_path / ".cache/lexvl"
    assert choose_kernels_folder() == private / ".cache/lexvl/kernels"


@pytest.mark.parametrize("kind", ["link", "file", "open folder"])
def test_a_folder_of_the_private_name_that_others_can_write(kind: str, tmp_path: Path, temporary: Path) -> None:
    name = temporary / f"lexvl-{os.geteuid()}"
    if kind == "link":
        name.symlink_to(tmp_path)
    elif kind == "file":
        name.touch()
    else:
        name.mkdir()
        name.chmod(0o770)
    assert make_private_folder() == make_private_folder() != name
    assert make_private_folder().stat().st_mode & 0o777 == 0o700


def test_no_temporary_folder(homeless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gettempdir", lambda: f"{os.devnull}/none")
    assert not machine.check_writable(cache_folder())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="lexvl-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root runs commands as another user")
@pytest.mark.extended
def test_the_line_of_an_unknown_user_without_home_in_an_environment_of_root(open_folder: Path) -> None:
    world, here, output, temporary = (open_folder / name for name in ("world", "here", "output", "temporary"))
    write_beir(world, {"d1": "a red boat", "d2": "two dogs"}, {"q1": "the boat"}, [("q1", "d1")])
    for folder, mode in ((here, 0o755), (output, 0o777), (temporary, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    environ = {"PATH": os.environ["PATH"], "LANG": "C", "TMPDIR": str(temporary), "HF_HUB_OFFLINE": "1"}
    user = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    user += [f"--inh-caps={CAPABILITY}", f"--ambient-caps={CAPABILITY}"]
    encoder = ("--encoder", "bag-of-tokens", "--checkpoint", str(GOLDEN / "splade/ckpt_bert"))
    for arguments in (
        ("--version",),
        ("encode", "--corpus", f"beir:{world}", *encoder, "--output", str(output / "impacts")),
        ("index", str(output / "impacts"), "--index", str(output / "index")),
        ("search", "--index", str(output / "index"), "--output", str(output / "run.trec")),
        ("score", "--run", str(output / "run.trec"), "--measure", "RR"),
    ):
        command = ["setpriv", *user, sys.executable, "-m", "lexvl_anserini", *arguments]
        done = run_process(command, cwd=here, env=environ)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("set HOME to a folder that can be written") == 1, done.stderr
    assert "1.0000" in done.stdout
    assert not list(here.iterdir())
    assert (temporary / f"lexvl-{UID}/.cache/lexvl").is_dir()
