"""Synthetic vectors and matrices: terms by the law, the same for the same seed, real shards."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lexvl_anserini.ground.errors import ArtefactError, DataError, UnknownName, UsageError
from lexvl_anserini.ground.records import ImpactDocument, ImpactQuery
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary
from lexvl_plugins.bench import vectors as made

SMALL = made.VectorShape(terms=3, size=8, exponent=1.0, shift=0.0, least=1, gamma=2.0, scale=40.0)


def test_inclusion_is_the_law_capped_at_one():
    # 1, 1/2, ..., 1/8 scaled to a sum of 3 would give the first term 1.104: it is sure, the others share 2.
    inclusion = SMALL.inclusion
    assert inclusion[0] == 1.0
    assert inclusion.sum() == pytest.approx(3)
    assert inclusion[1] / inclusion[3] == pytest.approx(4 / 2)
    assert (np.diff(inclusion) < 0).all()


@given(
    terms=st.integers(1, 40),
    spare=st.integers(0, 40),
    exponent=st.floats(0.0, 3.0),
    shift=st.floats(0.0, 300.0),
    seed=st.integers(0, 99),
)
def test_rows_are_ascending_and_complete(terms, spare, exponent, shift, seed):
    shape = made.VectorShape(terms, terms + spare, exponent, shift, 1, 2.0, 40.0)
    vectors = shape.documents(7, np.random.default_rng(seed))
    dims = vectors.indices.reshape(7, terms)
    assert (np.diff(dims, axis=1) > 0).all() if terms > 1 else True
    assert dims.min() >= 0 and dims.max() < shape.size
    assert vectors.data.min() >= 1 and vectors.data.max() <= 255


def test_document_frequencies_follow_the_law():
    shape = made.find_shape("splade")
    vectors = shape.documents(20_000, np.random.default_rng(1))
    share = np.bincount(vectors.indices, minlength=shape.size) / 20_000
    for term in (0, 10, 100, 1000):
        assert share[term] == pytest.approx(shape.inclusion[term], rel=0.1)
    assert 75 < vectors.data.mean() < 85
    # The expected overlap, sum of p_query x p_document, that the shape was fitted to.
    assert float(made.find_shape("splade", 30).inclusion @ shape.inclusion) == pytest.approx(2.1, abs=0.1)


@pytest.mark.parametrize(
    "name,terms,error", [("spalde", None, UnknownName), ("vdr", 0, UsageError), ("splade", 30_523, UsageError)]
)
def test_unknown_shapes_are_refused(name, terms, error):
    with pytest.raises(error):
        made.find_shape(name, terms)


TINY = made.Mixture(
    terms=9, size=50, topics=4, topic_words=5, related=3, document_words=4, query_words=2, strangers=1, heaviest=90.0
)


def test_texts_of_a_topic_share_its_words():
    topics, related = TINY.language.topics.tolist(), TINY.language.related
    for row in TINY.documents(30, np.random.default_rng(1)):
        terms = set(row.indices.tolist())
        # Every term comes from words of one topic, or from the one word that belongs to none.
        fitting = [terms - {t for word in words for t in related[word].tolist()} for words in topics]
        assert any(any(rest <= set(related[word].tolist()) for word in range(50)) for rest in fitting)


def test_the_heaviest_terms_of_a_text_remain():
    few, all_terms = (replace(TINY, terms=terms).documents(20, np.random.default_rng(3)) for terms in (2, 50))
    for row, whole in zip(few, all_terms, strict=True):
        assert row.nnz == min(2, whole.nnz) and (np.diff(row.indices) > 0).all()
        assert sorted(row.data) == sorted(whole.data)[-row.nnz :]
        assert all(whole[0, term] == impact for term, impact in zip(row.indices, row.data, strict=True))
    assert all_terms.data.min() >= 1 and all_terms.data.max() <= 255


def test_a_mixture_has_the_lengths_and_overlap_that_it_is_fitted_to():
    mixture = made.find_shape("mixture")
    documents = mixture.documents(3000, np.random.default_rng(1))
    queries = mixture.queries(100, None, np.random.default_rng(2))
    assert 140 < documents.nnz / 3000 < 147 and 43 < queries.nnz / 100 < 49
    share = np.bincount(documents.indices, minlength=mixture.size) / 3000
    assert 3.2 < ((queries > 0) @ share).mean() < 4.3
    # Terms occur together: the best of 3,000 documents is far above the median one.
    scores = np.sort((queries @ documents.T).toarray(), axis=1)
    assert (scores[:, -1] / np.maximum(scores[:, 1500], 1)).mean() > 8
    assert mixture.queries(5, 10, np.random.default_rng(2)).nnz == 50


def tower(seed=1):
    return made.NumberTower(
        lambda number: SMALL.documents(made.BLOCK, np.random.default_rng([seed, 0, number])), SMALL.size
    )


def test_a_vector_depends_on_its_number_and_the_seed_only():
    """Rows come in the order of the inputs."""
    numbers = [0, made.BLOCK - 1, made.BLOCK, 3, made.BLOCK + 1, 2 * made.BLOCK + 5]
    together = tower().weights(list(map(str, numbers)))
    for row, number in enumerate(numbers):
        assert (tower().weights([str(number)]) != together[row]).nnz == 0
    assert (tower(2).weights(["0"]) != together[0]).nnz > 0
    assert tower().weights([]).shape == (0, 8)


def test_a_matrix_becomes_shards(tmp_path):
    path = tmp_path / "docs.npz"
    rows = np.array([[0, 7, 0], [255, 0, 1], [0, 0, 0]])
    sparse.save_npz(path, sparse.csr_matrix(rows))
    manifest = made.write_matrix(tmp_path / "shards", path)
    held = list(read_impacts(tmp_path / "shards", manifest, read_vocabulary(tmp_path / "shards", manifest)))
    assert [document.vector for document in held] == [{"t00001": 7}, {"t00000": 255, "t00002": 1}, {}]
    for wrong in (rows * 2 // 2 + (rows > 9), rows / 2):
        sparse.save_npz(path, sparse.csr_matrix(wrong))
        with pytest.raises(DataError, match="integers from 1 to 255; quantise"):
            made.read_impact_matrix(path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="docs.npz: no sparse matrix"):
        made.read_impact_matrix(path)


@pytest.mark.parametrize("shard_format", ["jsonl", "parquet"])
def test_shards_are_real_shards(tmp_path, shard_format):
    manifest = made.write_synthetic(tmp_path / "a", SMALL, 10, shard_format=shard_format)
    assert manifest.counts == {
        "documents": 10, "empty": 0, "postings": 30, "clipped": 0, "dropped": 0,
        "max_impact": manifest.counts["max_impact"],
    }  # fmt: skip
    vocabulary = read_vocabulary(tmp_path / "a", manifest)
    assert vocabulary.terms[:2] == ("t00000", "t00001")
    found = list(read_impacts(tmp_path / "a", manifest, vocabulary))
    assert [document.doc_id for document in found] == [f"d{number:08d}" for number in range(10)]
    expected = tower(20240307).weights(list(map(str, range(10))))
    assert [list(document.vector.values()) for document in found] == [row.data.tolist() for row in expected]
    with pytest.raises(ArtefactError, match="another request"):
        made.write_synthetic(tmp_path / "a", SMALL, 10, seed=2, shard_format=shard_format)


def test_queries_have_the_terms_asked_for():
    queries = made.draw_queries(SMALL, 4, 2, seed=1)
    assert [query.query_id for query in queries] == ["q00000", "q00001", "q00002", "q00003"]
    assert all(len(query.vector) == 2 and max(query.vector.values()) == 255 for query in queries)
    assert queries == made.draw_queries(SMALL, 4, 2, seed=1)
    with pytest.raises(UsageError, match="expected 1 to 8"):
        made.draw_queries(SMALL, 4, 9)


def test_long_queries_lose_bits_until_no_score_passes_the_bound():
    [query] = made.make_queries(sparse.csr_matrix(np.full((1, 2000), 255.0)), [str(i) for i in range(2000)])
    assert sum(query.vector.values()) * 255 < 1 << 24
    assert max(query.vector.values()) > 1


def test_pooled_queries_ask_frequent_terms_often():
    documents = [ImpactDocument(f"d{i}", {"common": 7, f"rare{i}": 300}) for i in range(50)]
    queries = made.draw_from_pool(documents, 40, 2)
    counts = Counter(term for query in queries for term in query.vector)
    assert counts.most_common(1)[0][0] == "common"
    assert {weight for query in queries for weight in query.vector.values()} == {7, 255}
    assert all(len(query.vector) == 2 for query in queries)
    [query] = made.draw_from_pool([ImpactDocument("d", {"one": 1})], 1, 30)
    assert query.vector == {"one": 1}, "a query of few terms is shorter"
    with pytest.raises(DataError, match="no query can be drawn"):
        made.draw_from_pool([ImpactDocument("d", {})], 1, 30)


def test_given_queries_become_eight_bits(tmp_path):
    path = tmp_path / "q.jsonl.gz"
    rows = [{"id": "a", "vector": {"dog": 2550, "cat": 10, "gone": 0}}, {"id": "b", "vector": {"dog": 5}}]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    # 10 / 2550 x 255 = 1; a term of weight 0 asks for nothing.
    assert made.read_encoded(path, 5) == [ImpactQuery("a", {"cat": 1, "dog": 255}), ImpactQuery("b", {"dog": 255})]
    assert len(made.read_encoded(path, 1)) == 1


@pytest.mark.parametrize(
    "line,told", [('{"id": "a"}', "line 1"), ("[]", "line 1"), ("nonsense", "line 1"), ("", "no query in it")]
)
def test_given_queries_that_are_none(tmp_path, line, told):
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(DataError, match=told):
        made.read_encoded(tmp_path / "q.jsonl", 5)


@pytest.mark.shared
def test_real_splade_queries_can_be_asked(shared):
    queries = made.read_encoded(shared / "data/sparse-queries/msmarco-passage.dev-subset.splade-pp-ed.jsonl.gz", 100)
    assert len(queries) == 100
    assert all(sum(query.vector.values()) * 255 < 1 << 24 for query in queries)
