"""The command `photos` on a few pictures of all kinds, with the packaged pair: what it prints, draws and writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from eval.report.answers import TypedAnswer
from eval.sheet import command as sheet
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.files import exclusive, write_json
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import Document
from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm
from lexvl_plugins.photos.answers import NOTHING_FITS, choose_album, format_answer
from lexvl_plugins.photos.command import (
    Album,
    Differences,
    Followed,
    UnreadablePicture,
    command,
    describe_changes,
    describe_differences,
)

RED = (200, 30, 30)
# What is no good picture: its name, and what is wrong with it.
BAD = {
    "cut.jpg": "a damaged or cut off picture",
    "empty.png": "not a picture of a known format (it is empty)",
    "huge.png": "9500x10000 pixels, more than the limit of 80,000,000",
    "page.jpg": "not a picture of a known format (it begins with b'<html>",
}


class Answered(NamedTuple):
    """A folder that was searched once: its pictures, the folder of the answers, and what was printed and logged."""

    folder: Path
    output: Path
    printed: str
    logged: list[str]


def pictures_of_all_kinds(folder: Path) -> Path:
    (folder / "Rome 2019").mkdir(parents=True)
    picture = Image.new("RGB", (96, 64), RED)
    picture.paste((20, 90, 160), (0, 32, 96, 64))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    picture.save(folder / "Rome 2019" / "a boat.jpg", exif=rotated)
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.convert("L").save(folder / "grey.png")
    picture.convert("RGBA").save(folder / "alpha.png")
    picture.convert("I;16").save(folder / "deep.tiff")
    picture.save(folder / "moving.gif", save_all=True, append_images=[Image.new("RGB", (96, 64))])
    (folder / "grey.txt").write_text("a caption")
    (folder / "notes.txt").write_text("no caption")
    noise = Image.effect_noise((200, 200), 90).convert("RGB")
    noise.save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:3000])
    (folder / "empty.png").touch()
    (folder / "page.jpg").write_text("<html>404")
    Image.new("1", (9500, 10000)).save(folder / "huge.png")
    return folder


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    root = tmp_path_factory.mktemp("photos")
    folder = pictures_of_all_kinds(root / "pics")
    capture, logs = pytest.MonkeyPatch(), []
    try:
        capture.setenv("LEXVL_DATA", str(root / "memory"))
        capture.chdir(root)
        printed: list[str] = []
        capture.setattr("lexvl_plugins.photos.command.typer.echo", printed.append)
        capture.setattr("lexvl_plugins.photos.command.log.info", lambda *line: logs.append(line[0] % line[1:]))
        command(folder=Path("pics"), queries=["a red boat", "two dogs"], hits=2, checkpoint="demo-vdr", device="cpu")
    finally:
        capture.undo()
    return Answered(folder, root / "lexvl-photos" / "pics", "\n".join(printed), logs)


@pytest.fixture
def photos(tmp_path: Path, answered: Answered, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    shutil.copytree(answered.folder.parent, tmp_path / "photos")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path / "photos")
    common = {"folder": answered.folder, "checkpoint": "demo-vdr", "device": "cpu"}
    return lambda **options: command(**{**common, **options})


def test_the_first_call(answered: Answered) -> None:
    assert answered.logged == ["10 new and 0 changed pictures to encode"]
    first, second, *lines = answered.printed.splitlines()
    assert first == "6 pictures in the index: 6 added"
    where = Path("lexvl-photos/pics")
    assert second == f"4 cannot be read (cut.jpg, empty.png, huge.png, ...); {where}/unreadable.jsonl says why"
    assert lines[1] == '"a red boat"' and lines[5] == '"two dogs"'
    for rank, line in enumerate(lines[2:4], start=1):
        number, score, *_, last = line.split()
        assert (int(number), int(score) > 0) == (rank, True) and last.endswith("%")
    assert lines[-2] == f"queries, their first pictures and terms: {where}/contact-sheet.png"
    assert lines[-1].startswith("done in ") and lines[-1].endswith(f" s; everything is in {where}/")
    with Image.open(answered.output / "contact-sheet.png") as drawn:
        assert drawn.size[1] == 24 + 2 * (256 + 40 + 5 * 29 + 2 * 24 + 36) + 17, "two strips"


def test_bad_pictures_are_listed(answered: Answered) -> None:
    lines = (answered.output / "unreadable.jsonl").read_text().splitlines()
    assert len(lines) == len(BAD)
    for line, (name, reason) in zip(lines, BAD.items(), strict=True):
        assert f'"id":"{name}"' in line and reason in line


def test_a_second_call(answered: Answered, photos: Callable[..., None], capsys, caplog) -> None:
    caplog.set_level("INFO")
    photos()
    first, _, asking, last = capsys.readouterr().out.splitlines()
    assert first == "6 pictures in the index, unchanged"
    assert asking == f'to ask: lexvl photos {answered.folder} "two dogs on a beach"'
    assert "no new or changed picture, nothing to encode" in caplog.messages
    photos(queries=["a red boat", "two dogs"], hits=2)
    printed = capsys.readouterr().out
    assert printed.splitlines()[2:-1] == answered.printed.splitlines()[2:-1]
    drawn = Path("lexvl-photos/pics/contact-sheet.png").read_bytes()
    assert drawn == (answered.output / "contact-sheet.png").read_bytes()
    sheet(index=Path("lexvl-photos/pics/index"), queries=["two dogs"], output=Path("sheet.png"), device="cpu")
    assert Path("sheet.png").stat().st_size > 0, "the index serves other commands"


def test_a_query_without_terms_of_the_model(photos: Callable[..., None], capsys) -> None:
    photos(queries=["a boat", "qwertzuiop"], hits=1)
    boat, unknown = capsys.readouterr().out.split('"qwertzuiop"')
    note = "no word of this query is a term of the model"
    assert note not in boat and note in unknown


def test_a_least_score(answered: Answered, photos: Callable[..., None], capsys) -> None:
    photos(queries=["a red boat"], hits=2, min_score="0%")
    score = int(capsys.readouterr().out.splitlines()[4].split()[1])
    photos(queries=["a red boat"], hits=2, min_score=str(score))
    best, nothing = f'"a red boat"\n  1 {score:7}', '"a red boat"  nothing fits; nearest:'
    assert best in (printed := capsys.readouterr().out) and nothing not in printed
    fitting = Path("lexvl-photos/pics/contact-sheet.png").read_bytes()
    photos(queries=["a red boat"], hits=2, min_score=str(score + 1))
    printed = capsys.readouterr().out
    assert nothing in printed and f"  1 {score:7}" in printed and "\n  2 " in printed
    assert Path("lexvl-photos/pics/contact-sheet.png").read_bytes() != fitting
    with pytest.raises(UsageError, match="least score 'much': expected a score"):
        photos(queries=["a red boat"], min_score="much")


def test_what_there_is_to_do(tmp_path: Path) -> None:
    two = [Document("a.jpg"), Document("b.jpg")]
    album = Album(tmp_path)
    for held, wanted, line in (
        ({}, two, "2 new and 0 changed pictures to encode"),
        ({"a.jpg": "before"}, two, "1 new and 1 changed pictures to encode"),
        ({"a.jpg": "now", "b.jpg": "now"}, [], "no new or changed picture, nothing to encode"),
    ):
        assert describe_differences(Differences(two, wanted, held, [], None), album) == line
    album.index.mkdir()
    line = "the index is of another checkpoint: all 2 pictures are encoded anew"
    assert describe_differences(Differences(two, two, {}, [], None), album) == line


def test_hits_are_lines(tmp_path: Path) -> None:
    terms = tuple(SharedTerm(f"t{number}", 1, 10, 10) for number in range(7))
    found = [Explanation("query", "a%20b%0A.jpg", 70, terms, 9), Explanation("query", "c.jpg", 10, terms[:1], 9)]
    assert list(format_answer(TypedAnswer("two dogs", found))) == [
        '\n"two dogs"',
        "  1      70  a b\\n.jpg  t0 14%, t1 14%, t2 14%, t3 14%, t4 14%, t5 14%",
        "  2      10  c.jpg      t0 100%",
    ]
    assert list(format_answer(TypedAnswer("x", []))) == ['\n"x"', "  nothing here has a term of this query"]
    nearest = format_answer(TypedAnswer("x", found[1:], NOTHING_FITS))
    assert list(nearest) == ['\n"x"  nothing fits; nearest:', "  1      10  c.jpg  t0 100%"]
    done = Followed(2, 1, 0, 0, [UnreadablePicture("a%20b.jpg", "0", "a b.jpg: broken")])
    album = Album(Path("album"))
    assert list(describe_changes(done, album)) == [
        "2 pictures in the index: 1 added",
        "1 cannot be read (a b.jpg); album/unreadable.jsonl says why",
    ]


def test_an_album_beside_the_pictures_that_are_the_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pics"
    assert choose_album(folder, tmp_path, "lexvl-photos") == Path("lexvl-photos/pics")
    assert choose_album(folder, folder, "x") == choose_album(folder, folder / "in", "x") == tmp_path / "x/pics"
    assert choose_album(tmp_path / "pics.tar", tmp_path, "lexvl-photos") == Path("lexvl-photos/pics.tar")


def test_what_cannot_be_done(tmp_path: Path, answered: Answered, photos: Callable[..., None]) -> None:
    (tmp_path / "none").mkdir()
    rows: list[tuple[dict[str, Any], type[LexvlError], str]] = [
        ({"folder": tmp_path / "none"}, DataError, "none: no picture in it; expected .jpg, .png"),
        ({"folder": tmp_path / "nowhere"}, DataError, "nowhere: no such folder or tar"),
        ({"device": "nosuch"}, UsageError, "device 'nosuch' cannot be used here"),
        ({"checkpoint": str(tmp_path / "none")}, CheckpointError, "none"),
        ({"queries": ["two dogs", ""]}, UsageError, "a query is empty"),
        ({"queries": ["two dogs", "  "]}, UsageError, "a query is empty"),
        ({"output": answered.folder / "index"}, UsageError, "among the pictures; name a folder outside"),
    ]
    for options, error, message in rows:
        with pytest.raises(error, match=message):
            photos(**options)
    assert not Path("lexvl-photos/none").exists() and not (answered.folder / "index").exists()
    album = Path("lexvl-photos/pics")
    with exclusive(album), pytest.raises(ArtefactError, match="another process is writing it; wait"):
        photos()


def test_an_album_with_exif_data_of_0_3_0_is_refused_and_stays(photos: Callable[..., None]) -> None:
    index = Path("lexvl-photos/pics/index")
    manifest = read_manifest(index).to_json()
    write_json(index / "manifest.json", {**manifest, "corpus": {**manifest["corpus"], "exif": "basic"}})
    before = {path: path.stat().st_mtime_ns for path in index.iterdir()}
    with pytest.raises(ArtefactError, match=r"index/manifest.json: has EXIF metadata .*, which 0.3.0 is the last"):
        photos()
    assert {path: path.stat().st_mtime_ns for path in index.iterdir()} == before
