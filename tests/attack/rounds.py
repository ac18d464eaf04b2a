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

NOTED = "attack"


class Round(NamedTuple):
    """One round: all that it chooses comes from `random`, and its files lie in `folder`, which is empty at first."""

    seed: int
    random: Random
    folder: Path


class Rounds:
    """The rounds of one test; `--minutes 0` with the seed of the current round repeats this round alone."""

    def __init__(self, seed: int, seconds: float, folder: Path):
        self.seed, self.counted = seed, Counter(rounds=0)
        self._seconds, self._folder = seconds, folder

    def __iter__(self) -> Iterator[Round]:
        """One round at least; the folder of a round that fails stays."""
        first, end = self.seed, time.monotonic() + self._seconds
        for number in itertools.count():
            self.seed = Random(f"{first}/{number}").getrandbits(32) if number else first
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
    request.node.user_properties.append((NOTED, (dict(rounds.counted), rounds.seed)))


def share(item: pytest.Item) -> float:
    """The weight of a test's time: `share` of its mark, 0 for a test that is no attack."""
    marks = list(item.iter_markers("attack"))
    return max((float(mark.kwargs.get("share", 1)) for mark in marks), default=0)


def pytest_sessionstart(session: pytest.Session) -> None:
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):  # a worker of xdist has none
        session.config.pluginmanager.register(Summary(reporter))


class Summary:
    """Prints how each failing round is repeated, at once, as a run may be interrupted; and at the end what was done."""

    def __init__(self, reporter: pytest.TerminalReporter):
        self.reporter, self.total = reporter, Counter[str]()
        self.failed: dict[str, str] = {}  # why a test failed, and how it is repeated

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        if report.failed:
            self.failed[test] = str(getattr(report.longrepr, "reprcrash", report.longrepr)).partition("\n")[0]
        if report.when == "teardown" and NOTED in (noted := dict(report.user_properties)):
            counted, seed = noted[NOTED]
            self.total.update(counted)
            if test in self.failed:
                again = f"--attack --minutes 0 --seed {seed} -k '{test.rpartition('::')[2]}'"
                self.failed[test] += f"\nrepeat: bash tests/run.sh {again}"
                self.reporter.write_line(self.failed[test], flush=True)

    def pytest_terminal_summary(self) -> None:
        if self.total:
            self.reporter.section("attack")
            counts = ", ".join(f"{number:,} {what}" for what, number in sorted(self.total.items()))
            line = f"seed {SEED}, {MINUTES:g} minutes: {counts}; {len(self.failed)} failed"
            self.reporter.line("\n".join([line, *self.failed.values()]))
