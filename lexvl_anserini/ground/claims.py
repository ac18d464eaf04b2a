"""Is an output finished, does a killed command's work go on in it, or is it the work of another request?

A command compares its request (what decides the bytes that it would write) with the request that made what its output
holds. `claim` says what to do; `ensure` is the whole course of a command whose output appears at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from os.path import commonprefix
from pathlib import Path
from typing import Any, TypeVar

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import clear_remains, sole_writer
from lexvl_anserini.ground.typed import shorten_text, show_value

log = logging.getLogger(__name__)

Output = TypeVar("Output")

# In an error message: characters of a value, those before the first that differs, and keys with their values.
SHOWN = 120
BEFORE = 20
DETAILED = 4


class Claim(Enum):
    """What a command does with its output.

    FRESH   writes it; what is there, if anything, is not worth keeping or may be replaced
    RESUME  goes on with the unfinished work of the same request
    DONE    leaves it: the same request finished it
    """

    FRESH = "fresh"
    RESUME = "resume"
    DONE = "done"


@dataclass(frozen=True)
class Comparison:
    """Two requests; true if they are the same, else the entries that differ: requested value, then the output's."""

    differing: Mapping[str, tuple[Any, Any]]

    def __bool__(self) -> bool:
        return not self.differing

    def __str__(self) -> str:
        """The keys that differ, at any depth, for an error message: the first with their values, the others by name."""
        keys = [key for name, values in self.differing.items() for key in _list_differences(name, *values)]
        detailed = ["{}: {} found, {} requested".format(name, *_show_apart(*pair)) for name, *pair in keys[:DETAILED]]
        others = ", ".join(name for name, *_ in keys[DETAILED:])
        return "; ".join([*detailed, f"also {others}"] if others else detailed)


def _list_differences(name: str, request: Any, earlier: Any) -> Iterator[tuple[str, Any, Any]]:
    """The keys where two unequal values differ: name, earlier value, requested value."""
    if not (isinstance(request, Mapping) and isinstance(earlier, Mapping)):
        yield name, earlier, request
        return
    for key in {**request, **earlier}:
        if (pair := (request.get(key), earlier.get(key)))[0] != pair[1]:
            yield from _list_differences(f"{name}.{key}", *pair)


def _show_apart(earlier: Any, request: Any) -> tuple[str, str]:
    first, second = (show_value(value, sys.maxsize) for value in (earlier, request))
    begin = len(commonprefix([first, second])) - BEFORE
    if begin > 0 and max(len(first), len(second)) > SHOWN:
        first, second = "..." + first[begin:], "..." + second[begin:]
    return shorten_text(first, SHOWN), shorten_text(second, SHOWN)


def compare_requests(request: Mapping[str, Any], earlier: Mapping[str, Any]) -> Comparison:
    """Compares a request with the one that made an output; the result is true if they are the same."""
    pairs = {name: (request.get(name), earlier.get(name)) for name in {**request, **earlier}}
    return Comparison({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})


def claim(
    output: Path,
    what: str,
    request: Mapping[str, Any],
    earlier: Mapping[str, Any] | None,
    overwrite: bool,
    finished: bool = True,
) -> Claim:
    """What a command of this request does with its output.

    earlier                          overwrite   result
    None: nothing worth keeping      -           FRESH
    the same request                 -           DONE, or RESUME if it is not finished
    another request                  True        FRESH
    another request                  False       ArtefactError
    """
    if earlier is None:
        return Claim.FRESH
    if comparison := compare_requests(request, earlier):
        return Claim.DONE if finished else Claim.RESUME
    if overwrite:
        return Claim.FRESH
    raise ArtefactError(f"{output}: holds {what} of another request ({comparison}); --overwrite replaces it")


def ensure(
    output: Path, look: Callable[[], Output | None], write: Callable[[], Output], folder: bool = False
) -> Output:
    """The output of a request: what `look` finds finished, or where that is None, what `write` makes.

    No other process writes it between the look and the end of `write`, so that nothing is computed in vain.
    """
    finished = look()
    if finished is None:
        with sole_writer(output, folder):
            finished = look()  # another process may have written it since
            if finished is None:
                return write()
    report_finished(output)
    clear_remains(output)
    return finished


def report_finished(output: Path | str) -> None:
    """Logs that the output of a request is there, so that its command writes nothing."""
    log.info("%s: finished already, nothing to do", output)


def refuse_existing(output: Path, overwrite: bool) -> None:
    """Raises ArtefactError for an output that is there, of a command that cannot compare requests."""
    if output.exists() and not overwrite:
        raise ArtefactError(f"{output}: exists; --overwrite replaces it")
