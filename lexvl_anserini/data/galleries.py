"""Where the image files of a corpus are: folders and tar archives, looked through in order."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.archives import open_archive
from lexvl_anserini.errors import DataError

# Missing files named in an error.
NAMED = 5


class _Found(NamedTuple):
    """A file of a source: the folder it is in, from the source's own name on, and how it is referred to."""

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

    Files are looked for in each source: at its top, one folder further down, or anywhere in an archive. A file
    `val2014/x.jpg` is one in a folder `val2014`; or else one named `x.jpg`, as images are often put into one folder,
    unless that is in a folder of another part of the corpus, or there are several files `x.jpg` here or there.

    Args:
        files: as the corpus names them, with or without a folder.
        sources: folders and archives; the first that has a file counts.
        what: the corpus, for the error.
        folders: of the corpus, besides those that the files name.

    Raises:
        DataError: files that are in none of the sources; names the first five.
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
    """Of files of its name, the first in a folder that ends as the file's does."""
    folder = file.rpartition("/")[0]
    return next((one for one in here if not folder or f"/{one.folder}".endswith(f"/{folder}")), None)


def _in_any_folder(
    file: str, here: Sequence[_Found], wanted: Mapping[str, int], parts: Collection[str]
) -> _Found | None:
    """The only file of its name, if no other is wanted by that name and its folder is no other part of the corpus."""
    alone = wanted[_last(file)] == len(here) == 1
    return here[0] if alone and _last(here[0].folder) not in parts else None


def _names(source: Path) -> Mapping[str, list[_Found]]:
    """Name without its folder -> the files of that name in a source, those nearest to its top first."""
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
            if entry.is_dir():
                names += [f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path) if inner.is_file()]
            else:
                names.append(entry.name)
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read ({problem.strerror or problem})") from problem
    return sorted(names)
