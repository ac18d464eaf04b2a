"""Joint sparse-dense: one projection of BLIP's or ALBEF's [CLS] gives a dense and a lexical vector (arXiv 2508.16707).

Dense:   d = W_t h + b for texts, W_v h + b for images, of unit length; h is [CLS] before the backbone's projection.
Lexical: w = log1p(relu(E LN(W d + b))), one head for both; E began as the word embeddings and has no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.dense import DenseTower
from lexvl_anserini.encoders.parts.features import (
    Expansion,
    Features,
    Pair,
    head_tower,
    live_features,
    stored,
    tokenizer_of,
)
from lexvl_anserini.encoders.parts.sides import Direction, in_direction, with_topk
from lexvl_anserini.encoders.parts.towers import Head
from lexvl_anserini.errors import CheckpointError

# A fresh LayerNorm has PyTorch's default; the untied variant takes DistilBERT's layer.
HEAD_EPS, UNTIED_EPS = 1e-5, 1e-12
# Lightning's module holds the model under this name, beside the temperature of the loss.
PREFIX = "model."
TEMPERATURE = r"(loss_fn\.)?temp"
TOKENIZER = "distilbert-base-uncased"
STORED = "img_embs_before_proj_*.parquet, text_embs_before_proj_*.parquet: embeddings:<folder>,before_proj_blip"


class JointHead(nn.Module):
    """The weights of a checkpoint, under its names.

    hidden  width of [CLS]; size, of the dense vectors; width, before the vocabulary; vocabulary, dimensions
    untied  the head is DistilBERT's, with bias and its LayerNorm's epsilon (`weight_tying: false`)
    """

    def __init__(self, hidden: int, size: int, width: int, vocabulary: int, untied: bool):
        super().__init__()
        self.text_proj = nn.Linear(hidden, size)
        self.vision_proj = nn.Linear(hidden, size)
        self.single_proj = nn.Linear(size, width)
        self.single_vocab_layer_norm = nn.LayerNorm(width, eps=UNTIED_EPS if untied else HEAD_EPS)
        self.single_vocab_projector = nn.Linear(width, vocabulary, bias=untied)

    def dense_text(self, states: Tensor) -> Tensor:  # [B, hidden]
        """Unit vectors of texts [B, D]."""
        return normalize(self.text_proj(states), dim=-1)

    def dense_image(self, states: Tensor) -> Tensor:
        """Unit vectors of images [B, D]."""
        return normalize(self.vision_proj(states), dim=-1)

    def forward(self, dense: Tensor) -> Tensor:
        """Dense vectors [.., D] -> features [.., W] before the vocabulary, without activation."""
        return self.single_vocab_layer_norm(self.single_proj(dense))


def load_joint(
    source: Source,
    direction: Direction = "text-to-image",
    vectors: Literal["sparse", "dense"] = "sparse",
    text: Expansion = "expanded",
    topk: int | None = None,
    query_topk: int | None = None,
    backbone_checkpoint: str | None = None,
    clean: bool | None = None,
    resolution: int | None = None,
    head_width: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """A Lightning checkpoint of the authors (`checkpoint_best.ckpt`), or the bare weights of its model.

    Args:
        source: a checkpoint has no tokenizer: `distilbert-base-uncased`, or name its folder.
        direction: which side asks; text-to-text compares captions.
        vectors: sparse (for an inverted index) or dense (for FAISS); `lexvl_anserini.hybrid` mixes their scores.
        text: expanded; masked (a caption's own tokens with [CLS] and [SEP]); words (its own WordPieces only). Pictures
            are always expanded.
        topk: dimensions kept per expanded document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        backbone_checkpoint: the BLIP or ALBEF whose [CLS] states the head was trained on, to encode texts and
            pictures; without it the corpus holds them: `embeddings:<folder>,before_proj_blip` (or `_albef`).
        clean: of live captions, see `blip`.
        resolution: of live pictures, see `blip`.
        head_width: of the live backbone, see `blip`.
        dimensions: of dense vectors: keep the first ones only.

    Raises:
        CheckpointError: another layout, weights that do not fit, or a backbone of another width.
    """
    checkpoint = source.required("joint")
    head = load_joint_head(str(checkpoint.path), read_weights(checkpoint.path)).to(source.device)
    hidden, size = head.text_proj.in_features, head.text_proj.out_features
    vocabulary = head.single_vocab_projector.out_features
    tokenizer = tokenizer_of(source, checkpoint, vocabulary, TOKENIZER)
    masks = vectors == "sparse" and text != "expanded"
    if backbone_checkpoint is None:
        states = Pair(stored(hidden, source.device, masks, STORED), stored(hidden, source.device, wanted=STORED))
    else:
        states = live_features(
            source, backbone_checkpoint, hidden, tokenizer, clean, resolution, head_width, projected=False
        )
    dense = Pair(
        Features(states.text.items, lambda batch: head.dense_text(states.text.embed(batch))),
        Features(states.image.items, lambda batch: head.dense_image(states.image.embed(batch))),
    )
    if vectors == "dense":
        towers = [DenseTower(side.items, side.embed, size, dimensions=dimensions) for side in dense]
        query, document = in_direction(direction, *towers)
        return Encoder("joint", "dense", query=query, document=document)
    projector = head.single_vocab_projector
    projection = Head(head, projector.weight.detach(), None if projector.bias is None else projector.bias.detach())

    tower = partial(head_tower, head=projection, tokenizer=tokenizer, device=source.device)
    texts, images = partial(tower, dense.text, text), partial(tower, dense.image, "expanded")
    lexical = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("joint", "impact", query=lexical[0], document=lexical[1])


def load_joint_head(where: str, weights: Mapping[str, Tensor]) -> JointHead:
    """The head, its sizes read from the weights.

    Raises:
        CheckpointError: they are not those of a Joint head.
    """
    if any(key.startswith(PREFIX) for key in weights):
        weights = {key.removeprefix(PREFIX): value for key, value in weights.items()}
    names = ("text_proj.weight", "single_proj.weight", "single_vocab_projector.weight")
    if missing := [name for name in names if name not in weights or weights[name].dim() != 2]:
        raise CheckpointError(f"{where}: no {', '.join(missing)}; not a checkpoint of Joint sparse-dense")
    dense, single, vocabulary = (weights[name].shape for name in names)
    with torch.device("cpu"):
        head = JointHead(dense[1], dense[0], single[0], vocabulary[0], "single_vocab_projector.bias" in weights)
    load_strictly(head, weights, where, ignored=[TEMPERATURE])
    return head.eval()
