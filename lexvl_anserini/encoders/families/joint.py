"""Joint sparse-dense: one projection of BLIP's or ALBEF's [CLS] gives a dense and a lexical vector (arXiv 2508.16707).

Dense:   d = W_t h + b for texts, W_v h + b for images, of unit length; h is [CLS] before the backbone's projection.
Lexical: w = log1p(relu(E LN(W d + b))), one head for both; E was initialised with the word embeddings and has no bias.
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
from lexvl_anserini.encoders.families.dense.dense_crossmodal import head_inputs
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import Expansion, Features, LiveOptions, TextAndImage, head_tower
from lexvl_anserini.encoders.parts.pooling import Head
from lexvl_anserini.encoders.parts.towers import DenseTower, Direction, in_direction, with_topk
from lexvl_anserini.ground.errors import CheckpointError

# A new LayerNorm has PyTorch's default; the untied variant uses DistilBERT's layer.
HEAD_EPS, UNTIED_EPS = 1e-5, 1e-12
# The name of the model in Lightning's module, which also has the temperature of the loss.
PREFIX = "model."
TEMPERATURE = r"(loss_fn\.)?temp"
TOKENIZER = "distilbert-base-uncased"
TABLES = "img_embs_before_proj_*.parquet, text_embs_before_proj_*.parquet: embeddings:<folder>,before_proj_blip"


class JointHead(nn.Module):
    """The weights of a checkpoint, by their names there.

    hidden      width of [CLS]
    size        of the dense vectors
    width       of the features before the vocabulary
    vocabulary  dimensions of the lexical vectors
    untied      the head is DistilBERT's, with its bias and the epsilon of its LayerNorm (`weight_tying: false`)
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
    """A Lightning checkpoint of the authors (`checkpoint_best.ckpt`), or only the weights of its model.

    Heads that `train` wrote over a dense pair load too (`parts/pretrained.py`); they encode texts and images.

    Args:
        source: a checkpoint has no tokenizer; default `distilbert-base-uncased`, or `tokenizer` names its folder.
        direction: the modalities of queries and documents; text-to-text compares captions.
        vectors: sparse (for an inverted index) or dense (for FAISS); `lexvl_anserini.hybrid` mixes their scores.
        text: expanded; masked (a caption's own tokens with [CLS] and [SEP]); words (only its own WordPieces). Images
            are always expanded.
        topk: dimensions kept per expanded document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        backbone_checkpoint: the BLIP or ALBEF on whose [CLS] states the head was trained, to encode texts and images;
            without it the corpus has them: `embeddings:<folder>,before_proj_blip` (or `_albef`).
        clean: of captions for the backbone, see `blip`.
        resolution: of images for the backbone, see `blip`.
        head_width: of the backbone, see `blip`.
        dimensions: of dense vectors: keep only the first ones.
    """
    checkpoint = source.required("joint")
    head = load_joint_head(str(checkpoint.path), read_weights(checkpoint.path)).to(source.device)
    hidden, size = head.text_proj.in_features, head.text_proj.out_features
    vocabulary = head.single_vocab_projector.out_features
    live = LiveOptions(backbone_checkpoint, clean, resolution, head_width)
    masks = vectors == "sparse" and text != "expanded"
    inputs = head_inputs(source, checkpoint, live, TOKENIZER, hidden, vocabulary, masks, projected=False, tables=TABLES)
    states = inputs.sides
    dense = TextAndImage(
        Features(states.text.items, lambda batch: head.dense_text(states.text.embed(batch))),
        Features(states.image.items, lambda batch: head.dense_image(states.image.embed(batch))),
    )
    if vectors == "dense":
        towers = [DenseTower(side.items, side.embed, size, dimensions=dimensions) for side in dense]
        query, document = in_direction(direction, *towers)
        return Encoder("joint", "dense", query=query, document=document)
    projector = head.single_vocab_projector
    projection = Head(head, projector.weight.detach(), None if projector.bias is None else projector.bias.detach())

    tower = partial(head_tower, head=projection, inputs=inputs, device=source.device)
    texts, images = partial(tower, dense.text, text), partial(tower, dense.image, "expanded")
    lexical = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("joint", "impact", query=lexical[0], document=lexical[1])


def load_joint_head(where: str, weights: Mapping[str, Tensor]) -> JointHead:
    """The head, its sizes read from the weights."""
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
