"""Children that are measured: each a fresh interpreter, so that nothing an earlier one left counts.

A child runs one function of this package, named `module:function`. `run_once` measures a function from start to exit
of its process; a `Worker` stays, and answers requests, so that systems can take turns without starting anew.

Peak memory is the child's own high-water mark (VmHWM): the figure that `wait4` gives starts from what the parent
held when it forked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import orjson

from lexvl_anserini.errors import LexvlError

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


class Outcome(NamedTuple):
    """What a child returned and cost.

    cpu_s       user and system time of the process and of the children it waited for
    wall_s      from its start to its end
    peak_bytes  greatest resident memory of the process
    """

    result: Any
    cpu_s: float
    wall_s: float
    peak_bytes: int


class Ready(NamedTuple):
    """What the function of a worker returns: something to tell at once, and what answers requests."""

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

    def told(self) -> dict[str, float]:
        """As a child answers."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}


def resident_bytes(field: str = "VmHWM") -> int:
    """Resident memory of this process: the peak (VmHWM) or the present (VmRSS)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Lowers the peak of this process to what it holds now, so that the next peak is that of what follows."""
    CLEAR.write_text("5")


def start(function: str, arguments: Mapping[str, Any], log: IO[bytes], environ: Mapping[str, str]) -> tuple[Any, Any]:
    """Starts a child on `function`; returns the process and the stream of its answers."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "eval.efficiency.child", function, str(writing)],
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
    """One JSON line; a child that is gone tells why when it is asked for its answer."""
    try:
        stream.write(orjson.dumps(message, default=str) + b"\n")
        stream.flush()
    except BrokenPipeError:
        return


def receive(answers: IO[bytes], function: str, log: IO[bytes]) -> Any:
    """The next answer of a child.

    Raises:
        LexvlError: the child raised, or ended without an answer; the message holds the last it said.
    """
    line = answers.readline()
    if not line:
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
        raise LexvlError(f"{function} ended without an answer: {said[-1] if said else 'it said nothing'}")
    answer = orjson.loads(line)
    if "error" in answer:
        raise LexvlError(f"{function}: {answer['error']}")
    return answer["result"]


def run_once(function: str, environ: Mapping[str, str] | None = None, **arguments: Any) -> Outcome:
    """Runs `function(**arguments)` in a child of its own and waits for its end.

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
                # Already waited for: subprocess must not look for it again.
                child.returncode = 0
        wall_s = time.perf_counter() - started
    return Outcome(answer["value"], usage.ru_utime + usage.ru_stime, wall_s, answer["peak_bytes"])


class Worker:
    """A child that stays: `function(**arguments)` there returns `Ready`, which answers every request.

    about       what it told when it was ready
    peak_bytes  its greatest resident memory so far

    Raises:
        LexvlError: the function raised, or the child died.
    """

    def __init__(self, function: str, environ: Mapping[str, str] | None = None, **arguments: Any):
        self.function = function
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self.child, self.answers = start(function, arguments, self.log, environ or {})
        try:
            # What it told when it was ready.
            self.about = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> Any:
        """One request and its answer.

        Raises:
            LexvlError: the child raised, or died.
        """
        send(self.child.stdin, request)
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
