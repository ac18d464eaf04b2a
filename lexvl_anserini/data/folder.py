"""A folder of one's own: text files, images, images with captions, or BEIR's layout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from lexvl_anserini.data.base import DIRECTIONS, Dataset, checked_direction
from lexvl_anserini.data.beir import corpus_file, load_beir_folder
from lexvl_anserini.data.ids import checked_id
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.records import Document

TEXT_SUFFIX = ".txt"
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


def load_folder(
    name: str,
    split: str | None = None,
    data_dir: str | None = None,
    escape_ids: bool = False,
    direction: str | None = None,
) -> Dataset:
    """Loads `folder:<path>`.

    A folder with a `corpus.jsonl` is read in BEIR's layout. Otherwise every image and every `.txt` file below it is a
    document, in the order of their paths: an image is named by its path, with the text of `<same name>.txt` as its
    caption if there is one; a text is named by its path without the suffix. Hidden files are left out.

    The default direction is text-to-image if the first of its files is an image, else (and in BEIR's layout)
    text-to-text.

    Raises:
        UsageError: no path, or a direction it does not have.
        DataError: no such folder, nothing to read in it, or a split of a folder that has none.
    """
    path = name.partition(":")[2]
    if not path:
        raise UsageError(f"{name!r} names no folder; expected folder:<path>")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if corpus_file(folder):
        dataset = load_beir_folder(folder, name, split, data_dir, remove_query=False, escape_ids=escape_ids)
        return replace(dataset, direction=checked_direction(name, direction, DIRECTIONS, "text-to-text"))
    first = next(_files(folder), None)
    if first is None:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES | {TEXT_SUFFIX}))
        raise DataError(f"{folder}: no corpus.jsonl and no file to read in it; expected {kinds}")
    if split is not None:
        raise DataError(f"{folder}: split {split!r} of a plain folder; only BEIR's layout has splits")
    default = "text-to-image" if first.suffix.lower() in IMAGE_SUFFIXES else "text-to-text"
    return Dataset(
        name=name,
        split="",
        documents=partial(read_folder, folder, escape_ids),
        topics=partial(_nothing, folder, "topics"),
        qrels=partial(_nothing, folder, "judgements"),
        data_dir=data_dir,
        escape_ids=escape_ids,
        direction=checked_direction(name, direction, DIRECTIONS, default),
    )


def read_folder(folder: Path, escape_ids: bool = False) -> Iterator[Document]:
    """Streams the images and texts below a folder.

    Raises:
        DataError: a file name that cannot be an id, or a text that cannot be read or is not UTF-8.
    """
    for path in _files(folder):
        image = path.suffix.lower() in IMAGE_SUFFIXES
        if not image and _caption_of_image(path):
            continue
        relative = path.relative_to(folder)
        raw_id = (relative if image else relative.with_suffix("")).as_posix()
        doc_id = checked_id(_readable_name(raw_id, path), str(path), escape_ids)
        if image:
            caption = next((found for found in _captions(path) if found.is_file()), None)
            yield Document(doc_id, text=_read_text(caption) if caption else None, image=str(path))
        else:
            yield Document(doc_id, text=_read_text(path))


def _files(folder: Path) -> Iterator[Path]:
    """Readable files below a folder, sorted by path (code points), holding one folder's names at a time."""
    try:
        entries = list(os.scandir(folder))
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read ({problem.strerror})") from problem
    for entry in sorted(entries, key=_path_order):
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        # Links to folders are not followed: they may lead in a circle.
        if entry.is_dir(follow_symlinks=False):
            yield from _files(path)
        elif path.suffix.lower() in IMAGE_SUFFIXES | {TEXT_SUFFIX} and _to_read(entry):
            yield path


def _to_read(entry: os.DirEntry[str]) -> bool:
    """A file, or a link to nothing: what cannot be read is told, not left out."""
    return entry.is_file() or (entry.is_symlink() and not entry.is_dir())


def _path_order(entry: os.DirEntry[str]) -> str:
    """A folder's own slash takes part, so that nested sorting equals sorting whole paths."""
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def _captions(image: Path) -> tuple[Path, Path]:
    """Where an image's caption may be: `a.txt` or `a.jpg.txt` for `a.jpg`."""
    return image.with_suffix(TEXT_SUFFIX), image.with_name(image.name + TEXT_SUFFIX)


def _caption_of_image(text: Path) -> bool:
    """Whether a text file is the caption of an image beside it."""
    stem = text.with_suffix("")
    if stem.suffix.lower() in IMAGE_SUFFIXES and stem.is_file():
        return True
    return any(stem.with_name(stem.name + suffix).is_file() for suffix in _spellings())


def _spellings() -> Iterator[str]:
    for suffix in sorted(IMAGE_SUFFIXES):
        yield suffix
        yield suffix.upper()


def _readable_name(name: str, path: Path) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise DataError(f"{os.fsencode(path)!r}: the file's name is not valid UTF-8; rename it") from problem
    return name


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").strip()
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: not valid UTF-8 (byte {problem.start + 1}); convert the file to UTF-8") from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


def _nothing(folder: Path, what: str) -> NoReturn:
    raise DataError(
        f"{folder}: a plain folder has no {what}; give them as a file (query_id, tab, text), or use BEIR's layout"
    )
