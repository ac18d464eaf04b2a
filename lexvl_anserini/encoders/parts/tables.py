"""Weights of tokens as one table: what a query without a network looks up.

A table is a vector over the tokens: of Li-LSR it is computed once, others have IDF, SPLADE-doc has ones. `BagTower`
(`bags.py`) looks weights up, and loads no model library.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.parts.pooling import Activation, log1p_relu


class LiLsr(nn.Module):
    """table_t = activation(<w, E_t + A_t B> + b), over the input embeddings E of a network, which stay as they are.

    Li-LSR (Nardini et al., SIGIR 2025) has the activation log(1 + relu) and no A B. V-SPLADE has both as options; its
    exports have softplus and no A B, and its module has the names of weights that this one has.

    Args:
        embeddings: E, float32 [T, D]; copied, and no parameter.
        rank: columns of A and rows of B; 0 for neither.
        activation: a number -> a weight >= 0.
    """

    def __init__(self, embeddings: Tensor, rank: int = 0, activation: Activation = log1p_relu):
        super().__init__()
        tokens, width = embeddings.shape
        self.activation = activation
        self.embeddings = nn.Module()
        self.embeddings.register_buffer("weight", embeddings.detach().clone())
        self.lora_A = nn.Parameter(torch.randn(tokens, rank) * 0.01) if rank else None
        self.lora_B = nn.Parameter(torch.zeros(rank, width)) if rank else None
        self.projection = nn.Linear(width, 1)

    def forward(self) -> Tensor:
        """The table, [T]."""
        logit: Tensor = self.projection(self.embeddings.get_buffer("weight"))[:, 0]
        if self.lora_A is not None and self.lora_B is not None:
            logit = logit + self.lora_A @ (self.lora_B @ self.projection.weight[0])
        return self.activation(logit)


class Constant(nn.Module):
    """A table [T] that does not change."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self) -> Tensor:
        """The table, [T]."""
        return self.get_buffer("weight")


def idf(texts: Sequence[np.ndarray], tokens: int) -> Tensor:
    """BM25's inverse document frequency, log(1 + (N - n_t + 1/2) / (n_t + 1/2)), float32 [tokens].

    Args:
        texts: the distinct tokens of each of N texts; n_t of them have token t.
        tokens: T.
    """
    frequency = np.bincount(np.concatenate([np.empty(0, np.int64), *texts]), minlength=tokens)
    return torch.from_numpy(np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5)).astype(np.float32))
