"""The command `serve`; what the network may not do: other hosts and sites, no key, slow clients; lines of the log."""

import asyncio
import base64
import http.client
import io
import json
import logging
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import pytest
from shard_folders import write_text_shards
from starlette.exceptions import HTTPException

from lexvl_anserini.engines.engine import resolve_target
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.fields import join_fields
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.answering import Service, embed_pieces
from lexvl_plugins.serve.indexes import Shelf, name_indexes
from lexvl_plugins.serve.messages import ProductsQuestion, Question
from lexvl_plugins.serve.serve import command
from lexvl_plugins.serve.server import KEY_NAME, ApiKeys, Guard, Threads, check_address, format_url, open_socket
from tests.invoking import invoked
from tests.plugins.serve.served_colours import (
    DENSE,
    PICTURES,
    index_pictures,
    index_texts,
    load,
    running,
    serving,
    wait_for,
)

invoke = partial(invoked, command)


@pytest.fixture
def toy(monkeypatch) -> None:
    monkeypatch.setattr("lexvl_anserini.searching.search.load_encoder_from", load)


def test_check_answers_one_query_and_ends(toy, tmp_path) -> None:
    lexical = index_pictures(tmp_path / "pictures", tmp_path / "colours")
    twin = index_pictures(tmp_path / "pictures", tmp_path / "twin", DENSE)
    arguments = ("--index", lexical, "--index", twin, "--example", "blue", "--check", "--format", "json")
    rows = json.loads(invoke(*arguments))
    assert rows["query"] == "blue"
    assert rows["colours"].startswith("4 documents, first hit ")
    assert rows["twin"].startswith("4 documents, first hit ")


def test_what_cannot_be_served_is_refused(toy, tmp_path) -> None:
    with pytest.raises(ArtefactError, match="no such index"):
        invoke("--index", tmp_path / "nowhere", "--check")
    with pytest.raises(UsageError, match="at most 4"):
        invoke(*("--index", tmp_path) * 5, "--check")
    with pytest.raises(UsageError, match="one for each"):
        invoke("--index", tmp_path, "--index", tmp_path, "--checkpoint", "x", "--check")


def test_an_index_in_a_store_is_served_beside_a_folder(toy, tmp_path, monkeypatch) -> None:
    pytest.importorskip("qdrant_client", reason="the client of Qdrant")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    folder = index_pictures(tmp_path / "pictures", tmp_path / "colours")
    url = f"qdrant+file:{tmp_path}/stores/colours"
    target = resolve_target(url, None, {})
    build_index(tmp_path / "colours-shards", target.folder, engine=target.engine, options=target.options)
    with running(folder, url) as client:

        def answered(index: str, text: str) -> list[tuple[str, float]]:
            return [(hit["doc_id"], hit["score"]) for hit in client.ask(index=index, text=text)["hits"]]

        texts = ["red", "blue", "red blue", "+red -blue", "green"] * 8
        expected = [answered("colours", text) for text in texts[:5]]
        assert expected[0] and expected[2]
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda text: answered("colours-2", text), texts))
        assert found == expected * 8
        question = {"index": "colours-2", "text": "red blue"}
        _, [found] = client.post("/api/products", {"question": question, "doc_ids": ["half.png"]})
        assert sum(one["product"] for one in found["products"]) == found["score"] > 0


