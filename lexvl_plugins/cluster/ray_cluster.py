"""`RayRunner`: the processes of a Ray cluster encode, index and search the parts of a corpus.

Work on a part is a task; a worker is an actor. What either returns or raises is an `Answer`, so that an error has its
class and its line in the process of the command. A task whose process dies, or whose work fails for a reason that
another try may not have, is repeated; an actor whose process dies is made again by Ray, on any machine that is left.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import CheckpointError, DataError, LexvlError, UsageError, describe_error
from lexvl_plugins.cluster.options import RunnerOptions
from lexvl_plugins.cluster.ray_connect import Surroundings, check_nodes, connect, disconnect, give_reason, probe
from lexvl_plugins.cluster.runners import Answer, FailedPart, Pending, Result, Runner, RunnerWorker

log = logging.getLogger(__name__)

# Errors of the input, which fail again at every try.
FINAL = (DataError, UsageError, CheckpointError)

# Tasks that are sent for each process: one that it works on, and one that it finds when it is done.
SENT = 2

# Seconds before the first further try of a part, doubled at each other one: a lost machine may hold locks for a moment.
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0

# Seconds without an answer after which a line says what is awaited.
TELL_S = 60.0


class RayRunner(Runner):
    """Connects to a cluster, or starts one on this machine that ends with `close`.

    Raises:
        MissingExtra: Ray is not installed.
        UsageError: an open cluster on a network, or no machine with that many GPUs.
        LexvlError: no cluster at the address, or one that does not fit.
    """

    def __init__(self, options: RunnerOptions):
        self.options = options
        self.ray, self.connected_here = connect(options)
        try:
            nodes = [node for node in self.ray.nodes() if node["Alive"]]
            self.address: str = self.ray.get_runtime_context().gcs_address
            self.cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
            gpus = [node["Resources"].get("GPU", 0) for node in nodes]
            if max(gpus) < options.gpus or not any(self.cores):
                raise UsageError(
                    f"{self.address}: no machine of the cluster has {options.gpus:g} GPUs and a core; the machines "
                    f"have {', '.join(f'{gpu:g}' for gpu in gpus)} GPUs"
                )
            for warning in check_nodes(dict(probe(self.ray, nodes)), str(Path.cwd())):
                log.warning("%s", warning)
        except BaseException:
            self.close()
            raise
        self.places = options.workers or sum(self.cores)
        log.info("ray at %s: machines %d, processes at a time %d", self.address, len(nodes), self.places)

    def run(
        self, work: Callable[[int], Result], numbers: Iterable[int], cores: int = 1
    ) -> Iterator[tuple[int, Result | FailedPart]]:
        """Few tasks are sent at a time; each is sent again as the options say."""
        resources = {"num_cpus": min(cores, max(self.cores)), "num_gpus": self.options.gpus, "max_retries": 0}
        task = self.ray.remote(do_part).options(**resources)
        shared = self.ray.put((work, Surroundings.read()))
        coming = iter(numbers)
        limit = self.options.workers or SENT * max(1, sum(max(1, each // cores) for each in self.cores if each))
        sent: dict[Any, tuple[int, int]] = {}  # the number of each task, and how many of its tries failed

        def send(number: int, failed: int) -> None:
            pause = min(PAUSE_S * 2 ** (failed - 1), LONGEST_PAUSE_S) if failed else 0.0
            sent[task.remote(shared, number, pause)] = number, failed

        try:
            while True:
                for number in islice(coming, max(0, limit - len(sent))):
                    send(number, 0)
                if not sent:
                    return
                ready = self._wait(list(sent), "parts")
                (number, failed), answer = sent.pop(ready), self._read_answer(ready)
                if answer.error is None:
                    yield number, answer.value
                elif failed < self.options.retries and not isinstance(answer.error, FINAL):
                    log.warning("part %d is tried again: %s", number, answer.error)
                    send(number, failed + 1)
                else:
                    yield number, FailedPart(str(answer.error))
        finally:
            if self.ray.is_initialized():
                for ref in sent:
                    self.ray.cancel(ref, force=True)

    def start_workers(self, make: Callable[[Any], Any], arguments: Sequence[Any]) -> Sequence[RunnerWorker]:
        """Actors on all machines; they reserve no core, so that the machines that are left have room for them."""
        actor = self.ray.remote(HeldObject).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        )
        around = Surroundings.read()
        workers = [_RayWorker(self, actor.remote(make, argument, around)) for argument in arguments]
        try:
            for pending in [worker.wait() for worker in workers]:
                pending.result()
        except BaseException:
            for worker in workers:
                worker.close()
            raise
        return workers

    def close(self) -> None:
        """Disconnects; a cluster that this runner started ends."""
        if self.connected_here:
            disconnect(self.ray)

    def _wait(self, refs: list[Any], what: str) -> Any:
        """The first of the calls that is ready."""
        while True:
            ready, _ = self.ray.wait(refs, num_returns=1, timeout=TELL_S)
            if ready:
                return ready[0]
            alive = sum(node["Alive"] for node in self.ray.nodes())
            log.info("ray at %s: waiting for %s (%d sent, %d machines)", self.address, what, len(refs), alive)

    def _read_answer(self, ref: Any) -> Answer:
        """The answer of a call that is ready; an error where its process died."""
        try:
            return Answer(*self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            return Answer(None, LexvlError(f"its process or machine is lost ({give_reason(error)})"))


class _RayPending(Pending):
    def __init__(self, runner: RayRunner, ref: Any):
        self.runner, self.ref = runner, ref

    def result(self) -> Any:
        # Ray repeats the call if the actor's process dies meanwhile.
        return self.runner._read_answer(self.runner._wait([self.ref], "the answer of a worker")).result()


class _RayWorker(RunnerWorker):
    """An actor that holds an object."""

    def __init__(self, runner: RayRunner, actor: Any):
        self.runner, self.actor = runner, actor

    def wait(self) -> _RayPending:
        """The outcome of making the object."""
        return _RayPending(self.runner, self.actor.get_outcome.remote())

    def call(self, method: str, *arguments: Any) -> _RayPending:
        return _RayPending(self.runner, self.actor.call.remote(method, arguments))

    def close(self) -> None:
        """Ends the process of the actor."""
        if self.runner.ray.is_initialized():
            with suppress(self.runner.ray.exceptions.RayError):
                self.runner.ray.get(self.actor.close.remote(), timeout=TELL_S)
            self.runner.ray.kill(self.actor)


class HeldObject:
    """What an actor is: an object that is made in its process, and again in a new process if that one dies."""

    def __init__(self, make: Callable[[Any], Any], argument: Any, around: Surroundings):
        around.take_over()
        self.answer = call_safely(make, argument)

    def get_outcome(self) -> Answer:
        """The error with which the object could not be made, if there is one."""
        return Answer(None, self.answer.error)

    def call(self, method: str, arguments: Sequence[Any]) -> Answer:
        """The answer of one of its methods, or the error with which it could not be made."""
        return self.answer if self.answer.error else call_safely(getattr(self.answer.value, method), *arguments)

    def close(self) -> None:
        """Closes the object."""
        if self.answer.error is None:
            self.answer.value.close()


def do_part(shared: tuple[Callable[[int], Any], Surroundings], number: int, pause: float) -> Answer:
    """Does the work on a part in this process, after a pause of seconds."""
    work, around = shared
    time.sleep(pause)
    around.take_over()
    return call_safely(work, number)


def call_safely(work: Callable[..., Any], *arguments: Any) -> Answer:
    """What the work returns, or its error, whose line ends with the name of this machine."""
    try:
        return Answer(work(*arguments))
    except LexvlError as error:
        error.args = (f"{error} (on {socket.gethostname()})",)
        return Answer(None, error)
    except Exception as error:
        logging.getLogger("lexvl_anserini").exception("error")
        return Answer(None, LexvlError(f"{describe_error(error)} (on {socket.gethostname()})"))
