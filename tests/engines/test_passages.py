"""Documents scored by their passages, in every form of an index: equal to all passages scored and grouped."""

from collections.abc import Mapping
from contextlib import closing
from itertools import product

import numpy as np
import pytest
from brute_force import by_passages
from hypothesis import given, settings
from hypothesis import strategies as st
from lucene_indexes import TERMS, shards
from shard_folders import write_dense_shards

from lexvl_anserini.engines.faiss import FaissEngine
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.resident import choosing
from lexvl_anserini.engines.resident.layout import BLOCK
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery
from lexvl_anserini.ground.typed import MOST
from lexvl_anserini.queries.clauses import Ids, Not, Term
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.searching.building import append_index, build_index, delete_documents
from tests.engines.test_resident import large, resident_of

# Ids of passages whose order is not that of their documents, of documents without passages, and of neither.
NAMES = ["a", "a!", "a!#0", "a!#1", "a!b#0", 'a"#1', "a#0", "a#1", "a#2", "a#10", "ab#0", "#", "#x", "é#0"]
NAMES += ["😀#0", "😀#1"]

Rows = Mapping[str, Mapping[int, int]]


def scores_of(rows, ids, vector):
    scores = {}
    for term, weight in vector.items():
        for document, impact in rows.get(term, {}).items():
            scores[ids[document]] = scores.get(ids[document], 0) + weight * impact
    return scores


def expected(scores, best, hits, query_id="q"):
    return rank_hits(query_id, by_passages(scores, best).items(), hits)


@settings(max_examples=100)
@given(
    order=st.permutations(range(len(NAMES))),
    deleted=st.sets(st.integers(0, len(NAMES) - 1), max_size=4),
    rows=st.dictionaries(
        st.sampled_from("abc"), st.dictionaries(st.integers(0, len(NAMES) - 1), st.integers(1, 3), min_size=1)
    ),
    queries=st.lists(
        st.dictionaries(st.sampled_from("abcz"), st.integers(1, 3) | st.just(100)), min_size=1, max_size=9
    ),
    hits=st.integers(1, 20),
    best=st.sampled_from([1, 2, 3, MOST]),
    threads=st.sampled_from([1, 3]),
    filtered=st.booleans(),
)
def test_small_resident_collections(tmp_path, order, deleted, rows, queries, hits, best, threads, filtered):
    """Ties, deletions, filters, documents of one passage; keys are sorted out in every order.

    What a filter excludes has impacts that only deleted documents can have: they lift a sum to anything.
    """
    ids = {number: NAMES[place] for number, place in enumerate(order) if number not in deleted}
    rows = {term: kept for term, row in rows.items() if (kept := {d: i for d, i in row.items() if d in ids})}
    if filtered:
        rows = {term: {d: i if d % 3 else (1 << 24) - 1 for d, i in row.items()} for term, row in rows.items()}
    resident = resident_of(tmp_path, rows, ids, len(NAMES), width=4)
    allowed = np.array([n % 3 != 0 for n in range(len(NAMES))], np.uint8) if filtered else None
    lists = resident.lists([ImpactQuery("q", vector) for vector in queries], hits, threads, allowed, best)
    if filtered:
        rows = {term: {d: i for d, i in row.items() if d % 3} for term, row in rows.items()}
    assert lists == [expected(scores_of(rows, ids, vector), best, hits) for vector in queries]


