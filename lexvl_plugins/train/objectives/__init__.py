"""What training minimises: objectives, auxiliary objectives and regularisers, with the tables that recipes name.

contrastive     VDR, SVDR, InfoNCE, STAIR and FDT, and `Encoded`, the batch that they all read
ranking_losses  DPR and SPLADE, over hard negatives; `distil`: the scores of a teacher as targets
lexlip_losses   LexLIP's two phases
joint_losses    D2S and Joint, over dense vectors
caption_terms   `naming`, which terms the captions of an image contain; V-SPLADE
regularisers    what keeps vectors sparse, and how its weight grows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from lexvl_plugins.train.objectives.caption_terms import caption_gated, naming, v_splade
from lexvl_plugins.train.objectives.contrastive import fdt, info_nce, stair, svdr, vdr
from lexvl_plugins.train.objectives.joint_losses import d2s, joint
from lexvl_plugins.train.objectives.lexlip_losses import lexlip, lexlip_momentum, masked_words
from lexvl_plugins.train.objectives.ranking_losses import (
    distil,
    dpr,
    splade_in_batch,
    splade_kl,
    splade_margin_mse,
    splade_pairwise,
    splade_shared_negatives,
)
from lexvl_plugins.train.objectives.regularisers import anti_zero, flops, l1

# Losses over hard negatives; SPLADE's recipes also weigh several of them.
OF_NEGATIVES: Mapping[str, Callable[..., Tensor]] = {
    "splade_pairwise": splade_pairwise,
    "splade_in_batch": splade_in_batch,
    "splade_shared_negatives": splade_shared_negatives,
    "splade_margin_mse": splade_margin_mse,
    "splade_kl": splade_kl,
}
OBJECTIVES: Mapping[str, Callable[..., Tensor]] = {
    "vdr": vdr,
    "svdr": svdr,
    "info_nce": info_nce,
    "dpr": dpr,
    **OF_NEGATIVES,
    "stair": stair,
    "lexlip": lexlip,
    "lexlip_momentum": lexlip_momentum,
    "fdt": fdt,
    "d2s": d2s,
    "joint": joint,
    "v_splade": v_splade,
}
AUXILIARIES: Mapping[str, Callable[..., Tensor]] = {
    "naming": naming,
    "distil": distil,
    **OF_NEGATIVES,
    "masked_words": masked_words,
    "caption_gated": caption_gated,
}
REGULARISERS: Mapping[str, Callable[..., Tensor]] = {"l1": l1, "flops": flops, "anti_zero": anti_zero}
# Objectives whose dimensions must be terms.
LEXICAL = frozenset(
    {"vdr", "svdr", "naming", "stair", "lexlip", "lexlip_momentum", "masked_words", "d2s", "joint"}
    | {"v_splade", "caption_gated"}
)
# Objectives whose documents must be texts, and those whose documents must be images with captions.
OF_TEXTS = frozenset({"svdr", "splade_margin_mse", "splade_kl"})
OF_IMAGES = frozenset({"naming", "v_splade", "caption_gated"})
# Objectives whose queue of keys, or whose masked texts, belong to the whole batch: no pieces and no other processes.
OF_WHOLE_BATCHES = frozenset({"lexlip_momentum", "masked_words"})
# Objectives that mask texts in batches without expansion.
OF_EXPANSION = frozenset({"d2s", "joint"})
# What objectives read in a batch beyond the vectors of both sides; the settings of a model say what its pair computes.
MISSING: Mapping[str, str] = {
    "d2s": "dense vectors beside lexical ones",
    "joint": "dense vectors beside lexical ones",
    "lexlip_momentum": "keys of momentum encoders",
    "masked_words": "predictions of masked words",
    "fdt": "a codebook",
    "caption_gated": "vectors of captions and logits of images",
}
