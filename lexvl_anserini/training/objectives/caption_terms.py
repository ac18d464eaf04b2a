"""The terms of an image's captions, and `naming`, the auxiliary objective that learns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lexvl_anserini.encoders.parts.texts.tokens import TokenColumns
from lexvl_anserini.training.common.inputs import Tokens
from lexvl_anserini.training.objectives.contrastive import Encoded, Temperature

# Below the frequency of any term that occurs.
RAREST = 1e-6


@dataclass(frozen=True)
class CaptionTerms:
    """Which terms the captions of the training images contain.

    shares     CSR [n images, V] float32, see `term_shares`
    frequency  float32 [V], the mean of `shares` over all images, on the device of the batches
    """

    shares: sparse.csr_matrix
    frequency: Tensor

    @classmethod
    def of(cls, tokens: Tokens, columns: TokenColumns, device: torch.device) -> CaptionTerms:
        """The terms of all captions of a training split."""
        shares = term_shares(tokens, columns)
        mean = np.asarray(shares.mean(axis=0), dtype=np.float32)[0]
        return cls(shares, torch.from_numpy(mean).to(device))

    def add_to(self, rounds: Sequence[Encoded], images: np.ndarray) -> list[Encoded]:
        """The rounds of a batch with the terms of its images, given by their positions [B] in the training split."""
        named = torch.from_numpy(self.shares[images].toarray()).to(self.frequency.device)
        return [encoded._replace(named=named, frequency=self.frequency) for encoded in rounds]


def term_shares(tokens: Tokens, columns: TokenColumns) -> sparse.csr_matrix:
    """CSR [n images, V] float32: the share of an image's captions that contain a term."""
    counts = np.diff(tokens.first)
    owner = np.repeat(np.arange(len(counts)), counts)
    real = np.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    caption, place = np.nonzero(real & (columns.of_token[tokens.ids] >= 0))
    terms = columns.of_token[tokens.ids[caption, place]]
    held = np.unique(np.stack([caption, terms]), axis=1)  # a term that a caption repeats counts once
    images = owner[held[0]]
    shares = (1 / counts[images]).astype(np.float32)
    return sparse.csr_matrix((shares, (images, held[1])), shape=(len(counts), len(columns.vocabulary)))


def naming(encoded: Encoded, temperature: Temperature = 0.05, prior: float = 1.0) -> Tensor:
    """Cross entropy between the terms of an image's captions and softmax_v(w_v / temperature + prior log frequency_v).

    It compares each weight with the weights of all other terms of the same image. The contrastive losses compare it
    with the weight of the same term in the other images of the batch. One image therefore teaches far more here.
    Classifying images by all words of their captions is Joulin et al. (ECCV 2016) and Huang et al. (NeurIPS 2024). The
    frequency is a prior (Menon et al., ICLR 2021): w_v / temperature tends to the pointwise mutual information of term
    and image, as in the contrastive losses, and common words do not become heavy. With a
    `prior` below 1 they become heavier, and the first terms of an image are more often words of its captions.

    Raises:
        ValueError: the batch has no terms of captions.
    """
    named, frequency = encoded.named, encoded.frequency
    if named is None or frequency is None:
        raise ValueError("naming needs images with captions as documents")
    logits = encoded.document / temperature + prior * frequency.clamp(min=RAREST).log()  # [M, V]
    share = named / named.sum(dim=1, keepdim=True).clamp(min=RAREST)
    return -(share * logits.log_softmax(dim=1)).sum(dim=1).mean()
