"""A pair of sides over networks, as training writes it for STAIR, LexLIP and FDT: states up to the family's heads.

config.json has an entry per side, `encoder_q` of texts and `encoder_p` of images, of the types FAMILY_text and
FAMILY_image. An entry with `backbone` names a pretrained network (see `pretrained`); otherwise all weights of the
network are in the checkpoint, and the entry of the images has the shape of a `PatchTransformer`. `terms` in the entry
of the texts names the file with the terms that are dimensions; with `vocabulary: tokens` instead, all tokens are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import build, complain, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import build_bert, read_config, read_position_limit, take_hidden_states
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.pooling import Backbone, Head
from lexvl_anserini.encoders.parts.pretrained import (
    CellsOf,
    build_cells,
    load_pretrained_bert,
    load_pretrained_image,
    read_entry,
    read_vision_shape,
)
from lexvl_anserini.encoders.parts.stair_network import TokenHead
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    TokenColumns,
    load_tokenizer,
    make_all_columns,
    make_term_columns,
)
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.records import Vocabulary

TEXT, IMAGE = "encoder_q", "encoder_p"
# The value of `vocabulary` where all tokens are dimensions.
TOKENS = "tokens"
# The weights of a side that are its network's, by the beginning of their keys.
NETWORKS = (f"{TEXT}.bert_model.", f"{IMAGE}.backbone.", f"{IMAGE}.standard.")
# The epsilon of the layer before the vocabulary, as in BERT's head.
HEAD_EPS = 1e-12


class NetworkPair(NamedTuple):
    """The two sides up to their heads.

    Attributes:
        where: names the checkpoint in errors.
        config: of the checkpoint.
        text: token ids and attention [B, L] -> states [B, L, D].
        image: pixels [B, 3, R, R] -> standardised cells [B, 1 + grid^2, D'].
        widths: D and D' by side.
        reader: tokenises texts.
        pixels: how an image becomes pixels.
        columns: the dimension of each token; None where dimensions are no terms.
        heads: all weights but those of the networks.
    """

    where: str
    config: Mapping[str, Any]
    text: Backbone
    image: CellsOf
    widths: Mapping[str, int]
    reader: TextReader
    pixels: Pixels
    columns: TokenColumns | None
    heads: Mapping[str, Tensor]


def is_pair(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has this layout, and not that of the reference."""
    if checkpoint.file is not None or not (checkpoint.folder / "config.json").is_file():
        return False
    return {TEXT, IMAGE} <= checkpoint.config().keys()


def read_pair(source: Source, checkpoint: Checkpoint, family: str, max_length: int | None = None) -> NetworkPair:
    """The sides of a checkpoint of a family; `max_length` replaces the checkpoint's number of tokens per text."""
    config, weights, where = checkpoint.config(), read_weights(checkpoint.folder), str(checkpoint.folder)
    texts, images = (read_entry(checkpoint, config, side, (name,)) for side, name in list_types(family).items())
    if missing := [key for key in ("model_id", "max_len") if key not in texts]:
        raise CheckpointError(f"{where}/config.json: {TEXT} lacks {', '.join(missing)}")
    complain(where, (), [key for key in weights if key.partition(".")[0] not in (TEXT, IMAGE)], ())
    folder = resolve_inside(checkpoint.folder, texts["model_id"], f"{where}/config.json")
    bert_config = read_config(folder)
    tokenizer = load_tokenizer(source.tokenizer_folder(folder), bert_config.vocab_size)
    of_bert = take_below(weights, NETWORKS[0])
    if "backbone" in texts:
        of_bert = load_pretrained_bert(checkpoint, texts, of_bert)
    bert = build_bert(bert_config, of_bert, f"{where}: {TEXT}", source.device)
    network, pixels, width = load_image_network(checkpoint, images, weights, source.device)
    columns = make_all_columns(tokenizer) if texts.get("vocabulary") == TOKENS else None
    if listed := texts.get("terms"):
        path = resolve_inside(checkpoint.folder, listed, f"{where}/config.json")
        columns = make_term_columns(tokenizer, Vocabulary.read(path), str(path))
    reader = TextReader(tokenizer, texts["max_len"], limit=read_position_limit(bert_config)).with_max_length(max_length)
    heads = {key: value for key, value in weights.items() if not key.startswith(NETWORKS)}
    widths = {TEXT: bert_config.hidden_size, IMAGE: width}
    return NetworkPair(where, config, take_hidden_states(bert), network, widths, reader, pixels, columns, heads)


def list_types(family: str) -> dict[str, str]:
    """The types of both sides' entries of a family, which is the name of its encoder."""
    name = family.replace("-", "_")
    return {TEXT: f"{name}_text", IMAGE: f"{name}_image"}


def load_image_network(
    checkpoint: Checkpoint, entry: Mapping[str, Any], weights: Mapping[str, Tensor], device: torch.device
) -> tuple[CellsOf, Pixels, int]:
    """The cells of images, how an image becomes pixels, and the width of a cell."""
    where, side_weights = f"{checkpoint.folder}: {IMAGE}", take_below(weights, f"{IMAGE}.")
    of_network = take_below(side_weights, "backbone.")
    if "backbone" in entry:
        backbone = load_pretrained_image(checkpoint, entry, of_network)
    else:
        shape, described = read_vision_shape(entry), f"{checkpoint.folder}/config.json: {IMAGE}"
        network = build(lambda: PatchTransformer(**shape), of_network, described)
        backbone = make_image_backbone(network, shape["resolution"])
        load_strictly(backbone.network, of_network, f"{where}.backbone")
    return build_cells(backbone, entry, side_weights, where, device), backbone.pixels, backbone.width


def make_image_backbone(network: PatchTransformer, resolution: int) -> ImageBackbone:
    """A patch transformer whose weights no package and no folder has."""
    return ImageBackbone("", network.eval(), Pixels(resolution), network.ln_post.normalized_shape[0], "")


def build_token_heads(pair: NetworkPair, device: torch.device) -> tuple[Head, Head]:
    """The heads of texts and of images: TRANSFORM, the rows of the vocabulary, and the bias of each term.

    The rows are `encoder_p.proj`; a text side that does not share them has `encoder_q.proj`.
    """
    if pair.columns is None:
        raise CheckpointError(f"{pair.where}/config.json: {TEXT} has no terms")
    text_rows = f"{TEXT}.proj" if f"{TEXT}.proj" in pair.heads else f"{IMAGE}.proj"
    known = (f"{TEXT}.head.", f"{IMAGE}.head.", f"{IMAGE}.proj", text_rows)
    complain(pair.where, (), [key for key in pair.heads if not key.startswith(known)], ())
    size = len(pair.columns.vocabulary)
    heads = []
    for side, key in ((TEXT, text_rows), (IMAGE, f"{IMAGE}.proj")):
        rows = pair.heads.get(key)
        if rows is None or rows.dim() != 2 or len(rows) != size:
            raise CheckpointError(f"{pair.where}: {key} is missing or has not {size} rows, one per term")
        head = TokenHead(pair.widths[side], rows.shape[1], size, bridge=False, eps=HEAD_EPS)
        load_strictly(head, take_below(pair.heads, f"{side}.head."), f"{pair.where}: {side}.head")
        head.eval().to(device)
        heads.append(Head(head, rows.float().to(device), head.bias.detach()))
    return heads[0], heads[1]
