"""BM25 by Anserini, which analyses texts and scores them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Literal

from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsTexts
from lexvl_anserini.encoders.loading import Source, check_options
from lexvl_anserini.ground.errors import UsageError

ENGLISH: Literal["en"] = "en"
# The languages of Anserini's analysers.
Language = Literal[
    "ar", "bn", "da", "de", "en", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja", "ko", "nl", "no", "pl", "pt",
    "ru", "sv", "te", "th", "tr", "uk", "zh",
]  # fmt: skip
Stemmer = Literal["porter", "krovetz", "none"]


class PlainTextTower(ReadsTexts):
    """Passes texts through to an engine that analyses them itself."""

    kind: ClassVar[Kind] = "text"


@dataclass(frozen=True)
class BM25Settings:
    """How BM25 analyses and scores: the options of its encoder, with Anserini's defaults; see `load_bm25`."""

    k1: float = 0.9
    b: float = 0.4
    language: Language = ENGLISH
    stemmer: Stemmer = "porter"
    keep_stopwords: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.k1) and self.k1 >= 0 and 0 <= self.b <= 1):
            expected = "expected k1 of at least 0 and b from 0 to 1"
            raise UsageError(f"encoder 'bm25': k1={self.k1} and b={self.b}, {expected}")
        if self.language != ENGLISH and self.analysis[1:] != BM25Settings().analysis[1:]:
            own = f"the analyser of language={self.language} has its own stemmer and stop words"
            raise UsageError(f"encoder 'bm25': stemmer and keep_stopwords are of English; {own}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> BM25Settings:
        """The settings among the options of an encoder, as a manifest holds them."""
        names = {field.name for field in fields(cls)}
        own = {name: value for name, value in options.items() if name in names}
        return cls(**check_options("bm25", load_bm25, own))

    @property
    def analysis(self) -> tuple[Language, Stemmer, bool]:
        """What makes terms of texts; it must be the same for documents and queries."""
        return self.language, self.stemmer, self.keep_stopwords


def load_bm25(
    source: Source,
    k1: float = BM25Settings.k1,
    b: float = BM25Settings.b,
    language: Language = BM25Settings.language,
    stemmer: Stemmer = BM25Settings.stemmer,
    keep_stopwords: bool = BM25Settings.keep_stopwords,
) -> Encoder:
    """BM25, the baseline: texts are passed on as they are, and stock Anserini analyses and scores them.

    The score of a document d for the terms t of a query, as Lucene computes it (Robertson and Zaragoza 2009, without
    their constant factor k1 + 1):

        score(q, d) = sum over t of ln(1 + (N - df + 0.5) / (df + 0.5)) x tf / (tf + k1 (1 - b + b |d| / avgdl))

    tf is the frequency of t in d, df the number of documents that have it, N that of all documents with text, |d| the
    number of terms of d (Lucene stores it in one byte: exact up to 40, rounded down above), avgdl its mean.

    BM25, which needs neither checkpoint nor device; `search` may change k1 and b, the others are the index's.

    Args:
        source: no checkpoint.
        k1: how much further occurrences of a term add, at least 0.
        b: how much the length of a document counts, from 0 to 1.
        language: code of Anserini's analyser.
        stemmer: of English.
        keep_stopwords: keep stop words of English.
    """
    if source.checkpoint is not None:
        raise UsageError("encoder 'bm25' has no model; leave the checkpoint out")
    BM25Settings(k1, b, language, stemmer, keep_stopwords)
    tower = PlainTextTower()
    return Encoder("bm25", "text", tower, tower)
