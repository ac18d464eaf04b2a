"""Indexes that change: appended to, replaced in, deleted from, merged; each against the oracle of what they hold."""

import dataclasses
import json
from random import Random

import pytest
from brute_force import Doc
from histories import History
from lucene_indexes import TERMS, expect, shards
from shard_folders import write_described_shards, write_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import load_texts
from lexvl_anserini.engines.resident.choosing import CHOICES, VARIABLE
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import Equals, Impacts, Not, Term
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_anserini.searching.index_runs import name_content
from lexvl_anserini.shards.layout import check_same_meaning

FIRST = [("d1", {"a": 3, "b": 1}), ("d2", {}), ("é/😀", {"😀": 9, "a": 1})]
SECOND = [("d4", {"a": 3}), ("d5", {"日本": 2})]


def state(index):
    return {path.name: path.read_bytes() for path in index.iterdir()}


@pytest.fixture
def index(tmp_path):
    return build_index(shards(tmp_path / "first", FIRST), tmp_path / "index").path


def test_what_was_appended_is_left_alone(tmp_path, index):
    append_index(index, shards(tmp_path / "second", SECOND))
    before = state(index)
    listed = [(source["corpus"], source["documents"]) for source in read_report(index)["sources"]]
    assert listed == [("toy", 3), ("toy", 2)]
    assert append_index(index, [tmp_path / "second", tmp_path / "first"]).documents == 5
    assert append_index(index, tmp_path / "second", replace=True).documents == 5
    assert state(index) == before


def test_an_id_that_is_there_is_refused_and_nothing_changes(tmp_path, index):
    before = state(index)
    second = shards(tmp_path / "second", [("d0", {"a": 1}), ("é/😀", {"a": 2})])
    with pytest.raises(ArtefactError, match="document id 'é/😀' is in .*index already; --replace takes the new one"):
        append_index(index, second)
    twice = shards(tmp_path / "twice", [("d7", {"a": 1}), ("d7", {"a": 2})])
    for replace in (False, True):
        with pytest.raises(ArtefactError, match="document id 'd7' occurs twice"):
            append_index(index, twice, replace=replace)
    assert state(index) == before
    assert not (tmp_path / "index.lexvl.part").exists()


def test_delete_and_bring_back(tmp_path, index, caplog):
    assert delete_documents(index, ["é/😀", "d2"]).documents == 1
    expect(index, {"d1": {"a": 3, "b": 1}})
    assert read_manifest(index).corpus["deleted"] == 2
    assert check_index(index, tmp_path / "first")["ids"] == 1
    with caplog.at_level("INFO"):
        assert append_index(index, tmp_path / "first").documents == 1
    assert "nothing to do; --replace brings back what was deleted" in caplog.text
    assert append_index(index, tmp_path / "first", replace=True).documents == 3
    expect(index, dict(FIRST))
    assert read_manifest(index).corpus["deleted"] == 0
    assert len(read_report(index)["sources"]) == 1
    assert check_index(index, tmp_path / "first")["ids"] == 3


def test_ids_that_are_not_there(tmp_path, index):
    before = state(index)
    with pytest.raises(ArtefactError, match=r"no document 'nobody' in it \(2 such ids\); nothing was deleted"):
        delete_documents(index, ["d1", "nobody", "none"])
    with pytest.raises(ArtefactError, match="no document; nothing to append"):
        append_index(index, shards(tmp_path / "none", []))
    for odd in ("d1d2", ["d1\nd2"], ["\ud800"], [""], [7]):
        pytest.raises(ArtefactError, delete_documents, index, odd).match("no document .+ in it")
    with pytest.raises(ArtefactError, match="no document would be left; remove the folder instead"):
        delete_documents(index, ["d1", "d2", "é/😀", "d1"])
    assert state(index) == before
    with pytest.raises(ArtefactError, match="no index of ours to delete from"):
        delete_documents(tmp_path / "first", ["d1"])
    with pytest.raises(ArtefactError, match="no index of ours to append to; build it first"):
        append_index(tmp_path / "first", tmp_path / "first")


