"""What an engine is: it builds an index from shards and answers queries with ranked lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from lexvl_anserini.manifest import Manifest
from lexvl_anserini.progress import Progress
from lexvl_anserini.records import Index, ScoredDoc


class Engine(Protocol):
    """One kind of index. A query is what `Encoder.queries` of the same kind yields.

    Lists come in the order of the queries; every list is ordered score descending, then doc_id ascending
    (code points), also across the cut at `hits`.
    """

    @staticmethod
    def build(shards: Path, index: Path, manifest: Manifest, threads: int = 1, progress: Progress = ...) -> Index:
        """Builds `index` from the folder `shards`; counts in = counts out, or ArtefactError."""
        ...

    def __init__(self, index: Path, manifest: Manifest) -> None: ...

    def search(self, queries: Iterable[Any], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One ranked list per query; an empty query has an empty list."""
        ...

    def close(self) -> None:
        """Lets go of files and memory."""
        ...
