"""What a caller gives an encoder, as the inputs of a tower: one item or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from os.path import exists
from typing import Any, Protocol

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.ground.typed import check_text

# What the errors name.
EXPECTED = "a text, a path, a PIL image, a Document or a Topic, or a list of these"


class OtherModality(UsageError):
    """A tower that reads images got a text, or the reverse."""


class InputReader(Protocol):
    """The part of a tower that reads documents and topics."""

    def read(self, document: Document) -> str:
        """The input that a document gives this tower.

        Raises:
            OtherModality: the document has no text, or no image, for a tower that reads it.
        """
        ...

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower.

        Raises:
            OtherModality: the topic has no text, or no image, for a tower that reads it.
        """
        ...


def inputs_of(tower: InputReader, argument: Any) -> tuple[list[Any], bool]:
    """The inputs that a caller's argument gives a tower, and whether it is one item and not a list.

    A text is one item, and so is a path of an image, a PIL image, a `Document` or a `Topic`; any other iterable has
    several items.
    """
    if is_item(argument):
        return [_input(tower, argument)], True
    if not isinstance(argument, Iterable) or isinstance(argument, Mapping | bytes | bytearray):
        raise UsageError(f"{_kind(argument)} is nothing to encode; expected {EXPECTED}")
    items = list(argument)
    for item in items:
        if not is_item(item):
            raise UsageError(f"{_kind(item)} in a list is nothing to encode; expected {EXPECTED}")
    return [_input(tower, item) for item in items], False


def is_item(value: Any) -> bool:
    """Whether it is one thing to encode."""
    return isinstance(value, str | PathLike | Document | Topic) or _is_picture(value)


def _is_picture(value: Any) -> bool:
    """Whether it is a PIL image; PIL is imported where one was made."""
    return any(cls.__module__ == "PIL.Image" and cls.__name__ == "Image" for cls in type(value).__mro__)


def _input(tower: InputReader, item: Any) -> Any:
    if isinstance(item, Document):
        return tower.read(item)
    if isinstance(item, Topic):
        return tower.read_topic(item)
    if isinstance(item, str):
        check_text("a text", item)
        # Path.exists raises for a long text.
        if reads_images(tower) and not exists(item.partition("::")[0]):  # noqa: PTH110
            raise UsageError(
                f"{item!r:.80} is no file, and this side of the encoder reads images; expected the path of a picture"
            )
        return item
    if not reads_images(tower):
        raise UsageError(f"{_kind(item)}, but this side of the encoder reads texts only; expected a text")
    return fspath(item) if isinstance(item, PathLike) else item


def reads_images(tower: InputReader) -> bool:
    """Whether the inputs of a tower are images."""
    try:
        tower.read_topic(Topic("text", text="text"))
    except OtherModality:
        return True
    return False


def _kind(value: Any) -> str:
    """What a value is, for an error."""
    if _is_picture(value):
        return "an image"
    if isinstance(value, PathLike):
        return f"the path {fspath(value)!r}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
