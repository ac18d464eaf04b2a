"""Errors that a user can cause; each message is one line: where, what was found, what was expected, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

LONGEST_REASON = 200  # characters of another library's message that an error line keeps

# Words of other libraries' messages that advise to run code or to lift a limit, and what the message says instead.
ADVICE = {
    "weights_only": "more than plain data, which could run code",
    "custom code": "it names code of its own, and code of a checkpoint is never run",
}


def describe_error(error: BaseException) -> str:
    """An error of another library as part of one line: its type, and the first line of its message cut short."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    for word, reason in ADVICE.items():
        first = reason if word in str(error) else first
    shown = "".join(letter if letter.isprintable() else "?" for letter in first[:LONGEST_REASON])
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


PASSWORD = re.compile(r"(?<=://)[^/?#\s]*@")  # of a URL, with its user


def hide_passwords(text: str) -> str:
    """A text whose URLs have no user and no password."""
    return PASSWORD.sub("***@", text)


LONGEST = 1500  # characters of a message: a damaged file may hold an id or a key of any length


class LexvlError(Exception):
    """Base of every error that a user can cause; its text is the whole message: one line, whatever names it quotes."""

    exit_code = 1

    def __init__(self, message: str = ""):
        line = hide_passwords(" ".join(message.splitlines()))
        half = LONGEST // 2
        super().__init__(line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}")

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: the class and the whole message, whatever arguments the class makes it from."""
        return build_error, (type(self), str(self))


def build_error(kind: type[LexvlError], message: str) -> LexvlError:
    """An error of that class with this message."""
    error = kind.__new__(kind)
    LexvlError.__init__(error, message)
    return error


class UsageError(LexvlError):
    """A command or a call gets a name or an option that does not fit."""

    exit_code = 2


class UnknownName(UsageError):
    """A name is not in its registry."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        self.name, known = name, sorted(known)
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        super().__init__(f"unknown {kind} {name!r}{hint} known: {', '.join(known) or '(none)'}")


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an extra: pip install 'lexvl-anserini[{extra}]'")


class DataError(LexvlError):
    """A dataset's file is missing, malformed or inconsistent."""


class CheckpointError(LexvlError):
    """A checkpoint cannot be read, lacks weights, or is of another kind than expected."""


class ArtefactError(LexvlError):
    """An output exists already, is unfinished, damaged, or does not belong to its input."""


class BusyError(ArtefactError):
    """Another process is writing an output."""


class InexactScore(ArtefactError):
    """The scores of a query could be larger than an index has exact ones."""


class StoreError(LexvlError):
    """A store that holds an index cannot be reached, refuses the login, is too old, or fails."""


class InstallationError(LexvlError):
    """A Python package is not installed, or in a version that this one does not work with."""


class JavaError(LexvlError):
    """No usable Java runtime was found, or the JVM refused to start."""


# How a file begins that a clone without git-lfs has in the place of another, and one that its name does not describe.
POINTER = {b"version https://git-lfs": "a pointer of Git LFS in the place of the file; git lfs pull fetches it"}
UNPACK, HTML = "which its name does not say; unpack it, or give it the suffix", "a page of HTML; fetch the file again"
FOREIGN = {b"\x1f\x8b": f"packed by gzip, {UNPACK}", b"\x28\xb5\x2f\xfd": f"packed by Zstandard, {UNPACK}"}
FOREIGN |= {b"<!doctype html": HTML, b"<html": HTML, b"pk\3\4": "a zip archive; unpack it and name the file in it"}


def refuse_pointer(
    where: Path | str, start: bytes | None = None, error: type[LexvlError] = DataError, plain: bool = False
) -> None:
    """Refuses a pointer of Git LFS, by its path or its first bytes; of a `plain` file also what cannot be one."""
    if start is None and Path(where).is_file():  # of a pipe, nothing is read
        with suppress(OSError), open(where, "rb") as source:
            start = source.read(32)
    for beginning, problem in (POINTER | FOREIGN if plain else POINTER).items():
        if start and start[:32].lstrip(b"\xef\xbb\xbf\r\n ").lower().startswith(beginning):
            raise error(f"{where}: {problem}")


ON_ERROR = ("fail", "skip")  # the policies for images that cannot be read, see `OnError`


# The reasons are data too: skipped.jsonl stores the texts of the errors below, so that their wording stays.
class Skipped(NamedTuple):
    """An image that could not be read: its position from 0, its reference, and what is wrong with it."""

    position: int
    reference: str
    reason: str


class UnreadableImage(DataError):
    """An image cannot be read, and the policy is to fail."""


@dataclass
class OnError:
    """The policy for images that cannot be read: "fail" raises at the first, "skip" lists them by their positions."""

    policy: str = "fail"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.policy not in ON_ERROR:
            raise UsageError(f"on_error {self.policy!r}: expected fail or skip")

    def fresh(self) -> OnError:
        """The same policy with an empty list, for one call: positions count from its first image."""
        return OnError(self.policy)

    def unreadable(self, position: int, reference: Any, problem: DataError) -> None:
        """Raises the problem, or lists the image."""
        if self.policy == "fail":
            raise UnreadableImage(str(problem)) from problem
        self.skipped.append(Skipped(position, str(reference), str(problem)))


FAIL = OnError("fail")  # the policy where none is given; all callers share it: it raises, and lists nothing
