"""Threads that share a model and an index: every answer is that of one thread."""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import urlopen

import pytest
from invoking import Quiet, answering
from serving import Question, Service, make_service, questions, wrong_answers
from tiny_encoders import BERT

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.jvm import call_java, get_java_class

THREADS = 8


@pytest.fixture(scope="module")
def service(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Service:
    model = load_encoder("vdr", str(golden / BERT), device="cpu", topk=32)
    return make_service(model, tmp_path_factory.mktemp("service"))


def test_threads_ask_everything_at_once(service: Service) -> None:
    asked = questions(60, random.Random(1)) * 2
    expected = [service.answer(question) for question in asked]
    assert Counter(wrong_answers(service.answer, asked, expected, THREADS)) == {}


def test_an_event_loop_searches_in_threads(service: Service) -> None:
    asked = questions(24, random.Random(2), ("search_index", "explain", "encode"))
    expected = [service.answer(question) for question in asked]

    async def together() -> list[Any]:
        in_threads = [asyncio.to_thread(service.answer, question) for question in asked]
        here = service.answer(asked[0])  # in the loop itself
        return [here, *await asyncio.gather(*in_threads)]

    assert asyncio.run(together()) == [expected[0], *expected]


@contextmanager
def served(service: Service) -> Iterator[str]:
    """The address of a server with a thread per connection: GET /KIND?TEXT answers a question."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            try:
                body, status = repr(service.answer(Question(parts.path[1:], unquote(parts.query)))), 200
            except Exception as error:
                body, status = f"{type(error).__name__}: {error}", 500
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

    with answering(Handler) as address:
        yield address


def test_a_web_server_with_a_thread_per_request(service: Service) -> None:
    """Threads that end right after their answer leave nothing in the Java machine."""
    asked = questions(32, random.Random(3), ("encode", "search", "search_index", "explained"))
    expected = [repr(service.answer(question)) for question in asked]
    before = java_threads()
    with served(service) as address:

        def ask(question: Question) -> str:
            with urlopen(f"{address}/{question.kind}?{quote(question.text)}") as answer:
                return str(answer.read().decode())

        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(ask, asked)) == expected
    assert java_threads() <= before


def java_threads() -> int:
    """The threads that the Java machine has."""
    with call_java():
        return int(get_java_class("java.lang.Thread").getAllStackTraces().size())


FORKED = """
import multiprocessing, sys
from pathlib import Path
from lexvl_anserini.searching.searcher import Searcher, search_index
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.engine import open_impact_index
from lexvl_anserini.ground.errors import JavaError
from lexvl_anserini.queries.clauses import Impacts
from lexvl_anserini.searching.shared_terms import explain_documents
from lexvl_anserini.ground.records import ImpactQuery

def answers(method, path, engine=None):
    query = ImpactQuery("q", {"dog": 1})
    calls = {
        "search_index": lambda: list(search_index(path, [query])),
        "explain": lambda: Searcher(path).explain(query),
    }
    if engine is not None:
        calls |= {
            "search": lambda: next(engine.search([query], 1)),
            "tree": lambda: engine.search_tree("q", Impacts({"dog": 1}), 1),
            "bound": lambda: engine.bound({"dog": 1 << 23}),
            "impacts": lambda: engine.impacts("d1", ["dog"]),
            "vector": lambda: engine.vector("d1"),
            "explained": lambda: explain_documents(engine, query, ["d1"]),
            "close": engine.close,
        }
    for name, call in calls.items():
        try:
            call()
            print(method, name, "answered", flush=True)
        except JavaError as error:
            print(method, name, str(error)[:30], flush=True)

if __name__ == "__main__":
    path = Path(sys.argv[1])
    engine = open_impact_index(path, index_manifest(path))
    next(engine.search([ImpactQuery("q", {"dog": 1})], 1))
    for method, shared in (("fork", engine), ("spawn", None)):
        child = multiprocessing.get_context(method).Process(target=answers, args=(method, path, shared))
        child.start()
        child.join(900)
        print(method, "exit", child.exitcode)
        child.kill()
"""


def test_children_of_a_process_with_a_java_machine(service: Service, tmp_path: Path) -> None:
    """A forked child says so at every call, also of what its parent opened; a spawned one answers."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, str(script), str(service.index.path)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env={**os.environ, "LEXVL_POSTINGS": "lucene"},
    )
    refused = ("search_index", "explain", "search", "tree", "bound", "impacts", "vector", "explained", "close")
    assert done.stdout.splitlines() == [
        *(f"fork {name} this process was forked from o" for name in refused),
        "fork exit 0",
        "spawn search_index answered",
        "spawn explain answered",
        "spawn exit 0",
    ], done.stderr
