"""LexLIP: w_j = log(1 + max_i relu(logit_ij)) over one masked-LM head per modality, L2-normalised (ICCV 2023).

Text:  BERT and its head; captions are lower-cased and read up to 40 tokens.
Image: BEiT, its own LayerNorm and head; the class token counts in the maximum.

Reads Lightning's checkpoints of pre-training (phase 1), momentum contrast (phase 2) and fine-tuning, and pairs over
pretrained networks (`parts/network_pair.py`), whose dimensions are the terms of their training captions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lexvl_anserini.encoders.checkpoints.bounds import build
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import below, complain, load_strictly, read_contents
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, hidden_states, position_limit, read_config
from lexvl_anserini.encoders.parts.images.beit import EPS, Beit, window_of
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.network_pair import NetworkPair, is_pair, read_pair, token_heads
from lexvl_anserini.encoders.parts.pooling import Backbone, Head, log1p_relu, masked_max
from lexvl_anserini.encoders.parts.sides import Direction, in_direction, with_topk
from lexvl_anserini.encoders.parts.sparsify import positive_or_top
from lexvl_anserini.encoders.parts.texts.tokens import TextReader, TokenColumns, columns_of_all, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Composition, TextTower
from lexvl_anserini.ground.errors import CheckpointError, UsageError

# Tokens that the reference reads per caption, and the side of its images before fine-tuning (384 after).
MAX_LENGTH = 40
RESOLUTION = 224
# Its pixels are (x / 255 - 0.5) / 0.5.
HALF = (0.5, 0.5, 0.5)

# The text backbone of all its checkpoints, which have neither configuration nor tokenizer.
BACKBONE = "bert-base-uncased"

# Weights that only training uses: the weakened decoder of phase 1, momentum copies and queues of phase 2.
TRAINING_ONLY = re.compile(
    r"text_transformer\.decoder_heads\..*|moco_.*|(image|text)_queue(_ptr)?|.*\.relative_position_index"
)
PARTS = ("text_transformer.bert.", "text_transformer.cls.", "image_transformer.", "mlm_head_for_image.")


class LowerCaseReader(TextReader):
    """Lower-cases texts before it tokenises them, as the reference does, with any tokenizer."""

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids per text, unpadded, truncated to `max_length`."""
        return super().__call__([text.lower() for text in texts])


class PredictionHead(nn.Module):
    """BERT's masked-LM head with an untied decoder; its parts have the names in checkpoints."""

    def __init__(self, width: int, size: int):
        super().__init__()
        self.transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=EPS)})
        self.decoder = nn.Linear(width, size)

    def transformed(self, hidden: Tensor) -> Tensor:
        """States before the decoder, [B, L, D] -> [B, L, D]."""
        return self.transform["LayerNorm"](gelu(self.transform["dense"](hidden)))


class ImageStates(nn.Module):
    """BEiT and LexLIP's LayerNorm after it; its parts have the names in checkpoints."""

    def __init__(self, beit: Beit, width: int):
        super().__init__()
        self.beit, self.layernorm = beit, nn.LayerNorm(width, eps=EPS)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """States [B, 1 + P, D]."""
        return self.layernorm(self.beit(pixels))


