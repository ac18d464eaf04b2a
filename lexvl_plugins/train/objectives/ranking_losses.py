"""Objectives of text retrievers over hard negatives: DPR and SPLADE (naver/splade, commit 8dcd33a); a teacher's scores.

A batch has the layout of `encoded`, with the scores s_ij = <q_i, d_j> / temperature. A query's own documents are its
positive and its K hard negatives; those of the other queries are in-batch negatives. SPLADE's temperature is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss

from lexvl_plugins.train.objectives.encoded import Encoded, Temperature, contrast, keep_heaviest, weigh_bag


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

    softmax_rows(T / t) are the targets of softmax_rows(masked(Q) D^T / t_model), and of the columns likewise. A caption
    often fits several images of a batch; the teacher says how well, where the pairs alone say 0. The teacher is a dense
    pair (images), or the system whose scores the training data have (texts); it gets no gradient.

    Args:
        encoded: the batch, with `taught`.
        model_temperature: of the model that learns.
        topk: dimensions kept of a query, besides its own tokens; all of a dense one.
        teacher_temperature: divides the teacher's scores.
        nonparametric: w, the weight of the same loss of the scores of the queries' bags, as in `vdr`; the first loss
            keeps weight 1, and 0 omits the second.
        normalised: bags have unit length.
        bag_temperature: of the scores of bags; default `model_temperature`.
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
