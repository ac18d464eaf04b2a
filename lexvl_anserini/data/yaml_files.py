"""Reads a YAML file that people write into a typed record, which pydantic checks.

The type decides what a scalar is: `on` and `no` are words where words belong, and a text keeps the digits of 35.70.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.typed import plain

T = TypeVar("T")

# A list of T, or one T.
Many = Annotated[tuple[T, ...], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads all scalars as texts, and refuses a key that is there twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value]
        for place, key in enumerate(keys):
            if key.value in (other.value for other in keys[:place]):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, expected: Any) -> Any:
    """The content of a YAML file as a value of a type: a NamedTuple has its fields as keys."""
    try:
        with path.open("rb") as file:
            content = yaml.load(file, Loader=_Loader)
        return TypeAdapter(expected).validate_python(content)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, mistake['loc'])) or 'the file'}: {plain(mistake)}" for mistake in error.errors()]
        raise DataError(f"{path.name}: {'; '.join(lines)}") from None
