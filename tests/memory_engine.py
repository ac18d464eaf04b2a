"""The exact engine in memory: the oracle of the impact engines, and the example of an engine that is plugged in."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from brute_force import Doc, Oracle

from lexvl_anserini.engines.engine import ImpactEngine
from lexvl_anserini.engines.index_folder import BuiltIndex, measure_folder, write_index, write_report
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import Clause, Impacts
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary


class MemoryEngine(ImpactEngine):
    """An impact index whose folder is a copy of the shards, or the shards; every document is scored by itself."""

    def __init__(self, index: Path, manifest: Manifest):
        vectors = read_impacts(index, manifest, read_vocabulary(index, manifest))
        self.vectors = {document.doc_id: dict(document.vector) for document in vectors}
        self.oracle = Oracle([Doc(doc_id, vector) for doc_id, vector in self.vectors.items()])

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: Any = None,
    ) -> BuiltIndex:
        vectors = MemoryEngine(shards, manifest).vectors
        progress(len(vectors))
        postings = sum(map(len, vectors.values()))
        with write_index(index, shards, manifest) as part:
            shutil.copytree(shards / "docs", part / "docs")
            counts = {"documents": len(vectors), "empty": manifest.counts.empty, "postings": postings}
            write_report(part, {"engine": "memory", **counts, "bytes": measure_folder(part)})
        return BuiltIndex(index, manifest)

    def search(self, queries: Iterable[Any], hits: int, threads: int = 1) -> Iterator[RankedList]:
        return (self.search_tree(query.query_id, Impacts(query.vector), hits) for query in queries)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        return rank_hits(query_id, self.oracle.ranked(clause, hits))

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        vector = self.vector(doc_id)
        return {term: vector[term] for term in terms if term in vector}

    def vector(self, doc_id: str) -> dict[str, int]:
        if doc_id not in self.vectors:
            raise DataError(f"no document {doc_id!r} in the index")
        return self.vectors[doc_id]

    def bound(self, vector: Mapping[str, int]) -> int:
        return sum(w * max(other.get(term, 0) for other in self.vectors.values()) for term, w in vector.items())

    def close(self) -> None:
        """Nothing is open."""


def exact_lists(shards: Path, queries: Iterable[ImpactQuery], hits: int) -> list[RankedList]:
    """The lists of integer dot products with the documents of impact shards."""
    return list(MemoryEngine(shards, read_manifest(shards)).search(queries, hits))
