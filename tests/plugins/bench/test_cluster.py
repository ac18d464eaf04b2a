"""`lexvl cluster`: a real cluster of several nodes, one of them killed in the middle of each step, and equal results.

LEXVL_CLUSTER_PICTURES=20000 makes the heavy test encode, index and search all training pictures of the demo.
"""

import io
import json
import os
import sys
import tarfile

import pytest
from PIL import Image

from lexvl_anserini.ground.errors import LexvlError, MissingExtra, UnknownName, UsageError
from lexvl_plugins.bench import cluster

PICTURES = int(os.environ.get("LEXVL_CLUSTER_PICTURES", 48))


def test_options_that_do_not_fit(tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match="unknown action 'demos'; did you mean 'demo'"):
        cluster.command(what="demos", output=tmp_path)
    with pytest.raises(UsageError, match="9 parts of 8 pictures"):
        cluster.command(what="demo", output=tmp_path, pictures=8, parts=9)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"lexvl-anserini\[ray\]"):
        cluster.command(what="demo", output=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_act_at_half():
    acts, counted = [], []
    advance = cluster.act_at_half(10, lambda: acts.append(sum(counted)), counted.append)
    for count in (1, 3, 0, 2, 4):
        advance(count)
    assert (acts, counted) == ([4], [1, 3, 0, 2, 4])


def test_the_pictures_are_those_of_the_demo(tmp_path):
    cluster.copy_pictures(tmp_path / "pictures.tar", 3)
    with tarfile.open(tmp_path / "pictures.tar") as archive:
        assert archive.getnames() == ["test-00000.png", "test-00001.png", "test-00002.png"]
        picture = archive.extractfile("test-00002.png")
        assert Image.open(io.BytesIO(picture.read())).size == (64, 64)


def test_costs_of_merging():
    found = cluster.measure_merging((1, 2), (3,), repeats=1)
    assert list(found) == ["unpack_1x3_ms", "merge_1x3_ms", "unpack_2x3_ms", "merge_2x3_ms"]


@pytest.mark.heavy
def test_a_cluster_with_killed_nodes_makes_the_same_bytes(tmp_path, capsys):
    from tests.plugins.cluster import ray_nodes  # skips where Ray is not installed

    assert ray_nodes.ray
    cluster.command(what="demo", output=tmp_path, pictures=PICTURES, parts=6, kill=True, style="json")
    rows = json.loads(capsys.readouterr().out)
    assert (rows["documents"], rows["nodes_killed"], rows["equal"]) == (PICTURES, 3, "shards, index, run")
    assert {f"{name}_{step}_seconds" for name in ("local", "ray") for step in cluster.STEPS} <= rows.keys()
    shard = next((tmp_path / "ray/shards").glob("*/docs/*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(LexvlError, match="shards of the cluster differ from those of one process"):
        cluster.compare_results(cluster.ClusterDemoOptions(output=tmp_path, pictures=PICTURES, parts=6))
