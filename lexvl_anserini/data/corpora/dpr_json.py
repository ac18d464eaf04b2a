"""DPR's files of questions with passages: a JSON array or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.data.checks import checked_id, shown
from lexvl_anserini.data.left_out import log_once
from lexvl_anserini.data.lines import DAMAGED_GZIP, open_packed, parse_object, plain_suffix, read_lines, string_field
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Document, Topic

# Names of the lists of passages, and of the id of a passage (in the files of DPR, of other trainers).
POSITIVES, HARD_NEGATIVES, NEGATIVES = "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"
PASSAGE_IDS = ("passage_id", "psg_id", "docid")
# A passage's score by the system that retrieved it.
SCORE = "score"


class Example(NamedTuple):
    """One entry of a file: a query, its positives, at least one, its hard negatives, and a teacher's scores by id."""

    where: str
    query: Topic
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...]
    scores: Mapping[str, float] = {}


def read_dpr(path: Path, escape_ids: bool = False) -> Iterator[Example]:
    """The questions of a DPR file that have a positive. An entry without `query_id` has its number, from 1, as id.

    Raises:
        DataError: malformed JSON, an entry without question or passages, or a passage without text.
    """
    skipped = total = 0
    for where, record in dpr_records(path):
        total += 1
        question = string_field(record, "question", where)
        if not question or not question.strip():
            raise DataError(f"{where}: no 'question'; keys found: {', '.join(record) or 'none'}")
        if POSITIVES not in record:
            raise DataError(f"{where}: no {POSITIVES!r}; keys found: {', '.join(record)}")
        positives = passages(record, POSITIVES, where, escape_ids)
        negatives = passages(record, HARD_NEGATIVES, where, escape_ids) or passages(
            record, NEGATIVES, where, escape_ids
        )
        if not positives:
            skipped += 1
            continue
        query_id = checked_id(record.get("query_id", total), where, escape_ids)
        scores = {document.doc_id: score for document, score in (*positives, *negatives) if score is not None}
        right, wrong = (tuple(document for document, _ in listed) for listed in (positives, negatives))
        yield Example(where, Topic(query_id, question), right, wrong, scores)
    if skipped == total:
        raise DataError(f"{path}: {f'none of {total} entries has a positive' if total else 'no entry in it'}")
    if skipped:
        log_once(f"{path}: {skipped} of {total} entries have no positive and are left out")


def dpr_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a JSON array or of JSON lines, each with its place."""
    if plain_suffix(path) == ".jsonl":
        for line in read_lines(path):
            yield line.where, parse_object(line)
        return
    try:
        with open_packed(path) as source:
            records = orjson.loads(source.read())
    except (OSError, *DAMAGED_GZIP) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem
    except orjson.JSONDecodeError as problem:
        raise DataError(f"{path}: malformed JSON ({problem}); JSON lines have the suffix .jsonl") from problem
    if not isinstance(records, list):
        raise DataError(f"{path}: no JSON array; expected [{{'question': ..., '{POSITIVES}': [...]}}, ...]")
    for number, record in enumerate(records, start=1):
        where = f"{path} entry {number}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: not an object with 'question' and {POSITIVES!r}")
        yield where, record


def passages(record: Mapping[str, Any], key: str, where: str, escape_ids: bool) -> list[tuple[Document, float | None]]:
    """The passages of one list of an entry, each with its score if it has one; an absent list has none."""
    listed = record.get(key) or []
    if not isinstance(listed, list):
        raise DataError(f"{where}: {key!r} is not a list of passages")
    found = []
    for number, passage in enumerate(listed, start=1):
        place = f"{where}: passage {number} of {key!r}"
        if not isinstance(passage, dict):
            raise DataError(f"{place} is {shown(passage)}, expected an object with 'title' and 'text'")
        title, text = (string_field(passage, name, place) for name in ("title", "text"))
        if text is None or not f"{title or ''}{text}".strip():
            raise DataError(f"{place} has no text")
        own = next((passage[name] for name in PASSAGE_IDS if name in passage), None)
        doc_id = digest_of(title or "", text) if own is None else checked_id(own, place, escape_ids)
        score = passage.get(SCORE)
        if score is not None and (isinstance(score, bool) or not isinstance(score, (int, float))):
            raise DataError(f"{place}: {SCORE!r} is {shown(score)}, expected a number")
        found.append((Document(doc_id, title or None, text), score))
    return found


def digest_of(*parts: str) -> str:
    """An id from texts: 16 hex digits."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