@pytest.mark.heavy
def test_the_command_serves_until_it_is_interrupted(tmp_path) -> None:
    environ = index_texts(tmp_path)
    serve = ("lexvl_plugins.serve.serve", "--index", "index", "--port", "0", "--format", "json")
    call = [sys.executable, "-m", *serve]
    running = subprocess.Popen(call, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        page = json.loads(running.stdout.readline())["page"]
        with urlopen(page) as answer:
            assert b"LexVL" in answer.read()
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(900)
    assert code == 0


def test_each_product_names_its_field(tmp_path: Path) -> None:
    write_text_shards(tmp_path / "text", [("d1", "red boat"), ("d2", "sea")])
    write_text_shards(tmp_path / "title", [("d1", "boat"), ("d2", "boats and seas")])
    join_fields({name: tmp_path / name for name in ("text", "title")}, tmp_path / "both", load_word_analysis)
    build_index(tmp_path / "both", tmp_path / "served")
    shelf = Shelf(name_indexes([tmp_path / "served"], [], "cpu", None))
    try:
        service = Service(shelf)
        expected = {"text:boat": "text", "title:boat": "title"}
        for text in ("a boat", "+text:boat title:boat^2"):
            question = Question(index="served", text=text)
            answer = service.answer(question)
            assert answer.hits[0].doc_id == "d1" and {chip.term for chip in answer.chips} == set(expected)
            [found] = service.explain(ProductsQuestion(question=question, doc_ids=["d1"]))
            assert {product.term: product.field for product in found.products} == expected
            assert sum(product.product for product in found.products) == found.score == answer.hits[0].score
        assert service.suggest("served", "bo") == ["text:boat", "title:boat"]
        assert service.suggest("served", "title:s") == ["title:sea"]
    finally:
        shelf.close()


QUESTION = json.dumps({"index": "colours", "text": "red"})


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("guarded")) as client:
        yield client


OWN = ["127.0.0.1", "127.0.0.1:80", "LocalHost:1", "[::1]:80"]
OTHER = ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", ""]


@pytest.mark.parametrize("host,status", [*((host, 200) for host in OWN), *((host, 421) for host in OTHER)])
def test_requests_for_other_hosts_are_refused(client, host, status) -> None:
    assert client.request("GET", "/", Host=host)[0] == status
    guard = Guard(lambda *_: None, ["Pictures.lan"])
    assert guard.is_own("pictures.lan:8765") and not Guard(lambda *_: None).is_own("pictures.lan:8765")


@pytest.mark.parametrize("origin,status", [(None, 200), ("own", 200), ("http://evil.example", 403), ("null", 403)])
def test_requests_from_pages_of_other_sites_are_refused(client, origin, status) -> None:
    headers = {"Origin": client.url.rstrip("/") if origin == "own" else origin} if origin else {}
    assert client.request("POST", "/api/search", QUESTION, content_type="application/json", **headers)[0] == status
    # What a form of another page can send.
    assert client.request("POST", "/api/search", QUESTION, content_type="text/plain")[0] == 422


def test_what_a_browser_says_of_other_sites_is_refused_unless_a_link_leads_to_the_page(client) -> None:
    for path, mode, status in (("/", "navigate", 200), ("/", "no-cors", 403), ("/api/indexes", "navigate", 403)):
        assert client.request("GET", path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode=mode)[0] == status
        assert client.request("GET", path, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode=mode)[0] == 200


def test_heads_have_no_bodies(client) -> None:
    for path, status in (("/", 200), ("/api/indexes", 200), ("/healthz", 200), ("/api/search", 405), ("/x", 404)):
        found, headers, content = client.request("HEAD", path)
        assert (found, content) == (status, b"") and int(headers["content-length"]) > 0


def test_the_page_may_load_from_its_server_alone(client) -> None:
    _, headers, content = client.request("GET", "/")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert b"http://" not in content and b"https://" not in content and "server" not in headers


def test_large_bodies_are_refused_while_they_arrive(client, monkeypatch) -> None:
    status, headers, content = client.request("POST", "/api/search", b" " * (limits.MOST_JSON + 1))
    assert status == 413 and set(json.loads(content)) == {"error"} and headers["connection"] == "close"
    assert client.request("POST", "/api/search", iter([b" " * 1024] * 65))[0] == 413
    monkeypatch.setattr(limits, "MOST_UPLOAD", 1 << 20)
    assert client.request("POST", "/api/pictures", b" " * ((1 << 20) + 1))[0] == 413


def test_uploads_that_stall_keep_nobody_waiting_and_all_bodies_together_are_bounded(client, monkeypatch) -> None:
    start = b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    stalled = [socket.create_connection(("127.0.0.1", client.port), timeout=900) for _ in range(40)]
    for one in stalled:
        one.sendall(start + b"x" * 1000)
    out = io.BytesIO()
    PICTURES["red.png"].save(out, format="PNG")
    assert client.request("POST", "/api/pictures", out.getvalue())[0] == 200
    monkeypatch.setattr(limits, "MOST_HELD", 40 * 1000 + 500)
    status, _, content = client.request("POST", "/api/pictures", b"x" * 1000)
    assert status == 503 and b"try again" in content
    for one in stalled:
        one.close()
    monkeypatch.setattr(limits, "MOST_HELD", 1500)
    # What was held is free when the connections end.
    wait_for(lambda: client.request("POST", "/api/pictures", out.getvalue())[0] == 200)


