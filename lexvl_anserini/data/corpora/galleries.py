"""Finds the image files of a corpus in folders and tar archives."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.ground.errors import DataError

# Missing files named in an error.
NAMED = 5


class _Found(NamedTuple):
    """A file of a source: its folder, which begins with the source's own name, and its reference."""

    folder: str
    reference: str


def sources_in(folder: Path, names: Iterable[str]) -> list[Path]:
    """Folders of the given names, then all tar archives, in a folder."""
    folders = [folder / name for name in names if (folder / name).is_dir()]
    return folders + sorted(path for path in folder.glob("*.tar") if path.is_file())


def references(
    files: Sequence[str], sources: Sequence[Path], what: str, folders: Collection[str] = ()
) -> dict[str, str]:
    """File name -> path or `archive.tar::member`, for every file.

    Each source is searched: a folder and the folders directly in it, or all of an archive. The file `val2014/x.jpg` is
    a file `x.jpg` in a folder `val2014`. Because users often put all images into one folder, a file `x.jpg` elsewhere
    matches too, unless its folder is another part of the corpus, or the corpus or the source has several `x.jpg`.

    Args:
        files: names in the corpus, with or without a folder.
        sources: folders and archives; the first source that has a file provides it.
        what: the corpus, for the error.
        folders: further folders of the corpus, besides those in the names of `files`.

    Raises:
        DataError: no source has some of the files; names the first five.
    """
    parts = {*folders, *(_last(file.rpartition("/")[0]) for file in files)} - {""}
    wanted = Counter(map(_last, files))
    found: dict[str, str] = {}
    for source in sources:
        if len(found) == len(files):
            break
        names = _names(source)
        for file in files:
            here = names.get(_last(file), [])
            if file not in found and (one := _in_its_folder(file, here) or _in_any_folder(file, here, wanted, parts)):
                found[file] = one.reference
    missing = [file for file in files if file not in found]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(
            f"{what}: {len(missing)} of {len(files)} images are not in {', '.join(map(str, sources))}: "
            f"{', '.join(missing[:NAMED])}{more}"
        )
    return found


def _in_its_folder(file: str, here: Sequence[_Found]) -> _Found | None:
    """The first file of that name whose folder ends in the folder that the corpus names."""
    folder = file.rpartition("/")[0]
    return next((one for one in here if not folder or f"/{one.folder}".endswith(f"/{folder}")), None)


def _in_any_folder(
    file: str, here: Sequence[_Found], wanted: Mapping[str, int], parts: Collection[str]
) -> _Found | None:
    """The only file of its name, if the corpus has one file of that name and the folder is not another of its parts."""
    alone = wanted[_last(file)] == len(here) == 1
    return here[0] if alone and _last(here[0].folder) not in parts else None


def _names(source: Path) -> Mapping[str, list[_Found]]:
    """Name without its folder -> the files of that name in a source, the least nested first."""
    if source.is_dir():
        listed = {name: str(source / name) for name in _listing(source)}
    else:
        listed = {name: f"{source}::{name}" for name in open_archive(source).members}
    names: dict[str, list[_Found]] = defaultdict(list)
    for name in sorted(listed, key=lambda name: name.count("/")):
        folder, _, base = name.rpartition("/")
        names[base].append(_Found(f"{source.name}/{folder}".rstrip("/"), listed[name]))
    return names


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _listing(folder: Path) -> list[str]:
    """Files of a folder and of the folders in it, sorted."""
    names = []
    try:
        for entry in os.scandir(folder):
            # Unlike `DirEntry.is_dir`, this is False for links in a circle.
            if Path(entry.path).is_dir():
                names += [f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path)]
            else:
                names.append(entry.name)
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read ({problem.strerror or problem})") from problem
    return sorted(names)
