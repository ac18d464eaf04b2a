"""Folders of pictures that change while their index follows them, and calls that are killed.

After the last change, one call makes the index and the list of unreadable pictures that a new album has.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from byte_towers import Model
from damage import damaged, one_line
from faults import Ended, faults
from histories import compare_indexes
from PIL import Image
from rounds import Rounds

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.files import compute_sha256, exclusive
from lexvl_plugins.photos import command as following
from lexvl_plugins.photos.command import Album, read_folder, update_album
from tests.plugins.photos.test_photos import TERMS, Pixels, held

pytestmark = [pytest.mark.heavy, pytest.mark.attack]
NAMES = (
    "a.png", "b.png", "d.PNG", "a b.png", "é😀.png", "sub/x.png", "sub/deep/y.png", ".hidden.png", "new\nline.png",
    "#%3F?&.png", "-rf.png", "l" * 200 + ".png", "%.png", "x.jpg", "é.png", "é.png", "notes.txt",
)  # fmt: skip
# This picture stays, and is the first of any part, so that the scale of an index is always 255 to 255.
SCALE = "!.png"
# Where the folder changes during a call: before or after one of the calls of these functions.
PLACES: tuple[tuple[Any, str], ...] = (
    (FileDigests, "of"), (following, "open_image"), (following, "_encode"), (following, "_index_shards"),
    (following, "_write_unreadable"), (following, "delete_documents"), (following, "_find_unreadable"),
    (Pixels, "weights"),
)  # fmt: skip


def painted(path: Path, random: Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (1, 1), tuple(random.choice([0, 1, 9, 200]) for _ in range(3))).save(path, "PNG")


def again(path: Path, random: Random) -> None:
    before = path.stat()
    painted(path, random)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def read_whole(path: Path) -> bytes:
    """The bytes of a file; a pipe and a device, which `odd` makes, have no end."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def half(path: Path, random: Random) -> None:
    content = read_whole(path)
    path.write_bytes(content[: random.randrange(len(content))])


def broken(path: Path, random: Random) -> None:
    path.write_bytes(damaged(random, read_whole(path)))


def gone(path: Path, random: Random) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def odd(path: Path, random: Random) -> None:
    targets = [path.parent / "a.png", path.parent / "b.png", path, path.parent, Path("/nowhere.png"), Path("/dev/zero")]
    make = random.choice([os.mkfifo, os.mkdir, Path.touch, *[lambda path: path.symlink_to(random.choice(targets))] * 3])
    make(path)


def moved(path: Path, random: Random) -> None:
    target = path.parent / random.choice(["moved.png", "z.png", "sub", "a.png"])
    path.rename(target)


CHANGES: tuple[Callable[[Path, Random], None], ...] = (
    painted, painted, painted, painted, again, half, broken, gone, gone, odd, moved
)  # fmt: skip


def change(folder: Path, random: Random) -> None:
    with suppress(OSError, ValueError):
        random.choice(CHANGES)(folder / random.choice(NAMES), random)


@contextmanager
def disturbed(folder: Path, random: Random) -> Iterator[list[str]]:
    """The folder changes once, somewhere within the block; the list says where."""
    owner, name = random.choice(PLACES)
    function, number, after, done = getattr(owner, name), random.randint(1, 4), random.random() < 0.5, list[str]()
    calls = iter(range(1, 1 << 30))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        here = next(calls) == number
        if here and not after:
            change(folder, random)
        result = function(*arguments, **options)
        if here and after:
            change(folder, random)
        done.extend([name] * here)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, wrapped)
        yield done


def followed(folder: Path, album: Path) -> str:
    model: Any = Model(document=Pixels())
    try:
        with exclusive(album):
            update_album(read_folder(folder), model, Album(album))
    except LexvlError as error:
        return one_line(error)
    return ""


def whole(album: Path) -> tuple[Any, Any]:
    listed = album / "unreadable.jsonl"
    rows = listed.read_text().splitlines() if listed.exists() else []
    return held(album), sorted((row["id"], row["sha256"], row["reason"]) for row in map(json.loads, rows))


def check_pixels(folder: Path, documents: dict[str, tuple[str, dict[str, int]]]) -> None:
    """Each document has the digest and the pixel of the file that has its name."""
    for doc_id, (digest, impacts) in documents.items():
        path = folder / os.fsdecode(unescape_id(doc_id).encode("utf-8", "surrogateescape"))
        assert digest == compute_sha256(path), path
        with Image.open(path) as image:
            pixel = image.convert("RGB").getpixel((0, 0))
        assert impacts == {term: value for term, value in zip(TERMS, pixel, strict=True) if value}, path


def test_folders_that_change_while_they_are_followed(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, random, home in rounds:
        folder, album = home / "pictures", home / "album"
        monkeypatch.setenv("LEXVL_DATA", str(home / "memory"))
        monkeypatch.setattr(following, "PART", random.choice([2, 3, 1024]))
        monkeypatch.setattr(following, "SHARD", random.choice([1, 2, 128]))
        folder.mkdir()
        Image.new("RGB", (1, 1), (255, 0, 0)).save(folder / SCALE)
        history: list[Any] = []
        for _ in range(random.randint(1, 4)):
            for _ in range(random.choice([0, 1, 3, 10])):
                change(folder, random)
            number = random.choice([0, random.randint(1, 60), random.randint(1, 400)])
            with disturbed(folder, random) as where, suppress(Ended), faults(album, number, after=number % 2 == 0):
                history.append(followed(folder, album))
            history.append((number, where))
            rounds.count("calls over folders that change")
            rounds.count("changes during a call", len(where))
        refused = followed(folder, album)
        again, fresh = followed(folder, album), home / "fresh"
        assert (refused, again) == ("", "") and followed(folder, fresh) == "", (seed, history, refused, again)
        expected = whole(fresh)
        assert whole(album) == expected, (seed, history)
        compare_indexes(album / "index", fresh / "index")
        check_pixels(folder, expected[0])
        names = {path.name for path in album.iterdir()}
        assert names == {"index", *(["unreadable.jsonl"] if expected[1] else [])}, (seed, names, history)
        rounds.count("pictures in followed indexes", len(expected[0]))
