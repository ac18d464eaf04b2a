"""A user's own folder or tar as a dataset: text files, images, images with captions, or BEIR's layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from lexvl_anserini.data.corpora.beir import corpus_file, folder_and_split, load_beir_folder
from lexvl_anserini.data.corpora.files import Files, OtherFiles, checked_name, files_in, nothing, place_of, suffix_of
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, checked_direction, checked_split
from lexvl_anserini.data.entries import LeftOut, log_once
from lexvl_anserini.data.pictures.images import HEIC_REMEDY, HEIC_SUFFIXES, image_suffixes
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Document

TEXT_SUFFIX = ".txt"


def load_folder(ref: CorpusRef) -> Dataset:
    """Loads `folder:<path>`; the path is a folder or an uncompressed tar of a folder.

    A folder with a `corpus.jsonl` is read in BEIR's layout; `/<split>` may follow its path. Otherwise every image and
    every `.txt` file below it is a document, in the order of their paths. The id of an image is its path, and its
    caption is the text of `<same name>.txt` if that file exists; the id of a text is its path without the suffix.
    Whatever else there is (hidden files, files of other kinds, HEIC without pillow-heif, links to folders, pipes, ...)
    is counted and named in the log.

    The default direction is text-to-image if the first file is an image, else (and in BEIR's layout)
    text-to-text.
    """
    where, split_in_name = folder_and_split(place_of(ref))
    if where.is_dir() and corpus_file(where):
        direction, split = checked_direction(ref, DIRECTIONS, "text-to-text"), checked_split(ref, split_in_name)
        name = f"folder:{where}" if split_in_name else ref.name
        return load_beir_folder(where, replace(ref, name=name, split=split, direction=direction))
    files = files_in(where, _captions_among)
    first = _first(
        files,
        _is_read,
        f"no corpus.jsonl and no file to read in it; expected images (.jpg, .png, ...) or {TEXT_SUFFIX}",
    )
    if ref.split is not None:
        raise DataError(f"{where}: split {ref.split!r} of a plain folder; only BEIR's layout has splits")
    direction = checked_direction(ref, DIRECTIONS, "text-to-image" if _is_image(first) else "text-to-text")
    return Dataset.of(
        replace(ref, direction=direction),
        documents=partial(read_files, files, ref.escape_ids, direction == "text-to-image"),
        topics=partial(nothing, where, "topics"),
        qrels=partial(nothing, where, "judgements"),
    )


def load_pictures(ref: CorpusRef) -> Dataset:
    """Loads the images of `folder:<path>` alone: texts are their captions, others are left out as other files are."""
    files = files_in(place_of(ref), _captions_among)
    _first(files, _is_image, "no picture in it; expected .jpg, .png, ...")
    return Dataset.of(
        replace(ref, direction="text-to-image"),
        documents=partial(read_files, files, ref.escape_ids, texts=False),
        topics=partial(nothing, files.where, "topics"),
        qrels=partial(nothing, files.where, "judgements"),
    )


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
            captions = [caption for caption in _captions(name) if files.has(caption)]
            text = _read_text(files, captions[0]) if captions else None
            for second in captions[1:]:
                left_out.add("a second caption of an image", second)
            yield Document(checked_name(name, where, escape_ids), text=text, image=where)
        elif _is_read(name) and not texts:
            left_out.add("a text that is no caption", name)
        elif _is_read(name):
            if images_expected and not stray:
                stray = True
                log_once(f"{where}: a text without an image of its name; it is a document of its own")
            yield Document(checked_name(name[: -len(TEXT_SUFFIX)], where, escape_ids), text=_read_text(files, name))
        elif suffix_of(name) in HEIC_SUFFIXES:
            left_out.add(f"HEIC pictures ({HEIC_REMEDY})", name)
        else:
            others.add(name)
    left_out.log(str(files.where))
    others.log(files.where, "neither image nor text")


def _first(files: Files, fits: Callable[[str], bool], problem: str) -> str:
    """The first name that fits."""
    first = next(filter(fits, files.names(LeftOut())), None)
    if first is None:
        heic = sum(suffix_of(name) in HEIC_SUFFIXES for name in files.names(LeftOut()))
        hint = f"; it has HEIC pictures ({heic:,}): {HEIC_REMEDY}" if heic else ""
        raise DataError(f"{files.where}: {problem}{hint}")
    return first


# --- what they are --------------------------------------------------------------------------------------------------


def _is_image(name: str) -> bool:
    return suffix_of(name) in image_suffixes()


def _is_read(name: str) -> bool:
    return _is_image(name) or suffix_of(name) == TEXT_SUFFIX


def _captions(image: str) -> tuple[str, str]:
    """The names that an image's caption may have: `a.txt` or `a.jpg.txt` for `a.jpg`."""
    return str(PurePosixPath(image).with_suffix(TEXT_SUFFIX)), image + TEXT_SUFFIX


def _captions_among(names: Iterable[str]) -> frozenset[str]:
    """The names that captions of the images among the names would have."""
    return frozenset(caption for name in names if _is_image(name) for caption in _captions(name))


def _read_text(files: Files, name: str) -> str:
    try:
        return files.read(name).decode("utf-8-sig").strip()
    except UnicodeDecodeError as problem:
        where = files.refer(name)
        raise DataError(f"{where}: not valid UTF-8 (byte {problem.start + 1}); convert the file to UTF-8") from problem
    except OSError as problem:
        raise DataError(f"{files.refer(name)}: cannot be read ({problem.strerror or problem})") from problem
