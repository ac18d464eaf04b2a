"""Reads a YAML file into typed records, strictly: a mistake names the file, the line, the entry and what was expected.

The type says what a node of the file must be: `int`, `str`, `bool` (yes or no), `tuple[X, ...]` (a list of X, or one
X), `tuple[X, Y]` (a list of fixed length), `Mapping[str, X]`, or a NamedTuple (a mapping with its fields as keys;
fields with a default may be left out). A NamedTuple with a method `from_text` is read from a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from lexvl_anserini.ground.errors import DataError

if TYPE_CHECKING:
    from yaml.nodes import Node

# The file, then the keys that lead to a node.
Trail = tuple[str, ...]
Reader = Callable[["Node", Trail], Any]

_NAMES = {str: "text", int: "a whole number", bool: "yes or no"}


class Spot(NamedTuple):
    """Where in a file a node is: its line from 1, and the keys that lead to it."""

    line: int
    trail: Trail

    def __str__(self) -> str:
        file, *keys = self.trail
        return f"{file} line {self.line}" + (f" ({': '.join(keys)})" if keys else "")


def read_yaml(path: Path, expected: Any) -> Any:
    """The content of a YAML file as a value of the expected type.

    Raises:
        DataError: the file is not YAML, or does not have the expected form.
    """
    import yaml

    # No scalar is interpreted: the type decides, so that `on` and `no` are words where words belong.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        with path.open("rb") as file:
            node = yaml.compose(file, Loader=loader)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{path.name}: not YAML: {error}") from None
    if node is None:
        raise DataError(f"{path.name}: the file is empty")
    return _reader(expected)(node, (path.name,))


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'fox'?`, or the known names where none is near."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or '(none)'}"


@cache
def _reader(expected: Any) -> Reader:
    """The function that reads a node as a type."""
    if expected in _NAMES:
        return partial(_scalar, expected)
    inner = get_args(expected)
    origin = get_origin(expected)
    if origin is tuple:
        return partial(_list, _reader(inner[0])) if inner[-1] is Ellipsis else partial(_row, tuple(map(_reader, inner)))
    if origin is Mapping:
        return partial(_mapping, inner[0], _reader(inner[1]))
    if origin is UnionType:  # X | None: what may be left out
        return _reader(inner[0])
    if hasattr(expected, "from_text"):
        return partial(_text, expected)
    return partial(_record, expected, {name: _reader(hint) for name, hint in get_type_hints(expected).items()})


def _scalar(expected: type, node: Node, trail: Trail) -> Any:
    text = node.value
    if not isinstance(text, str):
        raise _mistake(node, trail, f"expected {_NAMES[expected]}, found a {node.id}")
    if expected is str:
        return text
    if expected is bool and text in ("yes", "no"):
        return text == "yes"
    if expected is int and text.lstrip("-").isdecimal():
        return int(text)
    raise _mistake(node, trail, f"expected {_NAMES[expected]}, found {text!r}")


def _text(expected: Any, node: Node, trail: Trail) -> Any:
    return expected.from_text(_scalar(str, node, trail), _spot(node, trail))


def _list(item: Reader, node: Node, trail: Trail) -> tuple[Any, ...]:
    return tuple(item(child, trail) for child in (node.value if node.id == "sequence" else [node]))


def _row(items: tuple[Reader, ...], node: Node, trail: Trail) -> tuple[Any, ...]:
    if node.id != "sequence" or len(node.value) != len(items):
        raise _mistake(node, trail, f"expected a list of {len(items)}")
    return tuple(item(child, trail) for item, child in zip(items, node.value, strict=True))


def _mapping(key_type: type, item: Reader, node: Node, trail: Trail) -> dict[Any, Any]:
    entries = _entries(node, trail)
    if key_type is int and (wrong := [key for key in entries if not key.isdecimal()]):
        raise _mistake(node, trail, f"expected whole numbers as keys, found {wrong[0]!r}")
    return {key_type(key): item(child, (*trail, key)) for key, child in entries.items()}


def _record(expected: Any, fields: Mapping[str, Reader], node: Node, trail: Trail) -> Any:
    entries = _entries(node, trail)
    for key, child in entries.items():
        if key not in fields:
            raise _mistake(child, trail, f"unknown key {key!r}{suggestion(key, fields)}")
    if missing := [name for name in fields if name not in entries and name not in expected._field_defaults]:
        raise _mistake(node, trail, f"missing: {', '.join(missing)}")
    return expected(**{key: fields[key](child, (*trail, key)) for key, child in entries.items()})


def _entries(node: Node, trail: Trail) -> dict[str, Node]:
    if node.id != "mapping":
        raise _mistake(node, trail, f"expected a mapping (key: value), found a {node.id}")
    entries: dict[str, Node] = {}
    for key, child in node.value:
        if key.value in entries:
            raise _mistake(key, trail, f"{key.value!r} is there twice")
        entries[_scalar(str, key, trail)] = child
    return entries


def _spot(node: Node, trail: Trail) -> Spot:
    return Spot(node.start_mark.line + 1, trail)


def _mistake(node: Node, trail: Trail, message: str) -> DataError:
    return DataError(f"{_spot(node, trail)}: {message}")
