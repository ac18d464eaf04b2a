"""Folders in storage outside the file system: `s3://bucket/corpus`, or any other URL that fsspec opens.

A URL becomes a `StoredPath`, the folder of its local copies: `$LEXVL_STORAGE/s3/bucket/corpus`. Code reads and writes
these as files, fetches them before and publishes them after; for other paths these functions do nothing.

A folder is published by its files and, at the end, their listing `files.json` with size and digest of each: a folder
without it is unfinished, and a file is taken only with this digest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import (
    ArtefactError,
    DataError,
    LexvlError,
    MissingExtra,
    UsageError,
    describe_error,
    hide_passwords,
)
from lexvl_anserini.ground.files import atomic_write, compute_sha256, disk_errors, format_json, make_folder, parse_json
from lexvl_anserini.ground.machine import cache_folder, expand_path

LISTING = "files.json"
FORMAT = "lexvl-files/1"

# Bytes of a listing, which is damaged where it is cut, and of a file that no listing names.
MOST_LISTING = 1 << 28
MOST_UNLISTED = 1 << 34

# A URL of storage: scheme, and names without `..`, `?` or `#`.
URL = re.compile(r"[a-z][a-z\d+.-]*://[^?#\x00-\x1f]+")


class StoredPath(PosixPath):
    """The local copy of a URL. In another process it is the copy of the same URL on the machine of that process."""

    def __reduce__(self) -> Any:
        url = find_url(self)
        return (place, (url,)) if url else (Path, (str(self),))


def find_root() -> Path:
    """The folder of local copies: `$LEXVL_STORAGE`, else ~/.cache/lexvl/storage."""
    return expand_path(os.environ.get("LEXVL_STORAGE") or cache_folder() / "storage").absolute()


def place(text: str | Path) -> Path:
    """The path that an option names: a path, or the local copy of a URL."""
    written = str(text)
    if "://" not in written:
        path = Path(written)
        return StoredPath(path) if find_url(path) else path
    scheme, _, names = written.partition("://")
    if scheme == "file":
        return Path("/" + names.strip("/"))
    if not URL.fullmatch(written) or {"", ".", ".."} & set(names.rstrip("/").split("/")):
        raise UsageError(f"{written!r}: no URL of a folder or file, such as s3://bucket/folder")
    return StoredPath(find_root() / scheme / names.rstrip("/"))


def find_url(path: Path) -> str | None:
    """The URL of which a path is the local copy; None for any other path."""
    root = find_root()
    if root not in path.absolute().parents:
        return None
    scheme, *names = path.absolute().relative_to(root).parts
    return f"{scheme}://{'/'.join(names)}" if names else None


def name_urls(text: str) -> str:
    """A text in which local copies are named by their URLs, without passwords."""
    return hide_passwords(re.sub(re.escape(f"{find_root()}{os.sep}") + r"([a-z][a-z\d+.-]*)/", r"\1://", text))


class ListedFile(NamedTuple):
    """The size and digest (hex) of a published file."""

    bytes: int
    sha256: str

    @classmethod
    def read(cls, path: Path) -> ListedFile:
        """The entry of a local file."""
        return cls(path.stat().st_size, compute_sha256(path))


class OpenStorage(NamedTuple):
    """A folder or a file of storage: a file system of fsspec, and the path in it."""

    system: Any
    path: str
    url: str

    def name(self, file: str) -> str:
        """The name of a file of the folder."""
        return f"{self.path.rstrip('/')}/{file}"


def fetch(folder: Path, names: Iterable[str] | None = None) -> Path:
    """Copies the published files of a folder here, or those of the given names; a local file stays as it is."""
    if not (storage := find_storage(folder)):
        return folder
    if (listing := read_listing(storage)) is None:
        remedy = "run the command that writes it again, it goes on"
        raise ArtefactError(f"{storage.url}: nothing finished there (no {LISTING}); {remedy}")
    if names is None:
        # Local files that are not published go, in the folders of those that are.
        for path in {path for name in listing for path in (folder / name).parent.glob("*") if path.is_file()}:
            if str(path.relative_to(folder)) not in listing:
                path.unlink()
    for name in listing if names is None else set(names) & listing.keys():
        _copy_here(storage, name, folder / name, listing[name])
    return folder


def _copy_here(storage: OpenStorage, name: str, path: Path, listed: ListedFile) -> None:
    """Copies a file, unless it is here."""
    if path.is_file() and ListedFile.read(path) == listed:
        return
    make_folder(path.parent)
    with (
        name_errors(f"{storage.url}/{name}", path),
        atomic_write(path) as out,
        storage.system.open(storage.name(name)) as source,
    ):
        copy_bounded(source, out, listed.bytes)
        out.flush()
        if (copy := ListedFile.read(Path(out.name))) != listed:
            held = f"{copy.bytes} bytes of digest {copy.sha256[:12]}"
            expected = f"{LISTING} has {listed.bytes} of {listed.sha256[:12]}"
            remedy = "it is being written, or remove the folder and write it again"
            raise ArtefactError(f"{storage.url}/{name}: {held}, {expected}; {remedy}")


def copy_bounded(source: Any, out: Any, most: int) -> None:
    """Copies a file whose size is known; of a longer one so much that it shows, and no more."""
    left = most + 1
    while left and (piece := source.read(min(left, 1 << 20))):
        out.write(piece)
        left -= len(piece)


def refresh(folder: Path) -> Path:
    """The folder as `fetch` returns it, or, where nothing is published at its URL, a path without a folder."""
    if (storage := find_storage(folder)) and read_listing(storage) is None:
        discard(folder)
        return folder
    return fetch(folder)


def publish(folder: Path) -> None:
    """Copies the files of a folder to its URL, their listing last; what was published there before no longer counts."""
    if not (storage := find_storage(folder)):
        return
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listing = {str(path.relative_to(folder)): ListedFile.read(path) for path in files}
    before = read_listing(storage)
    if before == listing:
        return
    with name_errors(storage.url):
        if before is not None:
            storage.system.rm_file(storage.name(LISTING))
        for name in listing:
            storage.system.put_file(str(folder / name), storage.name(name))
        entry = {"format": FORMAT, "files": {name: list(listed) for name, listed in listing.items()}}
        storage.system.pipe_file(storage.name(LISTING), format_json(entry))


@contextmanager
def publish_after(folder: Path) -> Iterator[None]:
    """Within the block the folder has what is published or what a killed process left; then it is published.

    The local copy is removed then; after an exception it stays, and the next call goes on with it.
    """
    if (storage := find_storage(folder)) and read_listing(storage) is not None:
        fetch(folder)
    yield
    publish(folder)
    discard(folder)


def discard(folder: Path) -> None:
    """Removes the local copy of a URL; other folders stay."""
    if find_url(folder):
        shutil.rmtree(folder, ignore_errors=True)


def fetch_file(path: Path) -> Path:
    """Fetches a single file; if there is none, there is no local copy afterwards either."""
    if not (storage := find_storage(path)):
        return path
    make_folder(path.parent)
    with name_errors(storage.url, path):
        try:
            with storage.system.open(storage.path) as source, atomic_write(path) as out:
                copy_bounded(source, out, MOST_UNLISTED)
                if out.tell() > MOST_UNLISTED:
                    raise ArtefactError(f"{storage.url}: more than {MOST_UNLISTED:,} bytes, expected a plan")
        except FileNotFoundError:
            path.unlink(missing_ok=True)
    return path


def publish_file(path: Path) -> None:
    """Copies a single file to its URL."""
    if storage := find_storage(path):
        with name_errors(storage.url):
            storage.system.pipe_file(storage.path, path.read_bytes())


def withdraw_file(path: Path) -> None:
    """Removes a single file and its published copy."""
    path.unlink()
    if storage := find_storage(path):
        with name_errors(storage.url):
            storage.system.rm_file(storage.path)


def make_place(folder: Path) -> None:
    """Makes a folder; of a URL, also writes a file there and removes it, before long work begins."""
    with disk_errors(folder):
        make_folder(folder)
    if storage := find_storage(folder):
        with name_errors(storage.url):
            storage.system.pipe_file(storage.name(".writable"), b"1")
            storage.system.rm_file(storage.name(".writable"))


def read_listing(storage: OpenStorage) -> dict[str, ListedFile] | None:
    """The published files of a folder by name; None if nothing is published, or not completely."""
    where = f"{storage.url}/{LISTING}"
    with name_errors(where):
        try:
            with storage.system.open(storage.name(LISTING)) as source:
                content = source.read(MOST_LISTING)
        except FileNotFoundError:
            return None
    try:
        entry = parse_json(content, "its content")
        if entry["format"] != FORMAT:
            raise ValueError(f"format {entry['format']!r}")
        listing = {name: ListedFile(int(size), str(digest)) for name, (size, digest) in entry["files"].items()}
    except (DataError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{where}: no listing of this version ({error!r}); remove it and write again") from error
    if unsafe := [name for name in listing if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise ArtefactError(f"{where}: {unsafe[0]!r} is outside of its folder; remove it and write again")
    return listing


def find_storage(folder: Path) -> OpenStorage | None:
    """The storage of which a folder or file is the local copy, opened; None for any other."""
    if not (url := find_url(folder)):
        return None
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        if url.startswith("s3://"):
            raise MissingExtra("s3:// of storage", "s3") from error
        raise UsageError(f"{url}: {describe_error(error)}") from error
    except ValueError as error:
        raise UsageError(f"{url}: {describe_error(error)}; expected a URL that fsspec opens, such as s3://") from error
    return OpenStorage(system, path, url)


@contextmanager
def name_errors(url: str, path: Path | None = None) -> Iterator[None]:
    """Turns the errors of a storage, or of the disk where its copy is written, into one line."""
    try:
        with disk_errors(path or find_root()):
            yield
    except LexvlError:
        raise
    except FileNotFoundError as error:
        raise ArtefactError(f"{url}: no such bucket, folder or file ({describe_error(error)})") from error
    except Exception as error:
        raise ArtefactError(f"{url}: the storage does not answer as expected ({describe_error(error)})") from error
