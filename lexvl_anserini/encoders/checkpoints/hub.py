"""Models of the Hugging Face hub: its listing, and files in the local cache that are compared with it.

    CACHE/models--owner--name/blobs/DIGEST            a file, by the digest that the listing gives
    CACHE/models--owner--name/snapshots/COMMIT/NAME   a link to it
    CACHE/models--owner--name/refs/REVISION           the commit that the name of a revision meant last

`huggingface_hub.snapshot_download` downloads, and other programs share its cache. Names come from the listing, are
checked before, and every file is compared with its digest there; a damaged file is removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from glob import escape
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.encoders.checkpoints.filenames import model_files
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import atomic_write, compute_sha256, disk_errors, exclusive, make_folder

COMMIT = re.compile(r"[0-9a-f]{40}")
# A branch, a tag or a commit; also a part of a path.
REVISION = re.compile(r"(?!.*(\.\.|//))\w[\w.+/-]*(?<![/.])")
MAIN = "main"

# By the length of a digest: the hub gives git's SHA-1 of a small file and the SHA-256 of a large one.
KINDS = {40: "git SHA-1", 64: "SHA-256"}
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# Bytes of one part of a name, and of a name, that every file system and cache folder has room for.
LONGEST_PART, LONGEST_NAME = 255, 1000


class HubFile(NamedTuple):
    """A file in the hub's listing: its name there, its bytes, and their digest (see `KINDS`)."""

    name: str
    size: int
    digest: str


class Listing(NamedTuple):
    """The files of a model that are wanted, at one commit."""

    commit: str
    files: list[HubFile]


def read_listing(name: str, revision: str | None, weights: bool) -> Listing:
    """Asks the hub which files a model has, and which bytes."""
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    if not COMMIT.fullmatch(str(info.sha)):
        raise CheckpointError(f"{name}: the hub answers with commit {str(info.sha)!r:.80}, expected 40 hex digits")
    if COMMIT.fullmatch(revision or "") and info.sha != revision:
        raise CheckpointError(f"{name}@{revision}: the hub answers with another commit, {info.sha}; refused")
    listed = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    if odd := next(
        (file_name for file_name in listed if model_files([file_name], weights) and not safe_name(file_name)), None
    ):
        raise CheckpointError(
            f"{name}: the hub lists the file {odd!r:.80}, which is not a name inside a folder; refused"
        )
    names = model_files(listed, weights)
    if inner := next(
        (file_name for file_name in names if any(map(set(names).__contains__, folders_of(file_name)))), None
    ):
        raise CheckpointError(f"{name}: the hub lists {inner!r:.80} inside of a file; refused")
    if not names:
        raise CheckpointError(f"{name}: the hub lists no file of a model (weights, configuration, tokenizer)")
    return Listing(str(info.sha), [hub_file(name, listed[file_name]) for file_name in names])


def safe_name(name: Any) -> bool:
    """True for the name of a file in a folder or its subfolders, on any file system and in any git."""
    if not isinstance(name, str) or "\\" in name or not name.isprintable() or len(os.fsencode(name)) > LONGEST_NAME:
        return False
    parts = name.split("/")
    return not any(part.lower() in ("", ".", "..", ".git") or len(part.encode()) > LONGEST_PART for part in parts)


def folders_of(name: str) -> Iterable[str]:
    """The folders that a file is in: "a/b/c" is in "a/b" and "a"."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def hub_file(model: str, sibling: Any) -> HubFile:
    """One file of the listing."""
    size, digest = (sibling.lfs.size, sibling.lfs.sha256) if sibling.lfs else (sibling.size, sibling.blob_id)
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise CheckpointError(
            f"{model}: the hub's listing has no size and digest of {sibling.rfilename}, so that its bytes cannot be "
            "checked; download it elsewhere and pass its folder"
        )
    return HubFile(sibling.rfilename, size, digest)


def storage_of(name: str) -> Path:
    """The folder of a model in the cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")


