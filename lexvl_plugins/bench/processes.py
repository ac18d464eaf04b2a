"""Child processes that are measured: each is a fresh interpreter, without anything that an earlier one left.

A child runs one function, `module:function`, with the arguments on the first line of its standard input. If it returns
`Ready`, the child answers each further line. Answers are JSON lines on a file descriptor of their own: standard output
belongs to Java. Peak memory is the child's own VmHWM: the figure of `wait4` starts from the parent's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import orjson

from lexvl_anserini.ground.errors import LexvlError

QueryType = TypeVar("QueryType")
Key = TypeVar("Key")
STATUS = Path("/proc/self/status")
# What a child's interpreter runs. Not `-m`, which would load this module a second time as `__main__`.
CHILD = f"from {__name__} import run_child; run_child()"


class Outcome(NamedTuple):
    """The result and the cost of a child: of its process, and CPU seconds also of the children that it waited for."""

    result: Any
    cpu_s: float
    wall_s: float
    peak_bytes: int


class Ready(NamedTuple):
    """The result of a worker's function: a first answer, and the function that answers requests."""

    facts: Any
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


def time_each(search: Callable[[QueryType], Any], queries: Iterable[QueryType]) -> dict[str, list[float]]:
    """Wall and CPU seconds (all threads of this process) of each query, one after the other."""
    wall, cpu = [], []
    for query in queries:
        with Stopwatch() as watch:
            search(query)
        wall.append(watch.wall_s)
        cpu.append(watch.cpu_s)
    return {"wall_s": wall, "cpu_s": cpu}


def check_system() -> None:
    """Refuses a system where the memory of a process cannot be read."""
    if not STATUS.is_file():
        raise LexvlError(f"{STATUS}: not there; this command measures memory through Linux's /proc, run it on Linux")


def read_peak() -> int:
    """The greatest resident memory of this process so far."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def take_turns(cells: Mapping[Key, Callable[[], Any]], rounds: int, warm_up: int = 0) -> dict[Key, list[Any]]:
    """The results of all cells, one per round; the first rounds warm caches and Java's compiler and do not count."""
    results = [{key: measure() for key, measure in cells.items()} for _ in range(warm_up + rounds)]
    return {key: [each[key] for each in results[warm_up:]] for key in cells}


def run_child() -> None:
    """The main function of a child: runs the function that its command line names, then answers requests."""
    name, answers = sys.argv[1], os.fdopen(int(sys.argv[2]), "wb")

    def respond(act: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        value = None
        try:
            value = act(**arguments)
            result = value.facts if isinstance(value, Ready) else value
            answer = {"result": result, "peak_bytes": read_peak()}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": str(error) or type(error).__name__}
        answers.write(orjson.dumps(answer) + b"\n")
        answers.flush()
        return value

    module, _, function = name.partition(":")
    lines = sys.stdin.buffer
    value = respond(getattr(import_module(module, __package__), function), orjson.loads(lines.readline()))
    if isinstance(value, Ready):
        for line in lines:
            respond(value.answer, orjson.loads(line))


class Worker(AbstractContextManager["Worker"]):
    """A child that stays; `facts` is its first answer, `peak_bytes` its greatest resident memory so far."""

    def __init__(self, function: str, environ: Mapping[str, str] | None = None, **arguments: Any):
        self.function = function
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        reading, writing = os.pipe()
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD, function, str(writing)],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[writing],
            env={**os.environ, **(environ or {})},
        )
        os.close(writing)
        self.answers = os.fdopen(reading, "rb")
        try:
            self.facts = self.request(**arguments)
        except BaseException:
            self.close()
            raise

    def request(self, **arguments: Any) -> Any:
        """Sends one request and returns its answer."""
        assert self.child.stdin is not None
        # A child that has ended says why by the answer that it does not give.
        with suppress(BrokenPipeError):
            self.child.stdin.write(orjson.dumps(arguments, default=str) + b"\n")
            self.child.stdin.flush()
        line = self.answers.readline()
        if not line:
            self.log.seek(0)
            lines = self.log.read().decode(errors="replace").strip().splitlines()
            raise LexvlError(f"{self.function} ended without an answer: {lines[-1] if lines else 'it printed nothing'}")
        answer = orjson.loads(line)
        if "error" in answer:
            raise LexvlError(f"{self.function}: {answer['error']}")
        self.peak_bytes = answer["peak_bytes"]
        return answer["result"]

    def close(self) -> float:
        """Ends the child; returns the user and system seconds of its process and of those that it waited for."""
        assert self.child.stdin is not None
        if self.child.returncode is not None:
            return 0.0
        with suppress(BrokenPipeError):
            self.child.stdin.close()
        _, status, usage = os.wait4(self.child.pid, 0)
        # Already waited for: subprocess must not wait again.
        self.child.returncode = os.waitstatus_to_exitcode(status)
        self.answers.close()
        self.log.close()
        return usage.ru_utime + usage.ru_stime

    def __exit__(self, *_: object) -> None:
        self.close()


def run_once(function: str, environ: Mapping[str, str] | None = None, **arguments: Any) -> Outcome:
    """Runs `function(**arguments)` in a child of its own and waits for its end."""
    started = time.perf_counter()
    worker = Worker(function, environ, **arguments)
    cpu_s = worker.close()
    return Outcome(worker.facts, cpu_s, time.perf_counter() - started, worker.peak_bytes)
