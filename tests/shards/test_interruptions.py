"""Encoding that a kill, a full disk or damage interrupts: the next call leaves the bytes of an undisturbed one."""

import errno
import os
import resource
from dataclasses import replace

import pytest
from attack.faults import Ended, draw_calls, faults, kills, mounted
from byte_towers import tree
from word_towers import DOCUMENTS, SMALL, encode, same_as_fresh, stopped

from lexvl_anserini.ground import files
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.shards import layout
from lexvl_anserini.shards import writing as request


@pytest.mark.parametrize(
    ("damage", "finished"),
    # Where all is finished, a shard of the right size is taken for whole.
    [("cut", False), ("cut", True), ("gone", False), ("gone", True), ("changed", False)],
)
def test_a_damaged_shard_is_encoded_again(tmp_path, encoded, damage, finished):
    if finished:
        encode(tmp_path / "out")
    else:
        stopped(tmp_path / "out", after=3)
    path = tmp_path / "out/docs/shard-00001.jsonl"
    whole = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(whole[:-5] if damage == "cut" else whole.replace(b"255", b"254"))
    encoded.clear()
    encode(tmp_path / "out")
    assert encoded == (["d08"] if finished else ["d08", "d24"])
    assert same_as_fresh(tmp_path / "out")


def test_an_unfinished_folder_of_another_making(tmp_path):
    """A plan by which nothing was encoded is no loss, for example because the encoder cannot read the corpus."""
    for after in (0, 2):
        stopped(tmp_path / f"{after}/out", after=after)
        if after:
            with pytest.raises(ArtefactError, match="unfinished shards of another request"):
                encode(tmp_path / f"{after}/out", DOCUMENTS[:9])
        encode(tmp_path / f"{after}/out", DOCUMENTS[:9], overwrite=after > 0)
        assert same_as_fresh(tmp_path / f"{after}/out", DOCUMENTS[:9])


def test_other_versions_do_not_continue_a_folder(tmp_path, monkeypatch):
    stopped(tmp_path / "out", after=2)
    monkeypatch.setattr(request, "list_versions", lambda packages: {"torch": "1.0"})
    with pytest.raises(ArtefactError, match=r'versions\.torch: .* found, "1\.0" requested'):
        encode(tmp_path / "out")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", range(8))
def test_no_space_at_any_write(tmp_path, monkeypatch, number, call):
    """Every file goes through fsync once; the disk is full at the n-th."""
    counted = iter(range(call))
    sync = files.sync_to

    def full(out):
        if next(counted, None) is None:
            raise OSError(number, os.strerror(number))
        sync(out)

    with monkeypatch.context() as patch, pytest.raises(ArtefactError, match="the disk is full|larger than this disk"):
        patch.setattr(files, "sync_to", full)
        patch.setattr(layout, "sync_to", full)
        encode(tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    assert not list((tmp_path / "out/docs").glob("*.part"))
    encode(tmp_path / "out")
    assert same_as_fresh(tmp_path / "out")


@pytest.mark.parametrize(
    "layout",
    [SMALL, replace(SMALL, compress=True), replace(SMALL, shard_format="parquet")],
    ids=lambda layout: layout.name(0),
)
@pytest.mark.parametrize("limit", [64, 200, 450])
def test_files_that_may_not_grow(tmp_path, layout, limit):
    """A real refusal of the kernel in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(ArtefactError, match="larger than this disk"):
            encode(tmp_path / "out", layout=layout)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out/manifest.json").exists()
    encode(tmp_path / "out", layout=layout)
    assert same_as_fresh(tmp_path / "out", layout=layout)


def test_a_full_file_system(tmp_path):
    with mounted(tmp_path / "small", "16k") as mount:
        with pytest.raises(ArtefactError, match="the disk is full; free some space"):
            encode(mount / "out", layout=replace(SMALL, contents=True))
        assert not (mount / "out/manifest.json").exists()


def finished_shards(output):
    """The shards that lie in a folder and that its plan or its manifest knows."""
    plans = [output / name for name in ("manifest.json", "unfinished.json") if (output / name).is_file()]
    listed = read_json(plans[0], "plan")["shards"] if plans else []
    return [shard["name"] for shard in listed if (output / shard["name"]).is_file()]


@kills
@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_anywhere_the_next_call_leaves_the_same_bytes(tmp_path, encoded, overwrite, share):
    """At every call that changes a file, in the middle of every write; no finished shard is encoded again."""

    def prepared(name):
        folder = tmp_path / name
        if overwrite:
            encode(folder / "out", DOCUMENTS[:20])
        folder.mkdir(exist_ok=True)
        return folder

    whole = prepared("whole")
    with faults(whole) as counted:
        encode(whole / "out", overwrite=overwrite)
    done = []
    for number in draw_calls(len(counted.calls), share):
        folder = prepared(str(number))
        with pytest.raises(Ended), faults(folder, number, after=number % 2 == 0):
            encode(folder / "out", overwrite=overwrite)
        done.append(len(finished_shards(folder / "out")))
        encoded.clear()
        encode(folder / "out", overwrite=overwrite)
        assert tree(folder / "out") == tree(whole / "out"), counted.calls[number - 1]
        assert overwrite or len(encoded) <= 4 - done[-1], "a finished shard was encoded again"
    assert len(done) > 40 / share and {*done} == {0, 1, 2, 3, 4}
