"""Differential searches: random corpora, queries, trees and expressions; expected are dot products in Python."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brute_force import Doc, Oracle
from histories import draw_tree
from memory_engine import MemoryEngine
from rounds import Rounds
from shard_folders import Documents, write_shards

from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.queries.clauses import Boost, Clause, Impacts, Not, Term, Unscored
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.searching.building import build_index, check_index
from lexvl_anserini.searching.shared_terms import explain_documents

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=3)]

LETTERS = ["a", "b", "é", "日本", "😀", "##s", "x-y", "AND", "(", "^", '"', "\\", "+c", "meta.z:1"]
IDS = ["d", "D", "é/", "😀", "a#", "10", "9"]

Vectors = Mapping[str, Mapping[str, int]]


def drawn(random: Random) -> tuple[list[str], Vectors]:
    """Terms and documents: few or many, heavy or light, with ties, empty documents, and terms that no document has."""
    terms = [random.choice(LETTERS) + str(number) for number in range(random.choice([1, 4, 40, 400]))]
    largest = random.choice([1, 3, 255, 65_535, SCORE_LIMIT - 1])
    vectors = {}
    for number in range(random.choice([1, 7, 60, 300])):
        length = random.choice([0, 1, 3, 30, len(terms)])
        # Small numbers are drawn more often: terms of many documents.
        some = {terms[int(len(terms) * random.random() ** 3)] for _ in range(length)}
        vectors[random.choice(IDS) + str(number)] = {term: random.randint(1, largest) for term in sorted(some)}
    if not any(vectors.values()):
        vectors["full"] = {terms[0]: largest}
    return terms, vectors


def built(random: Random, folder: Path, terms: list[str], vectors: Vectors) -> Path:
    """The index, made at once or merged; those that change: `histories.py`."""
    documents: Documents = list(vectors.items())
    suffix = random.choice(["jsonl", "jsonl.gz", "parquet"])
    cuts = sorted(random.sample(range(len(documents) + 1), min(2, len(documents))))
    pieces = [documents[a:b] for a, b in zip([0, *cuts], [*cuts, len(documents)], strict=True) if a < b]
    every = [folder / f"shards{number}" for number in range(len(pieces))]
    # A folder of shards without a document is no index.
    for place, piece in zip(every, pieces, strict=True):
        write_shards(place, piece, terms=terms, suffix=suffix)
    options = {"threads": random.randint(1, 3), "term_vectors": random.random() < 0.5}
    return build_index(every, folder / "index", **options).path


def bound_of(vectors: Vectors, query: Mapping[str, float]) -> float:
    return sum(w * max((vector.get(t, 0) for vector in vectors.values()), default=0) for t, w in query.items())


def expected(vectors: Vectors, query: Mapping[str, int], hits: int) -> list[tuple[str, float]]:
    scores = {doc_id: sum(w * vector.get(t, 0) for t, w in query.items()) for doc_id, vector in vectors.items()}
    ordered = sorted(((doc_id, score) for doc_id, score in scores.items() if score), key=lambda hit: (-hit[1], hit[0]))
    return [(doc_id, float(score)) for doc_id, score in ordered[:hits]]


def some_query(random: Random, terms: list[str]) -> dict[str, int]:
    largest = random.choice([1, 2, 255, 2**16, SCORE_LIMIT - 1])
    chosen = random.sample(terms, random.randint(0, min(len(terms), 50))) + ["nowhere"] * (random.random() < 0.2)
    return {term: random.randint(1, largest) for term in chosen}


def most_of(clause: Clause, vectors: Vectors) -> float:
    if isinstance(clause, Impacts):
        return bound_of(vectors, clause.vector)
    if isinstance(clause, Term):
        return bound_of(vectors, {clause.term: clause.weight})
    if isinstance(clause, Not | Unscored):
        return 0
    return (clause.weight if isinstance(clause, Boost) else 1) * sum(most_of(c, vectors) for c in clause.children())


def quoted(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def some_expression(random: Random, terms: list[str], depth: int = 3) -> str:
    parts = []
    for _ in range(random.randint(1, 4)):
        if depth and random.random() < 0.4:
            part = f"({some_expression(random, terms, depth - 1)})" + random.choice(["", "", "^1", "^3"])
        else:
            part = quoted(random.choice(terms)) + random.choice(["", "", "^2", "^200"])
        parts += [random.choice(["", "", "", "+", "-", "NOT "]) + part]
        if random.random() < 0.3:
            parts += [random.choice(["AND", "OR"]), random.choice(["", "NOT "]) + quoted(terms[0])]
    return " ".join(parts)


def answers(engine: Any, query: Mapping[str, int] | Clause, hits: int) -> list[tuple[str, float]] | str:
    """The hits, or the refusal of a score that is not exact."""
    try:
        tree = isinstance(query, Clause)
        found = engine.search_tree("q", query, hits) if tree else next(engine.search([ImpactQuery("q", query)], hits))
    except ArtefactError as error:
        assert "topic 'q': its score could reach" in str(error), error
        return "refused"
    assert [hit.rank for hit in found] == list(range(1, len(found) + 1))
    return [(hit.doc_id, hit.score) for hit in found]


def compare_queries(
    random: Random, engine: LuceneEngine, exact: MemoryEngine, terms: list[str], vectors: Vectors
) -> int:
    queries = [some_query(random, terms) for _ in range(40)]
    hits = random.choice([1, 2, 10, len(vectors), len(vectors) + 5])
    allowed = [query for query in queries if bound_of(vectors, query) < SCORE_LIMIT]
    for query in queries:
        wanted = expected(vectors, query, hits) if query in allowed else "refused"
        assert answers(engine, query, hits) == wanted, query
    stream = [ImpactQuery(str(number), query) for number, query in enumerate(allowed)]
    wanted = [expected(vectors, query, hits) for query in allowed]
    for lists in (engine.search(stream, hits, random.randint(1, 4)), exact.search(stream, hits)):
        assert [[(hit.doc_id, hit.score) for hit in found] for found in lists] == wanted
    if allowed:
        ids = random.sample(sorted(vectors), min(3, len(vectors)))
        for explanation, doc_id in zip(explain_documents(engine, stream[0], ids), ids, strict=True):
            assert explanation.score == dict(expected(vectors, allowed[0], len(vectors))).get(doc_id, 0)
    return 2 * len(queries)


def trees(random: Random, terms: list[str], ids: list[str]) -> Iterator[Clause]:
    for _ in range(25):
        yield draw_tree(random, terms, ids)
    for _ in range(25):
        try:
            yield parse(some_expression(random, terms))
        except UsageError as error:
            # Two operators side by side, such as `+NOT a`.
            assert "expected a term" in str(error), error


def compare_trees(random: Random, engine: LuceneEngine, terms: list[str], vectors: Vectors) -> int:
    oracle = Oracle([Doc(doc_id, vector) for doc_id, vector in vectors.items()])
    every = list(trees(random, terms, sorted(vectors)))
    for tree in every:
        hits = random.choice([1, 5, len(vectors) + 1])
        wanted = oracle.ranked(tree, hits) if most_of(tree, vectors) < SCORE_LIMIT else "refused"
        assert answers(engine, tree, hits) == wanted, tree
    return len(every)


def test_searches_equal_dot_products(rounds: Rounds) -> None:
    for one in rounds:
        terms, vectors = drawn(one.random)
        index = built(one.random, one.folder, terms, vectors)
        write_shards(one.folder / "all", list(vectors.items()), terms=terms)
        exact = MemoryEngine(one.folder / "all", read_manifest(one.folder / "all"))
        engine = LuceneEngine(index, read_manifest(index))
        try:
            searches = compare_queries(one.random, engine, exact, terms, vectors)
            searches += compare_trees(one.random, engine, terms, vectors)
            for doc_id in one.random.sample(sorted(vectors), min(5, len(vectors))):
                assert engine.impacts(doc_id, terms) == {t: vectors[doc_id][t] for t in terms if t in vectors[doc_id]}
        finally:
            engine.close()
        shards = sorted(path for path in one.folder.iterdir() if path.name.startswith("shards"))
        assert check_index(index, shards)["problems"] == 0
        rounds.count("differential searches", searches)
