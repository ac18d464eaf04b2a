"""The engine Lucene: what it writes, scores and refuses; impacts and sums are exact up to 2^24 - 1, as float32 is."""

import re
import shutil
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lucene_indexes import DOCUMENTS, answers, ranked, stock_index, stock_lists
from memory_engine import exact_lists
from shard_folders import publish_shards, write_shards

from lexvl_anserini.engines.index_folder import RESIDENT, format_version, read_commit_id, read_report
from lexvl_anserini.engines.jvm import get_java_class, read_lucene_version
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, as_reader
from lexvl_anserini.engines.lucene.writing import find_value_type
from lexvl_anserini.engines.resident.packing import write_resident
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc, Vocabulary
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_anserini.shards.layout import source_digest


def built(folder, *shards, **options):
    manifest = write_shards(folder / "shards", *shards, **options)
    LuceneEngine.build(folder / "shards", folder / "index", manifest)
    return LuceneEngine(folder / "index", manifest), manifest


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine, _ = built(tmp_path_factory.mktemp("lucene"), DOCUMENTS[:2], DOCUMENTS[2:], terms=None)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("vector", "hits", "expected"),
    [
        # d2: 2*1 + 3*5 = 17; d1 and d10: 2*3 = 6, the tie in the order of ids, also across the cut.
        ({"a": 2, "b": 3}, 10, [("d2", 17), ("d1", 6), ("d10", 6)]),
        ({"a": 2, "b": 3}, 2, [("d2", 17), ("d1", 6)]),
        ({"the": 4}, 10, [("d1", 4), ("d10", 4), ("d2", 4), ("é😀", 4)]),
        ({"日本": 2, "😀": 1}, 10, [("é😀", 16)]),
    ],
)
def test_scores_are_dot_products(engine, vector, hits, expected):
    assert ranked(engine, vector, hits) == expected


def test_empty_and_unmatched_queries_have_empty_lists(engine):
    queries = [ImpactQuery("q1", {}), ImpactQuery("q2", {"nowhere": 3}), ImpactQuery("q3", {"b": 1})]
    assert list(engine.search(queries, 5)) == [[], [], [ScoredDoc("q3", "d2", 1, 5.0)]]


def test_the_index_knows_what_it_holds(tmp_path):
    engine, manifest = built(tmp_path, DOCUMENTS)
    engine.close()
    report = read_report(tmp_path / "index")
    assert report.pop("bytes") > 0 and report.pop("resident_bytes") > 0 and len(report.pop("digest")) == 64
    options = {"text": False, "store_text": False, "term_vectors": False, "metadata": True}
    [source] = report.pop("sources")
    assert source == {"corpus": "toy", "documents": 5, "shards": source_digest(manifest)}
    lists = [[4, "the"], [3, "a"], [1, "b"], [1, "日本"], [1, "😀"]]
    found = {"documents": 5, "empty": 1, "postings": 10, "impacts": 25, "max_impact": 7}
    fixed = {"engine": "lucene", "fields": {}, "options": options, "changed": False, "longest_lists": lists}
    assert report.pop("lucene") == format_version(read_lucene_version())
    assert re.fullmatch("[0-9a-f]{32}", report.pop("commit"))
    assert report == {**fixed, **found}
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert {"manifest.json", "vocab.txt", "index.json"} <= names
    assert not {name for name in names if name.endswith((".part", ".lock"))} - {"write.lock"}


def test_terms_longer_than_lucenes_default_token(tmp_path):
    long = "x" * 32_766
    engine, _ = built(tmp_path, [("d1", {long: 9}), ("d2", {long[:255]: 5, "|": 2})])
    assert ranked(engine, {long: 2}) == [("d1", 18)]
    assert ranked(engine, {long[:255]: 2, "|": 1}) == [("d2", 12)]


