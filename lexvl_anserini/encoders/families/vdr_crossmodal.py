"""VDR cross-modal, and its class words.

Class words are words for a classifier's classes: those of their names, and kinds such as *bird*. The network of the
images was pretrained as a classifier, which gives class c the probability p(c) in the whole image and p_i(c) in cell i.
A word w for the classes C(w) gets in cell i

    a_w ln max(p(w) p_i(w) / max_j p_j(w), e^-8),   p(w) = sum_{c in C(w)} p(c)

The largest of these logits tells how sure the classifier is of the whole image; the cells tell where. A class word that
is no term of the captions has this logit, and a bias. To the logit of a term it is added, in all cells with p(w). The
terms of the captions have unit length without the other words, so that these take nothing from their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import build, complain, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.vdr import SIDES, TOPK, choose_sparsifier, load_bert_side
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.images.image_backbones import Classifier, ImageBackbone
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import ImageTower, PatchTransformer
from lexvl_anserini.encoders.parts.pretrained import (
    Standard,
    build_cells,
    load_pretrained_image,
    load_states_head,
    load_vocabulary_rows,
    read_entry,
    read_vision_shape,
)
from lexvl_anserini.encoders.parts.tokens import FIRST_WORD_ID, TokenColumns, make_ascii_columns, make_term_columns
from lexvl_anserini.encoders.parts.towers import (
    Backbone,
    Composition,
    Head,
    TextTower,
    TowerOf,
    elu1p,
    in_direction,
    pool_max,
    with_topk,
)
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Vocabulary

# Files on the hub have the first name, checkpoints from before June 2024 the second.
TEXT_TYPES = ("vdr_crossmodal_text", "vdr_cm_text")
IMAGE_TYPES = ("vdr_crossmodal_image", "vdr_cm_image")

# The weights a_w of a checkpoint's class words, [W], in the order of its file of them.
CLASS_SCALE = "class_scale"
# The least probability of a class word that counts; and what keeps shares of cells finite.
LEAST, TINY = exp(-8), 1e-30


def load_vdr_crossmodal(
    source: Source,
    direction: Literal["text-to-image", "image-to-text"] = "text-to-image",
    mode: Literal["full", "alpha"] = "full",
    topk: int | None = None,
    query_topk: int | None = None,
    lexical_union: bool = True,
    text_max_length: int | None = None,
) -> Encoder:
    """VDR cross-modal: texts and images as weights over one vocabulary (Zhou et al., ICLR 2024).

    Text:  w = elu1p(max_i <ln(h_i), E_v>) over the ASCII tokens v of BERT's vocabulary, L2-normalised, top-k or own
           tokens.
    Image: w = elu1p(max_p <h_p, P_v>) over the patches p of a vision transformer without class token, L2-normalised,
           top-k.

    A side whose entry in config.json has `backbone` is a pretrained network (see `parts/pretrained.py`), whose states
    pass ln(W s) before the projection. `terms` in the entry of the texts names a file with the terms that are
    dimensions; the first `unit_terms` of them have unit length, and class words are beside these.

    A checkpoint in the published layout: `encoder_q` reads texts, `encoder_p` images.

    Args:
        source: `model_id` of the text side names the backbone; `tokenizer` and `backbone_config` override it.
        direction: the modalities of queries and documents.
        mode: full; alpha (texts are binary bags of their own tokens: no text encoder at query time).
        topk: dimensions kept per document; -1 all, 0 only a text's own tokens; default the checkpoint's.
        query_topk: the same for queries; default `topk`.
        lexical_union: texts keep their own tokens besides the top k, as the reference always does.
        text_max_length: tokens per text; default the checkpoint's.
    """
    checkpoint = source.required("vdr-crossmodal")
    config, weights = checkpoint.config(), read_weights(checkpoint.folder)
    text_about = read_entry(checkpoint, config, "encoder_q", TEXT_TYPES)
    image_about = read_entry(checkpoint, config, "encoder_p", IMAGE_TYPES)
    complain(str(checkpoint.folder), (), [key for key in weights if key.partition(".")[0] not in SIDES], ())
    text = load_bert_side(source, checkpoint, text_about, "encoder_q", weights, choose_columns(checkpoint, text_about))

    def texts(topk: int | None) -> TextTower | BagTower:
        side = text.replace_options(topk, lexical_union, text_max_length, text_about.get("padding"))
        # The reference normalises the output of the network, but not the bag of tokens.
        if mode == "alpha":
            return side.bag()
        count = unit_terms(checkpoint, text_about, side.columns.vocabulary)
        return replace(side, normalise=True, unit_terms=count).tower()

    images: TowerOf = partial(load_image_tower, source, checkpoint, image_about, weights, text.columns)
    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("vdr-crossmodal", "impact", query=query, document=document)


def load_image_tower(
    source: Source,
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    columns: TokenColumns,
    topk: int | None,
) -> ImageTower:
    """The image side from the keys `encoder_p.*`; its columns are the text side's."""
    k = entry.get("topk") or TOPK
    make = load_pretrained_side if "backbone" in entry else load_patch_transformer
    backbone, head, pixels = make(checkpoint, entry, weights, columns.vocabulary, source.device)
    composition = Composition(
        backbone=backbone,
        head=head,
        activation=elu1p,
        pooling=pool_max,
        sparsifier=choose_sparsifier(k if topk is None else topk, lexical_union=False),
        normalise=True,
        unit_terms=unit_terms(checkpoint, entry, columns.vocabulary),
    )
    return ImageTower(composition, pixels, columns, source.device)