def test_the_same_deletion_again_is_finished(tmp_path, index, caplog):
    """It was an error: "no document 'd1' in it"."""
    delete_documents(index, ["d1", "d2"])
    before = state(index)
    (tmp_path / "index.lexvl.old").mkdir()
    with caplog.at_level("INFO", "lexvl_anserini"):
        assert delete_documents(index, ["d2", "d1", "d1"]).documents == 1
    assert "deleted already, nothing to do" in caplog.text
    assert state(index) == before and not (tmp_path / "index.lexvl.old").exists()
    for ids in (["d1"], ["d1", "d2", "d3"], ["typo"]):
        with pytest.raises(ArtefactError, match=f"no document '{ids[0]}' in it"):
            delete_documents(index, ids)
    assert state(index) == before
    # An append keeps the record; what it brings back is deleted again.
    append_index(index, shards(tmp_path / "more", [*SECOND, ("d1", {"b": 7})]))
    assert delete_documents(index, ["d1", "d2"]).documents == 3
    expect(index, dict([FIRST[2], *SECOND]))
    changes = json.loads(before["index.json"])["changes"]
    assert read_report(index)["changes"] == changes and len(changes) == 1 and changes[0].startswith("delete ")


def test_the_same_replacement_again_is_finished(tmp_path, index):
    more = shards(tmp_path / "more", [("d1", {"b": 7}), *SECOND])
    append_index(index, more, replace=True)
    before = state(index)
    append_index(index, more, replace=True)
    assert state(index) == before
    with pytest.raises(UsageError, match="deleted or replaced; name all 2 folders of shards"):
        check_index(index, tmp_path / "first")
    # After another change it is a request of its own, as that change is after it: as often as they are made.
    whole = {**dict(FIRST), **dict(SECOND), "d1": {"b": 7}}
    for _ in range(3):
        assert delete_documents(index, ["d1"]).documents == 4
        assert append_index(index, more, replace=True).documents == 5
        expect(index, whole)
    assert len(read_report(index).changes) == 2


def lists_of_all_kinds(engine, query):
    return [
        *engine.search([query], 4),
        *engine.search_where([query], Not(Term("日本")), 4),
        *engine.search_passages([query], 1, 4),
        *engine.search_passages([query], 2, 4),
        engine.search_tree("q", Impacts(query.vector), 4),
    ]


@pytest.mark.parametrize("form", CHOICES)
@pytest.mark.parametrize("change", ["delete", "replace"])
def test_impacts_of_deleted_documents_decide_nothing(tmp_path, form, change, monkeypatch):
    """An outlier is deleted: lists, filters, passages, trees and refusals are those of an index that never had it."""
    monkeypatch.setenv(VARIABLE, form)
    outlier, right = {"a": 2**24 - 1, "😀": 1}, ("d9#1", {"a": 1} if change == "replace" else {})
    passages = [(f"d{n}#{n % 2}", {"a": 1 + n % 3, "b": 2}) for n in range(9)]
    passages.append(("d3#0", {"##c": 2**20}))  # another term has greater impacts than these
    index = build_index(shards(tmp_path / "first", [*passages, (right[0], outlier)]), tmp_path / "index").path
    if change == "replace":
        append_index(index, shards(tmp_path / "right", [right]), replace=True)
    else:
        delete_documents(index, [right[0]])
    left = [*passages, right] if change == "replace" else passages
    anew = build_index(shards(tmp_path / "left", left), tmp_path / "anew").path
    engines = [LuceneEngine(path, read_manifest(path)) for path in (index, anew)]
    # The sums of the outlier are beyond 2^30, 2^31 and 2^32.
    for weight in (1, 100, 200, 2**22):
        query = ImpactQuery("q", {"a": weight, "b": 1, "日本": 2**23})
        changed, expected = (lists_of_all_kinds(engine, query) for engine in engines)
        assert changed == expected and all(map(len, expected))
    for engine in engines:
        with pytest.raises(ArtefactError, match="topic 'q'"):
            next(engine.search([ImpactQuery("q", {"a": 2**23})], 1))
        engine.close()


def test_an_engine_counts_with_the_impacts_of_the_index_that_it_opens(tmp_path, index):
    before = read_manifest(index)
    append_index(index, shards(tmp_path / "large", [("d9", {"a": 2**20})]))
    engine = LuceneEngine(index, before)
    with pytest.raises(ArtefactError, match="topic 'q'"):
        next(engine.search([ImpactQuery("q", {"a": 16})], 1))
    engine.close()


