"""The whole line on a real cluster: processes and nodes are killed, and shards, counts and runs stay the same bytes.

python -m pip install ray
python -m pytest tests/plugins/cluster/test_ray_line.py
"""

import json
import os
import random
import subprocess
import sys
import time

import pytest
from byte_towers import tree

from lexvl_anserini.engines.index_folder import read_report
from lexvl_plugins.cluster.encode import command as encode
from lexvl_plugins.cluster.index import command as index
from lexvl_plugins.cluster.ray_cluster import RayRunner
from lexvl_plugins.cluster.search import command as search
from tests.plugins.cluster.ray_nodes import IMPORTED, kill_node, kill_process, running_cluster

WORDS = ["ash", "bay", "cat", "dog", "elm", "fig", "gem", "hat", "ice", "jam", "key", "lid", "map", "net", "oak", "pen"]
DOCUMENTS, TOPICS, PARTS = 400, 80, 12


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, golden):
    """A corpus with topics, its plan, and what one process makes of it."""
    folder, chance = tmp_path_factory.mktemp("line"), random.Random(7)
    (folder / "corpus/qrels").mkdir(parents=True)

    def text():
        return " ".join(chance.choices(WORDS, k=chance.randint(1, 12)))

    lines = (json.dumps({"_id": f"d{number}", "text": text()}) for number in range(DOCUMENTS))
    (folder / "corpus/corpus.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "topics.tsv").write_text("".join(f"q{number}\t{text()}\n" for number in range(TOPICS)))
    given = {"corpus": f"beir:{folder / 'corpus'}", "encoder": "bag-of-tokens", "device": "cpu", "shard_size": 16}
    given |= {"checkpoint": str(golden / "splade/ckpt_bert"), "plan": folder / "plan.json"}
    encode(**given, parts=PARTS)
    the_line(folder, "local", given)
    return folder, given


def the_line(folder, name, given, **runner):
    encode(**given, output=str(folder / name / "shards"), **runner)
    indexed(folder, name, **runner)
    searched(folder, name, **runner)


def indexed(folder, name, **runner):
    shards, made = str(folder / name / "shards"), str(folder / name / "index")
    index(shards=[shards], engine="partitions", index=made, threads=1, **runner)


def searched(folder, name, **runner):
    topics, run = str(folder / "topics.tsv"), folder / name / "run.trec"
    search(index=str(folder / name / "index"), topics=topics, output=run, hits=50, overwrite=True, **runner)


def same_as_local(folder, name):
    local, found = folder / "local", folder / name
    assert tree(found / "shards") == tree(local / "shards")
    assert (found / "run.trec").read_bytes() == (local / "run.trec").read_bytes()
    about, expected = read_report(found / "index"), read_report(local / "index")
    for key in ("documents", "empty", "postings", "partitions", "collection"):
        assert about[key] == expected[key]


class Killer:
    """Kills a process or a node of the cluster each time when the command has awaited so many answers."""

    def __init__(self, cluster, monkeypatch, seed):
        self.cluster, self.chance, self.points, self.calls, self.killed = cluster, random.Random(seed), [], 0, []
        original = RayRunner._wait

        def awaited(runner, refs, what):
            self.calls += 1
            if self.points and self.calls >= self.points[0]:
                self.kill()
            return original(runner, refs, what)

        monkeypatch.setattr(RayRunner, "_wait", awaited)

    def aim(self, calls):
        """Kills three times within that many calls."""
        self.points, self.calls = sorted(self.chance.sample(range(1, calls + 1), 3)), 0

    def kill(self):
        if len(self.killed) % 2:
            nodes = sorted(self.cluster.worker_nodes, key=lambda node: node.node_id)
            kill_node(self.cluster, self.chance.choice(nodes))
            self.killed.append("node")
        elif kill_process(self.cluster, self.chance):
            self.killed.append("process")
        else:
            return  # at the next call
        self.points.pop(0)


@pytest.mark.parametrize("seed", [int(os.environ.get("LEXVL_SEED", 1))])
def test_killed_processes_and_nodes_change_nothing(cluster, corpus, monkeypatch, seed):
    folder, given = corpus
    name, runner = f"killed-{seed}", {"runner": "ray", "address": cluster.address}
    killer = Killer(cluster, monkeypatch, seed)
    killer.aim(PARTS // 2)
    encode(**given, output=str(folder / name / "shards"), **runner)
    assert len(killer.killed) == 3
    killer.aim(PARTS // 2)
    indexed(folder, name, **runner)
    assert len(killer.killed) == 6
    killer.aim(12)
    searched(folder, name, **runner)
    assert len(killer.killed) == 9 and set(killer.killed) == {"node", "process"}
    same_as_local(folder, name)


@pytest.mark.heavy
def test_a_killed_command_goes_on(cluster, corpus):
    folder, given = corpus
    output = folder / "resumed/shards"
    options = {**given, "output": output, "runner": "ray", "address": cluster.address}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*IMPORTED, *sys.path])}
    command = [sys.executable, "-m", "lexvl_plugins.cluster.encode", *words]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(output.glob("*/manifest.json"))) < 3:
            time.sleep(0.01)
        process.kill()
    assert not (output / "collection.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in output.glob("*/docs/*.jsonl")}
    assert finished
    the_line(folder, "resumed", given, runner="ray", address=cluster.address)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    same_as_local(folder, "resumed")
