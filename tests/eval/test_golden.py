"""Published protocols and runs: the same figures as the tools that made them."""

import json
from pathlib import Path

import numpy as np
import pytest

from eval.measures.inputs import JudgementSource, describe_run, sort_strictly
from eval.measures.measure_runs import measure_runs
from eval.measures.metrics import evaluate, means
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.runs.trec import read_run, sort_by_rank

GOLDEN = Path(__file__).parents[1] / "golden" / "eval_protocol"
TREC_RUNS = Path(__file__).parents[3] / "shared" / "data" / "trec-runs"
IMAGES, CAPTIONS = 7, 5

needs_runs = pytest.mark.skipif(not TREC_RUNS.exists(), reason=f"no published runs in {TREC_RUNS}")


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((GOLDEN / "metrics.json").read_text())


def ranked(scores: np.ndarray) -> list[ScoredDoc]:
    """Every pair of one score matrix [topics, documents]; no ranks, so the scores decide."""
    return [
        ScoredDoc(str(topic), str(document), 0, float(score))
        for topic, row in enumerate(scores)
        for document, score in enumerate(row)
    ]


def measured(direction: str, measures: list[str], ties: str = "rank") -> dict[str, float]:
    scores = np.load(GOLDEN / "scores.npz")["scores_image_x_caption"]
    pairs = [(str(caption // CAPTIONS), str(caption)) for caption in range(IMAGES * CAPTIONS)]
    images_ask = direction == "image-to-text"
    qrels = [Qrel(*(pair if images_ask else pair[::-1]), 1) for pair in pairs]
    return means(evaluate(ranked(scores if images_ask else scores.T), qrels, measures, ties=ties))


@pytest.mark.parametrize(
    ("direction", "lexlip", "lavis"), [("image-to-text", "tr_r{}", "txt_r{}"), ("text-to-image", "ir_r{}", "img_r{}")]
)
def test_hit_rate_is_r_at_k_of_the_caption_papers(direction: str, lexlip: str, lavis: str, expected: dict):
    found = measured(direction, ["HitRate@1", "HitRate@5", "HitRate@10"])
    for k in (1, 5, 10):
        # LexLIP divides in float32.
        assert found[f"HitRate@{k}"] == pytest.approx(expected["lexlip_fraction"][lexlip.format(k)], abs=1e-6)
        assert 100 * found[f"HitRate@{k}"] == pytest.approx(expected["lavis_percent"][lavis.format(k)], abs=1e-9)


@pytest.mark.parametrize(("direction", "key"), [("image-to-text", "i2t"), ("text-to-image", "t2i")])
def test_recall_and_reciprocal_rank_are_those_of_ir_measures(direction: str, key: str, expected: dict):
    """Each in its own order of ties, see `test_a_tie_under_both_orders`."""
    found = measured(direction, ["Recall@1", "Recall@5", "Recall@10"], ties="trec_eval")
    found.update(measured(direction, ["RR@10"]))
    renamed = {name.replace("Recall", "R"): value for name, value in found.items()}
    assert renamed == pytest.approx(expected["ir_measures"][key], abs=1e-9)


def test_a_tie_under_both_orders():
    """ir_measures computes RR@10 with doc_id ascending and R@1 with doc_id descending; each has its `ties`."""
    tie = json.loads((GOLDEN / "ir_measures_tie.json").read_text())
    run = [ScoredDoc("q", doc_id, 0, score) for doc_id, score in tie["run"]["q"].items()]
    for document in ("a", "b"):
        qrels = [Qrel("q", document, 1)]
        assert means(evaluate(run, qrels, ["RR@10"], ties="rank"))["RR@10"] == tie[f"qrels {document}"]["RR@10"]
        by_trec_eval = means(evaluate(run, qrels, ["Recall@1"], ties="trec_eval"))
        assert by_trec_eval["Recall@1"] == tie[f"qrels {document}"]["R@1"]


QRELS = {"dl19": "qrels.dl19-passage.txt", "covid": "qrels.beir-v1.0.0-trec-covid.test.txt"}
# Names that depend on the level of relevance. map and recip_rank have the collection's customary one, 2 for dl19.
LEVELS = {
    "recall_100_l1": "Recall(rel=1)@100",
    "recall_100_l2": "Recall(rel=2)@100",
    ("dl19", "map_cut_100"): "AP(rel=2)@100",
    ("dl19", "recip_rank"): "RR(rel=2)",
}


def published() -> list[dict]:
    path = TREC_RUNS / "first-stage" / "scores.json"
    return json.loads(path.read_text()) if path.exists() else []


def values_of_published(row: dict, ties: str | None = None) -> dict[str, float]:
    """The values that one call of a command gives for a published run."""
    [path] = (TREC_RUNS / "first-stage" / row["dataset"]).glob(f"{row['system']}.top*.txt")
    source = JudgementSource(TREC_RUNS / "qrels" / QRELS[row["dataset"]])
    names = [name for name in row["scores_pytrec_eval"] if name != "nq"]
    measures = [LEVELS.get((row["dataset"], name)) or LEVELS.get(name, name) for name in names]
    [rows] = measure_runs([describe_run(path)], source, measures, ties=ties)
    return dict(zip(names, means(rows).values(), strict=True))


@pytest.mark.shared
@needs_runs
@pytest.mark.parametrize("row", published(), ids=lambda row: f"{row['dataset']}-{row['system']}")
def test_published_runs_score_as_published(row: dict):
    """All of them, without an option: a run of another system has trec_eval's order of equal scores."""
    scores = {name: score for name, score in row["scores_pytrec_eval"].items() if name != "nq"}
    assert values_of_published(row) == pytest.approx(scores, abs=1e-9)


@pytest.mark.shared
@needs_runs
def test_rank_order_gives_other_values_for_published_runs(caplog: pytest.LogCaptureFixture):
    row = next(row for row in published() if (row["dataset"], row["system"]) == ("dl19", "REP_LLAMA"))
    by_rank = values_of_published(row, "rank")
    assert [f"{values['ndcg_cut_10']:.4f}" for values in (by_rank, row["scores_pytrec_eval"])] == ["0.7439", "0.7384"]
    assert "nDCG@10 is 0.7439 by rank and 0.7384 by trec_eval" in caplog.text


@pytest.mark.shared
@needs_runs
def test_our_order_of_a_published_run_is_the_one_that_search_would_write():
    path = TREC_RUNS / "first-stage" / "dl19" / "REP_LLAMA.top100.txt"
    by_topic: dict[str, list[ScoredDoc]] = {}
    for hit in read_run(path):
        by_topic.setdefault(hit.query_id, []).append(hit)
    assert sort_strictly(read_run(path)) == {
        query_id: [hit.doc_id for hit in sort_by_rank(hits)] for query_id, hits in by_topic.items()
    }
