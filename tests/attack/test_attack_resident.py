"""Resident postings of small collections: answers equal dot products, or one line says what is damaged."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from damage import damaged, one_line
from faults import Ended, faults
from histories import History
from rounds import Rounds

from lexvl_anserini.engines import verifying
from lexvl_anserini.engines.index_folder import RESIDENT
from lexvl_anserini.engines.resident import choosing, kernels
from lexvl_anserini.engines.resident.layout import BLOCK, WIDTHS
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.searching.building import repair_index
from lexvl_anserini.searching.searcher import search_index
from tests.attack.test_attack_corruption import pairs
from tests.attack.test_attack_search import bound_of, expected
from tests.engines.test_resident import resident_of, searched

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

# Densities of posting lists: of each kind of slot some, and those at the borders between the kinds.
SHARES = (1.0, 0.5, 1 / 7, 1 / 8, 1 / 9, 1 / 100, 1 / 255, 1 / 400, 1 / 3000)


@pytest.fixture(autouse=True)
def resident_postings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(choosing.VARIABLE, "resident")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))


def collection(random: Random) -> tuple[dict[str, dict[int, int]], dict[int, str], int, int]:
    """Terms with their postings, ids of the documents that are not deleted, documents, width."""
    documents = random.choice([1, 9, 64, 65, 3000, BLOCK, BLOCK + 1, 2 * BLOCK + random.randrange(BLOCK)])
    width = random.choice(list(WIDTHS))
    largest = random.choice([1, 3, (1 << min(8 * width, 24)) - 1])
    rng = np.random.default_rng(random.getrandbits(32))
    alive = rng.random(documents) < random.choice([1, 0.9, 0.1])
    alive[0] = True
    names = rng.permutation(documents)
    ids = {int(n): f"d{'x' * int(names[n] % 3)}{names[n]}" for n in np.flatnonzero(alive)}
    rows = {}
    for number in range(random.choice([1, 5, 12, 80 if documents <= 3000 else 12])):
        held = np.flatnonzero(alive & (rng.random(documents) < random.choice(SHARES)))
        impacts = rng.integers(1, largest, len(held), endpoint=True)
        if len(held):
            rows[f"t{number}é"] = dict(zip(held.tolist(), impacts.tolist(), strict=True))
    return rows, ids, documents, width


def exact(
    rows: Mapping[str, Mapping[int, int]], ids: Mapping[int, str], documents: int, query: Mapping[str, int], hits: int
) -> list[tuple[str, int, float]]:
    """Every dot product, by score, then by id."""
    scores = np.zeros(documents, np.int64)
    for term, weight in query.items():
        row = rows.get(term, {})
        scores[list(row)] += weight * np.array(list(row.values()), np.int64)
    reached = sorted(np.flatnonzero(scores).tolist(), key=lambda n: (-scores[n], ids[n].encode()))[:hits]
    return [(ids[n], rank, float(scores[n])) for rank, n in enumerate(reached, start=1)]


def queries_of(random: Random, rows: Mapping[str, Mapping[int, int]]) -> list[dict[str, int]]:
    """Queries whose scores are below the limit, as the engine lets them pass."""
    queries = []
    for _ in range(random.choice([1, 8, 30])):
        chosen = random.sample([*rows, "nowhere"], random.randint(0, len(rows) + 1))
        query = {term: random.choice([1, 1, 2, 7, 255]) for term in chosen}
        most = sum(weight * max(rows.get(term, {0: 0}).values()) for term, weight in query.items())
        queries += [query] if most < 1 << 24 else []
    return queries


def test_lists_of_every_layout_equal_dot_products(rounds: Rounds) -> None:
    for _seed, random, folder in rounds:
        rows, ids, documents, width = collection(random)
        resident = resident_of(folder, rows, ids, documents, width)
        queries = queries_of(random, rows)
        hits = random.choice([1, 2, 10, 1000, documents, documents + 5])
        products = [exact(rows, ids, documents, query, hits) for query in queries]
        assert searched(resident, queries, hits, random.randint(1, 4)) == products
        rounds.count("resident lists", len(queries))


def lists_of(index: Path, queries: Sequence[Mapping[str, int]], hits: int, threads: int = 1) -> list[Any]:
    return pairs(search_index(index, [ImpactQuery(str(n), q) for n, q in enumerate(queries)], hits, threads=threads))


@pytest.mark.attack(share=4)
def test_changed_indexes_are_those_that_are_built_anew(rounds: Rounds) -> None:
    """Random histories; at the end resident postings are damaged, and repaired."""
    for _seed, random, folder in rounds:
        history = History(random, folder)
        for _ in range(random.randint(1, 8)):
            history.step()
            rounds.count("changes of indexes")
            if random.random() < 0.3:
                rounds.count("searches of changed indexes", history.compare())
        rounds.count("searches of changed indexes", history.compare())
        vectors = {doc_id: document.vector for doc_id, document in history.documents.items()}
        queries = [query for query in (history.draw_vector(8) for _ in range(9)) if bound_of(vectors, query) < 1 << 24]
        products = [expected(vectors, query, 7) for query in queries]
        damaged_and_repaired(random, history.index, queries, 7, products, rounds)
        rounds.count("histories of changed indexes")


def damaged_and_repaired(
    random: Random, index: Path, queries: Sequence[Any], hits: int, products: Any, rounds: Rounds
) -> None:
    """Damages of a file: right lists or one line; `repair`, ended anywhere and repeated, writes what was."""
    files = {path.name for path in index.parent.iterdir()}
    for _ in range(4):
        name = random.choice([*choosing.read_resident_files(index)])
        sound = (index / name).read_bytes()
        broken = damaged(random, sound)
        # No write to a file that others link to.
        (index / name).unlink()
        (index / name).write_bytes(broken)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verifying, "VERIFIED_BYTES", random.choice([0, 1 << 30]))
            patch.setenv(choosing.VARIABLE, random.choice(choosing.CHOICES))
            patch.setattr(choosing, "SMALL", random.choice([0, choosing.SMALL]))
            try:
                assert lists_of(index, queries, hits) == products
            except LexvlError as error:
                one_line(error)
                rounds.count("damages found")
        with suppress(Ended), faults(index.parent, random.choice([0, random.randint(1, 25)])):
            assert repair_index(index) == (broken != sound)
        repair_index(index)
        assert lists_of(index, queries, hits) == products
        # A later commit may name the files of several segments, or of one with deleted documents, anew.
        if name == RESIDENT and [*choosing.read_resident_files(index)] == [RESIDENT]:
            assert (index / RESIDENT).read_bytes() == sound
        assert {path.name for path in index.parent.iterdir()} == files
        rounds.count("damaged resident postings")


# What a process answers that has the folder of compiled kernels in NUMBA_CACHE_DIR.
ASKED = """
import sys
from pathlib import Path
from lexvl_anserini.engines.resident.layout import open_sections
from lexvl_anserini.engines.resident.searching import ResidentPostings
from lexvl_anserini.ground.records import ImpactQuery
with open(sys.argv[1], "rb") as file:
    resident = ResidentPostings(open_sections(file, Path(sys.argv[1])))
