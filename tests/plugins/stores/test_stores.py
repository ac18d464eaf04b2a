"""One contract for all stores: what `lucene` promises of lists and counts, against brute force, by public functions.

The store in memory is always tested; others where their packages are installed (docs/plugins/stores.md).
"""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brute_force import Doc, Oracle
from memory_engine import exact_lists
from shard_folders import Documents, write_shards

from lexvl_anserini.engines.engine import index_path, open_impact_index, resolve_target
from lexvl_anserini.explain import command as explain_command
from lexvl_anserini.ground.errors import ArtefactError, DataError, StoreError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.index import command as index_command
from lexvl_anserini.queries.clauses import All, AnyOf, Boost, Equals, Ids, Impacts, Not, Term, Text, TreeQuery, Unscored
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.search import command as search_command
from lexvl_anserini.searching.building import append_index, build_index
from lexvl_anserini.searching.searcher import Searcher, search_index
from lexvl_anserini.shards.reading import read_vocabulary
from lexvl_plugins.stores import folder as notes
from tests.invoking import invoked
from tests.plugins.stores.store_servers import (
    KINDS,
    UrlOf,
    clear,
    drop_document,
    killed_build,
    make_foreign,
    opened,
    serving,
    tables_of,
)

TERMS = [f"t{number}" for number in range(40)] + ["日本", "a.b", "😀"]


def some_documents(count: int, seed: int) -> Documents:
    """Few terms and impacts, so that scores tie; ids whose order by code points is not that of UTF-16; empty ones."""
    rng = random.Random(seed)
    prefixes = ["d", "é", "\uffee", "😀", "D-"]
    ids = [f"{prefixes[number % 5]}{number}" for number in range(count)]
    rng.shuffle(ids)
    sizes = [0 if number % 17 == 0 else rng.randint(1, 12) for number in range(count)]
    return [
        (doc_id, {term: rng.choice([1, 1, 2, 255, 511]) for term in rng.sample(TERMS, size)})
        for doc_id, size in zip(ids, sizes, strict=True)
    ]