def test_scores_are_exact_up_to_the_limit_and_refused_above(tmp_path):
    top = 2**12 - 1
    engine, _ = built(tmp_path, [("d1", {"a": top, "b": 1}), ("d2", {"a": top - 1}), ("d3", {"b": 2})])
    assert ranked(engine, {"a": 2**12, "b": 3}) == [("d1", top * 2**12 + 3), ("d2", (top - 1) * 2**12), ("d3", 6)]
    # 4096 * (4095 + 2) would pass; the greatest impact of "b" is 2, so this does not.
    assert engine.bound({"a": 2**12, "b": 2**11}) == 2**12 * top + 2**11 * 2
    with pytest.raises(ArtefactError, match=r"topic 'q': its score could reach 33,546,240, .* with 1 bit less"):
        ranked(engine, {"a": 2**13})
    with pytest.raises(ArtefactError, match=r"could reach 33,554,432, .* with 2 bits less"):
        ranked(engine, {"a": 2**13, "b": 2**12})


def without_ids(index):
    """The files of an index of one segment, without its random ids and checksums; the .si has a date."""
    [info] = index.glob("_*.si")
    data = info.read_bytes()
    # Magic number, the format's name after its length, version.
    start = 4 + 1 + data[4] + 4
    segment, commit = data[start : start + 16], (read_commit_id(index) or "").encode()
    files = [path for path in index.glob("_*") if path != info] + [index / RESIDENT]
    return {path.name: path.read_bytes()[:-8].replace(segment, b"").replace(commit, b"") for path in files}


def test_an_index_is_the_same_whatever_the_number_of_threads(tmp_path):
    """Four tasks of about a million postings, more threads than cores: the documents are in the order of the shards.

    The resident postings that are written beside Lucene's have the bytes of those that are written from them.
    """
    random = np.random.default_rng(1)
    terms = [f"t{n}" for n in range(3000)]
    rows = [(f"d{n}", {terms[t]: 1 + n % 9 for t in random.choice(3000, 1000, False)}) for n in range(1000)]
    shards = [[(f"{doc_id}-{part}", vector) for doc_id, vector in rows] for part in range(4)]
    write_shards(tmp_path / "shards", *shards, terms=terms, suffix="parquet")
    one, *others = (
        build_index(tmp_path / "shards", tmp_path / f"index{threads}", threads=threads).path for threads in (1, 2, 5)
    )
    whole = without_ids(one)
    assert {Path(name).suffix for name in whole} >= {".doc", ".tim", ".fdt", ".dvd", ".bin"}
    report = {**read_report(one), "commit": None, "digest": None}
    for index in others:
        assert without_ids(index) == whole
        assert {**read_report(index), "commit": None, "digest": None} == report
    beside = (one / RESIDENT).read_bytes()
    write_resident(one, report["max_impact"])
    assert (one / RESIDENT).read_bytes() == beside


@pytest.mark.parametrize("threads", [1, 2])
def test_resident_postings_that_cannot_be_written_leave_nothing(tmp_path, threads, monkeypatch):
    """Java fails when all documents are read."""
    monkeypatch.setattr("lexvl_anserini.engines.lucene.writing.RESIDENT", "none/resident.bin")
    manifest = write_shards(tmp_path / "shards", [("d1", {"a": 1}), ("d2", {"a": 2, "b": 300})])
    with pytest.raises((ArtefactError, OSError), match="none/resident.bin|No such file"):
        LuceneEngine.build(tmp_path / "shards", tmp_path / "index", manifest, threads)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_failure_in_the_middle_leaves_no_lock(tmp_path):
    manifest = write_shards(tmp_path / "shards", [("d1", {"a": 1})], [("d2", {"a": 1})])
    second = tmp_path / "shards/docs/shard-00001.jsonl"
    whole = second.read_bytes()
    second.write_bytes(whole.replace(b"d2", b"d3"))
    with pytest.raises(ArtefactError, match="shard-00001.jsonl: damaged or changed"):
        LuceneEngine.build(tmp_path / "shards", tmp_path / "index", manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    second.write_bytes(whole)
    assert LuceneEngine.build(tmp_path / "shards", tmp_path / "index", manifest).documents == 2


def test_only_empty_documents(tmp_path):
    engine, _ = built(tmp_path, [("d1", {}), ("d2", {})], terms=["a"])
    assert engine.documents == 2
    assert ranked(engine, {"a": 1}) == []


def test_an_index_of_other_documents(tmp_path):
    built(tmp_path, DOCUMENTS)[0].close()
    other = write_shards(tmp_path / "other", [("d1", {"a": 1})])
    with pytest.raises(ArtefactError, match="5 documents, the manifest says 1 of which 0 empty"):
        LuceneEngine(tmp_path / "index", other)
    (tmp_path / "none").mkdir()
    with pytest.raises(ArtefactError, match="none: cannot be opened as a Lucene index: IndexNotFoundException"):
        LuceneEngine(tmp_path / "none", other)


TERMS = ["a", "b", "##c", "|", "日本", "😀", "a^2", "AND", '"', "t(e\\rm)", "é", "e\u0301", "\\"]
VECTORS = st.dictionaries(st.sampled_from(TERMS), st.integers(1, 2**20) | st.integers(1, 3), max_size=5)
IDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=3)


