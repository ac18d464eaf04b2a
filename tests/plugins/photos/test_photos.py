"""The command `photos` on pictures of all kinds: what it prints, draws and writes; an index that follows a folder."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from attack.faults import Ended, faults
from byte_towers import Bytes, Model
from histories import compare_indexes
from PIL import Image
from scipy import sparse

from eval.report.answers import TypedAnswer
from eval.sheet import command as sheet
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.ground.errors import (
    FAIL,
    ArtefactError,
    CheckpointError,
    DataError,
    LexvlError,
    OnError,
    UsageError,
)
from lexvl_anserini.ground.files import compute_sha256, exclusive, write_json
from lexvl_anserini.ground.manifest import EncoderRef, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import CorpusRef, Document
from lexvl_anserini.searching.building import build_index, read_keywords
from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.photos import command as following
from lexvl_plugins.photos.answers import NOTHING_FITS, choose_album, format_answer
from lexvl_plugins.photos.command import (
    DIGEST,
    Album,
    Differences,
    Followed,
    UnreadablePicture,
    command,
    compare,
    describe_changes,
    describe_differences,
    follow,
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


Colour = tuple[int, int, int]
Pair = tuple[Path, Path]
TERMS = ("ash", "bay", "cat")


class Pixels(Bytes):
    """The weights of "ash", "bay" and "cat" are red, green and blue of the first pixel."""

    seen: list[str] = []

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        self.seen.extend(Path(given).name for given in inputs)
        progress(len(inputs))
        weights = np.zeros((len(inputs), 3), dtype=np.float32)
        for position, image in read_images(inputs, workers=1, on_error=on_error):
            weights[position] = image.getpixel((0, 0))
        return sparse.csr_matrix(weights)


class Other(Model):
    def identity(self) -> EncoderRef:
        return EncoderRef(name="toy", checkpoint=None, checkpoint_digest="another", options={})


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.setattr(Pixels, "seen", [])
    yield Pixels.seen


def paint(folder: Path, **colours: Colour) -> Path:
    for name, colour in colours.items():
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (1, 1), colour).save(folder / f"{name}.png")
    return folder


def called(folder: Path, album: Path, model: type[Model] = Model) -> Followed:
    pictures, of, encoder = load_pictures(CorpusRef(f"folder:{folder}")), Album(album), model(document=Pixels())
    made: Any = encoder
    album.mkdir(exist_ok=True)
    return follow(pictures, made, of, compare(pictures, made, of))


def held(album: Path) -> dict[str, tuple[str, dict[str, int]]]:
    index = album / "index"
    engine = LuceneEngine(index, read_manifest(index))
    try:
        digests = read_keywords(index, DIGEST)
        assert engine.documents == len(digests) == read_manifest(index).counts.documents
        return {doc_id: (digest, engine.impacts(doc_id, TERMS)) for doc_id, digest in digests.items()}
    finally:
        engine.close()


def impacts(album: Path) -> dict[str, dict[str, int]]:
    return {doc_id: vector for doc_id, (_, vector) in held(album).items()}


@pytest.fixture
def followed(tmp_path: Path) -> Pair:
    folder, album = paint(tmp_path / "in", a=(255, 0, 0), b=(0, 51, 0)), tmp_path / "album"
    called(folder, album)
    return folder, album


def test_a_folder_that_changes(tmp_path: Path, own_memory: list[str]) -> None:
    folder, album = paint(tmp_path / "in", a=(255, 0, 0), b=(0, 51, 0), c=(0, 0, 5)), tmp_path / "album"
    assert called(folder, album) == Followed(3, 3, 0, 0, [])
    assert held(album)["b.png"] == (compute_sha256(folder / "b.png"), {"bay": 51})
    # The scale stays that of the first pictures, whose largest weight is 255.
    paint(folder, b=(0, 9, 9), d=(100, 0, 0))
    (folder / "c.png").rename(folder / "e.png")
    own_memory.clear()
    assert called(folder, album) == Followed(4, 2, 1, 1, [])
    assert own_memory == ["b.png", "d.png", "e.png"]
    changed = {"b.png": {"bay": 9, "cat": 9}, "d.png": {"ash": 100}}
    assert impacts(album) == {"a.png": {"ash": 255}, **changed, "e.png": {"cat": 5}}
    called(folder, tmp_path / "fresh")
    compare_indexes(album / "index", tmp_path / "fresh/index")
    assert sorted(path.name for path in album.iterdir()) == ["index"]


def test_only_its_own_sheet_is_no_picture_of_an_album(tmp_path: Path) -> None:
    folder = paint(tmp_path / "in", **{"a": (255, 0, 0), "contact-sheet": (0, 51, 0)})
    assert [called(folder, album).documents for album in (tmp_path, folder)] == [2, 1]


def test_an_unchanged_folder_costs_nothing(own_memory: list[str], followed: Pair) -> None:
    folder, album = followed
    before = {path: path.stat().st_ino for path in album.rglob("*")}
    own_memory.clear()
    # Another time of the file, the same picture.
    (folder / "a.png").touch()
    assert called(folder, album) == Followed(2, 0, 0, 0, [])
    assert own_memory == [] and {path: path.stat().st_ino for path in album.rglob("*")} == before


def test_a_picture_that_comes_back(followed: Pair) -> None:
    """The index knows its shards: the same ones again must not count as finished."""
    folder, album = followed
    for colour in ((0, 0, 7), (0, 51, 0), (0, 0, 7)):
        paint(folder, b=colour)
        assert called(folder, album) == Followed(2, 0, 1, 0, [])
        assert impacts(album)["b.png"] == {"bay": 51} | {} if colour[1] else {"cat": 7}
    (folder / "b.png").unlink()
    assert called(folder, album) == Followed(1, 0, 0, 1, [])
    paint(folder, b=(0, 0, 7))
    assert called(folder, album) == Followed(2, 1, 0, 0, [])
    assert impacts(album) == {"a.png": {"ash": 255}, "b.png": {"cat": 7}}


def test_all_pictures_are_others(followed: Pair) -> None:
    folder, album = followed
    shutil.rmtree(folder)
    paint(folder, x=(1, 2, 3))
    assert called(folder, album) == Followed(1, 1, 0, 2, [])
    assert impacts(album) == {"x.png": {"ash": 1, "bay": 2, "cat": 3}}


def test_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_memory: list[str]) -> None:
    """The index grows part by part, all on one scale; a part without a readable picture is none."""
    monkeypatch.setattr(following, "PART", 2)
    colours: dict[str, Colour] = {f"p{number}": (number + 1, 0, 255 * (number == 0)) for number in range(7)}
    folder, album = paint(tmp_path / "in", **colours), tmp_path / "album"
    for name in ("p2", "p3", "p6"):
        (folder / f"{name}.png").write_text("broken")
    done = called(folder, album)
    assert (done.documents, done.added) == (4, 4)
    assert [picture.id for picture in done.unreadable] == ["p2.png", "p3.png", "p6.png"]
    red = {doc_id: vector["ash"] for doc_id, vector in impacts(album).items()}
    assert red == {"p0.png": 1, "p1.png": 2, "p4.png": 5, "p5.png": 6}


def test_pictures_that_cannot_be_read(tmp_path: Path, own_memory: list[str]) -> None:
    folder, album = paint(tmp_path / "in", a=(255, 0, 0), b=(0, 51, 0)), tmp_path / "album"
    (folder / "broken.png").write_text("broken")
    (folder / "gone.png").symlink_to("nowhere.png")
    done = called(folder, album)
    assert (done.documents, done.added) == (2, 2)
    assert [one.id for one in done.unreadable] == ["broken.png", "gone.png"]
    lines = (album / "unreadable.jsonl").read_text().splitlines()
    assert len(lines) == 2 and "broken.png: not a picture of a known format" in lines[0]
    own_memory.clear()
    assert called(folder, album)._replace(unreadable=[]) == Followed(2, 0, 0, 0, []) and own_memory == []
    # A picture that breaks leaves the index, one that is repaired joins it.
    paint(folder, broken=(0, 0, 9))
    (folder / "b.png").write_text("broken now")
    done = called(folder, album)
    assert done[:4] == (2, 1, 0, 1) and [one.id for one in done.unreadable] == ["gone.png", "b.png"]
    assert impacts(album) == {"a.png": {"ash": 255}, "broken.png": {"cat": 9}}
    (folder / "gone.png").unlink()
    paint(folder, b=(0, 51, 0))
    assert called(folder, album) == Followed(3, 1, 0, 0, [])
    assert not (album / "unreadable.jsonl").exists()


def test_no_picture_can_be_read(tmp_path: Path) -> None:
    folder, album = paint(tmp_path / "in", a=(255, 0, 0)), tmp_path / "album"
    called(folder, album)
    before = held(album)
    (folder / "a.png").write_text("broken")
    for _ in range(2):
        with pytest.raises(DataError, match=r"in: none of its 1 pictures can be read; .*unreadable.jsonl lists them"):
            called(folder, album)
    assert held(album) == before
    with pytest.raises(DataError, match="in: none of 1 images can be read; the first: .*a.png: not a picture"):
        called(folder, tmp_path / "first")


def test_another_checkpoint_and_another_folder(tmp_path: Path, own_memory: list[str], followed: Pair) -> None:
    folder, album = followed
    paint(folder, a=(20, 0, 0), b=(0, 10, 0))
    assert called(folder, album, Other) == Followed(2, 2, 0, 0, [])
    assert impacts(album) == {"a.png": {"ash": 255}, "b.png": {"bay": 128}}, "a scale of its own"
    before = held(album)
    with pytest.raises(ArtefactError, match=r"album: holds the index of folder:.*/in, not of folder:.*/out; name"):
        called(paint(tmp_path / "out", a=(1, 1, 1)), album, Other)
    assert held(album) == before


def test_an_index_without_digests_is_built_anew(tmp_path: Path) -> None:
    folder, album = paint(tmp_path / "in", a=(255, 0, 0), b=(0, 51, 0)), tmp_path / "album"
    made: Any = Model(document=Pixels())
    write_impacts(load_pictures(CorpusRef(f"folder:{folder}")), made, tmp_path / "shards")
    build_index(tmp_path / "shards", album / "index")
    assert read_keywords(album / "index", DIGEST) == {}
    (folder / "a.png").unlink()
    assert called(folder, album) == Followed(1, 1, 0, 0, [])
    assert impacts(album) == {"b.png": {"bay": 255}}


def test_an_album_among_the_pictures(tmp_path: Path) -> None:
    folder = paint(tmp_path / "in", a=(255, 0, 0))
    paint(folder / "album", **{"contact-sheet": (1, 1, 1)})
    called(folder, folder / "album")
    assert list(impacts(folder / "album")) == ["a.png"]


def test_a_picture_that_changes_while_it_is_encoded(monkeypatch: pytest.MonkeyPatch, followed: Pair) -> None:
    """The index never has the digest of one picture and the impacts of another."""
    folder, album = followed
    paint(folder, b=(0, 9, 0), c=(0, 0, 3))
    weights = Pixels.weights

    def changing(self: Pixels, *arguments: Any, **options: Any) -> sparse.csr_matrix:
        found = weights(self, *arguments, **options)
        paint(folder, b=(0, 0, 77))
        return found

    monkeypatch.setattr(Pixels, "weights", changing)
    with pytest.raises(ArtefactError, match="the corpus changed while it was read; .* run the same command again"):
        called(folder, album)
    assert impacts(album) == {"a.png": {"ash": 255}, "b.png": {"bay": 51}}
    monkeypatch.setattr(Pixels, "weights", weights)
    assert called(folder, album) == Followed(3, 1, 1, 0, [])
    assert impacts(album) == {"a.png": {"ash": 255}, "b.png": {"cat": 77}, "c.png": {"cat": 3}}


def changed(root: Path) -> tuple[Path, Path]:
    folder = paint(root / "in", a=(255, 0, 0), b=(0, 51, 0), c=(0, 0, 5), d=(7, 0, 0))
    called(folder, root / "album")
    paint(folder, b=(0, 9, 9), x=(1, 0, 0), y=(0, 2, 0))
    (folder / "c.png").rename(folder / "e.png")
    (folder / "d.png").write_text("broken")
    return folder, root / "album"


@pytest.fixture
def of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PART", 3)


def undisturbed(root: Path) -> tuple[dict[str, tuple[str, dict[str, int]]], list[str]]:
    root.mkdir()
    folder, album = changed(root)
    with faults(root) as whole:
        called(folder, album)
    expected = held(album)
    assert expected.keys() == {"a.png", "b.png", "e.png", "x.png", "y.png"}
    return expected, whole.calls


def kill_and_repeat(root: Path, number: int, expected: object) -> None:
    root.mkdir()
    folder, album = changed(root)
    with pytest.raises(Ended), faults(root, number, after=number % 2 == 0) as found:
        called(folder, album)
    done = called(folder, album)
    assert held(album) == expected and done.documents == 5, (number, found.calls[-1])
    assert [one.id for one in done.unreadable] == ["d.png"]
    assert sorted(path.name for path in album.iterdir()) == ["index", "unreadable.jsonl"]
    shutil.rmtree(root)


@pytest.mark.usefixtures("of_three")
def test_killed_and_run_again(tmp_path: Path) -> None:
    """Before and after the index is replaced, between two changes of it, and while its shards are removed."""
    expected, calls = undisturbed(tmp_path / "whole")
    swaps = [number for number, call in enumerate(calls, start=1) if call.startswith("exchange")]
    assert len(swaps) == 3, "two parts and a deletion"
    for number in (swaps[0] - 30, swaps[0], swaps[0] + 1, swaps[1] + 12, swaps[2]):
        kill_and_repeat(tmp_path / str(number), number, expected)


@pytest.mark.heavy
@pytest.mark.usefixtures("of_three")
def test_killed_anywhere_and_run_again(tmp_path: Path) -> None:
    expected, calls = undisturbed(tmp_path / "whole")
    for number in range(1, len(calls) + 1, 3):
        kill_and_repeat(tmp_path / str(number), number, expected)
