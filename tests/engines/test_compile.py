import re
from datetime import date
from sys import getsizeof

import pytest
from brute_force import Doc, Oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_folders import write_described_shards, write_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.searching import Compiler
from lexvl_anserini.engines.resident import choosing
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import All, AnyOf, Boost, Equals, Ids, Impacts, Not, Range, Term, Text, Unscored
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.searching.building import append_index, build_index, delete_documents

DOCUMENTS = [
    Doc("d1", {"a": 3, "b": 1}),
    Doc("d10", {"a": 3, "c": 7}),
    Doc("d2", {"b": 5, "c": 2}),
    Doc("empty", {}),
    Doc("é😀", {"日本": 4, "😀": 2, "a": 1}),
]
ORACLE = Oracle(DOCUMENTS)
A, B, C = map(Term, "abc")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    manifest = write_shards(folder / "shards", [(d.doc_id, d.vector) for d in DOCUMENTS])
    LuceneEngine.build(folder / "shards", folder / "index", manifest)
    engine = LuceneEngine(folder / "index", manifest)
    yield engine
    engine.close()


def found(engine, clause, hits=10):
    return [(d.doc_id, d.score) for d in engine.top(Compiler({}).query(clause), hits)]


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (Impacts({"a": 2, "b": 3}), [("d2", 15), ("d1", 9), ("d10", 6), ("é😀", 2)]),
        (Impacts({}), []),
        (A & Not(C), [("d1", 3), ("é😀", 1)]),
        (A | Term("c", 2), [("d10", 17), ("d2", 4), ("d1", 3), ("é😀", 1)]),
        (~A, [("d2", 0), ("empty", 0)]),
        (All((), (A,)), [("d1", 3), ("d10", 3), ("é😀", 1), ("d2", 0), ("empty", 0)]),
        (All((B,), (A,)), [("d2", 5), ("d1", 4)]),
        (All((Impacts({"c": 1}), Unscored(A))), [("d10", 7)]),
        (AnyOf(()), []),
        (AnyOf((Unscored(A), Ids(("empty", "d2", "nobody")))), [(d.doc_id, 0) for d in DOCUMENTS]),
        (Ids(("é😀",)) & Term("😀"), [("é😀", 2)]),
        (Boost(A | B, 0.5), [("d2", 2.5), ("d1", 2), ("d10", 1.5), ("é😀", 0.5)]),
        (Boost(A, 0), [("d1", 0), ("d10", 0), ("é😀", 0)]),
        (A & A, [("d1", 6), ("d10", 6), ("é😀", 2)]),
    ],
)
def test_trees_by_hand(engine, clause, expected):
    assert found(engine, clause) == expected
    assert ORACLE.ranked(clause, 10) == expected


TERMS = st.sampled_from(["a", "b", "c", "日本", "😀", "nowhere"])
LEAVES = (
    st.builds(Impacts, st.dictionaries(TERMS, st.integers(1, 255), max_size=5))
    | st.builds(Term, TERMS, st.integers(1, 9))
    | st.builds(Ids, st.lists(st.sampled_from([d.doc_id for d in DOCUMENTS] + ["x"]), max_size=3).map(tuple))
)


def grown(leaves):
    """Trees over these leaves."""

    def above(below):
        some = st.lists(below, max_size=4).map(tuple)
        one = st.builds(Not, below) | st.builds(Unscored, below) | st.builds(Boost, below, st.integers(0, 3))
        return st.builds(All, some, some) | st.builds(AnyOf, some) | one

    return st.recursive(leaves, above, max_leaves=12)


@settings(max_examples=400)
@given(clause=grown(LEAVES), hits=st.integers(1, 6))
def test_lucene_and_brute_force_agree(engine, clause, hits):
    assert found(engine, clause, hits) == ORACLE.ranked(clause, hits)


