"""Resident postings of an index: written, chosen, verified, changed and repaired with it; lists equal Lucene's."""

import shutil
import zlib
from contextlib import closing

import orjson
import pytest
from lucene_indexes import MANY_DOCUMENTS, MANY_QUERIES, MANY_TERMS, flip
from shard_folders import write_shards

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import (
    RESIDENT,
    list_resident_paths,
    measure_resident,
    read_report,
    write_report,
)
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import as_reader, open_whole_index
from lexvl_anserini.engines.resident import choosing, layout
from lexvl_anserini.engines.resident.layout import PlainPostings
from lexvl_anserini.engines.resident.packing import read_vectors, write_resident
from lexvl_anserini.engines.resident.searching import ResidentPostings
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.machine import is_compiled, mark_compiled
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import All, Ids, Not, Term
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents, repair_index
from lexvl_anserini.searching.searcher import SearchCost, search_index

MORE = [("e1", {"t1": 250, "t2": 3}), ("d3", {"t1": 9})]


@pytest.fixture(autouse=True)
def default_postings(monkeypatch):
    monkeypatch.delenv(choosing.VARIABLE, raising=False)


def segments_of(index):
    with open_whole_index(index) as whole:
        return whole.segments()


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path / "shards", MANY_DOCUMENTS, terms=MANY_TERMS)
    return tmp_path / "shards"


@pytest.fixture
def index(shards, tmp_path):
    return build_index(shards, tmp_path / "index").path


def opened(index):
    return LuceneEngine(index, read_manifest(index))


def lists(index, form, monkeypatch, hits=1000):
    monkeypatch.setenv(choosing.VARIABLE, form)
    with closing(opened(index)) as engine:
        found = list(engine.search(MANY_QUERIES, hits))
        assert engine.served() == {form: len(MANY_QUERIES)}
        return found


def agree(index, monkeypatch):
    for hits in (1, 7, 1000):
        assert lists(index, "resident", monkeypatch, hits) == lists(index, "lucene", monkeypatch, hits)


def test_both_forms_give_the_same_lists(index, monkeypatch):
    agree(index, monkeypatch)
    report = read_report(index)
    assert report.resident_bytes == (index / RESIDENT).stat().st_size
    assert "resident" not in report.options


def test_an_index_of_a_user_who_declines_has_none(shards, tmp_path):
    declined = build_index(shards, tmp_path / "declined", options={"resident": False}).path
    assert not (declined / RESIDENT).exists() and not read_report(declined).resident_bytes
    assert not repair_index(declined)
    assert read_report(declined).options["resident"] is False
    append_index(declined, appended(tmp_path / "more", [("new", {"t1": 1})]))
    assert not (declined / RESIDENT).exists()


def appended(folder, documents):
    write_shards(folder, documents, terms=MANY_TERMS)
    return folder


@pytest.mark.parametrize(
    ("small", "large", "compiled", "served", "first", "later"),
    [
        (True, True, False, "resident", PlainPostings, PlainPostings),
        (True, True, True, "resident", PlainPostings, PlainPostings),
        (False, True, True, "resident", PlainPostings, ResidentPostings),
        (False, True, False, "resident", PlainPostings, PlainPostings),
        (False, False, False, "lucene", type(None), type(None)),
    ],
)
def test_size_compiled_kernels_and_queries_decide_which_code_answers(
    index, monkeypatch, small, large, compiled, served, first, later
):
    """An index within `SMALL` or not, and within `LARGE` or not; never the time of answers."""
    postings = choosing.read_resident_files(index)[RESIDENT].postings
    monkeypatch.setattr(choosing, "SMALL", postings if small else 0)
    monkeypatch.setattr(choosing, "LARGE", postings if large else 0)
    monkeypatch.setattr(choosing, "is_compiled", lambda *package: compiled)
    assert choosing.lacks_kernels(index) is (not small and not compiled)
    expected = lists(index, "lucene", monkeypatch)
    monkeypatch.setenv(choosing.VARIABLE, "auto")
    with closing(opened(index)) as engine:
        assert type(engine.batches.resident()) is first
        assert list(engine.search(MANY_QUERIES, 1000)) == expected
        assert type(engine.batches.resident()) is later
        assert engine.served() == {served: len(MANY_QUERIES)}
        engine.prepare()
        assert type(engine.batches.resident()) is (PlainPostings if small else ResidentPostings)
        assert list(engine.search(MANY_QUERIES, 1000)) == expected
    with pytest.raises(ArtefactError, match="the index is closed; open it again"):
        list(engine.search(MANY_QUERIES, 10))


