"""Objectives of contrast: VDR and SVDR, InfoNCE, STAIR, FDT, V-SPLADE, `naming`; DPR and SPLADE over hard negatives.

Row i of `query` [N, V] and row i of `document` [M, V] are a pair; where M > N, the first N documents are the positives
and the others hard negatives: K = M / N - 1 for each query, those of query 0 first. Vectors are those of the encoders,
so they have unit length where an encoder normalises; scores are s_ij = <q_i, d_j> / temperature. SPLADE is
naver/splade, 8dcd33a.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, logsigmoid, mse_loss, normalize

from lexvl_anserini.encoders.parts.sparsify import mark_top

Temperature = float | Tensor


class Dense(NamedTuple):
    """Dense vectors of both sides, float32 [N, D]."""

    query: Tensor
    document: Tensor


class Keys(NamedTuple):
    """Vectors of momentum encoders for this batch [N, V] and those before [Q, V]: of unit length, without gradients."""

    query: Tensor
    document: Tensor
    queries: Tensor
    documents: Tensor


class Predicted(NamedTuple):
    """Predictions of the masked words of texts: float32 [B, L, V], and int64 [B, L], -100 but for masked positions."""

    logits: Tensor
    labels: Tensor


class Encoded(NamedTuple):
    """One batch after the pair of towers encoded it. What no objective of a stage reads is None.

    Attributes:
        query: float32 [N, V] (dense twin: [N, D]), before the sparsifier.
        document: float32 [M, V] (or [M, D]).
        query_bag: bool [N, V], the queries' own tokens; None where queries are no texts.
        document_bag: bool [M, V], the same for documents.
        named: float32 [M, V], the share of each document's captions that contain a term.
        frequency: float32 [V], the mean of `named` over the training split.
        taught: float32 [N, M], the scores of a teacher.
        dense: the dense vectors that both sides have beside lexical ones.
        expanded: False where the texts of this batch keep only their own tokens.
        keys: what momentum encoders computed.
        predicted: predictions of masked words.
        codebook: float32 [K, D]; its rows, averaged by the weights of a vector, are the features of the vector.
        caption: float32 [N, V], lexical vectors of the positives' captions, with terms of the caption only.
        logits: float32 [N, V], the positives before the activation.
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

    @property
    def judged(self) -> Tensor:
        """The teacher's scores of each query's own documents [N, 1 + K]: its positive, then its hard negatives."""
        if self.taught is None:
            raise ValueError("this objective needs the scores of a teacher; DPR's files with `score` have them")
        rows, each = len(self.query), len(self.negatives) // len(self.query)
        own = torch.arange(rows)[:, None]
        places = torch.cat([own, rows + own * each + torch.arange(each)], dim=1).to(self.taught.device)
        return self.taught.detach().gather(1, places)


def contrast(query: Tensor, document: Tensor, temperature: Temperature = 1.0, symmetric: bool = True) -> Tensor:
    """Cross entropy of every query over all documents, plus every positive over all queries (a sum, not a mean).

    Hard negatives act in the first direction only.
    """
    scores = query @ document.T / temperature  # [N, M]
    target = torch.arange(len(query), device=query.device)
    loss = cross_entropy(scores, target)
    return loss + cross_entropy(scores[:, : len(query)].T, target) if symmetric else loss


def keep_heaviest(weights: Tensor, bag: Tensor | None, topk: int) -> Tensor:
    """The vectors that search uses [N, V]: their `topk` largest weights and, of a text, its own tokens'."""
    keep = mark_top(weights.detach(), topk)
    return weights * (keep if bag is None else keep | bag)


def require_bag(bag: Tensor | None) -> Tensor:
    """The bag, bool [n, V]."""
    if bag is None:
        raise ValueError("this objective needs the own tokens of both sides, and one side has no texts")
    return bag


def weigh_bag(bag: Tensor | None, normalised: bool) -> Tensor:
    """The bag as weights, float32 [n, V]: ones, or of unit length."""
    weights = require_bag(bag).float()
    return normalize(weights, dim=1) if normalised else weights


# Dimensions that the loss keeps of a masked vector; VDR's reference uses this number and ignores its configuration.
TOPK = 768
# FDT's code adds the first to the norms of features. Its scale is at most 100, so its temperature at least the second;
# beyond it, the temperature gets no gradient.
NORM_EPS, LEAST = 1e-10, 0.01


def info_nce(encoded: Encoded, temperature: Temperature = 0.07) -> Tensor:
    """Symmetric InfoNCE over unit vectors, the mean of the two directions (CLIP: Radford et al., ICML 2021)."""
    return contrast(encoded.query, encoded.document, temperature) / 2


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
    """(1 - w) L(masked query, document) + w L(bag of the query, document), w = 1/2 in the paper.

    VDR: Zhou et al., ICLR 2024. L is `contrast`; documents stay dense in it.

    Args:
        encoded: queries with their bags.
        temperature: divides every score.
        topk: dimensions kept of a query, besides its own tokens.
        symmetric: both directions of L.
        nonparametric: w, the weight of VDR's nonparametric entry; 0 omits it.
        mask_weight: of the contrastive mask in the second term; 0 omits the mask.
        mask_norm: each row of the mask gets unit length before it is added.
        normalised: vectors have unit length, so the bag gets it too (cross-modal models).
        bag_temperature: of the second term; default `temperature`.
    """
    query = keep_heaviest(encoded.query, encoded.query_bag, topk)
    parametric = contrast(query, encoded.document, temperature, symmetric)
    if not nonparametric:
        return parametric
    bag, document = weigh_bag(encoded.query_bag, normalised), encoded.document
    if mask_weight:
        mask = make_contrastive_mask(require_bag(encoded.query_bag)).float()
        bag, document = bag + mask_weight * weigh_bag(mask, mask_norm), remove_own(document, mask)
    entry = contrast(bag, document, bag_temperature or temperature, symmetric)
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
    """1/4 [L(masked q, d) + L(q, masked d) + L(bag of q, d) + L(q, bag of d)], the semi-parametric form of `vdr`.

    Options are those of `vdr`, with the mask in both terms that have a bag; `scaled` scales each second direction to
    the size of the first (the reference's experiment).
    """
    query, document = encoded.query, encoded.document
    query_bag, document_bag = weigh_bag(encoded.query_bag, normalised), weigh_bag(encoded.document_bag, normalised)
    loss = contrast_scaled if scaled else contrast
    total = loss(keep_heaviest(query, encoded.query_bag, topk), document, temperature, symmetric)
    total = total + loss(query, keep_heaviest(document, encoded.document_bag, topk), temperature, symmetric)
    if mask_weight:
        query_mask = make_contrastive_mask(require_bag(encoded.query_bag)).float()
        document_mask = make_contrastive_mask(require_bag(encoded.document_bag)).float()
        query_bag = query_bag + mask_weight * weigh_bag(query_mask, mask_norm)
        document_bag = document_bag + mask_weight * weigh_bag(document_mask, mask_norm)
        document, query = remove_own(document, query_mask), remove_own(query, document_mask)
    total = total + loss(query_bag, document, temperature, symmetric)
    return (total + loss(query, document_bag, temperature, symmetric)) / 4


def contrast_scaled(query: Tensor, document: Tensor, temperature: Temperature = 1.0, symmetric: bool = True) -> Tensor:
    """`contrast` with the second direction scaled to the size of the first, the factor held constant."""
    first = contrast(query, document, temperature, symmetric=False)
    if not symmetric:
        return first
    second = contrast(query, document, temperature) - first
    return first + (first / second).detach() * second


def make_contrastive_mask(bag: Tensor) -> Tensor:
    """Bool [n, V]: row i owns the dimensions v with v mod n = i that no text of the batch contains.

    The bag of row i gains these dimensions and its positive loses them. A weight of any other document on such a
    dimension then raises a wrong score, and training lowers it.
    """
    rows, size = bag.shape
    owner = torch.arange(size, device=bag.device) % rows
    absent = ~bag.bool().any(dim=0)
    return (owner == torch.arange(rows, device=bag.device)[:, None]) & absent


def remove_own(weights: Tensor, mask: Tensor) -> Tensor:
    """The vectors [M, V] without the dimensions that the same row of the mask [N, V] owns; other rows do not change."""
    both = min(len(weights), len(mask))
    return torch.cat([weights[:both] * (1 - mask[:both]), weights[both:]])


