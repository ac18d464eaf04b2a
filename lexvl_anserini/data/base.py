"""A data set is a composition: where its documents, topics and judgements come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lexvl_anserini.records import Document, Qrel, Topic
from lexvl_anserini.registry import DATASETS, resolve


@dataclass(frozen=True)
class Dataset:
    """Documents, topics and qrels of one split; each call starts a fresh stream, nothing is held in memory.

    name          as `load_dataset` was given it, without the split: `beir/scifact`
    split         of topics and qrels (and of the documents where the corpus itself is split, as in `demo`)
    data_dir      the folder it was looked up in, None for the default
    remove_query  a hit whose doc_id equals the query_id is not counted (BEIR's rule; never for captions)
    escape_ids    ids are percent-encoded (`data.ids.escape_id`) in documents, topics and qrels alike
    """

    name: str
    split: str
    documents: Callable[[], Iterator[Document]]
    topics: Callable[[], Iterator[Topic]]
    qrels: Callable[[], Iterator[Qrel]]
    data_dir: str | None = None
    remove_query: bool = False
    escape_ids: bool = False


def data_root(data_dir: str | None) -> Path:
    """The folder of all data sets: the argument, else $LEXVL_DATA, else ~/.cache/lexvl."""
    return Path(data_dir or os.environ.get("LEXVL_DATA") or "~/.cache/lexvl").expanduser()


def load_dataset(name: str, split: str | None = None, data_dir: str | None = None, escape_ids: bool = False) -> Dataset:
    """Loads a registered data set by name.

    Args:
        name: `demo`, `beir/<name>`, `beir:<path>`, `folder:<path>`; a split may follow: `beir/scifact/train`.
        split: of topics and judgements; default `test`.
        data_dir: folder of the data sets; default $LEXVL_DATA, else ~/.cache/lexvl.
        escape_ids: percent-encode white space and control characters in ids instead of refusing them.

    Raises:
        UnknownName: no family of that name.
        DataError: its files are missing or malformed; the message says what to put where.
    """
    family = name.split(":", 1)[0].split("/", 1)[0]
    load: Callable[[str, str | None, str | None, bool], Dataset] = resolve("corpus", family, DATASETS)
    return load(name, split, data_dir, escape_ids)
