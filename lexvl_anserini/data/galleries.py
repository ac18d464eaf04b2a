"""Where the image files of a corpus are: folders and tar archives, looked through in order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lexvl_anserini.data.archives import open_archive
from lexvl_anserini.errors import DataError

# Missing files named in an error.
NAMED = 5


def sources_in(folder: Path, names: Iterable[str]) -> list[Path]:
    """Folders of the given names, then all tar archives, in a folder."""
    folders = [folder / name for name in names if (folder / name).is_dir()]
    return folders + sorted(path for path in folder.glob("*.tar") if path.is_file())


def references(files: Sequence[str], sources: Sequence[Path], what: str) -> dict[str, str]:
    """File name -> path or `archive.tar::member`, for every file.

    A file `val2014/x.jpg` is looked for under that name, then as `x.jpg`, in each source: at its top, one folder
    further down, or anywhere in an archive.

    Raises:
        DataError: files that are in none of the sources; names the first five.
    """
    found: dict[str, str] = {}
    for source in sources:
        if len(found) == len(files):
            break
        names = _names(source)
        for file in files:
            if file not in found and (reference := names.get(file) or names.get(file.rsplit("/", 1)[-1])):
                found[file] = reference
    missing = [file for file in files if file not in found]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(
            f"{what}: {len(missing)} of {len(files)} images are not in {', '.join(map(str, sources))}: "
            f"{', '.join(missing[:NAMED])}{more}"
        )
    return found


def _names(source: Path) -> Mapping[str, str]:
    """Names, with and without their folder, of the files in a source, and how each is referred to."""
    if source.is_dir():
        listed = {name: str(source / name) for name in _listing(source)}
    else:
        listed = {name: f"{source}::{name}" for name in open_archive(source).members}
    names: dict[str, str] = {}
    for name, reference in listed.items():
        folder, _, base = name.rpartition("/")
        names.setdefault(base, reference)
        names.setdefault(f"{(folder.rpartition('/')[2] or source.name)}/{base}", reference)
    return names


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