def download(name: str, revision: str | None, listing: Listing, weights: bool) -> Path:
    """The folder of a model's snapshot in the cache, after downloading what it lacks."""
    from huggingface_hub import snapshot_download

    storage = storage_of(name)
    snapshot = storage / "snapshots" / listing.commit
    with disk_errors(storage):
        make_folder(storage / "blobs")
        with exclusive(storage / "blobs", wait=True):
            remove_others(snapshot, {file.name for file in listing.files}, weights)
            if not all((snapshot / file.name).is_file() for file in listing.files):
                snapshot_download(
                    name,
                    revision=listing.commit,
                    allow_patterns=[escape(file.name) for file in listing.files],
                )
            for file in listing.files:
                check_file(f"{name}@{listing.commit}", snapshot, file.name, file.digest)
            reference = storage / "refs" / (revision or MAIN)
            if revision != listing.commit and not (reference.is_file() and reference.read_text() == listing.commit):
                with atomic_write(reference) as out:
                    out.write(listing.commit.encode())
    return snapshot


def check_file(reference: str, snapshot: Path, name: str, expected: str) -> None:
    """Compares a file of a snapshot with its digest; removes a damaged file."""
    digest = digest_like(expected, snapshot / name)
    if digest != expected:
        remove(snapshot / name)
        raise CheckpointError(
            f"{reference}: {name} arrived damaged ({KINDS[len(expected)]} {digest[:16]}, the hub says "
            f"{expected[:16]}) and was removed; run again to download it"
        )


def remove(path: Path) -> None:
    """Removes a file of a snapshot, with the blob of the cache that it links to."""
    blob = path.resolve()
    path.unlink()
    if DIGEST.fullmatch(blob.name) and blob.parent.name == "blobs":
        blob.unlink(missing_ok=True)


def remove_others(snapshot: Path, listed: Collection[str], weights: bool) -> None:
    """Removes links that the listing does not have, as another server's listing of the same commit leaves them.

    These are files that a model would be loaded from, and what has the place of a listed file or of its folders.
    Weights in another form than the listed ones are other programs'.
    """
    folders = {folder for name in listed for folder in folders_of(name)}
    paths = sorted(snapshot.rglob("*"), reverse=True)
    names = {path.relative_to(snapshot).as_posix() for path in paths if path.is_symlink() or path.is_file()}
    blocking = {name for name in names if name in folders or any(map(listed.__contains__, folders_of(name)))}
    for name in blocking.union(model_files(names.union(listed), weights)).intersection(names).difference(listed):
        if not (snapshot / name).is_symlink():
            raise CheckpointError(f"{snapshot / name}: not in the hub's listing of this model; move the file away")
        (snapshot / name).unlink()
    for path in paths:  # what is in a folder comes before it
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def names_in(folder: Path) -> Iterator[str]:
    """The names of all files in a folder and its subfolders, relative to it."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def cached(name: str, revision: str | None) -> Path | None:
    """The snapshot of a revision in the cache, without the hub; None if there is none."""
    storage = storage_of(name)
    reference = storage / "refs" / (revision or MAIN)
    commit = revision or ""
    if not COMMIT.fullmatch(commit):
        commit = reference.read_text(errors="replace").strip() if reference.is_file() else ""
    snapshot = storage / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def check_cached(reference: str, folder: Path, weights: bool) -> None:
    """Compares the files of a snapshot with the digests that their blobs are named by."""
    for name in model_files(names_in(folder), weights):
        blob = (folder / name).resolve()
        if (folder / name).is_symlink() and DIGEST.fullmatch(blob.name):
            check_file(reference, folder, name, blob.name)


def digest_like(digest: str, path: Path) -> str:
    """The digest of a file, of the kind of another digest."""
    return git_sha1(path) if len(digest) == len(sha1().hexdigest()) else content_sha256(path)


def git_sha1(path: Path) -> str:
    """The SHA-1 (hex) that git gives a file of these bytes."""
    digest = sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def content_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes; a process reads a file that does not change once."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    return compute_sha256(path)
