"""Images with captions (COCO, Flickr30k, Flickr8k, any Karpathy file, drawn scenes) as corpora, in three directions.

text-to-image  documents are images, topics are captions; each caption has one relevant image
image-to-text  documents are captions, topics are images; all captions of an image are relevant
text-to-text   no images: a document is the first four captions of an image, the topic its fifth

An image's id is its `imgid`, a caption's its `sentid`; the two may collide. Some images of COCO have more than five
captions: all of them count where captions are topics or documents.

Files are looked for in this order, where NAME is the corpus and ROOT the data folder:

    ROOT/NAME/dataset_NAME.json, ROOT/captions/dataset_NAME.json, ROOT/dataset_NAME.json
    images in ROOT/NAME, then beside the JSON: a folder `images` (or the archive's own name, such as val2014), *.tar

`train` includes the images that COCO's file calls `restval`, as papers do (113,287 images); `train-only` leaves them
out.

The demo has drawn scenes with five captions each. The test split, 1,000 scenes, is in the package;
`python tools/world draw train val` draws the others into the data folder (20,000 and 1,000 scenes).
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.checks import check_id
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, choose_direction, choose_split, data_root
from lexvl_anserini.data.lines import (
    PACKED_ARCHIVES,
    FileState,
    choose_files,
    describe_unreadable,
    log_once,
    read_file_state,
    read_packed,
    some,
)
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.files import parse_json
from lexvl_anserini.ground.machine import expand_path, split_path
from lexvl_anserini.ground.records import CorpusRef, Document, Qrel, Topic

DEFAULT_SPLIT = "test"
DEFAULT_DIRECTION = "text-to-image"

# Requested split -> splits of the file.
MERGED: Mapping[str, frozenset[str]] = {"train": frozenset({"train", "restval"}), "train-only": frozenset({"train"})}


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
        ("flickr30k-images", "flickr30k_images"), "the Flickr30k images (University of Illinois, by its request form)"
    ),
    "flickr8k": KnownImages(
        ("Flicker8k_Dataset", "Flickr8k_Dataset"), "the Flickr8k images (University of Illinois, Flickr8k_Dataset.zip)"
    ),
}


def load_captions(ref: CorpusRef) -> Dataset:
    """Loads `coco`, `flickr30k` or `flickr8k`; a split may follow: `coco/val`.

    Splits are `test` (default), `val`, `train` (with `restval`), `train-only`, `restval`; by default text-to-image.
    """
    name, _, split_in_name = ref.name.partition("/")
    split = choose_split(ref, split_in_name)
    root = data_root(ref.data_dir)
    places = (root / name, root / "captions", root)
    folder = next((place for place in places if (place / f"dataset_{name}.json").is_file()), None)
    if folder is None:
        raise DataError(
            f"{name} is not in the data folder; missing: {root / name}/dataset_{name}.json from {_KARPATHY}; and, "
            f"unless the direction is text-to-text, {_describe_images(name, root)}; --data-dir or $LEXVL_DATA name "
            "another data folder"
        )
    folders = KNOWN[name].folders
    homes = dict.fromkeys((root / name, folder))
    sources = [path for home in homes for path in list_sources(home, ("images", *folders))]
    lacking = (
        f"{name} has its captions but no images; missing: {_describe_images(name, root)}, unpacked or as an "
        "uncompressed tar; the direction text-to-text needs no images"
    )
    ref = replace(ref, name=name, split=split)
    return _build_dataset(ref, folder / f"dataset_{name}.json", sources, folders, lacking)


def load_karpathy(ref: CorpusRef) -> Dataset:
    """Loads `karpathy:<json>` (with the images beside it) or `karpathy:<json>,<images folder or tar>`.

    The file may also be a list of images with captions, as BLIP and LAVIS have, or COCO's own captions_<split>.json.
    """
    rest = ref.name.partition(":")[2]
    if not rest:
        raise UsageError(f"{ref.name!r} names no file; expected karpathy:<json>[,<images folder or tar>]")
    file, images = split_path(rest)
    path = expand_path(file)
    sources = [expand_path(images)] if images else list_sources(path.parent, ("images",))
    if images and not sources[0].exists():
        raise DataError(f"{sources[0]}: no such folder or tar archive of images")
    lacking = (
        f"{ref.name}: no images beside {path}; put them into {path.parent / 'images'} or a .tar there, or name them: "
        f"karpathy:{path},<images folder or tar>"
    )
    return _build_dataset(ref, path, sources, (), lacking)


def _build_dataset(ref: CorpusRef, path: Path, sources: list[Path], folders: tuple[str, ...], lacking: str) -> Dataset:
    """The dataset of a file whose images are in the sources; `lacking` is the error where there are no sources."""
    images = read_captioned_images(path, ref.split, ref.escape_ids)
    split = ref.split or images[0].split
    ref = replace(ref, split=split, direction=choose_direction(ref, DIRECTIONS, DEFAULT_DIRECTION))

    @cache
    def open_files() -> Callable[[str], str]:
        # Only a consumer that reads images needs the files: captions are searched, and runs measured, without them.
        if not sources:
            raise DataError(lacking)
        return references([image.file for image in images], sources, f"{ref.name}/{split}", folders).__getitem__

    return view_dataset(ref, lambda: images, open_files)


def read_captioned_images(path: Path, split: str | None, escape_ids: bool = False) -> tuple[CaptionedImage, ...]:
    """The images of a split, in file order; None is `test`, or the only split of a file."""
    return _read(path.absolute(), split, escape_ids, read_file_state(path))


@lru_cache(maxsize=2)
def _read(path: Path, split: str | None, escape_ids: bool, state: FileState) -> tuple[CaptionedImage, ...]:
    """Decodes a file once, however often its documents, topics and qrels are read."""
    splits = MERGED.get(split or DEFAULT_SPLIT, frozenset({split or DEFAULT_SPLIT}))
    images = tuple(read_karpathy(path, splits, escape_ids, default=split is None))
    captions = (caption for image in images for caption in image.captions)
    ids = {"imgid": (image.image_id for image in images), "sentid": (caption.caption_id for caption in captions)}
    for key, every in ids.items():
        if twice := next((item_id for item_id, count in Counter(every).items() if count > 1), None):
            raise DataError(f"{path}: {key} {twice} occurs more than once; ids must be distinct")
    return images


def _describe_images(corpus: str, root: Path) -> str:
    """Every place that is looked at in the corpus' own folder, and what belongs there."""
    source = KNOWN[corpus]
    places = [f"{root / corpus / folder}/" for folder in ("images", *source.folders)]
    return f"{' or '.join(places)} or {root / corpus}/*.tar with {source.origin}"