def unit_terms(checkpoint: Checkpoint, entry: Mapping[str, Any], vocabulary: Vocabulary) -> int | None:
    """How many terms have unit length together, where class words are beside them; None for all."""
    count, terms = entry.get("unit_terms"), len(vocabulary)
    if count is not None and (type(count) is not int or not 0 < count <= terms):
        where = f"{checkpoint.folder}/config.json"
        raise CheckpointError(f"{where}: unit_terms {count!r:.80}, expected a number from 1 to {terms}")
    return count


def load_patch_transformer(
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    device: torch.device,
) -> tuple[Backbone, Head, Pixels]:
    """The published image side: a PatchTransformer and its own projection to the vocabulary."""
    shape, side_weights = read_vision_shape(entry), take_below(weights, "encoder_p.")
    model = nn.Module()
    model.vision = build(lambda: PatchTransformer(**shape), side_weights, f"{checkpoint.folder}/config.json: encoder_p")
    model.proj = nn.Parameter(torch.empty(len(vocabulary), shape["width"]))
    named = {key if key == "proj" else f"vision.{key}": value for key, value in side_weights.items()}
    load_strictly(model, named, f"{checkpoint.folder}: encoder_p")
    model.eval().to(device)
    return model.vision, Head(nn.Identity(), model.proj.detach()), Pixels(shape["resolution"])


def load_pretrained_side(
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    device: torch.device,
) -> tuple[Backbone, Head, Pixels]:
    """A pretrained network that the entry names, a head and a projection to the vocabulary."""
    where, side_weights = f"{checkpoint.folder}: encoder_p", take_below(weights, "encoder_p.")
    known = ("backbone.", "standard.", "head.", "proj", "bias", CLASS_SCALE)
    complain(where, (), [key for key in side_weights if not key.startswith(known)], ())
    backbone = load_pretrained_image(checkpoint, entry, take_below(side_weights, "backbone."))
    head = load_states_head(side_weights, backbone.width, where, device)
    rows, bias = load_vocabulary_rows(weights, "encoder_p", len(vocabulary), head.width, str(checkpoint.folder), device)
    network = build_cells(backbone, entry, side_weights, where, device)
    projection = Head(head, rows, bias)
    if listed := entry.get("classes"):
        path = resolve_inside(checkpoint.folder, listed, f"{checkpoint.folder}/config.json")
        of_captions = unit_terms(checkpoint, entry, vocabulary) or len(vocabulary)
        scale = side_weights.get(CLASS_SCALE)
        projection = add_classes(projection, path, vocabulary, of_captions, backbone, network.standard, scale)
    return network, projection, backbone.pixels