queries = [ImpactQuery("", {"t1": 3, "t2": 1, f"t{n}": 2}) for n in range(40)]
print([(hit.doc_id, hit.score) for hits in resident.lists(queries, 10, int(sys.argv[2])) for hit in hits])
"""


def asked(file: Path, stored: Path | None = None, threads: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASKED, str(file), str(threads)]
    cache = {"NUMBA_CACHE_DIR": str(stored)} if stored else {}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **cache}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """A file of each width, with its answers; all kernels for them are compiled and stored."""
    answers = {}
    for width in WIDTHS:
        folder = tmp_path_factory.mktemp("width")
        draw = Random(width)
        rows = {f"t{t}": {d: draw.randint(1, 255) for d in range(0, 3000, 1 + t * t)} for t in range(40)}
        resident_of(folder, rows, {n: f"d{n}" for n in range(3000)}, 3000, width)
        process = asked(folder / RESIDENT)
        answers[folder / RESIDENT], error = process.communicate()
        assert process.returncode == 0, error
    return answers


@pytest.mark.attack(share=2)
def test_stored_kernels_that_are_damaged_or_shared(rounds: Rounds, collections: dict[Path, str]) -> None:
    """Several processes use, compile and store kernels at once; some are killed, some files are damaged or gone."""
    for _seed, random, folder in rounds:
        stored = Path(kernels.search._cache.cache_path)  # type: ignore[attr-defined]
        place = folder / stored.name
        shutil.copytree(stored, place)
        # Those that are called from Python are loaded; their code has that of the others.
        loaded = [path for name in ("search-", "expand-", "spell-") for path in place.glob(f"kernels.{name}*")]
        for path in random.sample(sorted(loaded), random.randint(1, 3)):
            if random.random() < 0.7:
                data = path.read_bytes()
                path.write_bytes(random.choice([b"", data[: len(data) // 2], damaged(random, data)]))
            else:
                path.unlink()
        several = [random.choice(list(collections)) for _ in range(random.randint(1, 2))]
        processes = [asked(file, folder, random.randint(1, 4)) for file in several]
        if random.random() < 0.3:
            time.sleep(random.uniform(1, 8))
            os.kill(processes[0].pid, signal.SIGKILL)
        again = random.choice(list(collections))
        for file, process in [*zip(several, processes, strict=True), (again, asked(again, folder))]:
            out, error = process.communicate()
            assert process.returncode == -signal.SIGKILL or (out, process.returncode) == (collections[file], 0), error
        rounds.count("stored kernels damaged or shared")