def stair(encoded: Encoded, temperature: Temperature = 0.07, masked: bool = False, symmetric: bool = True) -> Tensor:
    """InfoNCE of cosines (equation 3), the mean of both directions or, if not `symmetric`, from texts to images only.

    STAIR: Chen et al., EMNLP 2023, from the paper; there is no public code. Its stages are 1. `masked: true`, both
    encoders; 2. the image encoder frozen, without mask; 3. nothing frozen; all with `flops` on both sides, weight 1e-3,
    quadratic. Masked texts keep only their own tokens (equation 8), which grounds the terms of images in words.
    """
    query = encoded.query * require_bag(encoded.query_bag) if masked else encoded.query
    loss = contrast(normalize(query, dim=1), normalize(encoded.document, dim=1), temperature, symmetric)
    return loss / 2 if symmetric else loss


def fdt(encoded: Encoded, temperature: Temperature = 0.07) -> Tensor:
    """1/2 [CE(scale S) + CE(scale S^T)] of the cosines S of features, scale = min(1 / temperature, 100).

    FDT: Chen et al., CVPR 2023; code yuxiaochen1103/FDT, commit ccf6983. Vectors are weights over the rows of a
    codebook C [16384, 512], which both modalities share, and a feature is w C of unit length. The loss sees features
    only: no term of it makes weights sparse, sparsemax does.
    """
    if encoded.codebook is None:
        raise ValueError("fdt needs the codebook of its weights")
    query, document = (compute_features(side, encoded.codebook) for side in (encoded.query, encoded.document))
    return contrast(query, document, torch.as_tensor(temperature).clamp(min=LEAST)) / 2


def compute_features(weights: Tensor, codebook: Tensor) -> Tensor:
    """The rows of the codebook [K, D], averaged by weights [N, K], of unit length: [N, D]."""
    sums = weights @ codebook
    return sums / (sums.norm(dim=1, keepdim=True) + NORM_EPS)


# Below the frequency of any term that occurs.
RAREST = 1e-6
# Scores beyond this limit, on both sides of 0, get no gradient.
LIMIT = 100.0
# Added to the sum of a gate, and the least weight by which one is divided.
EPS, TINY = 1e-8, 1e-30


def naming(encoded: Encoded, temperature: Temperature = 0.05, prior: float = 1.0) -> Tensor:
    """Cross entropy between the terms of an image's captions and softmax_v(w_v / temperature + prior log frequency_v).

    It compares each weight with those of all other terms of the image (Joulin et al., ECCV 2016; Huang et al., NeurIPS
    2024). The frequency is a prior (Menon et al., ICLR 2021), so that common words do not become heavy; with a `prior`
    below 1 they become heavier, and the first terms of an image are more often words of its captions.
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

    V-SPLADE: Cho et al., arXiv 2605.30917; the equations are those of the published code (naver/v-splade, commit
    3f97737), whose loss is v_splade + 0.1 caption_gated + 0.01 FLOPS(positives) + 0.01 FLOPS(hard negatives). Queries
    are their vectors as they are; own (learned weights of their own words only); or bag (all weights are 1).
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
    """-mean_i sum_v o_iv log sigmoid(h_iv): images activate the terms that the caption gates; FLOPS lowers the others.

    o_iv is (w_iv + alpha mean_u w_iu) c_iv, each row divided by its sum, of positives w [N, V] with their `logits` h,
    and `caption` c; alpha lets terms begin that the image does not have. Neither w nor c gets a gradient in it. The
    caption raises the `target`; `focus` is the temperature of o: below 1, fewer terms count.
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


def dpr(encoded: Encoded, temperature: Temperature = 1.0, symmetric: bool = False) -> Tensor:
    """-mean_i log softmax_j(s_ij)_i over all documents of the batch, hard negatives of all queries among them.

    Karpukhin et al., EMNLP 2020. Vectors are not normalised. `symmetric` adds -mean_i log softmax_j(s_ji)_i, the loss
    of each positive over all queries, as VDR's repository does (`sym_loss`) for its DPR; the paper has one direction.
    """
    return contrast(encoded.query, encoded.document, temperature, symmetric)


def splade_pairwise(encoded: Encoded, temperature: Temperature = 1.0) -> Tensor:
    """PairwiseNLL: cross entropy of each query's positive among the query's own documents."""
    scores = score_own(encoded, temperature)
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def splade_in_batch(encoded: Encoded, temperature: Temperature = 1.0) -> Tensor:
    """InBatchPairwiseNLL of SPLADE v2: cross entropy of each positive among all positives and its own hard negatives.

    The published configuration misspells its switch (`augment_pair`), so that its runs minimise `splade_pairwise`.
    """
    first = encoded.query @ encoded.positives.T / temperature  # [N, N]
    scores = torch.cat([first, score_own(encoded, temperature)[:, 1:]], dim=1)  # [N, N + K]
    return cross_entropy(scores, torch.arange(len(first), device=first.device))