def test_slow_clients_end_and_do_not_stop_others(client, monkeypatch) -> None:
    start = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    idle = [socket.create_connection(("127.0.0.1", client.port), timeout=900) for _ in range(100)]
    body, late = idle[:2]
    body.sendall(start)
    assert client.request("POST", "/api/search", QUESTION, content_type="application/json")[0] == 200
    monkeypatch.setattr(limits, "REQUEST_S", 0.1)
    late.sendall(start)
    assert late.recv(1000).startswith(b"HTTP/1.1 408 ")
    for connection in idle:
        connection.close()


def test_a_hundred_clients_at_once_get_answers(client) -> None:
    def ask(_: int) -> int:
        return client.request("POST", "/api/search", QUESTION, content_type="application/json")[0]

    with ThreadPoolExecutor(100) as threads:
        assert set(threads.map(ask, range(200))) == {200}


def test_the_end_of_an_answer_does_not_wait_for_its_begin() -> None:
    with open_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_cannot_be_listened_at_is_a_usage_error() -> None:
    with open_socket("127.0.0.1", 0) as taken:
        assert format_url(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(UsageError, match="choose another --port"):
            open_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="--host"):
        open_socket("nowhere.invalid", 0)


FIRST, SECOND = "first-0123456789", "second-0123456789"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("keys"), keys=ApiKeys([FIRST, SECOND]), log_requests=True) as client:
        yield client


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


RIGHT = [f"Bearer {FIRST}", f"bearer  {SECOND}", basic("anyone", SECOND), basic("", FIRST)]
WRONG = ["", FIRST, "Bearer ", "Basic é", f"Digest {FIRST}", basic(FIRST, "x")]
WRONG += [f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}"]


@pytest.mark.parametrize("header,status", [*((right, 200) for right in RIGHT), *((wrong, 401) for wrong in WRONG)])
@pytest.mark.parametrize("path", ["/", "/api/indexes", "/openapi.json", "/api/suggest?index=colours&prefix=r"])
def test_every_path_needs_a_key(guarded, path, header, status) -> None:
    found, headers, content = guarded.request("GET", path, Authorization=header)
    assert found == status
    if status == 401:
        assert set(json.loads(content)) == {"error"}
        assert headers["www-authenticate"].startswith("Basic ")  # the last of them


def test_health_needs_no_key_and_every_index_must_answer(guarded) -> None:
    def ask(path: str) -> tuple[int, dict[str, str]]:
        status, _, content = guarded.request("GET", path)
        return status, json.loads(content)

    assert ask("/healthz") == ask("/readyz") == (200, {"status": "ok"})
    [index] = guarded.service.shelf._open.values()
    index.problem = ArtefactError("damaged")
    assert ask("/readyz") == (503, {"error": "1 of 1 indexes do not answer; the log says why"})
    assert ask("/healthz")[0] == 200
    index.problem = None
    assert guarded.request("GET", "/healthz", Host="evil.example")[0] == 421


def test_browsers_and_programs_have_a_challenge_each(guarded) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=900)
    connection.request("GET", "/")
    challenges = connection.getresponse().headers.get_all("www-authenticate")
    connection.close()
    assert [challenge.partition(" ")[0] for challenge in challenges] == ["Bearer", "Basic"]


def test_other_hosts_and_sites_are_refused_with_a_key_too(guarded) -> None:
    assert guarded.request("GET", "/", Authorization=f"Bearer {FIRST}", Host="evil.example")[0] == 421
    assert guarded.request("GET", "/", Authorization=f"Bearer {FIRST}", Origin="http://evil.example")[0] == 403


