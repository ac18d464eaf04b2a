"""A server among hostile clients, and over indexes that change: exact answers, or one line and 4xx; nothing leaks."""

import io
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from damage import changed_json, damaged
from rounds import Rounds

from lexvl_anserini.ground import files
from lexvl_plugins.serve import indexes
from tests.plugins.serve.served_colours import HOSTILE, PICTURES, Client, index_pictures, load, running, serving

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

# Seconds for what comes at once on an idle machine.
PATIENCE_S = 60

QUESTIONS: list[dict[str, Any]] = [
    {"index": "colours", "text": "red and blue"},
    {"index": "colours", "text": "+red blue^2 -green"},
    {"index": "colours", "text": "green", "weights": {"red": 3, "green": 0}, "hits": 2},
    {"index": "colours", "text": "blue", "where": "red", "filters": [{"field": "meta.year", "low": "2000"}]},
    {"index": "colours", "like": "half.png", "read_as": "auto"},
    {"index": "twin", "text": "red blue"},
]
BODIES = [
    *(("/api/search", question) for question in QUESTIONS),
    ("/api/products", {"question": QUESTIONS[0], "doc_ids": ["half.png", "red.png"]}),
    ("/api/map", {"question": QUESTIONS[0], "doc_id": "half.png", "term": "red"}),
]
ODD = (
    "../" * 9 + "etc/passwd", "%2e%2e%2f" * 4, "..%5c..%5c", "/", "", "%00", "%ff%fe", "%", "a" * 5000, "half.png",
    "%ed%a0%80", quote(HOSTILE), "1&index=2", "%0d%0aX:%20y", "file:///etc/passwd", "colours", "{}", "%F0%9F%98%80",
)  # fmt: skip
PATHS = (
    "/{}", "/api/{}", "/page.css/{}", "/api/pictures/{}", "/api/picture?index=colours&doc_id={}", "/?{}",
    "/api/picture?index={}&doc_id=half.png", "/api/picture?index=colours&doc_id=half.png&side={}", "//{}",
    "/api/suggest?index=colours&prefix={}", "/api/suggest?index={}", "/openapi.json?{}", "http://[{}", "*{}"
)  # fmt: skip
PIECES = (b"\r\n", b"\0", b"\xff\xfe", b" ", b"\t", b":", b"9" * 400, b"\r\n\r\n", b"HTTP/9.9", b"x" * 70_000, b"\n")


class Sent(NamedTuple):
    """What a client sends; `whole` if the server has to answer without getting more."""

    content: bytes
    whole: bool = True


