"""D2S: dense vectors of frozen BLIP or ALBEF as weights over DistilBERT's vocabulary (Nguyen et al., ECIR 2024).

w = log1p(relu(E LN(W u + b) + c)), one head for texts and images; u is the ITC vector of either. E, LN and c are those
of DistilBERT's masked-LM head without its transform. A text may be masked by its own tokens (no expansion).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.dense.dense_crossmodal import head_inputs
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import Expansion, LiveOptions, head_tower
from lexvl_anserini.encoders.parts.pooling import Head
from lexvl_anserini.encoders.parts.towers import Direction, in_direction, with_topk
from lexvl_anserini.ground.errors import CheckpointError

# The epsilon of DistilBERT, whose LayerNorm the head uses.
HEAD_EPS = 1e-12
# The authors' tokenizer, if config.json does not name one in `mlm_head`.
TOKENIZER = "distilbert-base-uncased"


class D2SHead(nn.Module):
    """The weights of a checkpoint, by their names there: vectors [.., D] -> features [.., W] before the vocabulary."""

    def __init__(self, dense_size: int, width: int, size: int):
        super().__init__()
        self.proj = nn.Linear(dense_size, width)
        self.vocab_layer_norm = nn.LayerNorm(width, eps=HEAD_EPS)
        self.vocab_projector = nn.Linear(width, size)

    def forward(self, vectors: Tensor) -> Tensor:
        """Features [.., W]; no activation between the two layers, as the reference omits DistilBERT's transform."""
        return self.vocab_layer_norm(self.proj(vectors))


def load_d2s(
    source: Source,
    direction: Direction = "text-to-image",
    text: Expansion = "expanded",
    topk: int | None = None,
    query_topk: int | None = None,
    backbone_checkpoint: str | None = None,
    clean: bool | None = None,
    resolution: int | None = None,
    head_width: int | None = None,
) -> Encoder:
    """A checkpoint of the authors: config.json (model type `d2s`) and weights, or the older bare `model.pt`.

    Heads that `train` wrote over a dense pair load too (`parts/pretrained.py`); they encode texts and images.

    Args:
        source: without tokenizer; `mlm_head` in config.json names one on the hub, or `tokenizer` names its folder.
        direction: the modalities of queries and documents; text-to-text compares captions.
        text: expanded; masked (a caption's own tokens with [CLS] and [SEP], as in training without expansion); words
            (only its own WordPieces, as the authors search without expansion). Images are always expanded.
        topk: dimensions kept per expanded document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        backbone_checkpoint: the BLIP or ALBEF on whose vectors the head was trained, to encode texts and images;
            without it the corpus has the vectors: `embeddings:<folder>` or `embeddings:lsr42/mscoco-blip-dense`.
        clean: of captions for the backbone, see `blip`.
        resolution: of images for the backbone, see `blip`.
        head_width: of the backbone, see `blip`.
    """
    checkpoint = source.required("d2s")
    head = load_head(checkpoint)
    head.eval().to(source.device)
    width, dimensions = head.proj.in_features, head.vocab_projector.out_features
    live = LiveOptions(backbone_checkpoint, clean, resolution, head_width)
    # The tokens of the authors' tokenizer mask texts.
    tokenizer = str(config_of(checkpoint).get("mlm_head") or TOKENIZER)
    inputs = head_inputs(source, checkpoint, live, tokenizer, width, dimensions, text != "expanded")
    projection = Head(head, head.vocab_projector.weight.detach(), head.vocab_projector.bias.detach())

    tower = partial(head_tower, head=projection, inputs=inputs, device=source.device)
    texts, images = partial(tower, inputs.sides.text, text), partial(tower, inputs.sides.image, "expanded")
    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("d2s", "impact", query=query, document=document)


def load_head(checkpoint: Checkpoint) -> D2SHead:
    """The head, its sizes read from the weights."""
    where = str(checkpoint.path)
    if (model_type := config_of(checkpoint).get("model_type", "d2s")) != "d2s":
        raise CheckpointError(f"{where}: model type {model_type!r}; this encoder loads D2S heads (model type 'd2s')")
    weights = read_weights(checkpoint.path)
    proj, vocabulary = weights.get("proj.weight"), weights.get("vocab_projector.weight")
    if proj is None or vocabulary is None or proj.dim() != 2 or vocabulary.dim() != 2:
        raise CheckpointError(f"{where}: no D2S head (proj.weight [W, D] and vocab_projector.weight [V, W])")
    with torch.device("cpu"):
        head = D2SHead(proj.shape[1], proj.shape[0], vocabulary.shape[0])
    load_strictly(head, weights, where)
    return head


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config.json of the checkpoint; empty for a weight file alone."""
    return checkpoint.config() if (checkpoint.folder / "config.json").is_file() else {}
