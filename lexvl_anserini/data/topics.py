"""Reads topics and judgements from files in BEIR's and TREC's formats, for any dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lexvl_anserini.data.ids import checked_id, shown
from lexvl_anserini.data.lines import Line, decode, parse_object, plain_suffix, read_lines, string_field
from lexvl_anserini.errors import DataError
from lexvl_anserini.records import Qrel, Topic

TOPIC_FORMATS = ".tsv or .txt (query_id, tab, text) or .jsonl (BEIR queries), each also as .gz"

# Suffixes of files that a user may name as topics; no dataset's name ends in one.
_FILE_SUFFIXES = frozenset({".csv", ".gz", ".json", ".jsonl", ".tsv", ".txt"})

# Larger relevances overflow in tools that measure.
_INTEGER = re.compile(r"[+-]?0*[0-9]{1,9}")
_QRELS_HEADER = ("query-id", "corpus-id", "score")


def is_file_of_topics(name: str) -> bool:
    """Whether the name of topics is a file instead of a dataset.

    Raises:
        DataError: the name has the suffix of a file, and the file does not exist.
    """
    if Path(name).is_file():
        return True
    if Path(name).suffix in _FILE_SUFFIXES:
        raise DataError(f"{name}: no such file")
    return False


def read_topics(path: Path, escape_ids: bool = False) -> Iterator[Topic]:
    """Streams the topics of a file, in its order: TSV `query_id<TAB>text`, or BEIR's `queries.jsonl`.

    Raises:
        DataError: unknown suffix, a malformed line, an id given twice, or no topic at all.
    """
    parsers = {".jsonl": _topic_from_json, ".tsv": _topic_from_tsv, ".txt": _topic_from_tsv}
    suffix = plain_suffix(path)
    if suffix not in parsers:
        raise DataError(f"{path}: unknown format of topics {suffix!r}; expected {TOPIC_FORMATS}")
    first_line: dict[str, int] = {}
    for line in read_lines(path):
        topic = parsers[suffix](line, escape_ids)
        if topic.query_id in first_line:
            raise DataError(
                f"{line.where}: query id {topic.query_id!r} is on line {first_line[topic.query_id]} already; "
                "ids must be distinct"
            )
        first_line[topic.query_id] = line.number
        yield topic
    if not first_line:
        raise DataError(f"{path}: no query in it")


def read_qrels(path: Path, escape_ids: bool = False) -> Iterator[Qrel]:
    """Streams the judgements of a file: BEIR's TSV with or without header, or TREC's four columns.

    Ids may contain white space only where tabs separate the columns.

    Raises:
        DataError: a malformed line, a relevance that is no integer, or no judgement at all.
    """
    empty = True
    for line in read_lines(path):
        columns = _columns(decode(line))
        if line.number == 1 and _is_header(columns):
            continue
        empty = False
        yield _qrel(columns, line.where, escape_ids)
    if empty:
        raise DataError(f"{path}: no judgement in it; expected lines of query-id, corpus-id, score")


def _topic_from_json(line: Line, escape_ids: bool) -> Topic:
    record = parse_object(line)
    if "_id" not in record:
        raise DataError(f"{line.where}: no '_id'; keys found: {', '.join(record) or 'none'}")
    text, image = (string_field(record, key, line.where) for key in ("text", "image"))
    if text is None and image is None:
        raise DataError(f"{line.where}: no 'text'; keys found: {', '.join(record)}")
    return Topic(
        query_id=checked_id(record["_id"], line.where, escape_ids),
        text=text,
        image=None if image is None else str(line.path.parent / image),
    )


def _topic_from_tsv(line: Line, escape_ids: bool) -> Topic:
    query_id, tab, text = decode(line).partition("\t")
    if not tab:
        raise DataError(f"{line.where}: no tab; expected query_id, tab, text")
    return Topic(checked_id(query_id, line.where, escape_ids), text)


def _columns(text: str) -> list[str]:
    return text.split("\t") if "\t" in text else text.split()


def _is_header(columns: list[str]) -> bool:
    return tuple(column.strip().lower().replace("_", "-") for column in columns) == _QRELS_HEADER


def _qrel(columns: list[str], where: str, escape_ids: bool) -> Qrel:
    if len(columns) == 3:
        query_id, doc_id, relevance = columns
    elif len(columns) == 4:
        query_id, _iteration, doc_id, relevance = columns
    else:
        raise DataError(
            f"{where}: {len(columns)} columns, expected 3 ({', '.join(_QRELS_HEADER)}) "
            "or TREC's 4 (query-id, 0, corpus-id, score)"
        )
    if not _INTEGER.fullmatch(relevance.strip()):
        raise DataError(f"{where}: relevance {shown(relevance)} is not an integer of at most 9 digits")
    return Qrel(checked_id(query_id, where, escape_ids), checked_id(doc_id, where, escape_ids), int(relevance))
