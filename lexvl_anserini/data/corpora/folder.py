"""A user's own folder or tar as a dataset: text files, images, images with captions, or BEIR's layout.

The files lie below a folder or in an uncompressed tar; whatever is not a file is counted and named.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from lexvl_anserini.data.checks import check_id
from lexvl_anserini.data.corpora.beir import find_beir_files, load_beir_folder, split_folder
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, choose_direction, choose_split
from lexvl_anserini.data.lines import HIDDEN, LeftOut, describe_unreadable, log_once
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.data.pictures.images import HEIC_REMEDY, HEIC_SUFFIXES, list_image_suffixes
from lexvl_anserini.ground.errors import DataError, UsageError, refuse_pointer
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.manifest import MANIFEST
from lexvl_anserini.ground.records import VOCABULARY, CorpusRef, Document

TEXT_SUFFIX = ".txt"


def load_folder(ref: CorpusRef) -> Dataset:
    """Loads `folder:<path>`; the path is a folder or an uncompressed tar of a folder.

    A folder with a `corpus.jsonl` is read in BEIR's layout; `/<split>` may follow its path. Otherwise every image and
    every `.txt` file below it is a document, in the order of their paths. The id of an image is its path, and its
    caption is the text of `<same name>.txt` or `.TXT` if there is one; the id of a text is its path without the suffix.
    Whatever else there is (hidden files, files of other kinds, links to folders, ...) is counted and named in the log.
    The default direction is text-to-image if the first file is an image, else (and in BEIR's layout) text-to-text.
    """
    where, split_in_name = split_folder(find_place(ref))
    if where.is_dir() and find_beir_files(where):
        direction, split = choose_direction(ref, DIRECTIONS, "text-to-text"), choose_split(ref, split_in_name)
        name = f"folder:{where}" if split_in_name else ref.name
        return load_beir_folder(where, replace(ref, name=name, split=split, direction=direction))
    files = list_corpus_files(where, _find_captions)
    lacking = f"no corpus.jsonl and no file to read in it; expected images (.jpg, .png, ...) or {TEXT_SUFFIX}"
    first = _find_first(files, _is_read, lacking)
    if ref.split is not None:
        raise DataError(f"{where}: split {ref.split!r} of a plain folder; only BEIR's layout has splits")
    direction = choose_direction(ref, DIRECTIONS, "text-to-image" if _is_image(first) else "text-to-text")
    documents = partial(read_files, files, ref.escape_ids, direction == "text-to-image")
    return replace(_build_dataset(replace(ref, direction=direction), where, documents), folder=where)


def load_pictures(ref: CorpusRef) -> Dataset:
    """Loads only the images of `folder:<path>`: texts count as their captions; any other file is left out."""
    files = list_corpus_files(find_place(ref), _find_captions)
    _find_first(files, _is_image, "no picture in it; expected .jpg, .png, ...")
    ref = replace(ref, direction="text-to-image")
    return _build_dataset(ref, files.where, partial(read_files, files, ref.escape_ids, texts=False))


def _build_dataset(ref: CorpusRef, where: Path, documents: Callable[[], Iterator[Document]]) -> Dataset:
    return Dataset.of(ref, documents, partial(nothing, where, "topics"), partial(nothing, where, "judgements"))


def read_files(
    files: Files, escape_ids: bool = False, images_expected: bool = False, texts: bool = True
) -> Iterator[Document]:
    """Streams images and texts; where images are expected, logs the first text that is not the caption of an image.

    Without `texts`, such texts are left out.
    """
    others, left_out = OtherFiles(), LeftOut()
    stray = False
    for name in files.names(left_out):
        where = files.refer(name)
        if _is_image(name):
            captions = [caption for caption in _list_captions(name) if files.has(caption)]
            text = _read_text(files, captions[0]) if captions else None
            for second in captions[1:]:
                if not _is_same(*map(files.refer, (captions[0], second))):
                    left_out.add("a second caption of an image", second)
            yield Document(check_name(name, where, escape_ids), text=text, image=where)
        elif _is_read(name) and not texts:
            left_out.add("a text that is no caption", name)
        elif name.endswith(VOCABULARY) and files.has(name.removesuffix(VOCABULARY) + MANIFEST):
            raise DataError(f"{where}: of shards or an index, no text; move their folder out of {files.where}")
        elif _is_read(name):
            if images_expected and not stray:
                stray = True
                log_once(f"{where}: a text without an image of its name; it is a document of its own")
            yield Document(check_name(name[: -len(TEXT_SUFFIX)], where, escape_ids), text=_read_text(files, name))
        elif get_suffix(name) in HEIC_SUFFIXES:
            left_out.add(f"HEIC pictures ({HEIC_REMEDY})", name)
        else:
            others.add(name)
    left_out.log(str(files.where))
    others.log(files.where, "neither image nor text")


def _find_first(files: Files, fits: Callable[[str], bool], problem: str) -> str:
    first = next(filter(fits, files.names(LeftOut())), None)
    if first is not None:
        return first
    heic = sum(get_suffix(name) in HEIC_SUFFIXES for name in files.names(LeftOut()))
    hint = f"; it has HEIC pictures ({heic:,}): {HEIC_REMEDY}" if heic else ""
    raise DataError(f"{files.where}: {problem}{hint}")


def _is_image(name: str) -> bool:
    return get_suffix(name) in list_image_suffixes()


def _is_read(name: str) -> bool:
    return _is_image(name) or get_suffix(name) == TEXT_SUFFIX


def _list_captions(image: str) -> list[str]:
    """The names that an image's caption may have: `a.txt`, `a.jpg.txt`, `a.TXT` or `a.jpg.TXT` for `a.jpg`."""
    stems = (str(PurePosixPath(image).with_suffix("")), image)
    return [stem + suffix for suffix in (TEXT_SUFFIX, TEXT_SUFFIX.upper()) for stem in stems]


def _is_same(first: str, second: str) -> bool:
    """Whether two paths are one file, as `a.txt` and `a.TXT` are where the system ignores case."""
    with suppress(OSError):
        return Path(first).samefile(second)
    return False


def _find_captions(names: Iterable[str]) -> frozenset[str]:
    return frozenset(caption for name in names if _is_image(name) for caption in _list_captions(name))


def _read_text(files: Files, name: str) -> str:
    try:
        content = files.read(name)
        refuse_pointer(files.refer(name), content)
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as problem:
        what = f"not valid UTF-8 (byte {problem.start + 1}); convert the file to UTF-8"
        raise DataError(f"{files.refer(name)}: {what}") from problem
    except OSError as problem:
        raise describe_unreadable(files.refer(name), problem) from problem


NAMED = 5  # kinds of skipped files that the log names
FILE, FOLDER = "a file", "a folder"  # what an entry of a folder is, besides kinds that are left out

# What a plain folder lacks -> the option by which commands read it from a file.
REMEDIES = {"topics": "--topics (query_id, tab, text)", "judgements": "--qrels"}


class Files(NamedTuple):
    """The files below a folder or in a tar, by names.

    Names come in the order of their paths, without those that belong to another file; what is no file is added to the
    argument.
    """

    where: Path
    names: Callable[[LeftOut], Iterator[str]]
    refer: Callable[[str], str]  # to its path, or `archive.tar::member`
    read: Callable[[str], bytes]
    has: Callable[[str], bool]  # readable or not


# From the names in a folder to those of files that belong to another one, such as captions.
Belonging = Callable[[Iterable[str]], frozenset[str]]


def list_corpus_files(where: Path, belonging: Belonging = lambda names: frozenset()) -> Files:
    """The files below a folder or in a tar."""
    if where.is_dir():
        return Files(
            where,
            names=partial(_walk_names, where, belonging),
            refer=lambda name: str(where / name),
            read=lambda name: (where / name).read_bytes(),
            has=lambda name: _describe_entry(where / name) == FILE,
        )
    if where.suffix.lower() == ".tar" and where.is_file():
        archive = open_archive(where)
        return Files(
            where,
            names=partial(_list_names, archive.members, belonging),
            refer=lambda name: f"{where}::{name}",
            read=archive.read,
            has=archive.members.__contains__,
        )
    if where.exists():
        raise DataError(f"{where}: neither a folder nor an uncompressed .tar; unpack it, or name the folder it is in")
    raise DataError(f"{where}: no such folder or tar")


def find_place(ref: CorpusRef) -> Path:
    """The path in the name of a corpus, `family:<path>`."""
    family, _, path = ref.name.partition(":")
    if not path:
        raise UsageError(f"{ref.name!r} names no folder; expected {family}:<path>")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as problem:  # a manifest could not name it
        raise DataError(f"{path!a}: the folder's name is not valid UTF-8; rename it") from problem
    return expand_path(path)


def _walk_names(folder: Path, belonging: Belonging, left_out: LeftOut, prefix: str = "") -> Iterator[str]:
    """Names of the files below a folder, sorted by path (code points), holding one folder's names at a time."""
    try:
        entries = [(entry, _kind(entry)) for entry in os.scandir(folder)]
    except OSError as problem:
        raise describe_unreadable(folder, problem) from problem
    entries.sort(key=lambda pair: pair[0].name + "/" * (pair[1] == FOLDER))  # as whole paths are sorted
    others = belonging(entry.name for entry, kind in entries if kind == FILE)
    for entry, kind in entries:
        name = prefix + entry.name
        if entry.name.startswith("."):
            left_out.add(HIDDEN, name)
        elif kind == FOLDER:
            yield from _walk_names(folder / entry.name, belonging, left_out, f"{name}/")
        elif kind != FILE:
            left_out.add(kind, name)
        elif entry.name not in others:
            yield name


def _list_names(members: Iterable[str], belonging: Belonging, left_out: LeftOut) -> Iterator[str]:
    others = belonging(members)
    for name in sorted(members):
        if "/." in f"/{name}":
            left_out.add(HIDDEN, name)
        elif name not in others:
            yield name


def _kind(entry: os.DirEntry[str]) -> str:
    """What an entry is; most are files or folders, which the listing itself knows."""
    if entry.is_file(follow_symlinks=False):
        return FILE
    return FOLDER if entry.is_dir(follow_symlinks=False) else _describe_entry(Path(entry.path)) or FILE


def _describe_entry(path: Path) -> str | None:
    """What a path is; a dangling link counts as a file, which cannot be read, so that nothing is skipped silently."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return FILE if path.is_symlink() else None
    if stat.S_ISDIR(mode):
        return "a link to a folder" if path.is_symlink() else FOLDER
    return FILE if stat.S_ISREG(mode) else "a pipe, a socket or a device"


def check_name(name: str, where: str, escape_ids: bool) -> str:
    """The id of a file's name."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise DataError(f"{os.fsencode(where)!r}: the file's name is not valid UTF-8; rename it") from problem
    return check_id(name, where, escape_ids)


def get_suffix(name: str) -> str:
    """The last suffix of a name, as `.jpg`; empty if it has none."""
    return PurePosixPath(name).suffix.lower()


class OtherFiles(Counter[str]):
    """Files of kinds that a corpus does not read: counted by suffix."""

    def add(self, name: str) -> None:
        """Counts a file."""
        self[get_suffix(name) or "no suffix"] += 1

    def log(self, where: Path, what: str) -> None:
        """Logs one line, if there are any; `what` says what they are not."""
        if self:
            kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in self.most_common(NAMED))
            log_once(f"{where}: skipped, {what}: {self.total():,} ({kinds})")


def nothing(folder: Path, what: str) -> NoReturn:
    """Refuses to read topics or judgements, which plain folders lack."""
    raise DataError(
        f"{folder}: a plain folder has no {what}; {REMEDIES[what]} names a file of them, in commands that have this "
        "option; others need BEIR's layout, or karpathy:FILE.json,IMAGES for images with captions"
    )
