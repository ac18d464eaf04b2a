"""Images with captions (COCO, Flickr30k, Flickr8k, any Karpathy file) as corpora, in three directions (see `karpathy`).

An image's id is its `imgid`, a caption's its `sentid`; the two may collide. Some images of COCO have more than five
captions: all of them count where captions are topics or documents.

Files are looked for in this order, where NAME is the corpus and ROOT the data folder:

    ROOT/NAME/dataset_NAME.json, ROOT/captions/dataset_NAME.json, ROOT/dataset_NAME.json
    images in ROOT/NAME, then beside the JSON: a folder `images` (or the archive's own name, such as val2014), *.tar

`train` includes the images that COCO's file calls `restval`, as papers do (113,287 images); `train-only` leaves them
out.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.corpora.karpathy import CaptionedImage, read_karpathy, viewed
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, checked_direction, checked_split, data_root
from lexvl_anserini.data.entries import FileState, some, state_of
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.user_folders import expanded_path

DEFAULT_SPLIT = "test"
DEFAULT_DIRECTION = "text-to-image"

# Requested split -> splits of the file.
MERGED: Mapping[str, frozenset[str]] = {
    "train": frozenset({"train", "restval"}),
    "train-only": frozenset({"train"}),
}


class KnownImages(NamedTuple):
    """The image folders of a known dataset (besides `images`), and where its images come from, in words."""

    folders: tuple[str, ...]
    origin: str


_KARPATHY = "Karpathy's caption_datasets.zip (cs.stanford.edu/people/karpathy/deepimagesent)"
KNOWN: Mapping[str, KnownImages] = {
    "coco": KnownImages(
        ("val2014", "train2014"),
        "the COCO 2014 val and train images (cocodataset.org, val2014.zip and train2014.zip; the test split needs "
        "val2014 only)",
    ),
    "flickr30k": KnownImages(
        ("flickr30k-images", "flickr30k_images"),
        "the Flickr30k images (University of Illinois, by its request form)",
    ),
    "flickr8k": KnownImages(
        ("Flicker8k_Dataset", "Flickr8k_Dataset"),
        "the Flickr8k images (University of Illinois, Flickr8k_Dataset.zip)",
    ),
}


def load_captions(ref: CorpusRef) -> Dataset:
    """Loads `coco`, `flickr30k` or `flickr8k`; a split may follow: `coco/val`.

    Splits are `test` (default), `val`, `train` (with COCO's `restval`), `train-only`, `restval`; the default direction
    is text-to-image.
    """
    name, _, split_in_name = ref.name.partition("/")
    split = checked_split(ref, split_in_name)
    root = data_root(ref.data_dir)
    candidates = [root / name, root / "captions", root]
    folder = next((folder for folder in candidates if (folder / f"dataset_{name}.json").is_file()), None)
    if folder is None:
        raise DataError(_no_captions(name, root))
    folders = KNOWN[name].folders
    homes = dict.fromkeys((root / name, folder))
    sources = [path for home in homes for path in sources_in(home, ("images", *folders))]
    ref = replace(ref, name=name, split=split)
    return _dataset(ref, folder / f"dataset_{name}.json", sources, folders, lambda: _no_images(name, root))


def load_karpathy(ref: CorpusRef) -> Dataset:
    """Loads `karpathy:<json>` (with the images beside it) or `karpathy:<json>,<images folder or tar>`."""
    rest = ref.name.partition(":")[2]
    if not rest:
        raise UsageError(f"{ref.name!r} names no file; expected karpathy:<json>[,<images folder or tar>]")
    json, _, images = (rest, "", "") if expanded_path(rest).is_file() else rest.partition(",")
    path = expanded_path(json)
    if images:
        named = expanded_path(images)
        if not named.exists():
            raise DataError(f"{named}: no such folder or tar archive of images")
        sources = [named]
    else:
        sources = sources_in(path.parent, ("images",))
    return _dataset(ref, path, sources, (), lambda: _no_images_beside(ref.name, path))


def _dataset(
    ref: CorpusRef, path: Path, sources: list[Path], folders: tuple[str, ...], nothing: Callable[[], str]
) -> Dataset:
    """The dataset of a file whose images are in the sources; `nothing` gives the error message for no sources."""
    split = ref.split or DEFAULT_SPLIT
    ref = replace(ref, split=split, direction=checked_direction(ref, DIRECTIONS, DEFAULT_DIRECTION))
    images = captioned_images(path, split, ref.escape_ids)

    @cache
    def opened() -> Callable[[str], str]:
        # Only a consumer that reads images needs the files: captions are searched, and runs measured, without them.
        if not sources:
            raise DataError(nothing())
        files = [image.file for image in images]
        return references(files, sources, f"{ref.name}/{split}", folders).__getitem__

    return viewed(ref, lambda: images, opened)


# --- reading --------------------------------------------------------------------------------------------------------


def captioned_images(path: Path, split: str, escape_ids: bool = False) -> tuple[CaptionedImage, ...]:
    """The images of a split, in file order."""
    return _read(path.absolute(), split, escape_ids, state_of(path))


@lru_cache(maxsize=2)
def _read(path: Path, split: str, escape_ids: bool, state: FileState) -> tuple[CaptionedImage, ...]:
    """Decodes a file once, however often its documents, topics and qrels are read."""
    images = tuple(read_karpathy(path, MERGED.get(split, frozenset({split})), escape_ids))
    _refuse_repeated(path, "imgid", [image.image_id for image in images])
    _refuse_repeated(path, "sentid", [caption.caption_id for image in images for caption in image.captions])
    return images


def _refuse_repeated(path: Path, key: str, ids: list[str]) -> None:
    for item_id, count in Counter(ids).items():
        if count > 1:
            raise DataError(f"{path}: {key} {item_id} occurs more than once; ids must be distinct")


# --- what is missing ------------------------------------------------------------------------------------------------


def _no_captions(corpus: str, root: Path) -> str:
    return (
        f"{corpus} is not in the data folder; missing: {root / corpus}/dataset_{corpus}.json from {_KARPATHY}; and, "
        f"unless the direction is text-to-text, {_wanted_images(corpus, root)}; "
        "--data-dir or $LEXVL_DATA name another data folder"
    )


def _no_images(corpus: str, root: Path) -> str:
    return (
        f"{corpus} has its captions but no images; missing: {_wanted_images(corpus, root)}, unpacked or as an "
        "uncompressed tar; the direction text-to-text needs no images"
    )


def _no_images_beside(name: str, path: Path) -> str:
    return (
        f"{name}: no images beside {path}; put them into {path.parent / 'images'} or a .tar there, "
        f"or name them: karpathy:{path},<images folder or tar>"
    )


def _wanted_images(corpus: str, root: Path) -> str:
    """Every place that is looked at in the corpus' own folder, and what belongs there."""
    source = KNOWN[corpus]
    places = [f"{root / corpus / folder}/" for folder in ("images", *source.folders)]
    return f"{' or '.join(places)} or {root / corpus}/*.tar with {source.origin}"


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
        sources: folders and archives; the first source that has a file provides it.
        what: the corpus, for the error.
        folders: further folders of the corpus, besides those in the names of `files`.

    Raises:
        DataError: no source has some of the files; names the first five.
    """
    parts = {*folders, *(_last(file.rpartition("/")[0]) for file in files)} - {""}
    names_of_files = Counter(map(_last, files))
    references_by_file: dict[str, str] = {}
    for source in sources:
        if len(references_by_file) == len(files):
            break
        names = _names(source)
        for file in files:
            here = names.get(_last(file), [])
            if file not in references_by_file and (
                match := _in_its_folder(file, here) or _in_any_folder(file, here, names_of_files, parts)
            ):
                references_by_file[file] = match.reference
    missing = [file for file in files if file not in references_by_file]
    if missing:
        raise DataError(
            f"{what}: {len(missing)} of {len(files)} images are not in {', '.join(map(str, sources))}: {some(missing)}"
        )
    return references_by_file


def _in_its_folder(file: str, here: Sequence[_Found]) -> _Found | None:
    """The first file of that name whose folder ends in the folder that the corpus names."""
    folder = file.rpartition("/")[0]
    return next((match for match in here if not folder or f"/{match.folder}".endswith(f"/{folder}")), None)


def _in_any_folder(
    file: str, here: Sequence[_Found], names_of_files: Mapping[str, int], parts: Collection[str]
) -> _Found | None:
    """The only file of its name, if the corpus has one file of that name and the folder is not another of its parts."""
    alone = names_of_files[_last(file)] == len(here) == 1
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