class _Found(NamedTuple):
    """A file of a source: its folder, which begins with the source's own name, and its reference."""

    folder: str
    reference: str


def list_sources(folder: Path, names: Iterable[str]) -> list[Path]:
    """Folders of the given names, then all tar archives, in a folder."""
    folders = [folder / name for name in names if (folder / name).is_dir()]
    return folders + choose_files(folder, ".tar", left_out=PACKED_ARCHIVES)


def references(
    files: Sequence[str], sources: Sequence[Path], what: str, folders: Collection[str] = ()
) -> dict[str, str]:
    """File name -> path or `archive.tar::member`, for every file.

    The first source that has a file provides it: a folder and the folders in it, or all of an archive. The file
    `val2014/x.jpg` is a file `x.jpg` in a folder `val2014`. Because users often put all images into one folder, a file
    `x.jpg` elsewhere matches too, unless its folder is another part of the corpus, or one of them has several `x.jpg`.
    """
    parts = {*folders, *(Path(file).parent.name for file in files)} - {""}
    names_of_files = Counter(Path(file).name for file in files)
    references_by_file: dict[str, str] = {}
    for source in sources:
        if len(references_by_file) == len(files):
            break
        names = _map_names(source)
        for file in files:
            folder, _, name = file.rpartition("/")
            here = names.get(name, [])
            matches = [match for match in here if not folder or f"/{match.folder}".endswith(f"/{folder}")]
            if not matches and names_of_files[name] == len(here) == 1 and Path(here[0].folder).name not in parts:
                matches = here
            if matches:
                references_by_file.setdefault(file, matches[0].reference)
    if missing := [file for file in files if file not in references_by_file]:
        places = ", ".join(map(str, sources))
        raise DataError(f"{what}: {len(missing)} of {len(files)} images are not in {places}: {some(missing)}")
    return references_by_file


def _map_names(source: Path) -> Mapping[str, list[_Found]]:
    """Name without its folder -> the files of that name in a source, the least nested first."""
    if source.is_dir():
        listed = {name: str(source / name) for name in _list_files(source)}
    else:
        listed = {name: f"{source}::{name}" for name in open_archive(source).members}
    names: dict[str, list[_Found]] = defaultdict(list)
    for name in sorted(listed, key=lambda name: name.count("/")):
        folder, _, base = name.rpartition("/")
        names[base].append(_Found(f"{source.name}/{folder}".rstrip("/"), listed[name]))
    return names


def _list_files(folder: Path) -> list[str]:
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
        raise describe_unreadable(folder, problem) from problem
    return sorted(names)


# Captions of an image that make its document, text to text; the next one is the topic, further ones are not used.
DOCUMENT_CAPTIONS = 4
_EXPECTED = "; expected the captions of COCO, captions_<split>.json"


