"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.files import (
    atomic_write,
    disk_errors,
    exclusive,
    file_sha256,
    new_folder,
    publish,
    read_json,
    write_json,
)


def test_atomic_write(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as out:
        out.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), OSError(errno.ENOSPC, "no space")])
def test_a_failed_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises((ValueError, KeyboardInterrupt, ArtefactError)), atomic_write(path) as out:
        out.write(b"new")
        raise error
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "number,told",
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EFBIG, "larger than this disk"),
        (errno.EROFS, "cannot be written"),
        (errno.EIO, "cannot be written"),
        (errno.EACCES, "cannot be written"),
        (errno.ENOTDIR, "cannot be written"),
    ],
)
def test_what_the_disk_says(tmp_path, number, told):
    with pytest.raises(ArtefactError, match=f"a.txt: {told}"), disk_errors(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))


def test_other_errors_pass(tmp_path):
    with pytest.raises(OSError, match="Bad file"), disk_errors(tmp_path):
        raise OSError(errno.EBADF, "Bad file descriptor")


def test_json_round_trip(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, "é"], "a": None})
    assert (tmp_path / "a.json").read_text() == '{\n  "b": [\n    1,\n    "é"\n  ],\n  "a": null\n}\n'
    assert read_json(tmp_path / "a.json", "thing") == {"b": [1, "é"], "a": None}


@pytest.mark.parametrize("content,told", [("{", "not valid JSON"), ("[1]", "is a JSON list, expected an object")])
def test_json_that_is_none(tmp_path, content, told):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ArtefactError, match=f"thing {told}|{told}"):
        read_json(tmp_path / "a.json", "thing")


def test_json_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="a.json: no thing"):
        read_json(tmp_path / "a.json", "thing", DataError)
    with pytest.raises(ArtefactError, match="no thing"):
        read_json(tmp_path, "thing")


def test_one_writer_at_a_time(tmp_path):
    with exclusive(tmp_path), pytest.raises(ArtefactError, match="another process is writing"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_the_lock_goes_with_a_killed_process(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from lexvl_anserini.ground.files import exclusive\n"
        "with exclusive(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with exclusive(tmp_path):
        pass


def test_publish_and_digest(tmp_path):
    (tmp_path / "a.part").write_bytes(b"abc")
    publish(tmp_path / "a.part", tmp_path / "a")
    assert file_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert not (tmp_path / "a.part").exists()


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(SimpleNamespace(), id="macOS has no renameat2"),
        pytest.param(SimpleNamespace(renameat2=lambda *_: -1), id="a file system that cannot swap names"),
    ],
)
def test_a_folder_is_replaced_where_names_cannot_be_swapped(tmp_path, monkeypatch, library):
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: library)
    for content in ("older", "newer"):
        with new_folder(tmp_path / "folder") as part:
            (part / "file").write_text(content)
    assert (tmp_path / "folder/file").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
