"""The papers' evaluation protocols on drawn score matrices full of ties, against pytrec_eval and loops over ranks."""

import numpy as np
import pytest
import pytrec_eval

from eval.measures.metrics import evaluate, means
from lexvl_anserini.ground.records import Qrel, ScoredDoc

CUTS = (1, 5, 10)


def world(seed: int) -> tuple[dict[str, dict[str, float]], dict[str, set[str]]]:
    """Scores of few distinct values, and one to six relevant documents per topic."""
    rng = np.random.default_rng(seed)
    images, captions = int(rng.integers(3, 15)), int(rng.integers(11, 60))
    scores = np.round(rng.normal(size=(images, captions)), int(rng.integers(0, 2)))
    run = {f"{i}": {f"{c}": float(scores[i, c]) for c in range(captions)} for i in range(images)}
    relevant = {
        f"{i}": {f"{c}" for c in rng.choice(captions, int(rng.integers(1, 7)), replace=False)} for i in range(images)
    }
    return run, relevant


def measured(run, relevant, measures, ties):
    hits = [ScoredDoc(topic, doc, 0, score) for topic, row in run.items() for doc, score in row.items()]
    qrels = [Qrel(topic, doc, 1) for topic, docs in relevant.items() for doc in sorted(docs)]
    return means(evaluate(hits, qrels, measures, ties=ties))


@pytest.mark.parametrize("seed", range(12))
def test_recall_is_pytrec_evals_where_ties_are(seed):
    """ir_measures' R@k: equal scores by document id descending."""
    run, relevant = world(seed)
    judge = pytrec_eval.RelevanceEvaluator(
        {topic: dict.fromkeys(docs, 1) for topic, docs in relevant.items()}, {"recall.1,5,10"}
    )
    theirs = judge.evaluate(run)
    found = measured(run, relevant, [f"Recall@{k}" for k in CUTS], "trec_eval")
    for k in CUTS:
        assert found[f"Recall@{k}"] == pytest.approx(
            np.mean([row[f"recall_{k}"] for row in theirs.values()]), abs=1e-12
        )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ties", ["rank", "trec_eval"])
def test_hit_rates_and_reciprocal_ranks_by_loops(seed, ties):
    """LexLIP's and LAVIS' R@k (a hit is any relevant document) and ir_measures' RR@10 (ids ascending)."""
    run, relevant = world(100 + seed)
    found = measured(run, relevant, [*(f"HitRate@{k}" for k in CUTS), "RR@10"], ties)
    firsts = []
    for topic, row in run.items():
        docs = sorted(row, reverse=ties == "trec_eval")
        order = sorted(docs, key=lambda doc: -np.float32(row[doc]) if ties == "trec_eval" else -row[doc])
        firsts.append(next(rank for rank, doc in enumerate(order, start=1) if doc in relevant[topic]))
    for k in CUTS:
        assert found[f"HitRate@{k}"] == pytest.approx(np.mean([first <= k for first in firsts]), abs=1e-12)
    assert found["RR@10"] == pytest.approx(np.mean([1 / first if first <= 10 else 0 for first in firsts]), abs=1e-12)
