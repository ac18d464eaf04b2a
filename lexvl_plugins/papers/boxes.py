"""How the mean weights of terms spread over a collection's images and texts: the boxes of VDR's figure 2 (appendix D).

A model that shirks the work of disentangling puts large weights on a few terms, the same everywhere: the box of its
first 100 means is high, and these terms have most of all weight. `lexvl terms --plot` draws the same boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lexvl_eval.analyses.terms import TermProfile, measure_terms, open_shards

from lexvl_anserini.data.dataset import load_reference

from .prepared import Prepared, RowPart, Workplace, find_limit, prepare
from .retrieval import encode_documents, keep_values, limit_dataset, read_collection
from .sources import SIDES


@keep_values(read_collection)
def measure_boxes(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The boxes of the sides that a part names, each encoded as the documents of its direction, which runs share."""
    values: dict[str, float] = {}
    documents = 0
    for side in dict.fromkeys(name.partition(" ")[0] for name in part.measures):
        own = prepare(part._replace(task=SIDES[side]), place)
        assert own is not None, "the part has weights"
        dataset = limit_dataset(load_reference(own.corpus), find_limit(part, place))
        profile = measure_terms(open_shards(encode_documents(own, dataset, place)), work.system.encoder)
        values |= {f"{side} {name}": value for name, value in describe_box(profile).items()}
        documents += profile.documents
    return {"values": {name: values[name] for name in part.measures}, "quantised": True, "documents": documents}


def describe_box(profile: TermProfile) -> dict[str, float]:
    """The box of the first 100 terms' mean weights (unit length), and the share of all weight that these terms have."""
    means = [term.mean for term in profile.first]
    median, whisker = find_box(means)
    return {"mean": float(np.mean(means)), "median": median, "upper whisker": whisker, "first 100": profile.share}


def find_box(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the upper whisker: the largest value up to 1.5 interquartile ranges above the third quartile."""
    first, median, third = np.percentile(values, (25, 50, 75))
    within = [value for value in values if value <= third + 1.5 * (third - first)]
    return float(median), max(float(third), *within)
