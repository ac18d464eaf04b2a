"""Two writers of one output, and processes that die: one whole result, one line for the loser, no litter."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.files import atomic_write, clear_remains, disk_errors, new_folder, same_file, sole_writer

WRITING = "another process is writing it; wait for it or name another output"


@contextmanager
def folder_of_one(path: Path):
    """`new_folder` with the interface of `atomic_write`."""
    with new_folder(path) as part, open(part / "file", "wb") as out:
        yield out


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(path: Path) -> bytes:
    return (path / "file" if path.is_dir() else path).read_bytes()


@pytest.mark.parametrize("write", [atomic_write, folder_of_one])
def test_the_second_writer_of_an_output_gets_one_line(tmp_path, write):
    """Also a second thread: on the former code it took the first one's file, which then had a hole of zero bytes."""
    path = tmp_path / "out"

    def second() -> None:
        with write(path) as out:
            out.write(b"second")

    with ThreadPoolExecutor(1) as other:
        with write(path) as out:
            out.write(b"first, ")
            out.flush()
            with pytest.raises(ArtefactError, match=f"out: {WRITING}"):
                other.submit(second).result()
            with pytest.raises(ArtefactError, match=WRITING):
                second()
            out.write(b"whole")
        assert content(path) == b"first, whole" and names(tmp_path) == ["out"]
        other.submit(second).result()
    assert content(path) == b"second" and names(tmp_path) == ["out"]


@pytest.mark.parametrize("write", [atomic_write, folder_of_one])
def test_who_holds_an_output_may_write_it(tmp_path, write):
    path = tmp_path / "out"
    with sole_writer(path, folder=write is folder_of_one):
        with ThreadPoolExecutor(1) as other, pytest.raises(ArtefactError, match=WRITING):
            other.submit(write(path).__enter__).result()
        with write(path) as out:
            out.write(b"mine")
        assert content(path) == b"mine"
    with sole_writer(path, folder=write is folder_of_one):
        assert len(names(tmp_path)) == 2
    assert content(path) == b"mine" and names(tmp_path) == ["out"]


@pytest.mark.parametrize("write", ["atomic_write", "new_folder"])
def test_a_killed_writer_leaves_a_part_that_the_next_writer_takes(tmp_path, write):
    code = f"""
import os, signal, sys
from pathlib import Path
from lexvl_anserini.files import {write}
with {write}(Path(sys.argv[1])) as out:
    out.write(b"long and unfinished") if hasattr(out, "write") else (out / "left").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for name in ("out", "removed"):
        assert subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False).returncode == -9
        assert names(tmp_path) == [f"{name}.part"]
        if name == "removed":
            clear_remains(tmp_path / name)
            assert names(tmp_path) == []
            continue
        with (atomic_write if write == "atomic_write" else folder_of_one)(tmp_path / name) as out:
            out.write(b"new")
        assert content(tmp_path / name) == b"new"
        assert names(tmp_path) == ["out"]
        if write == "new_folder":
            assert names(tmp_path / "out") == ["file"]
            (tmp_path / "out/file").unlink()
            (tmp_path / "out").rmdir()
        else:
            (tmp_path / "out").unlink()


def test_what_is_being_written_is_no_remains(tmp_path):
    with ThreadPoolExecutor(1) as other, atomic_write(tmp_path / "out") as out:
        out.write(b"mine")
        other.submit(clear_remains, tmp_path / "out").result()
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_a_folder_that_was_being_replaced_gets_its_name_back(tmp_path):
    """Where names cannot be swapped, a process may die between two renames."""
    (tmp_path / "index.old").mkdir()
    (tmp_path / "index.old/file").write_text("whole")
    (tmp_path / "index.part").mkdir()
    clear_remains(tmp_path / "index")
    assert names(tmp_path) == ["index"] and (tmp_path / "index/file").read_text() == "whole"


def test_an_output_of_another_kind_is_refused_before_any_work(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.part").symlink_to(tmp_path / "file")
    for name in ("folder", "pipe", "link"):
        with pytest.raises(ArtefactError, match=f"{name}: .*choose another output"), atomic_write(tmp_path / name):
            pytest.fail("the work began")
    with pytest.raises(ArtefactError, match="file: exists and is no folder"), new_folder(tmp_path / "file"):
        pytest.fail("the work began")
    assert (tmp_path / "file").read_bytes() == b""


def test_a_file_that_is_replaced_while_it_is_read(tmp_path):
    path = tmp_path / "run"
    path.write_text("old")
    with same_file(path):
        pass
    with pytest.raises(ArtefactError, match=f"run: {WRITING}"), same_file(path), atomic_write(path) as out:
        out.write(b"new")
    with pytest.raises(ArtefactError, match=f"run: {WRITING}"), same_file(path):
        path.unlink()


def test_the_error_of_another_file_is_not_blamed_on_the_output(tmp_path):
    """A corpus that cannot be read is no output that cannot be written."""
    with pytest.raises(PermissionError, match="corpus"), disk_errors(tmp_path / "out"):
        raise PermissionError(13, "Permission denied", str(tmp_path / "corpus"))
    for inside in ("out", "out.part", "out/docs/shard", "."):
        with pytest.raises(ArtefactError, match="out: cannot be written"), disk_errors(tmp_path / "out"):
            raise PermissionError(13, "Permission denied", str(tmp_path / inside))
    with pytest.raises(ArtefactError, match="elsewhere: the disk is full"), disk_errors(tmp_path / "out"):
        raise OSError(28, "No space left on device", "elsewhere")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("I/O error: No space left on device (os error 28)", r"out: the disk is full \(1,234 bytes needed\); free"),
        ("IOException: No space left on device", "out: the disk is full"),
        ("File too large (os error 27)", "out: larger than this disk"),
        ("Read-only file system", "out: cannot be written"),
    ],
)
def test_what_other_languages_say_about_the_disk(tmp_path, said, line):
    with pytest.raises(ArtefactError, match=line), disk_errors(tmp_path / "out", 1234):
        raise RuntimeError(said)
