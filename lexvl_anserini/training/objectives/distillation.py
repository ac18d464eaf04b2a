"""`distil`: the scores of a teacher as targets beside the pairs themselves (Hinton et al., 2015)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from lexvl_anserini.training.objectives.contrastive import Encoded, Temperature, bag_of, masked


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
    """Cross entropy, in both directions, of the scores of a batch and of the teacher's, which get no gradient.

    softmax_rows(T / t) are the targets of softmax_rows(masked(Q) D^T / t_model), and of the columns likewise. A caption
    often fits several images of a batch; the teacher says how well, where the pairs alone say 0. The teacher is a dense
    pair (images), or the system whose scores the training data have (texts).

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

    Raises:
        ValueError: the batch has no scores of a teacher, or no bags where `nonparametric` needs them.
    """
    if encoded.taught is None:
        raise ValueError("distil needs the scores of a teacher; of texts, files of `mine` have them")
    # The dimensions of dense vectors are no terms.
    lexical = encoded.query_bag is not None and encoded.query_bag.shape == encoded.query.shape
    query = masked(encoded.query, encoded.query_bag, topk) if lexical else encoded.query
    taught = encoded.taught / teacher_temperature
    total = imitation(query @ encoded.document.T / model_temperature, taught, symmetric)
    if nonparametric:
        bags = bag_of(encoded.query_bag, normalised) @ encoded.document.T / (bag_temperature or model_temperature)
        total = total + nonparametric * imitation(bags, taught, symmetric)
    return total


def imitation(scores: Tensor, taught: Tensor, symmetric: bool = True) -> Tensor:
    """Cross entropy of the softmax of scores [N, M] and of a teacher's, over the rows and, if so, over the columns."""
    loss = cross_entropy(scores, taught.softmax(dim=1))
    return loss + cross_entropy(scores.T, taught.T.softmax(dim=1)) if symmetric else loss
