"""`RayRunner`: the processes of a Ray cluster encode, index and search the parts of a corpus.

Work on a part is a task; a worker is an actor. What either returns or raises is an `Answer`, so that an error has its
class and its line in the process of the command. A task whose process dies, or whose work fails for a reason that
another try may not have, is repeated; an actor whose process dies is made again by Ray, on any machine that is left.

The command connects to a cluster, or starts one on this machine, and compares its machines.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini import __version__
from lexvl_anserini.ground.errors import (
    LONGEST_REASON,
    CheckpointError,
    DataError,
    LexvlError,
    MissingExtra,
    UsageError,
    describe_error,
)
from lexvl_anserini.ground.machine import find_version
from lexvl_plugins.cluster.options import RunnerOptions
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

# Bytes of the object store of a new cluster: it holds requests and answers, which are small.
OBJECT_STORE = 100 << 20

# Seconds that a connection, and the answer of a machine, may take.
CONNECT_S, PROBE_S = 10.0, 120.0

# Variables of this package that its processes on other machines take over, unless they have their own.
FORWARDED = ("LEXVL_DATA", "LEXVL_JAVA_OPTIONS", "LEXVL_JAVA_HEAP", "LEXVL_POSTINGS")

# Signals that Java's machine handles, and room for `struct sigaction` of any system.
OF_JAVA = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
SIGACTION_BYTES = 512

# Ray on one machine keeps to the loopback interface if this is 0, as it does by itself on macOS.
BEYOND_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class Surroundings(NamedTuple):
    """What a process on another machine takes over from this one: the working folder, and some variables."""

    folder: str
    variables: Mapping[str, str]

    @classmethod
    def read(cls) -> Surroundings:
        """The surroundings of this process."""
        return cls(str(Path.cwd()), {name: os.environ[name] for name in FORWARDED if name in os.environ})

    def take_over(self) -> None:
        """Works as the other process from now on, as far as this machine has the folder."""
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)
        if Path(self.folder).is_dir():
            os.chdir(self.folder)


class NodeFacts(NamedTuple):
    """Versions and processor of a machine of the cluster, and whether it has the working folder of the command."""

    lexvl: str
    torch: str | None
    cpu: str
    folder: bool


def find_facts(folder: str) -> NodeFacts:
    """The facts of the machine that calls this."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(names, platform.processor() or platform.machine())
    return NodeFacts(__version__, find_version("torch"), processor, Path(folder).is_dir())


def import_ray(new: bool) -> Any:
    """The library; for a new cluster in the form that listens on the loopback interface only, and checks a token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if new:
        os.environ.setdefault(BEYOND_LOOPBACK, "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("--runner ray", "ray") from error
    return ray


def keep_stdout(ray: Any) -> None:
    """Ray prints news of machines on stdout, which is for results of commands; they become lines of our log."""

    def logged(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            log.debug("ray: %s", line)

    # Ray has no option for it; a test fails where a new version of Ray prints elsewhere.
    ray._private.worker.print_to_stdstream = logged


def connect(chosen: RunnerOptions) -> tuple[Any, bool]:
    """Connects; returns the library, and whether this call made the connection."""
    address = chosen.address or os.environ.get("RAY_ADDRESS") or "local"
    ray = import_ray(address == "local")
    if ray.is_initialized():
        return ray, False
    keep_stdout(ray)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address == "local":
        cores = chosen.workers or os.cpu_count() or 1
        options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    elif address != "auto":
        refuse_open(address, chosen.insecure)
        try:  # Ray itself would wait for a minute
            socket.create_connection(parse_address(address), CONNECT_S).close()
        except OSError as error:
            raise LexvlError(describe_missing(address, error.strerror or str(error))) from error
    with name_errors(address), keep_signals():
        ray.init(address=address, **options)
    if address == "auto":
        try:
            refuse_open(ray.get_runtime_context().gcs_address, chosen.insecure)
        except UsageError:
            disconnect(ray)
            raise
    return ray, True


def disconnect(ray: Any) -> None:
    """Ends the connection, and a cluster that it started."""
    with keep_signals():
        ray.shutdown()


@contextmanager
def keep_signals() -> Iterator[None]:
    """Signals have the same handlers after the block.

    Ray takes over SIGSEGV when it connects and gives it back to the system when it ends. A Java machine in this process
    uses this signal in its normal work, so that the process would crash.
    """
    system = ctypes.CDLL(None)
    actions = {number: ctypes.create_string_buffer(SIGACTION_BYTES) for number in OF_JAVA}
    for number, action in actions.items():
        system.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in actions.items():
            system.sigaction(number, action, None)


@contextmanager
def name_errors(address: str) -> Iterator[None]:
    """Turns Ray's errors about a connection into one line."""
    try:
        yield
    except LexvlError:
        raise
    except Exception as error:
        text, reason = str(error), describe_error(error)
        if "ersion mismatch" in text:
            theirs = " ".join(line.strip() for line in text.splitlines() if "Ray:" in line or "Python:" in line)
            why = f"{address}: the cluster has other versions of Ray or Python ({theirs or text}); install the same"
        elif isinstance(error, ConnectionError) and address == "auto":
            why = describe_missing(address, "none is running on this machine")
        elif address == "local":
            why = f"local: Ray did not start on this machine ({reason}); run it again"
        else:
            remedy = "run this command on a machine of the cluster, with its token"
            tokens = "RAY_AUTH_MODE=token and ~/.ray/auth_token or RAY_AUTH_TOKEN"
            why = f"{address}: something listens there, but no connection ({reason}); {remedy} ({tokens})"
        raise LexvlError(why) from error


