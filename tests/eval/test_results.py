"""Results: as pandas frames, as files with what made them, and as MTEB's JSON."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from invoking import call_command
from ranx import Qrels, Run, metrics
from ranx import evaluate as ranx_evaluate
from typer.testing import Result

from eval import results, score, table
from eval.measures.exchange import (
    find_task,
    frame,
    from_ranx_qrels,
    from_ranx_run,
    make_topic_frame,
    to_ranx_qrels,
    to_ranx_run,
)
from eval.measures.measure_runs import LOG, machine, read_results
from eval.measures.metrics import evaluate, load_ranx_metrics, means
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import Measurement, Qrel, ScoredDoc

RUN = "1 Q0 a 1 9 t\n1 Q0 b 2 8 t\n2 Q0 b 1 5 t\n"
ROWS = [
    Measurement("x.trec", "d", "AP", "2", 0.5, "rank"),
    Measurement("x.trec", "d", "AP", "1", 1.0, "rank"),
    Measurement("x.trec", "d", "AP", "all", 0.75, "rank"),
]
OTHER = [row._replace(run="y.trec", value=0.25) for row in ROWS]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with two runs and judgements."""
    monkeypatch.chdir(tmp_path)
    Path("a.trec").write_text(RUN)
    Path("b.trec").write_text(RUN.replace("2 Q0 b", "2 Q0 a"))
    Path("toy.qrels").write_text("1 0 b 1\n2 0 b 1\n")


def scored(*arguments: str) -> Result:
    return call_command(score.command, "--run", "a.trec", "--qrels", "toy.qrels", "--measure", "RR@10", *arguments)


def test_a_frame_has_one_row_per_value():
    rows = results.frame(ROWS)
    assert list(rows.columns) == ["run", "dataset", "measure", "query_id", "value", "ties"]
    assert [tuple(row) for row in rows.itertuples(index=False)] == [tuple(row) for row in ROWS]
    assert rows["value"].dtype == "float64"
    assert frame([]).empty and list(frame([]).columns) == list(rows.columns)


def test_systems_side_by_side():
    wide = make_topic_frame([*ROWS, *OTHER])
    assert list(wide.columns) == [("AP", "x.trec"), ("AP", "y.trec")]
    assert list(wide.index) == ["2", "1"] and wide[("AP", "x.trec")].tolist() == [0.5, 1.0]
    with pytest.raises(DataError, match="y.trec: no AP of a topic that another run has"):
        make_topic_frame([*ROWS, *OTHER[1:]])


def test_a_result_says_what_made_it():
    assert scored("--results", "found").exit_code == 0
    [path] = Path("found").glob("*.json")
    assert path.name == f"a.{sha256(RUN.encode()).hexdigest()[:8]}.toy.qrels.json"
    [stored] = read_results(Path("found"))
    assert (stored.run, stored.system, stored.dataset, stored.topics) == ("a.trec", "a", "toy.qrels", 2)
    assert (stored.measures, stored.ties) == ({"RR@10": 0.75}, "trec_eval")
    assert stored.run_sha256 == sha256(RUN.encode()).hexdigest()
    assert stored.judgements_sha256 == sha256(b"1 0 b 1\n2 0 b 1\n").hexdigest()
    [made] = stored.calls
    assert made.machine["versions"].keys() == machine()["versions"].keys() >= {"ranx", "numpy"}
    assert made.time.endswith("+00:00") and made.command and made.measures == ("RR@10",)
    assert stored.measurements() == [Measurement("a", "toy.qrels", "RR@10", "all", 0.75, "trec_eval")]


def test_a_later_call_adds_measures_and_names_their_level():
    Path("toy.qrels").write_text("1 0 b 2\n2 0 b 1\n")
    scored("--results", "found")
    scored("--results", "found", "--measure", "AP@100", "--relevance-level", "2")
    [stored] = read_results(Path("found"))
    assert stored.measures.keys() == {"RR@10", "RR(rel=2)@10", "AP(rel=2)@100"}
    scored("--results", "found", "--ties", "rank")
    [stored] = read_results(Path("found"))
    assert stored.measures == {"RR@10": 0.75} and len(stored.calls) == 1


def test_each_call_is_stored_with_its_measures():
    for measures in (["AP", "P@1"], ["AP"], ["P@5"], ["P@1", "P@5"]):
        scored("--results", "found", *(part for name in measures for part in ("--measure", name)))
    [stored] = read_results(Path("found"))
    # RR@10 is in all calls: the last gave it. The third gave nothing that is not newer.
    assert [one.measures for one in stored.calls] == [("AP",), ("RR@10", "P@1", "P@5")]
    logged = [json.loads(line)["calls"] for line in Path("found", LOG).read_text().splitlines()]
    assert [len(calls) for calls in logged] == [1, 1, 1, 1] and logged[0][0]["measures"] == ["RR@10", "AP", "P@1"]


