"""The attack: randomised tests that try to break the promises of docs/guarantees.md for some minutes.

    bash tests/run.sh --attack                                      ten minutes, a random seed
    bash tests/run.sh --attack --minutes 2 --seed 7 -k corruption   pytest's arguments follow

A test of the mark `attack` has the fixture `rounds`: each round has a seed that repeats it, and they end when the
test's share of the time is used. The module is a plug-in of pytest.
"""

import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

MINUTES = float(os.environ.get("LEXVL_ATTACK_MINUTES", 10))
SEED = int(os.environ.get("LEXVL_ATTACK_SEED", 0))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))

COUNTED = "attack: counted"
LAST_SEED = "attack: seed"


class Round(NamedTuple):
    """One round: all that it chooses comes from `random`, and its files lie in `folder`, which is empty at first."""

    seed: int
    random: Random
    folder: Path


class Rounds:
    """The rounds of one test; `--minutes 0` with the seed of the current round repeats this round alone."""

    def __init__(self, seed: int, seconds: float, folder: Path):
        self.seed, self.counted = seed, Counter[str]()
        self._seconds, self._folder = seconds, folder

    def __iter__(self) -> Iterator[Round]:
        """One round at least; the folder of a round that fails stays."""
        first, end = self.seed, time.monotonic() + self._seconds
        for number in itertools.count():
            if number:
                self.seed = Random(f"{first}/{number}").getrandbits(32)
            folder = self._folder / str(self.seed)
            folder.mkdir(parents=True)
            yield Round(self.seed, Random(self.seed), folder)
            shutil.rmtree(folder)
            self.count("rounds")
            if time.monotonic() >= end:
                return

    def count(self, what: str, number: int = 1) -> None:
        """Counts what was attacked, in the plural: "killed commands"."""
        self.counted[what] += number


@pytest.fixture
def rounds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rounds]:
    """The rounds of a test; its share of the minutes is that of its mark among all tests that run."""
    shares = sum(map(share, request.session.items))
    rounds = Rounds(SEED, MINUTES * 60 * WORKERS * share(request.node) / shares, tmp_path)
    yield rounds
    request.node.user_properties += [(COUNTED, dict(rounds.counted)), (LAST_SEED, rounds.seed)]


def share(item: pytest.Item) -> float:
    """The weight of a test's time: `share` of its mark, 0 for a test that is no attack."""
    marks = list(item.iter_markers("attack"))
    return max((float(mark.kwargs.get("share", 1)) for mark in marks), default=0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was attacked, and how each failing round is repeated."""
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())}
    every = [report for reports in terminalreporter.stats.values() for report in reports]
    # Only the report of the teardown has what the fixture noted.
    notes = {
        report.nodeid: dict(report.user_properties) for report in every if getattr(report, "when", "") == "teardown"
    }
    total: Counter[str] = Counter()
    for noted in notes.values():
        total.update(noted.get(COUNTED, {}))
    if not total:
        return
    terminalreporter.section("attack")
    counts = ", ".join(f"{number:,} {what}" for what, number in sorted(total.items()))
    terminalreporter.line(f"seed {SEED}, {MINUTES:g} minutes: {counts}; {len(failed)} failed")
    for test in sorted(test for test in failed if LAST_SEED in notes.get(test, ())):
        again = f"--attack --minutes 0 --seed {notes[test][LAST_SEED]} -k '{test.rpartition('::')[2]}'"
        terminalreporter.line(f"repeat: bash tests/run.sh {again}")
