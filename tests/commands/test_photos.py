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
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.records import Document
from lexvl_anserini.photos import NOTHING, PhotoAnswer, changes_ahead, changes_made, command, default_output, lines_of
from lexvl_anserini.searching.following import Album, Differences, Followed, UnreadablePicture
from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm

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
    """Good ones of every mode, and bad ones."""
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
        capture.setattr("lexvl_anserini.photos.typer.echo", printed.append)
        capture.setattr("lexvl_anserini.photos.log.info", lambda *line: logs.append(line[0] % line[1:]))
        command(
            folder=Path("pics"),
            queries=["a red boat", "two dogs"],
            hits=2,
            checkpoint="demo-vdr",
            device="cpu",
        )
    finally:
        capture.undo()
    return Answered(folder, root / "lexvl-photos" / "pics", "\n".join(printed), logs)


@pytest.fixture
def photos(tmp_path: Path, answered: Answered, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`photos(**options)` runs the command on a copy of the pictures and the answers, in their folder."""
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
        assert changes_ahead(Differences(two, wanted, held, [], None), album) == line
    album.index.mkdir()
    line = "the index is of another checkpoint: all 2 pictures are encoded anew"
    assert changes_ahead(Differences(two, two, {}, [], None), album) == line


def test_hits_are_lines(tmp_path: Path) -> None:
    terms = tuple(SharedTerm(f"t{number}", 1, 10, 10) for number in range(7))
    found = [Explanation("query", "a%20b%0A.jpg", 70, terms, 9), Explanation("query", "c.jpg", 10, terms[:1], 9)]
    assert list(lines_of(PhotoAnswer(TypedAnswer("two dogs", found)))) == [
        '\n"two dogs"',
        "  1      70  a b\\n.jpg  t0 14%, t1 14%, t2 14%, t3 14%, t4 14%, t5 14%",
        "  2      10  c.jpg      t0 100%",
    ]
    assert list(lines_of(PhotoAnswer(TypedAnswer("x", [])))) == ['\n"x"', "  nothing here has a term of this query"]
    nearest = lines_of(PhotoAnswer(TypedAnswer("x", found[1:], NOTHING)))
    assert list(nearest) == ['\n"x"  nothing fits; nearest:', "  1      10  c.jpg  t0 100%"]
    done = Followed(2, 1, 0, 0, [UnreadablePicture("a%20b.jpg", "0", "a b.jpg: broken")])
    album = Album(Path("album"))
    assert list(changes_made(done, album)) == [
        "2 pictures in the index: 1 added",
        "1 cannot be read (a b.jpg); album/unreadable.jsonl says why",
    ]


def test_an_album_beside_the_pictures_that_are_the_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pics"
    assert default_output(folder, tmp_path) == Path("lexvl-photos/pics")
    assert default_output(folder, folder) == default_output(folder, folder / "in") == tmp_path / "lexvl-photos/pics"
    assert default_output(tmp_path / "pics.tar", tmp_path) == Path("lexvl-photos/pics.tar")


def test_what_cannot_be_done(tmp_path: Path, answered: Answered, photos: Callable[..., None]) -> None:
    (tmp_path / "none").mkdir()
    rows: list[tuple[dict[str, Any], type[LexvlError], str]] = [
        ({"folder": tmp_path / "none"}, DataError, "none: no picture in it; expected .jpg, .png"),
        ({"folder": tmp_path / "nowhere"}, DataError, "nowhere: no such folder or tar"),
        ({"device": "nosuch"}, UsageError, "device 'nosuch' cannot be used here"),
        ({"checkpoint": str(tmp_path / "none")}, CheckpointError, ""),
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


@pytest.fixture
def dated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`dated(**options)` searches two pictures, and their copies without EXIF data; what it prints."""
    folder = tmp_path / "pics"
    folder.mkdir()
    facts = {
        "a.jpg": ("Google", "Pixel 7", "2019:05:17 12:00:00"),
        "b.jpg": ("Canon", "Canon EOS", "2021:01:02 12:00:00"),
    }
    for number, (name, (make, model, taken)) in enumerate(facts.items()):
        picture, exif = Image.new("RGB", (96, 64), RED), Image.Exif()
        picture.paste((20, 90, 160 - 100 * number), (0, 32 - 20 * number, 96 - 50 * number, 64))
        exif[0x010F], exif[0x0110] = make, model
        exif.get_ifd(0x8769)[0x9003] = taken
        exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 30.0), 3: "E", 4: (2.0, 17.0, 40.0)})
        picture.save(folder / name, exif=exif)
        picture.save(folder / f"copy of {name}")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    monkeypatch.setattr("lexvl_anserini.photos.typer.echo", printed.append)

    def photos(**options: Any) -> list[str]:
        printed.clear()
        command(folder=folder, queries=["a red boat"], checkpoint="demo-vdr", device="cpu", **options)
        return printed[1:-2]

    return photos


def test_dates_cameras_and_near_duplicates(dated: Callable[..., list[str]]) -> None:
    lines = dated()
    each = "\n".join(lines)
    assert each.count("copy of") == 2
    assert "2019-05-17, Google Pixel 7" in each and "2021-01-02, Canon EOS" in each
    oldest, newest = ("\n".join(dated(sort=sort)) for sort in ("date", "-date"))
    assert oldest.index("2019-05-17") < oldest.index("2021-01-02") < oldest.index("copy of")
    assert newest.index("2021-01-02") < newest.index("2019-05-17") < newest.index("copy of")
    for where in ("date:2019", "camera:pixel", "meta.date:[2019 TO 2020]", "date:..2020 AND orientation:landscape"):
        only = "\n".join(dated(where=[where]))
        assert "a.jpg" in only and "b.jpg" not in only and "copy of" not in only
    assert dated(where=["date:2019", "camera:canon"])[-1].endswith("or none of those that match has one")
    with pytest.raises(UsageError, match="--sort 'size': expected score, date or -date"):
        dated(sort="size")
    with pytest.raises(UsageError, match="^--where latitude:...: no picture of this album has a latitude .*; --gps"):
        dated(where=["latitude:40..50"])
    with pytest.raises(LexvlError, match="unknown metadata field 'meta.size'"):
        dated(where=["meta.size:3"])


def test_a_condition_on_dates_of_an_album_without_dates(dated: Callable[..., list[str]], tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "pics" / name).unlink()
    with pytest.raises(UsageError, match="^--where date:...: no picture of this album has a date in its EXIF data$"):
        dated(where=["date:2019"])