class Caption(NamedTuple):
    """One sentence about an image."""

    caption_id: str
    text: str


class CaptionedImage(NamedTuple):
    """One image of a Karpathy file: `imgid`, split, file (with its folder, as `val2014/x.jpg`), its captions."""

    image_id: str
    split: str
    file: str
    captions: tuple[Caption, ...]


class ViewItem(NamedTuple):
    """A document or a topic: an image, one of its captions, or several."""

    item_id: str
    text: str | None = None
    file: str | None = None


Images = Callable[[], Iterable[CaptionedImage]]  # the images, from the start at each call
# Makes ready what is needed to read images, and returns how a file is referred to.
Opened = Callable[[], Callable[[str], str]]
Items = Callable[[CaptionedImage], list[ViewItem]]  # the documents or the topics of an image


class View(NamedTuple):
    """What documents and topics are in one direction; all documents of an image are relevant to all its topics."""

    documents: Items
    topics: Items


def take_image(image: CaptionedImage) -> list[ViewItem]:
    """The image itself."""
    return [ViewItem(image.image_id, file=image.file)]


def take_captions(image: CaptionedImage) -> list[ViewItem]:
    """The captions one by one."""
    return [ViewItem(caption.caption_id, caption.text) for caption in image.captions]


def take_first_captions(image: CaptionedImage) -> list[ViewItem]:
    """The first captions together."""
    return [ViewItem(image.image_id, " ".join(caption.text for caption in image.captions[:DOCUMENT_CAPTIONS]))]


VIEWS: Mapping[str, View] = {
    "text-to-image": View(take_image, take_captions),
    "image-to-text": View(take_captions, take_image),
    "text-to-text": View(take_first_captions, lambda image: take_captions(image)[DOCUMENT_CAPTIONS:][:1]),
}


def view_dataset(ref: CorpusRef, images: Images, opened: Opened) -> Dataset:
    """The dataset of captioned images in the direction of the reference."""
    view = VIEWS[ref.direction or ""]
    return Dataset.of(
        ref,
        documents=lambda: (Document(i.item_id, None, *i[1:]) for i in _place_images(images, view.documents, opened)),
        topics=lambda: (Topic(*item) for item in _place_images(images, view.topics, opened)),
        qrels=partial(_qrels, images, view),
    )


def _place_images(images: Images, items: Items, opened: Opened) -> Iterator[ViewItem]:
    """The items with references in the place of files; opens nothing for captions."""
    refer = cache(opened)
    for image in images():
        for item in items(image):
            yield item if item.file is None else item._replace(file=refer()(item.file))


def _qrels(images: Images, view: View) -> Iterator[Qrel]:
    for image in images():
        for topic in view.topics(image):
            for document in view.documents(image):
                yield Qrel(topic.item_id, document.item_id, 1)


def read_karpathy(
    path: Path, splits: frozenset[str] | None = None, escape_ids: bool = False, default: bool = False
) -> Iterator[CaptionedImage]:
    """Streams the images of some splits, or of all; where nobody chose (`default`), the only split of a file does."""
    there: set[str] = set()
    for number, record in enumerate(_list_records(path), start=1):
        where = f"{path} image {number}"
        if isinstance(record, dict):
            where += f" ({record.get('filename', 'without a file name')})"
        split = _get_string(record, "split", where)
        there.add(split)
        if splits is None or split in splits:
            yield _parse_image(record, split, where, escape_ids)
    if not there:
        raise DataError(f"{path}: no image in it")
    if splits is not None and not there & splits:
        if default and len(there) == 1:
            yield from read_karpathy(path, frozenset(there), escape_ids)
            return
        names = " or ".join(map(repr, sorted(splits)))
        raise DataError(f"{path}: no image of split {names}; splits there: {', '.join(sorted(there))}")


def _parse_image(record: dict[str, Any], split: str, where: str, escape_ids: bool) -> CaptionedImage:
    file = _get_string(record, "filename", where)
    if record.get("filepath"):
        file = f"{_get_string(record, 'filepath', where)}/{file}"
    sentences = _field(record, "sentences", where)
    if not isinstance(sentences, list):
        raise DataError(f"{where}: 'sentences' is not a list")
    image_id = check_id(_field(record, "imgid", where), where, escape_ids)
    captions = []
    for number, sentence in enumerate(sentences, start=1):
        here = f"{where} caption {number}"
        text = _get_string(sentence, "raw", here).strip()
        captions.append(Caption(check_id(_field(sentence, "sentid", here), here, escape_ids), text))
    return CaptionedImage(image_id, split, file, tuple(captions))


