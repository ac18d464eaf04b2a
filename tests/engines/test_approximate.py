"""Approximate search: every score is the dot product, and the measured recall is the one that a search has."""

import logging

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lucene_indexes import flip
from shard_folders import write_dense_shards, write_shards

from eval.measures.inputs import describe_run
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    MEASURED_HITS,
    REACHES,
    IndexReport,
    choose_setting,
    compute_mean_recall,
    read_report,
)
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.resident import approximate as approximating
from lexvl_anserini.engines.resident.approximate import ApproximatePostings, DocumentVectors, group, summaries
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import read_json, write_json
from lexvl_anserini.ground.manifest import RunManifest, read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.index import command as index_command
from lexvl_anserini.queries.clauses import Term, TreeQuery
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import (
    append_index,
    approximate_index,
    build_index,
    check_index,
    delete_documents,
    repair_index,
)
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import search_index
from tests.invoking import invoked

TERMS = [f"t{number}" for number in range(60)]


def documents_of(count, seed=5):
    """Documents around eight topics, each with terms of its own; one document is empty."""
    rng = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        topic, length = int(rng.integers(8)), int(rng.integers(3, 9))
        near = [(7 * topic + int(step)) % 60 for step in rng.integers(0, 10, length)]
        far = rng.integers(0, 60, 2).tolist()
        documents.append((f"d{number}", {TERMS[term]: int(rng.integers(1, 200)) for term in (*near, *far)}))
    return [*documents, ("empty", {})]


DOCUMENTS = documents_of(700)


def queries_of(count, seed=9):
    vectors = documents_of(count, seed)[:-1]
    return [ImpactQuery(doc_id.replace("d", "q"), vector) for doc_id, vector in vectors]


def test_documents_of_the_greatest_impacts_are_prepared(tmp_path):
    """Already two of their terms, with weights of 1, reach 2^24; it was an error."""
    write_shards(tmp_path / "shards", [(f"d{n}", {"a": 2**24 - 1 - n, "b": 2**24 - 1}) for n in range(3)])
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    assert approximate_index(index).documents == 3
    [found] = search_index(index, ImpactQuery("q", {"a": 1}), 2, approximate=0.9)
    assert [(hit.doc_id, hit.score) for hit in found] == [("d0", 2.0**24 - 1), ("d1", 2.0**24 - 2)]


