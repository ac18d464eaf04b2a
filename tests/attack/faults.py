"""Faults of the file system: the n-th call that changes something kills the process, or fails.

    with faults(folder, number=5, effect="end") as found: ...   in this process; an exception instead of SIGKILL
    outcome = forked(["search", "--index", ...], folder, number=5, effect="kill")

Calls are counted that make, rename, link or remove a name, write or truncate a file, or flush one to the disk, below
`folder`. Effects: "kill" (SIGKILL), "end" (an exception that is no `Exception`; as after a kill, nothing changes any
more), or the name of an error (ENOSPC). `after` lets the call happen first. A write is cut in the middle.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini import files

NAMED = ("replace", "rename", "link", "symlink", "unlink", "remove", "mkdir", "rmdir")
OPENED = ("fsync", "ftruncate", "posix_fallocate")
ERRORS = ("ENOSPC", "EIO", "EROFS", "EACCES")


class Ended(BaseException):
    """The process has ended here; nothing that follows changes a file."""


@dataclass
class Faults:
    """Counts the calls, and does what is to be done at one of them."""

    folder: Path
    number: int = 0
    effect: str = "end"
    after: bool = False
    calls: list[str] = field(default_factory=list)
    ended: bool = False

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls the function, unless this is the call that fails or the process has ended."""
        if self.ended:
            raise Ended
        shown = ", ".join(os.path.basename(str(a)) for a in arguments[:2] if isinstance(a, str | Path))  # noqa: PTH119
        self.calls.append(f"{name} {shown}".strip())
        if len(self.calls) != self.number:
            return function(*arguments, **options)
        if self.after:
            with suppress(OSError):
                function(*arguments, **options)
        elif name == "write":
            function(arguments[0][: len(arguments[0]) // 2])
        return self.strike()

    def strike(self) -> None:
        """The effect."""
        if self.effect == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.effect == "end":
            self.ended = True
            raise Ended
        number = getattr(errno, self.effect)
        raise OSError(number, os.strerror(number))

    def concerns(self, path: Any) -> bool:
        """True for a path below the folder, or a handle of a file there."""
        if isinstance(path, int):
            link = Path(f"/proc/self/fd/{path}")
            path = link.readlink() if link.is_symlink() else self.folder
        return Path(os.fsdecode(path)).absolute().is_relative_to(self.folder)

    def named(self, name: str) -> Callable[..., Any]:
        """The replacement of a function of `os` whose last path tells whether it counts."""
        function = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            relative = options.get("dir_fd") is not None
            if relative or self.concerns(arguments[1 if name in ("replace", "rename", "link", "symlink") else 0]):
                return self.call(name, function, *arguments, **options)
            return function(*arguments, **options)

        return wrapped

    def opened(self, name: str) -> Callable[..., Any]:
        """The replacement of a function of `os` for an open file."""
        function = getattr(os, name)

        def wrapped(handle: int, *arguments: Any) -> Any:
            if self.concerns(handle):
                return self.call(name, function, handle, *arguments)
            return function(handle, *arguments)

        return wrapped

    def created(self, path: Any, flags: int, *others: Any, **options: Any) -> Any:
        """The replacement of `os.open`, which counts if it may make a file."""
        if flags & os.O_CREAT and self.concerns(path):
            return self.call("create", OS_OPEN, path, flags, *others, **options)
        return OS_OPEN(path, flags, *others, **options)

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *others: Any, **options: Any) -> Any:
        """The replacement of `open`: a file that is written counts its writes."""
        if isinstance(file, int) or not set(mode) & set("wax+") or not self.concerns(file):
            return OPEN(file, mode, buffering, *others, **options)
        faults = self

        class Counted(io.FileIO):
            def write(self, data: Any) -> int:
                """Counts, then writes."""
                whole = bytes(data)
                faults.call("write", super().write, whole)
                return len(whole)

        raw = Counted(file, mode.replace("b", "").replace("t", ""))
        # A raw file may write less than it is given: `Counted.write` of a whole piece below 2 GB does not.
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, **{"encoding": "utf-8", **options})


OPEN, OS_OPEN = io.open, os.open


@contextmanager
def faults(folder: Path, number: int = 0, effect: str = "end", after: bool = False) -> Iterator[Faults]:
    """Counts the calls of the block; the `number`-th has the effect, none for 0."""
    found = Faults(folder.absolute(), number, effect, after)
    exchange = files._exchange
    replaced = {(os, name): found.named(name) for name in NAMED}
    replaced |= {(os, name): found.opened(name) for name in OPENED if hasattr(os, name)}
    replaced |= {(builtins, "open"): found.open, (io, "open"): found.open, (os, "open"): found.created}
    replaced[files, "_exchange"] = lambda *arguments: found.call("exchange", exchange, *arguments)
    before = {(module, name): getattr(module, name) for module, name in replaced}
    for (module, name), function in replaced.items():
        setattr(module, name, function)
    try:
        yield found
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


class Outcome(NamedTuple):
    """How a command ended: its exit code (negative: the signal), what it printed, and the calls that it made."""

    code: int
    out: str
    err: str
    calls: int


def forked(
    arguments: Sequence[str],
    folder: Path,
    number: int = 0,
    effect: str = "kill",
    after: bool = False,
    notes: Path | None = None,
) -> Outcome:
    """Runs `lexvl ARGUMENTS` in a fork of this process, which may have imported what takes long; with one fault.

    `notes` is a folder for what the command prints, outside `folder`.
    """
    where = notes or folder.parent
    out, err, calls = (where / name for name in ("out.txt", "err.txt", "calls.txt"))
    calls.write_text("0")
    child = os.fork()
    if not child:
        _run(arguments, folder, number, effect, after, (out, err, calls))
    _, status = os.waitpid(child, 0)
    return Outcome(os.waitstatus_to_exitcode(status), out.read_text(), err.read_text(), int(calls.read_text()))


def started(arguments: Sequence[str], notes: Path) -> int:
    """Starts `lexvl ARGUMENTS` in a fork without faults; returns its process id. What it prints goes into `notes`."""
    notes.mkdir(exist_ok=True)
    (notes / "calls.txt").write_text("0")
    child = os.fork()
    if not child:
        _run(arguments, notes, 0, "kill", False, tuple(notes / name for name in ("out.txt", "err.txt", "calls.txt")))
    return child


def ended(child: int, notes: Path) -> Outcome:
    """Waits for a command that `started` started."""
    _, status = os.waitpid(child, 0)
    out, err = ((notes / name).read_text() for name in ("out.txt", "err.txt"))
    return Outcome(os.waitstatus_to_exitcode(status), out, err, 0)


def _run(
    arguments: Sequence[str], folder: Path, number: int, effect: str, after: bool, notes: tuple[Path, ...]
) -> None:
    """The child: never returns."""
    out, err, calls = notes
    code = 70
    try:
        for path, handle in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), handle)
        sys.stdout, sys.stderr = (OPEN(handle, "w", buffering=1, closefd=False) for handle in (1, 2))
        sys.argv = ["lexvl", *arguments]
        from lexvl_anserini.cli import main

        with faults(folder, number, effect, after) as found:
            try:
                main()
                code = 0
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else 1 if exit.code else 0
        with OPEN(calls, "w") as noted:
            noted.write(str(len(found.calls)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