@settings(max_examples=40)
@given(
    documents=st.dictionaries(IDS, VECTORS, min_size=1, max_size=12),
    queries=st.lists(st.dictionaries(st.sampled_from(TERMS), st.integers(1, 3), max_size=5), min_size=1, max_size=4),
    hits=st.integers(1, 6),
)
def test_lucene_and_the_exact_oracle_agree(documents, queries, hits):
    rows = list(documents.items())
    topics = [ImpactQuery(f"q{number}", vector) for number, vector in enumerate(queries)]
    with TemporaryDirectory() as folder:
        half = len(rows) // 2
        engine, _ = built(Path(folder), rows[:half], rows[half:], terms=TERMS)
        try:
            assert list(engine.search(topics, hits)) == exact_lists(Path(folder) / "shards", topics, hits)
        finally:
            engine.close()


def random_documents(count, terms, seed=0):
    rng = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        dims = rng.choice(terms, size=rng.integers(0, 12), replace=False)
        # Small impacts make many ties.
        documents.append((f"d{number}", {f"t{dim}": int(rng.integers(1, 4)) for dim in dims} | {"all": 1}))
    return documents


def test_stock_pyserini_reads_our_indexes_and_ranks_the_same(tmp_path):
    """A plain index; one with all that an index may hold besides; one that was appended to and deleted from."""
    documents = [*random_documents(300, 30), ("é/😀", {"all": 1, "t3": 2})]
    terms = [*(f"t{dim}" for dim in range(30)), "all"]
    write_shards(tmp_path / "all", documents, [], terms=terms)
    write_shards(tmp_path / "first", documents[:150], terms=terms)
    write_shards(tmp_path / "rest", documents[150:], terms=terms, suffix="parquet")
    build_index(tmp_path / "all", tmp_path / "plain")
    build_index(tmp_path / "all", tmp_path / "more", text=True, store_text=True, term_vectors=True)
    build_index(tmp_path / "first", tmp_path / "changed")
    append_index(tmp_path / "changed", tmp_path / "rest")
    delete_documents(tmp_path / "changed", ["d0", "d151", "d299"])
    rng = np.random.default_rng(1)
    queries = [{f"t{dim}": int(rng.integers(1, 3)) for dim in rng.choice(30, 6)} | {"all": 2} for _ in range(20)]
    indexes = [tmp_path / name for name in ("plain", "more", "changed")]
    for index, stock in zip(indexes, stock_lists(tmp_path, [(index, queries) for index in indexes]), strict=True):
        engine = LuceneEngine(index, read_manifest(index))
        ours = [ranked(engine, query, hits=50) for query in queries]
        engine.close()
        assert [[doc_id for doc_id, _ in hits] for hits in ours] == [[doc_id for doc_id, _ in hits] for hits in stock]
        # Anserini lowers tied scores by 1e-6 each, which integers of this size do not show.
        for mine, theirs in zip(ours, stock, strict=True):
            assert [score for _, score in mine] == pytest.approx([score for _, score in theirs], abs=1e-3)