def test_an_index_that_changes_while_it_is_read_is_named_and_nothing_is_written(tmp_path, index):
    """Its deleted documents and its manifest were of one moment, its postings of another."""
    other = build_index(shards(tmp_path / "second", [("d1", {"b": 7}), *SECOND]), tmp_path / "other").path
    before = state(index)
    for number, act in enumerate(
        (
            lambda change: append_index(index, other, replace=True, progress=change),
            lambda change: build_index([index, other], tmp_path / "merged", progress=change),
        )
    ):
        left = iter([SECOND[number][0]])
        with pytest.raises(ArtefactError, match="other: another process changed it meanwhile; run the same command"):
            act(lambda _, left=left: [delete_documents(other, [doc_id]) for doc_id in left])
    assert state(index) == before and not (tmp_path / "merged").exists()
    append_index(index, other, replace=True)
    expect(index, {**dict(FIRST), "d1": {"b": 7}})


def test_merge_of_shards_and_of_indexes(tmp_path, index):
    second = shards(tmp_path / "second", SECOND, suffix="parquet")
    other = build_index(second, tmp_path / "other").path
    for name, sources in (("merged", [tmp_path / "first", second]), ("of-indexes", [index, other])):
        made = build_index(sources, tmp_path / name).path
        expect(made, dict([*FIRST, *SECOND]))
        assert check_index(made, [second, tmp_path / "first"])["ids"] == 5
    with pytest.raises(UsageError, match="an index; name the shards that it was built from"):
        check_index(tmp_path / "merged", index)


def test_an_index_of_an_index_that_changed_is_finished_for_the_same_documents_alone(tmp_path, caplog):
    """Another document was deleted, as many as before: the manifests were equal, and it was "finished already"."""
    twins = shards(tmp_path / "twins", [(f"d{n}", {"a": 3}) for n in range(4)])
    index, merged = build_index(twins, tmp_path / "index").path, tmp_path / "merged"
    delete_documents(index, ["d1"])
    with caplog.at_level("INFO", "lexvl_anserini"):
        for _ in range(2):
            build_index([index], merged)
    assert "finished already" in caplog.text
    first = name_content(merged, read_manifest(merged))
    append_index(index, twins, replace=True)
    delete_documents(index, ["d2"])
    with pytest.raises(ArtefactError, match=r"merged: holds an index of another request \(commits: "):
        build_index([index], merged)
    build_index([index], merged, overwrite=True)
    expect(merged, {name: {"a": 3} for name in ("d0", "d1", "d3")})
    assert name_content(merged, read_manifest(merged)) != first


def test_equal_bytes_of_another_vocabulary_are_another_index(tmp_path):
    names = set()
    for terms in (TERMS, TERMS[::-1]):
        write_shards(tmp_path / terms[0], [("d1", {terms[1]: 3})], terms=terms, suffix="parquet")
        index = build_index(tmp_path / terms[0], tmp_path / terms[0] / "index").path
        names.add(name_content(index, read_manifest(index)))
    assert len(names) == 2
    with pytest.raises(ArtefactError, match="not as the other shards .vocabulary.digest: "):
        append_index(index, tmp_path / TERMS[0])


def test_an_index_made_of_a_changed_one_changed_too(tmp_path, index):
    """It is checked, and what was deleted stays so until it is brought back; `--check` named it as damaged."""
    delete_documents(index, ["d2"])
    other = build_index(shards(tmp_path / "second", SECOND), tmp_path / "other").path
    delete_documents(other, ["d5"])
    made = [build_index([index], tmp_path / "one"), build_index([other, index], tmp_path / "two")]
    made.append(append_index(index, other))
    for built, gone in zip(made, ({"d2": {}}, both := dict([FIRST[1], SECOND[1]]), both), strict=True):
        sources = [tmp_path / "first", *([tmp_path / "second"] if len(gone) > 1 else [])]
        assert read_report(built.path).changed and read_manifest(built.path).corpus.deleted == len(gone)
        assert check_index(built.path, sources)["problems"] == 0
        assert delete_documents(built.path, ["d2"]).documents == built.documents  # finished already
        assert append_index(built.path, sources, replace=True).documents == built.documents + len(gone)


