"""Passages: the parts of a long text, each a document of its own with the id `doc#0`, `doc#1`, ...

A document's id ends at the first `#` of the id of its passage, as in Pyserini; an id without `#` is a document of one
passage, and so is one that begins with its only `#`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from lexvl_anserini.data.entries import log_once
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document
from lexvl_anserini.ground.typed import MOST

DELIMITER = "#"

WORD = re.compile(r"\S+")


def document_of(passage_id: str) -> str:
    """The id of a passage's document.

    >>> [document_of(passage_id) for passage_id in ("d1#0", "d1", "d#2#3", "#4")]
    ['d1', 'd1', 'd', '#4']
    """
    end = passage_id.find(DELIMITER, 1)
    return passage_id if end < 0 else passage_id[:end]


class PassageRule(NamedTuple):
    """Passages of `words` words, one every `stride` words; words are parted by white space."""

    words: int
    stride: int

    @classmethod
    def of(cls, rule: str) -> PassageRule:
        """The rule `WORDS` or `WORDS:STRIDE`; a stride of WORDS is the default.

        Raises:
            UsageError: something else, or a stride that leaves words out.
        """
        numbers = rule.split(":") if re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", rule) else ["0"]
        words, stride = int(numbers[0]), int(numbers[-1])
        if not 1 <= stride <= words <= MOST:
            raise UsageError(
                f"passages {rule!r}: expected WORDS or WORDS:STRIDE, such as 150:75, a stride of 1 to WORDS"
            )
        return cls(words, stride)

    def texts(self, text: str) -> Iterator[str]:
        """The passages of a text, as they are in it; an empty text is one.

        >>> list(PassageRule(3, 2).texts("a b  c d e"))
        ['a b  c', 'c d e']
        """
        spans = [match.span() for match in WORD.finditer(text)]
        if len(spans) <= self.words:
            yield text
            return
        # The last passage ends with the text, which no further one would add a word to.
        for first in range(0, len(spans) - self.words + self.stride, self.stride):
            some = spans[first : first + self.words]
            yield text[some[0][0] : some[-1][1]]


def in_passages(documents: Callable[[], Iterator[Document]], rule: PassageRule, name: str) -> Iterator[Document]:
    """The passages of all documents, each with its document's title and metadata; one of a document with an image.

    Raises:
        DataError: an id has a `#`, so that its passages would count as those of another document.
    """
    count = passages = 0
    for count, document in enumerate(documents(), start=1):
        if document_of(f"{document.doc_id}{DELIMITER}") != document.doc_id:
            raise DataError(
                f"{name}: id {document.doc_id!r} of document {count} has a {DELIMITER!r}, which ends a document's id "
                "in that of a passage; rename it"
            )
        whole = document.image is not None or document.text is None
        texts = [document.text] if whole else rule.texts(document.text or "")
        for number, text in enumerate(texts):
            passages += 1
            yield document._replace(doc_id=f"{document.doc_id}{DELIMITER}{number}", text=text)
    log_once(f"{name}: {count:,} documents in {passages:,} passages", logging.INFO)


def splitting(documents: Callable[[], Iterator[Document]], rule: str, name: str) -> Callable[[], Iterator[Document]]:
    """What starts a stream of passages; `rule` as of `PassageRule.of`, which raises here."""
    return partial(in_passages, documents, PassageRule.of(rule), name)