DOCUMENTS = some_documents(150, 7)
VECTORS: dict[str, dict[str, int]] = dict(DOCUMENTS)
ORACLE = Oracle([Doc(doc_id, vector) for doc_id, vector in DOCUMENTS])
QUERIES = [
    ImpactQuery("one", {"t1": 1}),
    ImpactQuery("equal", dict.fromkeys(TERMS, 1)),
    ImpactQuery("heavy", {term: weight for weight, term in enumerate(TERMS, 200)}),
    ImpactQuery("unicode", {"日本": 3, "a.b": 2, "😀": 7}),
    ImpactQuery("unknown", {"strange": 4, "t2": 2}),
    ImpactQuery("nothing", {"strange": 4}),
    ImpactQuery("empty", {}),
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url_of(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UrlOf]:
    root = tmp_path_factory.mktemp("store")
    token = f"x{random.SystemRandom().randrange(16**6):06x}"
    with pytest.MonkeyPatch.context() as patch, serving(kind, root) as url:
        patch.setenv("LEXVL_DATA", str(root / "data"))

        yield lambda name: url(f"{token}{name}")
        clear(url(f"{token}whole"), token)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "shards"
    write_shards(path, DOCUMENTS[:80], DOCUMENTS[80:], terms=TERMS)
    return path


@pytest.fixture(scope="module")
def url(url_of: UrlOf, shards: Path) -> str:
    where = url_of("whole")
    build_index(shards, where)
    return where


def small(folder: Path, documents: Documents) -> Path:
    write_shards(folder, documents, terms=TERMS)
    return folder


@pytest.mark.parametrize("hits", [1, 2, 7, 40, 1000])
def test_lists_are_those_of_integer_dot_products(url: str, shards: Path, hits: int) -> None:
    lists = list(search_index(url, QUERIES, hits))
    assert lists == exact_lists(shards, QUERIES, hits)
    assert [len(hits) > 0 for hits in lists] == [True, True, True, True, True, False, False]


def test_what_is_counted(url: str) -> None:
    report = json.loads((index_path(url) / "index.json").read_bytes())
    empty = sum(not vector for vector in VECTORS.values())
    postings = sum(map(len, VECTORS.values()))
    assert [report[name] for name in ("documents", "empty", "postings", "max_impact")] == [150, empty, postings, 511]
    assert (report["probes"], report["lists_changed"], report["largest_difference"]) == (20, 0, 0)
    with opened(url) as store:
        assert store.count() == 150 + int(store.read_notes(0, 1)[0].split(" ")[1])


TREES: list[Any] = [
    Impacts({"t1": 2, "t2": 1}),
    Term("t3", 4),
    Impacts({"t1": 2, "t2": 1}) & ~Term("t3"),
    AnyOf((Term("t1"), Boost(Term("t2"), 3), AnyOf(()))),
    All((Impacts(dict.fromkeys(TERMS, 1)), Unscored(Term("t5"))), (Term("t6", 9),)),
    All((Impacts({"t1": 2}), Unscored(AnyOf((Term("t2"), Term("t3")))))),
    All((Impacts({"t4": 2}), Ids(("d0", "é1", "d5", "no such")))),
    Ids(("d0", "é1", "no such")),
    All((Ids(tuple(VECTORS)), Not(Term("t1")))),
    AnyOf((Ids(("d0",)), All((Ids(("é1", "d5")), AnyOf((Term("t1"), Ids(("d5",)))))))),
    Impacts({"strange": 1}) & Term("t1"),
    AnyOf(()),
]


@pytest.mark.parametrize("hits", [1, 5, 200])
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_trees_are_exact(url: str, tree: Any, hits: int) -> None:
    [found] = search_index(url, [TreeQuery("q", tree)], hits)
    assert found == rank_hits("q", ORACLE.ranked(tree, hits))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (Equals("meta.year", 2010), "the metadata field 'meta.year': .* answers terms and ids"),
        (All((Term("t1"), Text("sea"))), "BM25 of a text: .* --engine lucene"),
        (Boost(Term("t1"), 0.5), "the factor 0.5, which is no integer"),
        (Not(Term("t1")), "documents match that share no scored term"),
        (All(()), "documents match that share no scored term"),
        (AnyOf((Term("t1"), Unscored(Term("t2")))), "share no scored term"),
        (Boost(Term("t1"), 0), "share no scored term"),
    ],
)
def test_trees_that_a_store_does_not_search(url: str, tree: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(search_index(url, [TreeQuery("q", tree)]))


@contextmanager
def engine_of(url: str) -> Iterator[Any]:
    path = index_path(url)
    with closing(open_impact_index(path, read_manifest(path))) as engine:
        yield engine


def test_vectors_and_bounds(url: str) -> None:
    filled = next(doc_id for doc_id, vector in VECTORS.items() if len(vector) > 3)
    bare = next(doc_id for doc_id, vector in VECTORS.items() if not vector)
    terms = [*reversed(VECTORS[filled]), "strange"]
    most = {term: max(vector.get(term, 0) for vector in VECTORS.values()) for term in ("t1", "t2")}
    with engine_of(url) as engine:
        assert engine.vector(filled) == VECTORS[filled] and engine.vector(bare) == {}
        assert engine.impacts(filled, terms) == {term: VECTORS[filled][term] for term in terms[:-1]}
        assert engine.bound({"t1": 3, "t2": 5, "strange": 9}) == 3 * most["t1"] + 5 * most["t2"]
        with pytest.raises(DataError, match="no document 'nobody'"):
            engine.vector("nobody")


def test_refined_and_explained(url: str, shards: Path, tmp_path: Path) -> None:
    build_index(shards, tmp_path / "lucene", term_vectors=True)
    reduced, refined = {"query_terms": 2, "where": Unscored(Term("t2"))}, {"first_terms": 2, "candidates": 20}
    for settings in (reduced, refined, {"feedback": 3, "feedback_terms": 5}):
        lists = [list(search_index(one, QUERIES[:5], 9, **settings)) for one in (url, tmp_path / "lucene")]
        assert lists[0] == lists[1] and lists[0][0]
    for query, doc_ids in ((QUERIES[2], None), (QUERIES[0], ["d0"])):
        one, other = (Searcher(where).explain(query, doc_ids) for where in (url, tmp_path / "lucene"))
        assert one == other


def test_threads_share_an_open_index(url: str, shards: Path) -> None:
    expected = exact_lists(shards, QUERIES, 9)
    with engine_of(url) as engine, ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: list(engine.search(QUERIES, 9)), range(12)):
            assert found == expected


def test_what_has_no_exact_score_is_refused(url: str) -> None:
    tree = TreeQuery("q", Boost(Impacts(dict.fromkeys(TERMS, 255)), 65_535))
    refusals: tuple[tuple[Any, int, type[Exception], str], ...] = (
        (ImpactQuery("q", dict.fromkeys(TERMS, 65_535)), 9, ArtefactError, "topic 'q': its score could reach .* quant"),
        (tree, 9, ArtefactError, "topic 'q': its score could reach"),
        (ImpactQuery("q", {"t1": 1.5}), 9, UsageError, "topic 'q': weight 1.5 of term 't1'"),  # type: ignore[dict-item]
        (QUERIES[0], 0, UsageError, "hits"),
    )
    for query, hits, kind, message in refusals:
        with pytest.raises(kind, match=message):
            list(search_index(url, [query], hits))


def test_scores_up_to_the_limit(url_of: UrlOf, tmp_path: Path) -> None:
    """2^24 - 1 = 511 x 32,832 + 63: a sum of large and small products is not rounded."""
    where = url_of("limit")
    build_index(small(tmp_path / "shards", [("a", {"t1": 511, "t2": 1}), ("b", {"t1": 511}), ("c", {"t2": 1})]), where)
    [found] = search_index(where, [ImpactQuery("q", {"t1": 32_832, "t2": 63})])
    assert [(hit.doc_id, hit.score) for hit in found] == [("a", 2**24 - 1), ("b", 511 * 32_832), ("c", 63)]


def test_the_commands(url_of: UrlOf, shards: Path, tmp_path: Path) -> None:
    where = url_of("commands")
    plan = json.loads(invoked(index_command, shards, "--index", where, "--dry-run", "--format", "json"))
    assert (plan["documents"], plan["finished"]) == (150, False)
    built = json.loads(invoked(index_command, shards, "--index", where, "--format", "json"))
    assert (built["documents"], built["lists_changed"], "seconds" in built) == (150, 0, True)
    assert built["index"].endswith(where.rpartition("/")[2])
    again = json.loads(invoked(index_command, shards, "--index", where, "--format", "json"))
    assert "seconds" not in again and again["documents"] == 150
    hits = json.loads(invoked(search_command, "--index", where, "--match", "+t1 -t2 t3^4", "--format", "json"))
    expected = ORACLE.ranked(All((Term("t1"), Not(Term("t2"))), (Term("t3", 4),)), 10)
    assert [(hit["doc_id"], hit["score"]) for hit in hits] == expected
    queries = tmp_path / "q.jsonl"
    queries.write_text(json.dumps({"id": "q", "contents": "", "vector": {"t1": 2}}) + "\n")
    invoked(search_command, "--index", where, "--topics", queries, "--output", tmp_path / "run.trec")
    assert len((tmp_path / "run.trec").read_text().splitlines()) == sum("t1" in v for v in VECTORS.values())
    told = invoked(explain_command, "--index", where, "--topics", queries, "--query-id", "q", "--hits", 1)
    assert "1 of 1 query terms" in told


