"""The types of what JSON files hold, checked where a file is read; and checks of what callers give.

An `Entry` is a JSON object whose class declares some of its keys. A key without a default must be there:

    class Point(Entry):
        name: str
        x: int = 0  # where the key is absent or null
        near: tuple[Point, ...] = ()

    check({"name": "p", "x": "3"}, Point, "p.json", "write it again")
    # ArtefactError: p.json: x is "3", expected an integer; write it again
    Point(name="p", near=[{"name": "q"}]).near[0].x  # 0

Recipes, options of encoders and requests to a server are checked by pydantic, whose import takes longer than a query;
`plain` says in our words what it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial
from operator import index as to_integer
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import orjson

from lexvl_anserini.ground.errors import ArtefactError, UsageError

# JSON's name of each type.
NAMES = {str: "a text", bool: "true or false", int: "an integer", float: "a number", NoneType: "null"}

MOST = 2**31 - 1  # the largest int of Java and numpy
MOST_THREADS = 1024  # more threads than any machine has processors
SHOWN = 60  # characters of a value in an error


class Entry(dict[str, Any]):
    """A JSON object whose typed keys are its attributes; it keeps all other keys, and the order of all."""

    defaults: ClassVar[dict[str, Any]] = {}  # MISSING for a key that must be there

    def __init_subclass__(cls) -> None:
        cls.defaults = cls.defaults | {name: vars(cls).get(name, MISSING) for name in cls.__annotations__}
        for name in cls.__annotations__:
            setattr(cls, name, property(partial(_read_key, name=name)))


def _read_key(entry: Entry, name: str) -> Any:
    kind, default = list_keys(type(entry))[name]
    value = entry.get(name)
    return default if value is None else convert(value, kind)


@cache
def list_keys(record: type) -> Mapping[str, tuple[Any, Any]]:
    """The typed keys of an `Entry` or a dataclass: their types, and their defaults, MISSING where there is none."""
    hints = get_type_hints(record)
    if issubclass(record, Entry):
        return {name: (hints[name], default) for name, default in record.defaults.items()}
    assert is_dataclass(record)
    required = {f.name: f.default is f.default_factory is MISSING for f in fields(record)}
    return {name: (hints[name], MISSING if needed else None) for name, needed in required.items()}


def convert(value: Any, kind: Any) -> Any:
    """A JSON value as its type: an object as an `Entry`, a list as a tuple where the type says so."""
    kind = _list_choices(kind)[0]
    if value is None:
        return None
    if get_origin(kind) is tuple:
        return tuple(convert(item, get_args(kind)[0]) for item in value)
    return kind(value) if _is_entry(kind) and not isinstance(value, kind) else value


def check(data: Mapping[str, Any], record: type, where: str, remedy: str) -> None:
    """Checks the keys of a JSON object and the types of their values, at any depth, by a dataclass or an `Entry`."""
    for place, value, expected in _find_problems(data, record, ""):
        raise ArtefactError(f"{where}: {place} is {value}, expected {expected}; {remedy}")


def _find_problems(value: Any, expected: Any, place: str) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a JSON value: the places, the values there, and what is expected of them."""
    kind, *null = _list_choices(expected)
    if kind is Any or (value is None and null):
        return
    if not _fits(value, kind):
        kinds = (NAMES.get(k) or ("a list" if get_origin(k) in (list, tuple) else "an object") for k in (kind, *null))
        names = " or ".join(kinds)
        yield place, "missing" if value is MISSING else show_value(value), names
        return
    for name, item, inner in _open(value, kind):
        yield from _find_problems(item, inner, (place + name).lstrip("."))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, without a look into it."""
    if kind in NAMES:
        return type(value) is kind or (kind is float and type(value) is int)
    return isinstance(value, list | tuple if get_origin(kind) in (list, tuple) else Mapping)


def _open(value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """What is in an object or a list: the ways there, the values, MISSING for a key that must be there, their types."""
    if _is_entry(kind) or is_dataclass(kind):
        for name, (inner, default) in list_keys(kind).items():
            absent = name not in value or (value[name] is None and _is_entry(kind))
            if default is MISSING or not absent:
                yield f".{name}", value.get(name, MISSING), inner
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield f".{name if name.isprintable() else repr(name)}", item, get_args(kind)[1]
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield f"[{number}]", item, get_args(kind)[0]


def _list_choices(kind: Any) -> tuple[Any, ...]:
    """The types that `X | None` names; of another type, itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_entry(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Entry)


def check_count(name: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Refuses (UsageError) what is no integer from `least` to `most`: hits, threads, the size of a batch."""
    try:
        number = None if isinstance(value, bool) else to_integer(value)
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


# How a line names what pydantic expected, and what pydantic calls it; `{}` are entries of a problem's context.
EXPECTED = {
    name: form
    for form, names in {
        "a text": "string_type",
        "an integer": "int_type int_parsing int_from_float",
        "a number": "float_type float_parsing",
        "a finite number": "finite_number",
        "true or false": "bool_type bool_parsing",
        "a list": "tuple_type list_type",
        "keys and values": "dict_type mapping_type model_type model_attributes_type dataclass_type named_tuple_type",
        "{expected}": "literal_error",
        "a number above {gt}": "greater_than",
        "at least {ge}": "greater_than_equal",
        "a number below {lt}": "less_than",
        "at most {le}": "less_than_equal",
        "at least {min_length} entries": "too_short",
        "at most {max_length} entries": "too_long",
        "at least {min_length} characters": "string_too_short",
        "at most {max_length} characters": "string_too_long",
        "a text like {pattern}": "string_pattern_mismatch",
    }.items()
    for name in names.split()
}


def plain(problem: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """What is wrong with a value, in our words: an entry of pydantic's `ValidationError.errors()` without its place."""
    kind, context, key = problem["type"], problem.get("ctx", {}), problem["loc"][-1] if problem["loc"] else ""
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        near = get_close_matches(str(key), list(known), n=1, cutoff=0.5)
        return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"
    if kind in EXPECTED:
        shown = problem["input"]
        value = str(shown) if kind == "finite_number" else show_value(shown)  # JSON has no infinity
        return f"{value}, expected {EXPECTED[kind].format(**context)}"
    sentences = {
        "missing": "is missing",
        "union_tag_not_found": "the key {discriminator} is missing",
        "union_tag_invalid": "the key {discriminator} is '{tag}', expected one of {expected_tags}",
        "value_error": "{error}",
    }
    return sentences[kind].format(**context) if kind in sentences else str(problem["msg"])


def show_value(value: Any, most: int = SHOWN) -> str:
    """A value as JSON, for an error message, of at most so many characters."""
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError:  # integers of more than 64 bits, keys that are no texts, lone surrogates
        text = ascii(value)
    return shorten_text(text, most)


def shorten_text(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
