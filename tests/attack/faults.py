"""Faults of the file system: the n-th call that changes something kills the process, or fails; and small disks.

    with faults(folder, number=5, effect="end") as counted: ...   in this process; an exception instead of SIGKILL
    outcome = Commands(notes).run(["search", "--index", ...], folder, number=5, effect="kill")

Calls are counted that make, rename, link or remove a name, write or truncate a file, or flush one to the disk, below
`folder`. Effects: "kill" (SIGKILL), "end" (an exception that is no `Exception`; as after a kill, nothing changes any
more), or the name of an error (ENOSPC). `after` lets the call happen first. A write is cut in the middle.
"""

import builtins
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from lexvl_anserini.ground import files

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
        if self.effect == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.effect == "end":
            self.ended = True
            raise Ended
        number = getattr(errno, self.effect)
        raise OSError(number, os.strerror(number))

    def concerns(self, path: Any) -> bool:
        """True for a path below the folder, or a handle of a file there."""
        path = (_find_file(path) or self.folder) if isinstance(path, int) else path
        return Path(os.fsdecode(path)).absolute().is_relative_to(self.folder)

    def replace(self, name: str) -> Callable[..., Any]:
        """The replacement of a function of `os` whose last path, or whose open file, tells whether it counts."""
        function, place = getattr(os, name), name in ("replace", "rename", "link", "symlink")

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None and not self.concerns(arguments[place]):
                return function(*arguments, **options)
            file = _find_file(arguments[0]) if name in OPENED else None
            label = f"{name} {file.name}" if file else name
            return self.call(label, function, *arguments, **options)

        return wrapped

    def create(self, path: Any, flags: int, *others: Any, **options: Any) -> Any:
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
                whole = bytes(data)
                faults.call("write", super().write, whole)
                return len(whole)

        raw = Counted(file, mode.replace("b", "").replace("t", ""))
        # A raw file may write less than it is given: `Counted.write` of a whole piece below 2 GB does not.
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, **{"encoding": "utf-8", **options})


def _find_file(handle: int) -> Path | None:
    link = Path(f"/proc/self/fd/{handle}")
    return link.readlink() if link.is_symlink() else None


OPEN, OS_OPEN = io.open, os.open


@contextmanager
def faults(folder: Path, number: int = 0, effect: str = "end", after: bool = False) -> Iterator[Faults]:
    """Counts the calls of the block; the `number`-th has the effect, none for 0."""
    counted = Faults(folder.absolute(), number, effect, after)
    exchange = files._exchange
    replaced = {(os, name): counted.replace(name) for name in (*NAMED, *OPENED) if hasattr(os, name)}
    replaced |= {(builtins, "open"): counted.open, (io, "open"): counted.open, (os, "open"): counted.create}
    replaced[files, "_exchange"] = lambda *arguments: counted.call("exchange", exchange, *arguments)
    with ExitStack() as stack:
        for (module, name), function in replaced.items():
            stack.enter_context(patch.object(module, name, function))
        yield counted


kills = pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.extended)], ids=["fifth", "all"])


def draw_calls(calls: int, share: int, seed: int = 57) -> list[int]:
    """The numbers of the calls at which a test kills, from 1, in order; the last one is always among them."""
    return sorted({*Random(seed).sample(range(1, calls + 1), -(-calls // share)), calls})


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of that size (256k, 2m) as a new folder; skips the test where that is not possible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


class Outcome(NamedTuple):
    """How a command ended: its exit code (negative: the signal), what it printed, and the calls that it made."""

    code: int
    out: str
    err: str
    calls: int

    @property
    def one_line(self) -> bool:
        """True if the command failed with one line for a user, and nothing of Java's or Python's beside it."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        noise = ("Traceback", "Exception in thread", "\tat ", "Exception ignored")
        return self.code == 1 and len(errors) == 1 and not any(word in self.err for word in noise)


class Commands:
    """Runs `lexvl` commands as forks of one process that has imported what takes long, and started no Java."""

    def __init__(self, notes: Path):
        self.notes = notes
        notes.mkdir(exist_ok=True)
        command = [sys.executable, __file__, str(notes)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(
        self, arguments: Sequence[object], folder: Path, number: int = 0, effect: str = "kill", after: bool = False
    ) -> int:
        """Starts `lexvl ARGUMENTS ; MORE` in one process, with one fault below `folder`; returns its process id."""
        return int(self._ask("start", [*map(str, arguments)], str(folder), number, effect, after))

    def wait(self, child: int) -> Outcome:
        code = int(self._ask("wait", child))
        out, err, calls = (self.notes / f"{child}.{name}" for name in NOTES)
        outcome = Outcome(code, out.read_text(), err.read_text(), int(calls.read_text() if calls.exists() else 0))
        for note in (out, err, calls):
            note.unlink(missing_ok=True)
        return outcome

    def run(self, arguments: Sequence[object], folder: Path, *fault: Any) -> Outcome:
        return self.wait(self.start(arguments, folder, *fault))

    def close(self) -> None:
        self.server.communicate()

    def _ask(self, *question: Any) -> Any:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


NOTES = ("out", "err", "calls")


def serve(notes: Path) -> None:
    """The process of `Commands`: answers one JSON line for each."""
    from importlib import import_module

    for module in ("torch", "transformers", "scipy.sparse", "lexvl_anserini.encode", "lexvl_anserini.search"):
        import_module(module)
    for line in sys.stdin:
        what, *question = json.loads(line)
        if what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(question[0], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                _run(notes, *question)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _run(notes: Path, arguments: Sequence[str], folder: str, number: int, effect: str, after: bool) -> None:
    """The child: never returns. `;` parts commands, of which each runs if those before it succeed."""
    code = 0
    out, err, calls = (notes / f"{os.getpid()}.{name}" for name in NOTES)
    try:
        for path, handle in ((out, 1), (err, 2)):
            os.dup2(OS_OPEN(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), handle)
        os.dup2(OS_OPEN(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (OPEN(handle, "w", buffering=1, closefd=False) for handle in (1, 2))
        from lexvl_anserini.cli import main

        with faults(Path(folder), number, effect, after) as counted:
            for ends, words in groupby(arguments, lambda word: word == ";"):
                if not ends and not code:
                    sys.argv = ["lexvl", *words]
                    try:
                        main()
                    except SystemExit as ended:
                        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        calls.write_text(str(len(counted.calls)))
    except BaseException:
        code = 70
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
