"""Compiling kernels with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compiles a function at its first call, without Python's lock; keeps the code on disk where that is possible.

    numba keeps it beside the module, or in the user's cache folder, or in `$NUMBA_CACHE_DIR`.
    """
    try:
        return cast("Function", njit(nogil=True, cache=True, error_model="numpy")(function))
    except RuntimeError:  # none of these folders can be written
        return cast("Function", njit(nogil=True, error_model="numpy")(function))
