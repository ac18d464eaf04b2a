"""Tar archives: every member is a file or is named, and a damaged archive never looks like a smaller one; tables."""

import io
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.lines import read_file_state
from lexvl_anserini.data.parquet import _read_pictures, is_text, read_batches, read_picture
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.ground.errors import DataError

BLOCK = 512


def file(name, data=b"-", **changes):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in changes.items():
        setattr(member, key, value)
    return member, data


def hard_link(name, target):
    return file(name, b"", type=tarfile.LNKTYPE, linkname=target)


def link(name, target):
    return file(name, b"", type=tarfile.SYMTYPE, linkname=target)


def tar(path, *members, kind=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=kind) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return path


def contents(path):
    archive = open_archive(path)
    return {name: archive.read(name).decode() for name in archive.members}


@pytest.fixture
def five(tmp_path):
    """Five members of one block each, at 0, 1024, ...; the end at 5120."""
    return tar(tmp_path / "five.tar", *(file(f"{number}.txt", b"%d" % number) for number in range(5)))


@pytest.mark.parametrize("at", [3, 124, 148, 156])
def test_a_flipped_bit_in_a_header_is_an_error_with_its_place(five, at):
    data = bytearray(five.read_bytes())
    data[4 * BLOCK + at] ^= 1
    five.write_bytes(data)
    with pytest.raises(DataError, match=r"five\.tar: no valid header at byte 2,048, the archive is damaged"):
        load_dataset(f"folder:{five}")


def test_a_cut_archive_is_an_error_wherever_it_is_cut(five):
    whole = five.read_bytes()
    assert len(contents(five)) == 5
    for size in range(0, 5120 + 2 * BLOCK, 100):
        five.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"five\.tar: "):
            contents(five)
    for size in (3072, 5120, 5120 + BLOCK):
        five.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"five\.tar: cut off at byte {size:,}, where a tar has"):
            contents(five)
    five.write_bytes(whole[: 5120 + 2 * BLOCK])
    assert len(contents(five)) == 5


def test_bytes_after_the_end_are_an_error(five):
    whole, member, block = five.read_bytes(), 2 * BLOCK, bytes(BLOCK)
    after = "other bytes at byte {}, after the end of the archive at byte {}"
    for data, problem in (
        (whole * 2, after.format("10,240", "5,120")),
        (whole[:member] + 2 * block + whole[member:], after.format("2,048", "1,024")),
        (whole[:member] + block + whole[member:], "no valid header at byte 1,024"),
    ):
        five.write_bytes(data)
        with pytest.raises(DataError, match=problem):
            contents(five)
    five.write_bytes(whole + bytes(1 << 21))
    assert len(contents(five)) == 5


def test_links_are_followed_inside_the_archive(tmp_path, caplog):
    first = (link("before", "a/x"), file("a/x", b"1"), hard_link("hard", "./a/x"), file("a/x", b"2"))
    links = (link("a/b/up", "../x"), link("chain", "a/b/up"), hard_link("later", "z"))
    path = tar(tmp_path / "a.tar", *first, *links, file("z", b"3"))
    of_the_second = dict.fromkeys(("a/x", "before", "a/b/up", "chain"), "2")
    assert contents(path) == {**of_the_second, "hard": "1", "later": "3", "z": "3"}
    assert caplog.messages == [f"{path}: skipped, replaced by a later member of its name: 1 (a/x)"]


def test_links_to_nothing_are_named(tmp_path, caplog):
    outside = (link("1", "/etc/passwd"), link("2", "../1"), hard_link("3", "../x"), hard_link("4", "none"))
    circle = (link("5", "6"), link("6", "5"), link("7", "7"))
    path = tar(tmp_path / "a.tar", file("x"), *outside, *circle, link("8", "folder"), file("folder/y"))
    assert contents(path).keys() == {"x", "folder/y"}
    assert caplog.messages == [f"{path}: skipped, a link to no file of the archive: 8 (1, 2, 3, 4, 5, ...)"]


