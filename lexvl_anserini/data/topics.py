"""Reads topics and judgements from files in BEIR's and TREC's formats, for any dataset."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.checks import check_id, check_qrel, show_id
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
    some,
)
from lexvl_anserini.data.parquet import list_plain_columns, read_rows, read_schema
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Qrel, Topic

RECORDS = (".jsonl", ".parquet")
TOPIC_FORMATS = (
    ".tsv or .txt (query_id, tab, text) or .jsonl (BEIR queries) or TREC's own topics, each also as .gz or .zst, "
    "or .parquet (of the hub)"
)

# Suffixes of files that a user may name as topics; no dataset's name ends in one.
_FILE_SUFFIXES = frozenset({".csv", ".json", ".jsonl", ".tsv", ".txt", *PACKED})

# Topics of TREC: `<top>` with `<num> Number: 301` and `<title> ...` that nothing closes, or XML.
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TOPIC = re.compile(r"<top(?=[\s>])|<topic(?=[\s>])", re.IGNORECASE)
_TOPIC_NUMBER = re.compile(
    r"""<num>\s*(?:Number:\s*)?(?P<number>[^\s<]+)|\A[^>]*?\b(?:number|id)\s*=\s*["'](?P<name>[^"']*)""", re.IGNORECASE
)
_TOPIC_TEXT = re.compile(
    r"<(?P<tag>title|query)\b[^>]*>\s*(?:Topic:)?(?P<text>.*?)(?=</?[a-z]|\Z)", re.IGNORECASE | re.DOTALL
)

_INTEGER = re.compile(r"[+-]?0*[0-9]{1,9}")
_PROBABILITY = re.compile(r"0?\.[0-9]+(e-?[0-9]+)?|1\.0*|1", re.IGNORECASE)
_QRELS_HEADER = ("query-id", "corpus-id", "score")
_EXPECTED = (
    f"expected 3 ({', '.join(_QRELS_HEADER)}) or TREC's 4 (query-id, 0, corpus-id, score); "
    "of 5 columns only judgements of a sample (query-id, 0, corpus-id, stratum, score) and prels are known"
)


def is_topics_file(name: str) -> bool:
    """Whether the name of topics is a file instead of a dataset."""
    if Path(name).is_file():
        return True
    if Path(name).suffix.lower() in _FILE_SUFFIXES:
        raise DataError(f"{name}: no such file")
    return False


class Record(NamedTuple):
    """A line of JSON, or a row of a Parquet table, as an object; an error about it begins with `where`."""

    path: Path
    where: str
    values: dict[str, Any]


def parse_record(line: Line) -> Record:
    """The record of a line of JSON."""
    return Record(line.path, line.where, parse_object(line))


def read_records(path: Path) -> Iterator[Record]:
    """The lines of a JSON file, or the rows of a Parquet table of the hub: without nulls, its `id` as `_id`."""
    if path.suffix.lower() != ".parquet":
        yield from map(parse_record, read_lines(path))
        return
    names = read_schema(path).names
    columns = list_plain_columns(read_schema(path))
    if others := [name for name in names if name not in columns]:
        log_once(f"{path}: columns that are neither numbers nor texts are left out: {some(others)}", logging.WARNING)
    for number, row in enumerate(read_rows(path, columns)):
        values = {key: value for key, value in row.items() if value is not None and value == value}  # no NaN
        if "id" in values and "_id" not in names:
            values["_id"] = values.pop("id")
        yield Record(path, f"{path} row {number}", values)


def read_topics(path: Path, escape_ids: bool = False) -> Iterator[Topic]:
    """Streams the topics of a file, in its order: see `TOPIC_FORMATS`."""
    first: dict[str, str] = {}
    for where, topic in _read_topics(path, escape_ids):
        if topic.query_id in first:
            what = f"query id {topic.query_id!r} is on {first[topic.query_id]} already"
            raise DataError(f"{where}: {what}; ids must be distinct")
        first[topic.query_id] = where.removeprefix(f"{path} ")
        yield topic
    if not first:
        raise DataError(f"{path}: no query in it")


def _read_topics(path: Path, escape_ids: bool) -> Iterator[tuple[str, Topic]]:
    """The topics of a file, each with its place."""
    suffix = get_plain_suffix(path)
    if suffix in RECORDS:
        for record in read_records(path):
            yield record.where, Topic(*parse_fields(record, escape_ids))
    elif decode(next(read_lines(path), Line(path, 0, b""))).lstrip().startswith("<"):
        yield from _read_trec_topics(path, escape_ids)
    elif suffix in (".tsv", ".txt"):
        for line in read_lines(path):
            query_id, *rest = decode(line).split("\t")
            if is_header(line, [query_id, *rest]):
                continue
            if not rest:
                raise DataError(f"{line.where}: no tab; expected query_id, tab, text")
            yield line.where, Topic(check_id(query_id, line.where, escape_ids), "\t".join(rest))
    else:
        raise DataError(f"{path}: unknown format of topics {suffix!r}; expected {TOPIC_FORMATS}")


