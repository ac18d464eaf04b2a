"""BM25, the baseline: texts are passed on as they are, and stock Anserini analyses and scores them."""

from __future__ import annotations

from typing import ClassVar

from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsTexts
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.ground.errors import UsageError


class PlainTextTower(ReadsTexts):
    """Passes texts through to an engine that analyses them itself."""

    kind: ClassVar[Kind] = "text"


def load_bm25(source: Source) -> Encoder:
    """BM25, which needs neither checkpoint nor device."""
    if source.checkpoint is not None:
        raise UsageError("encoder 'bm25' has no model; leave --checkpoint out")
    tower = PlainTextTower()
    return Encoder("bm25", "text", tower, tower)
