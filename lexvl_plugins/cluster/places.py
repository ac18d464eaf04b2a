"""Where a folder is: on this machine, or in storage, of which a local copy is read and written.

A URL such as `s3://bucket/corpus` becomes a `StoredPath`, the folder of its local copies: `$LEXVL_STORAGE/s3/bucket/
corpus`. Code reads and writes these as files, and calls `fetched` before and `publish` after; for other paths all of
these do nothing, for stored ones `doors.cluster.storage` does it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import Any

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.machine import cache_folder, expanded_path
from lexvl_anserini.ground.registry import import_home

# A URL of storage: scheme, and names without `..`, `?` or `#`.
URL = re.compile(r"(?P<scheme>[a-z][a-z\d+.-]*)://(?P<names>[^?#\x00-\x1f]+)")


class StoredPath(PosixPath):
    """The local copy of a URL. In another process it is the copy of the same URL on the machine of that process."""

    def __reduce__(self) -> Any:
        url = stored_url(self)
        return (place, (url,)) if url else (Path, (str(self),))


def storage_root() -> Path:
    """The folder of local copies: `$LEXVL_STORAGE`, else ~/.cache/lexvl/storage."""
    return expanded_path(os.environ.get("LEXVL_STORAGE") or cache_folder() / "storage").absolute()


def place(text: str | Path) -> Path:
    """The path that an option names: a path, or the local copy of a URL.

    Raises:
        UsageError: a URL that names no folder or file.
    """
    written = str(text)
    if "://" not in written:
        path = Path(written)
        return StoredPath(path) if stored_url(path) else path
    scheme, _, names = written.partition("://")
    if scheme == "file":
        return Path("/" + names.strip("/"))
    if not URL.fullmatch(written) or {"", ".", ".."} & set(names.rstrip("/").split("/")):
        raise UsageError(f"{written!r}: no URL of a folder or file, such as s3://bucket/folder")
    return StoredPath(storage_root() / scheme / names.rstrip("/"))


def stored_url(path: Path) -> str | None:
    """The URL of which a path is the local copy; None for any other path."""
    root = storage_root()
    if root not in path.absolute().parents:
        return None
    scheme, *names = path.absolute().relative_to(root).parts
    return f"{scheme}://{'/'.join(names)}" if names else None


def with_urls(text: str) -> str:
    """A text in which local copies are named by their URLs."""
    return re.sub(re.escape(f"{storage_root()}{os.sep}") + r"([a-z][a-z\d+.-]*)/", r"\1://", text)


def fetched(folder: Path, names: Iterable[str] | None = None) -> Path:
    """The folder, whose published files (or those of these names that it has) are here; a local one as it is."""
    if stored_url(folder):
        import_home("lexvl_plugins.cluster.storage").fetch_folder(folder, names)
    return folder


def refreshed(folder: Path) -> Path:
    """The folder as `fetched` returns it, or, where nothing is published at its URL, a path where no folder is."""
    if stored_url(folder):
        import_home("lexvl_plugins.cluster.storage").refresh_folder(folder)
    return folder


def fetched_file(path: Path) -> Path:
    """A single file, which is here afterwards if there is one, and not if there is none."""
    if stored_url(path):
        import_home("lexvl_plugins.cluster.storage").fetch_file(path)
    return path


def publish(folder: Path) -> None:
    """Copies the files of a folder to its URL."""
    if stored_url(folder):
        import_home("lexvl_plugins.cluster.storage").publish_folder(folder)


@contextmanager
def published(folder: Path) -> Iterator[None]:
    """Within the block the folder has what is published or what a killed process left; then it is published.

    The local copy is removed then; after an exception it stays, and the next call goes on with it.
    """
    if stored_url(folder):
        with import_home("lexvl_plugins.cluster.storage").publishing(folder):
            yield
    else:
        yield
