"""Objectives of images over the terms of their captions: V-SPLADE's two, and `naming`.

V-SPLADE: Cho et al., arXiv 2605.30917; the equations are those of the published code (naver/v-splade, commit 3f97737).
Queries are bags of words or have learned weights per word; documents are images.

    loss = v_splade + 0.1 caption_gated + 0.01 FLOPS(positives) + 0.01 FLOPS(hard negatives)

`naming` compares all terms of an image with each other; `caption_gated` looks at the terms of the caption only, and
FLOPS holds down the others.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from lexvl_plugins.train.objectives.encoded import Encoded, Temperature, weigh_bag

# Below the frequency of any term that occurs.
RAREST = 1e-6
# Scores beyond this limit, on both sides of 0, get no gradient.
LIMIT = 100.0
# Added to the sum of a gate, and the least weight by which one is divided.
EPS, TINY = 1e-8, 1e-30


def naming(encoded: Encoded, temperature: Temperature = 0.05, prior: float = 1.0) -> Tensor:
    """Cross entropy between the terms of an image's captions and softmax_v(w_v / temperature + prior log frequency_v).

    It compares each weight with the weights of all other terms of the same image. The contrastive losses compare it
    with the weight of the same term in the other images of the batch, so one image teaches far more here. Classifying
    images by all words of their captions is Joulin et al. (ECCV 2016) and Huang et al. (NeurIPS 2024). The frequency is
    a prior (Menon et al., ICLR 2021): w_v / temperature tends to the pointwise mutual information of term and image, as
    in the contrastive losses, and common words do not become heavy. With a `prior` below 1 they become heavier, and the
    first terms of an image are more often words of its captions.
    """
    named, frequency = encoded.named, encoded.frequency
    if named is None or frequency is None:
        raise ValueError("naming needs images with captions as documents")
    logits = encoded.document / temperature + prior * frequency.clamp(min=RAREST).log()  # [M, V]
    share = named / named.sum(dim=1, keepdim=True).clamp(min=RAREST)
    return -(share * logits.log_softmax(dim=1)).sum(dim=1).mean()


def v_splade(
    encoded: Encoded, temperature: Temperature = 1.0, queries: Literal["vectors", "own", "bag"] = "vectors"
) -> Tensor:
    """-mean_i log softmax_j(clip(<q_i, d_j> / temperature, -100, 100))_i over all documents of the batch.

    Args:
        encoded: queries and documents.
        temperature: divides scores.
        queries: their vectors as they are; own (learned weights of their own words only); or bag (all weights are 1).
    """
    query = encoded.query
    if queries != "vectors":
        own = weigh_bag(encoded.query_bag, normalised=False)
        query = own if queries == "bag" else query * own
    scores = (query @ encoded.document.T / temperature).clamp(-LIMIT, LIMIT)
    return cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def caption_gated(
    encoded: Encoded,
    alpha: float = 1.0,
    target: Literal["log_sigmoid", "logits", "weights"] = "log_sigmoid",
    focus: float = 1.0,
) -> Tensor:
    """-mean_i sum_v o_iv log sigmoid(h_iv): images activate the terms that the caption gates.

    o_iv is (w_iv + alpha mean_u w_iu) c_iv, each row divided by its sum: the more an image and its caption weigh a
    term, the more it counts; alpha lets terms begin that the image does not have. Neither w nor c gets a gradient in
    it. A row without any term counts as 0.

    Args:
        encoded: the positives w [N, V] with their `logits` h, and `caption` c.
        alpha: share of the mean weight that every term gets.
        target: what the caption raises: log sigmoid of the logits, logits, or weights.
        focus: temperature of o; below 1, fewer terms count.
    """
    if encoded.caption is None:
        raise ValueError("caption_gated needs lexical vectors of captions")
    weights = encoded.positives
    raised = weights if target == "weights" else encoded.logits
    if raised is None:
        raise ValueError(f"caption_gated with target {target!r} needs the logits of documents")
    overlap = (weights + alpha * weights.mean(dim=1, keepdim=True)).detach() * encoded.caption.detach()
    if focus != 1:
        heaviest = overlap.amax(dim=1, keepdim=True).clamp(min=TINY)
        overlap = (overlap / heaviest) ** (1 / focus)
    gate = overlap / (overlap.sum(dim=1, keepdim=True) + EPS)
    return -(gate * (logsigmoid(raised) if target == "log_sigmoid" else raised)).sum(dim=1).mean()
