"""Random choices that are the same on every machine and for ever.

numpy may change what a seed gives between versions; these ten lines of SplitMix64 (Steele, Lea and Flood, 2014) cannot,
and cost nothing to start, so that every scene has a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1


class Draws:
    """A stream of choices seeded by any number of printable parts."""

    def __init__(self, *seed: object):
        key = "/".join(map(str, seed)).encode("utf-8")
        self._state = int.from_bytes(blake2b(key, digest_size=8).digest(), "little")

    def bits(self) -> int:
        """The next 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """An integer in [0, n); the bias of the multiplication is below n / 2^64."""
        return (self.bits() * n) >> 64

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in `percent` of a hundred cases."""
        return self.below(100) < percent

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[self.below(len(options))]

    def weighted(self, options: Mapping[T, int]) -> T:
        """One of the options, as likely as its whole-number weight says."""
        left = self.below(sum(options.values()))
        for option, weight in options.items():
            left -= weight
            if left < 0:
                return option
        raise AssertionError("weights sum to more than they do")


def outcomes(function: Callable[[Draws], T]) -> set[T]:
    """All that a function of draws can return, by running it along every path of its choices."""
    found: set[T] = set()
    paths: list[list[int]] = [[]]
    while paths:
        walk = _Walk(paths.pop())
        found.add(function(walk))
        paths += walk.untaken
    return found


class _Walk(Draws):
    """Follows a path of choices, then takes the first of each; `untaken` are the paths that branch off after it."""

    def __init__(self, path: list[int]):
        self._ahead = path[::-1]
        self._path: list[int] = []
        self.untaken: list[list[int]] = []

    def below(self, n: int) -> int:
        if self._ahead:
            branch = self._ahead.pop()
        else:
            branch = 0
            self.untaken += [[*self._path, other] for other in range(1, n)]
        self._path.append(branch)
        return branch

    def chance(self, percent: int) -> bool:
        return percent > 0 and (percent >= 100 or bool(self.below(2)))