def add_classes(
    head: Head,
    path: Path,
    vocabulary: Vocabulary,
    of_captions: int,
    backbone: ImageBackbone,
    standard: Standard,
    scale: Tensor | None,
) -> Head:
    """The head with the class words that a file lists; `of_captions` is the number of terms of the captions."""
    where = f"{path.parent}: encoder_p.{CLASS_SCALE}"
    if backbone.classifier is None or scale is None:
        what = "missing" if scale is None else "there, but its network has no classifier"
        raise CheckpointError(f"{where}: {what}")
    words = read_class_words(path, len(backbone.classifier.rows))
    expected = [len(words)]
    complain(where, (), (), [] if list(scale.shape) == expected else [f"{list(scale.shape)}, expected {expected}"])
    if unknown := [word for word in words if word not in vocabulary.dimension]:
        raise CheckpointError(f"{path}: {unknown[0]!r:.80} is no term of the checkpoint")
    dims = torch.tensor([vocabulary.dimension[word] for word in words])
    classes = ClassLogits(backbone.classifier, standard, list(words.values()), dims < of_captions)
    return add_class_words(head, classes.to(head.matrix.device), dims, scale.float())


def choose_columns(checkpoint: Checkpoint, entry: Mapping[str, Any]) -> Callable[[Any], TokenColumns]:
    """Which tokens are dimensions: the terms that the checkpoint lists, else ASCII tokens from the first word on."""
    if listed := entry.get("terms"):
        path = resolve_inside(checkpoint.folder, listed, f"{checkpoint.folder}/config.json")
        return partial(make_term_columns, vocabulary=Vocabulary.read(path), where=str(path))
    # Checkpoints with another vocabulary than BERT's give the first id that is a word.
    return partial(make_ascii_columns, shift=entry.get("first_word_id") or FIRST_WORD_ID)


class ClassLogits(nn.Module):
    """ln max(p(w) p_i(w) / max_j p_j(w), e^-8) of each word w in each cell i of standardised states [B, P, D]."""

    rows: Tensor
    bias: Tensor
    members: Tensor
    whole: Tensor  # bool [W], the words that have p(w) in all cells

    def __init__(self, classifier: Classifier, standard: Standard, classes: Sequence[Sequence[int]], whole: Tensor):
        super().__init__()
        count, last = classifier.rows.shape
        mean, std = (values[-last:].cpu().float() for values in (standard.mean, standard.std))
        members = torch.zeros(len(classes), count)
        for row, numbers in zip(members, classes, strict=True):
            row[list(numbers)] = 1
        self.register_buffer("rows", classifier.rows.float() * std)
        self.register_buffer("bias", classifier.bias.float() + classifier.rows.float() @ mean)
        self.register_buffer("members", members)
        self.register_buffer("whole", whole)

    def forward(self, states: Tensor) -> Tensor:  # [B, P, D]
        """[B, P, W]."""
        logits = states[:, :, -self.rows.shape[1] :] @ self.rows.T + self.bias  # [B, P, C]
        # The mean of equal cells, and of the mean and the cells, is that of the image.
        image = logits.mean(dim=1, keepdim=True).softmax(dim=2) @ self.members.T  # [B, 1, W]
        cells = (logits.softmax(dim=2) @ self.members.T).clamp(min=TINY)
        shares = cells / cells.amax(dim=1, keepdim=True)
        return (image * shares.masked_fill(self.whole, 1.0)).clamp(min=LEAST).log()


class WithClasses(nn.Module):
    """Features and, after them, the logits of class words."""

    def __init__(self, head: nn.Module, classes: ClassLogits):
        super().__init__()
        self.head, self.classes = head, classes

    def forward(self, states: Tensor) -> Tensor:  # [B, P, D]
        """[B, P, width + W]."""
        return torch.cat([self.head(states), self.classes(states)], dim=2)


def read_class_words(path: Path, size: int) -> dict[str, list[int]]:
    """The classes, below `size`, of each class word of a checkpoint, in the order of its terms."""
    content = read_json(path, "class words", CheckpointError)
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: expected a mapping of words to classes")
    for word, numbers in content.items():
        if not isinstance(numbers, list) or not numbers or not all(type(n) is int and 0 <= n < size for n in numbers):
            raise CheckpointError(f"{path}: {word!r:.80} has classes {numbers!r:.80}, expected some of 0 to {size - 1}")
    return {str(word): list(numbers) for word, numbers in content.items()}


def add_class_words(head: Head, classes: ClassLogits, dims: Tensor, scale: Tensor) -> Head:
    """A head that adds a_w (`scale`, [W]) times the logit of each class word to that of its dimension (`dims`, [W])."""
    assert isinstance(head.transform, nn.Module)
    added = head.matrix.new_zeros(len(head.matrix), len(dims))
    added[dims, torch.arange(len(dims))] = scale.to(added.device)
    return Head(WithClasses(head.transform, classes), torch.cat([head.matrix, added], dim=1), head.bias)