def csr(rows):
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    pairs = [pair for row in rows for pair in sorted(row.items())]
    return DocumentVectors(starts, np.array([t for t, _ in pairs], "<u2"), np.array([i for _, i in pairs], "<u1"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Shards, and their index, prepared."""
    folder = tmp_path_factory.mktemp("approximate")
    write_shards(folder / "shards", DOCUMENTS, terms=TERMS)
    index = build_index(folder / "shards", folder / "index").path
    approximate_index(index)
    return folder / "shards", index


@pytest.fixture
def index(built, tmp_path):
    """One that the test may change."""
    path = build_index(built[0], tmp_path / "index").path
    approximate_index(path)
    return path


def searched(index, queries, hits, recall):
    return list(search_index(index, queries, hits, approximate=recall))


def dot(vector, document):
    return sum(weight * document.get(term, 0) for term, weight in vector.items())


def test_similar_documents_are_in_one_group(monkeypatch):
    monkeypatch.setattr(approximating, "GROUP_SIZE", 2)
    # Even documents have the term 0, odd ones the term 1; the last two have none.
    rows = [{number % 2: 9, 2 + number % 3: 1} for number in range(20)] + [{}, {}]
    members, starts = group(csr(rows), 5)
    assert sorted(members.tolist()) == list(range(20))
    parts = [members[a:b].tolist() for a, b in zip(starts, starts[1:], strict=False)]
    assert all(1 <= len(part) <= 4 and len({number % 2 for number in part}) == 1 for part in parts)


def test_equal_documents_are_divided_all_the_same(monkeypatch):
    monkeypatch.setattr(approximating, "GROUP_SIZE", 4)
    members, starts = group(csr([{0: 3}] * 50), 1)
    assert members.tolist() == list(range(50)) and max(np.diff(starts)) <= 8
    assert len(group(csr([{}]), 1)[0]) == 0


def test_summaries_by_hand():
    """Groups {0, 1} and {2}: the largest impacts up to .6 of the sum, and the greatest of each term."""
    vectors = csr([{0: 50, 1: 10}, {0: 60, 2: 25, 3: 5}, {1: 30, 2: 20, 3: 4}])
    got = summaries(vectors, np.array([0, 1, 2]), np.array([0, 2, 3]), np.array([60, 30, 25, 5], "i4"))
    # Of the first, 60 is .6 of 100; 25 and 5 are the greatest of their terms. Of the second, 30 + 20 reach .6 of 54.
    assert list(zip(*(part.tolist() for part in got), strict=True)) == [
        (0, 0, 60), (1, 1, 30), (0, 2, 25), (1, 2, 20), (0, 3, 5)
    ]  # fmt: skip


def recall_of(exact, lists, hits):
    best = [of_query.scores[:hits] for of_query in exact]
    return compute_mean_recall(
        [(len(scores), scores.min(initial=np.inf)) for scores in best], [found.scores for found in lists]
    )


def test_a_recall_is_a_number_of_python():
    """One of two hits, all of one, and a query without hits: .75, which is written as JSON."""
    recall = compute_mean_recall([(2, 5), (1, 4), (0, np.inf)], [np.array([7, 3]), np.array([4]), np.array([1])])
    assert type(recall) is float and recall == 0.75


def test_every_score_is_the_dot_product_and_lists_have_their_order(built):
    _, index = built
    queries, vectors = queries_of(40), dict(DOCUMENTS)
    exact = searched(index, queries, 1000, None)
    for recall in (0.5, 0.9):
        for hits in (1, 10, 100):
            lists = searched(index, queries, hits, recall)
            for query, hits_of_query in zip(queries, lists, strict=True):
                expected = sorted((-dot(query.vector, vectors[h.doc_id]), h.doc_id.encode()) for h in hits_of_query)
                assert [(-h.score, h.doc_id.encode()) for h in hits_of_query] == expected
                assert [h.rank for h in hits_of_query] == list(range(1, len(hits_of_query) + 1))
            assert recall_of(exact, lists, hits) > recall - 0.2


def test_a_measurement_is_what_a_search_finds(built, tmp_path):
    """Every setting of index.json, measured again by the queries of a file."""
    queries = queries_of(30)
    write_queries(tmp_path / "q.jsonl", queries)
    index = build_index(built[0], tmp_path / "index").path
    approximate_index(index, tmp_path / "q.jsonl")
    report, exact = read_report(index), searched(index, queries, 1000, None)
    measured = report.approximation
    assert (measured.queries, measured.source) == (30, "queries of q.jsonl")
    assert report.approximate_bytes == (index / APPROXIMATE).stat().st_size
    with (index / APPROXIMATE).open("rb") as file:
        postings = ApproximatePostings(file, index / APPROXIMATE)
    recalls = {hits: [s["recall"] for s in measured["settings"] if s["hits"] == hits] for hits in MEASURED_HITS}
    assert all(sorted(of_hits) == of_hits and of_hits[-1] > 0.8 for of_hits in recalls.values())
    for setting in measured["settings"]:
        again = recall_of(exact, postings.at(setting["reach"]).lists(queries, setting["hits"], 1), setting["hits"])
        assert again == pytest.approx(setting["recall"], abs=1e-4) and again >= setting["recall"] - 1e-9
    chosen = choose_setting(report, index, 0.9, 10)
    assert recall_of(exact, searched(index, queries, 10, 0.9), 10) == pytest.approx(chosen.recall, abs=1e-4)


def write_queries(path, queries):
    import json

    path.write_text("".join(json.dumps({"id": q.query_id, "vector": dict(q.vector)}) + "\n" for q in queries))


@settings(max_examples=25)
@example(vectors=[{"t11": 1, "t31": 1}], hits=1, threads=1)
@given(
    vectors=st.lists(
        st.dictionaries(st.sampled_from([*TERMS, "strange"]), st.integers(1, 300), max_size=8), min_size=1, max_size=6
    ),
    hits=st.sampled_from([1, 3, 50, 1000]),
    threads=st.sampled_from([1, 3]),
)
def test_where_all_groups_are_visited_the_lists_are_exact(built, vectors, hits, threads):
    _, index = built
    queries = [ImpactQuery(f"q{number}", vector) for number, vector in enumerate(vectors)]
    with (index / APPROXIMATE).open("rb") as file:
        postings = ApproximatePostings(file, index / APPROXIMATE, reach=0.0)
    # A group of none of the query's terms in its summary is not visited: its documents can have small impacts of them.
    # That can be the best document too, as for the example: each of two middling impacts is in no summary.
    exact = {q.query_id: {d: s for d, s in scores(q).items() if s} for q in queries}
    longest = postings.lists(queries, len(DOCUMENTS), 1)
    for query, ranked, every in zip(queries, postings.lists(queries, hits, threads), longest, strict=True):
        assert all(exact[query.query_id][hit.doc_id] == hit.score for hit in every)
        assert bool(every) == bool(exact[query.query_id])
        assert [(hit.doc_id, hit.score) for hit in ranked] == [(hit.doc_id, hit.score) for hit in every][:hits]
        # The greatest impact of all is in the summary of its group, so a query of one term has its best document.
        if len(query.vector) == 1 and every:
            assert ranked[0].score == max(exact[query.query_id].values())


def scores(query):
    return {doc_id: dot(query.vector, vector) for doc_id, vector in DOCUMENTS}


def test_what_a_user_asks_of_no_engine(built, tmp_path):
    _, index = built
    for recall in (0, 1, 1.2, -1, float("nan")):
        with pytest.raises(UsageError, match=rf"^approximate {recall}: expected a recall above 0 and below 1, such as"):
            Search(approximate=recall)
    others = [
        {"where": Term("t1")}, {"text_weight": 1.0}, {"first_terms": 3}, {"feedback": 2}
    ]  # fmt: skip
    for other in others:
        with pytest.raises(UsageError, match="^approximate search excludes .*, where no recall is measured; leave one"):
            Search(approximate=0.9, **other)
    with pytest.raises(UsageError, match="^approximate search excludes passages, where no recall is measured; leave"):
        Search(approximate=0.9, passages="max")
    with pytest.raises(UsageError, match="^topic 'q' is a query tree; feedback, phases and approximate search need an"):
        searched(index, TreeQuery("q", Term("t1")), 5, 0.9)
    with pytest.raises(UsageError, match="^approximate search is measured for up to 1,000 hits, not for 1,002$"):
        searched(index, queries_of(1), 1002, 0.9)
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 2.0])])
    dense = build_index(tmp_path / "dense", tmp_path / "vectors").path
    with pytest.raises(UsageError, match="approximate search, and shares of a bound, are for impact indexes"):
        searched(dense, "a text", 5, 0.9)


def test_an_index_that_is_not_prepared_or_misses_the_recall(built, tmp_path):
    plain = build_index(built[0], tmp_path / "plain").path
    message = "not prepared for approximate search, or changed since; run python -m lexvl_anserini.index --approximate"
    with pytest.raises(ArtefactError, match=message):
        searched(plain, queries_of(1), 5, 0.9)
    setting = {"hits": 10, "reach": 0.5, "recall": 0.9, "documents": 40.0}
    faster = {**setting, "reach": 0.6, "documents": 30.0}
    report = IndexReport(engine="lucene", approximation={"settings": [setting, faster]})
    assert choose_setting(report, plain, 0.9, 11) == faster
    with pytest.raises(ArtefactError, match="reaches a recall of 0.95 for 10 hits, the highest is 0.9; search exactly"):
        choose_setting(report, plain, 0.95, 10)
    with pytest.raises(UsageError, match="an index of the engine qdrant; approximate search is for those of lucene"):
        choose_setting(IndexReport(engine="qdrant"), plain, 0.9, 10)


def test_a_change_of_the_index_takes_the_preparation_away(built, index, tmp_path):
    shards, _ = built
    assert check_index(index, [shards])["problems"] == 0
    write_shards(tmp_path / "more", [("new", {"t1": 5})], terms=TERMS)
    append_index(index, tmp_path / "more")
    for _ in range(2):
        assert not (index / APPROXIMATE).exists() and not read_report(index).approximation
        with pytest.raises(ArtefactError, match="not prepared"):
            searched(index, queries_of(1), 5, 0.9)
        delete_documents(index, ["new"])
    approximate_index(index)
    # Deleted documents are in no group.
    hits = searched(index, ImpactQuery("q", {"t1": 1}), 100, 0.5)[0]
    assert hits and "new" not in {hit.doc_id for hit in hits}
    repair_index(index)
    assert check_index(index, [shards, tmp_path / "more"])["problems"] == 0


@pytest.mark.parametrize("place", [0, 500, -60, -1])
def test_a_damaged_file(built, index, place):
    shards, _ = built
    flip(index / APPROXIMATE, place)
    with pytest.raises(ArtefactError, match=r"approximate\.bin: damaged.*write it again with python -m lexvl_anserini"):
        searched(index, queries_of(1), 5, 0.9)
    with pytest.raises(ArtefactError, match=r"approximate\.bin: damaged, or missing; write it again with"):
        check_index(index, [shards])
    assert searched(index, queries_of(1), 5, None)[0]
    approximate_index(index)
    assert check_index(index, [shards])["problems"] == 0


def test_a_file_of_another_index_and_a_missing_one(built, index):
    _, other = built
    (index / APPROXIMATE).unlink()
    with pytest.raises(ArtefactError, match=r"approximate\.bin|a file of the index cannot be read"):
        searched(index, queries_of(1), 5, 0.9)
    (index / APPROXIMATE).write_bytes((other / APPROXIMATE).read_bytes())
    with pytest.raises(ArtefactError, match=r"approximate\.bin: of an older version, or not of the index as it was"):
        searched(index, queries_of(1), 5, 0.9)


def test_a_failed_measurement_leaves_the_index(index, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    write_queries(tmp_path / "q.jsonl", [ImpactQuery("q", {"t1": 1 << 20})])
    with pytest.raises(ArtefactError, match="topic 'q'"):
        approximate_index(index, tmp_path / "q.jsonl")
    monkeypatch.setattr("lexvl_anserini.engines.resident.approximate.MOST_QUERIES", 2)
    write_queries(tmp_path / "more.jsonl", queries_of(3))
    with pytest.raises(UsageError, match="^3 queries to measure with, at most 2; give some of them$"):
        approximate_index(index, tmp_path / "more.jsonl")
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before
    assert not index.with_name("index.lexvl.part").exists()


def test_sections_that_do_not_fit_each_other(index, tmp_path):
    """A file with a right checksum must not lead the kernels outside, whoever wrote it."""
    raw = (index / APPROXIMATE).read_bytes()
    contents = raw[raw.rindex(b'{"format"') : raw.rindex(b"}}") + 2]
    import orjson

    sections = orjson.loads(contents)["sections"]
    for name in ("groups", "members", "starts"):
        start, length = sections[name]
        damaged = bytearray(raw)
        damaged[start + length - 4 : start + length] = b"\xff\xff\xff\x7f"
        (tmp_path / name).write_bytes(damaged)
        with (tmp_path / name).open("rb") as file, pytest.raises(ArtefactError, match="do not fit its groups"):
            ApproximatePostings(file, tmp_path / name)


def test_an_engine_that_is_closed(built):
    _, index = built
    engine = LuceneEngine(index, read_manifest(index))
    lists = list(engine.search_approximately(queries_of(3), 10, 0.9))
    assert len(lists) == 3 and engine.served() == {"approximate": 3}
    engine.close()
    with pytest.raises(ArtefactError, match="the index is closed; open it again"):
        list(engine.search_approximately(queries_of(3), 10, 0.9))


def test_a_run_names_the_measured_recall(built, tmp_path, caplog):
    """In its manifest, and so in the name under which `eval` measures it."""
    _, index = built
    write_queries(tmp_path / "q.jsonl", queries_of(5))
    arguments = ["--index", index, "--topics", tmp_path / "q.jsonl", "--output", tmp_path / "run.trec"]
    invoked(search, *arguments, "--hits", "5", "--approximate", "0.9")
    setting = choose_setting(read_report(index), index, 0.9, 5)
    noted = f"0.9 (measured {setting.recall} of the first 10, 200 documents, 16 terms of each)"
    assert RunManifest.from_json(read_json(tmp_path / "run.trec.manifest.json", "run"), "run").encoder.options == {
        "approximate": noted
    }
    with caplog.at_level(logging.INFO):
        assert describe_run(tmp_path / "run.trec").system == f"toy (approximate={noted})"
    assert f"run.trec: approximate search, recall {noted}" in caplog.text
    with pytest.raises(UsageError, match="approximate 0.0: expected a recall above 0 and below 1"):
        invoked(search, *arguments, "--approximate", "0")


def test_the_command_prepares_and_prints_what_it_measured(built, tmp_path):
    index = build_index(built[0], tmp_path / "index").path
    rows = dict(
        line.split(maxsplit=1) for line in invoked(index_command, "--index", index, "--approximate").splitlines()
    )
    assert rows["measured_with"] == "200 documents, 16 terms of each" and "of" in rows["recall@10"]
    assert int(rows["approximate_bytes"]) == (index / APPROXIMATE).stat().st_size
    for wrong, line in (
        (["--approximate", "--check"], "exclude each other"),
        (["--queries", "q.jsonl"], "--queries is for --approximate; give both"),
        ([str(built[0]), "--approximate"], "--approximate takes no shards"),
        (["--approximate", "--term-vectors"], "--approximate keeps what the index was built with"),
    ):
        with pytest.raises(UsageError, match=line):
            invoked(index_command, "--index", index, *wrong)


def test_reports_of_other_versions_stay_readable(index):
    """A report without a measurement, and one whose measurement has another form."""
    assert IndexReport(engine="lucene").approximation == {}
    raw = dict(read_report(index))
    write_json(index / "index.json", {**raw, "approximation": {"settings": [{"hits": "10"}]}})
    with pytest.raises(ArtefactError, match=r"approximation\.settings\[0\]\.hits is \"10\", expected an integer"):
        read_report(index)
    assert tuple(sorted(REACHES, reverse=True)) == REACHES