def request(method: str, path: str, body: bytes | None = None, headers: Sequence[str] = ()) -> bytes:
    """A request of HTTP/1.1."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    lines += [f"Content-Length: {len(body)}"] if body is not None else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body or b"")


def posted(path: str, body: bytes, *headers: str) -> bytes:
    return request("POST", path, body, ["Content-Type: application/json", *headers])


def odd_path(random: Random) -> Sent:
    method = random.choice(["GET", "GET", "GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
    return Sent(request(method, random.choice(PATHS).format(random.choice(ODD))))


def odd_json(random: Random) -> Sent:
    """A body with values of other types, or with other bytes."""
    path, body = random.choice(BODIES)
    for _ in range(random.randint(1, 3)):
        body = changed_json(random, body)
    content = json.dumps(body).encode()
    return Sent(posted(path, damaged(random, content) if random.random() < 0.3 else content))


def odd_picture(random: Random) -> Sent:
    out = io.BytesIO()
    PICTURES["half.png"].save(out, format=random.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"]))
    return Sent(request("POST", "/api/pictures", damaged(random, out.getvalue())))


def odd_bytes(random: Random) -> Sent:
    """A request of which some bytes are others."""
    good = random.choice([posted(path, json.dumps(body).encode()) for path, body in BODIES] + [request("GET", "/")])
    end = good.index(b"\r\n\r\n") + 4 if random.random() < 0.8 else len(good)
    return Sent(damaged(random, good[:end], PIECES) + good[end:], whole=False)


def odd_length(random: Random) -> Sent:
    """Lengths and encodings that are wrong, double, contradictory, or of a body that never ends."""
    length = random.choice(["-1", "x", "1e3", "9" * 30, "0x10", "", "5, 5", "+3", "100000", "3"])
    encoding = random.choice(["Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Content-Length: 7"])
    headers = [f"Content-Length: {length}"] + [encoding] * (random.random() < 0.4)
    return Sent(request("POST", "/api/search", None, headers) + b"{}" * random.randrange(50), whole=False)


def odd_chunks(random: Random) -> Sent:
    head = request("POST", "/api/search", None, ["Content-Type: application/json", "Transfer-Encoding: chunked"])
    pieces = (b'{"index":', b'"colours"', b"}", b"")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    odd = (b"\r\n", b"ffffffff\r\n", b"-1\r\n", b";x=" + b"y" * 9000)
    return Sent(head + damaged(random, chunks, odd), whole=False)


def odd_headers(random: Random) -> Sent:
    names = ["Host", "Origin", "Content-Type", "Cookie", "Expect", "Upgrade", "X", "Range", "Connection"]
    header = random.choice(names)
    value = random.choice(["", "x" * 80_000, "[::1", "[", "100-continue", "websocket", "ÿ", "null", "a, b", "http://["])
    content = request("GET", "/api/indexes", None, [f"{header}: {value}"] * random.choice([1, 1, 2, 300]))
    return Sent(content, whole=header != "Connection")


HOSTILE_REQUESTS: tuple[Callable[[Random], Sent], ...] = (
    odd_path, odd_json, odd_json, odd_picture, odd_bytes, odd_length, odd_chunks, odd_headers
)  # fmt: skip


def answered(port: int, sent: Sent, random: Random) -> bytes:
    """Sends, at once or slowly; what the server answers until it closes; nothing for a client that leaves."""
    leaves, slow = random.random() < 0.15, random.random() < 0.1
    content = sent.content[: random.randrange(len(sent.content) + 1)] if leaves else sent.content
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        try:
            step = max(1, len(content) // 8) if slow else len(content) or 1
            for start in range(0, len(content), step):
                connection.sendall(content[start : start + step])
                time.sleep(0.05 * slow)
            if leaves:
                return b""
            if not sent.whole:
                connection.settimeout(0.5)
            out = b""
            while piece := connection.recv(1 << 16):
                out += piece
            return out
        except TimeoutError:
            assert not sent.whole, (sent.content[:600], "no answer")
            return out
        except ConnectionError:  # the server has refused and closed while we were sending
            return b""


class Received:
    """Bytes that were received, for the parser of the standard library."""

    def __init__(self, content: bytes):
        self.file = io.BytesIO(content)
        self.file.close = lambda: None  # type: ignore[method-assign]  # Several answers follow each other.

    def makefile(self, mode: str) -> io.BytesIO:
        return self.file


def check_refusal(sent: bytes, content: bytes) -> int | None:
    """The last status of a connection: no error of the server, and one line where it is a refusal."""
    received, status = Received(content), None
    while received.file.tell() < len(content):
        answer = HTTPResponse(received, method=sent.split(b" ", 1)[0].decode("latin-1"))  # type: ignore[arg-type]
        answer.begin()
        status, body = answer.status, answer.read()
        assert 200 <= status < 500, (sent[:1500], content[:1500])
        if status >= 400 and body:
            line = json.loads(body)["error"] if body.startswith(b"{") else body.decode()
            assert line.strip() and len(line.splitlines()) == 1 and len(line) < 5000, (sent[:1500], content[:1500])
            assert "Traceback" not in line, line
    return status


def untimed(answer: Any) -> Any:
    """A status and a body without the times."""
    status, body = answer
    return status, {key: value for key, value in body.items() if key != "timing"} if isinstance(body, dict) else body


def resources() -> tuple[int, int]:
    """Threads without those of pools, which stay on purpose, and open files of this process."""
    pools = ("AnyIO worker thread", "ThreadPoolExecutor")
    return (
        sum(not thread.name.startswith(pools) for thread in threading.enumerate()),
        len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0,
    )


def settled(before: tuple[int, int]) -> None:
    """Waits until no more threads and files are there than before."""
    end = time.monotonic() + PATIENCE_S
    while any(now > earlier for now, earlier in zip(resources(), before, strict=True)):
        assert time.monotonic() < end, (before, resources())
        time.sleep(0.05)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("attacked"), dense=True) as client:
        yield client


def test_hostile_clients(rounds: Rounds, client: Client) -> None:
    """Beside every bad request, good ones have the answers that they have alone."""
    expected = [untimed(client.post(path, body)) for path, body in BODIES]
    assert {status for status, _ in expected} == {200}
    before = resources()
    for _seed, draw, _ in rounds:
        hostile = [draw.choice(HOSTILE_REQUESTS)(draw) for _ in range(60)]
        draws = [Random(draw.random()) for _ in hostile]
        good = [draw.randrange(len(BODIES)) for _ in range(30)]
        with ThreadPoolExecutor(16) as pool:
            answers = pool.map(partial(answered, client.port), hostile, draws)
            right = pool.map(lambda number: untimed(client.post(*BODIES[number])) == expected[number], good)
            statuses = [check_refusal(sent.content, answer) for sent, answer in zip(hostile, answers, strict=True)]
            assert all(right)
        settled(before)
        rounds.count("hostile requests", len(hostile))
        rounds.count("hostile requests refused", sum(status is not None and status >= 400 for status in statuses))
        rounds.count("good requests beside hostile ones", len(good))


STATES = {
    "one": {"a.png": PICTURES["red.png"]},
    "two": {"b.png": PICTURES["red.png"], "c.png": PICTURES["half.png"]},
    "three": {"d.png": PICTURES["half.png"], "e.png": PICTURES["sub/green.png"]},
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Indexes of other pictures."""
    folder = tmp_path_factory.mktemp("states")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lexvl_anserini.searching.search.load_encoder_from", load)
        patched.setattr(indexes, "LOOK_EVERY_S", 0.0)
        yield {name: index_pictures(folder / name, folder / f"{name}-i", pictures=p) for name, p in STATES.items()}


