"""The parts of `lexvl_plugins/stores`: URLs, logins, errors of clients, queries in parts, rounding."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoking import Quiet, answering

from lexvl_anserini.engines.engine import find_urls, index_path
from lexvl_anserini.ground.errors import ArtefactError, MissingExtra, StoreError, UsageError
from lexvl_anserini.ground.files import new_folder
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import search_index
from lexvl_plugins.exchange.sharing.indexes import check_index
from lexvl_plugins.stores.building import load
from lexvl_plugins.stores.fetching import fetch_best, fetch_top, multiply
from lexvl_plugins.stores.folder import FILES, Notes, name_folder, refresh_folder, write_folder
from lexvl_plugins.stores.opensearch import OpenSearchStore, read_single
from lexvl_plugins.stores.store import StorePlace, StoreRow, parse_url
from tests.plugins.stores.store_servers import MemoryStore, UrlOf, serving
from tests.plugins.stores.test_stores import DOCUMENTS, QUERIES, VECTORS, small

# No server has port 1: connections are refused.
CLOSED = {
    "qdrant": ("qdrant_client", "qdrant+http://bob:sesame@127.0.0.1:1/demo"),
    "opensearch": ("opensearchpy", "opensearch+http://bob:sesame@127.0.0.1:1/demo"),
}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[UrlOf]:
    with serving("memory", tmp_path) as url_of:
        yield url_of


@pytest.mark.parametrize(
    ("given", "engine", "where", "text"),
    [
        ("qdrant+http://h/demo", "qdrant", ("h", 6333, ""), "qdrant+http://h:6333/demo"),
        ("qdrant+https://k:s3@h:1/a/b/demo", "qdrant", ("h", 1, "a/b"), "qdrant+https://h:1/a/b/demo"),
        ("opensearch+http://u:p%40@[::1]:9/d_1", "opensearch", ("[::1]", 9, ""), "opensearch+http://[::1]:9/d_1"),
        ("qdrant+edge:///x/demo", "qdrant", ("", 0, "/x"), "qdrant+edge:/x/demo"),
    ],
)
def test_urls(given: str, engine: str, where: tuple[str, int, str], text: str) -> None:
    place = parse_url(given)
    assert (place.engine, (place.host, place.port, place.path), str(place)) == (engine, where, text)
    # A path of the standard library holds the URL with single slashes.
    assert find_urls(Path(given)) and parse_url(Path(given)) == place and parse_url(text) == place


def test_a_folder_of_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(parse_url("qdrant+file:a/b/demo")) == f"qdrant+file:{tmp_path}/a/b/demo"
    assert parse_url("qdrant+edge:demo").path == str(tmp_path)
    assert not any(map(find_urls, ("indexes/demo", "C:/x", "qdrant/demo")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("qdrant+ftp://h/demo", r"expected qdrant\+http:, qdrant\+https:, qdrant\+file:, qdrant\+edge:"),
        ("qdrant+http://h/Demo", "name of the index is 'Demo', expected at most 40 lower-case"),
        ("qdrant+http://h/" + "x" * 41, "at most 40"),
        ("qdrant+http://h/", "name of the index is ''"),
        ("qdrant+http:///demo", r"expected qdrant\+http://HOST:PORT/NAME"),
        ("qdrant+http://h/demo?api_key=sesame", "demo: parameters after `.`; expected none"),
        ("qdrant+http://u:se?same@h/demo", "parameters after"),
        ("opensearch+http://u:sesame@h/x y", "name of the index"),
    ],
)
def test_urls_that_are_none(given: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_url(given)
    assert "sesame" not in str(caught.value)


def test_a_login_is_kept_in_memory_alone(memory: UrlOf, tmp_path: Path) -> None:
    place = parse_url("opensearch+http://bob:se%3Fsame@kept:9200/demo")
    assert place.login == ("bob", "se?same") == parse_url("opensearch+http://kept:9200/demo").login
    assert "same" not in f"{place} {place!r}"
    notes = Notes("token", dict.fromkeys(FILES, "{}"))
    write_folder(name_folder(place), place, notes)
    texts = [file.read_text() for file in name_folder(place).iterdir()]
    assert texts and not any(secret in text for text in texts for secret in ("same", "bob"))


@pytest.fixture(params=CLOSED)
def client(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(CLOSED[request.param][0], reason=f"the extra [{request.param}] is not installed")
    return str(request.param)


def test_a_store_that_cannot_be_reached(client: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = r"cannot be reached \(.*\); is it running, and is the address right\?"
    with pytest.raises(StoreError, match=expected) as error:
        index_path(CLOSED[client][1])
    assert "sesame" not in str(error.value) + caplog.text and "\n" not in str(error.value)


@contextmanager
def answering_always(status: int, content: dict[str, Any]) -> Iterator[str]:
    class Answer(Quiet):
        def do_GET(self) -> None:  # noqa: N802
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Answer) as address:
        yield address.removeprefix("http://")


def test_a_login_that_is_refused(client: str) -> None:
    variable = {"qdrant": "QDRANT_API_KEY", "opensearch": "OPENSEARCH_USER and OPENSEARCH_PASSWORD"}[client]
    expected = rf"refuses the login \(.*set {variable}, or give USER:PASSWORD@"
    with answering_always(401, {"error": "no"}) as address, pytest.raises(StoreError, match=expected) as error:
        index_path(f"{client}+http://bob:sesame@{address}/demo")
    assert "sesame" not in str(error.value)


def test_a_server_that_is_too_old(client: str) -> None:
    old = {"qdrant": {"title": "qdrant", "version": "1.7.4"}, "opensearch": {"version": {"number": "7.10.2"}}}[client]
    expected = "Qdrant 1.7.4, expected 1.10 or newer|OpenSearch 7.10.2, expected 7.12 or newer"
    with answering_always(200, old) as address, pytest.raises(StoreError, match=expected):
        index_path(f"{client}+http://{address}/demo")


@pytest.mark.parametrize(
    ("url", "engine"),
    [("milvus+file:/x/a.db/demo", "milvus"), ("pgvector://bob:sesame@h/base/demo?host=/run", "pgvector")],
)
def test_a_store_of_an_older_version(url: str, engine: str, tmp_path: Path) -> None:
    shards = small(tmp_path / "shards", DOCUMENTS[:2])
    folder = tmp_path / "folder"
    build_index(shards, folder)
    report = json.loads((folder / "index.json").read_bytes())
    (folder / "index.json").write_text(json.dumps(report | {"engine": engine, "url": url}))
    message = f"an index of the engine {engine}; 0.3.0 is the last version that reads it"
    for act in (
        lambda: index_path(url),
        lambda: build_index(shards, url),
        lambda: list(search_index(folder, QUERIES)),
        lambda: check_index(folder),
    ):
        with pytest.raises(ArtefactError, match=message) as caught:
            act()
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("name", CLOSED)
def test_a_client_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, url = CLOSED[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'lexvl-anserini\[{name}\]'"):
        index_path(url)


def filled(documents: dict[str, dict[int, int]]) -> MemoryStore:
    store = MemoryStore(StorePlace("qdrant", "file", "", 0, "/none", "demo"))
    store.begin()
    ordered = {doc_id: dict(sorted(vector.items())) for doc_id, vector in documents.items()}
    store.add([StoreRow(doc_id, list(vector), list(vector.values())) for doc_id, vector in ordered.items()])
    return store


VECTOR = st.dictionaries(st.integers(0, 12), st.integers(1, 3), max_size=8)


@given(
    st.dictionaries(st.text("abcé😀", min_size=1, max_size=3), VECTOR, max_size=25),
    st.dictionaries(st.integers(0, 12), st.integers(1, 3), min_size=1),
    st.integers(1, 12),
    st.integers(1, 5),
    st.booleans(),
)
def test_queries_in_parts_are_exact(
    documents: dict[str, dict[int, int]], query: dict[int, int], hits: int, size: int, ordered: bool
) -> None:
    store = filled(documents)
    store.most_terms, store.ordered = size, ordered  # type: ignore[misc]
    exact = ((doc_id, multiply(query, vector)) for doc_id, vector in documents.items())
    expected = rank_hits("q", ((doc_id, score) for doc_id, score in exact if score), hits)
    dims = sorted(query)
    weights = [query[dim] for dim in dims]
    assert rank_hits("q", fetch_best(store, dims, weights, hits), hits) == expected
    fetched = fetch_top(store, dims, weights, hits)
    assert all(multiply(query, documents[doc_id]) == score for doc_id, score in fetched.hits)


def test_a_tie_that_no_part_of_a_query_shows() -> None:
    """c has 1 in each part, behind a and b; its sum ties with the documents that have 2 in one part."""
    heavy = {f"y{number}": {1: 2} for number in range(32)} | {f"z{number}": {2: 2} for number in range(32)}
    store = filled({**heavy, "a": {1: 1}, "b": {2: 1}, "c": {1: 1, 2: 1}})
    store.most_terms, store.ordered = 1, True  # type: ignore[misc]
    assert rank_hits("q", fetch_best(store, [1, 2], [1, 1], 1), 1)[0].doc_id == "c"


def test_hits_are_fetched_until_the_cut_is_certain() -> None:
    store = filled({f"d{number}": {1: 5 if number < 40 else 2} for number in range(100)})
    assert len(fetch_best(store, [1], [1], 30)) >= 40
    assert {score for _, score in fetch_best(store, [1], [1], 40)} == {5, 2}
    assert len(fetch_best(store, [1], [1], 41)) == len(fetch_best(store, [1], [1], 1000)) == 100


def test_a_store_that_rounds_scores_is_refused(memory: UrlOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, url = small(tmp_path / "shards", DOCUMENTS), memory("rounds")
    monkeypatch.setattr(MemoryStore, "rounds", 0.5)
    lists = "Memory changes the lists of 100% of 20 documents as queries, .* up to 0.5"
    with pytest.raises(ArtefactError, match=lists):
        build_index(shards, url)
    with pytest.raises(ArtefactError, match="no such index"):
        index_path(url)
    build_index(shards, url, options={"allow_inexact": "true"})
    report = json.loads((index_path(url) / "index.json").read_bytes())
    assert (report["lists_changed"], report["largest_difference"]) == (1, 0.5)
    assert next(search_index(url, [QUERIES[0]]))[0].score % 1 == 0.5
    # An index that was found exact has integers only.
    monkeypatch.setattr(MemoryStore, "rounds", 0)
    build_index(shards, memory("exact"))
    monkeypatch.setattr(MemoryStore, "rounds", 0.5)
    with pytest.raises(ArtefactError, match="has the score .* in Memory, expected an integer"):
        next(search_index(memory("exact"), [QUERIES[0]]))


@pytest.mark.parametrize(
    ("kind", "options", "impact", "message"),
    [
        ("opensearch", {}, 513, "document 'a': impact 513 of term 't1' has more than 9 significant bits, .*OpenSearch"),
        ("qdrant-edge", {"datatype": "float16"}, 2049, "impact 2049 of term 't1' has more than 11 significant bits"),
        ("qdrant-edge", {"datatype": "uint8"}, 1, "Qdrant Edge rounds impacts with {'datatype': 'uint8'}"),
    ],
)
def test_impacts_that_a_store_rounds(
    kind: str, options: dict[str, str], impact: int, message: str, tmp_path: Path
) -> None:
    # 1,024 has one significant bit.
    shards = small(tmp_path / "shards", [("a", {"t1": impact, "t2": 1024}), ("b", {"t1": 7})])
    with serving(kind, tmp_path) as url_of:
        with pytest.raises(ArtefactError, match=message):
            build_index(shards, url_of("demo"), options=options)
        build_index(shards, url_of("demo"), options={**options, "allow_inexact": "true"})
        report = json.loads((index_path(url_of("demo")) / "index.json").read_bytes())
        assert report["rounded"] == (3 if options.get("datatype") == "uint8" else 1)
        [found] = search_index(url_of("demo"), [ImpactQuery("q", {"t1": 1})])
        if kind == "opensearch":
            # The largest difference is that of a as a query for itself: 513 x 513 became 513 x 512.
            assert (report["lists_changed"], report["largest_difference"]) == (1.0, 513)
            assert [(hit.doc_id, hit.score) for hit in found] == [("a", 512), ("b", 7)]


def test_datatypes_that_keep_small_impacts(tmp_path: Path) -> None:
    with serving("qdrant-edge", tmp_path) as url_of:
        build_index(small(tmp_path / "shards", DOCUMENTS), url_of("demo"), options={"datatype": "float16"})
        [found] = search_index(url_of("demo"), [QUERIES[2]], 1000)
        exact = {doc_id: sum(w * v.get(t, 0) for t, w in QUERIES[2].vector.items()) for doc_id, v in VECTORS.items()}
        assert {hit.doc_id: hit.score for hit in found} == {doc_id: score for doc_id, score in exact.items() if score}
        with pytest.raises(ArtefactError, match="datatype"):
            build_index(tmp_path / "shards", url_of("demo"))
        with pytest.raises(UsageError, match="datatype=int4: expected float32, float16, uint8"):
            build_index(tmp_path / "shards", url_of("demo"), options={"datatype": "int4"})


@given(st.integers(1, 2**24 - 1), st.integers(0, 18))
def test_scores_of_opensearch_are_scaled_back_exactly(score: int, shift: int) -> None:
    sent = float(str(np.float32(score / 2**shift)))
    assert read_single(sent) * 2**shift == score


def test_opensearch_splits_long_queries(tmp_path: Path) -> None:
    terms = [f"w{number}" for number in range(1500)]
    from shard_folders import write_shards

    documents = [(f"d{n}", {terms[m]: 1 + (n * m) % 7 for m in range(n, 1500, 97)}) for n in range(60)]
    write_shards(tmp_path / "shards", documents, terms=terms)
    query = ImpactQuery("q", {term: 1 + number % 5 for number, term in enumerate(terms)})
    exact = ((doc_id, sum(query.vector[t] * i for t, i in vector.items())) for doc_id, vector in documents)
    with serving("opensearch", tmp_path) as url_of:
        build_index(tmp_path / "shards", url_of("demo"))
        [found] = search_index(url_of("demo"), [query], 25)
    assert found == rank_hits("q", exact, 25)


class BusyClient:
    def __init__(self, answers: list[Any]):
        self.answers, self.sent = answers, []  # type: ignore[var-annotated]
        self.transport = SimpleNamespace(serializer=pytest.importorskip("opensearchpy").JSONSerializer())

    def bulk(self, body: str) -> dict[str, Any]:
        keys = [json.loads(line)["index"]["_id"] for line in body.splitlines()[::2]]
        self.sent.append(keys)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise pytest.importorskip("opensearchpy").TransportError(answer, "busy", {})
        return {"items": [{"index": {"status": status, "error": {"reason": "bad"}}} for status in answer]}


def bulk(answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> BusyClient:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    store: Any = OpenSearchStore.__new__(OpenSearchStore)
    store.place, store.table = StorePlace("opensearch", "http", "h", 9, "", "demo"), "t"
    store.served = BusyClient(answers)
    with store.errors():
        store.add([StoreRow("a", [1], [1]), StoreRow("b", [2], [1]), StoreRow("c", [], [])])
    return store.served  # type: ignore[no-any-return]


def test_rows_that_opensearch_is_too_busy_for_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    served = bulk([429, [201, 429, 201], [201]], monkeypatch)
    [first, second, third] = served.sent
    assert (first, third) == (second, [second[1]]) and len(set(first)) == 3


def test_rows_that_opensearch_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[tuple[list[Any], str]] = [
        ([[201, 400, 201]], "OpenSearch refuses 1 documents .*bad"),
        ([[429] * 3] * 8, "too busy for 3 documents"),
        ([429] * 8, "too busy .*run it again later"),
        ([500], "OpenSearch failed"),
    ]
    for answers, message in refusals:
        with pytest.raises(StoreError, match=message):
            bulk(answers, monkeypatch)


def test_a_store_that_loses_documents_is_an_error(
    memory: UrlOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = MemoryStore.add
    monkeypatch.setattr(MemoryStore, "add", lambda self, rows: add(self, rows[1:]))
    shards = small(tmp_path / "shards", DOCUMENTS)
    with pytest.raises(ArtefactError, match="Memory has 149 documents after 150 were added; build again"):
        build_index(shards, memory("demo"))
    assert not [name for name in MemoryStore.tables[str(tmp_path / "memory")] if "demo" in name]


def test_an_abandoned_table_that_cannot_be_removed_hides_no_error(
    memory: UrlOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "abandon", lambda *_: {}["gone"])
    monkeypatch.setattr(MemoryStore, "settle", lambda *_: 1 / 0)
    shards = small(tmp_path / "shards", DOCUMENTS)
    store = MemoryStore(parse_url(memory("demo")))
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        load(store, shards, read_manifest(shards), False, silent, {})
    monkeypatch.undo()


def test_several_commands_write_one_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexvl_plugins.stores.folder.PATIENCE_S", 300)  # of forty writers on a busy machine
    place = parse_url("qdrant+http://h/demo")
    contents = [Notes(str(n), {name: json.dumps({"n": n}) for name in FILES}) for n in range(4)]
    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(lambda notes: write_folder(name_folder(place), place, notes), contents * 10))
    assert {file.name for file in name_folder(place).iterdir()} == FILES
    assert len({json.loads(file.read_text())["n"] for file in name_folder(place).iterdir()}) == 1


def test_what_another_command_writes_afterwards_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    place = parse_url("qdrant+http://h/demo")

    @contextmanager
    def followed(folder: Path) -> Iterator[Path]:
        with new_folder(folder) as part:
            yield part
        (folder / "index.json").write_text("of a newer build")

    monkeypatch.setattr("lexvl_plugins.stores.folder.new_folder", followed)
    write_folder(name_folder(place), place, Notes("token", dict.fromkeys(FILES, "{}")))
    assert (name_folder(place) / "index.json").read_text() == "of a newer build"


def test_a_local_folder_that_another_command_writes_is_not_removed(memory: UrlOf) -> None:
    place = parse_url(memory("gone"))
    folder = name_folder(place)
    with new_folder(folder) as part:
        (part / "file").touch()
    with new_folder(folder), pytest.raises(ArtefactError, match="another process is writing it; wait for it"):
        refresh_folder(place)
    assert refresh_folder(place) == folder and not list(folder.parent.iterdir())
