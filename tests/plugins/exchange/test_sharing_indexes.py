"""Indexes pushed to a hub and to storage, and pulled with every byte compared."""

import errno
import json
import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lexvl_anserini.encoders.checkpoints.find import list_names
from lexvl_anserini.engines.index_folder import index_manifest, read_report, write_report
from lexvl_anserini.engines.resident.packing import read_vectors
from lexvl_anserini.ground.errors import ArtefactError, LexvlError
from lexvl_anserini.ground.files import sole_writer
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import build_index, delete_documents
from lexvl_plugins.exchange.sharing.indexes import list_index_files
from lexvl_plugins.exchange.sharing.pull import command as pull
from lexvl_plugins.exchange.sharing.push import command as push
from tests.invoking import invoked
from tests.plugins.exchange.hub_uploads import UploadServer, add_thesis

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.shards.writing import write_impacts

    folder = tmp_path_factory.mktemp("built")
    demo = load_dataset("demo")
    few = replace(demo, documents=lambda: islice(demo.documents(), 20))
    write_impacts(few, load_encoder("vdr-crossmodal", "demo-vdr", device="cpu"), folder / "shards")
    build_index(folder / "shards", folder / "demo")
    return folder / "demo"


@pytest.fixture
def hub(hub: UploadServer, monkeypatch: pytest.MonkeyPatch) -> UploadServer:
    monkeypatch.setenv("HF_TOKEN", "hf_writes")
    return hub


@pytest.fixture
def memory(tmp_path, monkeypatch) -> str:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("LEXVL_STORAGE", str(tmp_path / "copies"))
    return f"memory://{uuid.uuid4().hex}/demo"


pushed = partial(invoked, push)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.name != "README.md"}


