"""Folders in storage that has no names of its own: `s3://bucket/corpus`, or any other URL that fsspec opens.

`ground.places` names the local copy of each. A folder is published by its files and, at the end, their listing
`files.json` with size and digest of each: a folder without it is unfinished, and a file is taken only with this digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.ground.errors import ArtefactError, LexvlError, MissingExtra, UsageError, reason_of
from lexvl_anserini.ground.files import atomic_write, disk_errors, file_sha256, json_bytes, make_folder, room_of
from lexvl_plugins.cluster.places import storage_root, stored_url

LISTING = "files.json"
FORMAT = "lexvl-files/1"

# The extra that has the package of a scheme.
EXTRAS = {"s3": "s3"}


class ListedFile(NamedTuple):
    """A published file: its size, and its SHA-256 (hex)."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> ListedFile:
        """The entry of a local file."""
        return cls(path.stat().st_size, file_sha256(path))


class OpenStorage(NamedTuple):
    """A file system of fsspec, and the name of a folder, or of a file, in it."""

    system: Any
    path: str
    url: str

    def name(self, file: str) -> str:
        """The name of a file of the folder."""
        return f"{self.path.rstrip('/')}/{file}"


def fetch_folder(folder: Path, names: Iterable[str] | None = None) -> None:
    """Copies the published files of a stored folder here, or those of these names that it has."""
    storage = opened(url_of(folder))
    if (listing := read_listing(storage)) is None:
        raise ArtefactError(
            f"{storage.url}: nothing finished there (no {LISTING}); run the command that writes it again, it goes on"
        )
    if names is None:
        remove_others(folder, listing)
    for name in listing if names is None else set(names) & listing.keys():
        fetch(storage, name, folder / name, listing[name])


def fetch(storage: OpenStorage, name: str, path: Path, listed: ListedFile) -> None:
    """Copies a file, unless it is here."""
    if path.is_file() and ListedFile.of(path) == listed:
        return
    make_folder(path.parent)
    with (
        storage_errors(f"{storage.url}/{name}", path),
        atomic_write(path) as out,
        storage.system.open(storage.name(name)) as source,
    ):
        shutil.copyfileobj(source, out, 1 << 20)
        out.flush()
        if (fetched := ListedFile.of(Path(out.name))) != listed:
            raise ArtefactError(
                f"{storage.url}/{name}: {fetched.bytes} bytes of digest {fetched.sha256[:12]}, {LISTING} has "
                f"{listed.bytes} of {listed.sha256[:12]}; it is being written, or remove the folder and write it again"
            )


def remove_others(folder: Path, listing: Mapping[str, ListedFile]) -> None:
    """Removes local files that are not published, in the folders of those that are."""
    for inside in {(folder / name).parent for name in listing}:
        if inside.is_dir():
            for path in inside.iterdir():
                if path.is_file() and str(path.relative_to(folder)) not in listing:
                    path.unlink()


def refresh_folder(folder: Path) -> None:
    """As `fetch_folder`; where nothing is published, the local copy is removed."""
    if read_listing(opened(url_of(folder))) is not None:
        fetch_folder(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def publish_folder(folder: Path) -> None:
    """Copies the files of a stored folder, their listing at the end; what is published there counts no more."""
    storage = opened(url_of(folder))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listing = {str(path.relative_to(folder)): ListedFile.of(path) for path in files}
    before = read_listing(storage)
    if before == listing:
        return
    with storage_errors(storage.url):
        if before is not None:
            storage.system.rm_file(storage.name(LISTING))
        for name in listing:
            storage.system.put_file(str(folder / name), storage.name(name))
        entry = {"format": FORMAT, "files": {name: list(listed) for name, listed in listing.items()}}
        storage.system.pipe_file(storage.name(LISTING), json_bytes(entry))


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """As `places.published`, of a stored folder."""
    if read_listing(opened(url_of(folder))) is not None:
        fetch_folder(folder)
    yield
    publish_folder(folder)
    discard(folder)


def discard(folder: Path) -> None:
    """Removes the local copy of a URL; other folders stay."""
    if stored_url(folder):
        shutil.rmtree(folder, ignore_errors=True)


def fetch_file(path: Path) -> None:
    """Copies a single stored file here, or removes the local copy of one that is not there."""
    storage = opened(url_of(path))
    make_folder(path.parent)
    with storage_errors(storage.url, path):
        try:
            content = storage.system.cat_file(storage.path)
        except FileNotFoundError:
            path.unlink(missing_ok=True)
            return
        with atomic_write(path) as out:
            out.write(content)


def publish_file(path: Path) -> None:
    """Copies a single file to its URL."""
    if url := stored_url(path):
        storage = opened(url)
        with storage_errors(url):
            storage.system.pipe_file(storage.path, path.read_bytes())


def withdraw_file(path: Path) -> None:
    """Removes a single file, and that of its URL."""
    path.unlink()
    if url := stored_url(path):
        storage = opened(url)
        with storage_errors(url):
            storage.system.rm_file(storage.path)


def make_place(folder: Path) -> None:
    """Makes a folder; of a URL, also writes a file there and removes it, before long work begins."""
    with disk_errors(folder):
        make_folder(folder)
    if url := stored_url(folder):
        storage = opened(url)
        with storage_errors(url):
            storage.system.pipe_file(storage.name(".writable"), b"1")
            storage.system.rm_file(storage.name(".writable"))


def gathering_folder(folder: Path) -> Path:
    """Where the parts of a folder wait until it is whole: beside it; in storage, where nothing is renamed, in it."""
    return folder if stored_url(folder) else room_of(folder)


def read_listing(storage: OpenStorage) -> dict[str, ListedFile] | None:
    """The published files of a folder by name; None if nothing is published, or not completely."""
    where = f"{storage.url}/{LISTING}"
    with storage_errors(where):
        try:
            content = storage.system.cat_file(storage.name(LISTING))
        except FileNotFoundError:
            return None
    try:
        entry = orjson.loads(content)
        if entry["format"] != FORMAT:
            raise ValueError(f"format {entry['format']!r}")
        listing = {name: ListedFile(int(size), str(digest)) for name, (size, digest) in entry["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{where}: no listing of this version ({error!r}); remove it and write again") from error
    if unsafe := [name for name in listing if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise ArtefactError(f"{where}: {unsafe[0]!r} is outside of its folder; remove it and write again")
    return listing


def url_of(path: Path) -> str:
    """The URL of a local copy."""
    url = stored_url(path)
    assert url is not None, path
    return url


def opened(url: str) -> OpenStorage:
    """The file system of a URL."""
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0]
    try:
        system, path = url_to_fs(url)
    except ImportError as error:
        if scheme in EXTRAS:
            raise MissingExtra(f"{scheme}:// of storage", EXTRAS[scheme]) from error
        raise UsageError(f"{url}: {reason_of(error)}") from error
    except ValueError as error:
        raise UsageError(f"{url}: {reason_of(error)}; expected a URL that fsspec opens, such as s3://") from error
    return OpenStorage(system, path, url)


@contextmanager
def storage_errors(url: str, path: Path | None = None) -> Iterator[None]:
    """Turns the errors of a storage, or of the disk where its copy is written, into one line."""
    try:
        with disk_errors(path or storage_root()):
            yield
    except LexvlError:
        raise
    except FileNotFoundError as error:
        raise ArtefactError(f"{url}: no such bucket, folder or file ({reason_of(error)})") from error
    except Exception as error:
        raise ArtefactError(f"{url}: the storage does not answer as expected ({reason_of(error)})") from error