WORDS = ["dog", "cat", "sun", "boat"]
WITH_FIELDS = [
    Doc("d1", {"a": 3, "b": 1}, "dog cat dog", {"year": 2010, "price": 1.5, "source": "web", "day": "2020-01-31"}),
    Doc("d10", {"a": 3}, "sun", {"year": -3, "price": -0.0, "source": "new york", "day": "1969-12-31"}),
    Doc("d2", {"b": 5}, "", {"year": 2**60, "price": 0.0, "source": "Web", "day": "2024-02-29"}),
    Doc("d3", {}, "dog sun boat cat cat cat cat", {"year": 2010, "source": "😀"}),
    Doc("d4", {"c": 9}, "boat", {}),
]
# The texts of a metadata filter as they stand in a query, and values as Python has them.
VALUES = {
    "meta.year": st.sampled_from([2010, -3, 2**60, 2**70, -(2**70), 0, "2010", "2009.5", 2010.5]),
    "meta.price": st.sampled_from([1.5, 0, 0.0, -0.0, "0", "1.50", 2, -1.0]),
    "meta.source": st.sampled_from(["web", "Web", "new york", "😀", "x", ""]),
    "meta.day": st.sampled_from(["2020-01-31", "1969-12-31", "2024-02-29", "1970-01-01", date(2020, 1, 31)]),
}
FIELD = st.sampled_from(sorted(VALUES))
FILTERS = FIELD.flatmap(lambda field: st.builds(Equals, st.just(field), VALUES[field])) | FIELD.flatmap(
    lambda field: st.builds(
        Range, st.just(field), st.none() | VALUES[field], st.none() | VALUES[field], st.booleans(), st.booleans()
    )
)
TEXTS = st.builds(
    Text, st.lists(st.sampled_from([*WORDS, "moon"]), unique=True).map(" ".join), st.sampled_from([0.5, 1, 3])
)


@pytest.fixture(scope="module")
def with_fields(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    shards = write_described_shards(folder / "shards", WITH_FIELDS, ["a", "b", "c"])
    built = build_index(shards, folder / "index", text=True, term_vectors=True)
    engine = LuceneEngine(built.path, built.manifest)
    yield engine, read_report(folder / "index")["fields"]
    engine.close()


@settings(max_examples=300)
@given(clause=grown(LEAVES | FILTERS), hits=st.integers(1, 6))
def test_filters_and_brute_force_agree(with_fields, clause, hits):
    engine, fields = with_fields
    found = [(d.doc_id, d.score) for d in engine.top(Compiler(fields).query(clause), hits)]
    assert found == Oracle(WITH_FIELDS).ranked(clause, hits)


@settings(max_examples=200)
@given(clause=grown(LEAVES | FILTERS | TEXTS))
def test_impacts_and_bm25_add_up(with_fields, clause):
    engine, fields = with_fields
    found = {d.doc_id: d.score for d in engine.top(Compiler(fields).query(clause), 10)}
    assert found == pytest.approx(dict(Oracle(WITH_FIELDS).ranked(clause, 10)), rel=1e-5)


# Two parts; more than 1/8 of the documents have a, b or c, so these have columns.
NUMBERED = [
    Doc(f"n{n}", {t: 1 + n * (7 + place) % 250 for place, t in enumerate("abc") if n % (place + 2)}, "", {"year": n})
    for n in range(-20, 200)
]


@pytest.fixture(scope="module")
def filtering(tmp_path_factory):
    """An engine of resident postings over several segments with deleted documents, and the oracle of what is left."""
    folder = tmp_path_factory.mktemp("filtering")
    for name, documents in (("first", WITH_FIELDS[:4]), ("more", [WITH_FIELDS[4], *NUMBERED])):
        write_described_shards(folder / name, documents, ["a", "b", "c"])
    with pytest.MonkeyPatch.context() as patch:
        index = build_index(folder / "first", folder / "index", text=True).path
        append_index(index, folder / "more")
        delete_documents(index, ["d10", "n7", "n8"])
        patch.setenv(choosing.VARIABLE, "resident")
        engine = LuceneEngine(index, read_manifest(index))
    left = [d for d in (*WITH_FIELDS, *NUMBERED) if d.doc_id not in {"d10", "n7", "n8"}]
    yield engine, Oracle(left)
    engine.close()


CONDITIONS = FILTERS | st.builds(Range, st.just("meta.year"), st.integers(-30, 210), st.integers(-30, 210))
SUMS = st.builds(Impacts, st.dictionaries(TERMS, st.integers(1, 255), min_size=1, max_size=5))
CONJUNCTIONS = st.builds(
    All, st.lists(SUMS | CONDITIONS | CONDITIONS.map(Not), max_size=4).map(tuple), st.lists(SUMS, max_size=2).map(tuple)
)


def agree_with_the_oracle(filtering, clause, hits):
    engine, oracle = filtering
    assert [(hit.doc_id, hit.score) for hit in engine.search_tree("q", clause, hits)] == oracle.ranked(clause, hits)


@settings(max_examples=400)
@given(clause=CONJUNCTIONS | grown(LEAVES | FILTERS), hits=st.integers(1, 30))
def test_resident_postings_filter_exactly(filtering, clause, hits):
    agree_with_the_oracle(filtering, clause, hits)


@pytest.mark.heavy
@settings(max_examples=5000)
@given(clause=CONJUNCTIONS | grown(LEAVES | FILTERS), hits=st.integers(1, 30))
def test_resident_postings_filter_exactly_five_thousand_times(filtering, clause, hits):
    agree_with_the_oracle(filtering, clause, hits)


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        ("a b^2", "resident"),
        ("a OR (b c)^3", "resident"),
        ("+(a b) +meta.year:[5 TO 60] -c", "resident"),
        ("+a +b c", "resident"),
        ("+a +(-b) +(meta.source:web meta.year:12)", "resident"),
        ("+a +id:n12", "lucene"),
        ("+a text:dog", "lucene"),
        ("meta.year:[5 TO 60]", "lucene"),
        ("a (-b)", "lucene"),
        ("a (+b +c)", "lucene"),
        ("(+a meta.year:5)^1.5", "lucene"),
    ],
)
def test_which_form_answers_a_tree(filtering, expression, form):
    engine, oracle = filtering
    before = dict(engine.served())
    hits = engine.search_tree("q", parse(expression), 10)
    assert {name: count - before.get(name, 0) for name, count in engine.served().items()}.get(form) == 1
    if "text" not in expression:
        assert [(hit.doc_id, hit.score) for hit in hits] == oracle.ranked(parse(expression), 10)


