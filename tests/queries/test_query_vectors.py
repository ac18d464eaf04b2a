"""Batches of encoded queries as columns, and the weights that they refuse; feedback."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import write_shards

from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import read_impacts, read_vector
from lexvl_anserini.engines.lucene.writing import IndexOptions
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import ImpactQuery, TermWeights, Vocabulary
from lexvl_anserini.queries import query_source
from lexvl_anserini.queries.clauses import QueryBatch, Term
from lexvl_anserini.queries.query_source import check_known
from lexvl_anserini.queries.query_vectors import Feedback, ShardVectors, integers, rocchio

VOCABULARY = Vocabulary(["a", "b", "c", "d"])


def encoded(weights: dict[int, int]) -> TermWeights:
    """A vector as an encoder's."""
    return TermWeights(VOCABULARY, np.array(list(weights), np.int32), np.array(list(weights.values()), np.int64))


def batch_of(*vectors: Any) -> QueryBatch:
    return QueryBatch([ImpactQuery(f"q{number}", vector) for number, vector in enumerate(vectors)])


def test_queries_follow_each_other():
    batch = batch_of({"x": 3, "y": 4}, {}, encoded({2: 5}), {"z": np.int32(6), "w": 2.0}, {})
    assert batch.query_ids == ["q0", "q1", "q2", "q3", "q4"] and len(batch) == 5
    assert batch.ends.tolist() == [0, 2, 2, 3, 5, 5] and batch.weights.tolist() == [3, 4, 5, 6, 2]
    assert [*map(dict, batch.vectors)] == [{"x": 3, "y": 4}, {}, {"c": 5}, {"z": 6, "w": 2}, {}]
    assert all(type(weight) is int for vector in batch.vectors for weight in vector.values())
    assert QueryBatch.build(batch) is batch and len(batch_of()) == 0 and batch_of().weights.dtype == np.int64


@pytest.mark.parametrize("weight", [0, -1, 1 << 24, 1 << 70, -(1 << 70), True, 1.5, float("nan"), "3", None])
def test_other_weights_are_refused_with_topic_and_term(weight: Any):
    with pytest.raises(UsageError, match="topic 'q1': weight .* of term 'b': expected an integer from 1 to 16,777,215"):
        batch_of({"a": 1}, {"a": 1, "b": weight})
    with pytest.raises(UsageError, match="topic 'q1': weight 16777216 of term 'd'"):  # those of an encoder too
        batch_of({"a": 1}, encoded({3: 1 << 24}))


def test_weights_of_a_single_query_are_columns_too():
    batch = batch_of(TermWeights(VOCABULARY, np.array([2], np.int32), np.array([5], np.int32)))
    assert batch.weights.tolist() == [5] and batch.weights.dtype == np.int64


@given(st.lists(st.lists(st.integers(1, (1 << 24) - 1), max_size=4), max_size=6))
def test_the_largest_sum(rows: list[list[int]]):
    batch = batch_of(*(dict(zip("abcd", row, strict=False)) for row in rows))
    assert batch.largest_sum() == max(map(sum, rows), default=0)


DOCUMENTS = [("d1", {"a": 3, "b": 4}), ("d2", {"b": 1}), ("é😀", {"日本": 5, "😀": 2}), ("empty", {})]


def test_rocchio_by_hand() -> None:
    # |q| = 1; d1/|d1| = (0.6, 0.8), d2/|d2| = (0, 1): the mean is a 0.3, b 0.9.
    moved = rocchio({"a": 7}, [{"a": 3, "b": 4}, {"b": 1}], Feedback(documents=2, terms=2, alpha=1, beta=0.5))
    assert moved == pytest.approx({"a": 1.15, "b": 0.45})
    assert rocchio({"a": 7}, [{"a": 3, "b": 4}, {"b": 1}], Feedback(2, 1, 1, 0.5)) == pytest.approx({"a": 1, "b": 0.45})
    assert rocchio({"a": 7}, [], Feedback()) == {"a": 1}
    assert rocchio({"a": 7}, [{}], Feedback()) == {"a": 1}
    assert rocchio({}, [{"b": 2}], Feedback(beta=1)) == {"b": 1}


def test_integers_keep_scores_below_the_limit() -> None:
    assert integers({"a": 1.0, "b": 0.5, "c": 0.001}, lambda vector: 0) == {"a": 255, "b": 128}
    assert integers({}, lambda vector: 0) == {}
    # At 255 and 127 a score could pass 2^24, at 63 no more.
    assert integers({"a": 2.0}, lambda vector: vector["a"] * 2**18) == {"a": 63}


@pytest.mark.parametrize("wrong", [{"documents": 0}, {"terms": 0}, {"alpha": -1}, {"alpha": 0, "beta": 0}])
def test_numbers_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="feedback"):
        Feedback(**wrong)  # type: ignore[arg-type]


def test_vectors_from_shards_and_from_the_index(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "shards", DOCUMENTS[:2], DOCUMENTS[2:])
    vectors = ShardVectors(tmp_path / "shards", manifest)
    LuceneEngine.build(tmp_path / "shards", tmp_path / "index", manifest, options=IndexOptions(term_vectors=True))
    engine = LuceneEngine(tmp_path / "index", manifest)
    for doc_id, vector in DOCUMENTS:
        assert vectors(doc_id) == vector
        assert read_vector(engine.reader, doc_id) == vector
        some = {term: vector[term] for term in ("😀", "a") if term in vector}
        assert read_impacts(engine.reader, doc_id, ["😀", "a", "nowhere"]) == some
    for read in (vectors, lambda doc_id: read_vector(engine.reader, doc_id)):
        with pytest.raises(DataError, match="no document 'd9' in the"):
            read("d9")
    engine.close()
    LuceneEngine.build(tmp_path / "shards", tmp_path / "plain", manifest)
    engine = LuceneEngine(tmp_path / "plain", manifest)
    with pytest.raises(UsageError, match="no term vectors; build it with --term-vectors, or name the shards"):
        read_vector(engine.reader, "d1")
    engine.close()


def test_shards_of_another_index(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "a", DOCUMENTS)
    write_shards(tmp_path / "b", DOCUMENTS[:1])
    with pytest.raises(ArtefactError, match="not the shards that the index was built from"):
        ShardVectors(tmp_path / "b", manifest)


def test_an_unknown_term_is_compared_with_some_that_begin_alike(monkeypatch):
    known = [*(f"c{number}" for number in range(30_000)), "boat", "board", "boats-and-ships"]
    with pytest.raises(UsageError, match="term 'Baot' is not in the vocabulary of the index; did you mean 'boat'"):
        check_known(Term("Baot"), known)
    compared = []
    monkeypatch.setattr(query_source, "get_close_matches", lambda _, names, **options: compared.extend(names) or [])
    with pytest.raises(UsageError, match="term 'c99' is not in the vocabulary of the index$"):
        check_known(Term("c99"), known[100:])
    assert len(compared) == query_source.MOST_COMPARED and max(map(len, compared)) <= 5