def test_our_searcher_reads_a_stock_index_and_ranks_the_same(tmp_path):
    documents = [*random_documents(200, 20), ("empty", {}), ("dé", {"😀": 3, "日本": 2})]
    engine, manifest = built(tmp_path, documents)
    stock_index(tmp_path / "shards", tmp_path / "stock")
    stock = LuceneEngine(tmp_path / "stock", manifest)
    # Stock Anserini leaves the empty document out, ours keeps it.
    assert (engine.documents, stock.documents) == (202, 201)
    rng = np.random.default_rng(2)
    queries = [{f"t{dim}": int(rng.integers(1, 3)) for dim in rng.choice(20, 4)} | {"all": 1} for _ in range(20)]
    topics = [ImpactQuery(f"q{n}", query) for n, query in enumerate([*queries, {"😀": 1}])]
    assert list(stock.search(topics, 30)) == list(engine.search(topics, 30))
    assert stock.bound({"😀": 2**24}) == 3 * 2**24


def test_types_of_metadata():
    values = ["x" * 32_766, "2024-02-29", True, 2**63 - 1, -0.5]
    assert [find_value_type("key", value) for value in values] == ["keyword", "date", "keyword", "long", "double"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("é" * 16_384, "metadata 'key': a text of 32,768 bytes, an index holds 32,766; shorten it or"),
        (2**63, "is a int; expected a text, a number below"),
        ([1], "is a list"),
        ({"a": 1}, "is a dict"),
    ],
)
def test_metadata_that_no_field_holds(value, message):
    with pytest.raises(ArtefactError, match=message):
        find_value_type("key", value)


def test_the_facts_of_anserinis_own_end_to_end_test(tmp_path):
    """JsonVectorEndToEndTest: 2 documents; 10 terms, 12 postings, 31 tokens; an id is a term, a posting and a token."""
    rows = {
        "doc1": {"f1": 1, "f2": 2, "f3": 1, "f4": 4, "f5": 1},
        "doc2": {"f4": 3, "f5": 1, "f9": 2, "f22": 6, "f35": 8},
    }
    write_shards(tmp_path / "shards", list(rows.items()))
    index = build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True).path
    report = read_report(index)
    assert (report["documents"], report["postings"], report["impacts"]) == (2, 10, 29)
    with closing(LuceneEngine(index, read_manifest(index))) as engine:
        assert int(engine.reader.numDocs()) == 2
        totals = [0, 0, 0]
        for field in (CONTENTS, ID):
            terms = get_java_class("org.apache.lucene.index.MultiTerms").getTerms(as_reader(engine.reader), field)
            # Frequencies are not kept of ids: as many as postings.
            tokens = terms.getSumTotalTermFreq() if field == CONTENTS else terms.getSumDocFreq()
            for place, count in enumerate((terms.size(), terms.getSumDocFreq(), tokens)):
                totals[place] += int(count)
        assert totals == [10, 12, 31]
        assert {doc_id: engine.vector(doc_id) for doc_id in rows} == rows
        # The order of its reference run, by BM25, is that of impacts.
        for term, expected in (("f35", [("doc2", 8)]), ("f3", [("doc1", 1)]), ("f4", [("doc1", 4), ("doc2", 3)])):
            assert ranked(engine, {term: 1}) == expected


# Written when impacts of 2^24 and more were accepted: d1 has one of 20,000,000, d2 none.
BEYOND = Path(__file__).parents[1] / "fixtures" / "beyond-exact"

LARGEST = 2**24 - 1