@pytest.mark.parametrize("condition", ["meta.year:[5 TO 7]", "text:dog", "-b", "id:n12", "meta.year:9999"])
def test_many_queries_with_one_condition(filtering, condition):
    engine, oracle = filtering
    where = parse(condition)
    queries = [ImpactQuery(f"q{n}", {"a": n, "b": 2}) for n in range(1, 40)]
    lists = engine.search_where(queries, where, 5, threads=2)
    for query, hits in zip(queries, lists, strict=True):
        expected = oracle.ranked(All((Impacts(query.vector), Unscored(where))), 5)
        assert [(hit.query_id, hit.doc_id, hit.score) for hit in hits] == [(query.query_id, *hit) for hit in expected]


def test_the_last_conditions_stay_in_memory(filtering, monkeypatch):
    """As many as have room, each a byte a document and its text; none that is larger than the room."""
    engine, _ = filtering
    monkeypatch.setattr(engine, "filters", {})
    monkeypatch.setattr(engine, "filter_bytes", 0)
    for year, kept in ((1, "1"), (2, "12"), (1, "21"), (3, "13"), (3, "13")):
        engine.search_tree("q", parse(f"+a +meta.year:{year}"), 5)
        if year == 2:
            monkeypatch.setattr("lexvl_anserini.engines.lucene.engine.FILTER_BYTES", engine.filter_bytes)
        assert "".join(re.findall(r"value='(\d)'", "".join(engine.filters))) == kept
    assert engine.filter_bytes == sum(getsizeof(name) + bits.nbytes for name, bits in engine.filters.items())
    engine.search_tree("q", parse(f"+a -meta.source:{'x' * engine.filter_bytes}"), 5)
    assert not engine.filters and not engine.filter_bytes


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("meta.date:2019", ["b", "c"]),
        ("meta.date:2019-05", ["b"]),
        ("meta.date:2019..", ["b", "c", "d"]),
        ("meta.date:..2019-05", ["a", "b"]),
        ("meta.date:2018-12-31..2019-11", ["a", "b", "c"]),
        ("meta.date:{2018 TO 2020}", ["b", "c"]),
        ("meta.date:2021..2019", []),
        ("meta.place:Rome -meta.date:2018", ["d"]),
        ("meta.place:rome", []),
        ('meta.place:"1..2"', ["c"]),
    ],
)
def test_dates_and_spans(dated, expression, expected):
    assert [hit.doc_id for hit in dated.search_tree("q", parse(expression), 9)] == expected


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dated")
    rows = {"a": ("2018-12-31", "Rome"), "b": ("2019-05-17", "Paris"), "c": ("2019-11-30", "1..2")}
    rows["d"] = ("2020-01-01", "Rome")
    documents = [Doc(doc_id, {"x": 1}, metadata={"date": day, "place": place}) for doc_id, (day, place) in rows.items()]
    build_index(write_described_shards(folder / "shards", documents, ["x"]), folder / "index")
    engine = LuceneEngine(folder / "index", read_manifest(folder / "index"))
    yield engine
    engine.close()


