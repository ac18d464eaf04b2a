"""The objective of STAIR (Chen et al., EMNLP 2023), from the paper; there is no public code.

Three stages: 1. `masked: true`, both encoders; 2. the image encoder frozen, without mask; 3. nothing frozen. All with
the regulariser `flops` on both sides, weight 1e-3 each, quadratic. The paper leaves open the temperature, whether the
loss has both directions, and whether the mask has [CLS] and [SEP].
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from lexvl_anserini.training.objectives.contrastive import Encoded, Temperature, contrastive, present


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
