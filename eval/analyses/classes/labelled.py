"""Images of known classes: folders of class folders, lists of images, and the sets of `class_sets`."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.pictures.images import image_suffixes
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import CorpusRef

from .classes import ImageClasses, folded

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
    """Images with their classes.

    name       of the set, for tables
    images     references of images, or PIL images
    labels     class of each image, int64 [n]
    classes    the classes that the numbers mean
    per_class  papers print the mean over classes, not over images
    """

    name: str
    images: Sequence[Any]
    labels: np.ndarray
    classes: ImageClasses
    per_class: bool = False

    def with_templates(self, templates: Sequence[str]) -> LabelledImages:
        """The same images with other templates of prompts; none keeps those of the classes.

        Raises:
            UsageError: a template has no place for a name.
        """
        return self._replace(classes=self.classes.with_templates(templates))


def read_labelled(where: Path, classes: ImageClasses | None = None) -> LabelledImages:
    """Reads a folder (or tar) of class folders, or a list of images.

    Args:
        where: a folder, an uncompressed tar, or a file of `LISTS`.
        classes: that the labels name; default the labels themselves, in the order of their names.

    Raises:
        DataError: it cannot be read, has no images or a class folder without any, or labels that `classes` lack.
    """
    labelled = list(read_list(where) if where.suffix.lower() in LISTS else class_folders(where))
    classes = classes or ImageClasses.of_folders(sorted({str(one.label) for one in labelled}))
    return with_numbers(where.stem, str(where), labelled, classes)


def with_numbers(
    name: str, where: str, found: Iterable[Labelled], classes: ImageClasses, per_class: bool = False
) -> LabelledImages:
    """Images with the numbers of their classes.

    Raises:
        DataError: there are no images, or one has a label that `classes` lack.
    """
    found = list(found)
    if not found:
        raise DataError(f"{where}: no images")
    numbers = {label: _number(label, classes) for label in {one.label for one in found}}
    unknown = Counter(one.label for one in found if numbers[one.label] is None)
    if unknown:
        [(label, count), *_] = unknown.most_common(1)
        near = get_close_matches(folded(str(label)), map(folded, classes.labels), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(
            f"{where}: {unknown.total():,} images of {len(unknown)} classes that are not among the {len(classes)} "
            f"known; {count:,} have {label!r}{hint}"
        )
    labels = np.array([numbers[one.label] for one in found], dtype=np.int64)
    return LabelledImages(name, [one.image for one in found], labels, classes, per_class)


def _number(label: str | int, classes: ImageClasses) -> int | None:
    """The class of a label; None if there is none."""
    if isinstance(label, str):
        return classes.numbers.get(folded(label))
    return label if 0 <= label < len(classes) else None


def class_folders(where: Path) -> Iterator[Labelled]:
    """Streams the images below a folder or in a tar; the first folder of an image's path is its class.

    Raises:
        DataError: there are no images, some are in no class folder, or a class folder has none.
    """
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
                f"{', '.join(sorted(image_suffixes())[:5])}, ...; remove the folder if it is no class"
            )


def read_list(path: Path) -> Iterator[Labelled]:
    """Streams a list of images: columns image and class; images are relative to the list.

    Raises:
        DataError: it cannot be read, or an image occurs twice.
    """
    seen: set[str] = set()
    for where, (image, label) in read_rows(path, COLUMNS):
        if image in seen:
            raise DataError(f"{where}: image {image!r} occurs twice")
        seen.add(image)
        yield Labelled(str(path.parent / Path(image).expanduser()), label)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Streams the rows of a list, each with its place for errors; a heading of these columns is skipped.

    Args:
        path: a file with a suffix of `LISTS`, in UTF-8.
        columns: their names.

    Raises:
        DataError: the file cannot be read, or a row has other columns or an empty one.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.reader(lines, delimiter=LISTS[path.suffix.lower()]), start=1):
                cells = [cell.strip() for cell in row]
                if not row or (number == 1 and cells == list(columns)):
                    continue
                where = f"{path} line {number}"
                if len(cells) != len(columns):
                    raise DataError(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)})")
                if "" in cells:
                    raise DataError(f"{where}: the {columns[cells.index('')]} is empty")
                yield where, cells
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem
