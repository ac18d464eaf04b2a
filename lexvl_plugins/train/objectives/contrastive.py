"""Contrastive objectives as functions of vectors: VDR and SVDR (Zhou et al., ICLR 2024), InfoNCE.

Layout of a batch. Row i of `query` [N, V] and row i of `document` [M, V] are a pair; where M > N, the first N documents
are the positives and the others hard negatives: K = M / N - 1 for each query, those of query 0 first. Vectors are those
of the encoder, so they are L2-normalised where it normalises; scores are their inner products, divided by
`temperature`.

The objective of STAIR (Chen et al., EMNLP 2023), from the paper; there is no public code.

Three stages: 1. `masked: true`, both encoders; 2. the image encoder frozen, without mask; 3. nothing frozen. All with
the regulariser `flops` on both sides, weight 1e-3 each, quadratic. The paper leaves open the temperature, whether the
loss has both directions, and whether the mask has [CLS] and [SEP].

The objective of FDT (Chen et al., CVPR 2023; code yuxiaochen1103/FDT, commit ccf6983). Vectors are weights over the
rows of a codebook C [16384, 512], which both modalities share. The objective sees features only: no term of it makes
weights sparse, sparsemax does.

    f = w C of unit length, S = F_text F_image^T, loss = 1/2 [CE(scale S) + CE(scale S^T)], scale = min(e^s, 100)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lexvl_anserini.encoders.parts.pooling import compute_decay
from lexvl_anserini.encoders.parts.sparsify import top_mask

# Dimensions that the loss keeps of a masked vector; the reference uses this number and ignores its configuration.
TOPK = 768


class Dense(NamedTuple):
    """Dense vectors of both sides, float32 [N, D]."""

    query: Tensor
    document: Tensor


class Keys(NamedTuple):
    """Vectors of momentum encoders, of unit length and without gradients.

    query, document    float32 [N, V], of this batch
    queries, documents  float32 [Q, V], of the batches before it
    """

    query: Tensor
    document: Tensor
    queries: Tensor
    documents: Tensor


class Predicted(NamedTuple):
    """Predictions of the masked words of texts.

    logits  float32 [B, L, V]
    labels  int64 [B, L], the token of a masked position, -100 at all others
    """

    logits: Tensor
    labels: Tensor


class Encoded(NamedTuple):
    """One batch after the pair of towers encoded it.

    query         float32 [N, V] (dense twin: [N, D]), before the sparsifier
    document      float32 [M, V] (or [M, D]); positives first, then the K hard negatives of each query, query by query
    query_bag     bool [N, V], the queries' own tokens; None where queries are no texts
    document_bag  bool [M, V], the same for documents
    named         float32 [M, V], the share of each document's captions that contain a term; None without `naming`
    frequency     float32 [V], the mean of `named` over the training split; None without `naming`
    taught        float32 [N, M], the scores of a teacher; None without a teacher
    dense         the dense vectors of both sides beside the lexical ones, for D2S and Joint
    expanded      False: the texts of this batch keep only their own tokens (D2S' expansion control)
    keys          what the momentum encoders of LexLIP computed
    predicted     predictions of masked words, for LexLIP's pre-training
    codebook      float32 [K, D], for FDT: its rows, averaged by the weights of a vector, are its features
    caption       float32 [N, V], lexical vectors of the positives' captions, with terms of the caption only, and
    logits        float32 [N, V], the positives before the activation; both for V-SPLADE
    """

    query: Tensor
    document: Tensor
    query_bag: Tensor | None = None
    document_bag: Tensor | None = None
    named: Tensor | None = None
    frequency: Tensor | None = None
    taught: Tensor | None = None
    dense: Dense | None = None
    expanded: bool = True
    keys: Keys | None = None
    predicted: tuple[Predicted, ...] = ()
    codebook: Tensor | None = None
    caption: Tensor | None = None
    logits: Tensor | None = None

    @property
    def judged(self) -> Tensor:
        """The teacher's scores of each query's own documents [N, 1 + K]: its positive, then its hard negatives."""
        if self.taught is None:
            raise ValueError(
                "this objective needs the scores of a teacher; files of `mine`, and of DPR with `score`, have them"
            )
        rows, each = len(self.query), len(self.negatives) // len(self.query)
        own = torch.arange(rows)[:, None]
        places = torch.cat([own, rows + own * each + torch.arange(each)], dim=1).to(self.taught.device)
        return self.taught.detach().gather(1, places)

    @property
    def positives(self) -> Tensor:
        """The documents that answer the queries, [N, V]."""
        return self.document[: len(self.query)]

    @property
    def negatives(self) -> Tensor:
        """The hard negatives of all queries, [N K, V]; the view [N, K, V] has those of each query."""
        rows, others = len(self.query), self.document[len(self.query) :]
        if not len(others) or len(others) % rows:
            raise ValueError(f"{len(others)} hard negatives of {rows} queries, expected as many for each, at least one")
        return others


Temperature = float | Tensor


def contrastive(query: Tensor, document: Tensor, temperature: Temperature = 1.0, symmetric: bool = True) -> Tensor:
    """Cross entropy of every query over all documents, plus every positive over all queries (a sum, not a mean).

    Hard negatives act in the first direction only.
    """
    scores = query @ document.T / temperature  # [N, M]
    target = torch.arange(len(query), device=query.device)
    loss = cross_entropy(scores, target)
    return loss + cross_entropy(scores[:, : len(query)].T, target) if symmetric else loss


def masked(weights: Tensor, bag: Tensor | None, topk: int) -> Tensor:
    """The vector that search uses [N, V]: its `topk` largest weights and, of a text, the weights of its own tokens."""
    keep = top_mask(weights.detach(), topk)
    return weights * (keep if bag is None else keep | bag)


def contrastive_mask(bag: Tensor) -> Tensor:
    """Bool [n, V]: row i owns the dimensions v with v mod n = i that no text of the batch contains.

    The bag of row i gains these dimensions and its positive loses them. A weight of any other document on such a
    dimension then raises a wrong score, and training lowers it.
    """
    rows, size = bag.shape
    owner = torch.arange(size, device=bag.device) % rows
    absent = ~bag.bool().any(dim=0)
    return (owner == torch.arange(rows, device=bag.device)[:, None]) & absent


def vdr(
    encoded: Encoded,
    temperature: Temperature = 1.0,
    topk: int = TOPK,
    symmetric: bool = True,
    nonparametric: float = 0.5,
    mask_weight: float = 0.0,
    mask_norm: bool = False,
    normalised: bool = False,
    bag_temperature: Temperature | None = None,
) -> Tensor:
    """VDR: (1 - w) L(masked query, document) + w L(bag of the query, document), with w = 1/2 in the paper.

    Args:
        encoded: queries with their bags; documents stay dense in the loss.
        temperature: divides every score.
        topk: dimensions kept of a query, besides its own tokens.
        symmetric: both directions of L.
        nonparametric: w, the weight of the second term, VDR's nonparametric entry; 0 omits it.
        mask_weight: of the contrastive mask in the second term; 0 omits the mask.
        mask_norm: each row of the mask gets unit length before it is added.
        normalised: vectors have unit length, so the bag gets it too (cross-modal models).
        bag_temperature: of the second term; default `temperature`.
    """
    parametric = contrastive(masked(encoded.query, encoded.query_bag, topk), encoded.document, temperature, symmetric)
    if not nonparametric:
        return parametric
    bag, document = bag_of(encoded.query_bag, normalised), encoded.document
    if mask_weight:
        mask = contrastive_mask(present(encoded.query_bag)).float()
        bag, document = bag + mask_weight * bag_of(mask, mask_norm), without_own(document, mask)
    entry = contrastive(bag, document, bag_temperature or temperature, symmetric)
    return (1 - nonparametric) * parametric + nonparametric * entry


def svdr(
    encoded: Encoded,
    temperature: Temperature = 1.0,
    topk: int = TOPK,
    symmetric: bool = True,
    mask_weight: float = 0.0,
    mask_norm: bool = False,
    normalised: bool = False,
    scaled: bool = False,
) -> Tensor:
    """SVDR: 1/4 [L(masked q, d) + L(q, masked d) + L(bag of q, d) + L(q, bag of d)].

    Args:
        encoded: queries and documents, both texts with their bags.
        temperature: divides every score.
        topk: dimensions kept of a masked vector, besides its own tokens.
        symmetric: both directions of L.
        mask_weight: of the contrastive mask, in the two terms with a bag; 0 omits the mask.
        mask_norm: each row of the mask gets unit length before it is added.
        normalised: bags get unit length.
        scaled: scale each second direction to the size of the first (the reference's experiment).
    """
    query, document = encoded.query, encoded.document
    query_bag, document_bag = bag_of(encoded.query_bag, normalised), bag_of(encoded.document_bag, normalised)
    loss = scaled_contrastive if scaled else contrastive
    total = loss(masked(query, encoded.query_bag, topk), document, temperature, symmetric)
    total = total + loss(query, masked(document, encoded.document_bag, topk), temperature, symmetric)
    if mask_weight:
        query_mask = contrastive_mask(present(encoded.query_bag)).float()
        document_mask = contrastive_mask(present(encoded.document_bag)).float()
        query_bag = query_bag + mask_weight * bag_of(query_mask, mask_norm)
        document_bag = document_bag + mask_weight * bag_of(document_mask, mask_norm)
        document, query = without_own(document, query_mask), without_own(query, document_mask)
    total = total + loss(query_bag, document, temperature, symmetric)
    return (total + loss(query, document_bag, temperature, symmetric)) / 4


def scaled_contrastive(
    query: Tensor, document: Tensor, temperature: Temperature = 1.0, symmetric: bool = True
) -> Tensor:
    """`contrastive` with the second direction scaled to the size of the first, the factor held constant."""
    first = contrastive(query, document, temperature, symmetric=False)
    if not symmetric:
        return first
    second = contrastive(query, document, temperature) - first
    return first + (first / second).detach() * second


def info_nce(encoded: Encoded, temperature: Temperature = 0.07) -> Tensor:
    """Symmetric InfoNCE over unit vectors, the mean of the two directions (CLIP: Radford et al., ICML 2021)."""
    return contrastive(encoded.query, encoded.document, temperature) / 2


def bag_of(bag: Tensor | None, normalised: bool) -> Tensor:
    """The bag as weights, float32 [n, V]: ones, or of unit length."""
    weights = present(bag).float()
    return normalize(weights, dim=1) if normalised else weights


def without_own(weights: Tensor, mask: Tensor) -> Tensor:
    """The vectors [M, V] without the dimensions that the same row of the mask [N, V] owns; other rows do not change."""
    both = min(len(weights), len(mask))
    return torch.cat([weights[:both] * (1 - mask[:both]), weights[both:]])


def present(bag: Tensor | None) -> Tensor:
    """The bag, bool [n, V]."""
    if bag is None:
        raise ValueError("this objective needs the own tokens of both sides, and one side has no texts")
    return bag


def stair(encoded: Encoded, temperature: Temperature = 0.07, masked: bool = False, symmetric: bool = True) -> Tensor:
    """InfoNCE of cosines (equation 3), the mean of both directions.

    Args:
        encoded: texts as queries, images as documents.
        temperature: divides cosines.
        masked: texts keep only their own tokens (equation 8), which grounds the terms of images in words; needs the
            bags of the queries.
        symmetric: both directions; else from texts to images only.
    """
    query = encoded.query * present(encoded.query_bag) if masked else encoded.query
    query, document = normalize(query, dim=1), normalize(encoded.document, dim=1)
    loss = contrastive(query, document, temperature, symmetric)
    return loss / 2 if symmetric else loss


# Added to the norms of features of FDT.
EPS = 1e-10
# The least temperature of a forward pass of FDT, a scale of 100. Beyond it, the temperature gets no gradient.
LEAST = 0.01


def fdt(encoded: Encoded, temperature: Temperature = 0.07) -> Tensor:
    """Symmetric InfoNCE of the cosines of features, the mean of the two directions.

    Args:
        encoded: weights [N, K] of both sides, with the codebook.
        temperature: 1 / scale.
    """
    if encoded.codebook is None:
        raise ValueError("fdt needs the codebook of its weights")
    query, document = (features(weights, encoded.codebook) for weights in (encoded.query, encoded.document))
    return contrastive(query, document, torch.as_tensor(temperature).clamp(min=LEAST)) / 2


def features(weights: Tensor, codebook: Tensor) -> Tensor:
    """The rows of the codebook [K, D], averaged by weights [N, K], of unit length: [N, D]."""
    sums = weights @ codebook
    return sums / (sums.norm(dim=1, keepdim=True) + EPS)


def relevance_temperature(
    done: float, first: float = 1000.0, decay: float = 1.0, every: int = 2700, least: float = 0.01
) -> float:
    """T, by which relevances are divided before sparsemax or softmax: max(first decay^(done // every), least).

    A high T spreads the weights over many terms. The published run on CC3M has decay 1; the default of the code is 0.3.
    """
    return compute_decay(first, decay, done // every, least)
