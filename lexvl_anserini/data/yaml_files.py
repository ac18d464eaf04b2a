"""Reads YAML: a file that people write into a typed record, which pydantic checks, or plain keys and values.

The type decides what a scalar is: `on` and `no` are words where words belong, and a text keeps the digits of 35.70.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from lexvl_anserini.ground.errors import DataError, LexvlError
from lexvl_anserini.ground.typed import plain

T = TypeVar("T")

# A list of T, or one T.
Many = Annotated[tuple[T, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


def _refuse_equal_keys(mapping: Any) -> Any:
    """The node of a mapping itself."""
    keys = [(key.tag, key.value) for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)]
    for (_, name), number in Counter(keys).items():
        if number > 1:
            mark = [key.start_mark for key, _ in mapping.value if key.value == name][1]
            raise yaml.constructor.ConstructorError(None, None, f"{name!r} is there twice", mark)
    return mapping


class _Texts(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads all scalars as texts, of files that come with the code: deep lists crash it."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        return super().construct_mapping(_refuse_equal_keys(node), deep)


class _Values(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> Any:  # later, merged mappings may have a key twice
        return _refuse_equal_keys(super().compose_mapping_node(anchor))


def parse_yaml(source: Path | str, where: str, error: type[LexvlError], loader: Any = _Values) -> Any:
    """What a file or a text of YAML holds; refuses a key that is there twice."""
    try:
        return yaml.load(source.read_bytes() if isinstance(source, Path) else source, Loader=loader)
    except OSError as problem:
        raise error(f"{source}: {problem.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:  # a ValueError for a date that is none
        raise error(f"{where}: not YAML: {' '.join(str(problem).split())}") from None


def read_mapping(path: Path, error: type[LexvlError]) -> dict[str, Any]:
    """A YAML file that holds keys and values."""
    if not isinstance(content := parse_yaml(path, str(path), error), dict):
        raise error(f"{path}: expected keys and values, found {type(content).__name__}")
    return content


def read_yaml(path: Path, expected: Any) -> Any:
    """The content of a YAML file as a value of a type: a NamedTuple has its fields as keys."""
    try:
        return TypeAdapter(expected).validate_python(parse_yaml(path, path.name, DataError, _Texts))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, mistake['loc'])) or 'the file'}: {plain(mistake)}" for mistake in error.errors()]
        raise DataError(f"{path.name}: {'; '.join(lines)}") from None
