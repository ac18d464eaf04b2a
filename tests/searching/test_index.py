"""An index: threads share it, and it answers while it is replaced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from shard_folders import write_shards

from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index, Searcher

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


def pairs(hits: Any) -> list[tuple[str, float]]:
    return [(hit.doc_id, hit.score) for hit in hits]


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
        return pairs(indexes[name].search(QUERY)) in right[name]

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


def test_threads_open_a_searcher_once(versions, tmp_path, monkeypatch):
    from lexvl_anserini.searching import searcher as searching

    path = build_index(versions["a"][0], tmp_path / "a").path
    openings = []
    opened = searching.open_index
    monkeypatch.setattr(searching, "open_index", lambda *arguments: (openings.append(1), opened(*arguments))[1])
    with Searcher(path) as searcher, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: searcher.search(QUERY), range(50)))
    assert len(openings) == 1


def test_a_replaced_searcher_closes_after_its_last_call(versions, tmp_path, monkeypatch):
    closed = []
    close = Searcher.close
    monkeypatch.setattr(Searcher, "close", lambda self: (closed.append(id(self)), close(self))[1])
    index = build_index(versions["a"][0], tmp_path / "a")
    older, newer = (index._open_searcher((number,) * 3, None, "cpu") for number in (1, 2))
    assert pairs(older.search(QUERY)) == pairs(newer.search(QUERY))
    assert index._open_searcher((2, 2, 2), None, "cpu") is newer is not older
    ids = [id(older), id(newer)]
    assert closed == []
    del older
    assert closed == ids[:1]
    del index
    assert closed == ids[:1]
    del newer
    assert closed == ids


def test_equal_indexes_are_equal(versions, tmp_path):
    built = build_index(versions["a"][0], tmp_path / "a")
    assert Index(built.path, built.manifest) == built
