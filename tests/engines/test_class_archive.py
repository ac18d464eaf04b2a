"""The archive of Java's classes: which file is taken, when one is made, and a start of Java with one."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from lexvl_anserini.engines import class_archive
from lexvl_anserini.engines.archiving import remove_old
from lexvl_anserini.engines.class_archive import DETACHED, MAKER, MAPPED, archive_name, archive_option

CONTENT = b"classes"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def runtime(tmp_path: Path) -> tuple[Path, list[Path]]:
    (tmp_path / "home").mkdir()
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in jars:
        jar.write_bytes(b"jar")
    return tmp_path / "home", jars


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would run in the background."""
    ran: list[list[str]] = []
    monkeypatch.setattr(class_archive.subprocess, "run", lambda command, **_: ran.append(command))
    return ran


def put(data: Path, runtime: tuple[Path, list[Path]], content: bytes = CONTENT) -> Path:
    """An archive whose name has the checksum of `CONTENT`."""
    path = data / "java" / f"{archive_name(*runtime)}-{zlib.crc32(CONTENT):08x}.jsa"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_old_archives_go(tmp_path: Path) -> None:
    """Those of another state of the same runtime, and the oldest of others; a mark of a first start is no archive."""
    for number in range(10):
        (tmp_path / f"{number}-state-0.jsa").touch()
        os.utime(tmp_path / f"{number}-state-0.jsa", (number, number))
    for name in ("7-other-0.jsa", "7-other.wanted", "3-state.wanted"):
        (tmp_path / name).touch()
    remove_old(tmp_path, tmp_path / "7-state-0.jsa")
    left = {f"{number}-state-0.jsa" for number in range(3, 10)}
    assert {path.name for path in tmp_path.iterdir()} == left | {"3-state.wanted"}


def test_the_second_start_has_an_archive_made_and_no_other_of_that_day(
    data: Path, runtime: tuple[Path, list[Path]], commands: list[list[str]]
) -> None:
    assert archive_option(*runtime) == [] and commands == []
    assert archive_option(*runtime) == archive_option(*runtime) == []
    assert commands == [["/bin/sh", "-c", DETACHED, "sh", sys.executable, "-m", MAKER]]
    [wanted] = (data / "java").iterdir()
    os.utime(wanted, (0, wanted.stat().st_mtime - class_archive.PATIENCE_S))
    archive_option(*runtime)
    assert len(commands) == 2


def test_only_a_whole_archive_of_these_jars_that_nobody_else_can_write_is_taken(
    data: Path, runtime: tuple[Path, list[Path]], commands: list[list[str]]
) -> None:
    path = put(data, runtime)
    assert archive_option(*runtime) == [f"-XX:SharedArchiveFile={path}", *MAPPED]
    for content in (b"", CONTENT[:-1], b"classer"):
        put(data, runtime, content)
        assert archive_option(*runtime) == []
    put(data, runtime).chmod(0o620)
    assert archive_option(*runtime) == []
    path.chmod(0o600)
    assert archive_option(*runtime)
    os.utime(runtime[1][1], (1, 1))
    assert archive_option(*runtime) == []


def test_a_cache_that_cannot_be_used_costs_nothing_else(
    data: Path, runtime: tuple[Path, list[Path]], commands: list[list[str]]
) -> None:
    data.write_text("no folder")
    assert archive_option(*runtime) == archive_option(*runtime) == []
    assert archive_option(runtime[0], [data / "gone.jar"]) == []
    assert commands == []


START = """
import sys
from lexvl_anserini.engines import jvm
jvm.start()
print(jvm.java_class("org.apache.lucene.util.Version").LATEST.major)
"""


def started(data: Path, options: str) -> str:
    environ = {**os.environ, "LEXVL_DATA": str(data), "LEXVL_JAVA_OPTIONS": options}
    command = [sys.executable, "-c", START]
    child = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=900)
    assert child.returncode == 0 and child.stderr == "", child.stderr
    return child.stdout


@pytest.mark.heavy
def test_java_takes_lucene_from_an_archive_unless_the_user_or_the_archive_decides_otherwise(data: Path) -> None:
    log = "-Xlog:class+load"
    from_archive = "org.apache.lucene.util.Version source: shared objects file"
    # Of two makers at once one makes it.
    makers = [subprocess.Popen([sys.executable, "-m", MAKER], stderr=subprocess.DEVNULL) for _ in range(2)]
    assert 0 in [maker.wait() for maker in makers]
    [archive] = (data / "java").iterdir()
    assert from_archive in started(data, log)
    assert from_archive not in started(data, f"{log} -Xshare:off")
    assert len(started(data, "-XX:-UseCompressedOops").splitlines()) == 1
    # A sound file that is no archive: Java says nothing and starts.
    content = b"no archive of Java" * 1000
    archive.rename(archive.with_name(f"{archive.stem.rpartition('-')[0]}-{zlib.crc32(content):08x}.jsa"))
    [archive] = (data / "java").iterdir()
    archive.write_bytes(content)
    assert len(started(data, "").splitlines()) == 1
