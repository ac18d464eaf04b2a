import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.fuse import command
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.manifest import RunManifest, read_run_manifest
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.fusion import Fusion, fuse_lists
from lexvl_anserini.runs.trec import read_run, write_run
from tests.invoking import invoked


def ranking(**scores: float) -> list[ScoredDoc]:
    order = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))
    return [ScoredDoc("q", doc_id, rank, score) for rank, (doc_id, score) in enumerate(order, start=1)]


def fused(fusion: Fusion, *rankings: list[ScoredDoc], hits: int = 10) -> dict[str, float]:
    found = fuse_lists("q", rankings, fusion, hits)
    assert [d.rank for d in found] == list(range(1, len(found) + 1))
    return {d.doc_id: d.score for d in found}


def test_reciprocal_ranks() -> None:
    # a, b, c tie: their ranks are 1, 2, 3 by id, in whatever order they come.
    one, two = ranking(c=5, b=5, a=5), ranking(d=9, b=1)
    found = fused(Fusion(), one[::-1], two)
    assert found == {"b": 1 / 62 + 1 / 62, "a": 1 / 61, "d": 1 / 61, "c": 1 / 63}
    assert list(found) == ["b", "a", "d", "c"]
    assert list(fused(Fusion(), one, two, hits=2)) == ["b", "a"]
    assert fused(Fusion(k=0, weights=(1, 3)), ranking(a=1), ranking(b=1)) == {"b": 3, "a": 1}


def test_interpolation() -> None:
    one, two = ranking(a=10, b=6, c=2), ranking(b=0.5)
    assert fused(Fusion("interpolation"), one, two) == {"b": 0.75, "a": 0.5, "c": 0}
    assert fused(Fusion("interpolation", (0.25, 0.5)), one, two) == {"b": 0.625, "a": 0.25, "c": 0}
    raw = Fusion("interpolation", (1, 2), normalisation="none")
    assert fused(raw, one, two) == {"a": 10, "b": 7, "c": 2}
    standard = fused(Fusion("interpolation", (1, 1), normalisation="z-score"), one, two)
    assert standard == pytest.approx({"a": 1.5**0.5, "b": 0, "c": -(1.5**0.5)})
    assert fused(Fusion("interpolation"), [], ranking(a=1)) == {"a": 0.5}


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdé😀"), st.integers(1, 3).map(float)), min_size=2, max_size=4),
    st.sampled_from(["rrf", "interpolation"]),
)
def test_the_order_of_the_runs_does_not_matter(scores: list[dict[str, float]], method: str) -> None:
    rankings = [ranking(**run) for run in scores]
    assert fused(Fusion(method), *rankings) == fused(Fusion(method), *rankings[::-1])


@pytest.mark.heavy
def test_ranx_agrees_where_no_scores_are_equal() -> None:
    from ranx import Run, fuse

    one, two = ranking(a=9, b=7, c=4, d=1), ranking(c=3, e=2, a=1)
    runs = [Run({"q": {d.doc_id: float(d.score) for d in run}}) for run in (one, two)]
    theirs = dict(fuse(runs, norm=None, method="rrf", params={"k": 60}).run["q"])
    assert fused(Fusion(), one, two) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "rff"}, "did you mean 'rrf'"),
        ({"normalisation": "minmax"}, "did you mean 'min-max'"),
        ({"weights": (-1.0,)}, "from 0"),
        ({"weights": (1.0,)}, "1 weights for 2 runs"),
    ],
)
def test_wrong_wishes(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fused(Fusion(**wrong), ranking(a=1), ranking(a=1))


def written(path: Path, topics: str, **lists: list[ScoredDoc]) -> Path:
    about = RunManifest(topics, "demo", "test", None, {"name": "demo"}, {"name": "toy"}, {}, "index", 10, False)
    write_run(path, lists.values(), about)
    return path


invoke = partial(invoked, command)


def test_the_command_writes_a_run_and_its_manifest(tmp_path: Path) -> None:
    other = [ScoredDoc("r", "x", 1, 2.0)]
    one = written(tmp_path / "one.trec", "demo/test", q=ranking(a=3, b=3), r=other)
    two = written(tmp_path / "two.trec", "demo/test", q=ranking(b=4))
    out = tmp_path / "fused.trec"
    arguments = ["--run", one, "--run", two, "--output", out, "--format", "json"]
    assert json.loads(invoke(*arguments)) == {"run": str(out), "topics": 2, "topics_without_hits": 0, "lines": 3}
    expected = [("q", "b", 1, 1 / 61 + 1 / 62), ("q", "a", 2, 1 / 61), ("r", "x", 1, 1 / 61)]
    assert [(d.query_id, d.doc_id, d.rank, d.score) for d in read_run(out)] == expected
    about = read_run_manifest(out)
    assert (about.dataset, about.split, about.encoder["name"]) == ("demo", "test", "fusion")
    assert [part.partition("@")[0] for part in about.encoder["options"]["runs"]] == ["one.trec", "two.trec"]
    invoke(*arguments)
    with pytest.raises(ArtefactError, match="a run of another request"):
        invoke(*arguments, "--k", 10)
    invoke(*arguments, "--method", "interpolation", "--weight", 1, "--weight", 0, "--overwrite")
    assert [d.doc_id for d in read_run(out)] == ["a", "b", "x"]


def test_runs_that_do_not_belong_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = written(tmp_path / "one.trec", "demo/test", q=ranking(a=3))
    two = written(tmp_path / "two.trec", "demo/train", q=ranking(a=3))
    output = ("--output", tmp_path / "x.trec")
    with pytest.raises(UsageError, match="has topics 'demo/test', .* has 'demo/train'; fuse runs of the same topics"):
        invoke("--run", one, "--run", two, *output)
    with pytest.raises(UsageError, match="give --run twice or more"):
        invoke("--run", one, *output)
    with pytest.raises(DataError, match="absent.trec: no such run"):
        invoke("--run", one, "--run", tmp_path / "absent.trec", *output)
    (tmp_path / "none.trec").write_text("")
    invoke("--run", one, "--run", tmp_path / "none.trec", *output)
    assert "none.trec: no hits in it" in caplog.text
