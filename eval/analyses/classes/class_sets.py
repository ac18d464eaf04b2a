"""Images of known classes: folders of class folders, lists of images, and the image sets on which papers classify.

Classes have names, which prompts contain, and labels, which files and folders have. `pets` is the folder `pets` of the
data folder, `pets:FOLDER` any other. Each set is read as its authors publish it; where the files of a set are not
there, from class folders (`test` or `val`, and `train`). Names of classes and templates of prompts are in
`eval/analyses/classes/assets`.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.lines import read_entries
from lexvl_anserini.data.pictures.images import list_image_suffixes
from lexvl_anserini.ground.errors import DataError, UsageError, refuse_pointer
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.records import CorpusRef

if TYPE_CHECKING:
    from PIL.Image import Image

# Suffixes of lists, and what separates their columns.
LISTS = {".csv": ",", ".tsv": "\t"}

COLUMNS = ("image", "class")


class Labelled(NamedTuple):
    """An image (path, `archive.tar::member` or PIL image), and its class: a label, or a number of `ImageClasses`."""

    image: str | Image
    label: str | int


class LabelledImages(NamedTuple):
    """Images (references, or PIL images) and the number of the class of each, int64 [n].

    With `per_class`, the accuracy is the mean over classes, as papers print it, not over images.
    """

    name: str
    images: Sequence[Any]
    labels: np.ndarray
    classes: ImageClasses
    per_class: bool = False

    def with_templates(self, templates: Sequence[str]) -> LabelledImages:
        """The same images with other templates of prompts; an empty sequence keeps those of the classes."""
        return self._replace(classes=self.classes.with_templates(templates))


def read_labelled(where: Path, classes: ImageClasses | None = None) -> LabelledImages:
    """Reads a folder (or tar) of class folders, or a list of images."""
    labelled = list(read_list(where) if where.suffix.lower() in LISTS else read_class_folders(where))
    classes = classes or ImageClasses.read_folders(sorted({str(item.label) for item in labelled}))
    return resolve_labels(where.stem, str(where), labelled, classes)


def resolve_labels(
    name: str, where: str, items: Iterable[Labelled], classes: ImageClasses, per_class: bool = False
) -> LabelledImages:
    """Images with the numbers of their classes."""
    items = list(items)
    if not items:
        raise DataError(f"{where}: no images")
    numbers = {label: classes.read_number(label) for label in {item.label for item in items}}
    unknown = Counter(item.label for item in items if numbers[item.label] is None)
    if unknown:
        [(label, count), *_] = unknown.most_common(1)
        near = get_close_matches(fold_label(str(label)), map(fold_label, classes.labels), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(
            f"{where}: {unknown.total():,} images of {len(unknown)} classes that are not among the {len(classes)} "
            f"known; {count:,} have {label!r}{hint}"
        )
    labels = np.array([numbers[item.label] for item in items], dtype=np.int64)
    return LabelledImages(name, [item.image for item in items], labels, classes, per_class)


def read_class_folders(where: Path) -> Iterator[Labelled]:
    """Streams the images below a folder or in a tar; the first folder of an image's path is its class."""
    classes = set()
    for document in load_pictures(CorpusRef(f"folder:{where}", escape_ids=True)).documents():
        label, _, rest = unescape_id(document.doc_id).partition("/")
        if not rest:
            raise DataError(f"{document.image}: in no class folder; expected {where}/<class>/{label}")
        classes.add(label)
        yield Labelled(str(document.image), label)
    if where.is_dir():
        folders = {path.name for path in where.iterdir() if path.is_dir() and not path.name.startswith(".")}
        if empty := sorted(folders - classes):
            raise DataError(
                f"{where / empty[0]}: a class folder without pictures, expected some of "
                f"{', '.join(sorted(list_image_suffixes())[:5])}, ...; remove the folder if it is no class"
            )


