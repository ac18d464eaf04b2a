"""R@k as the papers on images with captions measure it: a hit rate, in percent, per direction.

An image has several captions; the papers' R@k is 1 if *any* relevant item is among the first k, so it is HitRate@k
here, and Recall@k (the fraction found) has its own heading. rsum adds R@1, R@5 and R@10, over both directions where a
system has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Measurement

from .inputs import RunCard
from .metrics import means

# Measure -> the papers' heading.
HEADINGS: Mapping[str, str] = {
    "HitRate@1": "R@1",
    "HitRate@5": "R@5",
    "HitRate@10": "R@10",
    "RR@10": "MRR@10",
    "Recall@10": "recall@10",
}
SUMMED = ("HitRate@1", "HitRate@5", "HitRate@10")
RSUM = "rsum"


def rsum(values: Mapping[str, float]) -> float:
    """R@1 + R@5 + R@10 of one direction, in percent: at most 300."""
    return 100 * sum(values[measure] for measure in SUMMED)


def caption_rows(measured: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """Means under the measures' own names, and rsum, of every run."""
    rows = []
    for measurements in measured:
        whole = [row for row in measurements if row.query_id == "all"]
        rows += [*whole, whole[0]._replace(measure=RSUM, value=rsum(means(whole)))]
    return rows


def with_judgements(card: RunCard, corpus: str) -> RunCard:
    """The run, judged by its own dataset if that is named by a path, else by `corpus`.

    `embeddings:<folder>` and `karpathy:<json>` do not say whose captions they contain, and have their own judgements.
    """
    own = card.corpus.name
    return card if own == corpus or ":" in own else replace(card, corpus=CorpusRef(corpus))
