"""What the network may not do: other hosts and sites, large bodies, slow clients."""

from __future__ import annotations

import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.server import Guard, format_url, open_socket
from tests.plugins.serve.served_colours import PICTURES, index_pictures, load, running

QUESTION = json.dumps({"index": "colours", "text": "red"})


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lexvl_anserini.searching.search.load_encoder_from", load)
        with running(index_pictures(folder / "pictures", folder / "colours", pictures=PICTURES)) as client:
            yield client


OWN = ["127.0.0.1", "127.0.0.1:80", "LocalHost:1", "[::1]:80"]
OTHER = ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", ""]


@pytest.mark.parametrize("host,status", [*((host, 200) for host in OWN), *((host, 421) for host in OTHER)])
def test_requests_for_other_hosts_are_refused(client, host, status) -> None:
    assert client.request("GET", "/", Host=host)[0] == status


def test_a_known_name_is_a_host() -> None:
    guard = Guard(lambda *_: None, ["Pictures.lan"])
    assert guard.is_own("pictures.lan:8765") and not Guard(lambda *_: None).is_own("pictures.lan:8765")


@pytest.mark.parametrize("origin,status", [(None, 200), ("own", 200), ("http://evil.example", 403), ("null", 403)])
def test_requests_from_pages_of_other_sites_are_refused(client, origin, status) -> None:
    headers = {"Origin": client.url.rstrip("/") if origin == "own" else origin} if origin else {}
    assert client.request("POST", "/api/search", QUESTION, content_type="application/json", **headers)[0] == status
    # What a form of another page can send.
    assert client.request("POST", "/api/search", QUESTION, content_type="text/plain")[0] == 422


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
    deadline = time.monotonic() + 900  # what was held is free when the connections end
    while client.request("POST", "/api/pictures", out.getvalue())[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_an_address_that_cannot_be_listened_at_is_a_usage_error() -> None:
    with open_socket("127.0.0.1", 0) as taken:
        assert format_url(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(UsageError, match="choose another --port"):
            open_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="--host"):
        open_socket("nowhere.invalid", 0)