def test_keys_of_a_file(tmp_path, caplog) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the lab\n\n{FIRST}\n  {SECOND}  \n")
    file.chmod(0o640)
    keys = ApiKeys.read(file)
    assert "mode 640, others of this machine can read the keys" in caplog.text
    names = [keys.find_name(f"Bearer {key}".encode()) for key in (FIRST, SECOND, "# of the lab")]
    assert len(set(names)) == 3 and len(names[0]) == KEY_NAME and names[2] is None
    assert FIRST.encode() not in b"".join(keys.digests)
    file.write_text("third-0123456789")
    file.chmod(0o600)
    caplog.clear()
    keys.reload()
    assert keys.find_name(b"Bearer third-0123456789") and not keys.find_name(f"Bearer {FIRST}".encode())
    assert "others of this machine" not in caplog.text
    file.write_text("short")
    keys.reload()
    assert keys.find_name(b"Bearer third-0123456789") and "the keys read before stay" in caplog.text


@pytest.mark.parametrize(
    "content,reason",
    [
        ("", "no key; expected one a line"),
        ("# nothing\n", "no key"),
        (f"{FIRST}\nshort\n", r"line 2: 5 characters, expected at least 16"),
        ("a key of three words and more", "without spaces"),
        ("0123456789abcdeé", "of ASCII"),
    ],
)
def test_files_without_good_keys_are_refused(tmp_path, content, reason) -> None:
    file = tmp_path / "keys"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        ApiKeys.read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        ApiKeys.read(file)


def test_keys_do_not_cross_a_network_in_plain_text_unless_the_user_says_so(tmp_path, caplog) -> None:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(FIRST)
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(UsageError, match=r"plain HTTP.*--insecure"):
            invoked(command, "--index", tmp_path, "--host", host, "--keys", file)
        check_address(host, ApiKeys.read(file), insecure=True)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, ApiKeys.read(file), insecure=False)
        check_address(host, None, insecure=False)
    assert caplog.text == ""
    check_address("0.0.0.0", None, insecure=False)
    assert "there is no password" in caplog.text


def test_a_line_of_json_for_each_request_without_what_users_wrote(guarded, caplog) -> None:
    caplog.set_level(logging.INFO, "lexvl_plugins.serve.server")
    key = {"Authorization": f"Bearer {FIRST}"}
    guarded.request("POST", "/api/search", QUESTION, content_type="application/json", **key)
    guarded.request("GET", "/api/suggest?index=colours&prefix=secret", **key)
    guarded.request("GET", "/api/pictures/secret", **key)
    guarded.request("SECRET", "/secret?secret=secret", **key)
    guarded.request("GET", "/", Authorization="Bearer secret", Host="localhost")

    def read_lines() -> list[dict]:
        return [json.loads(one.getMessage()) for one in caplog.records if one.name.endswith("serve.server")]

    wait_for(lambda: len(read_lines()) >= 5)  # a line is written after its answer
    lines = read_lines()
    expected = [("POST", "/api/search", 200), ("GET", "/api/suggest", 200), ("GET", "/api/pictures/{picture_id}", 404)]
    expected += [(None, None, 404), ("GET", None, 401)]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == expected
    assert list(lines[0]) == ["time", "method", "path", "status", "ms", "received", "sent", "key"]
    assert lines[0]["received"] == len(QUESTION) and lines[0]["sent"] > 100 and lines[0]["ms"] > 0
    assert lines[0]["key"] == lines[1]["key"] != lines[4]["key"] is None
    assert "secret" not in caplog.text.lower() and FIRST not in caplog.text
    assert "red" not in {*map(str, lines[0].values())}


def test_a_defect_and_a_client_that_leaves_log_nothing_that_a_user_wrote(guarded, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, "lexvl_plugins.serve.server")
    library = logging.getLogger("uvicorn.error")
    library.addHandler(caplog.handler)

    def fail(text: str) -> bool:
        raise RuntimeError(text)

    monkeypatch.setattr("lexvl_plugins.serve.queries.is_expression", fail)
    key = {"Authorization": f"Bearer {FIRST}", "content_type": "application/json"}
    status, _, content = guarded.request("POST", "/api/search", '{"index": "colours", "text": "secret"}', **key)
    assert (status, json.loads(content)) == (500, {"error": "an error of the server; its log says more"})
    assert "POST /api/search: RuntimeError" in caplog.text and "test_server.py:" in caplog.text
    begin = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {FIRST}\r\nContent-Length: 9\r\n\r\nsecret"
    for path in ("/api/pictures", "/api/search"):
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=900) as leaving:
            leaving.sendall(f"POST {path} {begin}".encode())
    wait_for(lambda: len(caplog.records) >= 4)  # of the error and of each request
    library.removeHandler(caplog.handler)
    assert "secret" not in caplog.text and caplog.text.count("Error") == 1 and len(caplog.records) == 4


