"""A Ray cluster of several nodes on the loopback interface of this machine, for tests; its nodes can be killed."""

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from lexvl_plugins.cluster.ray_cluster import BEYOND_LOOPBACK

# Before Ray is imported. All clusters of one process check the same token, because Ray reads these variables once.
os.environ.setdefault(BEYOND_LOOPBACK, "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'lexvl-anserini[ray]'")

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
# A lost node is noticed after two seconds. Workers have the priority of the test: with Ray's own, 15 below, they wait
# for whatever else a busy machine does.
CHECKS = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 2}
NOTICED = {"worker_niceness": 0, **{f"health_check_{name}": value for name, value in CHECKS.items()}}
# What the processes of the cluster import: this package, and the tests' modules.
IMPORTED = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]


@contextmanager
def running_cluster(nodes: int = 3, own_storage: Path | None = None, gpus: int = 0) -> Iterator[Any]:
    """A cluster of some nodes, one core each; the first, where the command runs, says that it has GPUs.

    In `own_storage`, each node has its own copies of what is in storage.
    """
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*IMPORTED, os.environ.get("PYTHONPATH", "")]))
        settings = [
            {**NODE, **({"env_vars": {"LEXVL_STORAGE": str(own_storage / f"node-{number}")}} if own_storage else {})}
            for number in range(nodes)
        ]
        head = {**settings[0], "num_gpus": gpus, "include_dashboard": False, "_system_config": NOTICED}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for each in settings[1:]:
                cluster.add_node(**each)
            yield cluster
        finally:
            cluster.shutdown()


def kill_node(cluster: Any, node: Any) -> None:
    """Kills a node with SIGKILL; a new one takes its place."""
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE)


def kill_process(cluster: Any, chance: random.Random) -> bool:
    """Kills a process of the cluster that works, with SIGKILL; False if none works."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    children = [child for pid in raylets for child in psutil.Process(pid).children()]
    working = [child for child in children if is_working(child)]
    if working:
        chance.choice(working).kill()
    return bool(working)


def is_working(process: psutil.Process) -> bool:
    """Whether it does work on a part, or holds an object."""
    try:
        return "".join(process.cmdline()).startswith(("ray::do_part", "ray::HeldObject"))
    except psutil.Error:
        return False
