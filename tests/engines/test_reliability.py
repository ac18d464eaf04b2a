"""What goes wrong around an index: killed processes, full disks, two writers, readers of what changes; and extremes."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attack.faults import Ended, faults, mounted, resize
from lucene_indexes import TERMS, expect, held, ranked, shards
from shard_folders import write_dense_shards, write_shards, write_text_shards

from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.ground.errors import ArtefactError, LexvlError
from lexvl_anserini.ground.files import new_folder
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import Impacts
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_anserini.searching.shared_terms import explain_documents

# ---- kill -9

OLD = [("d1", {"a": 3, "b": 1}), ("d2", {}), ("é/😀", {"😀": 9, "a": 1})]
NEW = [(f"n{number}", {"a": number % 5 + 1, "日本": 2}) for number in range(50)]
FEW = [("n3", {"b": 7}), ("n4", {})]


class Change(NamedTuple):
    """A change of an index, what the index holds before and after it, and the shards of that."""

    act: Callable[[Path], Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    sources: Sequence[str] = ("new",)


CHANGES = {
    "build": Change(lambda root: build_index(root / "new", root / "index"), {}, dict(NEW)),
    "overwrite": Change(lambda root: build_index(root / "new", root / "index", overwrite=True), dict(OLD), dict(NEW)),
    "append": Change(
        lambda root: append_index(root / "index", root / "new"), dict(OLD), dict([*OLD, *NEW]), ("old", "new")
    ),
    "append a few": Change(
        lambda root: append_index(root / "index", root / "old"), dict(NEW), dict([*NEW, *OLD]), ("new", "old")
    ),
    "delete": Change(lambda root: delete_documents(root / "index", ["d1"]), dict(OLD), dict(OLD[1:]), ("old",)),
    "delete few": Change(lambda root: delete_documents(root / "index", ["n0", "n1"]), dict(NEW), dict(NEW[2:])),
    "delete many": Change(
        lambda root: delete_documents(root / "index", [f"n{number}" for number in range(20)]), dict(NEW), dict(NEW[20:])
    ),
    "replace few": Change(
        lambda root: append_index(root / "index", root / "few", replace=True),
        dict(NEW),
        dict(NEW + FEW),
        ("new", "few"),
    ),
}


def prepared(root, change):
    root.mkdir()
    write_shards(root / "new", NEW[:20], NEW[20:], terms=TERMS)
    shards(root / "old", OLD)
    shards(root / "few", FEW)
    if change.before:
        build_index(root / ("new" if change.before == dict(NEW) else "old"), root / "index")
    return root


def kill_and_repeat(root, change, number):
    """Whatever a killed process left: the index is the old one or the new one, and the same call makes the new one."""
    prepared(root, change)
    with pytest.raises(Ended), faults(root, number, after=number % 2 == 0):
        change.act(root)
    index = root / "index"
    found = held(index) if index.exists() else {}
    assert found in ({i: v for i, v in documents.items() if v} for documents in (change.before, change.after))
    change.act(root)
    expect(index, change.after)
    assert sorted(path.name for path in root.iterdir()) == ["few", "index", "new", "old"]
    assert check_index(index, [root / name for name in change.sources])["problems"] == 0


def calls_of(root, change):
    """How many calls that change a file an undisturbed change makes."""
    with faults(prepared(root, change)) as counted:
        change.act(root)
    return len(counted.calls)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("build", 0.3),
        ("overwrite", 0.9),
        ("append", 0.6),
        ("append a few", 0.7),
        ("delete few", 0.8),
        ("replace few", 0.9),
    ],
)
def test_killed_and_run_again(tmp_path, name, share):
    calls = calls_of(tmp_path / "whole", CHANGES[name])
    kill_and_repeat(tmp_path / "root", CHANGES[name], int(share * calls))


@pytest.mark.heavy
@pytest.mark.parametrize("name", CHANGES)
def test_killed_anywhere_and_run_again(tmp_path, name):
    calls = calls_of(tmp_path / "whole", CHANGES[name])
    assert calls > 5
    # All of the last steps, in which the new index takes its place, and some of the others.
    for number in sorted({*range(1, calls, 4), *range(max(1, calls - 7), calls + 1)}):
        kill_and_repeat(tmp_path / str(number), CHANGES[name], number)


@pytest.mark.heavy
@pytest.mark.parametrize("seconds", [1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
def test_killed_while_java_writes(tmp_path, seconds):
    """At any moment, not only between steps of ours."""
    documents = [(f"d{n}", {f"t{(n * k) % 997}": k for k in range(1, 60)}) for n in range(20_000)]
    write_shards(tmp_path / "shards", *(documents[at : at + 4000] for at in range(0, 20_000, 4000)))
    command = [sys.executable, "-m", "lexvl_anserini.index", str(tmp_path / "shards"), "--index"]
    with subprocess.Popen(
        [*command, str(tmp_path / "index")], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    assert build_index(tmp_path / "shards", tmp_path / "index").documents == 20_000
    assert check_index(tmp_path / "index", tmp_path / "shards")["problems"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "shards"]


# ---- shards that no engine indexes


@pytest.mark.parametrize(
    ("write", "shards", "message"),
    [
        (write_shards, [[("d1", {"a": 1})], [("d2", {}), ("d1", {"a": 2})]], "document id 'd1' occurs twice"),
        (write_shards, [[("d" * 40_000, {"a": 1})]], "line 1: document id .*, of at most 32,766 bytes"),
        (partial(write_shards, terms=["a"]), [[]], "no document; nothing to index"),
        (write_text_shards, [[("a", "x y"), ("a", "z")]], "'a' occurs twice"),
        (write_text_shards, [[("a", ""), ("b", " ")]], "no document with text"),
        (write_text_shards, [[("a" * 40_000, "x"), ("b", "y")]], "line 1: document id 'a+.* of at most 32,766 bytes"),
        (write_dense_shards, [[("a", [1]), ("a", [2])]], "'a' occurs twice"),
        (write_dense_shards, [[]], "no document"),
    ],
)
def test_bad_shards_leave_nothing(tmp_path, write, shards, message):
    write(tmp_path / "shards", *shards)
    with pytest.raises(ArtefactError, match=message):
        build_index(tmp_path / "shards", tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    with mounted(tmp_path / "small", "256k") as mount:
        yield mount


# Too large for it.
MANY = [(f"d{n}", {f"t{(n * 7 + k * k) % 5003}": (n + k) % 250 + 1 for k in range(40)}) for n in range(4000)]

FULL = "small/index: the disk is full; free some space and run the same command again"


def test_a_full_disk_during_a_merge_is_one_line(tmp_path, small_disk, capfd):
    """Lucene merges in threads of its own, which printed their exceptions."""
    documents = [(f"d{n}", {f"t{(n * 7 + k * k) % 503}": (n + k) % 250 + 1 for k in range(40)}) for n in range(500)]
    write_shards(tmp_path / "shards", documents)
    index = build_index(tmp_path / "shards", small_disk / "index").path
    resize(small_disk, "200k")
    capfd.readouterr()
    many = [f"d{n}" for n in range(200)]  # so many that the segment is written again
    with pytest.raises(ArtefactError, match=FULL):
        delete_documents(index, many)
    assert capfd.readouterr().err == "" and [path.name for path in small_disk.iterdir()] == ["index"]
    resize(small_disk, "16m")
    assert delete_documents(index, many).documents == 300


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path, small_disk):
    write_shards(tmp_path / "shards", MANY)
    with pytest.raises(ArtefactError, match=FULL):
        build_index(tmp_path / "shards", small_disk / "index")
    assert list(small_disk.iterdir()) == []
    resize(small_disk, "16m")
    assert build_index(tmp_path / "shards", small_disk / "index").documents == 4000
    assert check_index(small_disk / "index", tmp_path / "shards")["problems"] == 0


def test_a_full_disk_keeps_the_index_that_was(tmp_path, small_disk, capfd):
    terms = [f"t{n}" for n in range(5003)]
    write_shards(tmp_path / "first", [("d", {"t1": 1})], terms=terms)
    write_shards(tmp_path / "shards", MANY, terms=terms)
    index = build_index(tmp_path / "first", small_disk / "index").path
    capfd.readouterr()
    for act in (append_index, lambda index, more: build_index(more, index, overwrite=True)):
        with pytest.raises(ArtefactError, match=FULL):
            act(index, tmp_path / "shards")
        assert check_index(index, tmp_path / "first")["problems"] == 0
        assert [path.name for path in small_disk.iterdir()] == ["index"]
    assert capfd.readouterr().err == ""
    resize(small_disk, "16m")
    assert append_index(index, tmp_path / "shards").documents == 4001


# ---- two processes


def test_the_second_writer_is_refused(tmp_path):
    root = prepared(tmp_path / "root", CHANGES["append"])
    index = root / "index"
    writers = (
        lambda: build_index(root / "new", index, overwrite=True),
        lambda: append_index(index, root / "new"),
        lambda: append_index(index, root / "new", replace=True),
        lambda: delete_documents(index, ["d1"]),
    )
    with new_folder(root / "index") as part:
        for writer in writers:
            with pytest.raises(ArtefactError, match="index: another process is writing it; wait for it"):
                writer()
        expect(index, dict(OLD))
        # What the first has written is still there, and so is its place.
        (part / "mine").touch()
        with pytest.raises(ArtefactError, match="another process is writing it"):
            build_index(root / "new", root / "index", overwrite=True)
        assert (part / "mine").is_file()
        build_index(root / "old", root / "index")
        assert (part / "mine").is_file(), "what is being written is no remains"
        (part / "mine").unlink()
        for file in index.iterdir():
            (part / file.name).write_bytes(file.read_bytes())
    assert append_index(index, root / "new").documents == 53


APPENDING = """
import sys
from pathlib import Path
from lexvl_anserini.engines import jvm
from lexvl_anserini.searching.building import append_index
root = Path(sys.argv[1])
jvm.start()
print("ready", flush=True)
for number in range(1, int(sys.argv[2])):
    append_index(root / "index", root / f"shards{number}")
