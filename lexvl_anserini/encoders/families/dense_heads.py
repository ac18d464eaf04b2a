"""D2S and Joint: lexical heads over the dense vectors of BLIP or ALBEF."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.dense_crossmodal import load_head_inputs
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import Expansion, Features, LiveOptions, TextAndImage, build_head_tower
from lexvl_anserini.encoders.parts.towers import DenseTower, Direction, Head, in_direction, with_topk
from lexvl_anserini.ground.errors import CheckpointError

# The epsilon of DistilBERT, whose LayerNorm the head of D2S and Joint's untied one use; a new LayerNorm has PyTorch's.
DISTILBERT_EPS, TORCH_EPS = 1e-12, 1e-5
# The authors' tokenizer, if config.json of D2S does not name one in `mlm_head`.
TOKENIZER = "distilbert-base-uncased"
# The name of the model in Lightning's module, which also has the temperature of the loss.
PREFIX = "model."
TEMPERATURE = r"(loss_fn\.)?temp"
TABLES = "img_embs_before_proj_*.parquet, text_embs_before_proj_*.parquet: embeddings:<folder>,before_proj_blip"


class D2SHead(nn.Module):
    """The weights of a checkpoint, by their names there: vectors [.., D] -> features [.., W] before the vocabulary."""

    def __init__(self, dense_size: int, width: int, size: int):
        super().__init__()
        self.proj = nn.Linear(dense_size, width)
        self.vocab_layer_norm = nn.LayerNorm(width, eps=DISTILBERT_EPS)
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
    """D2S: dense vectors of frozen BLIP or ALBEF as weights over DistilBERT's vocabulary (Nguyen et al., ECIR 2024).

    w = log1p(relu(E LN(W u + b) + c)), one head for texts and images; u is the ITC vector of either. E, LN and c are
    those of DistilBERT's masked-LM head without its transform. A text may be masked by its own tokens (no expansion).

    It loads a checkpoint of the authors: config.json (model type `d2s`) and weights, or the older bare `model.pt`; or a
    head that `train` wrote over a dense pair, which encodes texts and images.

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
    tokenizer = str(read_head_config(checkpoint).get("mlm_head") or TOKENIZER)
    inputs = load_head_inputs(source, checkpoint, live, tokenizer, width, dimensions, text != "expanded")
    projection = Head(head, head.vocab_projector.weight.detach(), head.vocab_projector.bias.detach())

    tower = partial(build_head_tower, head=projection, inputs=inputs, device=source.device)
    texts, images = partial(tower, inputs.sides.text, text), partial(tower, inputs.sides.image, "expanded")
    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("d2s", "impact", query=query, document=document)


def load_head(checkpoint: Checkpoint) -> D2SHead:
    """The head, its sizes read from the weights."""
    where = str(checkpoint.path)
    if (model_type := read_head_config(checkpoint).get("model_type", "d2s")) != "d2s":
        raise CheckpointError(f"{where}: model type {model_type!r}; this encoder loads D2S heads (model type 'd2s')")
    weights = read_weights(checkpoint.path)
    proj, vocabulary = weights.get("proj.weight"), weights.get("vocab_projector.weight")
    if proj is None or vocabulary is None or proj.dim() != 2 or vocabulary.dim() != 2:
        raise CheckpointError(f"{where}: no D2S head (proj.weight [W, D] and vocab_projector.weight [V, W])")
    with torch.device("cpu"):
        head = D2SHead(proj.shape[1], proj.shape[0], vocabulary.shape[0])
    load_strictly(head, weights, where)
    return head


def read_head_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config.json of the checkpoint; empty for a weight file alone."""
    return checkpoint.config() if (checkpoint.folder / "config.json").is_file() else {}


class JointHead(nn.Module):
    """The weights of a checkpoint, by their names there; an untied head is DistilBERT's, with bias and epsilon."""

    def __init__(self, hidden: int, size: int, width: int, vocabulary: int, untied: bool):
        super().__init__()
        self.text_proj = nn.Linear(hidden, size)
        self.vision_proj = nn.Linear(hidden, size)
        self.single_proj = nn.Linear(size, width)
        self.single_vocab_layer_norm = nn.LayerNorm(width, eps=DISTILBERT_EPS if untied else TORCH_EPS)
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
    """Joint sparse-dense: one projection of BLIP's or ALBEF's [CLS] gives a dense and a lexical vector.

    Dense:   d = W_t h + b for texts, W_v h + b for images, of unit length; h is [CLS] before the backbone's projection.
    Lexical: w = log1p(relu(E LN(W d + b))), one head for both; E has no bias.

    It loads a Lightning checkpoint of the authors (`checkpoint_best.ckpt`), the weights of its model alone, or a head
    that `train` wrote over a dense pair, which encodes texts and images.

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
    inputs = load_head_inputs(
        source, checkpoint, live, TOKENIZER, hidden, vocabulary, masks, projected=False, tables=TABLES
    )
    texts, images = inputs.sides
    dense = TextAndImage(
        Features(texts.items, lambda batch: head.dense_text(texts.embed(batch))),
        Features(images.items, lambda batch: head.dense_image(images.embed(batch))),
    )
    if vectors == "dense":
        towers = [DenseTower(side.items, side.embed, size, dimensions=dimensions) for side in dense]
        query, document = in_direction(direction, *towers)
        return Encoder("joint", "dense", query=query, document=document)
    projector = head.single_vocab_projector
    projection = Head(head, projector.weight.detach(), None if projector.bias is None else projector.bias.detach())
    tower = partial(build_head_tower, head=projection, inputs=inputs, device=source.device)
    sides = partial(tower, dense.text, text), partial(tower, dense.image, "expanded")
    lexical = with_topk(in_direction(direction, *sides), topk, query_topk)
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
