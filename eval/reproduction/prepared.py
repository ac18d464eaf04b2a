"""A part of a row with its choices: weights, corpus, and the names of its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.ground.manifest import CorpusRef

from ..measures.result_files import slug
from .entries import PublishedSystem
from .rows import RowPart, Workplace
from .weights import Weights, weights_of

# Options of queries alone: one index serves all their values.
QUERY_OPTIONS = ("query_topk", "query_max_length")


class Names(NamedTuple):
    """The names of a part's files: of its encoded documents, which other rows may share, and of its run."""

    documents: str
    run: str


class Prepared(NamedTuple):
    """What runs for a part of a row."""

    system: PublishedSystem
    weights: Weights
    corpus: CorpusRef
    names: Names


def prepare(part: RowPart, place: Workplace) -> Prepared | None:
    """The choices for a part; None where it has no weights."""
    if part.system is None or (weights := weights_of(part, part.system, place)) is None:
        return None
    return Prepared(part.system, weights, corpus_of(part, place), names_of(part, part.system, weights, place))


def corpus_of(part: RowPart, place: Workplace) -> CorpusRef:
    """The corpus of a part. Its ids are escaped, because those of LIMIT have white space."""
    name, _, split = part.data.rpartition("/") if "/" in part.data else (part.data, "", "test")
    own = part.system.corpora.get(part.data) if part.system else None
    return CorpusRef(place.corpora.get(part.data) or own or name, split, place.data_dir, True, part.task)


def document_options(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that change the documents.

    With `mode: alpha` the documents are those of `full`, the default; but not for `svdr`, whose default is `beta`.
    """
    of_queries = {name: options[name] for name in QUERY_OPTIONS if name in options}
    if options.get("mode") == "alpha" and encoder != "svdr":
        of_queries["mode"] = "alpha"
    return {name: value for name, value in options.items() if name not in of_queries}


def names_of(part: RowPart, system: PublishedSystem, weights: Weights, place: Workplace) -> Names:
    """Names of everything that a user may vary: `beir-nq-test.vdr.vdr-msmarco` and, of the run, `.query_topk-32`."""
    shared = document_options(system.encoder, weights.options)
    own = {name: value for name, value in weights.options.items() if name not in shared}
    fields = [
        part.data,
        "" if part.task == "text-to-text" else part.task,
        f"first={place.limit}" if place.limit else "",
        system.encoder,
        Path(weights.reference).name if weights.reference else "",
        *map("=".join, shared.items()),
    ]
    of_run = [*map("=".join, own.items()), f"rerank={system.rerank}" if system.rerank else ""]
    return Names(_joined(fields), _joined([*fields, *of_run]))


def _joined(fields: list[str]) -> str:
    return ".".join(slug(field) for field in fields if field)
