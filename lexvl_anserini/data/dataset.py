"""A data set is a composition: where its documents, topics and judgements come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.records import Document, Qrel, Topic
from lexvl_anserini.registry import DATASETS, resolve

# What topics and documents are: query side first.
DIRECTIONS = ("text-to-text", "text-to-image", "image-to-text")


@dataclass(frozen=True)
class Dataset:
    """Documents, topics and qrels of one split; each call starts a fresh stream, and only captions are held in memory.

    name          as `load_dataset` was given it, without the split: `beir/scifact`
    split         of topics and qrels (and of the documents where the corpus itself is split, as in `demo`)
    data_dir      the folder it was looked up in, None for the default
    remove_query  a hit whose doc_id equals the query_id is not counted (BEIR's rule; never for captions)
    escape_ids    ids are percent-encoded (`data.ids.escape_id`) in documents, topics and qrels alike
    direction     what topics and documents are: text-to-text, text-to-image or image-to-text
    """

    name: str
    split: str
    documents: Callable[[], Iterator[Document]]
    topics: Callable[[], Iterator[Topic]]
    qrels: Callable[[], Iterator[Qrel]]
    data_dir: str | None = None
    remove_query: bool = False
    escape_ids: bool = False
    direction: str = "text-to-text"


def data_root(data_dir: str | None) -> Path:
    """The folder of all data sets: the argument, else $LEXVL_DATA, else ~/.cache/lexvl."""
    return Path(data_dir or os.environ.get("LEXVL_DATA") or "~/.cache/lexvl").expanduser()


def load_dataset(
    name: str,
    split: str | None = None,
    data_dir: str | None = None,
    escape_ids: bool = False,
    direction: str | None = None,
) -> Dataset:
    """Loads a registered data set by name.

    Args:
        name: `demo`, `beir/<name>`, `beir:<path>`, `folder:<path>`, `coco`, `flickr30k`, `flickr8k`,
            `karpathy:<json>[,<images>]`; a split may follow a name without a path: `beir/scifact/train`.
        split: of topics and judgements (and of documents where the corpus itself is split); default `test`.
        data_dir: folder of the data sets; default $LEXVL_DATA, else ~/.cache/lexvl.
        escape_ids: percent-encode white space and control characters in ids instead of refusing them.
        direction: text-to-text, text-to-image or image-to-text; default the corpus's own.

    Raises:
        UnknownName: no family or direction of that name.
        UsageError: the corpus does not have that direction.
        DataError: its files are missing or malformed; the message says what to put where.
    """
    family = name.split(":", 1)[0].split("/", 1)[0]
    load: Callable[[str, str | None, str | None, bool, str | None], Dataset] = resolve("corpus", family, DATASETS)
    return load(name, split, data_dir, escape_ids, direction)


def noted_dataset(corpus: Mapping[str, Any], data_dir: str | None = None) -> Dataset:
    """Loads the data set that the `corpus` of a manifest notes; `data_dir` replaces the folder it was in.

    Raises:
        LexvlError: as `load_dataset`.
    """
    return load_dataset(
        corpus["name"],
        corpus.get("split") or None,
        data_dir or corpus.get("data_dir"),
        bool(corpus.get("escape_ids")),
        corpus.get("direction"),
    )


def checked_direction(name: str, direction: str | None, offered: Sequence[str], default: str) -> str:
    """The direction asked for, or the default.

    Raises:
        UnknownName: no direction of that name.
        UsageError: one that the corpus does not have.
    """
    if direction is None:
        return default
    if direction not in DIRECTIONS:
        raise UnknownName("direction", direction, DIRECTIONS)
    if direction not in offered:
        raise UsageError(f"{name} has no direction {direction!r}; it has {', '.join(offered)}")
    return direction