@pytest.fixture
def beyond(tmp_path):
    shutil.copytree(BEYOND, tmp_path / "beyond")
    return tmp_path / "beyond"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_index_refuses_an_impact_beyond(tmp_path, suffix):
    shards = tmp_path / "shards"
    write_shards(shards, [("d0", {"b": 9})], [("d1", {"b": LARGEST}), ("d2", {"b": 1, "a": 20_000_000})], suffix=suffix)
    place = "row 1" if suffix == "parquet" else "line 2"
    message = (
        f"docs/shard-00001.{suffix} {place}: document 'd2', impact 20000000 of term 'a', expected an integer from 1 to "
        "16,777,215, up to which Lucene's scores are exact; encode with fewer bits"
    )
    with pytest.raises(ArtefactError) as caught:
        build_index(shards, tmp_path / "index")
    assert str(caught.value) == f"{shards}/{message}"
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("impact", [2**24, 2**31, 2**32 + 5, -(2**32) + 5, 2**63 - 1])
def test_integers_of_any_width_are_not_wrapped(tmp_path, impact):
    """Columns of another writer may have 64 bits."""
    (tmp_path / "shards/docs").mkdir(parents=True)
    name = "docs/shard-00000.parquet"
    table = {
        "id": ["d1"],
        "term": pa.array([[0]], pa.list_(pa.int64())),
        "impact": pa.array([[impact]], pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(table), tmp_path / "shards" / name)
    entry = {"name": name, "documents": 1, "empty": 0, "postings": 1}
    publish_shards(tmp_path / "shards", "impact", [entry], Vocabulary(["a", "b"]))
    with pytest.raises(ArtefactError, match=f"row 0: document 'd1', impact {impact} of term 'a'"):
        build_index(tmp_path / "shards", tmp_path / "index")


def test_an_index_with_such_an_impact_is_checked_in_one_line(beyond):
    with pytest.raises(ArtefactError) as caught:
        check_index(beyond / "index", beyond / "shards")
    assert str(caught.value) == (
        f"{beyond}/index: an impact of 20,000,000, above 16,777,215 up to which Lucene's scores are exact: not "
        "searchable exactly; quantise again (encode the corpus with fewer bits, and index it)"
    )


def test_no_change_takes_such_an_impact_over(beyond, tmp_path):
    write_shards(tmp_path / "others", [("d3", {"a": 1})], terms=["a", "b"])
    index = build_index(tmp_path / "others", tmp_path / "index").path
    for act in (
        lambda: build_index([tmp_path / "others", beyond / "index"], tmp_path / "merged"),
        lambda: build_index([tmp_path / "others", beyond / "shards"], tmp_path / "merged"),
        lambda: build_index(beyond / "shards", tmp_path / "merged"),
        lambda: append_index(index, beyond / "index"),
        lambda: append_index(index, beyond / "shards", replace=True),
        lambda: append_index(beyond / "index", tmp_path / "others"),
    ):
        with pytest.raises(ArtefactError, match=r"beyond/.*20,?000,?000.* exact"):
            act()
    assert not (tmp_path / "merged").exists() and read_report(index)["documents"] == 1


def test_what_such_an_index_can_do(beyond):
    """Queries whose scores are exact are answered, others refused; without the document it is an index like others."""
    index = beyond / "index"
    assert answers(index, {"b": 7}) == [("d1", 21)]
    with pytest.raises(ArtefactError, match="topic 'q': its score could reach 20,000,000, above 16,777,215"):
        answers(index, {"a": 1})
    delete_documents(index, ["d1"])
    assert answers(index, {"a": LARGEST}) == [("d2", LARGEST)]


def test_sums_of_impacts_beyond_32_bits(tmp_path):
    """Lucene's statistics, and the counts of documents and terms, are exact whatever they sum to."""
    terms = [f"t{number}" for number in range(140)]  # of a document beyond 2^31, of all beyond 2^32
    manifest = write_shards(tmp_path / "shards", [(f"d{n}", dict.fromkeys(terms, LARGEST - n)) for n in range(2)])
    build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True)
    assert read_report(tmp_path / "index")["impacts"] == 140 * (2 * LARGEST - 1)
    assert check_index(tmp_path / "index", tmp_path / "shards")["problems"] == 0
    engine = LuceneEngine(tmp_path / "index", manifest)
    assert engine.vector("d1") == dict.fromkeys(terms, LARGEST - 1)
    assert engine.bound({"t0": 2, "t1": 1}) == 3 * LARGEST
    engine.close()
    assert answers(tmp_path / "index", {"t5": 1}) == [("d0", LARGEST), ("d1", LARGEST - 1)]
