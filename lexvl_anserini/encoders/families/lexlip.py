"""LexLIP: w_j = log(1 + max_i relu(logit_ij)) over one masked-LM head per modality, L2-normalised (ICCV 2023).

The authors have not published their weights. This encoder loads the pairs over networks that `train` writes
(`parts/network_pair.py`), whose dimensions are words of their training captions or the tokens of their text network.
"""

from __future__ import annotations

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.network_pair import read_pair, token_heads
from lexvl_anserini.encoders.parts.pooling import Backbone, Head, log1p_relu, masked_max
from lexvl_anserini.encoders.parts.sparsify import positive_or_top
from lexvl_anserini.encoders.parts.towers import Composition, Direction, TextTower, in_direction, with_topk


def load_lexlip(
    source: Source,
    direction: Direction = "text-to-image",
    normalise: bool = True,
    topk: int | None = None,
    query_topk: int | None = None,
    text_max_length: int | None = None,
) -> Encoder:
    """A pair that `train` wrote.

    Args:
        source: has configuration, weights and tokenizer; `tokenizer` may name another folder for the tokenizer.
        direction: the modalities of queries and documents.
        normalise: divide by the L2 norm, so that scores are cosines, by which the reference ranks.
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        text_max_length: tokens per caption; default the checkpoint's.
    """
    pair = read_pair(source, source.required("lexlip"), "lexlip", text_max_length)
    text_head, image_head = token_heads(pair, source.device)
    columns = pair.columns
    assert columns is not None, "lexical heads have terms"

    def composition(backbone: Backbone, head: Head, k: int | None) -> Composition:
        return Composition(backbone, head, log1p_relu, masked_max, positive_or_top(k), normalise)

    def texts(k: int | None) -> TextTower:
        return TextTower(composition(pair.text, text_head, k), pair.reader, columns, source.device)

    def images(k: int | None) -> ImageTower:
        return ImageTower(composition(pair.image, image_head, k), pair.pixels, columns, source.device)

    query, document = with_topk(in_direction(direction, texts, images), topk, query_topk)
    return Encoder("lexlip", "impact", query=query, document=document)