def test_the_command_is_that_of_the_process():
    command = [sys.executable, "-m", "eval.score", "--run", "a.trec", "--qrels", "toy.qrels", "--results", "found"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    [stored] = read_results(Path("found"))
    assert stored.calls[0].command.endswith("-m eval.score --run a.trec --qrels toy.qrels --results found")


def test_stored_results_are_a_table():
    both = ["--run", "a.trec", "--run", "b.trec", "--label", "mine", "--label", "theirs", "--qrels", "toy.qrels"]
    shown = call_command(table.command, *both, "--measure", "RR@10", "--results", "found").stdout
    assert call_command(results.command, "found").stdout == shown
    assert "Toy" in call_command(results.command, "found", "--dataset-label", "Toy").stdout
    assert json.loads(call_command(results.command, "found", "--format", "json").stdout)[0]["system"] == "mine"


def test_what_is_no_result():
    with pytest.raises(DataError, match="nowhere: no results; --results of score"):
        list(read_results(Path("nowhere")))
    Path("found").mkdir()
    Path("found/x.json").write_text('{"run": 3}')
    with pytest.raises(ArtefactError, match="x.json: run is 3, expected a text; move it elsewhere"):
        list(read_results(Path("found")))
    scored("--results", "mixed")
    call_command(score.command, "--run", "b.trec", "--qrels", "toy.qrels", "--ties", "rank", "--results", "mixed")
    assert isinstance(call_command(results.command, "mixed").exception, UsageError), "one table has one rule of ties"


def test_mteb():
    scored("--results", "other")
    refused = call_command(results.command, "other", "--mteb", "out").exception
    assert isinstance(refused, UsageError) and "no nDCG@10" in str(refused) and not Path("out").exists()
    Path("toy.qrels").write_text("1 0 b 2\n2 0 b 1\n")
    scored("--measure", "nDCG@10", "--measure", "AP", "--measure", "AP(rel=2)", "--results", "found", "--label", "me/x")
    assert call_command(results.command, "found", "--mteb", "out").exit_code == 0
    [path] = Path("out").glob("*/*/toy.qrels.json")
    assert path.parts[1:3] == ("me__x", "no_revision_available")
    content = json.loads(path.read_text())
    [values] = content["scores"]["test"]
    ndcg = values.pop("ndcg_at_10")
    assert values == {
        "hf_subset": "default", "languages": ["eng-Latn"], "main_score": ndcg, "mrr_at_10": 0.75, "map": 0.75
    }  # fmt: skip
    assert content["task_name"] == "toy.qrels" and content["dataset_revision"].startswith("sha256:")
    assert json.loads(path.with_name("model_meta.json").read_text())["name"] == "me/x"
    assert find_task("beir/cqadupstack/android/test") == ("CQADupstackAndroidRetrieval", "test")
    assert find_task("beir/msmarco/dev") == ("MSMARCO", "dev")
    assert find_task("flickr30k/test image-to-text") == ("Flickr30kI2TRetrieval", "test")
    assert find_task("beir/limit/test") == ("beir-limit-test", "test")


# q1 ties b, a and c at 2; the ranks say b, c, a.
HITS = [ScoredDoc("q1", doc_id, rank, 3.0 if rank == 1 else 2.0) for rank, doc_id in enumerate("dbca", 1)]
HITS += [ScoredDoc("q2", "a", 1, 16_777_215.0)]
QRELS = [Qrel("q1", "c", 1), Qrel("q1", "a", 2), Qrel("q2", "b", 1)]


def test_a_run_keeps_its_order_and_its_scores():
    given = to_ranx_run(HITS, "vdr")
    assert given.name == "vdr"
    back = list(from_ranx_run(given))
    assert [hit[:3] for hit in back] == [hit[:3] for hit in HITS]
    assert [hit.score for hit in back] == pytest.approx([hit.score for hit in HITS], rel=1e-15)
    assert back[0].score == 3.0 and back[1].score == 2.0 > back[2].score > back[3].score
    assert sorted(from_ranx_qrels(to_ranx_qrels(QRELS))) == sorted(QRELS)
    # Also objects that ranx made.
    assert load_ranx_metrics() is metrics, "one copy of its measures"
    run = Run({"q": {"a": 0.5, "b": 0.75, "c": 0.5}}, name="other")
    assert [hit[1:] for hit in from_ranx_run(run)] == [("b", 1, 0.75), ("a", 2, 0.5), ("c", 3, 0.5)]
    assert list(from_ranx_qrels(Qrels({"q": {"a": 2}}))) == [Qrel("q", "a", 2)]
    with pytest.raises(UsageError, match=r"run: Run \(.*, expected an iterable of ScoredDoc.*exchange converts"):
        evaluate(run, QRELS, ["AP"])
    with pytest.raises(DataError, match="the run is empty"):
        to_ranx_run([])
    with pytest.raises(DataError, match="lists document 'a' more than once"):
        to_ranx_run([ScoredDoc("q", "a", 1, 2.0), ScoredDoc("q", "a", 2, 1.0)])


@pytest.mark.heavy
def test_both_measure_the_same():
    """The measures are ranx's own functions; ranx compiles its evaluation anew for some seconds."""
    ours = means(evaluate(HITS, QRELS, ["nDCG@3", "RR@10", "Recall@3"]))
    theirs = ranx_evaluate(to_ranx_qrels(QRELS), to_ranx_run(HITS), ["ndcg@3", "mrr@10", "recall@3"])
    # q1: d, b, c of c (1) and a (2); q2 finds nothing.
    assert ours["RR@10"] == pytest.approx((1 / 3 + 0) / 2)
    assert list(ours.values()) == pytest.approx([theirs[name] for name in ("ndcg@3", "mrr@10", "recall@3")])
