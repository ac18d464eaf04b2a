"""Bag of tokens: w_j = 1 if token j occurs in the text. Both sides, no network; the lower bound for every model."""

from __future__ import annotations

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.bags import BagTower
from lexvl_anserini.encoders.parts.tokens import TextReader, columns_from, first_word_id, load_tokenizer


def load_bag_of_tokens(source: Source, max_length: int = 256, shift: int | None = None) -> Encoder:
    """The binary token vectors of SVDR's non-parametric sides (`bow` in the reference).

    Args:
        source: only its tokenizer is read; default that of `minilm`, whose vocabulary is bert-base-uncased's.
        max_length: tokens read per text, with special tokens.
        shift: token ids below it are not terms; default 999 in BERT's uncased layout (the id of "!"), else 0.
    """
    folder = source.tokenizer_folder(default=None if source.checkpoint else "minilm")
    tokenizer = load_tokenizer(folder)
    columns = columns_from(tokenizer, first_word_id(tokenizer) if shift is None else shift)
    tower = BagTower(TextReader(tokenizer, max_length), columns)
    return Encoder("bag-of-tokens", "impact", tower, tower)
