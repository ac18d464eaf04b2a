"""Classes of images: the names that prompts contain, and the labels that files and folders have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import read_json

# Where a prompt has the name of a class, and the prompt where no templates are given.
PLACE = "{}"
DEFAULT_TEMPLATES = (f"a photo of a {PLACE}.",)

KEYS = ("classes", "templates")

_NO_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class ImageClasses:
    """Classes by number.

    labels     what files and folders call each class; equal ones are only possible where data number the classes
    names      of each class; several are synonyms
    templates  of prompts, each with `{}` in place of a name
    """

    labels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    templates: tuple[str, ...] = DEFAULT_TEMPLATES

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of_folders(cls, folders: Sequence[str]) -> ImageClasses:
        """Classes that have the names of their folders, with blanks for underscores."""
        return cls(tuple(folders), tuple((name.replace("_", " "),) for name in folders))

    def with_templates(self, templates: Sequence[str]) -> ImageClasses:
        """The same classes with other templates, each with a place for a name; none keeps these."""
        for template in templates:
            if PLACE not in template:
                raise UsageError(
                    f"template {template!r} has no {PLACE} for the name of a class, as in {DEFAULT_TEMPLATES[0]!r}"
                )
        return replace(self, templates=tuple(templates) or self.templates)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Folded label -> class.

        Raises:
            DataError: two classes have the same label.
        """
        number_of: dict[str, int] = {}
        for number, label in enumerate(self.labels):
            if number_of.setdefault(folded(label), number) != number:
                raise DataError(
                    f"classes {number_of[folded(label)] + 1} and {number + 1} have the same label {label!r}"
                )
        return number_of

    def prompts(self) -> list[list[str]]:
        """Per class, every name in every template."""
        return [
            [template.replace(PLACE, name) for name in names for template in self.templates] for names in self.names
        ]


def folded(label: str) -> str:
    """A label for comparison: lower case, and a blank for whatever is neither letter nor digit.

    >>> folded("apartment_building/outdoor")
    'apartment building outdoor'
    """
    return _NO_LETTERS.sub(" ", label).strip().casefold()


def read_classes(path: Path) -> ImageClasses:
    """Reads `{"classes": ..., "templates": [...]}`; templates may be absent.

    Classes are a list of names, which are the labels too, or an object of labels and names. Each name is a text, or a
    list of synonyms.

    Raises:
        DataError: the file cannot be read, or has other contents.
        UsageError: a template has no `{}`.
    """
    content = read_json(path, "file of classes", DataError)
    if strange := sorted(content.keys() - set(KEYS)):
        raise DataError(f"{path}: key {strange[0]!r}, expected {' and '.join(KEYS)}")
    classes = content.get("classes")
    if isinstance(classes, list):
        names = [_names(path, name) for name in classes]
        labels = [own[0] for own in names]
    elif isinstance(classes, dict):
        labels, names = list(classes), [_names(path, name) for name in classes.values()]
    else:
        raise DataError(f"{path}: no list or object `classes`")
    if not labels:
        raise DataError(f"{path}: no classes")
    templates = content.get("templates", [])
    if not isinstance(templates, list) or not all(isinstance(template, str) for template in templates):
        raise DataError(f"{path}: templates {templates!r:.80}, expected a list of texts")
    return ImageClasses(tuple(labels), tuple(names)).with_templates(templates)


def _names(path: Path, entry: Any) -> tuple[str, ...]:
    """The names of one class."""
    names = entry if isinstance(entry, list) else [entry]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise DataError(f"{path}: class {entry!r:.80}, expected a name or a list of names")
    return tuple(names)