print("done", flush=True)
"""


def test_reading_while_another_process_appends(tmp_path):
    """Every answer is that of one of the states, and they come in their order."""
    parts, each = 6, 30
    for part in range(parts):
        documents = [(f"p{part}d{number:02d}", {"a": part + 1}) for number in range(each)]
        shards(tmp_path / f"shards{part}", documents)
    index = build_index(tmp_path / "shards0", tmp_path / "index").path
    states = [
        [(f"p{p}d{n:02d}", p + 1.0) for p in reversed(range(last + 1)) for n in range(each)] for last in range(parts)
    ]
    arguments = [sys.executable, "-c", APPENDING, str(tmp_path), str(parts)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        seen = []
        while not seen or seen[-1] < parts - 1:
            engine = LuceneEngine(index, read_manifest(index))
            [found] = engine.search([ImpactQuery("q", {"a": 1})], 1000)
            engine.close()
            seen.append(states.index([(hit.doc_id, hit.score) for hit in found]))
            assert writer.poll() in (None, 0)
        assert writer.stdout.readline() == "done\n"
    assert seen == sorted(seen)
    assert check_index(index, [tmp_path / f"shards{part}" for part in range(parts)])["problems"] == 0


# ---- extremes


def opened(folder, *documents, **options):
    manifest = write_shards(folder / "shards", *documents, **options)
    build_index(folder / "shards", folder / "index")
    return LuceneEngine(folder / "index", manifest)


def test_a_query_of_100_000_terms(tmp_path):
    terms = [f"t{number}" for number in range(100_000)]
    whole = {term: number % 3 + 1 for number, term in enumerate(terms)}
    engine = opened(tmp_path, [("d1", whole), ("d2", dict.fromkeys(terms[::1000], 5)), ("d3", {})], terms=terms)
    query = {term: number % 2 + 1 for number, term in enumerate(terms)}
    expected = [("d1", float(sum(w * query[t] for t, w in whole.items()))), ("d2", 100.0 * 5)]
    assert ranked(engine, query) == expected
    assert [(hit.doc_id, hit.score) for hit in engine.search_tree("q", Impacts(query), 5)] == expected
    [explanation] = explain_documents(engine, ImpactQuery("q", query), ["d2"])
    assert explanation.score == 500 and len(explanation.terms) == 100
    engine.close()


@pytest.mark.parametrize("weight", [1, 255, 65_535, 2**20, 2**24 - 1])
def test_weights_and_impacts_of_every_size(tmp_path, weight):
    engine = opened(tmp_path, [("d1", {"a": weight, "b": 1}), ("d2", {"a": weight}), ("d3", {"b": 1})])
    assert ranked(engine, {"a": 1}) == [("d1", weight), ("d2", weight)]
    assert ranked(engine, {"b": weight}) == [("d1", weight), ("d3", weight)]
    most = (2**24 - 1) // weight
    assert ranked(engine, {"a": most}) == [("d1", weight * most), ("d2", weight * most)]
    refusal = r"could reach .* with 1 bit less" if weight > 1 else "expected an integer from 1 to 16,777,215"
    with pytest.raises(LexvlError, match=f"topic 'q': .*{refusal}"):
        ranked(engine, {"a": most + 1})
    engine.close()


IDS = ["a/b/c.jpg", "http://x.y/z?q=1&r=2#s", '"q"', "'", "\\", "{}", "😀", "é", "e\u0301"]
IDS += ["..", "%20", "a,b", "Q0", "日本", "#"]


def test_ids_with_slashes_quotes_and_emoji(tmp_path):
    engine = opened(tmp_path, [(doc_id, {"a": 1}) for doc_id in IDS], [("empty/😀", {})])
    assert ranked(engine, {"a": 1}, 99) == [(doc_id, 1) for doc_id in sorted(IDS)]
    assert [e.score for e in explain_documents(engine, ImpactQuery("q", {"a": 4}), [*IDS, "empty/😀"])] == [4] * len(
        IDS
    ) + [0]
    engine.close()
    delete_documents(tmp_path / "index", IDS[::2])
    assert sorted(held(tmp_path / "index")) == sorted(IDS[1::2])
