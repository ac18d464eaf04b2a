"""ViDoRe, VisRAG and MMEB: pages in Parquet tables, `vidore:<folder>` or `vidore/<name>`, and their measures.

A folder has tables of three kinds, told apart by their columns:

* pages: an id and a picture, sometimes its text (`markdown`);
* queries: an id and a text, sometimes a `language`;
* judgements: the ids of both, and a `score`.

MTEB has a folder of each kind and language, `english-queries`. ViDoRe's first version has tables whose rows are a page
with a query for it; then the page's id is its `image_filename`, and a query's is q and the number of its first row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_eval.score import make_judged_command

from lexvl_anserini.cli import run
from lexvl_anserini.data.checks import check_id, check_qrel
from lexvl_anserini.data.dataset import Dataset, choose_direction, data_root
from lexvl_anserini.data.lines import choose_files, log_once
from lexvl_anserini.data.parquet import (
    find_picture_column,
    list_plain_columns,
    read_rows,
    read_schema,
)
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.machine import expand_path, split_path
from lexvl_anserini.ground.records import CorpusRef, Document, Qrel, Topic

if TYPE_CHECKING:
    from pyarrow import Schema

FAMILY = "vidore"
OFFERED = ("text-to-image", "text-to-text")
DEFAULT_SPLIT = "test"

# The columns of the published tables, by what they hold; the first that a table has counts.
DOC_ID, QUERY_ID = ("corpus-id", "corpus_id", "id", "_id"), ("query-id", "query_id", "id", "_id")
JUDGED = (DOC_ID[:2], QUERY_ID[:2], ("score",))
QUERY, TEXT = ("query", "text"), ("markdown", "text")
SCORE, LANGUAGE, FILE = "score", "language", "image_filename"

# `test-00000-of-00002.parquet`
_OF_SPLIT = re.compile(r"(?P<split>[A-Za-z]+)-\d+-of-\d+(-[0-9a-f]+)?")


class PageTables(NamedTuple):
    """The tables of a folder by kind; `rows` are pages with their queries."""

    where: Path
    pages: Sequence[Path]
    queries: Sequence[Path]
    judgements: Sequence[Path]
    rows: Sequence[Path]


def load_vidore(ref: CorpusRef) -> Dataset:
    """Loads `vidore:<folder>[,<language>]`, or `vidore/<name>[,<language>]` from the data folder.

    Topics are texts, documents are pages as pictures (text-to-image, default) or, where the tables have them, as texts
    (text-to-text). With a language, only its topics count.
    """
    direction, split = choose_direction(ref, OFFERED, OFFERED[0]), ref.split or DEFAULT_SPLIT
    where, language = find_folder(ref)
    tables = find_tables(where, split, language)
    ref = replace(ref, direction=direction, split=split)
    return Dataset.of(
        ref,
        documents=partial(read_pages, tables, direction == "text-to-text", ref.escape_ids),
        topics=partial(read_topics, tables, language, ref.escape_ids),
        qrels=partial(read_judgements, tables, language, ref.escape_ids),
    )


def find_folder(ref: CorpusRef) -> tuple[Path, str | None]:
    """The folder of a data set and the language of its topics; None for all."""
    separator = ref.name[len(FAMILY) : len(FAMILY) + 1]
    named = ref.name[len(FAMILY) + 1 :]
    path, language = split_path(named) if separator == ":" else named.partition(",")[::2]
    if not path:
        raise UsageError(f"{ref.name!r} names no pages; expected {FAMILY}:<folder> or {FAMILY}/<name>")
    where = expand_path(path) if separator == ":" else data_root(ref.data_dir) / FAMILY / path
    if not where.is_dir():
        remedy = f"; hf download --repo-type dataset {FAMILY}/{path} --local-dir {where}" if separator == "/" else ""
        raise DataError(f"{where}: no such folder{remedy}")
    return where, language or None


def find_tables(where: Path, split: str, language: str | None = None) -> PageTables:
    """The tables of a split, and of a language where its name begins that of a folder; others are named in the log."""
    kinds: dict[str, list[Path]] = {kind: [] for kind in (*PageTables._fields[1:], "others")}
    splits: set[str] = set()
    paths = choose_files(where, ".parquet", "**/*")
    own = [path for path in paths if language and path.parent.name.startswith(f"{language}-")]
    for path in own or paths:
        named = _OF_SPLIT.fullmatch(path.stem)
        splits.add(named["split"] if named else split)
        if named is None or named["split"] == split:
            kinds[_classify(read_schema(path))].append(path)
    others = kinds.pop("others")
    if not kinds["pages"] and not kinds["rows"]:
        there = f"splits there: {', '.join(sorted(splits))}" if splits - {split} else "no table of pages"
        raise DataError(f"{where}: no pages of split {split!r} ({there}); expected .parquet with {DOC_ID[0]} and image")
    if others:
        names = ", ".join(str(path.relative_to(where)) for path in others)
        log_once(f"{where}: neither pages, queries nor judgements: {names}")
    return PageTables(where, *kinds.values())


def _classify(schema: Schema) -> str:
    names = set(schema.names)
    if not any(names.isdisjoint(choices) for choices in JUDGED):
        return "judgements"
    if find_picture_column(schema):
        rows = {QUERY[0], FILE} <= names
        return "rows" if rows else "others" if names.isdisjoint(DOC_ID) else "pages"
    return "others" if names.isdisjoint(QUERY_ID) or names.isdisjoint(QUERY) else "queries"


def read_pages(tables: PageTables, texts: bool, escape_ids: bool = False) -> Iterator[Document]:
    """The pages in the order of tables and rows; of rows with queries each page once."""
    seen: set[str] = set()
    for path in tables.pages or tables.rows:
        schema = read_schema(path)
        [id_column] = _choose_columns(schema, DOC_ID if tables.pages else (FILE,))
        text = next((name for name in TEXT if name in schema.names), None)
        if texts and text is None:
            raise DataError(f"{path}: no text of pages ({' or '.join(TEXT)}); encode its pictures")
        columns = [id_column, *([text] if text else [])]  # and those of numbers and words, which become metadata
        columns += [name for name in list_plain_columns(schema) if name not in {id_column, *TEXT, *QUERY}]
        for row, values in enumerate(read_rows(path, columns)):
            doc_id = check_id(values.pop(id_column), f"{path} row {row}", escape_ids)
            if not tables.pages and doc_id in seen:
                continue
            seen.add(doc_id)
            content = values.pop(text) if text else None
            metadata = {key: value for key, value in values.items() if value is not None}
            yield Document(doc_id, text=content, image=f"{path}::{row}", metadata=metadata)


def read_topics(tables: PageTables, language: str | None = None, escape_ids: bool = False) -> Iterator[Topic]:
    """The queries of a language, or all."""
    languages: set[str] = set()
    count = 0
    if any(path.parent.name.startswith(f"{language}-") for path in tables.queries):
        language = None
    for path in tables.queries:
        schema = read_schema(path)
        id_column, text = _choose_columns(schema, QUERY_ID, QUERY)
        spoken = [LANGUAGE] if LANGUAGE in schema.names else []
        for row, values in enumerate(read_rows(path, [id_column, text, *spoken])):
            languages.add(values.get(LANGUAGE) or "")
            if language in (None, values.get(LANGUAGE)):
                count += 1
                yield Topic(check_id(values[id_column], f"{path} row {row}", escape_ids), values[text])
    if not tables.queries and language is None:
        for text, query_id in _number_queries(tables).items():
            count += 1
            yield Topic(query_id, text)
    if not count:
        there = ", ".join(sorted(filter(None, languages))) or "none"
        asked_for = f" of language {language!r}" if language else ""
        raise DataError(f"{tables.where}: no query{asked_for}; languages there: {there}")


def read_judgements(tables: PageTables, language: str | None = None, escape_ids: bool = False) -> Iterator[Qrel]:
    """The judgements of the topics of a language, or of all."""
    if not tables.judgements and not tables.rows:
        raise DataError(f"{tables.where}: no table of judgements; expected {QUERY_ID[0]}, {DOC_ID[0]}, {SCORE}")
    topics = {topic.query_id for topic in read_topics(tables, language, escape_ids)} if language else None
    for path in tables.judgements:
        columns = _choose_columns(read_schema(path), QUERY_ID, DOC_ID)
        for row, values in enumerate(read_rows(path, [*columns, SCORE])):
            query_id, doc_id = (values[column] for column in columns)
            qrel = check_qrel(query_id, doc_id, values[SCORE], f"{path} row {row}", escape_ids)
            if topics is None or qrel.query_id in topics:
                yield qrel
    if not tables.judgements:
        topic_of = _number_queries(tables)
        rows = _read_queries(tables)
        yield from dict.fromkeys(
            Qrel(topic_of[values[QUERY[0]]], check_id(values[FILE], f"{path} row {row}", escape_ids), 1)
            for path, row, values in rows
        )


def _number_queries(tables: PageTables) -> Mapping[str, str]:
    """Text -> id of each distinct query of rows that are pages."""
    topics: dict[str, str] = {}
    for number, (_, _, values) in enumerate(_read_queries(tables)):
        topics.setdefault(values[QUERY[0]], f"q{number}")
    return topics


def _read_queries(tables: PageTables) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """The rows that have a query, of pages with their queries."""
    for path in tables.rows:
        for row, values in enumerate(read_rows(path, [QUERY[0], FILE])):
            if values[QUERY[0]]:
                yield path, row, values


def _choose_columns(schema: Schema, *wanted: Sequence[str]) -> list[str]:
    """The column of a table for each of what is needed."""
    return [next(name for name in choices if name in schema.names) for choices in wanted]


command = make_judged_command(
    """Measure runs on pages of ViDoRe, VisRAG or MMEB: nDCG@5, nDCG@10, Recall@5 and Recall@100.

    Example: python -m lexvl_plugins.pages.vidore --run runs/esg.v-splade.trec --dataset vidore:data/esg_reports
    """,
    ["nDCG@5", "nDCG@10", "Recall@5", "Recall@100"],
    ties="trec_eval",
)

if __name__ == "__main__":
    run(command)
