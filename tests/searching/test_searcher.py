"""A searcher: one opening, many queries."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shard_folders import Documents, write_shards

from lexvl_anserini.engines.index_folder import RESIDENT
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.records import ImpactQuery, Topic, Vocabulary
from lexvl_anserini.queries.clauses import Term, TreeQuery
from lexvl_anserini.searching import searcher as searching
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import Index, Searcher

TERMS = ["cat", "dog"]
DOCUMENTS: Documents = [("d1", {"cat": 2, "dog": 1}), ("d2", {"dog": 3})]
MODEL: Any = SimpleNamespace(
    name="toy",
    kind="impact",
    vocabulary=Vocabulary(TERMS),
    query=SimpleNamespace(kind="impact", vocabulary=Vocabulary(TERMS)),
)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", DOCUMENTS, terms=TERMS)
    return build_index(tmp_path / "shards", tmp_path / "index").path


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that are opened, and those that are closed, in order."""
    seen: list[str] = []
    first = searching.open_index

    def opened(*arguments: Any) -> Any:
        engine = first(*arguments)
        seen.append("open")
        close = engine.close
        monkeypatch.setattr(engine, "close", lambda: (seen.append("close"), close()))
        return engine

    monkeypatch.setattr(searching, "open_index", opened)
    return seen


def ids(hits: Any) -> list[tuple[str, float]]:
    return [(hit.doc_id, hit.score) for hit in hits]


def test_one_opening_answers_all_forms_of_queries(built, openings):
    with Searcher(built) as searcher:
        assert ids(searcher.search(ImpactQuery("q", {"dog": 2}))) == [("d2", 6), ("d1", 2)]
        assert ids(searcher.search(TreeQuery("q", Term("cat")), k=1)) == [("d1", 2)]
        lists = searcher.search([ImpactQuery("a", {"cat": 1}), ImpactQuery("b", {"dog": 1})], k=1)
        assert [ids(hits) for hits in lists] == [[("d1", 2)], [("d2", 3)]]
        without = Search(without_terms=frozenset({"dog"}))
        assert ids(searcher.search(ImpactQuery("q", {"dog": 2, "cat": 1}), **vars(without))) == [("d1", 2)]
        assert openings == ["open"]
    assert openings == ["open", "close"]


def test_nothing_is_opened_before_the_first_query(built, openings):
    with Searcher(built) as searcher:
        assert searcher.search([]) == []
        with pytest.raises(UsageError, match="hits"):
            searcher.search(ImpactQuery("q", {"dog": 2}), k=0)
    assert openings == []


def test_a_closed_searcher_opens_again(built, openings):
    searcher = Searcher(built)
    for _ in range(2):
        assert ids(searcher.search(ImpactQuery("q", {"cat": 1}))) == [("d1", 2)]
        searcher.close()
    searcher.close()
    assert openings == ["open", "close"] * 2


def test_the_end_of_the_block_finds_a_damaged_file(built):
    data = built / RESIDENT
    broken = bytearray(data.read_bytes())
    broken[len(broken) // 2] ^= 4
    data.write_bytes(broken)
    with pytest.raises(ArtefactError), Searcher(built) as searcher:
        searcher.search(ImpactQuery("q", {"cat": 1}))


def test_an_encoder_of_other_terms_is_refused_before_the_index_is_opened(built, openings):
    other: Any = SimpleNamespace(name="toy", kind="impact", vocabulary=Vocabulary(["dog"]))
    assert Searcher(built, MODEL).model is MODEL
    with pytest.raises(ArtefactError, match="has vocabulary"):
        Searcher(built, other).search(Topic("q", "dog"))
    assert openings == []


def test_an_index_keeps_its_searcher_until_it_is_replaced(built, openings, tmp_path):
    query = ImpactQuery("q", {"dog": 1})
    index = Index(built, Searcher(built).index.manifest)
    for _ in range(3):
        assert ids(index.search(query)) == [("d2", 3), ("d1", 1)]
    assert openings == ["open"]
    write_shards(tmp_path / "others", [("d3", {"dog": 5}), DOCUMENTS[0]], terms=TERMS)
    build_index(tmp_path / "others", built, overwrite=True)
    assert ids(index.search(query)) == [("d3", 5), ("d1", 1)]
    assert openings == ["open", "close", "open"]


@pytest.mark.parametrize("queries", [[None], [None, "dog"], ["dog", None], [ImpactQuery("q", {"dog": 1}), 3]])
def test_what_is_no_query_is_refused_wherever_it_is(built, queries):
    with pytest.raises(UsageError, match=r"query [12]: a value of type (NoneType|int) is no query; expected a text"):
        Searcher(built, MODEL).search(queries)


def test_text_that_is_not_utf_8_is_refused(built):
    model: Any = SimpleNamespace(**{**vars(MODEL), "query": SimpleNamespace(**vars(MODEL.query), read_topic=text)})
    with pytest.raises(UsageError, match=r"topic 'query': character 3 of 'a .udcff' is no valid Unicode"):
        Searcher(built, model).search("a \udcff")


def text(topic: Topic) -> str | None:
    return topic.text


def test_a_removed_index_is_not_made_again(built):
    searcher = Searcher(built)
    shutil.rmtree(built)
    with pytest.raises(ArtefactError, match="no such index; it was removed"):
        searcher.search(ImpactQuery("q", {"dog": 1}))
    assert not built.exists()


def test_what_is_no_index(built):
    """Encoded documents, and a name that no file system takes."""
    for place, message in ((built.parent / "shards", "encoded documents, not an index"), ("x" * 300, "no such index")):
        with pytest.raises(ArtefactError, match=message):
            Searcher(place)