def placed(state: Path, index: Path, random: Random, damage: bool) -> None:
    """Puts an index, whole or with a damaged, a removed or a cut file, in the place of another, in one step."""
    shutil.rmtree(part := index.with_name("part"), ignore_errors=True)
    shutil.copytree(state, part)
    for name in ("index.json", "manifest.json"):  # as new files have it
        (part / name).touch()
    if damage:
        file = random.choice(sorted(path for path in part.rglob("*") if path.is_file()))
        file.write_bytes(damaged(random, file.read_bytes())) if random.random() < 0.7 else file.unlink()
    if index.exists():
        files._exchange(str(part), str(index))
    else:
        part.rename(index)


def test_indexes_that_change(rounds: Rounds, states: dict[str, Path]) -> None:
    """Every answer is of a whole state that was there; after the last change, the answers are of the last state."""
    question = {"index": "changing", "text": "red blue green"}
    hits: dict[str, Any] = {}
    for name, index in states.items():
        with running(index) as client:
            hits[name] = client.post("/api/search", {**question, "index": index.name})[1]["hits"]
    before = resources()
    for _seed, draw, home in rounds:
        index = home / "changing"
        placed(states["one"], index, draw, damage=False)
        there, bad = ["one"], []
        with running(index) as client:
            stop = threading.Event()

            def ask() -> None:
                while not stop.is_set():  # noqa: B023
                    status, answer = client.post("/api/search", question)  # noqa: B023
                    right = status == 200 and answer["hits"] in [hits[name] for name in list(there)]  # noqa: B023
                    line = str(answer.get("error", ""))
                    if not right and not (status == 503 and len(line.splitlines()) == 1):
                        bad.append((status, answer))  # noqa: B023
                    rounds.count("answers beside changes")

            asking = [threading.Thread(target=ask) for _ in range(3)]
            for thread in asking:
                thread.start()
            for _ in range(draw.randint(1, 5)):
                kind, name = draw.choice(["replace", "replace", "damage", "remove"]), draw.choice(list(states))
                if kind == "remove":
                    shutil.rmtree(index, ignore_errors=True)
                else:
                    there.append(name)  # also damaged: then right or refused
                    placed(states[name], index, draw, kind == "damage")
                time.sleep(draw.choice([0, 0.02, 0.3]))
                rounds.count("changes of served indexes")
            last = draw.choice(list(states))
            there.append(last)
            placed(states[last], index, draw, damage=False)
            end = time.monotonic() + PATIENCE_S
            while (answer := client.post("/api/search", question))[1].get("hits") != hits[last]:
                assert time.monotonic() < end and not bad, (bad[:2], answer)
                time.sleep(0.02)
            stop.set()
            for thread in asking:
                thread.join()
            assert not bad, (len(bad), bad[0])
        settled(before)
