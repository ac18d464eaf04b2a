"""Seismic beside the inverted index: an approximate engine for the same vectors, if pyseismic-lsr is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from eval.efficiency.processes import Ready, Stopwatch
from eval.efficiency.rankings import load_queries, one_by_one

# Its own default for building; of a query all terms are looked at, and blocks are skipped whose bound is below the
# worst hit / 0.8 (the value of its own examples).
HEAP_FACTOR = 0.8

REMEDY = "pip install pyseismic-lsr"


def installed() -> bool:
    """True if it can be imported."""
    return find_spec("seismic") is not None


def search(shards: str, queries: str) -> Ready:
    """A worker around an index of all shards' documents, held in memory; one thread."""
    import seismic

    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    text = seismic.get_seismic_string()

    def arrays(vector: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.array(list(vector), dtype=text), np.array(list(vector.values()), dtype=np.float32)

    manifest = read_manifest(Path(shards))
    dataset = seismic.SeismicDataset()
    for document in read_impacts(Path(shards), manifest, read_vocabulary(Path(shards), manifest)):
        if document.vector:
            dataset.add_document(document.doc_id, *arrays(document.vector))
    with Stopwatch() as watch:
        index = seismic.SeismicIndex.build_from_dataset(dataset)
    asked = [(query.query_id, *arrays(query.vector)) for query in load_queries(queries)]

    def ask(query: Any, hits: int) -> list[tuple[str, float, str]]:
        return index.search(*query, k=hits, query_cut=len(query[1]), heap_factor=HEAP_FACTOR)

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if task == "found":
            return [[doc_id for _, _, doc_id in ask(query, hits)] for query in asked]
        return one_by_one(lambda query: ask(query, hits), asked)

    return Ready({"build_s": watch.wall_s}, answer)
