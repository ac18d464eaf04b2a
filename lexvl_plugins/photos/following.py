"""An index that follows a folder: new and changed pictures are encoded, those that are gone are dropped.

    ALBUM/index/            the index; each document's metadata has the SHA-256 of its picture
    ALBUM/incoming/         shards of pictures on their way into the index
    ALBUM/unreadable.jsonl  the pictures that cannot be read, and why, if there are any

Each change of the index happens whole or not at all, so a call that was killed at any moment and is made again ends
like one that was not killed. It encodes at most `SHARD` pictures again, or `PART` if the folder changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.engines.index_folder import is_index
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.files import atomic_write, clear_remains
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document
from lexvl_anserini.searching.building import append_index, build_index, delete_documents, read_keywords
from lexvl_anserini.shards.encoding import UNREADABLE
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import SKIPPED, clear, write_impacts

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# The key of the documents' metadata.
DIGEST = "sha256"
# Pictures that are encoded before the index gets them, and pictures of a shard, after each of which a call resumes.
PART = 1024
SHARD = 128


class Album:
    """The folder of such an index: the index, shards on their way into it, and the list of unreadable pictures."""

    def __init__(self, path: Path):
        self.path, self.index, self.incoming = path, path / "index", path / "incoming"
        self.unreadable = path / "unreadable.jsonl"


class UnreadablePicture(NamedTuple):
    """A picture that cannot be read: its document, the SHA-256 of its file, and what is wrong with it."""

    id: str
    sha256: str
    reason: str


@dataclass(frozen=True)
class Differences:
    """How a folder and its index differ: all pictures, those to encode, and those that still cannot be read.

    `held` has the id and the SHA-256 of what the index holds; `manifest` is None if a new index is to be built.
    """

    pictures: Sequence[Document]
    to_encode: Sequence[Document]
    held: Mapping[str, str]
    unreadable: Sequence[UnreadablePicture]
    manifest: Manifest | None

    @property
    def changed(self) -> int:
        """How many of these pictures the index holds as they were before."""
        return sum(picture.doc_id in self.held for picture in self.to_encode)


class Followed(NamedTuple):
    """What a call did: numbers of pictures in the index, and the pictures that cannot be read."""

    documents: int
    added: int
    replaced: int
    removed: int
    unreadable: Sequence[UnreadablePicture]


def compare(dataset: Dataset, model: Encoder, album: Album) -> Differences:
    """Finds what the index of a folder lacks, and encodes nothing; pictures in the album are left out.

    An index of another encoder, or one that holds no digests, counts as none.
    """
    clear_remains(album.index)
    manifest = read_manifest(album.index) if is_index(album.index) else None
    if manifest is not None and manifest.corpus.name != dataset.name:
        names = f"{manifest.corpus.name}, not of {dataset.name}"
        raise ArtefactError(f"{album.path}: holds the index of {names}; name another --output")
    with FileDigests() as files:
        pictures = list(_read_pictures(dataset, album, files))
    if not pictures:
        raise DataError(f"{dataset.name}: no picture in it")
    same = manifest is not None and manifest.encoder.without_places() == model.identity().without_places()
    held = read_keywords(album.index, DIGEST) if same else {}
    if manifest is not None and len(held) != manifest.counts.documents:
        manifest, held = None, {}
    different = [picture for picture in pictures if held.get(picture.doc_id) != picture.metadata[DIGEST]]
    unreadable = _find_unreadable(different, album)
    known = {picture.id for picture in unreadable}
    to_encode = [picture for picture in different if picture.doc_id not in known]
    return Differences(pictures, to_encode, held, unreadable, manifest)


def follow(
    dataset: Dataset, model: Encoder, album: Album, differences: Differences, progress: Progress = silent
) -> Followed:
    """Encodes the new and changed pictures, gives them to the index, and removes what is gone or unreadable.

    The quantiser's scale is that of the first pictures. The caller lets no other process write the album from `compare`
    on. Where no picture can be read, the index stays as it is; after any error, the same call goes on.
    """
    manifest, unreadable = differences.manifest, list(differences.unreadable)
    pictures = iter(differences.to_encode)
    while part := list(islice(pictures, PART)):
        quantiser = Quantiser.from_json(manifest.quantiser).settle() if manifest else Quantiser()
        skipped = _encode(dataset, model, part, album, quantiser, progress)
        if len(skipped) < len(part):
            manifest = _index_shards(album, manifest)
        unreadable += skipped
        _write_unreadable(album, unreadable)
    _write_unreadable(album, unreadable)
    without = {picture.id for picture in unreadable}
    readable = {picture.doc_id for picture in differences.pictures} - without
    if not readable:
        unread = f"none of its {len(without):,} pictures can be read"
        raise DataError(f"{dataset.name}: {unread}; {album.unreadable} lists them")
    if gone := [doc_id for doc_id in differences.held if doc_id not in readable]:
        delete_documents(album.index, gone)
    encoded = [picture.doc_id for picture in differences.to_encode if picture.doc_id in readable]
    replaced = sum(doc_id in differences.held for doc_id in encoded)
    return Followed(len(readable), len(encoded) - replaced, replaced, len(gone), unreadable)


def _read_pictures(dataset: Dataset, album: Album, files: FileDigests) -> Iterator[Document]:
    """The pictures, each with the SHA-256 of its file as its metadata."""
    inside = f"{album.path.resolve()}/"
    for document in dataset.documents():
        if document.image is not None and not document.image.startswith(inside):
            yield document._replace(metadata={DIGEST: files.of(document.image) or UNREADABLE})


def _encode(
    dataset: Dataset, model: Encoder, part: Sequence[Document], album: Album, quantiser: Quantiser, progress: Progress
) -> list[UnreadablePicture]:
    """Encodes pictures into `incoming`, on the scale of the index if there is one; returns the unreadable ones."""
    shards, layout = album.incoming, Layout(shard_size=SHARD, metadata=True)
    digests = {picture.doc_id: picture.metadata[DIGEST] for picture in part}
    pictures = replace(dataset, documents=lambda: iter(part))
    try:
        write_impacts(pictures, model, shards, quantiser, layout, overwrite=True, progress=progress, on_error="skip")
    except DataError:  # also if none of these few can be read
        if len(_read_rows(shards / SKIPPED)) < len(part):
            raise
    rows = _read_rows(shards / SKIPPED)
    return [UnreadablePicture(row["id"], digests[row["id"]], row["reason"]) for row in rows]


def _index_shards(album: Album, manifest: Manifest | None) -> Manifest:
    """Builds an index of `incoming`, or replaces in it the documents of the same ids; returns its manifest."""
    if manifest is None:
        build_index(album.incoming, album.index, overwrite=True)
    else:
        append_index(album.index, album.incoming, replace=True)
    return read_manifest(album.index)


def _write_unreadable(album: Album, unreadable: Sequence[UnreadablePicture]) -> None:
    """Lists unreadable pictures, or removes the list if it would be empty; then removes the shards."""
    if unreadable:
        with atomic_write(album.unreadable) as out:
            out.writelines(orjson.dumps(picture._asdict()) + b"\n" for picture in unreadable)
    elif album.unreadable.exists():  # on a read-only disk a removal fails even of nothing
        album.unreadable.unlink()
    if album.incoming.is_dir():
        clear(album.incoming)
        album.incoming.rmdir()


def _find_unreadable(pictures: Sequence[Document], album: Album) -> list[UnreadablePicture]:
    """Those of the pictures that are listed as they are now, and still cannot be read: perhaps Pillow is newer."""
    listed = {row["id"]: row["sha256"] for row in _read_rows(album.unreadable)}
    unreadable = []
    for picture in pictures:
        digest = picture.metadata[DIGEST]
        if picture.image is not None and listed.get(picture.doc_id) == digest:
            try:
                open_image(picture.image)
            except DataError as problem:
                unreadable.append(UnreadablePicture(picture.doc_id, digest, str(problem)))
    return unreadable


def _read_rows(path: Path) -> list[dict[str, str]]:
    """The lines of a JSON file; none if there is no such file."""
    try:
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
    except ValueError as problem:
        raise ArtefactError(f"{path}: damaged ({problem}); remove this file, and run it again") from problem
