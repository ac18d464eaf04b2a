"""Users without a home folder that can be written: where caches are, and the line as such a user runs it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pytest
from corpus_folders import write_beir
from invoking import run_process

from lexvl_anserini.ground import machine as user_folders
from lexvl_anserini.ground.machine import (
    cache_folder,
    choose_kernels_folder,
    expand_path,
    find_home_folder,
    make_private_folder,
)

GOLDEN = Path(__file__).parents[1] / "golden"
UID = 54321
CAPABILITY = "+dac_read_search"  # to read the checkout and the environment, wherever they are


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files; the private folder is looked for anew."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(user_folders, "gettempdir", lambda: str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    make_private_folder.cache_clear()
    yield folder
    make_private_folder.cache_clear()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither $HOME nor the system knows a home folder."""
    for name in ("HOME", "LEXVL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))


def test_a_home_folder_that_can_be_written(tmp_path, temporary, monkeypatch, caplog) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (find_home_folder(), cache_folder()) == (tmp_path, tmp_path / ".cache/lexvl")
    assert expand_path("~/pictures") == tmp_path / "pictures"
    assert expand_path("~") == tmp_path
    assert expand_path("a/~") == Path("a/~")
    assert expand_path("~$report.png") == Path("~$report.png")
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
    monkeypatch.setattr(user_folders, "check_writable", lambda folder: False)
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
    monkeypatch.setattr(user_folders, "gettempdir", lambda: f"{os.devnull}/none")
    assert not user_folders.check_writable(cache_folder())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach."""
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