def load_lexlip(
    source: Source,
    direction: Direction = "text-to-image",
    resolution: int | None = None,
    normalise: bool = True,
    topk: int | None = None,
    query_topk: int | None = None,
    text_max_length: int | None = None,
) -> Encoder:
    """A checkpoint of the reference's training: a Lightning `.ckpt` or its folder; or a pair that `train` wrote.

    Args:
        source: `tokenizer` and `backbone_config` name BERT's; default those in the checkpoint's folder, else
            bert-base-uncased. Without a configuration, BERT has as many heads as the checkpoint's BEiT.
        direction: the modalities of queries and documents.
        resolution: side of the images in pixels; default the `image_size` of the checkpoint's training, else 224. A
            larger one stretches the position bias, a smaller one cuts it, both as in the reference.
        normalise: divide by the L2 norm, so that scores are cosines, by which the reference ranks.
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        text_max_length: tokens per caption; default 40, or the number of a pair that `train` wrote.
    """
    checkpoint = source.required("lexlip")
    if is_pair(checkpoint):
        if resolution is not None:
            raise UsageError(
                "resolution is for checkpoints of the reference; this one reads images as its network does"
            )
        model = lexlip_of_pair(source, read_pair(source, checkpoint, "lexlip", text_max_length))
    else:
        model = lexlip_of_lightning(source, checkpoint, resolution, text_max_length)

    def composition(backbone: Backbone, head: Head, k: int | None) -> Composition:
        return Composition(backbone, head, log1p_relu, masked_max, positive_or_top(k), normalise)

    def texts(k: int | None) -> TextTower:
        return TextTower(composition(model.text, model.text_head, k), model.reader, model.columns, source.device)

    def images(k: int | None) -> ImageTower:
        return ImageTower(composition(model.image, model.image_head, k), model.pixels, model.columns, source.device)

    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("lexlip", "impact", query=query, document=document)


class LoadedLexLip(NamedTuple):
    """A model of either layout: states and head of both sides, and what they read."""

    text: Backbone
    image: Backbone
    text_head: Head
    image_head: Head
    reader: TextReader
    columns: TokenColumns
    pixels: Pixels


def lexlip_of_pair(source: Source, pair: NetworkPair) -> LoadedLexLip:
    """A pair over networks."""
    heads = token_heads(pair, source.device)
    assert pair.columns is not None, "lexical heads have terms"
    return LoadedLexLip(pair.text, pair.image, *heads, pair.reader, pair.columns, pair.pixels)


def lexlip_of_lightning(
    source: Source, checkpoint: Checkpoint, resolution: int | None, text_max_length: int | None
) -> LoadedLexLip:
    """A checkpoint of the reference's training; the options are those of `load_lexlip`."""
    contents = read_contents(checkpoint.path)
    weights = {key: value for key, value in contents.weights.items() if not TRAINING_ONLY.fullmatch(key)}
    complain(
        checkpoint.reference,
        missing=[f"{part}*" for part in PARTS if not below(weights, part)],
        unexpected=[key for key in weights if not key.startswith(PARTS)],
        misshaped=[],
    )
    states = image_states(weights, resolution or trained_resolution(contents.extra), checkpoint.reference)
    states.eval().to(source.device)
    config = text_config(source, checkpoint, weights, heads=states.beit.heads)
    tokenizer = load_tokenizer(source.tokenizer_folder(default=BACKBONE), config.vocab_size)
    own, where = below(weights, "text_transformer.bert."), f"{checkpoint.reference}: text_transformer.bert"
    bert = bert_from_weights(config, own, where, source.device)
    longest = MAX_LENGTH if text_max_length is None else text_max_length
    return LoadedLexLip(
        hidden_states(bert),
        states,
        prediction_head(weights, "text_transformer.cls.predictions.", checkpoint.reference, source.device),
        prediction_head(weights, "mlm_head_for_image.predictions.", checkpoint.reference, source.device),
        LowerCaseReader(tokenizer, longest, limit=position_limit(config)),
        columns_of_all(tokenizer),
        Pixels(states.beit.resolution, mean=HALF, std=HALF),
    )


def trained_resolution(extra: Mapping[str, Any]) -> int:
    """The `image_size` in a checkpoint's hyper-parameters; 224 if there is none."""
    config = (extra.get("hyper_parameters") or {}).get("config") or {}
    return int(config.get("image_size") or RESOLUTION)


