"""Images of known classes: folders of class folders, lists of images, and the sets of `class_sets`.

Classes have names, which prompts contain, and labels, which files and folders have.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.pictures.images import list_image_suffixes
from lexvl_anserini.ground.errors import DataError, UsageError
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
        yield Labelled(str(path.parent / expand_path(image)), label)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Streams the rows of a list, each with its place for errors; a heading of these columns is skipped."""
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


# The place of a class's name in a prompt, and the default prompt.
PLACE = "{}"
DEFAULT_TEMPLATES = (f"a photo of a {PLACE}.",)

KEYS = ("classes", "templates")
_NO_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class ImageClasses:
    """Classes by number.

    Attributes:
        labels: what files and folders call each class; two may be equal only where the data numbers the classes
        names: of each class; several are synonyms
        templates: of prompts, each with `{}` in place of a name
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
