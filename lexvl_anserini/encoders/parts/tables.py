"""Weights of tokens as one table: what a query without a network looks up.

The table is a vector over the tokens, computed once. `BagTower` (`bags.py`) looks it up and loads no model library.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.parts.pooling import Activation, log1p_relu


class LiLsr(nn.Module):
    """table_t = activation(<w, E_t + A_t B> + b), over the input embeddings E of a network, which stay as they are.

    Li-LSR (Nardini et al., SIGIR 2025) has the activation log(1 + relu) and no A B. V-SPLADE has both as options; its
    exports have softplus and no A B, and its module has the names of weights that this one has.

    Args:
        embeddings: E, float32 [T, D]; copied.
        rank: columns of A and rows of B; 0 for neither.
        activation: a number -> a weight >= 0.
    """

    def __init__(self, embeddings: Tensor, rank: int = 0, activation: Activation = log1p_relu):
        super().__init__()
        tokens, width = embeddings.shape
        self.activation = activation
        self.embeddings = nn.Embedding(tokens, width, _weight=embeddings.detach().clone())
        self.embeddings.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(tokens, rank) * 0.01) if rank else None
        self.lora_B = nn.Parameter(torch.zeros(rank, width)) if rank else None
        self.projection = nn.Linear(width, 1)

    def forward(self) -> Tensor:
        """The table, [T]."""
        logit: Tensor = self.projection(self.embeddings.weight)[:, 0]
        if self.lora_A is not None and self.lora_B is not None:
            logit = logit + self.lora_A @ (self.lora_B @ self.projection.weight[0])
        return self.activation(logit)
