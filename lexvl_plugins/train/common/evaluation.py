"""What a run is judged by: validation, figures of the vectors of a batch, and the heaviest terms of some examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexvl_plugins.train.common.tower_pair import AnyBatches, ImageBatch, TextBatch, TowerPair, drop_registers, sparsify
from lexvl_plugins.train.model_settings import ImagePairSettings, TextPairSettings
from lexvl_plugins.train.objectives.encoded import Encoded, keep_heaviest
from lexvl_plugins.train.objectives.regularisers import flops

# The heaviest terms by which vectors are compared.
HEAVIEST = 10
# Vectors have collapsed if on average more than this share of all terms is active, or if neighbours in a batch are more
# alike than this.
DENSE, ALIKE = 0.5, {True: 0.9, False: 0.99}
# The number of examples, and of the characters of a text that names one.
COUNT, NAME = 4, 60


class Examples(NamedTuple):
    """A few fixed queries and documents, as many of each, named by a text or id, whose terms a run shows."""

    queries: TextBatch
    documents: ImageBatch | TextBatch
    query_names: Sequence[str]
    document_names: Sequence[str]

    @torch.inference_mode()
    def describe(
        self, pair: TowerPair, model: ImagePairSettings | TextPairSettings, terms: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """One row per example: its side and name, the number of its active terms, the heaviest with their weights."""
        encoded = Encoded(pair.encoder_q(self.queries), pair.encoder_p(self.documents), self.queries.bag)
        vectors = prepare_for_search(encoded, model)
        for side, names in (("query", self.query_names), ("document", self.document_names)):
            for name, weights in zip(names, getattr(vectors, side), strict=True):
                active = int((weights > 0).sum())
                top = weights.topk(min(HEAVIEST, active))
                heaviest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
                terms_of_row = [[terms[place], keep_digits(weight)] for place, weight in heaviest]
                yield {"side": side, "name": name, "active": active, "terms": terms_of_row}


@dataclass(frozen=True)
class StageInputs:
    """What a stage reads; examples are of the validation split, or of the training split where there is none.

    Validation has `measure`, from a pair and its settings to figures by name, and `score`, which compares checkpoints.
    """

    batches: AnyBatches
    validation: Any
    examples: Examples


def choose_examples(items: int) -> np.ndarray:
    """Positions of the examples among all items, evenly spread, int64."""
    return np.unique(np.linspace(0, items - 1, min(COUNT, items)).astype(np.int64))


def shorten(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= NAME else line[: NAME - 1] + "…"


def keep_digits(value: float) -> float:
    """A number with four digits, for the log."""
    return float(f"{value:.4g}")


def prepare_for_search(encoded: Encoded, model: ImagePairSettings | TextPairSettings) -> Encoded:
    """The vectors after the sparsifier of each side, [N, words] and [M, words]; dense ones as they are."""
    query, document = encoded.query.detach().float(), encoded.document.detach().float()
    if isinstance(model, TextPairSettings):
        if model.lexical:
            query, document = (sparsify(side, topk) for side, topk in zip((query, document), model.kept, strict=True))
    elif model.lexical:
        bag = None if encoded.query_bag is None else encoded.query_bag[:, model.registers :]
        query, document = drop_registers(query, model), drop_registers(document, model)
        if model.family.cut:
            query = keep_heaviest(query, bag, model.kept_of_texts)
            document = keep_heaviest(document, None, model.topk)
    return Encoded(query, document)


@torch.no_grad()
def measure_batch(encoded: Encoded, model: ImagePairSettings | TextPairSettings) -> dict[str, float]:
    """Figures of each side: mean active terms and FLOPS of a lexical pair, and how alike the vectors are."""
    vectors = prepare_for_search(encoded, model)
    figures: dict[str, float] = {}
    for side in ("query", "document"):
        weights: Tensor = getattr(vectors, side)
        if model.lexical:
            figures[f"{side}_terms"] = round(float((weights > 0).sum(dim=1).float().mean()), 1)
            figures[f"{side}_flops"] = keep_digits(float(flops(weights)))
        if len(weights) > 1:
            figures[f"{side}_alike"] = round(measure_likeness(weights, model.lexical), 3)
    return figures


def measure_likeness(weights: Tensor, lexical: bool) -> float:
    """How alike each vector [N, V] is to the next one: the common share of the ten heaviest terms, or the cosine."""
    following = weights.roll(1, dims=0)
    if not lexical:
        return float((normalize(weights, dim=1) * normalize(following, dim=1)).sum(dim=1).mean())
    top = weights.topk(min(HEAVIEST, weights.shape[1]), dim=1)
    heavy = torch.zeros_like(weights).scatter_(1, top.indices, (top.values > 0).to(weights.dtype))
    after = heavy.roll(1, dims=0)
    most = torch.maximum(heavy.sum(dim=1), after.sum(dim=1))
    return float(((heavy * after).sum(dim=1) / most.clamp(min=1)).mean())


def find_collapses(
    figures: Mapping[str, float], terms: int, model: ImagePairSettings | TextPairSettings, settled: bool
) -> dict[str, str]:
    """What is wrong with a batch, by side and kind; until it has `settled`, it may be dense and alike."""
    wrong = {}
    for side, name, limit in zip(("query", "document"), ("queries", "documents"), model.kept, strict=True):
        active, near = figures.get(f"{side}_terms"), figures.get(f"{side}_alike", 0.0)
        if active is not None and active < 0.5:
            advice = "lower the weights of regularisers, or the learning rate"
            wrong[f"{side} zero"] = f"vectors of {name} are zero; {advice}"
        elif active is not None and settled and limit is None and active > DENSE * terms:
            advice = "raise the weights of regularisers, or set topk"
            wrong[f"{side} dense"] = f"vectors of {name} have {active:g} of {terms} terms; {advice}"
        elif settled and near > ALIKE[model.lexical]:
            what = "the same heaviest terms" if model.lexical else "the same vector"
            wrong[f"{side} alike"] = f"{name} have {what} ({side}_alike {near:g}); lower the learning rate"
    return wrong