def _field(record: Any, key: str, where: str, remedy: str = "") -> Any:
    if not isinstance(record, dict):
        raise DataError(f"{where}: {record!r:.80} is not an object")
    if key not in record:
        raise DataError(f"{where}: no {key!r}; keys found: {', '.join(map(str, record)) or 'none'}{remedy}")
    return record[key]


def _get_string(record: Any, key: str, where: str) -> str:
    if not isinstance(value := _field(record, key, where), str):
        raise DataError(f"{where}: {key!r} is {value!r}, expected a string")
    return value


def _list_records(path: Path) -> Iterable[Any]:
    """The images of a file as Karpathy's records; files of BLIP and LAVIS, and COCO's own, become such."""
    # Without tokens of captions: in COCO's file, they are most of its 144 MB.
    content = parse_json(read_packed(path), str(path), mend=True, left_out="tokens")
    if isinstance(content, list):
        return _group_pairs(path, content)
    images = _field(content, "images", str(path))
    if not isinstance(images, list):
        raise DataError(f"{path}: 'images' is not a list; expected Karpathy's dataset_<name>.json")
    if any(isinstance(image, dict) and "file_name" in image and "sentences" not in image for image in images):
        return _join_annotations(path, images, content.get("annotations"))
    return images


def _group_pairs(path: Path, rows: list[Any]) -> Iterable[dict[str, Any]]:
    """The images of a list of `{"image": ..., "caption": ...}`, as BLIP and LAVIS have; their ids count from 0."""
    split, counted = _name_split(path), count()
    records: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{path} row {number}"
        file, captions = _get_string(row, "image", where), _field(row, "caption", where)
        record = records.setdefault(file, {"imgid": len(records), "split": split, "filename": file, "sentences": []})
        captions = captions if isinstance(captions, list) else [captions]
        record["sentences"] += [{"raw": caption, "sentid": next(counted)} for caption in captions]
    log_once(f"{path}: a list of images with captions, all of split {split!r}; ids are their numbers")
    return records.values()


def _join_annotations(path: Path, images: list[Any], annotations: Any) -> Iterable[dict[str, Any]]:
    """The images of COCO's own file of captions, with their ids there."""
    split = _name_split(path)
    records: dict[str, dict[str, Any]] = {}
    for number, image in enumerate(images, start=1):
        where = f"{path} image {number}"
        image_id = check_id(_field(image, "id", where), where)
        if image_id in records:
            raise DataError(f"{where}: id {image_id} occurs more than once; ids must be distinct")
        file = _get_string(image, "file_name", where)
        records[image_id] = {"imgid": image_id, "split": split, "filename": file, "sentences": []}
    for number, annotation in enumerate(annotations if isinstance(annotations, list) else [{}], start=1):
        where = f"{path} annotation {number}"
        caption = {"raw": _field(annotation, "caption", where, _EXPECTED), "sentid": _field(annotation, "id", where)}
        image_id = check_id(_field(annotation, "image_id", where), where)
        if image_id not in records:
            raise DataError(f"{where}: image_id {image_id} is of no image")
        records[image_id]["sentences"].append(caption)
    remark = f"papers measure the splits of {_KARPATHY}"
    log_once(f"{path}: COCO's own annotations, all of split {split!r}; {remark}", logging.WARNING)
    return records.values()


def _name_split(path: Path) -> str:
    """The split in the name of a file that has one only, as `captions_val2014.json`; else the default."""
    return (re.findall("train|val|test", path.stem) or [DEFAULT_SPLIT])[-1]


FOLDER = Path(__file__).parents[2] / "assets" / "demo"
SPLITS = ("train", "val", "test")
# The version of the drawings and their size; the digest of the corpus covers this name.
PICTURES = "images-v3-64px-{split}.tar"


def load_demo(ref: CorpusRef) -> Dataset:
    """Loads `demo` or `demo/<split>`: test (the default), train or val."""
    split = choose_split(ref, ref.name.removeprefix("demo").removeprefix("/")) or "test"
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    direction = choose_direction(ref, DIRECTIONS, "text-to-image")
    captions, pictures = list_demo_files(split, ref.data_dir)
    ref = replace(ref, name="demo", split=split, direction=direction)
    return view_dataset(ref, partial(read_karpathy, captions), lambda: lambda file: f"{pictures}::{file}")


def list_demo_files(split: str = "test", data_dir: str | None = None) -> tuple[Path, Path]:
    """The captions of a split in Karpathy's format, and the tar of its images, `<image_id>.png` of 64 x 64 pixels."""
    folder = FOLDER if split == "test" else data_root(data_dir) / "demo"
    captions = folder / f"{split}.json"
    if not captions.is_file():
        raise DataError(f"{captions}: not there; python tools/world draw {split}, in a checkout, draws the split")
    return captions, folder / PICTURES.format(split=split)
