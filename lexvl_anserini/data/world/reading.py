"""Reads a YAML file into typed records, strictly: a mistake names the file, the line, the entry and what was expected.

The type says what a node of the file must be: `int`, `str`, `bool` (yes or no), `tuple[X, ...]` (a list of X, or one
X), `tuple[X, Y]` (a list of fixed length), `Mapping[str, X]`, or a NamedTuple (a mapping with its fields as keys;
fields with a default may be left out). A NamedTuple with a method `from_text` is read from a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from lexvl_anserini.errors import DataError

if TYPE_CHECKING:
    from yaml.nodes import Node


class Spot(NamedTuple):
    """Where in a file a node is: line from 1, and the keys that lead to it."""

    file: str
    line: int
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file} line {self.line} ({': '.join(self.keys) or 'whole file'})"


def read_yaml(path: Path, wanted: Any) -> Any:
    """The content of a YAML file as a value of the wanted type.

    Raises:
        DataError: the file is no YAML, or does not have the wanted form.
    """
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        with path.open("rb") as file:
            node = yaml.compose(file, Loader=loader)
    except yaml.YAMLError as error:
        raise DataError(f"{path.name}: not YAML: {error}") from None
    if node is None:
        raise DataError(f"{path.name}: the file is empty")
    return _value(node, wanted, path.name, ())


def suggestion(name: str, known: list[str]) -> str:
    """`; did you mean 'fox'?`, or the known names where none is near."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or '(none)'}"


def _value(node: Node, wanted: Any, file: str, keys: tuple[str, ...]) -> Any:
    if wanted is str or wanted is int or wanted is bool:
        return _scalar(node, wanted, file, keys)
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is tuple:
        return _sequence(node, inner, file, keys)
    if origin is Mapping:
        pairs = _pairs(node, file, keys)
        return {_key(key, inner[0], file, keys): _value(child, inner[1], file, (*keys, key)) for key, child in pairs}
    if origin is UnionType:  # X | None: what may be left out
        return _value(node, inner[0], file, keys)
    if hasattr(wanted, "from_text"):
        return wanted.from_text(_scalar(node, str, file, keys), _spot(node, file, keys))
    return _record(node, wanted, file, keys)


def _scalar(node: Node, wanted: type, file: str, keys: tuple[str, ...]) -> Any:
    if not isinstance(node.value, str):
        raise _mistake(node, file, keys, f"expected {_NAMES[wanted]}, found a {_kind_of(node)}")
    text = node.value
    if wanted is str:
        return text
    if wanted is bool and text in ("yes", "no"):
        return text == "yes"
    if wanted is int and text.lstrip("-").isdecimal():
        return int(text)
    raise _mistake(node, file, keys, f"expected {_NAMES[wanted]}, found {text!r}")


def _sequence(node: Node, inner: tuple[Any, ...], file: str, keys: tuple[str, ...]) -> tuple[Any, ...]:
    many = inner[-1] is Ellipsis
    if many and isinstance(node.value, str):
        return (_value(node, inner[0], file, keys),)
    if _kind_of(node) != "list":
        raise _mistake(node, file, keys, f"expected a list, found a {_kind_of(node)}")
    if not many and len(node.value) != len(inner):
        raise _mistake(node, file, keys, f"expected a list of {len(inner)}, found {len(node.value)}")
    types = [inner[0]] * len(node.value) if many else inner
    return tuple(_value(child, one, file, keys) for child, one in zip(node.value, types, strict=True))


def _record(node: Node, wanted: Any, file: str, keys: tuple[str, ...]) -> Any:
    hints = _hints(wanted)
    found = {}
    for key, child in _pairs(node, file, keys):
        if key not in hints:
            raise _mistake(child, file, keys, f"unknown key {key!r}{suggestion(key, list(hints))}")
        found[key] = _value(child, hints[key], file, (*keys, key))
    missing = [name for name in wanted._fields if name not in found and name not in wanted._field_defaults]
    if missing:
        raise _mistake(node, file, keys, f"missing: {', '.join(missing)}")
    return wanted(**found)


def _pairs(node: Node, file: str, keys: tuple[str, ...]) -> list[tuple[str, Node]]:
    if _kind_of(node) != "mapping":
        raise _mistake(node, file, keys, f"expected a mapping (key: value), found a {_kind_of(node)}")
    pairs = [(_scalar(key, str, file, keys), child) for key, child in node.value]
    if len({key for key, _ in pairs}) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _mistake(node, file, keys, f"{twice!r} is there twice")
    return pairs


def _key(key: str, wanted: type, file: str, keys: tuple[str, ...]) -> Any:
    return int(key) if wanted is int else key


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    return get_type_hints(wanted)


def _kind_of(node: Node) -> str:
    return {"scalar": "text", "sequence": "list"}.get(node.id, node.id)


def _spot(node: Node, file: str, keys: tuple[str, ...]) -> Spot:
    return Spot(file, node.start_mark.line + 1, keys)


def _mistake(node: Node, file: str, keys: tuple[str, ...], message: str) -> DataError:
    return DataError(f"{_spot(node, file, keys)}: {message}")


_NAMES = {str: "text", int: "a whole number", bool: "yes or no"}