def read_list(path: Path) -> Iterator[Labelled]:
    """Streams a list of images: columns image and class; images are relative to the list."""
    seen: set[str] = set()
    for where, (image, label) in read_rows(path, COLUMNS):
        if image in seen:
            raise DataError(f"{where}: image {image!r} occurs twice")
        seen.add(image)
        yield Labelled(str(path.parent / image), label)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Streams the rows of a list, each with its place for errors; a heading of these columns is skipped."""
    refuse_pointer(path, plain=True)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.reader(lines, delimiter=LISTS[path.suffix.lower()], strict=True), start=1):
                cells = [cell.strip() for cell in row]
                if not row or (number == 1 and [cell.lower() for cell in cells] == list(columns)):
                    continue
                where = f"{path} line {number}"
                if len(cells) != len(columns):
                    raise DataError(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)})")
                if "" in cells:
                    raise DataError(f"{where}: the {columns[cells.index('')]} is empty")
                yield where, cells
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem


# The place of a class's name in a prompt, and the default prompt.
PLACE = "{}"
DEFAULT_TEMPLATES = (f"a photo of a {PLACE}.",)

KEYS = ("classes", "templates")
_NO_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class ImageClasses:
    """Classes by number, with synonyms as names; files and folders call them by labels, `{}` in templates is a name.

    Equal labels are only possible where data number the classes.
    """

    labels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    templates: tuple[str, ...] = DEFAULT_TEMPLATES

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def read_folders(cls, folders: Sequence[str]) -> ImageClasses:
        """Classes that have the names of their folders, with blanks for underscores."""
        return cls(tuple(folders), tuple((name.replace("_", " "),) for name in folders))

    def with_templates(self, templates: Sequence[str]) -> ImageClasses:
        """The same classes with other templates, each with a place for a name; none keeps these."""
        if without := [template for template in templates if PLACE not in template]:
            raise UsageError(f"template {without[0]!r} has no {PLACE} for a class, as in {DEFAULT_TEMPLATES[0]!r}")
        return replace(self, templates=tuple(templates) or self.templates)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Folded label -> class."""
        number_of: dict[str, int] = {}
        for number, label in enumerate(self.labels):
            if (first := number_of.setdefault(fold_label(label), number)) != number:
                raise DataError(f"classes {first + 1} and {number + 1} have the same label {label!r}")
        return number_of

    def read_number(self, label: str | int) -> int | None:
        """The class of a label; None if there is none."""
        if isinstance(label, str):
            return self.numbers.get(fold_label(label))
        return label if 0 <= label < len(self) else None

    def prompts(self) -> list[list[str]]:
        """Per class, every name in every template."""
        return [[text.replace(PLACE, name) for name in names for text in self.templates] for names in self.names]


def fold_label(label: str) -> str:
    """A label for comparison: lower case, and a blank for whatever is neither letter nor digit."""
    return _NO_LETTERS.sub(" ", label).strip().casefold()


def read_classes(path: Path) -> ImageClasses:
    """Reads `{"classes": ..., "templates": [...]}`; templates may be absent.

    Classes are a list of names, which are the labels too, or an object of labels and names. Each name is a text, or a
    list of synonyms.
    """
    content = read_json(path, "file of classes", DataError)
    if strange := sorted(content.keys() - set(KEYS)):
        raise DataError(f"{path}: key {strange[0]!r}, expected {' and '.join(KEYS)}")
    classes = content.get("classes")
    if isinstance(classes, list):
        names = [_read_names(path, name) for name in classes]
        labels = [own[0] for own in names]
    elif isinstance(classes, dict):
        labels, names = list(classes), [_read_names(path, name) for name in classes.values()]
    else:
        raise DataError(f"{path}: no list or object `classes`")
    if not labels:
        raise DataError(f"{path}: no classes")
    templates = content.get("templates", [])
    if not isinstance(templates, list) or not all(isinstance(template, str) for template in templates):
        raise DataError(f"{path}: templates {templates!r:.80}, expected a list of texts")
    return ImageClasses(tuple(labels), tuple(names)).with_templates(templates)


def _read_names(path: Path, entry: Any) -> tuple[str, ...]:
    names = entry if isinstance(entry, list) else [entry]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise DataError(f"{path}: class {entry!r:.80}, expected a name or a list of names")
    return tuple(names)


CLASSES = Path(__file__).parent / "assets"

# Folders of class folders that a split may have, where a set's own files are not there.
SPLIT_FOLDERS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}

# One image of CIFAR: red, green and blue planes of 32 x 32.
_CIFAR_SHAPE = (3, 32, 32)

# The variables of a split of Oxford Flowers.
FLOWER_SPLITS: Mapping[str, tuple[str, ...]] = {"train": ("trnid", "valid"), "test": ("tstid",)}


