"""D2S, Joint and LexLIP: objectives whose scores teach each other, or that read more than the vectors of a batch.

Row i of the texts and row i of the images are a pair. With lexical vectors Z and dense ones U, scores [images, texts]
are S = Z_i Z_t^T and D = U_i U_t^T.

D2S distils dense scores into lexical ones (Nguyen et al., ECIR 2024); its regulariser is `l1` of both sides, halved:

    loss = 1/2 [CE(S, softmax_rows(D / t)) + CE(S^T, softmax_rows(D^T / t))]

Joint (arXiv 2508.16707) trains both scores with labels and with their weighted sum, and has D2S' regulariser:

    s_d = D / t, s_l = S, s = w1 s_d + w2 s_l, P = softmax_rows(s)
    L   = (a NCE(s_d) + b NCE(s_l) + c NCE(s)) / 2
    L'  = (a/2 [H(P, s_d) + H(P, s_d^T)] + b/2 [H(P, s_l) + H(P, s_l^T)]) / 2
    loss = (L + L') / 2

This is the authors' code: its teacher of the transposed scores is P itself, although its rows are images; `transposed`
uses P of s^T. By summaries of their paper (`paper`), with P' of s^T, it is

    loss = a NCE(s_d) + b NCE(s_l) + c NCE(s) + (D(s_d) + D(s_l)) / 2,  D(x) = [H(P, x) + H(P', x^T)] / 2

LexLIP (Luo et al., ICCV 2023; code ChiYeungLaw/LexLIP-ICCV23, commit 1f20f45): phase 1 is `lexlip` plus `masked_words`,
phase 2 `lexlip_momentum`; both with `flops` of unit vectors, weight 0.002 on each side, without a ramp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softmax

from lexvl_plugins.train.objectives.contrastive import Dense, Encoded, Temperature, contrast, require_bag

# Joint: limits of the temperature in each forward pass, and the heads that train together (dense and lexical).
LOWEST, HIGHEST, HEADS = 0.001, 0.5, 2
# D2S: the authors' temperature of the teacher, and their share of the epochs after which every text is expanded.
TEMPERATURE, EXPANDED_AFTER = 0.001, 0.95


class Mix(NamedTuple):
    """The weights of scores (w1 dense, w2 lexical) and of losses (lam1 dense, lam2 lexical)."""

    w1: float
    w2: float
    lam1: float
    lam2: float


# What a teacher teaches.
Distillation = Literal["both", "one-way", "none"]
# The published values, by backbone and dataset.
MixName = Literal["albef-coco", "albef-flickr", "blip-coco", "blip-flickr"]
MIXES: Mapping[str, Mix] = {
    "albef-coco": Mix(0.2, 0.5, 0.9, 0.3),
    "albef-flickr": Mix(0.1, 0.2, 0.3, 0.3),
    "blip-coco": Mix(0.1, 0.1, 0.9, 0.3),
    "blip-flickr": Mix(0.1, 0.2, 0.7, 0.7),
}


class JointLoss(NamedTuple):
    """The two halves of the loss: from labels, and from a teacher's scores."""

    labelled: Tensor
    distilled: Tensor

    @property
    def total(self) -> Tensor:
        """The mean of both halves."""
        return (self.labelled + self.distilled) / 2


def nce(scores: Tensor) -> Tensor:
    """In-batch cross entropy with the diagonal as targets, the mean of both directions."""
    target = torch.arange(len(scores), device=scores.device)
    return (cross_entropy(scores, target) + cross_entropy(scores.T, target)) / 2


def soft_nce(scores: Tensor, teacher: Tensor, transposed: Tensor) -> Tensor:
    """The mean of both directions' cross entropy; `teacher` for the scores' rows, `transposed` for their columns."""
    return (cross_entropy(scores, teacher) + cross_entropy(scores.T, transposed)) / 2


def clamp_temperature(temperature: Temperature) -> Tensor:
    """The temperature within its limits; outside them it gets no gradient."""
    return torch.as_tensor(temperature).clamp(LOWEST, HIGHEST)


def find_mix(name: MixName | Sequence[float]) -> Mix:
    """The weights of a published configuration, or of four numbers: w1, w2, lam1, lam2."""
    if isinstance(name, str) and name in MIXES:
        return MIXES[name]
    if isinstance(name, str) or len(name) != len(Mix._fields):
        raise ValueError(f"mix {name!r}, expected one of {', '.join(MIXES)}, or four numbers w1, w2, lam1, lam2")
    return Mix(*name)


