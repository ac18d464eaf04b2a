"""What training minimises: objectives, auxiliary objectives and regularisers, in the tables that recipes name.

`encoded` has the batch that they all read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from lexvl_plugins.train.objectives import contrastive
from lexvl_plugins.train.objectives.family_losses import d2s, joint, lexlip, lexlip_momentum, masked_words
from lexvl_plugins.train.objectives.regularisers import anti_zero, flops, l1


class LossRow(NamedTuple):
    """A function that recipes name, and the models and batches that it fits.

    Attributes:
        function: of an `Encoded`, or of weights [N, V] (regularisers); its other parameters are options of the recipe.
        documents: what documents must be: texts, or images with captions; None for either.
        whole: it reads a queue of keys or masked texts that belong to the whole batch: no pieces, no other processes.
        needs: what it reads beyond the vectors of both sides; the settings of a model say what its pair `computes`.
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
REGULARISERS = {"l1": LossRow(l1), "flops": LossRow(flops), "anti_zero": LossRow(anti_zero)}