def _read_trec_topics(path: Path, escape_ids: bool) -> Iterator[tuple[str, Topic]]:
    """The title of each `<top>` of TREC, the query or the title of each `<topic number="...">`."""
    _, *topics = _TOPIC.split(_COMMENT.sub("", "\n".join(map(decode, read_lines(path)))))
    if not topics:
        raise DataError(f"{path}: begins with <, without <top> or <topic> in it; expected {TOPIC_FORMATS}")
    log_once(f"{path}: topics in TREC's own form; their titles (or queries) are read, not their descriptions")
    for number, topic in enumerate(topics, start=1):
        where = f"{path} topic {number}"
        body, end, _ = re.split(r"(</top(?:ic)?\s*>)|\Z", topic, maxsplit=1, flags=re.IGNORECASE)
        query_id, query = _TOPIC_NUMBER.search(body), _TOPIC_TEXT.search(body)
        if not (query_id and query and end):
            lacks = "number" if not query_id else "title and no query" if not query else "end (</top>)"
            form = '<num>, <title> and </top>, or <topic number="...">, <query> and </topic>'
            raise DataError(f"{where}: no {lacks} in {show_id(topic.strip())}; expected {form}")
        name = query_id["number"] or query_id["name"]
        name = str(int(name)) if name.isdecimal() else name  # judgements have no zeros before it
        yield where, Topic(check_id(name, where, escape_ids), " ".join(unescape(query["text"]).split()))


def read_qrels(path: Path, escape_ids: bool = False) -> Iterator[Qrel]:
    """Streams the judgements of a file: BEIR's TSV with or without header, TREC's columns, JSON lines, or Parquet."""
    rows = _read_judged_records(path) if get_plain_suffix(path) in RECORDS else _read_judged_lines(path, escape_ids)
    if (first := next(rows, None)) is None:
        raise DataError(f"{path}: no judgement in it; expected lines of query-id, corpus-id, score")
    for where, (query_id, doc_id, relevance) in chain([first], rows):
        yield check_qrel(query_id, doc_id, relevance, where, escape_ids)


def _read_judged_records(path: Path) -> Iterator[tuple[str, list[Any]]]:
    for _, where, values in read_records(path):
        named = {key.replace("_", "-"): value for key, value in values.items()}
        if lacking := next((name for name in _QRELS_HEADER if name not in named), None):
            raise DataError(f"{where}: no {lacking!r}; keys found: {', '.join(values) or 'none'}")
        yield where, [named[name] for name in _QRELS_HEADER]


def _read_judged_lines(path: Path, escape_ids: bool) -> Iterator[tuple[str, list[Any]]]:
    """The three columns that count in each line; all have as many as the first, because one cut off may look whole."""
    layout, first, width = None, 0, 0
    for line in read_lines(path):
        columns = _split_columns(decode(line), escape_ids)
        if is_header(line, columns, _QRELS_HEADER):
            continue
        if layout is None:
            layout, first, width = _choose_layout(columns, line.where), line.number, len(columns)
            if not any(map(str.isdecimal, columns[layout[2]])):
                what = f"relevance {show_id(columns[layout[2]])}, expected an integer"
                raise DataError(f"{line.where}: {what}; the only header that is read is {', '.join(_QRELS_HEADER)}")
        elif len(columns) != width:
            raise DataError(f"{line.where}: {len(columns)} columns, expected {width} as in line {first}")
        yield line.where, [columns[position] for position in layout]


def parse_fields(record: Record, escape_ids: bool) -> tuple[str, str | None, str | None]:
    """The id, the text and the image's path in a record of BEIR's; one of the latter may be None."""
    path, where, values = record
    if "_id" not in values:
        raise DataError(f"{where}: no '_id'; keys found: {', '.join(values) or 'none'}")
    text, image = (get_string(values, key, where) for key in ("text", "image"))
    if text is None and image is None:
        what = "'text' is null, expected a string (an empty one is allowed)" if "text" in values else "no 'text'"
        raise DataError(f"{where}: {what}; keys found: {', '.join(values)}")
    item_id = check_id(values["_id"], where, escape_ids)
    return item_id, text, None if image is None else str(path.parent / image)


def _split_columns(text: str, escape_ids: bool) -> list[str]:
    """The columns between tabs, else white space of any kind; between both if that alone makes the last a relevance."""
    by_tab, by_any = text.split("\t"), text.split()
    if escape_ids and len(by_tab) > 1:  # blanks belong to ids
        return by_tab
    by_tab = [column.strip() for column in by_tab]
    mixed = not _INTEGER.fullmatch(by_tab[-1]) and bool(by_any) and bool(_INTEGER.fullmatch(by_any[-1]))
    return by_any if len(by_tab) == 1 or mixed else by_tab


def _choose_layout(columns: list[str], where: str) -> tuple[int, int, int]:
    """The positions of query id, document id and relevance, from the columns of a file's first line."""
    if len(columns) in (3, 4):
        return (0, 1, 2) if len(columns) == 3 else (0, 2, 3)
    if len(columns) == 5:
        if columns[1] in ("0", "Q0") and all(map(_INTEGER.fullmatch, columns[3:])):
            log_once(f"{where}: 5 columns, read as judgements of a sample (query-id, 0, corpus-id, stratum, score)")
            return 0, 2, 4
        if _INTEGER.fullmatch(columns[2]) and _PROBABILITY.fullmatch(columns[4]):
            log_once(f"{where}: 5 columns, read as prels (query-id, corpus-id, score, method, probability)")
            return 0, 1, 2
    hint = " as in a run (are --run and --qrels swapped?)" if len(columns) == 6 else ""
    raise DataError(f"{where}: {len(columns)} columns{hint}, {_EXPECTED}")
