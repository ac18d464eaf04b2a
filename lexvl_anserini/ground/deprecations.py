"""What goes in a later version. Each use works and warns until then; docs/stability.md lists them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Deprecation(NamedTuple):
    """A name that goes.

    name         as users write it
    replacement  what they write instead
    gone         the first version without it
    """

    name: str
    replacement: str
    gone: str


DEPRECATIONS = (
    Deprecation("Encoder.encode_query(texts=...)", "Encoder.encode_query(queries=...)", "0.4.0"),
    Deprecation("Encoder.encode_document(texts=...)", "Encoder.encode_document(documents=...)", "0.4.0"),
    Deprecation("Quantiser.effect()", "Quantiser.to_json()", "0.4.0"),
)


def warn_of(name: str, stacklevel: int = 3) -> None:
    """Warns the caller of the function that calls this, once for each of its lines; Python shows it by default."""
    row = next(row for row in DEPRECATIONS if row.name == name)
    warnings.warn(f"{name} goes in version {row.gone}: use {row.replacement}", FutureWarning, stacklevel=stacklevel)


def renamed(name: str, older: str, newer: str) -> Callable[[Function], Function]:
    """A function that takes an argument under its older name too, as the deprecation of that name says."""

    def decorator(function: Function) -> Function:
        @wraps(function)
        def taking_both(*arguments: Any, **options: Any) -> Any:
            if older in options and newer not in options:
                warn_of(name)
                options[newer] = options.pop(older)
            return function(*arguments, **options)

        return cast(Function, taking_both)

    return decorator
