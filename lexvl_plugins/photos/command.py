"""Your own pictures: one command encodes what is new in a folder, indexes it, answers queries and draws the answers.

    ALBUM/index/            the index, for all commands; each document's metadata has the SHA-256 of its picture
    ALBUM/incoming/         shards of pictures on their way into the index
    ALBUM/unreadable.jsonl  the pictures that cannot be read, and why, if there are any
    ALBUM/contact-sheet.png

The index follows the folder: new and changed pictures are encoded, those that are gone are dropped. Each change of it
happens whole or not at all, so a call that was killed at any moment and is made again ends like one that was not
killed. It encodes at most `SHARD` pictures again, or `PART` if the folder changed meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import orjson
import typer
from lexvl_eval.report.answers import make_answer_strips
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, expand_options, run
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.cards import choose_encoder, make_direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest, is_index
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.files import atomic_write, clear_remains, exclusive
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, progress_bar, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import CorpusRef, Document
from lexvl_anserini.searching.building import append_index, build_index, delete_documents, read_keywords
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.shards.encoding import UNREADABLE
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import SKIPPED, clear, write_impacts
from lexvl_plugins.photos.answers import DIRECTION, SHEET, AskOptions, format_unreadable

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
    """Finds what the index of a folder lacks; one of another encoder, or without digests, counts as none."""
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
    own = str(album.path.resolve() / SHEET)
    for document in dataset.documents():
        if document.image is not None and document.image != own:
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


# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.photos.command")


def read_folder(folder: Path) -> Dataset:
    """The pictures of a folder (or tar), by its absolute path; names may have spaces."""
    return load_pictures(CorpusRef(f"folder:{folder}", escape_ids=True, direction=DIRECTION))


def describe_differences(differences: Differences, album: Album) -> str:
    """A line about what there is to do."""
    pictures, changed = len(differences.to_encode), differences.changed
    if not pictures:
        return "no new or changed picture, nothing to encode"
    if differences.manifest is None and album.index.exists():
        return f"the index is of another checkpoint: all {pictures:,} pictures are encoded anew"
    return f"{pictures - changed:,} new and {changed:,} changed pictures to encode"


def describe_changes(done: Followed, album: Album) -> Iterator[str]:
    """Lines about what was done."""
    changes = {"added": done.added, "replaced": done.replaced, "removed": done.removed}
    listed = ", ".join(f"{count:,} {what}" for what, count in changes.items() if count)
    yield f"{done.documents:,} pictures in the index" + (f": {listed}" if listed else ", unchanged")
    if done.unreadable:
        yield format_unreadable([picture.id for picture in done.unreadable], "", album.unreadable)


def update_album(dataset: Dataset, model: Encoder, album: Album) -> Followed:
    """Brings the index up to date, with a bar."""
    differences = compare(dataset, model, album)
    log.info("%s", describe_differences(differences, album))
    with progress_bar("encode", len(differences.to_encode), "pictures") as progress:
        return follow(dataset, model, album, differences, progress)


@expand_options
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or an uncompressed .tar of one.")],
    asking: AskOptions,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Search your own pictures: encode what is new in a folder, index it, answer queries, draw a contact sheet.

    Without a query, only the index is brought up to date.

    Example: lexvl photos FOLDER "two dogs on a beach" "a birthday cake"
    """
    started = time.perf_counter()
    pictures, place = asking.find_places(folder, "lexvl-photos", "pictures")
    album, dataset = Album(place), read_folder(pictures)
    name, for_photos = choose_encoder(dataset.name, DIRECTION)
    model = load_encoder(name, checkpoint or for_photos, device=device, **make_direction_option(name, DIRECTION))
    with exclusive(place):
        for line in describe_changes(update_album(dataset, model, album), album):
            typer.echo(line)
        index = Index(album.index, index_manifest(album.index))
    if asking.queries:
        answers = asking.answer(index, model)
        draw_sheet(make_answer_strips(dataset, index, model, answers), place / SHEET, DEFAULT_TERMS)
        typer.echo(f"\nqueries, their first pictures and terms: {place / SHEET}")
    else:
        typer.echo(f'to ask: lexvl photos {folder} "two dogs on a beach"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {place}/")


if __name__ == "__main__":
    run(command)