def image_states(weights: Mapping[str, Tensor], resolution: int, where: str) -> ImageStates:
    """The image tower up to its head, with sizes read from the weights."""
    own = below(weights, "image_transformer.")
    first = "beit.encoder.layer.0."
    patches = "beit.embeddings.patch_embeddings.projection.weight"
    inner = f"{first}intermediate.dense.weight"
    table = f"{first}attention.attention.relative_position_bias.relative_position_bias_table"
    complain(
        f"{where}: image_transformer",
        missing=[key for key in (patches, inner, table) if key not in own],
        unexpected=[],
        misshaped=[
            f"{key} of {own[key].dim()} dimensions"
            for key, n in ((patches, 4), (inner, 2), (table, 2))
            if key in own and own[key].dim() != n
        ],
    )
    width, _, patch_size, _ = own[patches].shape
    beit = partial(
        Beit,
        width=width,
        layers=layers_of(own, "beit.encoder.layer."),
        heads=own[table].shape[1],
        inner=own[inner].shape[0],
        patch_size=patch_size,
        window=window_of(own[table], f"{where}: image_transformer.{table}"),
        resolution=resolution,
    )
    states = build(lambda: ImageStates(beit(), width), own, f"{where}: image_transformer at {resolution} pixels")
    load_strictly(states, own, f"{where}: image_transformer")
    return states


def layers_of(weights: Mapping[str, Tensor], prefix: str) -> int:
    """The number of layers below `prefix`."""
    return len({key.removeprefix(prefix).partition(".")[0] for key in weights if key.startswith(prefix)})


def prediction_head(weights: Mapping[str, Tensor], prefix: str, where: str, device: torch.device) -> Head:
    """A masked-LM head from the keys below `prefix`.

    A checkpoint has its bias twice, as `bias` and `decoder.bias`; the decoder adds the second.
    """
    own = below(weights, prefix)
    bias = own.pop("bias", None)
    if bias is not None and not torch.equal(own.setdefault("decoder.bias", bias), bias):
        raise CheckpointError(f"{where}: {prefix}bias differs from {prefix}decoder.bias; they are one parameter")
    decoder = own.get("decoder.weight")
    if decoder is None or decoder.dim() != 2:
        raise CheckpointError(f"{where}: {prefix}decoder.weight is missing or not a matrix; this head is not tied")
    size, width = decoder.shape
    head = PredictionHead(width, size)
    load_strictly(head, own, f"{where}: {prefix.rstrip('.')}")
    head.eval().to(device)
    return Head(head.transformed, head.decoder.weight.detach(), head.decoder.bias.detach())


def text_config(source: Source, checkpoint: Checkpoint, weights: Mapping[str, Tensor], heads: int) -> Any:
    """BERT's configuration: the one named, else that of the checkpoint's folder, else read from the weights.

    Weights do not contain the number of heads; the reference pairs BERT-base with BEiT-base, which have 12 each.
    """
    import transformers

    if source.backbone_config is not None:
        return read_config(find_checkpoint(source.backbone_config, weights=False).folder)
    if (checkpoint.folder / "config.json").is_file():
        return read_config(checkpoint.folder)
    own = below(weights, "text_transformer.bert.")
    tables = [f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
    inner = "encoder.layer.0.intermediate.dense.weight"
    complain(
        f"{checkpoint.reference}: text_transformer.bert",
        missing=[key for key in (*tables, inner) if key not in own],
        unexpected=[],
        misshaped=[],
    )
    size, width = own[tables[0]].shape
    if width % heads:
        raise CheckpointError(
            f"{checkpoint.reference}: a BERT of width {width} cannot have {heads} heads as the BEiT beside it; "
            "name its configuration with --backbone-config"
        )
    return transformers.BertConfig(
        vocab_size=size,
        hidden_size=width,
        num_hidden_layers=layers_of(own, "encoder.layer."),
        num_attention_heads=heads,
        intermediate_size=own[inner].shape[0],
        max_position_embeddings=own[tables[1]].shape[0],
        type_vocab_size=own[tables[2]].shape[0],
    )
