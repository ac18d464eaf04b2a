"""Datasets of ir_datasets under its own ids: `irds:vaswani`, `irds:msmarco-passage/dev/small`.

ir_datasets fetches what is not there, checks its MD5 and keeps it in its own folder ($IR_DATASETS_HOME, else
~/.ir_datasets), so that what other tools fetched is used. A dataset that the user registers in Python
(`ir_datasets.registry.register`) has a name here too.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.data.checks import check_id, check_qrel
from lexvl_anserini.data.dataset import Dataset, choose_direction
from lexvl_anserini.data.lines import some
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.ground.records import NO_METADATA, CorpusRef, Document, Qrel, Topic

if TYPE_CHECKING:
    from ir_datasets import Dataset as Source

log = logging.getLogger(__name__)

NAMED = 8  # ids named in an error

# What ir_datasets calls the parts of a dataset, and our words for them.
PARTS = {"docs": "documents", "queries": "topics", "qrels": "judgements"}


def load_irds(ref: CorpusRef) -> Dataset:
    """Loads `irds:<id>`, with a split `irds:<id>/<split>`.

    Files are fetched when a part is read. Where documents have a title and a text, these are kept apart and other plain
    fields are metadata; of all other documents and of queries the text is ir_datasets' `default_text`. The document
    whose id is the topic's is removed for BEIR's datasets.
    """
    name = ref.name.removeprefix("irds").removeprefix(":")
    if not ref.name.startswith("irds:") or not name:
        raise UsageError(f"{ref.name!r} names no dataset; expected irds:<id>, such as irds:beir/scifact/test")
    ref = replace(ref, direction=choose_direction(ref, ("text-to-text",), "text-to-text"))
    dataset_id = f"{name}/{ref.split}" if ref.split else name
    source = _source(dataset_id)
    return Dataset.of(
        ref,
        documents=partial(_read_documents, source, dataset_id, ref.escape_ids),
        topics=partial(_read_topics, source, dataset_id, ref.escape_ids),
        qrels=partial(_read_qrels, source, dataset_id, ref.escape_ids),
        remove_query=name.startswith("beir/"),
    )


def _source(dataset_id: str) -> Source:
    """A dataset of ir_datasets, before anything is fetched."""
    if not sys.stderr.isatty():
        os.environ.setdefault("IR_DATASETS_DL_DISABLE_PBAR", "true")
    home = expand_path(os.environ.get("IR_DATASETS_HOME") or "~/.ir_datasets")
    if not home.exists():
        atexit.register(remove_empty, home)
    import ir_datasets

    try:
        return ir_datasets.load(dataset_id)
    except KeyError as problem:
        known, first = sorted(ir_datasets.registry), dataset_id.split("/")[0]
        near = [name for name in known if name.split("/")[0] == first] or get_close_matches(dataset_id, known)
        there = _list_some(near or known) + ("" if near else " (https://ir-datasets.com lists all)")
        raise DataError(f"irds:{dataset_id}: ir_datasets has no such dataset; it has {there}") from problem


def remove_empty(home: Path) -> None:
    """Removes the empty folders that ir_datasets makes for many sets when it is imported."""
    for folder in [*sorted(home.rglob("*/"), reverse=True), home]:
        with suppress(OSError):  # not empty
            folder.rmdir()


def _read_records(source: Source, dataset_id: str, part: str) -> Iterator[Any]:
    """The records of a part, as ir_datasets has them."""
    if not source.has(part):
        import ir_datasets

        below = [name for name in ir_datasets.registry if name.startswith(f"{dataset_id}/")]
        having = _list_some([name for name in below if ir_datasets.load(name).has(part)])
        hint = f"; these have: {having}" if having else ""
        raise DataError(f"irds:{dataset_id}: no {PARTS[part]} in it{hint}")
    try:
        yield from getattr(source, f"{part}_iter")()
    except Exception as problem:  # of requests, of the system, or of ir_datasets' readers
        reason = " ".join(str(problem).split()) or "no reason given"
        raise DataError(
            f"irds:{dataset_id}: ir_datasets cannot fetch or read its {PARTS[part]} ({type(problem).__name__}: "
            f"{reason[:300]}); it keeps files in $IR_DATASETS_HOME, else ~/.ir_datasets"
        ) from problem


def _read_documents(source: Source, dataset_id: str, escape_ids: bool) -> Iterator[Document]:
    for number, record in enumerate(_read_records(source, dataset_id, "docs"), start=1):
        where = f"irds:{dataset_id} document {number}"
        fields: Mapping[str, Any] = record._asdict()
        title, text, others = None, fields.get("text"), {}
        if isinstance(fields.get("title"), str) and isinstance(text, str):
            title = fields["title"]
            plain = {name: value for name, value in fields.items() if isinstance(value, str | int | float)}
            others = {name: value for name, value in plain.items() if name not in ("doc_id", "title", "text")}
        else:
            text = _join_text(record, where)
        yield Document(check_id(record.doc_id, where, escape_ids), title, text, metadata=others or NO_METADATA)


def _read_topics(source: Source, dataset_id: str, escape_ids: bool) -> Iterator[Topic]:
    for number, record in enumerate(_read_records(source, dataset_id, "queries"), start=1):
        where = f"irds:{dataset_id} topic {number}"
        yield Topic(check_id(record.query_id, where, escape_ids), _join_text(record, where))


def _read_qrels(source: Source, dataset_id: str, escape_ids: bool) -> Iterator[Qrel]:
    for number, record in enumerate(_read_records(source, dataset_id, "qrels"), start=1):
        where = f"irds:{dataset_id} judgement {number}"
        if not hasattr(record, "relevance"):
            raise DataError(f"{where}: no relevance; its fields are {', '.join(record._fields)}")
        yield check_qrel(record.query_id, record.doc_id, record.relevance, where, escape_ids)


def _join_text(record: Any, where: str) -> str:
    if not hasattr(record, "default_text"):
        raise DataError(f"{where}: no text; its fields are {', '.join(record._fields)}")
    return str(record.default_text())


def _list_some(ids: list[str]) -> str:
    return some([f"irds:{name}" for name in ids], NAMED)
