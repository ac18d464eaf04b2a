"""`PyseriniEngine`: stock Pyserini builds the index and stock Pyserini searches it.

`pyserini.index.lucene` indexes the JSON lines of the shards, and `LuceneImpactSearcher` answers encoded queries, both
as published. Clause trees and explanations read the same index through our own engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from lexvl_anserini.engines import index_folder
from lexvl_anserini.engines.engine import EngineOptions
from lexvl_anserini.engines.jvm import call_java, raise_java_errors, read_lucene_version
from lexvl_anserini.engines.lucene.engine import LuceneSearch
from lexvl_anserini.engines.lucene.fields import open_whole_index
from lexvl_anserini.engines.lucene.searching import BatchSearcher, LucenePostings
from lexvl_anserini.engines.stock import prepare
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.queries.clauses import QueryBatch
from lexvl_anserini.runs.order import RankedList, in_order
from lexvl_anserini.shards.reading import expect_counts, read_impacts, read_vocabulary

ALL_TERMS = -1  # a smallest idf that no term is below: stock leaves out terms of every document otherwise


class StockPostings(LucenePostings):
    """Lucene's postings as stock's `batch_search` reads them; threads of a batch are Anserini's."""

    name = "pyserini"

    def __init__(self, reader: Any, index: Path):
        super().__init__(reader)
        from pyserini.search.lucene import LuceneImpactSearcher

        # A query is its vector as JSON.
        encoder = SimpleNamespace(encode=lambda text, **_: orjson.loads(text))
        self.searcher = LuceneImpactSearcher(str(index.absolute()), encoder, min_idf=ALL_TERMS)

    def lists(self, batch: QueryBatch, hits: int, threads: int) -> list[RankedList]:
        """One ranked list per query; Anserini lowers equal scores by some millionths, the nearest integer is right."""
        texts = [orjson.dumps({**vector}).decode() for vector in batch.vectors]
        numbers = list(map(str, range(len(batch))))
        with self.lock, raise_java_errors("stock Pyserini could not search"), call_java():
            lists = self.searcher.batch_search(texts, numbers, hits, threads)
            return [
                in_order(query_id, [(str(hit.docid), round(hit.score)) for hit in lists.get(number, ())])
                for number, query_id in zip(numbers, batch.query_ids, strict=True)
            ]


class PyseriniEngine(LuceneSearch):
    """Searches an impact index that stock Pyserini built, with stock Pyserini; clause trees as our own engine does."""

    reads_shards = False

    def __init__(self, index: Path, manifest: Manifest):
        prepare()
        super().__init__(index, manifest)
        try:
            with raise_java_errors(f"{index}: stock Pyserini cannot open it"):
                self.stock = stock = StockPostings(self.reader, index)
        except BaseException:
            super().close()
            raise
        self.batches = BatchSearcher(lambda: stock, self.documents, manifest.counts.max_impact)

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: EngineOptions | None = None,
    ) -> index_folder.BuiltIndex:
        """Runs `pyserini.index.lucene` over `docs/` in a process of its own, one thread a shard at most.

        Stock writes an impact as that many repetitions of its term, and skips documents without terms. It goes on after
        a line that it cannot read, so its documents, postings and impacts are counted afterwards.
        """
        if any(shard["name"].endswith(".parquet") for shard in manifest.shards):
            raise UsageError(f"{shards}: stock Pyserini reads JSON lines; encode with --shard-format jsonl")
        counts = count_shards(shards, manifest, progress)
        prepare()
        with index_folder.write_index(index, shards, manifest) as part:
            complaint = run_stock(shards, part, threads)
            failing = raise_java_errors(f"{index}: stock Pyserini wrote no index ({complaint})")
            with failing, open_whole_index(part) as whole:
                written = whole.counts()
            expected = {**counts, "documents": counts["documents"] - counts["empty"], "empty": 0}
            expect_counts(f"{index} after stock Pyserini ({complaint})", written, expected)
            report = {"engine": "pyserini", "lucene": index_folder.format_version(read_lucene_version()), **counts}
            report |= {"bytes": index_folder.measure_folder(part), "commit": index_folder.read_commit_id(part)}
            index_folder.write_report(part, report, manifest)
        return index_folder.BuiltIndex(index, manifest)

    def close(self) -> None:
        """Closes the files."""
        with call_java():
            self.stock.searcher.close()
        super().close()


def count_shards(shards: Path, manifest: Manifest, progress: Progress) -> dict[str, int]:
    """Reads all shards once: documents, empty ones, postings, the sum and the greatest of impacts."""
    counts = {"documents": 0, "empty": 0, "postings": 0, "impacts": 0, "max_impact": 0}
    for document in read_impacts(shards, manifest, read_vocabulary(shards, manifest)):
        counts["documents"] += 1
        counts["empty"] += not document.vector
        counts["postings"] += len(document.vector)
        counts["impacts"] += sum(document.vector.values())
        counts["max_impact"] = max(counts["max_impact"], *document.vector.values(), 0)
        progress(1)
    if counts["documents"] == counts["empty"]:
        raise ArtefactError(f"{shards}: no document with terms; nothing to index")
    return counts


def run_stock(shards: Path, index: Path, threads: int) -> str:
    """Runs stock's indexer; returns its first complaint, or that it has none."""
    options = {
        "--collection": "JsonVectorCollection",
        "--generator": "DefaultLuceneDocumentGenerator",
        "--input": str((shards / "docs").absolute()),
        "--index": str(index.absolute()),
        "--threads": str(threads),
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "lexvl_anserini.stock", "pyserini.index.lucene", *words]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, "--impact", "--pretokenized"], env=environ, capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).splitlines()
    complaint = next((line for line in lines if " ERROR " in line), "no complaint")
    if done.returncode:
        last = next((line for line in reversed(lines) if line.strip()), complaint)
        raise ArtefactError(f"{index.name}: stock Pyserini ended with exit code {done.returncode}: {last}")
    return complaint
