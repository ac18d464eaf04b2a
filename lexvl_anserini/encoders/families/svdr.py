"""SVDR: VDR trained so that either side may be a binary bag of tokens (arXiv 2405.01924; later named SiDR).

The architecture is VDR's. Its default mode is beta: documents are indexed as bags of tokens, without a network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.vdr import Mode, load_vdr
from lexvl_anserini.encoders.loading import Source


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
    """As `load_vdr`, with documents as binary bags of tokens by default.

    `python -m lexvl_anserini.rerank` re-ranks the results of beta by full parametric scores.

    Args:
        source: as for `vdr`.
        mode: beta (documents are binary bags of tokens); alpha (queries are); full.
        topk: dimensions kept per text; -1 all, 0 only the own tokens; default the checkpoint's (768).
        query_topk: the same for queries; default `topk`.
        lexical_union: keep a text's own tokens besides the top k.
        max_length: tokens per document; default the checkpoint's (untrained: 256).
        query_max_length: tokens per query; default the checkpoint's (untrained: `max_length`).
        padding: with `max_length` the maximum includes padding positions, as published; with `none` it does not.
    """
    encoder = load_vdr(source, mode, topk, query_topk, lexical_union, max_length, query_max_length, padding)
    return replace(encoder, name="svdr")
