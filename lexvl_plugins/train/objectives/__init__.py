"""What training minimises: objectives, auxiliary objectives and regularisers, in the tables that recipes name.

`contrastive` has the batch that they all read, `Encoded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexvl_plugins.train.objectives import contrastive
from lexvl_plugins.train.objectives.family_losses import d2s, joint, lexlip, lexlip_momentum, masked_words


class LossRow(NamedTuple):
    """A function that recipes name, of an `Encoded` or of weights [N, V] (regularisers); other parameters are options.

    Documents must be texts, or images with captions; None for either. `whole`: it reads a queue of keys or masked texts
    that belong to the whole batch: no pieces, no other processes. It `needs` more than the vectors of both sides, which
    the settings of a model say that its pair `computes`.
    """

    function: Callable[..., Tensor]
    lexical: bool = False
    documents: Literal["texts", "images"] | None = None
    whole: bool = False
    masks: bool = False
    needs: str | None = None


DENSE = "dense vectors beside lexical ones"
# Losses over hard negatives; SPLADE's recipes also weigh several of them.
RANKING_LOSSES: Mapping[str, LossRow] = {
    "splade_pairwise": LossRow(contrastive.splade_pairwise),
    "splade_in_batch": LossRow(contrastive.splade_in_batch),
    "splade_shared_negatives": LossRow(contrastive.splade_shared_negatives),
    "splade_margin_mse": LossRow(contrastive.splade_margin_mse, documents="texts"),
    "splade_kl": LossRow(contrastive.splade_kl, documents="texts"),
}
OBJECTIVES: Mapping[str, LossRow] = {
    "vdr": LossRow(contrastive.vdr, lexical=True),
    "svdr": LossRow(contrastive.svdr, lexical=True, documents="texts"),
    "info_nce": LossRow(contrastive.info_nce),
    "dpr": LossRow(contrastive.dpr),
    **RANKING_LOSSES,
    "stair": LossRow(contrastive.stair, lexical=True),
    "lexlip": LossRow(lexlip, lexical=True),
    "lexlip_momentum": LossRow(lexlip_momentum, lexical=True, whole=True, needs="keys of momentum encoders"),
    "fdt": LossRow(contrastive.fdt, needs="a codebook"),
    "d2s": LossRow(d2s, lexical=True, masks=True, needs=DENSE),
    "joint": LossRow(joint, lexical=True, masks=True, needs=DENSE),
    "v_splade": LossRow(contrastive.v_splade, lexical=True, documents="images"),
}
AUXILIARIES: Mapping[str, LossRow] = {
    "naming": LossRow(contrastive.naming, lexical=True, documents="images"),
    "distil": LossRow(contrastive.distil),
    **RANKING_LOSSES,
    "masked_words": LossRow(masked_words, lexical=True, whole=True, needs="predictions of masked words"),
    "caption_gated": LossRow(
        contrastive.caption_gated, lexical=True, documents="images", needs="vectors of captions and logits of images"
    ),
}


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of a vector's weights."""
    return weights.abs().sum(dim=1).mean()


def flops(weights: Tensor, threshold: int = 0, normalised: bool = False) -> Tensor:
    """Sum over dimensions of the squared mean weight, a smooth stand-in for the cost of a query.

    Paria et al., ICLR 2020; SPLADE, STAIR and LexLIP (`normalised`: of vectors of unit length) use it. Vectors with at
    most `threshold` active terms count as empty in the mean, so that they stay as they are (FLOPS with L0 masking,
    arXiv 2504.14839).
    """
    if threshold:
        weights = weights * ((weights != 0).sum(dim=1, keepdim=True) > threshold)
    if normalised:
        weights = normalize(weights, dim=1)
    return (weights.abs().mean(dim=0) ** 2).sum()


def anti_zero(weights: Tensor) -> Tensor:
    """1 / (sum of all weights of a batch)^2: grows without bound where all vectors vanish (naver/splade, IRTrainer)."""
    return 1 / weights.sum() ** 2


def ramp(step: int, steps: int) -> float:
    """The share of a regulariser's weight at a step: quadratic up to `steps`, then 1 (SPLADE's schedule)."""
    return 1.0 if step >= steps else (step / steps) ** 2


# The share of a regulariser's weight by (steps done before, steps T until the whole weight), under the name of its
# offset: all are quadratic, and differ in the first optimisation step n = 1.
# n-1      D2S, Joint: 0 in the first step
# n        SPLADE, STAIR: 1 / T^2 in the first step
# n/(T+1)  SPLADE's IRTrainer, where T = 0 is constant
# callback  sentence-transformers, which sets the weight before each step from the steps done: as n-1, with a third of
#          all steps as T
RAMPS: Mapping[str, Callable[[int, int], float]] = {
    "n-1": ramp,
    "n": lambda done, steps: ramp(done + 1, steps),
    "n/(T+1)": lambda done, steps: ramp(done + 1, steps + 1),
    "callback": ramp,
}


def sum_penalties(terms: Iterable[Tensor], running: bool = False) -> Tensor:
    """The sum of the weighted regularisers of a step; `running` adds the sum so far after each (SPLADE's trainer)."""
    values = list(terms)
    if not values:
        return torch.zeros(())
    stacked = torch.stack(values)
    return stacked.cumsum(dim=0).sum() if running else stacked.sum()


REGULARISERS = {"l1": LossRow(l1), "flops": LossRow(flops), "anti_zero": LossRow(anti_zero)}
