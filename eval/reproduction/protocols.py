"""What papers say about how they measure latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Protocol(NamedTuple):
    """What a paper says about its measurement, None for nothing; `tokens` is the most that a query has."""

    paper: str
    items: int | None
    queries: int | None
    tokens: int | None
    measures: Mapping[str, Sequence[str]]

    @property
    def depth(self) -> int:
        """Hits per query: the largest cut of the measures."""
        return max(int(name.partition("@")[2]) for names in self.measures.values() for name in names)


RATES = ("HitRate@10", "HitRate@25")
PROTOCOLS: Mapping[str, Protocol] = {
    "vdr-g": Protocol("VDR, appendix G", 100_000, 1000, 77, {"image": ("HitRate@1",), "text": ("nDCG@10",)}),
    "stair-9": Protocol("STAIR, table 9", 1_000_000, None, None, {"image": RATES, "text": RATES}),
    "lexlip": Protocol("LexLIP, ICCV 2023", None, None, None, {"image": ("HitRate@1", "HitRate@10"), "text": RATES}),
}