def test_other_shards_need_overwrite(url_of: UrlOf, tmp_path: Path) -> None:
    where = url_of("again")
    one, other = small(tmp_path / "one", [("a", {"t1": 1})]), small(tmp_path / "other", [("b", {"t1": 2}), ("c", {})])
    build_index(one, where)
    with pytest.raises(ArtefactError, match="holds an index of another request"):
        build_index(other, where)
    with pytest.raises(ArtefactError, match="allow_inexact"):
        build_index(one, where, options={"allow_inexact": "true"})
    assert [hit.doc_id for hit in next(search_index(where, [QUERIES[0]]))] == ["a"]
    build_index(other, where, overwrite=True)
    assert [(hit.doc_id, hit.score) for hit in next(search_index(where, [QUERIES[0]]))] == [("b", 2)]
    with opened(where) as store:
        name = store.place.name
        assert len([table for table in tables_of(store) if table.startswith(name)]) == 1
    with pytest.raises(UsageError, match="only indexes of lucene"):
        append_index(index_path(where), one)
    with pytest.raises(UsageError, match="--append: an index of a URL"):
        invoked(index_command, one, "--index", where, "--append")


def test_documents_that_the_store_lost(url_of: UrlOf, shards: Path) -> None:
    where = url_of("lost")
    with pytest.raises(ArtefactError, match="lost.*: no such index; build it with"):
        next(search_index(where, [QUERIES[0]]))
    build_index(shards, where)
    with opened(where) as store:
        drop_document(store, "d0")
    with pytest.raises(ArtefactError, match=r"149 documents, the manifest says 150; build it again \(--overwrite\)"):
        next(search_index(where, [QUERIES[0]]))


def test_what_is_not_ours_stays(url_of: UrlOf, shards: Path) -> None:
    where = url_of("foreign")
    build_index(shards, url_of("beside"))
    with opened(where) as store:
        if hasattr(store, "_serve") and store.served is None:  # a folder that nobody made
            store._serve()  # type: ignore[attr-defined]
        make_foreign(store, store.place.name)
        before = tables_of(store)
    build = partial(build_index, shards, where)
    for act in (lambda: next(search_index(where, [QUERIES[0]])), build, partial(build, overwrite=True)):
        with pytest.raises(ArtefactError, match="no index of ours|none of ours"):
            act()
    with opened(url_of("beside")) as store:
        assert tables_of(store) == before


def test_a_killed_build_leaves_nothing_that_answers(kind: str, url_of: UrlOf, tmp_path: Path) -> None:
    if kind == "memory":
        pytest.skip("a store in memory ends with its process")
    where = url_of("killed")
    shards = small(tmp_path / "shards", DOCUMENTS[:6])
    killed_build(shards, where)
    with pytest.raises(ArtefactError, match="no such index"):
        next(search_index(where, [QUERIES[0]]))
    build_index(small(tmp_path / "old", [("old", {"t1": 1})]), where)
    killed_build(shards, where)
    assert [hit.doc_id for hit in next(search_index(where, [QUERIES[0]]))] == ["old"]
    build_index(shards, where, overwrite=True)
    [found] = search_index(where, [QUERIES[1]])
    assert {hit.doc_id for hit in found} == {doc_id for doc_id, vector in DOCUMENTS[:6] if vector}
    with opened(where) as store:
        assert len([table for table in tables_of(store) if table.startswith(store.place.name)]) == 1


def test_an_error_in_the_middle_leaves_nothing(url_of: UrlOf, tmp_path: Path) -> None:
    where = url_of("error")
    shards = small(tmp_path / "shards", [("a", {"t1": 1}), ("b", {"t2": 1}), ("a", {"t1": 2})])
    with pytest.raises(ArtefactError, match="document id 'a' occurs twice"):
        build_index(shards, where)
    with pytest.raises(ArtefactError, match="no such index"):
        index_path(where)
    build_index(small(tmp_path / "good", [("a", {"t1": 1})]), where)