def splade_shared_negatives(encoded: Encoded, temperature: Temperature = 1.0) -> Tensor:
    """`contrastive` of SPLADE's later trainer (IRTrainer): each positive among itself and all hard negatives."""
    first = score_own(encoded, temperature)[:, :1]
    scores = torch.cat([first, encoded.query @ encoded.negatives.T / temperature], dim=1)  # [N, 1 + N K]
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def splade_margin_mse(encoded: Encoded, temperature: Temperature = 1.0, all_pairs: bool = False) -> Tensor:
    """Mean squared error of the margins s(positive) - s(negative) and of a teacher's (Hofstätter et al., 2020).

    The temperature divides the scores, not the teacher's. `all_pairs` takes the margins of all ordered pairs of own
    documents, with the 0 of a document and itself, as SPLADE's later trainer does.
    """
    difference = score_own(encoded, temperature) - encoded.judged  # [N, 1 + K]
    # Margin minus the teacher's margin: difference of a positive minus difference of a negative.
    first = difference[:, :, None] if all_pairs else difference[:, :1, None]
    second = difference[:, None, :] if all_pairs else difference[:, None, 1:]
    margins = first - second
    return mse_loss(margins, torch.zeros_like(margins))


def splade_kl(encoded: Encoded, temperature: Temperature = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Mean over queries of KL(teacher || model), softmaxes over the query's own documents.

    Each temperature divides the scores of its side (SPLADE: 1).
    """
    taught = (encoded.judged / teacher_temperature).softmax(dim=1)
    return kl_div(score_own(encoded, temperature).log_softmax(dim=1), taught, reduction="batchmean")


def score_own(encoded: Encoded, temperature: Temperature = 1.0) -> Tensor:
    """Scores of each query with its own documents [N, 1 + K], the positive first."""
    query, positives = encoded.query, encoded.positives
    negatives = encoded.negatives.view(len(query), -1, query.shape[1])  # [N, K, V]
    own = torch.cat([positives[:, None], negatives], dim=1)  # [N, 1 + K, V]
    return torch.einsum("nv,nkv->nk", query, own) / temperature


def distil(
    encoded: Encoded,
    model_temperature: Temperature = 1.0,
    topk: int = 768,
    teacher_temperature: float = 0.05,
    nonparametric: float = 0.0,
    normalised: bool = False,
    bag_temperature: Temperature | None = None,
    symmetric: bool = True,
) -> Tensor:
    """Cross entropy, in both directions, of the scores of a batch and of the teacher's (Hinton et al., 2015).

    softmax_rows(T / t) are the targets of softmax_rows(masked(Q) D^T / t_model), and of the columns likewise. The
    teacher is a dense pair (images), or the system whose scores the training data have (texts); it gets no gradient.

    Args:
        encoded: the batch, with `taught`.
        model_temperature, bag_temperature: of the model, and of the scores of bags if it is another.
        topk: dimensions kept of a query, besides its own tokens; all of a dense one.
        teacher_temperature: divides the teacher's scores.
        nonparametric: w, the weight of the same loss of the scores of the queries' bags; the first loss keeps weight 1.
        normalised: bags have unit length.
        symmetric: both directions; BM25's scores of one document for different queries do not compare.
    """
    if encoded.taught is None:
        raise ValueError("distil needs the scores of a teacher; of texts, files of `mine` have them")
    # The dimensions of dense vectors are no terms.
    lexical = encoded.query_bag is not None and encoded.query_bag.shape == encoded.query.shape
    query = keep_heaviest(encoded.query, encoded.query_bag, topk) if lexical else encoded.query
    taught = encoded.taught / teacher_temperature
    total = imitate(query @ encoded.document.T / model_temperature, taught, symmetric)
    if nonparametric:
        bags = weigh_bag(encoded.query_bag, normalised) @ encoded.document.T / (bag_temperature or model_temperature)
        total = total + nonparametric * imitate(bags, taught, symmetric)
    return total


def imitate(scores: Tensor, taught: Tensor, symmetric: bool = True) -> Tensor:
    """Cross entropy of the softmax of scores [N, M] and of a teacher's, over the rows and, if so, over the columns."""
    loss = cross_entropy(scores, taught.softmax(dim=1))
    return loss + cross_entropy(scores.T, taught.T.softmax(dim=1)) if symmetric else loss
