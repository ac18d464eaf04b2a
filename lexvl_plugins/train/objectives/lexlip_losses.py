"""The objectives of LexLIP (Luo et al., ICCV 2023; code ChiYeungLaw/LexLIP-ICCV23, commit 1f20f45).

Phase 1, the lexicon bottleneck: `lexlip` plus `masked_words`, each with weight 1. Words of a text are masked twice and
independently: 30 percent for the encoder, 50 percent for a weak decoder, whose first state is the bottleneck of the
masked text or of the image.
Phase 2, momentum: `lexlip_momentum`, whose negatives are the keys of earlier batches.
Both with the regulariser `flops` of unit vectors (`normalised: true`), weight 0.002 on each side, without a ramp.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lexvl_plugins.train.objectives.encoded import Encoded, Temperature, contrast

TEMPERATURE = 0.05
# Shares of a text's tokens that are masked, for the encoder and for the decoder.
ENCODER_SHARE, DECODER_SHARE = 0.3, 0.5
# 80 percent of the masked tokens become [MASK], 10 percent a random token, and 10 percent stay.
MASKED, CHANGED = 0.8, 0.1
# The label of a token without a loss.
IGNORED = -100


def lexlip(encoded: Encoded, temperature: Temperature = TEMPERATURE) -> Tensor:
    """InfoNCE of cosines over the batch, the mean of both directions (phase 1, and fine-tuning)."""
    return contrast(normalize(encoded.query, dim=1), normalize(encoded.document, dim=1), temperature) / 2


def lexlip_momentum(encoded: Encoded, temperature: Temperature = TEMPERATURE) -> Tensor:
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

    Args:
        logits: float32 [B, L, V].
        embeddings: float32 [V, D], of the words; they get no gradient.
        padding: bool [B, L], positions that do not count.
    """
    if padding is not None:
        logits = logits.masked_fill(padding[:, :, None], float("-inf"))
    return logits.amax(dim=1).softmax(dim=1) @ embeddings.detach()


def mask_words(
    ids: Tensor, words: Tensor, share: float, mask_id: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Masks whole words: ids and labels, both int64 [B, L].

    Words are drawn until they have `share` of a text's tokens, at least one word; a word that would pass it is left.

    Args:
        ids: int64 [B, L].
        words: int64 [B, L], the number of each token's word in its text; -1 for special tokens and padding.
        share: of the tokens of words.
        mask_id: of [MASK].
        size: of the vocabulary.
        generator: on the CPU.
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
