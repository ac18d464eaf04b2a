"""Reads topics and judgements from files in BEIR's and TREC's formats, for any dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lexvl_anserini.data.checks import check_id, show_id
from lexvl_anserini.data.lines import (
    PACKED,
    Line,
    decode,
    get_plain_suffix,
    get_string,
    is_header,
    log_once,
    parse_object,
    read_lines,
)
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Qrel, Topic

TOPIC_FORMATS = ".tsv or .txt (query_id, tab, text) or .jsonl (BEIR queries), each also as .gz or .zst"

# Suffixes of files that a user may name as topics; no dataset's name ends in one.
_FILE_SUFFIXES = frozenset({".csv", ".json", ".jsonl", ".tsv", ".txt", *PACKED})

_INTEGER = re.compile(r"[+-]?0*[0-9]{1,9}")  # larger relevances overflow in tools that measure
_PROBABILITY = re.compile(r"0?\.[0-9]+(e-?[0-9]+)?|1\.0*|1", re.IGNORECASE)
_QRELS_HEADER = ("query-id", "corpus-id", "score")
_EXPECTED = (
    f"expected 3 ({', '.join(_QRELS_HEADER)}) or TREC's 4 (query-id, 0, corpus-id, score), as many in every line; "
    "of 5 columns only judgements of a sample (query-id, 0, corpus-id, stratum, score) and prels are known"
)


def is_topics_file(name: str) -> bool:
    """Whether the name of topics is a file instead of a dataset."""
    if Path(name).is_file():
        return True
    if Path(name).suffix in _FILE_SUFFIXES:
        raise DataError(f"{name}: no such file")
    return False


def read_topics(path: Path, escape_ids: bool = False) -> Iterator[Topic]:
    """Streams the topics of a file, in its order: TSV `query_id<TAB>text`, or BEIR's `queries.jsonl`."""
    suffix = get_plain_suffix(path)
    if suffix not in (".jsonl", ".tsv", ".txt"):
        raise DataError(f"{path}: unknown format of topics {suffix!r}; expected {TOPIC_FORMATS}")
    first_line: dict[str, int] = {}
    for line in read_lines(path):
        if suffix == ".jsonl":
            topic = Topic(*parse_fields(parse_object(line), line, escape_ids))
        elif is_header(line, decode(line).split("\t")):
            continue
        else:
            topic = _parse_tsv_topic(line, escape_ids)
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
    """Streams the judgements of a file: BEIR's TSV with or without header, or TREC's columns.

    TREC's are four, or five: see `_choose_layout`. All lines have as many columns as the first: a line that is cut off
    may look like one of three. Ids may contain white space only where tabs separate the columns.
    """
    layout, width = None, 0
    for line in read_lines(path):
        columns = _split_columns(decode(line), escape_ids)
        if line.number == 1 and tuple(name.strip().lower().replace("_", "-") for name in columns) == _QRELS_HEADER:
            continue
        if layout is None:
            layout, width = _choose_layout(columns, line.where), len(columns)
        elif len(columns) != width:
            raise DataError(f"{line.where}: {len(columns)} columns, {_EXPECTED}")
        yield _parse_qrel(columns, layout, line.where, escape_ids)
    if layout is None:
        raise DataError(f"{path}: no judgement in it; expected lines of query-id, corpus-id, score")


def parse_fields(record: dict[str, Any], line: Line, escape_ids: bool) -> tuple[str, str | None, str | None]:
    """The id, the text and the image's path in a line of BEIR's; one of the latter may be None."""
    if "_id" not in record:
        raise DataError(f"{line.where}: no '_id'; keys found: {', '.join(record) or 'none'}")
    text, image = (get_string(record, key, line.where) for key in ("text", "image"))
    if text is None and image is None:
        raise DataError(f"{line.where}: no 'text'; keys found: {', '.join(record)}")
    item_id = check_id(record["_id"], line.where, escape_ids)
    return item_id, text, None if image is None else str(line.path.parent / image)


def _parse_tsv_topic(line: Line, escape_ids: bool) -> Topic:
    query_id, tab, text = decode(line).partition("\t")
    if not tab:
        raise DataError(f"{line.where}: no tab; expected query_id, tab, text")
    return Topic(check_id(query_id, line.where, escape_ids), text)


def _split_columns(text: str, escape_ids: bool) -> list[str]:
    """The columns between tabs, else between white space of any kind.

    A line with tabs and blanks has its columns between both if that makes the last one a relevance, and tabs alone do
    not. With `escape_ids`, blanks belong to ids.
    """
    by_tab, by_any = text.split("\t"), text.split()
    if escape_ids and len(by_tab) > 1:
        return by_tab
    by_tab = [column.strip() for column in by_tab]
    mixed = not _INTEGER.fullmatch(by_tab[-1]) and bool(by_any) and bool(_INTEGER.fullmatch(by_any[-1]))
    return by_any if len(by_tab) == 1 or mixed else by_tab


def _choose_layout(columns: list[str], where: str) -> tuple[int, int, int]:
    """The positions of query id, document id and relevance, from the columns of a file's first line."""
    if len(columns) == 3:
        return 0, 1, 2
    if len(columns) == 4:
        return 0, 2, 3
    if len(columns) == 5:
        if columns[1] in ("0", "Q0") and all(map(_INTEGER.fullmatch, columns[3:])):
            log_once(f"{where}: 5 columns, read as judgements of a sample (query-id, 0, corpus-id, stratum, score)")
            return 0, 2, 4
        if _INTEGER.fullmatch(columns[2]) and _PROBABILITY.fullmatch(columns[4]):
            log_once(f"{where}: 5 columns, read as prels (query-id, corpus-id, score, method, probability)")
            return 0, 1, 2
    hint = " as in a run (are --run and --qrels swapped?)" if len(columns) == 6 else ""
    raise DataError(f"{where}: {len(columns)} columns{hint}, {_EXPECTED}")


def _parse_qrel(columns: list[str], layout: tuple[int, int, int], where: str, escape_ids: bool) -> Qrel:
    query_id, doc_id, relevance = (columns[position] for position in layout)
    if not _INTEGER.fullmatch(relevance.strip()):
        raise DataError(f"{where}: relevance {show_id(relevance)} is not an integer of at most 9 digits")
    return Qrel(check_id(query_id, where, escape_ids), check_id(doc_id, where, escape_ids), int(relevance))
