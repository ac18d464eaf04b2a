"""The demonstration on eight scenes: its steps, its files, a second call, a call after a break, and its errors."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from world.pictures import draw_split
from world.scenes import SPLITS

from eval.demo import command as score_demo
from lexvl_anserini.data.corpora import captioned as corpus
from lexvl_anserini.encode import command as encode
from lexvl_anserini.ground.errors import ArtefactError, MissingExtra, UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.manifest import read_manifest, read_run_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.index import command as index
from lexvl_anserini.search import command as search
from lexvl_plugins.photos import demo as quickstart
from lexvl_plugins.photos.demo import INDEXES, QUERIES, SYSTEMS, DemoOptions, command, list_steps

SCENES = 8
Demo = Callable[..., None]


class Finished(NamedTuple):
    """A demonstration that was broken off before its first search, and called again."""

    folder: Path
    data_dir: str
    after_break: dict[Path, tuple[int, int]]
    printed_at_break: str
    printed: str


def drawn(scenes: int, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SPLITS, "test", scenes)
        draw_split("test", folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "FOLDER", drawn(SCENES, tmp_path_factory.mktemp("drawn")))
        yield


@pytest.fixture(scope="module")
def finished(few: None, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, data_dir = tmp_path_factory.mktemp("finished") / "demo", str(tmp_path_factory.mktemp("data"))

    def broken(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    def printed() -> str:
        with redirect_stdout(StringIO()) as out, suppress(KeyboardInterrupt):
            command(output=folder, data_dir=data_dir, device="cpu")
        return out.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "search", broken)
        at_break = printed()
    return Finished(folder, data_dir, files(folder), at_break, printed())


@pytest.fixture
def demo(tmp_path: Path, finished: Finished, caplog: pytest.LogCaptureFixture) -> Demo:
    caplog.set_level("INFO")
    common = {"output": tmp_path / "demo", "data_dir": finished.data_dir, "device": "cpu"}
    return lambda **options: command(**{**common, **options})


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {path.relative_to(folder): path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


def test_the_totals_are_those_of_the_files(finished: Finished) -> None:
    totals = {step.what: step.total for step in list_steps(DemoOptions())}
    for indexed in INDEXES:
        documents = read_manifest(finished.folder / "impacts" / indexed.name).counts.documents
        assert totals[f"encode {indexed.name}"] == totals[f"index {indexed.name}"] == documents
    for system in SYSTEMS:
        run = read_run_manifest(finished.folder / "runs" / f"{system.run}.trec")
        assert totals[f"search {system.run}"] == run.counts.topics


def test_a_call_after_a_break_goes_on(finished: Finished) -> None:
    assert finished.printed_at_break == ""
    assert not [path for path in finished.after_break if path.suffix == ".trec"]
    assert len([path for path in finished.after_break if path.name == "manifest.json"]) == 2 * len(INDEXES), "no photos"
    now = files(finished.folder)
    assert {path: now[path] for path in finished.after_break} == finished.after_break
    assert {str(path) for path in now if path.suffix == ".trec"} == {f"runs/{system.run}.trec" for system in SYSTEMS}


def test_a_second_call_only_prints(finished: Finished, demo: Demo, capsys, caplog) -> None:
    sheets = [finished.folder / name for name in ("contact-sheet.png", "photos.png")]
    before, drawn = files(finished.folder), [sheet.read_bytes() for sheet in sheets]
    demo(output=finished.folder)
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == finished.printed.splitlines()[:-1]
    assert re.fullmatch(rf"done in \d+ s; everything is in {finished.folder}/", last)
    now = files(finished.folder)
    now |= {Path(sheet.name): before[Path(sheet.name)] for sheet in sheets}
    assert now == before and [sheet.read_bytes() for sheet in sheets] == drawn
    assert caplog.text.count("finished already, nothing to do") == 2 * len(INDEXES) + len(SYSTEMS) + 2
    told = [record.getMessage() for record in caplog.records if record.name == "lexvl_plugins.photos.demo"]
    assert [line.split("  ")[0].strip() for line in told] == [f"{number}/24" for number in range(1, 25)]
    for line, step in zip(told, list_steps(DemoOptions()), strict=True):
        assert re.fullmatch(rf"[ \d]\d/24  {re.escape(step.what)} +\d+\.\d s", line)


def test_what_is_printed(finished: Finished, capsys) -> None:
    runs = [finished.folder / "runs" / f"{system.run}.trec" for system in SYSTEMS]
    assert sum(1 for _ in runs[0].open()) == 5 * SCENES * SCENES, "each image has a term of each of its five captions"
    score_demo(runs=runs, labels=[system.label for system in SYSTEMS])
    table = capsys.readouterr().out
    assert table in finished.printed and table.count("\n") == 1 + len(SYSTEMS) + 2 + 1
    for query in QUERIES:
        explained = finished.printed.partition(f'\n"{query}"\ndocument test-0000')[2].partition('\n"')[0]
        assert "query terms\n" in explained and "  weight  impact   product   share\n" in explained
    assert f"ID.png in {corpus.FOLDER}/images-v3-64px-test.tar\n" in finished.printed
    assert f"terms: {finished.folder / 'contact-sheet.png'}\n" in finished.printed
    with Image.open(finished.folder / "contact-sheet.png") as image:
        assert image.size == (1600, 1616), "three strips of five images"


def test_photos_are_found_without_a_download(finished: Finished) -> None:
    told = finished.printed.partition(" photos of installed packages, and their first terms by ")
    shown = [line.split() for line in told[2].splitlines() if line.startswith("  ")]
    assert int(told[0].rsplit("\n")[-1]) == len(shown) >= 3
    assert {"admiral", "flower", "palace"} <= {photo for photo, *_ in shown} and all(len(row) == 7 for row in shown)
    assert f"where the terms are: {finished.folder / 'photos.png'}\n" in finished.printed
    with Image.open(finished.folder / "photos.png") as image:
        assert image.height == 24 + len(quickstart.PHOTO_QUERIES) * (256 + 40 + 5 * 29 + 2 * 24 + 36) + 17


def test_without_their_extra_there_are_no_photos(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingExtra("the checkpoint 'x'", "photos")

    monkeypatch.setattr(quickstart, "load_encoder", missing)
    told = quickstart.search_photos(DemoOptions(output=finished.folder), silent)
    assert told.startswith("no real photos: ") and "lexvl-anserini[photos]" in told


@pytest.mark.parametrize("name", ["text-to-image.vdr-crossmodal", "text-to-image.dense-crossmodal", "captions.bm25"])
def test_the_commands_write_the_same(tmp_path: Path, finished: Finished, name: str) -> None:
    [made] = [indexed for indexed in INDEXES if indexed.name == name]
    common = {"data_dir": finished.data_dir, "device": "cpu"}
    shards, ours = tmp_path / "shards", finished.folder / "impacts" / name
    chosen = {"direction": made.direction, "encoder": made.encoder, "checkpoint": made.checkpoint}
    encode(corpus="demo", **chosen, **common, output=str(shards))
    assert files(shards).keys() == files(ours).keys()
    assert all((shards / path).read_bytes() == (ours / path).read_bytes() for path in files(shards))
    index(shards=[str(shards)], index=str(tmp_path / name))
    assert read_manifest(tmp_path / name) == read_manifest(finished.folder / "indexes" / name)
    for system in (system for system in SYSTEMS if system.searched == name):
        run = tmp_path / f"{system.run}.trec"
        settings = [f"{key}={value}" for key, value in system.settings.items()]
        search(index=str(tmp_path / name), hits=100, settings=settings, output=run, **common)
        assert run.read_bytes() == (finished.folder / "runs" / run.name).read_bytes()


def test_files_of_another_request_are_replaced_only_when_asked(
    tmp_path: Path, demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "list_steps", lambda options: [s for s in list_steps(options) if "bm25" in s.what])
    demo()
    monkeypatch.setattr(corpus, "FOLDER", drawn(SCENES - 1, tmp_path / "fewer"))
    with pytest.raises(ArtefactError, match=r"captions.bm25: holds shards of another request.*--overwrite replaces it"):
        demo()
    demo(overwrite=True)
    assert read_manifest(tmp_path / "demo" / "indexes" / "captions.bm25").counts.documents == SCENES - 1
    assert read_run_manifest(tmp_path / "demo" / "runs" / "captions.bm25.trec").counts.topics == SCENES - 1


def test_what_cannot_be_done(tmp_path: Path, demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="device 'nosuch' cannot be used here .*; try the device cpu"):
        demo(device="nosuch")
    (tmp_path / "demo").mkdir(exist_ok=True)
    with exclusive(tmp_path / "demo"), pytest.raises(ArtefactError, match="demo: another process is writing it; wait"):
        demo()
    assert not list((tmp_path / "demo").iterdir())
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/inside"):
        with pytest.raises(ArtefactError, match=rf"{place}: cannot be written \(Not a directory\); choose another"):
            demo(output=tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lexvl_anserini.ground.files.os.fsync", full)
    with pytest.raises(ArtefactError, match="the disk is full; free some space and run the same command again"):
        demo(data_dir=str(tmp_path / "data"))
