import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from byte_towers import tree
from shard_folders import Documents, write_dense_shards, write_shards, write_text_shards

from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.index import command, peak_memory_bytes
from lexvl_anserini.searching.building import build_index
from tests.invoking import invoked, read_output, run_process

invoke = partial(invoked, command)

DOCUMENTS: Documents = [("d1", {"a": 3, "b": 1}), ("d2", {}), ("d3", {"b": 2, "日本": 7, "😀": 1})]


@pytest.mark.parametrize(
    ("write", "documents", "engine"),
    [
        (write_shards, DOCUMENTS, "lucene"),
        (write_dense_shards, [("d1", [1.0, 2.0]), ("d2", [0.0, 1.0]), ("d3", [1.0, 1.0])], "faiss"),
        (write_text_shards, [("d1", "a dog"), ("d2", "a cat"), ("d3", "")], "bm25"),
    ],
)
def test_the_manifest_chooses_the_engine(tmp_path: Path, write: Any, documents: Any, engine: str) -> None:
    write(tmp_path / "shards", documents)
    seen: list[int] = []
    index = build_index(tmp_path / "shards", tmp_path / "new/index", progress=seen.append)
    assert (index.path, index.documents, sum(seen)) == (tmp_path / "new/index", 3, 3)
    report = json.loads((index.path / "index.json").read_bytes())
    assert (report["engine"], report["documents"]) == (engine, 3)
    assert Manifest.from_json(json.loads((index.path / "manifest.json").read_bytes())) == index.manifest


def test_other_shards_need_overwrite_and_a_failed_one_keeps_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", DOCUMENTS)
    write_shards(tmp_path / "b", [*DOCUMENTS, ("d4", {"c": 1})])
    build_index(tmp_path / "a", tmp_path / "index")
    before = tree(tmp_path / "index")
    assert build_index(tmp_path / "a", tmp_path / "index").documents == 3
    other = r"an index of another request \(counts.documents: 3 found, 4 requested; .*\); --overwrite"
    with pytest.raises(ArtefactError, match=other):
        build_index(tmp_path / "b", tmp_path / "index")
    write_shards(tmp_path / "c", [("d1", {"a": 1}), ("d1", {"a": 2})])
    with pytest.raises(ArtefactError, match="'d1' occurs twice"):
        build_index(tmp_path / "c", tmp_path / "index", overwrite=True)
    assert tree(tmp_path / "index") == before
    assert build_index(tmp_path / "b", tmp_path / "index", overwrite=True).documents == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "index"]


