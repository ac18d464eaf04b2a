"""Bag of tokens: w_j = 1 if token j occurs in the text. Both sides, no network; the floor every model must beat."""

from __future__ import annotations

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.tokens import TextReader, columns_from, first_word_id, load_tokenizer
from lexvl_anserini.encoders.parts.towers import BagTower


def load_bag_of_tokens(source: Source, max_length: int = 256, shift: int | None = None) -> Encoder:
    """The binary token vectors of SVDR's non-parametric sides (the reference's `bow`), alone.

    Args:
        source: only its tokenizer is read; default the packaged `minilm`, whose vocabulary is bert-base-uncased's.
        max_length: tokens read per text, special ones included.
        shift: token ids below are no terms; default 999 in BERT's uncased layout (punctuation starts there), else 0.
    """
    folder = source.tokenizer_folder(default=None if source.checkpoint else "minilm")
    tokenizer = load_tokenizer(folder)
    columns = columns_from(tokenizer, first_word_id(tokenizer) if shift is None else shift)
    tower = BagTower(TextReader(tokenizer, max_length), columns)
    return Encoder("bag-of-tokens", "impact", tower, tower)
