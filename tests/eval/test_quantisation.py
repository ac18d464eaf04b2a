"""The loss of quantising, on vectors small enough to multiply by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from eval.analyses.quantisation import measure_loss, search_exactly
from eval.measures.inputs import sort_strictly
from eval.measures.metrics import measure_overlap
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Qrel, ScoredDoc

# Terms x, y, z; document c matches nothing. Ids are not in the order of the rows.
DOCUMENTS = csr_matrix([[1.0, 0.2, 0.0], [0.9, 0.0, 0.0], [0.0, 0.0, 0.0], [0.9, 0.0, 3.0]])
DOC_IDS = ["d", "b", "c", "a"]
QUERIES = csr_matrix([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
QUERY_IDS = ["qx", "qy", "empty"]


def fixed(scale: float, bits: int | None = None) -> Quantiser:
    return Quantiser(SideQuantiser("fixed", bits, scale), SideQuantiser("fixed", None, 1.0))


def test_exact_search_orders_ties_by_doc_id_and_keeps_the_type():
    assert list(search_exactly(QUERIES, DOCUMENTS, QUERY_IDS, DOC_IDS, 2)) == [
        ScoredDoc("qx", "d", 1, 1.0),
        ScoredDoc("qx", "a", 2, 0.9),
        ScoredDoc("qy", "d", 1, 0.2),
    ]
    impacts = csr_matrix(np.array([[2**40, 1], [2**40, 0]], dtype=np.int64))
    hits = list(search_exactly(csr_matrix(np.array([[1, 1]])), impacts, ["q"], ["a", "b"], 9))
    assert [hit.score for hit in hits] == [2**40 + 1, 2**40]
    assert all(isinstance(hit.score, int) for hit in hits)


def test_overlap_is_the_share_of_the_references_first_k():
    reference = {"1": ["a", "b", "c", "d"], "2": ["a"]}
    other = {"1": ["b", "x", "c"]}
    assert measure_overlap(reference, other, 2) == (1 / 2 + 0) / 2
    assert measure_overlap(reference, other, 9) == (2 / 4 + 0) / 2
    assert measure_overlap({**reference, "left with nothing": []}, reference, 3) == 1


def test_fine_quantising_loses_nothing_and_coarse_states_what_it_loses():
    qrels = [Qrel("qx", "d", 1), Qrel("qy", "d", 1)]
    loss = measure_loss(DOCUMENTS, QUERIES, DOC_IDS, QUERY_IDS, qrels, fixed(100))
    assert (loss.overlap, loss.figures()["delta"], loss.clipped, loss.dropped) == ({10: 1, 100: 1}, 0, 0, 0)
    # At scale 2 and 1 bit: 1.0 -> 2 -> 1 (clipped), .9 -> 2 -> 1 (clipped, twice), .2 -> 0 (dropped), 3.0 -> 6 -> 1.
    # Topic x then ties a, b, d, and d falls from rank 1 to 3; topic y loses its only posting.
    loss = measure_loss(DOCUMENTS, QUERIES, DOC_IDS, QUERY_IDS, qrels, fixed(2, bits=1), measure="RR@10", depths=(1, 3))
    assert loss.overlap == {1: 0, 3: (3 / 3 + 0) / 2}
    assert (loss.value_float, loss.value_integer) == (1, (1 / 3 + 0) / 2)
    assert (loss.clipped, loss.dropped) == (4 / 5, 1 / 5)
    headings = [*loss.figures()]
    assert headings == ["overlap@1", "overlap@3", "RR@10 float", "RR@10 integer", "delta", "clipped", "dropped"]


def test_the_search_is_as_deep_as_the_measure():
    documents, ids = csr_matrix(np.ones((150, 1))), [f"{i:03}" for i in range(150)]
    qrels = [Qrel("q", "149", 1)]
    for measure in ("Recall@150", "RR"):
        loss = measure_loss(documents, csr_matrix([[1.0]]), ids, ["q"], qrels, fixed(1), measure=measure)
        assert loss.value_integer == (1 if measure == "Recall@150" else 1 / 150)


def test_removing_the_query_is_for_both_rankings():
    doc_ids = ["qx", "b", "c", "a"]
    loss = measure_loss(
        DOCUMENTS, QUERIES, doc_ids, QUERY_IDS, [Qrel("qx", "a", 1)], fixed(100), measure="P@1", remove_query=True
    )
    assert (loss.value_float, loss.value_integer) == (1, 1)
    with pytest.raises(DataError, match="ranking by float: the run is empty"):
        measure_loss(csr_matrix((4, 3)), QUERIES, DOC_IDS, QUERY_IDS, [Qrel("qx", "d", 1)], fixed(100))


def test_agrees_with_a_dense_product(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(5)
    documents = rng.integers(0, 4, (200, 30)) * (rng.random((200, 30)) < 0.2)
    queries = rng.integers(0, 4, (9, 30)) * (rng.random((9, 30)) < 0.3)
    ids = [str(i) for i in range(200)]
    monkeypatch.setattr("eval.analyses.quantisation.BLOCK_CELLS", 400)  # two queries a block
    run = search_exactly(csr_matrix(queries), csr_matrix(documents), ids[:9], ids, 50)
    scores = queries @ documents.T
    expected = {
        str(q): [str(d) for d in sorted(range(200), key=lambda d: (-row[d], str(d))) if row[d] > 0][:50]
        for q, row in enumerate(scores)
    }
    assert sort_strictly(run) == {query_id: ranking for query_id, ranking in expected.items() if ranking}
