"""Where the parts of a corpus are encoded, indexed and searched: the protocol of runners, and the one that is in use.

A runner is one class, with one row in `RUNNERS`. Its caller gives it functions of modules and plain records, which can
be sent to another process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from lexvl_anserini.ground.errors import LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.registry import import_home
from lexvl_plugins.cluster.options import RunnerOptions

Result = TypeVar("Result")

# Failed parts that an error names.
NAMED = 3

RUNNERS: Mapping[str, str] = {"local": f"{__name__}:LocalRunner", "ray": "lexvl_plugins.cluster.ray_cluster:RayRunner"}


class FailedPart(NamedTuple):
    """The reason why the work on one part failed, in one line."""

    reason: str


class Pending(Protocol):
    """A call whose result may not be there yet."""

    def result(self) -> Any:
        """Waits for the result; raises what the call raised, or that its process is lost for good."""
        ...


class RunnerWorker(Protocol):
    """An object that lives where the runner put it, in another process or in this one."""

    def call(self, method: str, *arguments: Any) -> Pending:
        """Begins a call of one of its methods; calls of one worker are answered in their order."""
        ...

    def close(self) -> None:
        """Ends the object and its process."""
        ...


class Runner(Protocol):
    """Where work is done; `places` workers can be open at the same time."""

    places: int

    @abstractmethod
    def __init__(self, options: RunnerOptions) -> None:
        """Connects; UsageError for options that do not fit, LexvlError for a cluster that is none or does not fit."""

    @abstractmethod
    def run(
        self, work: Callable[[int], Result], numbers: Iterable[int], cores: int = 1
    ) -> Iterator[tuple[int, Result | FailedPart]]:
        """The result of each number, in the order in which they are ready.

        A failure of one does not end the others: it is yielded too. Memory does not grow with the numbers; the work on
        one of them uses `cores`.
        """

    @abstractmethod
    def start_workers(self, make: Callable[[Any], Any], arguments: Sequence[Any]) -> Sequence[RunnerWorker]:
        """One object for each argument, `make(argument)`; one whose process died is made again, and repeats calls."""

    @abstractmethod
    def close(self) -> None:
        """Disconnects, and ends what this runner started."""


class Answer(NamedTuple):
    """What a call returned or raised."""

    value: Any
    error: Exception | None = None

    def result(self) -> Any:
        """The value."""
        if self.error is not None:
            raise self.error
        return self.value


class _LocalWorker(RunnerWorker):
    def __init__(self, held: Any):
        self.held = held

    def call(self, method: str, *arguments: Any) -> Pending:
        try:
            return Answer(getattr(self.held, method)(*arguments))
        except Exception as error:
            return Answer(None, error)

    def close(self) -> None:
        self.held.close()


class LocalRunner(Runner):
    """Does everything in this process, one part after the other."""

    places = 1

    def __init__(self, options: RunnerOptions = RunnerOptions()):
        """Needs no options."""

    def run(
        self, work: Callable[[int], Result], numbers: Iterable[int], cores: int = 1
    ) -> Iterator[tuple[int, Result | FailedPart]]:
        """In the order of the numbers."""
        for number in numbers:
            try:
                yield number, work(number)
            except LexvlError as error:
                yield number, FailedPart(str(error))

    def start_workers(self, make: Callable[[Any], Any], arguments: Sequence[Any]) -> Sequence[RunnerWorker]:
        """Objects in this process."""
        return [_LocalWorker(make(argument)) for argument in arguments]

    def close(self) -> None:
        """Nothing is open."""


_current: ContextVar[Runner | None] = ContextVar("runner", default=None)


def get_runner() -> Runner:
    """The runner that is in use: that of `run_on`, else this process."""
    return _current.get() or LocalRunner()


@contextmanager
def run_on(options: RunnerOptions) -> Iterator[Runner]:
    """Work on parts is done by this runner within the block."""
    if options.runner not in RUNNERS:
        raise UnknownName("runner", options.runner, RUNNERS)
    if options.runner == "local" and options != RunnerOptions():
        raise UsageError("--address, --workers, --gpus, --retries and --insecure are for --runner ray")
    runner: Runner = import_home(RUNNERS[options.runner])(options)
    token = _current.set(runner)
    try:
        yield runner
    finally:
        _current.reset(token)
        runner.close()


def run_all(
    runner: Runner, work: Callable[[int], Result], numbers: Iterable[int], name: Callable[[int], str], cores: int = 1
) -> Iterator[tuple[int, Result]]:
    """The results of all numbers, in the order in which they are ready; the work on one of them uses `cores`.

    If some fail, an error names the first of them (by `name`) with their reasons, after the others are finished.
    """
    failed: dict[int, str] = {}
    done = 0
    for number, result in runner.run(work, numbers, cores):
        if isinstance(result, FailedPart):
            failed[number] = result.reason
        else:
            done += 1
            yield number, result
    if failed:
        reasons = "; ".join(f"{name(number)}: {failed[number]}" for number in islice(sorted(failed), NAMED))
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        others = ", the others are finished and kept" if done else ""
        share = f"{len(failed)} of {done + len(failed)} parts failed"
        raise LexvlError(f"{share}{others}: {reasons}{more}; the same command goes on with these")