def changed(built: Path, folder: Path, **entries: Any) -> Path:
    shutil.copytree(built, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, change in entries.items():
        manifest[name] |= change
    (folder / "manifest.json").write_text(json.dumps(manifest))
    report = {key: value for key, value in read_report(folder).items() if key != "digest"}
    write_report(folder, report, Manifest.from_json(manifest, "manifest.json"))
    return folder


def test_a_pushed_index_is_pulled_with_equal_bytes(hub, built, tmp_path) -> None:
    measures = tmp_path / "scores.json"
    row = {"run": "r", "dataset": "demo/test", "measure": "nDCG@10", "query_id": "all", "value": 0.5, "ties": "rank"}
    measures.write_text(json.dumps([row, {**row, "query_id": "q1", "value": 0.25}]))
    printed = json.loads(pushed(built, "me/demo", "--licence", "cc0-1.0", "--measures", measures, "--format", "json"))
    assert printed["documents"] == 20 and printed["index"].startswith(f"{hub.address}/")
    [commit] = hub.commits
    card = (hub.repositories["me/demo"] / "README.md").read_text()
    assert card.startswith("---\nlicense: cc0-1.0\ntags:\n- lexvl\n")
    assert "| Documents | 20 |" in card and "| demo/test | nDCG@10 | 0.5000 |" in card and "0.25" not in card
    assert "lexvl pull me/demo indexes/pulled" in card and str(tmp_path) not in card
    printed = json.loads(invoked(pull, "me/demo", tmp_path / "pulled", "--format", "json"))
    assert printed["commit"] == hub.sha and printed["documents"] == 20
    assert contents(tmp_path / "pulled") == contents(built)
    hits = [invoked(search, "--index", index, "--query", "a red boat") for index in (built, tmp_path / "pulled")]
    assert hits[0] == hits[1] and hits[0]
    assert invoked(pull, f"me/demo@{hub.sha}", tmp_path / "again") and contents(tmp_path / "again") == contents(built)


def test_storage_takes_and_gives_the_same_index(memory, built, tmp_path, monkeypatch) -> None:
    import fsspec

    assert memory in pushed(built, memory, "--licence", "other")
    invoked(pull, memory, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(built)
    pushed(built, memory, "--licence", "mit")
    invoked(pull, memory, tmp_path / "pulled", "--overwrite")
    assert "license: mit" in (tmp_path / "pulled/README.md").read_text()
    with pytest.raises(ArtefactError, match="nothing finished there"):
        invoked(pull, f"{memory}-other", tmp_path / "none")
    monkeypatch.setenv("LEXVL_STORAGE", str(tmp_path / "others"))
    system, path = fsspec.core.url_to_fs(memory)
    system.pipe_file(f"{path}/vocab.txt", b"other\n")
    with pytest.raises(ArtefactError, match=r"vocab.txt: 6 bytes of digest"):
        invoked(pull, memory, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_push_to_a_folder_replaces_an_earlier_one_whole_or_not_at_all(built, tmp_path, monkeypatch) -> None:
    (tmp_path / "current").symlink_to("disk/demo")
    for name in ("demo.old", "demo.part"):
        (tmp_path / "disk" / name).mkdir(parents=True)
    push_there = partial(pushed, built, f"file://{tmp_path}/current", "--licence")
    push_there("other")
    assert contents(tmp_path / "disk/demo") == contents(built) and (tmp_path / "current").is_symlink()
    card = (tmp_path / "current/README.md").read_text()
    writing = pytest.raises(ArtefactError, match="another process is writing it")
    with ThreadPoolExecutor(1) as another, sole_writer(tmp_path / "current", folder=True), writing:
        another.submit(push_there, "mit").result()
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("lexvl_plugins.exchange.sharing.indexes.shutil.copytree", full)
    with pytest.raises(ArtefactError, match="the disk is full"):
        push_there("mit")
    assert (tmp_path / "current/README.md").read_text() == card
    assert contents(tmp_path / "current") == contents(built)
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["demo", "demo.old", "demo.part"]


def test_an_index_that_changes_while_it_is_copied_is_not_pushed(built, tmp_path, monkeypatch) -> None:
    index = shutil.copytree(built, tmp_path / "index")
    changing = Mock(side_effect=lambda index, _: delete_documents(index, read_vectors(index).ids[:1]))
    monkeypatch.setattr("lexvl_plugins.exchange.sharing.indexes.copy_index", changing)
    with pytest.raises(ArtefactError, match="index: another process changed it meanwhile"):
        pushed(index, f"file://{tmp_path}/pushed", "--licence", "other")
    assert not (tmp_path / "pushed").exists()


def test_only_files_of_the_index_are_pushed(memory, built, tmp_path, caplog) -> None:
    """What lies beside them is named, and stays: also names like those of the index."""
    index = tmp_path / "index"
    shutil.copytree(built, index)
    (index / "old").mkdir()
    others = [".DS_Store", "_0.txt", "index.json.bak", "old/vocab.txt", "passwords.txt"]
    for name in [*others, "resident-7.bin", "segment.txt"]:
        (index / name).write_text("secret")
    pushed(index, memory, "--licence", "other")
    invoked(pull, memory, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(built)
    assert f"{index}: 7 files are not of the index and stay here: {', '.join(others)} and 2 more" in caplog.messages


def test_a_change_writes_no_file_that_a_link_leads_to(built, tmp_path) -> None:
    """The hub's cache has links for the files of a revision: `index.json` was written where its link led."""
    (links := tmp_path / "links").mkdir()
    for path in built.iterdir():
        (links / path.name).symlink_to(path)
    before, [first, *_] = contents(built), read_vectors(built).ids
    assert delete_documents(links, [first]).documents == 19
    assert contents(built) == before and contents(links).keys() >= {"index.json", "manifest.json"}


def test_every_kind_of_index_has_all_its_files(tmp_path) -> None:
    for folder in sorted((FIXTURES / "lexvl-1" / "indexes").iterdir()):
        if read_report(folder):
            assert set(list_index_files(folder)) == {n for n in list_names(folder) if not n.endswith(".lock")}, folder


@pytest.mark.parametrize("name", ["vocab.txt", "resident.bin"])
def test_a_file_that_arrives_damaged_is_refused_and_fetched_again(hub, built, tmp_path, name) -> None:
    pushed(built, "me/demo", "--licence", "other")
    hub.damaged = name
    with pytest.raises(LexvlError, match=f"me/demo: .*{name} arrived damaged|me/demo: the download broke off"):
        invoked(pull, "me/demo", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
    hub.damaged = None
    invoked(pull, "me/demo", tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(built)


@pytest.mark.parametrize(
    "entries,named",
    [
        ({"corpus": {"name": "folder:photos"}}, "folder:photos"),
        ({"corpus": {"name": "beir:/srv/mine"}}, "beir:/srv/mine"),
        ({"corpus": {"data_dir": "/srv/sets"}}, "/srv/sets"),
        ({"encoder": {"checkpoint": "/srv/model"}}, "/srv/model"),
        ({"encoder": {"options": {"tokenizer": "~/tokens"}}}, "~/tokens"),
    ],
)
def test_an_index_that_names_folders_is_refused_on_both_sides(memory, built, tmp_path, entries, named) -> None:
    index = changed(built, tmp_path / "index", **entries)
    push_it = partial(pushed, index, memory, "--licence", "other")
    for act in (push_it, partial(invoked, pull, memory, tmp_path / "pulled")):
        with pytest.raises(ArtefactError, match=f"its manifest names '{named}', .*--with-places"):
            act()
        assert not (tmp_path / "pulled").exists()
        act("--with-places")
    assert index_manifest(tmp_path / "pulled") == index_manifest(index)


def test_what_is_no_whole_index_is_not_pushed(hub, built, tmp_path) -> None:
    damaged, marked, measures = (tmp_path / name for name in ("damaged", "marked", "measures.json"))
    for folder in (damaged, marked):
        shutil.copytree(built, folder)
    data = (damaged / "resident.bin").read_bytes()
    (damaged / "resident.bin").write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    delete_documents(marked, read_vectors(marked).ids[:1])
    measures.write_text('{"measure": 1}')
    for index, target, options, message in (
        (tmp_path / "nowhere", "me/demo", (), "no such index"),
        (built.parent / "shards", "me/demo", (), "encoded documents, not an index"),
        (damaged, "me/demo", (), "damaged"),
        (built, "demo", (), "owner"),
        (marked, "me/demo", (), "^.*marked: 1 deleted documents are still in its files"),
        (built, "me/demo", ("--measures", measures), "that lexvl score --format json prints"),
    ):
        with pytest.raises(LexvlError, match=message):
            pushed(index, target, "--licence", "other", *options)
    assert not read_report(build_index(marked, tmp_path / "new").path).deleted
    assert hub.commits == []


def test_other_data_sets_and_folders_are_not_replaced_silently(hub, memory, built, tmp_path) -> None:
    folder = add_thesis(hub, tmp_path)
    with pytest.raises(LexvlError, match="holds 1 files that lexvl push did not write, such as 'notes.txt'"):
        pushed(built, "me/thesis", "--licence", "other")
    with pytest.raises(ArtefactError, match=r"me/thesis: no index of `lexvl push` \(it lacks index.json\)"):
        invoked(pull, "me/thesis", tmp_path / "pulled")
    pushed(built, "me/thesis", "--licence", "other", "--overwrite")
    assert not (folder / "notes.txt").exists()
    (tmp_path / "pulled").mkdir()
    (tmp_path / "pulled/notes.txt").write_text("x")
    with pytest.raises(ArtefactError, match="is there; name another folder"):
        invoked(pull, "me/thesis", tmp_path / "pulled")
    with pytest.raises(ArtefactError, match="holds other files than an index; name another folder"):
        invoked(pull, "me/thesis", tmp_path / "pulled", "--overwrite")
    with pytest.raises(LexvlError, match="me/none: not found"):
        invoked(pull, "me/none", tmp_path / "none")


def test_names_that_leave_the_folder_are_refused(hub, built, tmp_path) -> None:
    pushed(built, "me/demo", "--licence", "other")
    hub.listed = lambda siblings: [*siblings, {**siblings[0], "rfilename": "../../x"}]
    with pytest.raises(ArtefactError, match="not a name inside a folder; refused"):
        invoked(pull, "me/demo", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
