"""SVDR: VDR trained so that either side may be a binary bag of tokens (arXiv 2405.01924; later named SiDR).

The architecture is VDR's. Its own mode is beta: documents are indexed as bags of tokens, without a network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lexvl_anserini.encoders.base import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.vdr import Mode, load_vdr


def load_svdr(
    source: Source,
    mode: Mode = "beta",
    topk: int | None = None,
    query_topk: int | None = None,
    lexical_union: bool = False,
    max_length: int | None = None,
    query_max_length: int | None = None,
    padding: Literal["none", "max_length"] | None = None,
) -> Encoder:
    """As `load_vdr`, with documents as binary bags of tokens unless `mode` says otherwise."""
    encoder = load_vdr(source, mode, topk, query_topk, lexical_union, max_length, query_max_length, padding)
    return replace(encoder, name="svdr")