class ClassSet(NamedTuple):
    """Where a set has the images of a split, and whether papers print the mean over classes."""

    unpacked: str
    files: Mapping[str, tuple[str, ...]]  # split -> patterns of the files, or the folder, that list its images
    read: Callable[[Sequence[Path], Path, str], Iterator[Labelled]]  # those files, the set's folder and the split
    per_class: bool = False


def load_labelled(
    name: str, classes: ImageClasses | None = None, data_dir: str | None = None, split: str = "test"
) -> LabelledImages:
    """Loads a set of `CLASS_SETS` by its name, `NAME` or `NAME:FOLDER`, or a path, as `read_labelled`.

    A folder with the name of a set is `./NAME`. The classes are by default the set's own, or the labels of the images;
    a path has no splits.
    """
    known, _, folder = name.partition(":")
    if known not in CLASS_SETS:
        return read_labelled(expand_path(name), classes)
    where = expand_path(folder) if folder else data_root(data_dir) / known
    images = _read_images(known, where, split)
    return resolve_labels(known, str(where), images, classes or read_class_set(known), CLASS_SETS[known].per_class)


def read_class_set(name: str) -> ImageClasses:
    """The classes of a set of `CLASS_SETS`."""
    return read_classes(CLASSES / f"{name}.json")


def _read_images(name: str, where: Path, split: str) -> Iterator[Labelled]:
    """The images of a split."""
    row = CLASS_SETS[name]
    patterns = row.files.get(split, ())
    for base in (where, where / row.unpacked):
        if files := sorted(path for pattern in patterns for path in base.glob(pattern)):
            return row.read(files, base, split)
    for folder in (where / part for part in SPLIT_FOLDERS[split]):
        if folder.is_dir():
            return read_class_folders(folder)
    if not patterns:
        raise DataError(f"{name} has no split {split!r}; make a folder or a list of its images, and name that")
    raise DataError(
        f"{name} is not in {where}; missing: {' and '.join(patterns)} (in {row.unpacked}, as its archive unpacks), or "
        f"class folders in {' or '.join(SPLIT_FOLDERS[split])}; {name}:FOLDER names another folder"
    )


def read_lines(files: Sequence[Path], base: Path, split: str, line: str, image: str) -> Iterator[Labelled]:
    """Images of text files, one a line: a pattern with the groups `label` and `file`, of which `image` is the path."""
    for path in files:
        for number, text in read_entries(path, "image").items():
            if not (match := re.fullmatch(line, text.strip())):
                raise DataError(f"{path} line {number}: {text[:80]!r}, expected a line as {line}")
            yield Labelled(str(base / image.format(**match.groupdict())), match["label"])


def read_folders(files: Sequence[Path], base: Path, split: str) -> Iterator[Labelled]:
    """Images of one folder of class folders."""
    return read_class_folders(files[0])


def read_sorted_folders(files: Sequence[Path], base: Path, split: str, count: int) -> Iterator[Labelled]:
    """Images of one folder of class folders whose names, in order, are those of the classes."""
    folders = list(read_class_folders(files[0]))
    numbers = {label: number for number, label in enumerate(sorted({str(item.label) for item in folders}))}
    if len(numbers) != count:
        raise DataError(
            f"{files[0]}: {len(numbers)} class folders, expected {count:,}; name this folder itself for others, "
            "with --classes for their names"
        )
    return (item._replace(label=numbers[str(item.label)]) for item in folders)


def read_cifar(files: Sequence[Path], base: Path, split: str, labels: int) -> Iterator[Labelled]:
    """Images of CIFAR's binary version: per image `labels` bytes, of which the last is its class, then its pixels."""
    import PIL.Image

    size = labels + int(np.prod(_CIFAR_SHAPE))
    for path in files:
        data = np.fromfile(path, dtype=np.uint8)
        if not len(data) or len(data) % size:
            raise DataError(f"{path}: {len(data):,} bytes, expected a multiple of {size:,}")
        for row in data.reshape(-1, size):
            planes = row[labels:].reshape(_CIFAR_SHAPE)
            yield Labelled(PIL.Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0))), int(row[labels - 1]))


