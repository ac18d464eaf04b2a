"""The image sets on which papers classify, read from the folders that their archives unpack to.

`pets` is the folder `pets` of the data folder, `pets:FOLDER` any other. Each set is read as its authors publish it;
where the files of a set are not there, from class folders (`test` or `val`, and `train`). Names of classes and
templates of prompts are in `eval/analyses/classes/assets`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.machine import expand_path

from .labelled import (
    ImageClasses,
    Labelled,
    LabelledImages,
    read_class_folders,
    read_classes,
    read_labelled,
    resolve_labels,
)

CLASSES = Path(__file__).parent / "assets"

SPLITS = ("train", "test")
# Folders of class folders that a split may have, where a set's own files are not there.
SPLIT_FOLDERS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}

# One image of CIFAR: red, green and blue planes of 32 x 32.
_CIFAR_SHAPE = (3, 32, 32)

# The variables of a split of Oxford Flowers.
FLOWER_SPLITS: Mapping[str, tuple[str, ...]] = {"train": ("trnid", "valid"), "test": ("tstid",)}


class ClassSet(NamedTuple):
    """Where a set has the images of a split, and whether papers print the mean over classes.

    Attributes:
        unpacked: the folder that its archive unpacks to
        files: split -> patterns of the files, or the folder, that list its images; a set without splits has test only
        read: those files (at least one), the set's folder and the split -> images with their labels
    """

    unpacked: str
    files: Mapping[str, tuple[str, ...]]
    read: Callable[[Sequence[Path], Path, str], Iterator[Labelled]]
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
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise DataError(f"{path}: cannot be read ({problem})") from problem
        for number, text in enumerate(map(str.strip, lines), 1):
            if text and (match := re.fullmatch(line, text)):
                yield Labelled(str(base / image.format(**match.groupdict())), match["label"])
            elif text:
                raise DataError(f"{path} line {number}: {text[:80]!r}, expected a line as {line}")


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