def test_building_compiles_the_kernels_of_large_indexes(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    compiled = []
    monkeypatch.setattr(choosing.Resident, "compile", lambda self: compiled.append(self._index))
    build_index(shards, tmp_path / "small")
    assert compiled == []
    monkeypatch.setattr(choosing, "SMALL", 10)
    assert compiled == [] and build_index(shards, tmp_path / "large").path in compiled
    compiled.clear()
    mark_compiled(choosing.PACKAGE, "1")
    assert is_compiled(choosing.PACKAGE, "1") is (tmp_path / "kernels").is_dir()


def test_lucene_opens_the_state_that_the_resident_postings_have(index, shards, tmp_path):
    """After the index changed, and was removed: filters and trees are of that state too."""
    late, early = opened(index), opened(index)
    early.prepare()
    delete_documents(index, ["d7"])
    shutil.rmtree(index)
    assert as_filtered_out(late) == as_filtered_out(early)
    query = ImpactQuery("q", dict.fromkeys(MANY_TERMS, 1))
    filtered = [next(engine.search_where([query], Ids(("d7",)), 9)) for engine in (late, early)]
    assert filtered[0].doc_ids == filtered[1].doc_ids == ["d7"]
    late.close()
    early.close()
    with pytest.raises(ArtefactError, match="the index is closed"):
        late.vector("d1")


def as_filtered_out(engine):
    """The number of documents without a term, which Lucene finds."""
    return len(engine.search_tree("q", All((Not(Term("t1")), Term("t2"))), 1000))


def test_numpy_and_the_kernels_read_one_opened_file(index, monkeypatch):
    """Two threads that read one file at once would move each other's place in it."""
    opened = []

    def opening(file, path):
        opened.append(path)
        return layout.open_sections(file, path)

    monkeypatch.setattr(choosing, "open_sections", opening)
    monkeypatch.setattr(choosing, "SMALL", 0)
    assert len(list(search_index(index, MANY_QUERIES[:5], 10))) == 5
    assert opened == [index / RESIDENT]


def test_an_error_of_loading_is_not_lost(index, monkeypatch):
    """A file with a right checksum whose sections do not fit is an error of the search, and is repaired."""
    whole = (index / RESIDENT).read_bytes()
    body = whole[:-8].replace(b'"ids":151', b'"ids":199')
    (index / RESIDENT).write_bytes(body + zlib.crc32(body).to_bytes(8, "big"))
    with pytest.raises(ArtefactError, match="damaged, its sections do not fit each other; write it again"):
        list(search_index(index, MANY_QUERIES[:1], 10))
    assert repair_index(index)
    assert (index / RESIDENT).read_bytes() == whole


def test_too_large_for_the_memory(index, monkeypatch):
    needed = (index / RESIDENT).stat().st_size
    for memory, uses in ((2 * needed + 4, True), (2 * needed - 4, False)):
        monkeypatch.setattr(choosing, "measure_quarter_memory", lambda memory=memory: memory // 4)
        assert bool(choosing.find_usable_files(index)) is uses
    monkeypatch.setenv(choosing.VARIABLE, "resident")
    assert choosing.find_usable_files(index)


def test_an_unknown_choice(index, monkeypatch):
    monkeypatch.setenv(choosing.VARIABLE, "fast")
    with pytest.raises(UsageError, match="^LEXVL_POSTINGS is 'fast', expected auto, resident or lucene$"):
        opened(index)


@pytest.mark.parametrize("place", [0, 50, -60, -1])
def test_a_damaged_file_is_named_and_repaired(index, shards, place, monkeypatch):
    sound = (index / RESIDENT).read_bytes()
    flip(index / RESIDENT, place)
    remedy = r"resident\.bin: damaged.*write it again with python -m lexvl_anserini\.index .* --check --repair$"
    for act in (lambda: opened(index), lambda: check_index(index, shards)):
        with pytest.raises(ArtefactError, match=remedy):
            act()
    before = lists(index, "lucene", monkeypatch)
    monkeypatch.delenv(choosing.VARIABLE)
    assert repair_index(index) and not repair_index(index)
    assert (index / RESIDENT).read_bytes() == sound
    assert check_index(index, shards)["problems"] == 0
    assert lists(index, "resident", monkeypatch) == before


def test_one_missing_or_of_another_index(index, shards, tmp_path, monkeypatch):
    other = build_index(shards, tmp_path / "other").path
    shutil.copy(other / RESIDENT, index / RESIDENT)
    for what in ("an older", "no"):
        monkeypatch.setenv(choosing.VARIABLE, "resident")
        with pytest.raises(
            ArtefactError, match=f"LEXVL_POSTINGS is resident, and the index has {what} resident.bin; write"
        ):
            opened(index)
        monkeypatch.delenv(choosing.VARIABLE)
        engine = opened(index)
        assert engine.resident is None
        engine.close()
        if what == "an older":
            with pytest.raises(ArtefactError, match="damaged, of an older version, or not of the index as it is now"):
                check_index(index, shards)
            (index / RESIDENT).unlink()
    # An index of an older version has none, and is sound.
    assert check_index(index, shards)["problems"] == 0
    assert repair_index(index)
    agree(index, monkeypatch)


def test_a_file_of_an_older_version(index, shards, tmp_path, monkeypatch):
    """Lucene's postings serve, with the same lists, until `--repair` or the next change writes the file anew."""
    before, whole = lists(index, "lucene", monkeypatch), (index / RESIDENT).read_bytes()
    with monkeypatch.context() as older:
        older.setattr(layout, "FORMAT", "lexvl-resident/1")
        (index / RESIDENT).unlink()
        write_resident(index, 250)
    monkeypatch.setenv(choosing.VARIABLE, "auto")
    engine = opened(index)
    assert engine.resident is None and list(engine.search(MANY_QUERIES, 1000)) == before
    engine.close()
    with pytest.raises(ArtefactError, match=r"resident\.bin: damaged, of an older version, or not .*--check --repair$"):
        check_index(index, [shards])
    copy = shutil.copytree(index, tmp_path / "copy")
    append_index(copy, appended(tmp_path / "more", MORE), replace=True)
    agree(copy, monkeypatch)
    assert repair_index(index) and (index / RESIDENT).read_bytes() == whole
    agree(index, monkeypatch)


def test_every_change_writes_it_again(index, shards, tmp_path, monkeypatch):
    more = appended(tmp_path / "more", MORE)
    engine = opened(index)
    before = list(engine.search(MANY_QUERIES, 1000))
    append_index(index, more, replace=True)
    agree(index, monkeypatch)
    delete_documents(index, ["e1", "d7"])
    agree(index, monkeypatch)
    merged = build_index([index, appended(tmp_path / "last", [("f1", {"t9": 70_000})])], tmp_path / "merged").path
    agree(merged, monkeypatch)
    assert layout.read_contents(merged).width == 4
    # The open engine continues to read the older file, on which the new ones left no trace.
    monkeypatch.setattr(choosing, "SMALL", 0)
    engine.resident.compile()
    assert list(engine.search(MANY_QUERIES, 1000)) == before and engine.served()["resident"] >= len(MANY_QUERIES)
    engine.close()


@pytest.fixture
def grown(index, tmp_path):
    """The index after ten appends of a document each, whose impacts tie with those of others."""
    for number in range(10):
        append_index(index, appended(tmp_path / f"more{number}", [(f"d{number}e", {f"t{number}": 40, "t1": 5})]))
    return index


def test_an_append_writes_the_postings_of_its_own_documents(grown, shards, tmp_path, monkeypatch):
    """Few files, of which nothing is written again; built anew, it is one file."""
    first = (grown / RESIDENT).read_bytes(), (grown / RESIDENT).stat().st_ino
    sizes = [of.documents for of in choosing.read_resident_files(grown).values()]
    assert sizes == [segment.documents for segment in segments_of(grown)] == [151, 8, 2]
    assert sorted(path.name for path in list_resident_paths(grown)) == sorted(choosing.read_resident_files(grown))
    report = read_report(grown)
    assert report.resident_bytes == measure_resident(grown) == sum(p.stat().st_size for p in grown.glob("resident*"))
    agree(grown, monkeypatch)
    sources = [shards, *(tmp_path / f"more{number}" for number in range(10))]
    whole = build_index(sources, tmp_path / "whole").path
    assert [path.name for path in list_resident_paths(whole)] == [RESIDENT] and "resident_files" not in read_report(
        whole
    )
    # Of the documents that were there first, nothing was written or read.
    assert first == ((grown / RESIDENT).read_bytes(), (grown / RESIDENT).stat().st_ino)


def test_deleted_documents_are_marked_until_they_add_up(grown, tmp_path, monkeypatch):
    """A segment is written again, with those behind it, when its deleted documents are a fifth of it."""
    first = (grown / RESIDENT).stat().st_ino
    # Seven are few before the two behind them.
    delete_documents(grown, ["d2e"])
    assert [segment[:2] for segment in segments_of(grown)] == [(151, 0), (9, 0)]
    delete_documents(grown, ["d3e"])
    assert [segment[:2] for segment in segments_of(grown)] == [(151, 0), (9, 1)]
    agree(grown, monkeypatch)
    delete_documents(grown, ["d8e", "d9e"])
    assert [segment[:2] for segment in segments_of(grown)] == [(151, 0), (6, 0)]
    gone = [f"d{number}" for number in range(30)]
    delete_documents(grown, gone)
    assert [segment[:2] for segment in segments_of(grown)] == [(151, 30), (6, 0)]
    assert read_report(grown).deleted == 30 and read_report(grown).documents == opened(grown).documents == 127
    assert [of.documents for of in choosing.read_resident_files(grown).values()] == [151, 6]
    assert (grown / RESIDENT).stat().st_ino == first
    agree(grown, monkeypatch)
    delete_documents(grown, ["d30"])
    assert [segment[:2] for segment in segments_of(grown)] == [(126, 0)] and "deleted" not in read_report(grown)
    assert (grown / RESIDENT).stat().st_ino != first
    agree(grown, monkeypatch)


def test_files_of_another_state_do_not_serve(grown, shards, monkeypatch):
    """One missing, one damaged; and what a version without this form makes of it."""
    last, before = [*choosing.read_resident_files(grown)][-1], lists(grown, "lucene", monkeypatch)
    first = (grown / RESIDENT).stat().st_ino
    flip(grown / last, 50)
    monkeypatch.setenv(choosing.VARIABLE, "auto")
    with pytest.raises(ArtefactError, match=rf"{last}: damaged.*--check --repair$"):
        opened(grown)
    assert repair_index(grown) and not repair_index(grown)
    agree(grown, monkeypatch)
    # What is sound stays.
    assert (grown / RESIDENT).stat().st_ino == first and len(choosing.read_resident_files(grown)) == 3
    (grown / RESIDENT).unlink()
    assert choosing.read_resident_files(grown) == {} and lists(grown, "lucene", monkeypatch) == before
    monkeypatch.setenv(choosing.VARIABLE, "auto")
    with pytest.raises(
        ArtefactError, match=r"resident-\d.bin: damaged, .* or not of the index as it is now; write it again"
    ):
        check_index(grown, [shards, *grown.parent.glob("more*")])
    assert repair_index(grown)
    assert [*choosing.read_resident_files(grown)] == ["resident-1.bin", "resident-2.bin", "resident-3.bin"]
    agree(grown, monkeypatch)


def test_a_term_of_more_documents_than_a_block_has(tmp_path, monkeypatch):
    """Written again from Lucene's files: its postings are more than the first arrays hold."""
    documents = [(f"d{number}", {"t1": number % 7 + 1}) for number in range(layout.BLOCK + 9)]
    index = build_index(appended(tmp_path / "shards", documents), tmp_path / "index").path
    (index / RESIDENT).unlink()
    assert repair_index(index) and choosing.read_resident_files(index)[RESIDENT].postings == len(documents)
    assert lists(index, "resident", monkeypatch, 9) == lists(index, "lucene", monkeypatch, 9)


def test_an_older_index_of_several_segments(grown, tmp_path, monkeypatch):
    """Its one file has the documents of all segments; the next change gives each a file."""
    for path in list_resident_paths(grown):
        path.unlink()
    write_resident(grown, 250)
    report = read_report(grown)
    del report["resident_files"]
    write_report(grown, report, read_manifest(grown))
    assert [of.documents for of in choosing.read_resident_files(grown).values()] == [161]
    agree(grown, monkeypatch)
    for number, sizes in (("a", [151, 11]), ("b", [151, 11, 1])):
        append_index(grown, appended(tmp_path / number, [(number, {"t1": 1})]))
        assert [of.documents for of in choosing.read_resident_files(grown).values()] == sizes
        assert not (grown / RESIDENT).exists(), "older versions would take it for all documents"
        agree(grown, monkeypatch)


def test_deleted_documents_of_an_index_that_others_changed(index, monkeypatch):
    """Lucene marks deleted documents until it merges; stock programs leave such indexes."""
    with jvm.call_java():
        path = jvm.get_java_class("java.nio.file.Paths").get(str(index))
        folder = jvm.get_java_class("org.apache.lucene.store.FSDirectory").open(path)
        config = jvm.get_java_class("org.apache.lucene.index.IndexWriterConfig")()
        config.setMergePolicy(jvm.get_java_class("org.apache.lucene.index.NoMergePolicy").INSTANCE)
        writer = jvm.get_java_class("org.apache.lucene.index.IndexWriter")(folder, config)
        reader = jvm.get_java_class("org.apache.lucene.index.DirectoryReader").open(writer)
        assert writer.tryDeleteDocument(as_reader(reader), 5) >= 0
        reader.close()
        writer.close()
    report = orjson.loads((index / "index.json").read_bytes())
    for name in ("commit", "digest"):
        del report[name]
    (index / "index.json").write_bytes(orjson.dumps(report))
    write_resident(index, 250)
    contents = layout.read_contents(index)
    assert contents is not None and (contents.documents, contents.ids) == (151, 150)
    agree(index, monkeypatch)
    before = {doc_id for doc_id, vector in MANY_DOCUMENTS if vector}
    held = {hit.doc_id for one in lists(index, "resident", monkeypatch) for hit in one}
    assert len(before - held) == 1


def test_a_search_notes_which_postings_served(index, tmp_path, monkeypatch):
    for form in ("resident", "lucene"):
        monkeypatch.setenv(choosing.VARIABLE, form)
        cost = SearchCost()
        assert len(list(search_index(index, MANY_QUERIES, 10, cost=cost, threads=2))) == len(MANY_QUERIES)
        assert cost.compute_figures(read_manifest(index), index)[f"queries_from_{form}"] == len(MANY_QUERIES)


def test_ids_are_in_order_and_a_document_may_be_empty(tmp_path):
    rows = {"b": {"x": 3, "y": 4}, "a": {"x": 4, "y": 3}, "é1": {"z": 7}, "none": {}}
    write_shards(tmp_path / "shards", list(rows.items()))
    build_index(tmp_path / "shards", tmp_path / "index")
    vectors = read_vectors(tmp_path / "index")
    assert vectors.ids == ["a", "b", "none", "é1"] and vectors.terms == ["x", "y", "z"]
    assert vectors.impacts.toarray().tolist() == [[4, 3, 0], [3, 4, 0], [0, 0, 0], [0, 0, 7]]
    with pytest.raises(ArtefactError, match="no Lucene index"):
        read_vectors(tmp_path / "shards")
