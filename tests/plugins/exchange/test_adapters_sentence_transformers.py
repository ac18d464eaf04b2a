"""sentence-transformers: its sparse embeddings searched in Lucene, and our encoders loaded by its SparseEncoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document
from lexvl_plugins.exchange.adapters.indexed_corpus import index_documents
from lexvl_plugins.exchange.adapters.sentence_transformers_search import semantic_search_lucene

torch = pytest.importorskip("torch")
CORPUS = [[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 1.0]]
QUERIES = [[0.0, 1.0, 0.0], [3.0, 0.0, 0.5], [0.0, 0.0, 0.0]]


def tensor(rows: Any) -> Any:
    return torch.tensor(rows).to_sparse()


def rounded(results: list[list[Any]]) -> list[list[tuple[int, float]]]:
    return [[(hit["corpus_id"], round(hit["score"], 2)) for hit in hits] for hits in results]


# 2 * 1 for two equal rows; 3 * 1, then 0.5 * 1, whose query weight 42.5 of 255 is rounded to 42 (0.494).
EXPECTED = [[(0, 2.0), (3, 2.0)], [(1, 3.0), (0, 0.5), (3, 0.5)], []]


@pytest.mark.parametrize(
    "form",
    [
        tensor,
        torch.tensor,
        lambda rows: tensor(rows).to_sparse_csr(),
        lambda rows: list(tensor(rows)),
        lambda rows: list(torch.tensor(rows)),
        lambda rows: sparse.csr_matrix(np.array(rows, dtype=np.float32)),
        lambda rows: [[(f"t{d}", w) for d, w in enumerate(row) if w] for row in rows],
    ],
    ids=["coo", "dense", "csr", "list of coo", "list of dense", "scipy", "decoded"],
)
def test_every_form_of_embeddings(form):
    results, seconds = semantic_search_lucene(form(QUERIES), form(CORPUS), top_k=4)
    assert [[(i, pytest.approx(s, abs=0.01)) for i, s in hits] for hits in EXPECTED] == rounded(results)
    assert seconds > 0


def test_an_index_is_used_again(tmp_path):
    corpus = tensor(CORPUS)
    first, _, index = semantic_search_lucene(tensor(QUERIES), corpus, output_index=True)
    again, _, same = semantic_search_lucene(tensor(QUERIES), corpus_index=index, top_k=1, output_index=True)
    assert again == [hits[:1] for hits in first] and same is index
    row, _ = semantic_search_lucene(tensor(QUERIES)[1], corpus_index=index)
    assert row == [first[1]]
    home = index.path.parent
    assert home.is_dir()
    del index, same
    assert not home.exists()
    kept, _ = semantic_search_lucene(tensor(QUERIES), corpus, folder=tmp_path / "kept")
    from_disk, _ = semantic_search_lucene(tensor(QUERIES), corpus_index=tmp_path / "kept" / "index")
    assert kept == from_disk == first
    with pytest.raises(ArtefactError):
        semantic_search_lucene(tensor(QUERIES), tensor(CORPUS[:2]), folder=tmp_path / "kept")


def test_tokens_that_the_corpus_lacks_score_nothing_and_ties_are_in_the_order_of_rows():
    corpus = [[("boat", 0.5), ("sea", 0.25)], [("sea", 1.0)]]
    blank, _ = semantic_search_lucene([[("\n", 1.0)]], [[("a", 1.0)], [("\n", 2.0)]])  # tokens of ModernBERT
    assert rounded(blank) == [[(1, 2.0)]]
    results, _ = semantic_search_lucene([[("ship", 1.0), ("boat", 2.0)], []], corpus)
    assert rounded(results) == [[(0, 1.0)], []]
    results, _ = semantic_search_lucene(tensor([[1.0]]), tensor([[1.0]] * 12), top_k=12)
    assert [hit["corpus_id"] for hit in results[0]] == list(range(12))


def test_scores_are_dot_products_within_the_rounding_of_weights():
    rng = np.random.default_rng(7)
    rows = [np.where(rng.random((n, 500)) < 0.06, rng.exponential(size=(n, 500)), 0) for n in (200, 20)]
    corpus, queries = (sparse.csr_matrix(some.astype(np.float32)) for some in rows)
    results, _ = semantic_search_lucene(queries, corpus, top_k=200)
    exact = (queries @ corpus.T).toarray()
    # Each weight is rounded by half a step at most: |qd - q'd'| <= step_d/2 q + step_q/2 d + step_d/2 step_q/2.
    step_d = corpus.data.max() / 255 / 2
    step_q = queries.max(axis=1).toarray() / 255 / 2  # [n, 1]
    common = (queries > 0).astype(float) @ (corpus > 0).T
    bound = step_d * (queries @ (corpus > 0).T).toarray() + step_q * ((queries > 0) @ corpus.T).toarray()
    bound += step_d * step_q * common.toarray() + 1e-5
    found = np.zeros_like(exact)  # a document that is not found scores 0
    for row, hits in enumerate(results):
        for hit in hits:
            found[row, hit["corpus_id"]] = hit["score"]
    assert (np.abs(found - exact) <= bound).all() and (found > 0).sum() > 3000
    assert 0 < np.abs(found - exact).max() < 0.01 * exact.max()
    coarse, _ = semantic_search_lucene(queries, corpus, top_k=200, quantiser=Quantiser.named(bits=4))
    errors = [
        np.mean([abs(hit["score"] - exact[row, hit["corpus_id"]]) for row, hits in enumerate(some) for hit in hits])
        for some in (results, coarse)
    ]
    assert errors[1] > 4 * errors[0]


OUTSIDE = sparse.csr_matrix(np.ones((1, 3)))
OUTSIDE.indices[0] = 10_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither corpus_embeddings nor corpus_index"),
        ({"corpus_embeddings": tensor(CORPUS), "corpus_index": "x"}, "both corpus_embeddings and corpus_index"),
        ({"corpus_embeddings": "a dog"}, "corpus_embeddings: str; expected a tensor"),
        ({"corpus_embeddings": ["a dog"]}, "corpus_embeddings: list; expected"),
        ({"corpus_embeddings": torch.zeros(1, 2, 3)}, "3 dimensions; expected"),
        ({"corpus_embeddings": tensor([[1.0, 0, 0], [0, 0, -2.0]])}, "row 1 has the weight -2.0"),
        ({"corpus_embeddings": tensor([[float("nan"), 0, 0]])}, "row 0 has the weight nan"),
        ({"corpus_embeddings": torch.ones(1, 3) * 1j}, "weights of type complex64, expected integers or floats"),
        ({"corpus_embeddings": OUTSIDE}, "corpus_embeddings: .*indices"),
        ({"corpus_embeddings": tensor([[1.0, 0]])}, "of 3 dimensions; the index has sparse-embeddings of 2"),
        ({"corpus_embeddings": [[("a", 1.0)]]}, "sparse-embeddings of 3 dimensions; the index has decoded"),
        ({"corpus_embeddings": [[("", 1.0)]]}, "term '' is empty"),
        ({"corpus_embeddings": tensor(CORPUS), "top_k": 0}, "hits is 0"),
    ],
)
def test_what_cannot_be_searched_is_refused(arguments, message):
    with pytest.raises((UsageError, ArtefactError), match=message):
        semantic_search_lucene(tensor(QUERIES), **arguments)


def test_our_encoders_give_tensors_that_are_searched(tmp_path: Path, load: Any):
    """But their own index is not one of embeddings."""
    model, texts = load("bag-of-tokens", "splade/ckpt_bert"), ["a dog runs", "", "red"]
    index = index_documents(model, [Document("d", text="a dog")], tmp_path)
    with pytest.raises(UsageError, match="an index of encoder 'bag-of-tokens', not of embeddings"):
        semantic_search_lucene(tensor(QUERIES), corpus_index=index)
    queries, corpus = (
        encode(texts, convert_to_tensor=True)
        for encode, texts in ((model.encode_query, ["dog", "red"]), (model.encode_document, texts))
    )
    found, _ = semantic_search_lucene(queries, corpus)
    assert [[hit["corpus_id"] for hit in hits] for hits in found] == [[0], [2]]