def describe_missing(address: str, reason: str) -> str:
    """The error of an address without a cluster."""
    remedy = "start one with `ray start --head`, or leave out --address for a new one on this machine"
    return f"{address}: no Ray cluster there ({reason}); {remedy}"


def parse_address(address: str) -> tuple[str, int]:
    """`10.0.0.1:6379` -> `("10.0.0.1", 6379)`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise UsageError(f"--address {address!r}: expected HOST:PORT of a cluster (10.0.0.1:6379), or auto")
    return host.strip("[]"), int(port)


def refuse_open(address: str, insecure: bool) -> None:
    """Refuses a cluster on a network without token authentication, where anyone can run code."""
    host, _ = parse_address(address)
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if insecure or loopback or os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return
    remedy = "start it and this command with RAY_AUTH_MODE=token, or give --insecure"
    raise UsageError(f"{address}: without a token, anyone on that network can run code on the cluster; {remedy}")


def give_reason(error: BaseException) -> str:
    """Ray's error as part of one line; of an error within a process of Ray, the last line of what it prints."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", str(cause)).splitlines() if line.strip()]
    if len(lines) > 1 and any("Traceback" in line for line in lines):
        return lines[-1][:LONGEST_REASON]
    return describe_error(cause)


def probe(ray: Any, nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, NodeFacts]]:
    """What each machine has, by its name and the beginning of its id."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote, pending = ray.remote(find_facts), {}
    for node in nodes:
        placement = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        task = remote.options(num_cpus=0, max_retries=0, scheduling_strategy=placement)
        pending[f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"] = task.remote(str(Path.cwd()))
    for name, answer in pending.items():
        try:
            yield name, NodeFacts(*ray.get(answer, timeout=PROBE_S))
        except ray.exceptions.GetTimeoutError as error:
            why = f"no answer in {PROBE_S:.0f} s; restart Ray there"
            raise LexvlError(f"machine {name} of the cluster: {why}") from error
        except ray.exceptions.RayError as error:
            why = f"lexvl-anserini {__version__} cannot be used there ({give_reason(error)}); install it there"
            raise LexvlError(f"machine {name} of the cluster: {why}") from error


def check_nodes(facts: Mapping[str, NodeFacts], folder: str) -> list[str]:
    """Compares the machines of a cluster with this one; returns warnings."""
    here, warnings = find_facts(folder), []
    for name, node_facts in facts.items():
        for package, own, other in zip(("lexvl-anserini", "torch"), here[:2], node_facts[:2], strict=True):
            if own != other:
                versions = f"has {package} {other or '(none)'}, this one {own or '(none)'}"
                raise LexvlError(f"machine {name} of the cluster {versions}; install the same version on all")
        if node_facts.cpu != here.cpu:
            processors = f"another processor ({node_facts.cpu}; here {here.cpu})"
            warnings.append(f"machine {name} has {processors}: the last bits of its vectors may differ")
        if not node_facts.folder:
            warnings.append(f"machine {name} has no folder {folder}: give absolute paths, or URLs")
    return warnings


class RayRunner(Runner):
    """Connects to a cluster, or starts one on this machine that ends with `close`."""

    def __init__(self, options: RunnerOptions):
        self.options = options
        self.ray, self.connected_here = connect(options)
        try:
            nodes = [node for node in self.ray.nodes() if node["Alive"]]
            self.address: str = self.ray.get_runtime_context().gcs_address
            self.cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
            gpus = [node["Resources"].get("GPU", 0) for node in nodes]
            if max(gpus) < options.gpus or not any(self.cores):
                needed, there = f"{options.gpus:g} GPUs and a core", ", ".join(f"{gpu:g}" for gpu in gpus)
                problem = f"no machine of the cluster has {needed}; the machines have {there} GPUs"
                raise UsageError(f"{self.address}: {problem}")
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
        endless = {"max_restarts": -1, "max_task_retries": -1}
        actor = self.ray.remote(HeldObject).options(num_cpus=0, scheduling_strategy="SPREAD", **endless)
        around = Surroundings.read()
        workers = [_RayWorker(self, actor.remote(make, argument, around)) for argument in arguments]
        try:
            for pending in [_RayPending(self, worker.actor.get_outcome.remote()) for worker in workers]:
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