def test_an_answer_that_is_lost_after_publishing_leaves_the_new_index(
    url_of: UrlOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = url_of("unanswered")
    shards = small(tmp_path / "new", [("new", {"t1": 1})])
    build_index(small(tmp_path / "old", [("old", {"t1": 1})]), where)
    with opened(where) as store:
        kind = type(store)
    publish = kind.publish

    def lost(store: Any) -> None:
        publish(store)
        raise ConnectionError("closed")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "publish", lost)
        with pytest.raises(StoreError, match="closed"):
            build_index(shards, where, overwrite=True)
    assert [hit.doc_id for hit in next(search_index(where, [QUERIES[0]]))] == ["new"]
    build_index(shards, where, overwrite=True)


def test_an_open_index_is_not_mixed_with_another(kind: str, url_of: UrlOf, tmp_path: Path) -> None:
    """A folder that another machine's build made stale is noticed, and refreshed by the next command."""
    where = url_of("token")
    build_index(small(tmp_path / "one", [("a", {"t1": 1})]), where)
    stale, about = index_path(where), read_manifest(index_path(where))
    content = {path.name: path.read_bytes() for path in stale.iterdir()}
    build_index(small(tmp_path / "other", [("b", {"t1": 1})]), where, overwrite=True)
    for name, old in content.items():
        (stale / name).write_bytes(old)
    with pytest.raises(ArtefactError, match="built again since this command began"):
        open_impact_index(stale, about)
    assert [hit.doc_id for hit in next(search_index(where, [QUERIES[0]]))] == ["b"]


def test_damaged_notes(url_of: UrlOf, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "PIECE", 200)  # many notes
    where = url_of("notes")
    build_index(shards, where)
    assert [hit.doc_id for hit in next(search_index(where, [QUERIES[0]], 1))]
    with opened(where) as store:
        whole = store.read_notes(0, 1000)
        assert len(whole) > 3 and notes.read_notes(store).files.keys() == notes.FILES

        def replaced(change: Callable[[list[str]], list[str]]) -> None:
            monkeypatch.setattr(
                type(store), "read_notes", lambda self, first, count: change(list(whole))[first : first + count]
            )

        for change, message in (
            (lambda told: told[:-1], "notes are damaged"),
            (lambda told: [told[0], told[1][::-1], *told[2:]], "notes are damaged"),
            (lambda told: [told[0].replace("store/1", "store/9"), *told[1:]], "no index of this version"),
            (lambda told: [], "it has no notes"),
        ):
            replaced(change)
            with pytest.raises(ArtefactError, match=message):
                notes.read_notes(store)


def test_a_local_folder_has_no_more_than_the_notes(url: str, shards: Path) -> None:
    path = index_path(url)
    assert {file.name for file in path.iterdir()} == {"manifest.json", "index.json", "vocab.txt", "greatest.txt"}
    assert read_manifest(path) == read_manifest(shards)
    assert read_vocabulary(path, read_manifest(path)).terms == tuple(TERMS)
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert index_path(url) == path and {f.name: f.stat().st_mtime_ns for f in path.iterdir()} == before
    (path / "vocab.txt").write_text("other\n")
    assert index_path(url) == path and read_vocabulary(path, read_manifest(path)).terms == tuple(TERMS)


def test_a_server_that_stops_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(url) as engine:
        monkeypatch.setattr(type(engine.store), "top", lambda *_: 1 / 0)
        with pytest.raises(StoreError, match=rf"{engine.store.title} failed \(ZeroDivisionError"):
            next(engine.search([QUERIES[0]], 1))


def test_the_engine_is_that_of_the_url(url_of: UrlOf, shards: Path) -> None:
    where = url_of("engine")
    name = where.partition("+")[0]
    with pytest.raises(UsageError, match=f"--engine lucene, but .* is of {name}"):
        build_index(shards, where, engine="lucene")
    with pytest.raises(UsageError, match=f"engine {name} writes to a store"):
        build_index(shards, shards.parent / "index", engine=name)
    with pytest.raises(UsageError, match="allow_inexact=maybe: expected true or false"):
        build_index(shards, where, options={"allow_inexact": "maybe"})
    assert resolve_target(where, name, {}).engine == name