def test_what_an_index_does_not_have(engine):
    compiler = Compiler({"meta.year": "long", "meta.day": "date", "meta.place": "keyword"})
    with pytest.raises(UnknownName, match="unknown metadata field 'meta.yaer'; did you mean 'meta.year'"):
        compiler.query(Equals("meta.yaer", 1))
    with pytest.raises(UsageError, match="no text field"):
        compiler.query(Text("a dog"))
    for value in ("soon", "9" * 400):
        with pytest.raises(UsageError, match=f"meta.year: '{value}' is no number, and the field is long"):
            compiler.query(Range("meta.year", value))
    with pytest.raises(UsageError, match="meta.place: an end of 1,001 bytes, expected at most 1,000"):
        compiler.query(Range("meta.place", "a" * 1001))
    with pytest.raises(UsageError, match="meta.day: 'tomorrow' is no date, expected YYYY-MM-DD, YYYY-MM or YYYY"):
        compiler.query(Equals("meta.day", "tomorrow"))


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, "2"])
def test_weights_that_lucene_would_bend(weight):
    with pytest.raises(UsageError, match="of term 'a': expected an integer from 1 to 16,777,215"):
        Term("a", weight)
    with pytest.raises(UsageError, match="expected a number from 0 to 16,777,215"):
        Boost(A, float("nan"))


def test_signs_in_brackets(engine):
    with_b, every_a = [("d1", 3), ("d10", 3), ("é😀", 1)], [("d10", 3), ("é😀", 1)]
    for expression, expected in (
        ("+a (-b)", with_b),
        ("+a (-b)^1", with_b),
        ("+a -b", every_a),
        ("+a +(-b)", every_a),
        ("a (-b)", [("d1", 3), ("d10", 3), ("é😀", 1), ("empty", 0)]),
        ("-(-b)", [("d1", 0), ("d2", 0)]),
    ):
        hits = engine.search_tree("q", parse(expression), 10)
        assert [(hit.doc_id, hit.score) for hit in hits] == expected == ORACLE.ranked(parse(expression), 10)


def test_the_deepest_tree(engine):
    deep = A
    for level in range(99):
        deep = (Boost(deep, 1), AnyOf((deep, B)), All((deep,), (C,)), Not(deep))[level % 4]
    assert [(h.doc_id, h.score) for h in engine.search_tree("q", deep, 10)] == ORACLE.ranked(deep, 10)
    for _ in range(2000):
        deep = Unscored(deep)
    with pytest.raises(UsageError, match="nested more than 100 deep"):
        engine.search_tree("q", deep, 10)


@pytest.fixture
def heavy(tmp_path):
    """Terms whose greatest impacts differ: 65,535 and 255."""
    manifest = write_shards(tmp_path / "shards", [("d1", {"a": 65_535, "b": 1}), ("d2", {"b": 255, "c": 255})])
    LuceneEngine.build(tmp_path / "shards", tmp_path / "index", manifest)
    engine = LuceneEngine(tmp_path / "index", manifest)
    yield engine
    engine.close()


def test_a_tree_has_the_bound_of_its_encoded_query(heavy):
    """Up to 2^24 - 1, whatever the shape of the tree; the greatest impact of each term decides, not that of all."""
    for tree, score in (
        (parse("b^200 c^200"), 200 * 510),
        (parse("a^200 b^200 c^200"), 200 * 65_536),
        (parse("a^255 (b^255)^1"), 255 * 65_536),
        (Boost(Term("b", 255) | Term("c", 255), 128), 128 * 255 * 510),
        (Boost(Term("a", 2) | Term("b", 3), 0.5), 65_536.5),
        (All((Term("b", 2), Not(Term("a", 2**23)), Unscored(Term("c", 2**23)))), 510),
        (Term("nowhere", 2**24 - 1) | Term("b"), 255),
    ):
        assert heavy.search_tree("q", tree, 1)[0].score == score
    for tree, most in (
        (parse("a^256 b^2"), 256 * 65_535 + 510),
        (Boost(Term("b", 255) | Term("c", 255), 129.5), 16_841_475),
    ):
        with pytest.raises(ArtefactError, match=f"topic 'q': its score could reach {most:,}, above 16,777,215"):
            heavy.search_tree("q", tree, 1)
    with pytest.raises(ArtefactError, match="its score could reach 16,777,470, above"):
        next(heavy.search([ImpactQuery("q", {"a": 256, "b": 2})], 1))
