"""Captions as BLIP and ALBEF read them: without punctuation, at most fifty words and 35 tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.parts.dense import Texts
from lexvl_anserini.encoders.parts.towers import Batch

# LAVIS reads 35 tokens in the evaluation of both families, whatever the training configuration has.
MAX_LENGTH = 35
MAX_WORDS = 50

_MARKS = re.compile(r'[.!"()*#:;~]')
_BLANKS = re.compile(r"\s{2,}")


def clean_caption(caption: str, words: int = MAX_WORDS) -> str:
    """Lower case, the characters . ! " ( ) * # : ; ~ as blanks, blanks joined, the first `words` words.

    >>> clean_caption('A "big" wave; the sky is cloudy.')
    'a big wave the sky is cloudy'
    """
    cleaned = _BLANKS.sub(" ", _MARKS.sub(" ", caption.lower())).rstrip("\n").strip(" ")
    return " ".join(cleaned.split(" ", words)[:words])


@dataclass(frozen=True)
class Captions(Texts):
    """Texts, cleaned before they are tokenised if `clean`."""

    clean: bool = True

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """Token ids and attention mask, both int64 [B, L]."""
        return super().batches([clean_caption(text) if self.clean else text for text in inputs], batch_size)