def _read_matlab(path: Path, *keys: str) -> list[Any]:
    """Variables of a MATLAB file."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True)
        return [content[key] for key in keys]
    except Exception as problem:  # SciPy's reader raises any error for a damaged file
        raise DataError(f"{path}: cannot be read as MATLAB's {', '.join(keys)} ({problem})") from problem


def read_cars(files: Sequence[Path], base: Path, split: str) -> Iterator[Labelled]:
    """Images of Stanford Cars: annotations with the file and the class, from 1, of each."""
    [rows] = _read_matlab(files[0], "annotations")
    for row in np.atleast_1d(rows):
        yield Labelled(str(base / f"cars_{split}" / str(row["fname"])), int(row["class"]) - 1)


def read_flowers(files: Sequence[Path], base: Path, split: str) -> Iterator[Labelled]:
    """Images of Oxford Flowers: the numbers of a split's images, and the class, from 1, of every image."""
    [labels] = _read_matlab(base / "imagelabels.mat", "labels")
    for numbers in _read_matlab(files[0], *FLOWER_SPLITS[split]):
        for number in np.atleast_1d(numbers).tolist():
            yield Labelled(str(base / "jpg" / f"image_{number:05d}.jpg"), int(labels[number - 1]) - 1)


def read_svhn(files: Sequence[Path], base: Path, split: str) -> Iterator[Labelled]:
    """Images of SVHN's cropped digits, [32, 32, 3, n]; label 10 is the digit 0."""
    import PIL.Image

    pixels, labels = _read_matlab(files[0], "X", "y")
    for number, label in enumerate(np.atleast_1d(labels).tolist()):
        yield Labelled(PIL.Image.fromarray(np.ascontiguousarray(pixels[..., number])), int(label) % 10)


CLASS_SETS: Mapping[str, ClassSet] = {
    "aircraft": ClassSet(
        "fgvc-aircraft-2013b",
        {"train": ("data/images_variant_trainval.txt",), "test": ("data/images_variant_test.txt",)},
        partial(read_lines, line=r"(?P<file>\S+) (?P<label>.+)", image="data/images/{file}.jpg"),
        per_class=True,
    ),
    "caltech101": ClassSet("caltech101", {"test": ("101_ObjectCategories",)}, read_folders, per_class=True),
    "cars": ClassSet(
        "stanford_cars",
        {"train": ("devkit/cars_train_annos.mat",), "test": ("cars_test_annos_withlabels.mat",)},
        read_cars,
    ),
    "cifar10": ClassSet(
        "cifar-10-batches-bin",
        {"train": ("data_batch_*.bin",), "test": ("test_batch.bin",)},
        partial(read_cifar, labels=1),
    ),
    "cifar100": ClassSet(
        "cifar-100-binary", {"train": ("train.bin",), "test": ("test.bin",)}, partial(read_cifar, labels=2)
    ),
    "dtd": ClassSet(
        "dtd",
        {"train": ("labels/train1.txt", "labels/val1.txt"), "test": ("labels/test1.txt",)},
        partial(read_lines, line=r"(?P<file>(?P<label>[^/]+)/.+)", image="images/{file}"),
    ),
    "eurosat": ClassSet("eurosat", {"test": ("2750",)}, read_folders),
    "flowers102": ClassSet(
        "flowers-102", {"train": ("setid.mat",), "test": ("setid.mat",)}, read_flowers, per_class=True
    ),
    "food101": ClassSet(
        "food-101",
        {"train": ("meta/train.txt",), "test": ("meta/test.txt",)},
        partial(read_lines, line=r"(?P<file>(?P<label>[^/]+)/.+)", image="images/{file}.jpg"),
    ),
    "imagenet": ClassSet("imagenet", {"train": ("train",), "test": ("val",)}, partial(read_sorted_folders, count=1000)),
    "pets": ClassSet(
        "oxford-iiit-pet",
        {"train": ("annotations/trainval.txt",), "test": ("annotations/test.txt",)},
        partial(read_lines, line=r"(?P<file>(?P<label>.+)_\d+)( \d+){3}", image="images/{file}.jpg"),
        per_class=True,
    ),
    "resisc45": ClassSet("resisc45", {"test": ("NWPU-RESISC45",)}, read_folders),
    "sun397": ClassSet(
        "SUN397",
        {"train": ("Training_01.txt",), "test": ("Testing_01.txt",)},
        partial(read_lines, line=r"/(?P<file>\w/(?P<label>.+)/[^/]+)", image="{file}"),
    ),
    "svhn": ClassSet("svhn", {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)}, read_svhn),
}
