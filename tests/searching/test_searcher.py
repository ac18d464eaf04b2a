"""A searcher: one opening, many queries; an index, which threads share, and which answers while it is replaced."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from threading import Event
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


def test_one_opening_answers_all_forms_of_queries(built, openings, caplog):
    with Searcher(built) as searcher:
        assert ids(searcher.search(ImpactQuery("q", {"dog": 2}))) == [("d2", 6), ("d1", 2)]
        assert ids(searcher.search(TreeQuery("q", Term("cat")), k=1)) == [("d1", 2)]
        lists = searcher.search([ImpactQuery("a", {"cat": 1}), ImpactQuery("b", {"dog": 1})], k=1)
        assert [ids(hits) for hits in lists] == [[("d1", 2)], [("d2", 3)]]
        without = Search(without_terms=frozenset({"dog", "Cat"}))
        assert ids(searcher.search(ImpactQuery("q", {"dog": 2, "cat": 1}), **vars(without))) == [("d1", 2)]
        assert "no terms of its vocabulary: 'Cat'; did you mean 'cat'?" in caplog.text
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
    index, other = (Index(built, Searcher(built).index.manifest) for _ in range(2))
    assert index == other
    for _ in range(3):
        assert ids(index.search(query)) == [("d2", 3), ("d1", 1)]
    assert openings == ["open"]
    write_shards(tmp_path / "others", [("d3", {"dog": 5}), DOCUMENTS[0]], terms=TERMS)
    build_index(tmp_path / "others", built, overwrite=True)
    assert ids(index.search(query)) == [("d3", 5), ("d1", 1)]
    assert openings == ["open", "close", "open"]


def test_an_index_that_is_replaced_before_its_engine_opens_is_of_the_newer_state(built, tmp_path, monkeypatch):
    """Between the manifest and the engine, and while the engine reads the files."""
    folders, first = [tmp_path / "one", tmp_path / "two", tmp_path / "three"], searching.open_index
    for number, folder in enumerate(folders, start=2):
        documents = [(f"new{n}", {"dog": n, "cat": 1}) for n in range(1, number * number)]
        build_index(write_shards(folder, documents, terms=TERMS) and folder, folder / "index")

    def replace(*arguments: Any) -> Any:
        if folders:
            built.rename(tmp_path / f"older{len(folders)}")
            (folders.pop(0) / "index").rename(built)
        return first(*arguments)

    monkeypatch.setattr(searching, "open_index", replace)
    with Searcher(built) as searcher:
        assert ids(searcher.search(ImpactQuery("q", {"dog": 1}), 2)) == [("new15", 15), ("new14", 14)]
        assert searcher.index.documents == 15 and not folders
        folders.append(tmp_path / "none")
        assert ids(searcher.search(ImpactQuery("q", {"dog": 1}), 1, where=Term("cat"))) == [("new15", 15)]


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
    with pytest.raises(ArtefactError, match="no such index"):
        searcher.search(ImpactQuery("q", {"dog": 1}))
    assert not built.exists()


def test_what_is_no_index(built):
    """Encoded documents, and names that no file system takes."""
    names = [(name, "no such index") for name in ("x" * 300, "a\0b", "\ud800")]
    for place, message in ((built.parent / "shards", "encoded documents, not an index"), *names):
        with pytest.raises(ArtefactError, match=message):
            Searcher(place)


CALLS, THREADS = 2_000, 8
QUERY = ImpactQuery("q", {"cat": 2, "dog": 1})


@pytest.fixture
def versions(tmp_path: Path) -> dict[str, list[Path]]:
    """Two shards for each of two indexes; no two of the four have a common document or score."""
    made: dict[str, list[Path]] = {"a": [], "b": []}
    for number, (name, weight) in enumerate((("a", 1), ("a", 10), ("b", 100), ("b", 200))):
        folder = tmp_path / f"shards-{number}"
        write_shards(folder, [(f"{name}{weight}", {"cat": weight}), (f"{name}{weight}-dog", {"dog": weight})])
        made[name].append(folder)
    return made


def answer(folder: Path) -> list[tuple[str, float]]:
    """The list of QUERY over the shards in a folder, by hand."""
    name, weight = {"0": ("a", 1), "1": ("a", 10), "2": ("b", 100), "3": ("b", 200)}[folder.name[-1]]
    return [(f"{name}{weight}", 2.0 * weight), (f"{name}{weight}-dog", 1.0 * weight)]


def test_eight_threads_over_two_indexes_that_are_replaced(versions, tmp_path):
    """Every answer is that of one version of the index that was searched."""
    indexes = {name: build_index(folders[0], tmp_path / name) for name, folders in versions.items()}
    right = {name: [answer(folder) for folder in folders] for name, folders in versions.items()}
    replaced, done = Event(), Event()

    def replace() -> None:
        for number in cycle((1, 0)):
            for name, folders in versions.items():
                build_index(folders[number], tmp_path / name, overwrite=True)
            if number == 0:
                replaced.set()
            if done.is_set():
                return

    def search(number: int) -> bool:
        name = "ab"[number % 2]
        return ids(indexes[name].search(QUERY)) in right[name]

    with ThreadPoolExecutor(THREADS + 1) as pool:
        replacing = pool.submit(replace)
        try:
            answers = list(pool.map(search, range(CALLS)))
            while not (replaced.is_set() or replacing.done()):
                answers += pool.map(search, range(THREADS))
        finally:
            done.set()
        replacing.result()
    assert replaced.is_set() and len(answers) >= CALLS
    assert all(answers)


def test_threads_open_a_searcher_once(built, openings):
    with Searcher(built) as searcher, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: searcher.search(QUERY), range(50)))
    assert openings == ["open", "close"]


def test_a_replaced_searcher_closes_after_its_last_call(versions, tmp_path, monkeypatch):
    closed = []
    close = Searcher.close
    monkeypatch.setattr(Searcher, "close", lambda self: (closed.append(id(self)), close(self))[1])
    index = build_index(versions["a"][0], tmp_path / "a")
    older, newer = (index._open_searcher((number,) * 3, None, "cpu") for number in (1, 2))
    assert ids(older.search(QUERY)) == ids(newer.search(QUERY))
    assert index._open_searcher((2, 2, 2), None, "cpu") is newer is not older
    both = [id(older), id(newer)]
    assert closed == []
    del older
    assert closed == both[:1]
    del index
    assert closed == both[:1]
    del newer
    assert closed == both
