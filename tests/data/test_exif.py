"""EXIF data as metadata: what is read, what makes no sense, and data that would fill the memory or lead in a circle."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from PIL import Image

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.exif import Facts, read_facts
from lexvl_anserini.ground.errors import LexvlError, UsageError

MAKE, MODEL, ORIENTATION, CHANGED, EXIF, GPS, TAKEN = 0x010F, 0x0110, 0x0112, 0x0132, 0x8769, 0x8825, 0x9003
TOWER = {1: "N", 2: (48.0, 51.0, 30.0), 3: "W", 4: (2.0, 17.0, 40.0)}


def saved(path: Path, place: Any = None, taken: Any = None, **tags: Any) -> str:
    """A picture, wider than high, with tags of the first directory by `t271` and such."""
    exif = Image.Exif()
    for name, value in tags.items():
        exif[int(name[1:])] = value
    if taken is not None:
        exif.get_ifd(EXIF)[TAKEN] = taken
    if place is not None:
        exif.get_ifd(GPS).update(place)
    Image.new("RGB", (40, 30), (200, 30, 30)).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_what_a_phone_writes(tmp_path: Path, suffix: str) -> None:
    where = saved(tmp_path / f"a.{suffix}", TOWER, "2019:05:17 12:33:01", t271="Google\0", t272="Pixel  7", t274=6)
    basic = {"date": "2019-05-17", "camera": "Google Pixel 7", "orientation": "portrait"}
    assert read_facts(where) == Facts(basic, ())
    assert read_facts(where, "gps") == Facts({**basic, "latitude": 48.858333, "longitude": -2.294444}, ())


def test_a_tiff_is_such_data_itself(tmp_path: Path) -> None:
    where = saved(tmp_path / "a.tiff", t272="Scanner", t306="1999:12:31 23:59:59", t274=6)
    assert read_facts(where) == Facts({"date": "1999-12-31", "camera": "Scanner", "orientation": "portrait"}, ())


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"taken": "2019:05:17 12:33:01", "t306": "2021:01:01 00:00:00"}, "2019-05-17"),
        ({"taken": "0000:00:00 00:00:00", "t306": "2021:01:01 00:00:00"}, "2021-01-01"),
        ({"t306": "2020:02:29"}, "2020-02-29"),
        ({"t306": "    :  :     :  :  "}, None),
        ({"t306": "2019:02:29 00:00:00"}, "an EXIF date that makes no sense"),
        ({"t306": "9999:01:01 00:00:00"}, "an EXIF date that makes no sense"),
        ({"t306": "yesterday"}, "an EXIF date that makes no sense"),
        ({"t306": 7}, "an EXIF date that makes no sense"),
        ({"t272": "2020-01-01"}, "an EXIF camera that makes no sense"),
        ({"t272": "x" * 5000}, "an EXIF camera that makes no sense"),
        ({"t272": "a\nb\x07"}, "an EXIF camera that makes no sense"),
        ({"t274": 9}, "an EXIF orientation that makes no sense"),
        ({"place": {**TOWER, 2: (91.0, 0.0, 0.0)}}, "an EXIF place that makes no sense"),
        ({"place": {**TOWER, 4: (0.0, 0.0)}}, "an EXIF place that makes no sense"),
        ({"place": {**TOWER, 1: "X"}}, "an EXIF place that makes no sense"),
        ({"place": {1: "N"}}, "an EXIF place that makes no sense"),
    ],
)
def test_values_that_make_no_sense_are_left_out_and_named(tmp_path: Path, tags: Any, expected: str | None) -> None:
    facts = read_facts(saved(tmp_path / "a.jpg", **tags), "gps")
    problem = [expected] if expected and expected.startswith("an ") else []
    assert list(facts.problems) == problem
    assert facts.metadata.get("date") == (None if problem else expected)
    assert not {"camera", "latitude", "longitude"} & facts.metadata.keys()
    assert ("orientation" in facts.metadata) == (problem != ["an EXIF orientation that makes no sense"])


def raw(path: Path, entries: bytes, count: int, size: int = 0) -> str:
    """A picture whose EXIF data are these entries of a directory, and zeros up to a size."""
    data = b"II*\0\x08\0\0\0" + struct.pack("<H", count) + entries + struct.pack("<L", 8)
    Image.new("RGB", (4, 4)).save(path, exif=b"Exif\0\0" + data.ljust(size, b"\0"))
    return str(path)


@pytest.mark.filterwarnings("ignore")
def test_bombs_and_circles(tmp_path: Path) -> None:
    tags = b"".join(struct.pack("<HHLL", tag, 7, 60_000, 100) for tag in range(1, 2001))
    bomb = raw(tmp_path / "bomb.jpg", tags, 2000, 65_000)
    circle = raw(tmp_path / "a.jpg", struct.pack("<HHLLHHLL", EXIF, 4, 1, 8, GPS, 4, 1, 8), 2)
    tracemalloc.start()
    try:
        for where in (bomb, circle):
            assert read_facts(where, "gps").metadata.keys() <= {"orientation"}
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore")
def test_damaged_data_never_raises_and_types_stay(tmp_path: Path) -> None:
    content = Path(saved(tmp_path / "a.jpg", TOWER, "2019:05:17 12:33:01", t272="Pixel", t274=6)).read_bytes()
    random, types = Random(1), {"date": str, "camera": str, "orientation": str, "latitude": float, "longitude": float}
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(random.randint(1, 12)):
            damaged[random.randrange(20, 300)] = random.randrange(256)
        (tmp_path / "b.jpg").write_bytes(damaged)
        for key, value in read_facts(str(tmp_path / "b.jpg"), "gps").metadata.items():
            assert type(value) is types[key]


def test_no_picture_has_no_facts(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("<html>")
    assert read_facts(str(tmp_path / "a.jpg")) == read_facts(str(tmp_path / "none.jpg")) == Facts()


def test_metadata_of_a_folder_only_if_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    saved(tmp_path / "a.jpg", TOWER, "2019:05:17 12:33:01")
    saved(tmp_path / "b.jpg", t306="0000-13-13")
    name = f"folder:{tmp_path}"
    assert [document.metadata for document in load_dataset(name).documents()] == [{}, {}]
    dataset = load_dataset(name, exif="basic")
    [first, second] = [dict(document.metadata) for document in dataset.documents()]
    assert first == {"date": "2019-05-17", "orientation": "landscape"} and second == {"orientation": "landscape"}
    assert f"{tmp_path}: skipped, an EXIF date that makes no sense: 1 (b.jpg)" in caplog.messages
    assert dataset.ref.exif == "basic" and load_dataset(name).ref.exif is None
    [first, _] = load_dataset(f"pictures:{tmp_path}", exif="gps").documents()
    assert first.metadata["latitude"] == 48.858333


def test_wrong_extents(tmp_path: Path) -> None:
    saved(tmp_path / "a.jpg")
    with pytest.raises(LexvlError, match="unknown extent of EXIF data 'bsic'; did you mean 'basic'"):
        load_dataset(f"folder:{tmp_path}", exif="bsic")
    with pytest.raises(UsageError, match="demo: EXIF data is read of pictures in a folder"):
        load_dataset("demo", exif="basic")
