"""Runs and judgements of ranx: there and back, and the same figures on both sides."""

from __future__ import annotations

import pytest
from ranx import Qrels, Run
from ranx import evaluate as ranx_evaluate

from eval.measures.exchange import from_ranx_qrels, from_ranx_run, to_ranx_qrels, to_ranx_run
from eval.measures.metrics import evaluate, means, ranx_metrics
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Qrel, ScoredDoc

# q1 ties b, a and c at 2; the ranks say b, c, a.
RUN = [
    ScoredDoc("q1", "d", 1, 3.0),
    ScoredDoc("q1", "b", 2, 2.0),
    ScoredDoc("q1", "c", 3, 2.0),
    ScoredDoc("q1", "a", 4, 2.0),
    ScoredDoc("q2", "a", 1, 16_777_215.0),
]
QRELS = [Qrel("q1", "c", 1), Qrel("q1", "a", 2), Qrel("q2", "b", 1)]


def test_a_run_keeps_its_order_and_its_scores():
    given = to_ranx_run(RUN, "vdr")
    assert given.name == "vdr"
    back = list(from_ranx_run(given))
    assert [hit[:3] for hit in back] == [hit[:3] for hit in RUN]
    assert [hit.score for hit in back] == pytest.approx([hit.score for hit in RUN], rel=1e-15)
    assert back[0].score == 3.0 and back[1].score == 2.0 > back[2].score > back[3].score


def test_judgements_there_and_back():
    assert sorted(from_ranx_qrels(to_ranx_qrels(QRELS))) == sorted(QRELS)


@pytest.mark.heavy
def test_both_measure_the_same():
    """The measures are ranx's own functions; ranx compiles its evaluation anew for some seconds."""
    ours = means(evaluate(RUN, QRELS, ["nDCG@3", "RR@10", "Recall@3"]))
    theirs = ranx_evaluate(to_ranx_qrels(QRELS), to_ranx_run(RUN), ["ndcg@3", "mrr@10", "recall@3"])
    # q1: d, b, c of c (1) and a (2); q2 finds nothing.
    assert ours["RR@10"] == pytest.approx((1 / 3 + 0) / 2)
    assert list(ours.values()) == pytest.approx([theirs[name] for name in ("ndcg@3", "mrr@10", "recall@3")])


def test_ranx_has_one_copy_of_its_measures():
    from ranx import metrics

    assert ranx_metrics() is metrics


def test_ranx_s_own_objects_are_read():
    run = Run({"q": {"a": 0.5, "b": 0.75, "c": 0.5}}, name="other")
    assert list(from_ranx_run(run)) == [
        ScoredDoc("q", "b", 1, 0.75),
        ScoredDoc("q", "a", 2, 0.5),
        ScoredDoc("q", "c", 3, 0.5),
    ]
    assert list(from_ranx_qrels(Qrels({"q": {"a": 2}}))) == [Qrel("q", "a", 2)]


def test_what_is_no_run():
    with pytest.raises(DataError, match="the run is empty"):
        to_ranx_run([])
    with pytest.raises(DataError, match="lists document 'a' more than once"):
        to_ranx_run([ScoredDoc("q", "a", 1, 2.0), ScoredDoc("q", "a", 2, 1.0)])