def joint(
    encoded: Encoded,
    temperature: Temperature = 0.07,
    mix: MixName | Sequence[float] = "blip-coco",
    transposed: bool = False,
    stop_gradient: bool = False,
    inter: float = 1.0,
    distillation: Distillation = "both",
    paper: bool = False,
    w1: float | None = None,
    w2: float | None = None,
) -> Tensor:
    """The mean of both halves (`compute_halves`), in the paper's form their sum; the temperature has limits.

    `w1` and `w2` are instead of those of the mix.
    """
    named = find_mix(mix)
    weighed = named._replace(w1=named.w1 if w1 is None else w1, w2=named.w2 if w2 is None else w2)
    chosen = clamp_temperature(temperature), weighed
    loss = compute_halves(encoded, *chosen, transposed, stop_gradient, inter, distillation, paper)
    return loss.labelled + loss.distilled if paper else loss.total


def compute_halves(
    encoded: Encoded,
    temperature: Temperature,
    mix: Mix,
    transposed: bool = False,
    stop_gradient: bool = False,
    inter: float = 1.0,
    distillation: Distillation = "both",
    paper: bool = False,
) -> JointLoss:
    """Both halves of Joint's loss, of texts as queries and images as documents with dense vectors of unit length.

    Args:
        encoded, temperature, mix: the batch, what divides its dense scores, and the weights of scores and losses.
        transposed: the teacher of the direction of the texts is softmax_rows(s^T); off as published.
        stop_gradient: the teacher gets no gradient; off as published.
        inter: c, the weight of the labels' loss of the mixed scores; 0 omits it.
        distillation: both, the mixed scores teach dense and lexical ones; one-way, the dense scores teach the lexical
            ones and learn nothing from them; none, where `inter: 0` leaves the contrastive losses of both alone.
        paper: the paper's form (see above) instead of the code's.
    """
    if distillation == "none" and (transposed or stop_gradient):
        raise ValueError("distillation none has no teacher; leave transposed and stop_gradient out")
    vectors = require_dense(encoded)
    dense = vectors.document @ vectors.query.T / temperature  # [images, texts]
    lexical = encoded.document @ choose_texts(encoded).T
    mixed = mix.w1 * dense + mix.w2 * lexical
    labelled = mix.lam1 * nce(dense) + mix.lam2 * nce(lexical) + inter * nce(mixed)
    one_way = distillation == "one-way"
    taught = dense if one_way else mixed
    taught = taught.detach() if stop_gradient or one_way else taught
    teacher = softmax(taught, dim=1)
    other = softmax(taught.T, dim=1) if transposed or paper else teacher
    distilled = torch.zeros_like(labelled)
    for student, weight in ((dense, mix.lam1), (lexical, mix.lam2)):
        if distillation == "both" or (one_way and student is lexical):
            distilled = distilled + (1 if paper else weight) * soft_nce(student, teacher, other)
    return JointLoss(labelled if paper else labelled / HEADS, distilled / HEADS)


def d2s(encoded: Encoded, teacher_temperature: float = TEMPERATURE, published: bool = False) -> Tensor:
    """The mean of both directions of distillation; the dense scores, divided by the temperature, get no gradient.

    `published` repeats the error of the published code, whose expanded texts are the images of the batch.
    """
    dense = require_dense(encoded)
    scores = encoded.document @ choose_texts(encoded, published).T  # [images, texts]
    with torch.no_grad():
        teacher = dense.document @ dense.query.T / teacher_temperature
    return soft_nce(scores, softmax(teacher, dim=1), softmax(teacher.T, dim=1))


def choose_texts(encoded: Encoded, published: bool = False) -> Tensor:
    """The lexical vectors of a batch's texts [N, V]: expanded, or with their own tokens alone."""
    if not encoded.expanded:
        return encoded.query * require_bag(encoded.query_bag)
    return encoded.document if published else encoded.query


def require_dense(encoded: Encoded) -> Dense:
    """The dense vectors of a batch."""
    if encoded.dense is None:
        raise ValueError("this objective needs the dense vectors of both sides")
    return encoded.dense


def compute_mask_probability(epoch: int, epochs: int, end: float = EXPANDED_AFTER) -> float:
    """D2S' expansion control: the probability that the texts of a batch keep only their own tokens, by epoch from 1.

    It falls linearly from 1 in the first epoch to 0 at the share `end` of the epochs.
    """
    return max(0.0, 1.0 - (epoch - 1) / (end * epochs))


LEXLIP_TEMPERATURE = 0.05
# Shares of a text's tokens that are masked, for the encoder and for the decoder.
ENCODER_SHARE, DECODER_SHARE = 0.3, 0.5
# 80 percent of the masked tokens become [MASK], 10 percent a random token, and 10 percent stay.
MASKED, CHANGED = 0.8, 0.1
# The label of a token without a loss.
IGNORED = -100


