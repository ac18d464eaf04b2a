"""Stores whose builds are killed, whose clients fail, and whose servers answer errors, halves, nonsense, late or not.

Meanwhile the older index answers, or the new one; the same command afterwards makes the undisturbed index.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged, one_line
from invoking import Quiet, answering
from memory_engine import exact_lists
from rounds import Rounds
from shard_folders import write_shards

from lexvl_anserini.engines.engine import get_engine, index_path
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import search_index
from lexvl_plugins.stores import building
from lexvl_plugins.stores.store import parse_url
from tests.plugins.stores.store_servers import KINDS, PACKAGES, UrlOf, opened, serving, tables_of

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=0.3)]
TERMS = [f"t{number}" for number in range(9)]
QUERIES = [ImpactQuery("all", dict.fromkeys(TERMS, 1)), ImpactQuery("some", {"t1": 3, "t2": 200, "t8": 7})]
# Errors of each client, made by their classes.
CLIENT_ERRORS: dict[str, Callable[[Any, Random], Exception]] = {
    "qdrant": lambda client, random: random.choice([
        client.http.exceptions.UnexpectedResponse(random.choice([429, 500, 503]), "no", b"{", {}),  # type: ignore[list-item]
        client.http.exceptions.ResponseHandlingException(OSError("closed")),
    ]),
    "qdrant-edge": lambda client, random: RuntimeError("Service internal error: IO Error"),
    "opensearch": lambda client, random: random.choice([
        client.TransportError(random.choice([429, 500, 503]), "no", {}), client.ConnectionError("N/A", "x", OSError()),
    ]),
}  # fmt: skip
OTHER_ERRORS = (OSError("reset"), TimeoutError(), ValueError("Expecting value: line 1"), KeyError("result"))


class Client:
    """A client of a store whose n-th call does something else: `strike` before it, or after it."""

    def __init__(self, real: Any, calls: Calls):
        self.__dict__.update(real=real, calls=calls)

    __class__ = property(lambda self: type(self.real))  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if name == "indices":
            return Client(value, self.calls)
        return self.calls.counted(value) if callable(value) and name != "close" else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)


class Calls:
    """Counts the calls to a store's client, whichever object makes them."""

    def __init__(self, number: int = 0, after: bool = False, strike: Callable[[], Any] = lambda: None):
        self.number, self.after, self.strike, self.count = number, after, strike, 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            here = self.count == self.number
            if here and not self.after:
                self.strike()
            result = function(*arguments, **options)
            if here and self.after:
                self.strike()
            return result

        return called

    @contextmanager
    def of(self, url: str) -> Iterator[None]:
        place = parse_url(url)
        store = get_engine(place.engine).store_class(place)  # type: ignore[attr-defined]

        def hold(owner: Any, client: Any) -> None:
            owner.__dict__["client held"] = client

        def held(owner: Any) -> Any:
            client = owner.__dict__.get("client held")
            return None if client is None else Client(client, self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "BATCH_ROWS", 3)
            patch.setattr(
                store, "shard" if store.__name__ == "EdgeStore" else "served", property(held, hold), raising=False
            )
            yield


def killed_build(shards: Path, url: str, number: int, after: bool, data: str) -> None:
    os.environ["LEXVL_DATA"] = data
    with Calls(number, after, lambda: os.kill(os.getpid(), signal.SIGKILL)).of(url):
        build_index(shards, url, overwrite=True)


class House:
    """A store, two collections, and their undisturbed lists."""

    def __init__(self, kind: str, url_of: UrlOf, folder: Path):
        self.kind, self.url_of, self.folder = kind, url_of, folder
        random = Random(4)
        self.shards = {name: folder / name for name in ("old", "new")}
        for name, count in (("old", 5), ("new", 11)):
            documents = [
                (f"{name}{n}", {term: random.choice([1, 2, 255]) for term in random.sample(TERMS, n % 5)})
                for n in range(count)
            ]
            write_shards(self.shards[name], documents, terms=TERMS)
        self.lists = {name: exact_lists(path, QUERIES, 20) for name, path in self.shards.items()}
        self.client = import_module(PACKAGES[kind][0])
        self.calls = dict[bool, int]()

    def begin(self, name: str, older: bool) -> str:
        url = self.url_of(name)
        if older:
            build_index(self.shards["old"], url, overwrite=True)
        if older not in self.calls:
            counting, whole = Calls(), self.url_of(f"c{name}")
            if older:
                build_index(self.shards["old"], whole)
            with counting.of(whole):
                build_index(self.shards["new"], whole, overwrite=True)
            self.calls[older] = counting.count
        return url

    def state(self, url: str) -> str:
        try:
            lists = list(search_index(url, QUERIES, 20))
        except LexvlError as error:
            line = one_line(error)
            return "none" if "no such index" in line else line
        return next((name for name, exact in self.lists.items() if lists == exact), f"other lists: {lists}")

    def ends(self, url: str, older: bool, note: object) -> None:
        """One of the collections answers; the same command makes the new one; the next build leaves no other table."""
        there = self.state(url)
        assert there in ("new", "old" if older else "none"), (note, there)
        build_index(self.shards["new"], url, overwrite=True)
        assert self.state(url) == "new", (note, self.state(url))
        report = json.loads((index_path(url) / "index.json").read_bytes())
        assert (report["documents"], report["lists_changed"]) == (11, 0)
        build_index(self.shards["old"], url, overwrite=True)
        with opened(url) as store:
            ours = [table for table in tables_of(store) if table.startswith(store.place.name)]
            assert len(ours) == 1 and store.count() == 5 + 1, (note, ours, store.count())


