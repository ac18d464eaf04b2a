"""The protocol of runners, and the runner that is in use.

A runner is one class, with one row in `registry.RUNNERS`. Its caller gives it functions of modules and plain records,
which can be sent to another process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.registry import import_home

Result = TypeVar("Result")

# Failed parts that an error names.
NAMED = 3


class FailedPart(NamedTuple):
    """The reason why the work on one part failed, in one line."""

    reason: str


@dataclass(frozen=True)
class RunnerSettings:
    """What a user can choose about a runner; the runner in this process has no choice.

    address   of a cluster that is running; None for the one that the environment names, or a new one on this machine
    workers   processes at the same time; None for as many as the cluster has room for
    gpus      GPUs of each process that encodes
    retries   further tries of a part whose process died or whose work failed
    insecure  a cluster may be reached over the network without a token
    """

    address: str | None = None
    workers: int | None = None
    gpus: float = 0.0
    retries: int = 3
    insecure: bool = False


class Pending(Protocol):
    """A call whose result may not be there yet."""

    def result(self) -> Any:
        """Waits for the result.

        Raises:
            LexvlError: what the call raised; or its process is lost and cannot be started again.
        """
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
    """Where work is done.

    places  workers that can be open at the same time
    """

    places: int

    @abstractmethod
    def __init__(self, settings: RunnerSettings) -> None:
        """Connects.

        Raises:
            UsageError: settings that do not fit.
            LexvlError: no cluster at the address, one of another version, or one without this package.
        """

    @abstractmethod
    def results(
        self, work: Callable[[int], Result], numbers: Iterable[int], cores: int = 1
    ) -> Iterator[tuple[int, Result | FailedPart]]:
        """The result of each number, in the order in which they are ready.

        A failure of one does not end the others: it is yielded too. Memory does not grow with the numbers.

        Args:
            cores: that the work on one number uses.
        """

    @abstractmethod
    def workers(self, make: Callable[[Any], Any], arguments: Sequence[Any]) -> Sequence[RunnerWorker]:
        """One object for each argument, `make(argument)`; one whose process died is made again and repeats its calls.

        Raises:
            LexvlError: what `make` raised.
        """

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


class LocalWorker:
    """An object in this process."""

    def __init__(self, held: Any):
        self.held = held

    def call(self, method: str, *arguments: Any) -> Pending:
        """Calls the method at once."""
        try:
            return Answer(getattr(self.held, method)(*arguments))
        except Exception as error:
            return Answer(None, error)

    def close(self) -> None:
        """Closes the object."""
        self.held.close()


class LocalRunner(Runner):
    """Does everything in this process, one part after the other."""

    places = 1

    def __init__(self, settings: RunnerSettings = RunnerSettings()):
        """Needs no settings."""

    def results(
        self, work: Callable[[int], Result], numbers: Iterable[int], cores: int = 1
    ) -> Iterator[tuple[int, Result | FailedPart]]:
        """In the order of the numbers."""
        for number in numbers:
            try:
                yield number, work(number)
            except LexvlError as error:
                yield number, FailedPart(str(error))

    def workers(self, make: Callable[[Any], Any], arguments: Sequence[Any]) -> Sequence[RunnerWorker]:
        """Objects in this process."""
        return [LocalWorker(make(argument)) for argument in arguments]

    def close(self) -> None:
        """Nothing is open."""


_THIS_PROCESS = LocalRunner()
_current: ContextVar[Runner | None] = ContextVar("runner", default=None)


RUNNERS: Mapping[str, str] = {
    "local": f"{__name__}:LocalRunner",
    "ray": "lexvl_plugins.cluster.ray_cluster:RayRunner",
}


def current_runner() -> Runner:
    """The runner that is in use: that of `running_on`, else this process."""
    return _current.get() or _THIS_PROCESS


@contextmanager
def running_on(name: str, settings: RunnerSettings = RunnerSettings()) -> Iterator[Runner]:
    """Work on parts is done by this runner (a row of `RUNNERS`) within the block."""
    runner: Runner = import_home(RUNNERS[name])(settings)
    token = _current.set(runner)
    try:
        yield runner
    finally:
        _current.reset(token)
        runner.close()


def all_results(
    runner: Runner, work: Callable[[int], Result], numbers: Iterable[int], name: Callable[[int], str], cores: int = 1
) -> Iterator[tuple[int, Result]]:
    """The results of all numbers, in the order in which they are ready.

    Args:
        name: of a part, for the error.
        cores: that the work on one part uses.

    Raises:
        LexvlError: some failed; after the others are finished, it names the first of them with their reasons.
    """
    failed: dict[int, str] = {}
    done = 0
    for number, result in runner.results(work, numbers, cores):
        if isinstance(result, FailedPart):
            failed[number] = result.reason
        else:
            done += 1
            yield number, result
    if failed:
        reasons = "; ".join(f"{name(number)}: {failed[number]}" for number in islice(sorted(failed), NAMED))
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        others = ", the others are finished and kept" if done else ""
        raise LexvlError(
            f"{len(failed)} of {done + len(failed)} parts failed{others}: {reasons}{more}; the same command goes on "
            "with these"
        )
