"""Child processes that are measured: each is a fresh interpreter, without anything that an earlier one left.

A child runs one function, named `module:function`. `run_once` measures a function from start to exit of its process; a
`Worker` stays and answers requests, so that systems can take turns without starting again.

The first line of a child's standard input holds the function's arguments; a function that returns `Ready` answers each
further line, until the input ends. Answers are JSON lines on a file descriptor of their own: standard output belongs
to Java. Peak memory is the child's own high-water mark (VmHWM): the figure of `wait4` starts from the memory of the
parent at the fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, TypeVar

import orjson

from lexvl_anserini.ground.errors import LexvlError

QueryType = TypeVar("QueryType")

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")

# What a child's interpreter runs. Not `-m`, which would load this module a second time as `__main__`.
CHILD = f"from {__name__} import run_child; run_child()"


class Outcome(NamedTuple):
    """The result and the cost of a child.

    cpu_s       user and system time of the process and of the children that it waited for
    wall_s      from its start to its end
    peak_bytes  greatest resident memory of the process
    """

    result: Any
    cpu_s: float
    wall_s: float
    peak_bytes: int


class Ready(NamedTuple):
    """The result of a worker's function: a first answer, and the function that answers requests."""

    about: Any
    answer: Callable[..., Any]


class Stopwatch:
    """Wall seconds, and user and system seconds of this process (all threads), of a `with` block."""

    def __enter__(self) -> Stopwatch:
        self.wall_s, self.cpu_s = -time.perf_counter(), -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter()
        self.cpu_s += time.process_time()

    def seconds(self) -> dict[str, float]:
        """Both times, as a child answers."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}


def one_by_one(search: Callable[[QueryType], Any], queries: Iterable[QueryType]) -> dict[str, list[float]]:
    """Wall and CPU seconds (all threads of this process) of each query, one after the other."""
    wall, cpu = [], []
    for query in queries:
        started, worked = time.perf_counter(), time.process_time()
        search(query)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - worked)
    return {"wall_s": wall, "cpu_s": cpu}


def check_system() -> None:
    """Raises an error where the memory of a process cannot be read.

    Raises:
        LexvlError: the system is not Linux.
    """
    if not STATUS.is_file():
        raise LexvlError(f"{STATUS}: not there; this command measures memory through Linux's /proc, run it on Linux")


def resident_bytes(field: str = "VmHWM") -> int:
    """Resident memory of this process: the peak (VmHWM) or the current value (VmRSS)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Lowers the peak of this process to its current memory, so that the next peak belongs to what follows."""
    CLEAR.write_text("5")


def start(function: str, arguments: Mapping[str, Any], log: IO[bytes], environ: Mapping[str, str]) -> tuple[Any, Any]:
    """Starts a child on `function`; returns the process and the stream of its answers."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, function, str(writing)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=[writing],
        env={**os.environ, **environ},
    )
    os.close(writing)
    assert child.stdin is not None
    send(child.stdin, arguments)
    return child, os.fdopen(reading, "rb")


def send(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Writes one JSON line; if the child has ended, `receive` reports why."""
    try:
        stream.write(orjson.dumps(message, default=str) + b"\n")
        stream.flush()
    except BrokenPipeError:
        return


def receive(answers: IO[bytes], function: str, log: IO[bytes]) -> Any:
    """The next answer of a child.

    Raises:
        LexvlError: the child raised, or ended without an answer; the message holds the last line of its output.
    """
    line = answers.readline()
    if not line:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        raise LexvlError(f"{function} ended without an answer: {lines[-1] if lines else 'it printed nothing'}")
    answer = orjson.loads(line)
    if "error" in answer:
        raise LexvlError(f"{function}: {answer['error']}")
    return answer["result"]


def run_child() -> None:
    """The main function of a child: runs the function that its command line names."""
    name, answers = sys.argv[1], os.fdopen(int(sys.argv[2]), "wb")

    def respond(act: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        try:
            value = act(**arguments)
        except Exception as error:
            traceback.print_exc()
            answers.write(orjson.dumps({"error": str(error) or type(error).__name__}) + b"\n")
            answers.flush()
            return None
        result = value.about if isinstance(value, Ready) else value
        answers.write(orjson.dumps({"result": {"value": result, "peak_bytes": resident_bytes()}}) + b"\n")
        answers.flush()
        return value

    module, _, function = name.partition(":")
    lines = sys.stdin.buffer
    value = respond(getattr(import_module(module, __package__), function), orjson.loads(lines.readline()))
    if isinstance(value, Ready):
        for line in lines:
            respond(value.answer, orjson.loads(line))


def run_once(function: str, environ: Mapping[str, str] | None = None, **arguments: Any) -> Outcome:
    """Runs `function(**arguments)` in its own child and waits for its end.

    Raises:
        LexvlError: the function raised, or the child died.
    """
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        child, answers = start(function, arguments, log, environ or {})
        with child.stdin, answers:
            try:
                answer = receive(answers, function, log)
            finally:
                child.stdin.close()
                _, _, usage = os.wait4(child.pid, 0)
                # Already waited for: subprocess must not wait again.
                child.returncode = 0
        wall_s = time.perf_counter() - started
    return Outcome(answer["value"], usage.ru_utime + usage.ru_stime, wall_s, answer["peak_bytes"])


class Worker:
    """A child that stays: `function(**arguments)` there returns `Ready`, which answers every request.

    about       its first answer
    peak_bytes  its greatest resident memory so far

    Raises:
        LexvlError: the function raised, or the child died.
    """

    def __init__(self, function: str, environ: Mapping[str, str] | None = None, **arguments: Any):
        self.function = function
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self.child, self.answers = start(function, arguments, self.log, environ or {})
        try:
            self.about = self._answer()
        except BaseException:
            self.close()
            raise

    def request(self, **arguments: Any) -> Any:
        """Sends one request and returns its answer.

        Raises:
            LexvlError: the child raised, or died.
        """
        send(self.child.stdin, arguments)
        return self._answer()

    def close(self) -> None:
        """Ends the child."""
        if self.child.stdin.closed:
            return
        self.child.stdin.close()
        self.child.wait()
        self.answers.close()
        self.log.close()

    def _answer(self) -> Any:
        answer = receive(self.answers, self.function, self.log)
        self.peak_bytes = answer["peak_bytes"]
        return answer["value"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, where: TracebackType | None) -> None:
        self.close()
