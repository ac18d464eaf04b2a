"""Rounds of an attack: each has a seed that repeats it, and they end when a test's share of the time is used."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple


class Round(NamedTuple):
    """One round: all that it chooses comes from `random`, and its files lie in `folder`, which is empty at first."""

    seed: int
    random: Random
    folder: Path


class Rounds:
    """The rounds of one test: the first has the given seed, the seeds of the others follow from it.

    seed     of the current round: with it as the first seed, `--minutes 0` repeats this round alone
    counted  what the test counts for the summary
    """

    def __init__(self, seed: int, seconds: float, folder: Path):
        self.seed = seed
        self.counted: Counter[str] = Counter()
        self._seconds, self._folder = seconds, folder

    def __iter__(self) -> Iterator[Round]:
        """One round at least; the folder of a round that fails stays."""
        first, end = self.seed, time.monotonic() + self._seconds
        number = 0
        while number == 0 or time.monotonic() < end:
            self.seed = Random(f"{first}/{number}").getrandbits(32) if number else first
            folder = self._folder / str(self.seed)
            folder.mkdir(parents=True)
            yield Round(self.seed, Random(self.seed), folder)
            shutil.rmtree(folder)
            number += 1
            self.count("rounds")

    def count(self, what: str, number: int = 1) -> None:
        """Counts what was attacked, in the plural: "killed commands"."""
        self.counted[what] += number