def test_folders_that_do_not_go_together(tmp_path, index):
    before = state(index)
    write_shards(tmp_path / "words", [("d9", {"zebra": 1})])
    same = shards(tmp_path / "same", [("d9", {"a": 1}), ("d1", {"b": 2})])
    for act in (append_index, lambda index, more: build_index([index, more], tmp_path / "merged")):
        with pytest.raises(
            ArtefactError,
            match=r"words: not as the other shards \(vocabulary.size: 1 found, 5 requested; .*\); their scores",
        ):
            act(index, tmp_path / "words")
        with pytest.raises(ArtefactError, match="document id 'd1' (is in|occurs twice)"):
            act(index, same)
    with pytest.raises(ArtefactError, match="first: the same shards as .*first; name each once"):
        build_index([tmp_path / "first", tmp_path / "first"], tmp_path / "merged")
    build_index(shards(tmp_path / "second", SECOND), tmp_path / "vectors", term_vectors=True)
    with pytest.raises(ArtefactError, match="built with .*'term_vectors': True.*; build it again"):
        append_index(index, tmp_path / "vectors")
    assert state(index) == before
    assert not (tmp_path / "merged").exists() and not (tmp_path / "merged.lexvl.part").exists()


def test_metadata_of_one_key_has_one_type(tmp_path):
    first, second = (
        write_described_shards(tmp_path / f"{year}", [Doc(f"d{year}", {"a": 1}, "", {"year": year})], TERMS)
        for year in (2001, "MMI")
    )
    index = build_index(first, tmp_path / "index").path
    with pytest.raises(ArtefactError, match="MMI: meta.year is keyword, in the others long; give it one type"):
        append_index(index, second)


def test_texts_beyond_memory_go_through_a_temporary_index(tmp_path):
    """24 texts of two million random digits: two thirds of them leave memory before the last shard is read."""
    random = Random(1)
    vectors = [{"a": n + 1, "😀": 70_000 + n} if n % 5 else {} for n in range(24)]
    texts = [f"word{n} {random.randbytes(1 << 20).hex()}" for n in range(24)]
    documents = [Doc(f"d{n}", vectors[n], texts[n], {"year": 2000 + n}) for n in range(24)]
    shards = write_described_shards(tmp_path / "shards", documents, TERMS)
    index = build_index(shards, tmp_path / "index", 2, store_text=True, term_vectors=True).path
    assert not list(index.glob("*.tmp"))
    assert load_texts(index, [d.doc_id for d in documents]) == {d.doc_id: d.text for d in documents}
    engine = LuceneEngine(index, read_manifest(index))
    assert [engine.vector(d.doc_id) for d in documents] == vectors
    assert [d.doc_id for d in engine.search_tree("q", Equals("meta.year", 2019), 9)] == ["d19"]
    [found] = engine.search([ImpactQuery("q", {"😀": 1})], 2)
    assert [(d.doc_id, d.score) for d in found] == [("d23", 70_023.0), ("d22", 70_022.0)]
    engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_index_is_that_which_is_built_anew(tmp_path, seed):
    """The contract of indexes that change; many histories: tests/attack/test_attack_resident.py."""
    history = History(Random(seed), tmp_path)
    for _ in range(4):
        history.step()
    assert history.compare()


def test_a_scale_found_and_the_same_scale_given_are_one(tmp_path):
    query = SideQuantiser("peak", 8)
    manifest = read_manifest(shards(tmp_path / "one", FIRST))

    def scaled(document):
        return dataclasses.replace(manifest, quantiser=Quantiser(document, query).to_json())

    found = scaled(SideQuantiser("calibrated", 8, 17.5, 99.0))
    check_same_meaning(found, scaled(SideQuantiser("fixed", 8, 17.5)), tmp_path)
    for other in (
        SideQuantiser("fixed", 8, 18.0),
        SideQuantiser("fixed", 6, 17.5),
        SideQuantiser("calibrated", 8, 9.0),
    ):
        with pytest.raises(ArtefactError, match="--quantiser fixed --scale 17.5 --bits 8 --query-bits 8"):
            check_same_meaning(found, scaled(other), tmp_path)