def test_names_are_made_plain_or_refused(tmp_path, caplog):
    names = ("x/./b", "./c//d", "../e", "/f", "g/../h", ".", "i")
    path = tar(tmp_path / "a.tar", *(file(name, name.encode()) for name in names))
    assert contents(path) == {"x/b": "x/./b", "c/d": "./c//d", "i": "i"}
    assert open_archive(path).read("x/./b") == b"x/./b"
    assert caplog.messages == [f"{path}: skipped, a name that leads out of the archive: 4 (../e, /f, g/../h, .)"]


def test_what_is_no_file_is_named(tmp_path, caplog):
    kinds = {"pipe": tarfile.FIFOTYPE, "disk": tarfile.BLKTYPE, "tty": tarfile.CHRTYPE, "odd": b"Q"}
    members = [file(name, b"", type=kind) for name, kind in kinds.items()]
    sparse = file("holes", b"", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"})
    path = tar(tmp_path / "a.tar", *members, sparse, file("folder", b"", type=tarfile.DIRTYPE), file("x"))
    assert contents(path) == {"x": "-"}
    skipped = ["a pipe or a device: 3 (pipe, disk, tty)", "a member of an unknown kind: 1 (odd)"]
    assert caplog.messages == [f"{path}: skipped, {what}" for what in (*skipped, "a sparse file: 1 (holes)")]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", ["d/" * 200 + "x", "Käse::日本.jpg"])
def test_long_and_foreign_names_and_links_of_both_formats(tmp_path, kind, name):
    assert contents(tar(tmp_path / "a.tar", file(name), hard_link("y", name), kind=kind)) == {name: "-", "y": "-"}


def test_damaged_extended_headers_are_errors(tmp_path):
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tar(tmp_path / "a.tar", file("x"), file("n" * 300), kind=kind)
        data = bytearray(path.read_bytes())
        data[4 * BLOCK + 3] ^= 1  # the header that follows the extended one
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.tar: damaged header at byte 1,024"):
            contents(path)


def test_a_negative_size_is_an_error(tmp_path):
    path = tar(tmp_path / "a.tar", file("x"), file("y"))
    data = bytearray(path.read_bytes())
    data[2 * BLOCK + 124 : 2 * BLOCK + 136] = b"\xff" * 10 + b"\xfc\x00"  # -1024, in base 256
    data[2 * BLOCK + 148 : 2 * BLOCK + 156] = b" " * 8
    data[2 * BLOCK + 148 : 2 * BLOCK + 155] = b"%06o\0" % sum(data[2 * BLOCK : 3 * BLOCK])
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tar: .*(negative|no valid header|damaged)"):
        contents(path)


@pytest.mark.parametrize("nested", [False, True])
def test_row_groups_of_pictures_are_bounded(tmp_path, monkeypatch, nested):
    """Of 100 equal pictures one is held; what a group says that it has is compared before it is read."""
    values = [{"bytes": b"x" * 5000, "path": None} if nested else b"x" * 5000] * 100
    parquet.write_table(pyarrow.table({"image": values}), path := tmp_path / "t.parquet")
    assert read_picture(path, 99) == b"x" * 5000
    assert _read_pictures(path, read_file_state(path), 0).nbytes < 20_000
    _read_pictures.cache_clear()
    monkeypatch.setattr("lexvl_anserini.data.parquet.GROUP_BYTES", 1000)
    with pytest.raises(DataError, match=r"t.parquet: row group 0 has 5,\d+ bytes, expected at most 1,000"):
        read_picture(path, 0)


def test_a_dictionary_that_stands_for_gigabytes_of_texts(tmp_path, monkeypatch):
    parquet.write_table(pyarrow.table({"text": ["a" * 100_000] * 100}), path := tmp_path / "t.parquet")
    monkeypatch.setattr("lexvl_anserini.data.parquet.MOST_LINE", 1_000_000)
    assert len(next(rows := read_batches(path, {"text": is_text}))) == len(next(rows)) == 9
    monkeypatch.setattr("lexvl_anserini.data.parquet.MOST_LINE", 99_999)
    with pytest.raises(DataError, match=r"a text of 100,000 bytes, expected at most 99,999"):
        next(read_batches(path, {"text": is_text}))