def lexlip(encoded: Encoded, temperature: Temperature = LEXLIP_TEMPERATURE) -> Tensor:
    """InfoNCE of cosines over the batch, the mean of both directions (phase 1, and fine-tuning)."""
    return contrast(normalize(encoded.query, dim=1), normalize(encoded.document, dim=1), temperature) / 2


def lexlip_momentum(encoded: Encoded, temperature: Temperature = LEXLIP_TEMPERATURE) -> Tensor:
    """InfoNCE of cosines with keys of momentum encoders, the mean of both directions (phase 2).

    For a text q_i with the key k_i of its image: -log softmax_0(<q_i, k_i> / t, <q_i, queue> / t), where the queue has
    image keys of earlier batches; for an image likewise with keys of texts.
    """
    if encoded.keys is None:
        raise ValueError("lexlip_momentum needs the keys of momentum encoders")
    keys = encoded.keys
    there = contrast_with_queue(encoded.query, keys.document, keys.documents, temperature)
    return (there + contrast_with_queue(encoded.positives, keys.query, keys.queries, temperature)) / 2


def contrast_with_queue(vectors: Tensor, keys: Tensor, queue: Tensor, temperature: Temperature) -> Tensor:
    """Cross entropy of vectors [N, V], made unit vectors, with their own keys [N, V] against a queue [Q, V]."""
    unit = normalize(vectors, dim=1)
    own = (unit * keys.detach()).sum(dim=1, keepdim=True)  # [N, 1]
    scores = torch.cat([own, unit @ queue.detach().T], dim=1) / temperature  # [N, 1 + Q]
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def enqueue(queue: Tensor, place: int, keys: Tensor) -> tuple[Tensor, int]:
    """The queue [Q, V] with keys [N, V] written from a place on, and the next place. Its oldest keys go.

    The reference drops keys that do not fit at the end of the queue; here they go to its beginning.
    """
    size, count = len(queue), len(keys)
    if count > size:
        raise ValueError(f"{count} keys for a queue of {size} rows; expected at most as many")
    rows = (torch.arange(count, device=queue.device) + place) % size
    return queue.index_copy(0, rows, keys.detach()), (place + count) % size


def masked_words(encoded: Encoded) -> Tensor:
    """The sum over all predictions of the mean cross entropy of masked words (phase 1).

    The reference has three: of the encoder, of the decoder after the text's bottleneck, and after the image's.
    """
    if not encoded.predicted:
        raise ValueError("masked_words needs predictions of masked words")
    losses = [
        cross_entropy(part.logits.flatten(0, 1), part.labels.flatten(), ignore_index=IGNORED, reduction="sum")
        / (part.labels != IGNORED).sum().clamp(min=1)
        for part in encoded.predicted
    ]
    return torch.stack(losses).sum()


def compute_bottleneck(logits: Tensor, embeddings: Tensor, padding: Tensor | None = None) -> Tensor:
    """softmax_v(max_j logit_jv) E, [B, D]: the state through which the weak decoder learns about an input.

    Logits are [B, L, V]; the embeddings of words [V, D] get no gradient; padding, bool [B, L], does not count.
    """
    if padding is not None:
        logits = logits.masked_fill(padding[:, :, None], float("-inf"))
    return logits.amax(dim=1).softmax(dim=1) @ embeddings.detach()


def mask_words(
    ids: Tensor, words: Tensor, share: float, mask_id: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Masks whole words: ids and labels, both int64 [B, L].

    Words are drawn until they have `share` of a text's tokens, at least one word; a word that would pass it is left.
    `words`, int64 [B, L], number those of a text, -1 for special tokens and padding; the generator is on the CPU.
    """
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for row, owner in enumerate(words):
        numbers, counts = owner[owner >= 0].unique(return_counts=True)
        most = max(1, round(share * int(counts.sum())))
        taken = 0
        for place in torch.randperm(len(numbers), generator=generator).tolist():
            if taken and taken + int(counts[place]) > most:
                continue
            taken += int(counts[place])
            chosen[row] |= owner == numbers[place]
            if taken >= most:
                break
    labels = ids.where(chosen, torch.full_like(ids, IGNORED))
    draw = torch.rand(ids.shape, generator=generator)
    other = torch.randint(size, ids.shape, generator=generator)
    masked = ids.where(~(chosen & (draw < MASKED)), torch.full_like(ids, mask_id))
    return masked.where(~(chosen & (draw >= MASKED) & (draw < MASKED + CHANGED)), other), labels
