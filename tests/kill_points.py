"""Which of a command's calls a test kills it at: a fifth of them, drawn by a seed; all of them in the extended run."""

from __future__ import annotations

from random import Random

import pytest

kills = pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.extended)], ids=["fifth", "all"])


def draw_calls(calls: int, share: int, seed: int = 57) -> list[int]:
    """The numbers of the calls, from 1, in order; the last one is always among them."""
    return sorted({*Random(seed).sample(range(1, calls + 1), -(-calls // share)), calls})
