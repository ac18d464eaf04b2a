"""`RayRunner` on a real cluster of several nodes on the loopback interface of this machine.

python -m pip install ray
python -m pytest tests/plugins/cluster/test_ray.py
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module

import pytest

from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UnknownName, UsageError
from lexvl_plugins.cluster import ray_cluster
from lexvl_plugins.cluster.options import RunnerOptions
from lexvl_plugins.cluster.ray_cluster import NodeFacts, RayRunner, check_nodes, find_facts, refuse_open
from lexvl_plugins.cluster.runners import FailedPart, run_all, run_on
from tests.plugins.cluster.ray_nodes import IMPORTED, kill_node, ray, running_cluster


@pytest.fixture(scope="module")
def cluster():
    """Three nodes; one that a test kills is replaced."""
    with running_cluster(gpus=1) as made:
        yield made


@pytest.fixture
def runner(cluster):
    """A runner on the cluster, which has all its nodes."""
    found = RayRunner(RunnerOptions(address=cluster.address, retries=2))
    yield found
    found.close()


def handlers():
    """The addresses of the handlers, with which the records begin."""
    actions = [ctypes.create_string_buffer(ray_cluster.SIGACTION_BYTES) for _ in ray_cluster.OF_JAVA]
    for number, action in zip(ray_cluster.OF_JAVA, actions, strict=True):
        ctypes.CDLL(None).sigaction(number, None, action)
    return [action.raw[:8] for action in actions]


def test_signals_of_java_stay(cluster):
    """Ray takes SIGSEGV over; a Java machine in this process would crash at its next safepoint."""
    before = handlers()
    made = RayRunner(RunnerOptions(address=cluster.address))
    assert handlers() == before
    made.close()
    assert handlers() == before


def squared(number):
    return number * number, os.getpid()


class Poisoned:
    """Work that notes each of its tries in a folder.

    It ends its process at part 3, raises at parts 5 and 7, and succeeds at part 9 at the second try.
    """

    def __init__(self, folder):
        self.folder = folder

    def tries(self, number):
        return len(list(self.folder.glob(f"{number}-*")))

    def __call__(self, number):
        (self.folder / f"{number}-{self.tries(number)}").touch()
        if number == 3 or number == 9 and self.tries(9) < 2:
            os._exit(9)
        if number == 5:
            raise UnknownName("encoder", "spalde", ["splade"])
        if number == 7:
            raise OSError("no such disk")
        return number


def test_results_of_all_numbers(runner):
    found = dict(runner.run(squared, range(40)))
    assert {number: value for number, (value, _) in found.items()} == {n: n * n for n in range(40)}
    assert os.getpid() not in {pid for _, pid in found.values()}
    assert runner.places == 3


def test_numbers_are_taken_as_they_are_needed(runner):
    taken = []

    def numbers():
        for number in range(1000):
            taken.append(number)
            yield number

    results = runner.run(squared, numbers())
    next(results)
    assert len(taken) <= 1 + 2 * runner.places
    results.close()
    assert dict(runner.run(squared, iter(()))) == {}


def test_a_poisoned_part_fails_and_the_others_finish(runner, tmp_path):
    work = Poisoned(tmp_path)
    found = dict(runner.run(work, range(12)))
    failed = {number: found.pop(number) for number in (3, 5, 7)}
    assert found == {number: number for number in range(12) if number not in failed}
    assert all(isinstance(one, FailedPart) for one in failed.values())
    assert failed[3].reason.startswith("its process or machine is lost (WorkerCrashedError")
    assert failed[5].reason.startswith("unknown encoder 'spalde'; did you mean 'splade'?")
    assert failed[7].reason == f"OSError: no such disk (on {socket.gethostname()})"
    assert {number: work.tries(number) for number in (3, 5, 7, 9, 0)} == {3: 3, 5: 1, 7: 3, 9: 2, 0: 1}
    with pytest.raises(LexvlError, match="3 of 12 parts failed.*part three: its process"):
        list(run_all(runner, work, range(12), lambda n: "part three" if n == 3 else str(n)))


class Shelf:
    """An object in another process."""

    def __init__(self, argument):
        if argument == "missing":
            raise ArtefactError("no such shelf")
        self.argument = argument

    def pid(self):
        return os.getpid()

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def holding(self, *more):
        return (self.argument, *more)

    def slow(self):
        time.sleep(1)
        return self.argument

    def broken(self):
        raise DataError("line 3: no id")

    def close(self):
        pass


def test_workers_answer_and_keep_the_class_of_errors(runner):
    workers = runner.start_workers(Shelf, ["a", "b"])
    assert [one.call("holding", 1, 2).result() for one in workers] == [("a", 1, 2), ("b", 1, 2)]
    with pytest.raises(DataError, match=r"^line 3: no id \(on "):
        workers[0].call("broken").result()
    for one in workers:
        one.close()
    with pytest.raises(ArtefactError, match="no such shelf"):
        runner.start_workers(Shelf, ["a", "missing"])


def test_a_worker_whose_process_dies_is_made_again(runner):
    [worker] = runner.start_workers(Shelf, ["a"])
    process = worker.call("pid").result()
    pending = worker.call("slow")
    os.kill(process, signal.SIGKILL)
    assert pending.result() == "a"
    assert worker.call("holding").result() == ("a",)
    worker.close()


def test_workers_survive_their_machine(cluster, runner, capfd):
    workers = runner.start_workers(Shelf, list("abcdef"))
    homes = [one.call("node").result() for one in workers]
    assert len(set(homes)) > 1
    lost = next(node for node in cluster.worker_nodes if node.node_id in homes)
    pending = [one.call("slow") for one in workers]
    kill_node(cluster, lost)
    assert [one.result() for one in pending] == list("abcdef")
    assert [one.call("holding").result() for one in workers] == [(name,) for name in "abcdef"]
    assert capfd.readouterr().out == "", "stdout is for the results of a command"
    for one in workers:
        one.close()


def test_the_private_function_of_ray_is_where_it_was():
    assert hasattr(ray._private.worker, "print_to_stdstream"), (
        "Ray has no ray._private.worker.print_to_stdstream any more: look how it prints news of machines now, "
        "and adapt ray_cluster.keep_stdout"
    )


def test_options_that_do_not_fit(cluster):
    with pytest.raises(UsageError, match="no machine of the cluster has 2 GPUs"):
        RayRunner(RunnerOptions(address=cluster.address, gpus=2))
    with pytest.raises(UsageError, match="expected HOST:PORT"), run_on(RunnerOptions("ray", address="here")):
        pass
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(LexvlError, match=f"{address}: no Ray cluster there .*ray start --head"):
            RayRunner(RunnerOptions(address=address))


def test_an_open_cluster_is_refused(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        refuse_open(address, insecure=False)
    for address in ("10.0.0.1:1", "head:1"):
        with pytest.raises(UsageError, match=f"{address}: without a token"):
            refuse_open(address, insecure=False)
        refuse_open(address, insecure=True)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    refuse_open("head:1", insecure=False)


def test_machines_of_other_versions(tmp_path):
    here = find_facts(str(tmp_path))
    assert check_nodes({"a": here}, str(tmp_path)) == []
    for change, held in (({"lexvl": "0.0.1"}, "lexvl-anserini 0.0.1"), ({"torch": None}, r"torch \(none\)")):
        with pytest.raises(LexvlError, match=f"machine b of the cluster has {held}, this one"):
            check_nodes({"a": here, "b": here._replace(**change)}, str(tmp_path))
    other = NodeFacts(here.lexvl, here.torch, "Abacus 3", False)
    [cpu, folder] = check_nodes({"b": other}, "gone")
    assert cpu.startswith("machine b has another processor (Abacus 3; here") and folder.startswith("machine b has no")


def test_a_machine_without_the_package(cluster, monkeypatch):
    def facts(folder):
        return import_module("no_such_package")

    monkeypatch.setattr(ray_cluster, "find_facts", facts)
    with pytest.raises(LexvlError, match="cannot be used there .*no_such_package.*install it there"):
        RayRunner(RunnerOptions(address=cluster.address))


NONE_FOUND = ConnectionError("Could not find any running Ray instance.")
TOO_SLOW = Exception("The current node timed out during startup.")  # as Ray raises it after 30 s
OTHER_RAY = RuntimeError("Version mismatch: started with:\n    Ray: 1.0\n    Python: 3.9\nThis one:\n    Ray: 2.0\n")


@pytest.mark.parametrize(
    "address,error,expected",
    [
        ("127.0.0.1:1", NONE_FOUND, "^127.0.0.1:1: something listens there, but no connection .*with its token"),
        ("local", TOO_SLOW, "^local: Ray did not start on this machine .*timed out"),
        ("auto", NONE_FOUND, "^auto: no Ray cluster there .*ray start --head"),
        ("127.0.0.1:1", OTHER_RAY, "other versions of Ray or Python .*Ray: 1.0 Python: 3.9 Ray: 2.0"),
    ],
    ids=["another token", "slow start", "no cluster", "another version"],
)
def test_errors_of_a_connection_are_one_line(address, error, expected):
    with pytest.raises(LexvlError, match=expected), ray_cluster.name_errors(address):
        raise error


def gpus(number):
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_work_gets_its_gpu(cluster):
    """The first node says that it has one."""
    made = RayRunner(RunnerOptions(address=cluster.address, gpus=1))
    assert dict(made.run(gpus, range(4))) == dict.fromkeys(range(4), "0")
    made.close()


ALONE = """
import os, sys
from lexvl_plugins.cluster.options import RunnerOptions
from lexvl_plugins.cluster.runners import run_on
if __name__ == "__main__":
    with run_on(RunnerOptions("ray", workers=2)) as runner:
        print(runner.address, runner.places, sorted(dict(runner.run(abs, range(-3, 3))).items()))
"""


def test_a_new_cluster_ends_with_its_command(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*IMPORTED, *sys.path])}
    env.pop("RAY_ADDRESS", None)
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=env, check=True)
    expected = str([(n, abs(n)) for n in range(-3, 3)])
    assert found.stdout.startswith("127.0.0.1:") and found.stdout.strip().endswith(f"2 {expected}")
