"""Ranked lists from what an engine returns at once: the ids as lines and the scores as an array."""

from __future__ import annotations

from functools import partial
from itertools import repeat

import numpy as np

from lexvl_anserini.ground.records import ScoredDoc

# NamedTuple's own constructor without its Python frame.
_scored = partial(tuple.__new__, ScoredDoc)


def hit_list(query_id: str, lines: bytes, scores: np.ndarray) -> list[ScoredDoc]:
    """The list of a query, from its ids (UTF-8, a line feed after each) and their scores, the best first."""
    # The last line ends with a line feed too, so the split has one more, empty id.
    ids = lines.decode().split("\n")
    return list(map(_scored, zip(repeat(query_id), ids, range(1, len(ids)), scores.tolist(), strict=False)))