@pytest.fixture(scope="module", params=KINDS[1:])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch, serving(request.param, folder) as url_of:
        patch.setenv("LEXVL_DATA", str(folder / "data"))
        yield House(request.param, url_of, folder)


def test_builds_killed_at_a_call(rounds: Rounds, house: House) -> None:
    children = multiprocessing.get_context("forkserver")
    children.set_forkserver_preload([__name__, *PACKAGES[house.kind][:1], "lexvl_plugins.stores.engine"])
    for seed, random, _ in rounds:
        older, after = random.random() < 0.7, random.random() < 0.5
        url = house.begin(f"k{seed:x}", older)
        number = random.randint(1, house.calls[older])
        arguments = (house.shards["new"], url, number, after, str(house.folder / "data"))
        child = children.Process(target=killed_build, args=arguments)
        child.start()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
        house.ends(url, older, (number, after))
        rounds.count("builds in stores killed at a call", child.exitcode != 0)


def test_clients_that_fail(rounds: Rounds, house: House) -> None:
    for seed, random, _ in rounds:
        older, after = random.random() < 0.7, random.random() < 0.5
        url = house.begin(f"f{seed:x}", older)
        number = random.randint(1, house.calls[older])
        error = random.choice([CLIENT_ERRORS[house.kind](house.client, random), random.choice(OTHER_ERRORS)])

        def strike() -> None:
            raise error  # noqa: B023

        line = ""
        with Calls(number, after, strike).of(url):
            try:
                build_index(house.shards["new"], url, overwrite=True)
            except LexvlError as problem:
                line = one_line(problem)
        house.ends(url, older, (number, after, error, line))
        rounds.count("builds in stores with a failing call", bool(line))


class Trouble:
    """What a proxy does to the answers: one fault, for the answers from `first` on, `many` of them."""

    def __init__(self) -> None:
        self.arm(Random(0), [])

    def arm(self, random: Random, kinds: list[str]) -> None:
        self.random, self.kind = random, random.choice(kinds) if kinds else ""
        self.first, self.many, self.seen = random.randint(1, 30), random.choice([1, 1, 2, 99]), 0

    def next(self) -> str:
        self.seen += 1
        return self.kind if self.first <= self.seen < self.first + self.many else ""


HTTP_FAULTS = ["429", "500", "503", "404", "closed", "half", "late", "nonsense", "empty", "damaged", "lost"]


@contextmanager
def http_proxy(host: str, port: int, trouble: Trouble) -> Iterator[str]:
    class Proxy(Quiet):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            fault = trouble.next()
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if fault == "closed":
                self.close_connection = True
                return
            status, headers, content = 200, [], b'{"error": "busy"}'
            if fault.isdigit():
                status = int(fault)
            else:
                with closing(HTTPConnection(host, port, timeout=60)) as server:
                    kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                    server.request(self.command, self.path, body, kept)
                    answer = server.getresponse()
                    status, headers, content = answer.status, answer.getheaders(), answer.read()
            if fault == "lost":  # the server has done it, and nobody hears of it
                self.close_connection = True
                return
            time.sleep(0.2 * (fault == "late"))
            content = {
                "nonsense": b'{"took": ["?"]}', "empty": b"", "damaged": damaged(trouble.random, content)
            }.get(fault, content)  # fmt: skip
            self.send_response(status)
            for name, value in headers:
                if name.lower() == "content-type":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if fault == "half" else content)
            self.close_connection = fault == "half"

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = forward  # noqa: N815

    with answering(Proxy) as address:
        yield address


def faulty(rounds: Rounds, house: House, trouble: Trouble, through: Callable[[str], str]) -> None:
    for seed, random, _ in rounds:
        older = random.random() < 0.7
        url = house.begin(f"p{seed:x}", older)
        proxied, line = through(url), ""
        trouble.arm(random, HTTP_FAULTS)
        try:
            build_index(house.shards["new"], proxied, overwrite=True)
        except LexvlError as problem:
            line = one_line(problem)
        note = (trouble.kind, trouble.first, trouble.many, line)
        assert line or house.state(url) == "new", note
        for _ in range(4):
            before = house.state(url)
            trouble.arm(random, HTTP_FAULTS)
            trouble.first = random.randint(1, 8)
            seen = house.state(proxied)
            # Another line than "no such index" is a refusal; a list is the whole one.
            found = before, seen, trouble.kind
            assert seen == before or seen not in ("old", "new") and "other lists" not in seen, found
            rounds.count("searches through a faulty proxy")
        trouble.arm(random, [])
        house.ends(url, older, note)
        rounds.count("builds through a faulty proxy", bool(line))


@pytest.mark.parametrize("house", ["opensearch"], indirect=True)
def test_a_server_of_http_that_fails(rounds: Rounds, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    place, trouble = parse_url(house.url_of("x")), Trouble()
    from opensearchpy.helpers import actions

    monkeypatch.setattr(actions.time, "sleep", lambda seconds: None)
    with http_proxy(place.host, place.port, trouble) as address:
        there = f"http://{place.host}:{place.port}"
        faulty(rounds, house, trouble, lambda url: url.replace(there, address))