def test_beyond_so_many_that_wait_requests_are_shed(guarded, monkeypatch) -> None:
    key = {"Authorization": f"Bearer {FIRST}", "content_type": "application/json"}
    monkeypatch.setattr(limits, "WAITING", 0)
    for path in ("/api/search", "/api/embed"):
        status, headers, content = guarded.request("POST", path, '{"index": "colours"}', **key)
        assert (status, headers["retry-after"]) == (503, "5")
        assert json.loads(content)["error"] == "too many requests at once; try again in 5 s"
    monkeypatch.setattr(limits, "WAITING", 1)
    assert guarded.request("POST", "/api/search", QUESTION, **key)[0] == 200
    monkeypatch.setattr(limits, "ANSWER_S", 0.0)
    status, headers, _ = guarded.request("POST", "/api/search", QUESTION, **key)
    assert (status, headers["retry-after"]) == (503, "5")


def test_work_that_is_given_up_keeps_its_thread_until_it_ends(monkeypatch) -> None:
    end, begun = Event(), []

    def work(name: str) -> str:
        begun.append(name)
        assert end.wait(900)
        return name

    async def ask() -> str:
        monkeypatch.setattr(limits, "ANSWER_S", 0.05)
        threads = Threads(1)
        for name in ("first", "second", "third"):
            with pytest.raises(TimeoutError):
                await threads.run(work, name)
        assert begun == ["first"]
        end.set()
        monkeypatch.setattr(limits, "ANSWER_S", 900)
        return await threads.run(work, "last")

    assert asyncio.run(ask()) == "last" and begun == ["first", "last"]


def test_abandoned_batches_never_run_more_passes_than_there_are_threads(monkeypatch) -> None:
    end, running, begun = Event(), [], []

    def embed(texts: int) -> int:
        running.append(texts)
        begun.append(len(running))
        assert end.wait(900)
        running.pop()
        return texts

    async def ask() -> int:
        monkeypatch.setattr(limits, "ANSWER_S", 0.05)
        threads = Threads(limits.EMBEDS, limits.EMBEDDED, lambda texts: 1)
        calls = (threads.run(embed, texts=number) for number in range(20))
        assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {TimeoutError}
        while len(begun) < limits.EMBEDS:
            await asyncio.sleep(0.01)
        assert threads.held == limits.EMBEDS  # those that waited cost nothing any more
        end.set()
        monkeypatch.setattr(limits, "ANSWER_S", 900)
        return await threads.run(embed, texts=20)

    assert asyncio.run(ask()) == 20 and max(begun) == limits.EMBEDS and len(begun) == limits.EMBEDS + 1


def test_what_would_cost_too_much_beside_others_is_refused_at_once_and_given_up_between_pieces(monkeypatch) -> None:
    end, threads = Event(), Threads(2, 10, lambda texts: len(texts))

    async def ask() -> list[int]:
        first = asyncio.ensure_future(threads.run(lambda texts: end.wait(900) and len(texts), texts="x" * 20))
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="too many requests at once"):
            await threads.run(len, texts="x")
        end.set()
        return [await first, await threads.run(lambda texts: len(texts), texts="x")]

    assert asyncio.run(ask()) == [20, 1] and threads.held == 0
    pieces = []

    def encode(texts):
        pieces.append(texts)
        limits.DEADLINE.set(0.0)
        return [ImpactQuery("", {"red": 1})] * len(texts)

    def embed() -> None:
        with pytest.raises(TimeoutError):
            embed_pieces(encode, ["red"] * 20)

    copy_context().run(embed)
    assert pieces == [["red"] * limits.PIECE]
