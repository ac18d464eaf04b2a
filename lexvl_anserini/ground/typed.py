"""Checks of types: of what JSON files hold, once, where a file is read; and of the numbers that callers give.

`plain` says in our words what pydantic finds, which checks recipes, options of encoders, and requests to the server.

A record is a dataclass, or an `Entry`: a dictionary whose class names some of its keys and their types.

    class Point(Entry):
        name: Key[str] = Key("", required=True)
        x: Key[int] = Key(0)  # absent or null is 0
        inside = {"near": list[Point]}  # types of other keys, which may be absent or null

    check({"name": "p", "x": "3"}, Point, "p.json", "write it again")
    # ArtefactError: p.json: x is "3", expected an integer; write it again
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import getattr_static
from operator import index as whole
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from lexvl_anserini.ground.errors import ArtefactError, UsageError

T = TypeVar("T")

# JSON's name of each type.
NAMES = {str: "a text", bool: "true or false", int: "an integer", float: "a number", NoneType: "null"}

# The largest int of Java and numpy.
MOST = 2**31 - 1

# More threads than any machine has processors.
MOST_THREADS = 1024

# Characters of a value in an error.
SHOWN = 60


class Key(Generic[T]):
    """A typed field of an entry: the value of the key of that name, or a default where it is absent or null."""

    def __init__(self, default: T, required: bool = False):
        self.default, self.required = default, required

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, entry: Mapping[str, Any], owner: type) -> T:
        value: T | None = entry.get(self.name)
        return self.default if value is None else value


class Entry(dict[str, Any]):
    """A JSON object whose class has a `Key` for each key of a known type; it keeps all others, and their order.

    inside  types of keys that hold further records
    """

    inside: ClassVar[Mapping[str, Any]] = {}


class Problem(NamedTuple):
    """What is wrong at a place: `counts.documents` is `"x"`, expected `an integer`."""

    place: str
    value: str
    expected: str


def check(data: Mapping[str, Any], record: type, where: str, remedy: str) -> None:
    """Checks the keys of a JSON object and the types of their values, at any depth.

    Args:
        record: a dataclass or an `Entry`.
        where: the file, for the error.
        remedy: what to do, for the error.

    Raises:
        ArtefactError: a key is missing, or a value has another type.
    """
    for place, value, expected in problems(data, record, ""):
        raise ArtefactError(f"{where}: {place} is {value}, expected {expected}; {remedy}")


def check_count(name: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Refuses (UsageError) what is no integer from `least` to `most`: hits, threads, the size of a batch."""
    try:
        number = None if isinstance(value, bool) else whole(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        text = " ".join(repr(value).split()) if number is None or abs(number) <= most**2 else "a number of many digits"
        raise UsageError(f"{name} is {text[:SHOWN]}, expected an integer from {least} to {most:,}")


def check_type(name: str, value: Any, expected: type | UnionType, form: str) -> None:
    """Refuses (UsageError) an argument of another type; `form` says what is expected."""
    if not isinstance(value, expected):
        raise UsageError(f"{name} is {value!r:.{SHOWN}}, expected {form}")


def check_text(name: str, value: Any) -> None:
    """Refuses (UsageError) invalid Unicode: Python reads a byte that is not UTF-8 as half of a surrogate pair."""
    if not isinstance(value, str):
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name}: character {error.start + 1} of {value!a:.60} is no valid Unicode; expected a text in UTF-8"
        ) from error


# What pydantic calls a problem, and how a line names what it expected; `{}` are entries of the problem's context.
EXPECTED = {
    "string_type": "a text",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "dataclass_type": "keys and values",
    "named_tuple_type": "keys and values",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "a text like {pattern}",
}


def plain(problem: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """What is wrong with a value, in our words: an entry of pydantic's `ValidationError.errors()` without its place.

    Args:
        known: keys that might have been meant by an unknown one.

    >>> plain({"type": "int_parsing", "input": "x", "loc": ("steps",), "msg": "..."})
    '"x", expected an integer'
    >>> plain({"type": "extra_forbidden", "input": 1, "loc": ("stpes",), "msg": "..."}, ["seed", "steps"])
    "unknown key; did you mean 'steps'?"
    """
    kind, context, key = problem["type"], problem.get("ctx", {}), problem["loc"][-1] if problem["loc"] else ""
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        near = get_close_matches(str(key), list(known), n=1, cutoff=0.5)
        return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"
    if kind in EXPECTED:
        value = str(problem["input"]) if kind == "finite_number" else shown(problem["input"])  # JSON has no infinity
        return f"{value}, expected {EXPECTED[kind].format(**context)}"
    sentences = {
        "missing": "is missing",
        "union_tag_not_found": "the key {discriminator} is missing",
        "union_tag_invalid": "the key {discriminator} is '{tag}', expected one of {expected_tags}",
        "value_error": "{error}",
    }
    return sentences[kind].format(**context) if kind in sentences else str(problem["msg"])


def problems(value: Any, expected: Any, place: str) -> Iterator[Problem]:
    """What is wrong with a JSON value of an expected type, at a place such as `counts.documents`."""
    origin = get_origin(expected)
    if expected is Any or isinstance(expected, TypeVar):
        return
    if origin in (Union, UnionType):
        by_type = [list(problems(value, choice, place)) for choice in get_args(expected)]
        if all(by_type):
            yield Problem(place, shown(value), " or ".join(first.expected for first, *_ in by_type))
    elif isinstance(expected, type) and (is_dataclass(expected) or issubclass(expected, Entry)):
        yield from _of_record(value, expected, place)
    elif origin is not None and issubclass(origin, Mapping):
        yield from _of_mapping(value, get_args(expected)[1], place)
    elif origin in (tuple, list):
        if not isinstance(value, list | tuple):
            yield Problem(place, shown(value), "a list")
        else:
            for number, item in enumerate(value):
                yield from problems(item, get_args(expected)[0], f"{place}[{number}]")
    elif type(value) is not expected and not (expected is float and type(value) is int):
        yield Problem(place, shown(value), NAMES[expected])


def _of_mapping(value: Any, expected: Any, place: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(place, shown(value), "an object")
        return
    for key, item in value.items():
        name = key if key.isprintable() else repr(key)
        yield from problems(item, expected, f"{place}.{name}" if place else name)


def _of_record(value: Any, record: type, place: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(place, shown(value), "an object")
        return
    for key, (expected, required) in _keys(record).items():
        inside = f"{place}.{key}" if place else key
        if key in value and not (issubclass(record, Entry) and value[key] is None and not required):
            yield from problems(value[key], expected, inside)
        elif required:
            yield Problem(inside, "missing", _named(expected))


@cache
def _keys(record: type) -> dict[str, tuple[Any, bool]]:
    """The keys of a record: their types, and whether they are required."""
    hints, inside = get_type_hints(record), getattr(record, "inside", {})
    if is_dataclass(record):
        of_field = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(record)}
        return {name: (inside.get(name, hints[name]), required) for name, required in of_field.items()}
    keys = {name: getattr_static(record, name) for name in hints}
    typed = {n: (get_args(hints[n])[0], key.required) for n, key in keys.items() if isinstance(key, Key)}
    return typed | {name: (expected, False) for name, expected in inside.items()}


def _named(expected: Any) -> str:
    return NAMES.get(expected) or ("a list" if get_origin(expected) in (tuple, list) else "an object")


def shown(value: Any, most: int = SHOWN) -> str:
    """A value as JSON, for an error message, of at most so many characters."""
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError:  # integers of more than 64 bits, keys that are no texts, lone surrogates
        text = ascii(value)
    return shortened(text, most)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
