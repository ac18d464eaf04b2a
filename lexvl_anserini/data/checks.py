"""Checks ids, which must be distinct within a corpus, and digests a corpus.

A TREC run and qrels separate their columns by white space, so an id must not contain any; control characters break
the tools around them. `escape_ids` percent-encodes both (and the per cent sign, so that it can be undone) in documents,
topics and qrels alike.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import NOT_INDEXED, Document, Qrel, name_token

NAMED = 5  # ids named in an error: enough to see a pattern, few enough for one line
Documents = Callable[[], Iterator[Document]]


class CorpusSummary(NamedTuple):
    """A corpus that was read once.

    Attributes:
        digest: SHA-256 (hex) of the documents' ids, titles, texts and names of images, in order.
        images: number of documents with an image.
        contents: digest of the pictures, vectors and stored metadata that will be encoded; None if there are none.
    """

    documents: int
    digest: str
    images: int = 0
    contents: str | None = None


def check_corpus(
    documents: Documents, where: str, visit: Callable[[Document], None] = lambda document: None
) -> CorpusSummary:
    """Counts the documents, digests them, and verifies that their ids are distinct.

    Memory: 8 bytes per document. A second pass happens only if two ids may be equal. The first one calls `visit`.
    """
    seen, digest = SeenIds(), sha256()
    images = 0
    for document in documents():
        seen.add(document.doc_id)
        images += document.image is not None
        digest.update(pack_document(document))
        visit(document)
    if not len(seen):
        raise DataError(f"{where}: no document in it")
    if repeated := seen.find_repeated(lambda: (document.doc_id for document in documents())):
        named = "; ".join(f"{doc_id!r} at {str(places)[1:-1]}" for doc_id, places in list(repeated.items())[:NAMED])
        more = f" and {len(repeated) - NAMED} more" if len(repeated) > NAMED else ""
        problem = f"ids that occur more than once (documents counted from 1): {named}{more}"
        raise DataError(f"{where}: {problem}; ids must be distinct")
    return CorpusSummary(len(seen), digest.hexdigest(), images)


def pack_document(document: Document) -> bytes:
    """A document's id, title, text and image such that no two documents, nor sequences of them, give the same bytes.

    Of an image only the file name counts: the same corpus in another folder is the same corpus. What the image shows
    is digested by `shards.encoding`.
    """
    image = document.image and document.image.rsplit("/", 1)[-1]
    try:
        return b"".join(map(pack_field, (document.doc_id, document.title, document.text, image)))
    except UnicodeEncodeError as error:
        where = f"document {document.doc_id!a:.{SHOWN}}: character {error.start + 1} of {error.object!a:.{SHOWN}}"
        raise DataError(f"{where} is no valid Unicode; expected texts in UTF-8") from error


def pack_field(value: str | None) -> bytes:
    """A mark (absent or present), the length of the text, its UTF-8: fields in a row are unambiguous."""
    if value is None:
        return b"-"
    data = value.encode("utf-8")
    return b"+" + len(data).to_bytes(8, "little") + data


MAX_ID_BYTES = 32_766  # the longest term of a Lucene index, in bytes of UTF-8
SHOWN = 80  # characters of an id in an error
_DIGITS = 10**1000  # larger integers are refused as ids: Python does not print those of some thousand digits
_REFUSED = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_WHOLE = re.compile(r"[+-]?0*[0-9]{1,9}(\.0*)?")  # larger relevances overflow in tools that measure
_ESCAPED = re.compile(r"[\s%\x00-\x1f\x7f-\x9f]")


def escape_id(raw: str) -> str:
    """Percent-encodes white space, control characters and `%`; other characters stay readable."""
    return _ESCAPED.sub(lambda match: quote(match[0], safe=""), raw)


def unescape_id(escaped: str) -> str:
    """Undoes `escape_id`."""
    return unquote(escaped, errors="strict")


def check_id(raw: Any, where: str, escape: bool = False) -> str:
    """An id that a run file and an index can hold.

    JSON integers are taken as their decimal digits, because tools that write ids from a table often leave them unquoted
    and qrels name them by those digits; fractions and booleans have no such spelling and are refused.
    """
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < _DIGITS:
        raw = str(raw)
    if not isinstance(raw, str):
        raise DataError(f"{where}: id {show_id(raw)} is not a string")
    if not raw.strip():
        raise DataError(f"{where}: empty id")
    if escape:
        raw = escape_id(raw)
    elif refused := _REFUSED.search(raw):
        what = "white space" if refused[0].isspace() else f"control character U+{ord(refused[0]):04X}"
        remedy = "--escape-ids percent-encodes it"
        raise DataError(f"{where}: {what} in id {show_id(raw)}, which a run file cannot hold; {remedy}")
    if not fits_index(raw):
        size = f"has {len(raw.encode()):,} bytes, an index holds {MAX_ID_BYTES:,}"
        raise DataError(f"{where}: id {show_id(raw)} {size}; shorten it")
    return raw


def check_qrel(query_id: Any, doc_id: Any, relevance: Any, where: str, escape: bool = False) -> Qrel:
    """A judgement whose ids a run file and an index can hold."""
    return Qrel(check_id(query_id, where, escape), check_id(doc_id, where, escape), check_relevance(relevance, where))


def check_relevance(raw: Any, where: str) -> int:
    """A relevance: a whole number, however it is written (2, 2.0, "2"); a fraction is refused, never cut."""
    if not _WHOLE.fullmatch(str(raw).strip()):
        remedy = "; scale graded judgements to whole numbers" if isinstance(raw, float) else ""
        raise DataError(f"{where}: relevance {show_id(raw)} is not an integer of at most 9 digits{remedy}")
    return int(float(raw))


def fits_index(item_id: str) -> bool:
    """Whether an id is short enough for an index."""
    return len(item_id) <= MAX_ID_BYTES // 4 or len(item_id.encode("utf-8", "surrogatepass")) <= MAX_ID_BYTES


def show_id(item_id: Any) -> str:
    """An id as errors show it: its `repr`, cut if it is long."""
    text = repr(item_id) if not isinstance(item_id, int) or abs(item_id) < _DIGITS else "of many digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


NUMBERS = {int, float}  # types of weights
HUGE = 1e300  # what no weight reaches


def parse_weights(vector: Any, where: str, tokens: bool = False) -> dict[str, float]:
    """Term -> weight of an object or a list of [term, weight]; integers if all are whole, as 13.0 is.

    Where the terms are `tokens` of an encoder, those of white space get the names of its vocabulary.
    """
    weights = vector if isinstance(vector, dict) else _parse_pairs(vector, where)
    if tokens and any(map(NOT_INDEXED.search, weights)):
        weights = _parse_pairs([(name_token(term), weight) for term, weight in weights.items()], where)
    values = weights.values()
    kinds = set(map(type, values))
    if values and (not kinds <= NUMBERS or min(values) < 0 or max(values) >= HUGE):
        term, bad = next((t, w) for t, w in weights.items() if type(w) not in NUMBERS or not 0 <= w < HUGE)
        shown = "null, NaN or infinite" if bad is None else show_id(bad)  # as JSON lines are read
        raise DataError(f"{where}: weight {shown} of term {show_id(term)}, expected a finite number, 0 or more")
    whole = float in kinds and all(float(weight).is_integer() for weight in values)
    return {term: int(weight) for term, weight in weights.items()} if whole else weights


def _parse_pairs(pairs: Any, where: str) -> dict[str, float]:
    """The weights of a list of [term, weight]."""
    try:
        terms = [(term, weight) for term, weight in pairs]
        weights = dict(terms)
    except (TypeError, ValueError):
        terms, weights = [], {None: 0}
    if not set(map(type, weights)) <= {str}:
        raise DataError(f"{where}: vector {show_id(pairs)}, expected an object of term and weight, or pairs")
    if len(weights) < len(terms):
        raise DataError(f"{where}: a term twice in vector {show_id(pairs)}")
    return weights


class SeenIds:
    """Finds ids that occur twice, with 8 bytes of memory per id; where hashes are equal, a second pass compares ids."""

    def __init__(self) -> None:
        self.hashes = array("q")

    def add(self, item_id: str) -> None:
        """Adds the next id."""
        self.hashes.append(hash(item_id))

    def __len__(self) -> int:
        return len(self.hashes)

    def find_repeated(self, again: Callable[[], Iterator[str]]) -> dict[str, list[int]]:
        """The ids that were added more than once, with their positions from 1; `again` streams all ids once more."""
        hashes = np.frombuffer(self.hashes, dtype=np.int64)
        hashes.sort()
        suspects = frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        positions: dict[str, list[int]] = {}
        for position, item_id in enumerate(again(), start=1) if suspects else ():
            if hash(item_id) in suspects:
                positions.setdefault(item_id, []).append(position)
        return {item_id: places for item_id, places in positions.items() if len(places) > 1}