def test_several_blocks_and_full_rooms_for_keys(tmp_path):
    """Groups of 1 to 2,000 passages that lie in several blocks; blocks are skipped, columns looked up for few."""
    documents, terms = 2 * BLOCK + 777, 12
    matrix, rng = large(7, documents, terms, 255), np.random.default_rng(8)
    owners = np.sort(rng.integers(0, 3000, documents) ** 2 // 3000)[rng.permutation(documents)]
    ids = [f"d{owner}#{number}" for number, owner in enumerate(owners.tolist())]
    rows = {}
    for term in range(terms):
        some = slice(*matrix.indptr[term : term + 2])
        rows[f"t{term:02}"] = dict(zip(matrix.indices[some].tolist(), matrix.data[some].tolist(), strict=True))
    resident = resident_of(tmp_path, rows, dict(enumerate(ids)), documents)
    for seed in range(4):
        weights = rng.integers(0, 9, terms) * (rng.random(terms) < 0.6)
        vector = {f"t{term:02}": int(weight) for term, weight in enumerate(weights) if weight}
        scores = matrix @ weights
        by_id = {ids[d]: float(scores[d]) for d in np.flatnonzero(scores)}
        for best, hits in product((1, 2, MOST), (1, 10, 700)):
            [documents_found] = resident.lists([ImpactQuery("q", vector)], hits, 1, None, best)
            assert documents_found == expected(by_id, best, hits), (seed, best, hits)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """An index of three segments with marked passages and an empty one; and its passages, of documents in each."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("passages")
    passages = {
        name: {term: int(rng.integers(1, 4)) for term in TERMS if rng.random() < 0.6}
        for name in [*NAMES, *(f"d{n % 7}#{n}" for n in range(40))]
    }
    passages["d1#empty"] = {}
    names = rng.permutation(list(passages)).tolist()
    parts = [[(name, passages[name]) for name in some] for some in (names[:48], names[48:-1], names[-1:])]
    index = build_index(shards(folder / "0", parts[0]), folder / "index").path
    gone = names[1:40:9]
    delete_documents(index, gone)
    for number in (1, 2):
        append_index(index, shards(folder / str(number), parts[number]))
    assert [of.documents for of in choosing.read_resident_files(index).values()] == [48, 8, 1]
    return index, {name: vector for name, vector in passages.items() if name not in gone}


@pytest.mark.parametrize("form", ["lucene", "auto", "resident"])
@pytest.mark.parametrize("where", [None, Term("b"), Not(Term("a")), Ids(("a#1", "d1#8", "d1#1", "d2#9", "no"))])
def test_every_form_of_an_index_that_changed(changed, form, where, monkeypatch):
    index, passages = changed
    monkeypatch.setenv(choosing.VARIABLE, form)
    matching = {
        None: lambda name, vector: True,
        Term("b"): lambda name, vector: "b" in vector,
        Not(Term("a")): lambda name, vector: "a" not in vector,
    }.get(where, lambda name, vector: isinstance(where, Ids) and name in where.doc_ids)
    vectors = [{"a": 2, "日本": 1}, {"b": 1}, {}, {"a": 1, "b": 1, "##c": 3, "😀": 2}]
    queries = [ImpactQuery(str(number), vector) for number, vector in enumerate(vectors)]
    there = {name: vector for name, vector in passages.items() if matching(name, vector)}
    with closing(LuceneEngine(index, read_manifest(index))) as engine:
        for best, hits in product((1, 2, MOST), (1, 3, 50)):
            lists = list(engine.search_passages(queries, best, hits, threads=2, where=where))
            for query, documents in zip(queries, lists, strict=True):
                scores = {
                    name: sum(w * vector.get(t, 0) for t, w in query.vector.items()) for name, vector in there.items()
                }
                scores = {name: score for name, score in scores.items() if score}
                assert documents == expected(scores, best, hits, query.query_id)


def test_dense_vectors(tmp_path):
    """Inner products below zero too: of such passages, more make a sum smaller."""
    rng = np.random.default_rng(2)
    vectors = {f"d{n % 9}#{n}": rng.integers(-9, 9, 4).astype(np.float32) for n in range(80)}
    write_dense_shards(tmp_path / "shards", list(vectors.items()))
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    engine, query = FaissEngine(index, read_manifest(index)), np.array([1, -2, 3, 1], np.float32)
    scores = {name: float(vector @ query) for name, vector in vectors.items()}
    for best, hits in product((1, 3, MOST), (2, 9)):
        [documents] = engine.search_passages([DenseQuery("q", query)], best, hits)
        assert documents == expected(scores, best, hits)
    engine.close()