def test_places_of_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is no index is never replaced; the default one; an index in the place of shards."""
    write_shards(tmp_path / "shards", DOCUMENTS)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").touch()
    for place in (tmp_path / "photos", tmp_path / "shards"):
        with pytest.raises(ArtefactError, match="exists and is no index of ours; name another --index"):
            build_index(tmp_path / "shards", place, overwrite=True)
    (tmp_path / "empty").mkdir()
    assert build_index(tmp_path / "shards", tmp_path / "empty").documents == 3
    write_shards(tmp_path / "impacts/demo.vdr", DOCUMENTS)
    monkeypatch.chdir(tmp_path)
    index = build_index("impacts/demo.vdr/").path
    assert index == Path("indexes/demo.vdr") and (index / "index.json").is_file()
    with pytest.raises(UsageError, match=f"{index}: an index already; search it with lexvl search --index {index}, or"):
        build_index(index)


def test_unfinished_and_foreign_shards(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "shards", DOCUMENTS)

    def refuse(shards: str, message: str) -> None:
        with pytest.raises(LexvlError, match=message):
            build_index(tmp_path / shards, tmp_path / "index")

    (tmp_path / "shards/manifest.json").rename(tmp_path / "shards/unfinished.json")
    refuse("shards", "unfinished; run the same encode command again")
    refuse("nothing", "nothing: no such folder")
    write_json(tmp_path / "shards/manifest.json", {**manifest.to_json(), "kind": "impacts"})
    refuse("shards", "unknown engine 'impacts'; did you mean 'impact'?")
    write_json(tmp_path / "shards/manifest.json", {"kind": "impact"})
    refuse("shards", "not a manifest of this version")


def test_command_prints_what_it_counted(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    arguments = (tmp_path / "shards", "--index", tmp_path / "index", "--format", "json")
    planned = json.loads(invoke(*arguments, "--dry-run"))
    assert (planned["documents"], planned["postings"], planned["finished"]) == (3, 5, False)
    assert not (tmp_path / "index").exists()
    printed = json.loads(invoke(*arguments))
    assert (printed["documents"], printed["empty"], printed["postings"]) == (3, 1, 5)
    assert printed["bytes"] > 0 and printed["bytes_per_posting"] > 0 and printed["seconds"] >= 0
    again = json.loads(invoke(*arguments))
    assert again == {name: value for name, value in printed.items() if name not in ("seconds", "peak_memory_mib")}
    assert printed["longest_lists"][0] == {"term": "b", "documents": 2}
    assert printed["peak_memory_mib"] > 50


def test_the_command_changes_and_checks(tmp_path: Path) -> None:
    terms = ["a", "b"]
    one, two, index = tmp_path / "one", tmp_path / "two", tmp_path / "index"
    write_shards(one, [("d1", {"a": 1}), ("d2", {"b": 3})], terms=terms)
    write_shards(two, [("d2", {"a": 5}), ("d3", {})], terms=terms)
    (tmp_path / "ids.txt").write_text("\ufeffd1\r\nd3")

    def printed(*arguments: Any) -> dict[str, Any]:
        return json.loads(invoke(*arguments, "--index", index, "--format", "json"))

    assert printed(one)["documents"] == 2
    with pytest.raises(ArtefactError, match="'d2' is in .* already; --replace takes the new one"):
        printed(two, "--append")
    assert printed(two, "--replace", "--dry-run")["todo"] == "replace"
    found = printed(two, "--replace")
    assert (found["documents"], found["empty"], found["postings"]) == (3, 1, 2)
    assert printed(one, two, "--check")["problems"] == 0
    assert printed("--delete-ids", tmp_path / "ids.txt", "--dry-run") == {"index": str(index), "delete": 2}
    assert printed("--delete-ids", tmp_path / "ids.txt")["documents"] == 1
    assert printed(two, one, "--check")["ids"] == 1
    index = tmp_path / "merged"
    write_shards(tmp_path / "three", [("d9", {"b": 1})], terms=terms)
    assert printed(one, tmp_path / "three")["documents"] == 3
    assert printed(one, tmp_path / "three")["documents"] == 3, "finished already"


def test_the_command_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    index = ("--index", tmp_path / "index")
    (tmp_path / "ids.txt").write_text("d1\nx y\n")
    for arguments, message in (
        ((tmp_path / "shards", "--append"), "--append is for an index that exists: name it with --index"),
        ((tmp_path / "shards", "--append", "--check", *index), "--append and --check exclude each other"),
        (("--append", *index), "no shards; name a folder that encode wrote"),
        ((tmp_path / "shards", "--append", "--term-vectors", *index), "--term-vectors is for building one"),
        ((tmp_path / "shards", "--delete-ids", tmp_path / "ids.txt", *index), "--delete-ids takes no shards"),
        (("--delete-ids", tmp_path / "ids.txt", *index), r"ids.txt line 2: 'x y', expected an id without white space"),
        (("--delete-ids", tmp_path / "none.txt", *index), "none.txt: cannot be read"),
        ((tmp_path / "shards", "--check", *index), "index: no such folder"),
    ):
        with pytest.raises(LexvlError, match=message):
            invoke(*arguments)


def test_data_on_stdout_and_one_line_of_error(tmp_path: Path) -> None:
    write_text_shards(tmp_path / "shards", [("d1", "a dog"), ("d2", "a cat")])
    module = [sys.executable, "-m", "lexvl_anserini.index", tmp_path / "shards", "--index", tmp_path / "index"]
    assert json.loads(read_output([*module, "--format", "json"]))["documents"] == 2
    (tmp_path / "shards/docs/shard-00000.jsonl").write_text("")
    (tmp_path / "index/index.json").unlink()
    failed = run_process(module)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.count("\n") == 1 and failed.stderr.startswith("error: ")


@pytest.mark.parametrize(("system", "expected"), [("linux", 5 << 20), ("darwin", 5 << 10)])
def test_peak_memory_in_the_units_of_the_system(monkeypatch, system, expected):
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("resource.getrusage", lambda _: SimpleNamespace(ru_maxrss=5 << 10))
    assert peak_memory_bytes() == expected
