"""`PyseriniEngine`: stock Pyserini builds the index and stock Pyserini searches it.

`pyserini.index.lucene` indexes the JSON lines of the shards, and `LuceneImpactSearcher` answers encoded queries, both
as published. Clause trees and explanations read the same index through our own engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.engines.engine import ImpactEngine, NoOptions
from lexvl_anserini.engines.index_folder import (
    BuiltIndex,
    folder_bytes,
    new_index,
    report_digest,
    write_report,
)
from lexvl_anserini.engines.jvm import java_calls, java_errors, lucene_version
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import count_index
from lexvl_anserini.engines.lucene.searching import BatchSearcher, LucenePostings
from lexvl_anserini.engines.lucene.versions import commit_id, dotted
from lexvl_anserini.engines.stock import prepare
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.shards.reading import expect_counts, read_impacts, read_vocabulary

# A smallest idf that no term is below: stock leaves out terms of every document otherwise.
ALL_TERMS = -1


class GivenVectors:
    """The query encoder of `LuceneImpactSearcher`: a query is its vector as JSON."""

    def encode(self, text: str, **_: Any) -> dict[str, int]:
        """The vector."""
        vector: dict[str, int] = orjson.loads(text)
        return vector


class StockPostings(LucenePostings):
    """Lucene's postings as stock's `batch_search` reads them; threads of a batch are Anserini's.

    Args:
        reader: of Lucene, for the greatest impacts of terms.
        index: its folder.
    """

    name = "pyserini"

    def __init__(self, reader: Any, index: Path):
        super().__init__(reader)
        from pyserini.search.lucene import LuceneImpactSearcher

        self.searcher = LuceneImpactSearcher(str(index.absolute()), GivenVectors(), min_idf=ALL_TERMS)

    def lists(self, queries: Sequence[ImpactQuery], hits: int, threads: int) -> list[list[ScoredDoc]]:
        """One ranked list per query.

        Anserini lowers the later of equal scores by some millionths; the nearest integer is the score.
        """
        texts = [orjson.dumps(query.vector).decode() for query in queries]
        numbers = list(map(str, range(len(queries))))
        with self.lock, java_errors("stock Pyserini could not search"), java_calls():
            lists = self.searcher.batch_search(texts, numbers, hits, threads)
            return [
                [
                    ScoredDoc(query.query_id, str(hit.docid), rank, float(round(hit.score)))
                    for rank, hit in enumerate(lists.get(number, ()), start=1)
                ]
                for number, query in zip(numbers, queries, strict=True)
            ]


class PyseriniEngine(ImpactEngine):
    """Searches an impact index that stock Pyserini built, with stock Pyserini."""

    reads_shards = False

    def __init__(self, index: Path, manifest: Manifest):
        prepare()
        self.lucene = LuceneEngine(index, manifest)
        try:
            with java_errors(f"{index}: stock Pyserini cannot open it"):
                self.stock = StockPostings(self.lucene.reader, index)
        except BaseException:
            self.lucene.close()
            raise
        self.batches = BatchSearcher(self.stock, self.lucene.documents, manifest.counts.max_impact)

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: NoOptions | None = None,
    ) -> BuiltIndex:
        """Runs `pyserini.index.lucene` over `docs/` in a process of its own, one thread a shard at most.

        Stock writes an impact as that many repetitions of its term, and skips documents without terms. It goes on after
        a line that it cannot read, so its documents, postings and impacts are counted afterwards.

        Raises:
            UsageError: the shards are not JSON lines.
            ArtefactError: a shard is damaged, an id occurs twice, or stock lost a document or a posting.
        """
        if any(shard["name"].endswith(".parquet") for shard in manifest.shards):
            raise UsageError(f"{shards}: stock Pyserini reads JSON lines; encode with --shard-format jsonl")
        counts = count_shards(shards, manifest, progress)
        prepare()
        with new_index(index, shards, manifest) as part:
            complaint = run_stock(shards, part, threads)
            with java_errors(f"{index}: stock Pyserini wrote no index ({complaint})"):
                written = count_index(part)
            expected = {**counts, "documents": counts["documents"] - counts["empty"], "empty": 0}
            expect_counts(f"{index} after stock Pyserini ({complaint})", written, expected)
            report = {"engine": "pyserini", "lucene": dotted(lucene_version()), **counts}
            report |= {"bytes": folder_bytes(part), "commit": commit_id(part)}
            write_report(part, {**report, "digest": report_digest(report, manifest)})
        return BuiltIndex(index, manifest, counts["documents"])

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One list per query, of stock's `batch_search`."""
        lists = self.batches.search(queries, hits, threads)
        while True:
            with self.lucene.verification.reading():
                documents = next(lists, None)
            if documents is None:
                return
            yield documents

    def served(self) -> Mapping[str, int]:
        """The number of queries that stock has answered, and of trees that our own engine has."""
        return {**self.batches.served, **self.lucene.served()}

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> list[ScoredDoc]:
        """The ranked list of a clause tree, by our own engine: stock has no trees."""
        return self.lucene.search_tree(query_id, clause, hits)

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has, read from the postings."""
        return self.lucene.impacts(doc_id, terms)

    def vector(self, doc_id: str) -> dict[str, int]:
        """Raises UsageError: stock stores no vectors of impacts."""
        return self.lucene.vector(doc_id)

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach: sum over terms of weight x greatest impact."""
        return self.batches.bound(vector)

    def verified(self) -> None:
        """Waits until all of Lucene's files are compared with their checksums."""
        self.lucene.verified()

    def close(self) -> None:
        """Closes the files."""
        with java_calls():
            self.stock.searcher.close()
        self.lucene.close()


def count_shards(shards: Path, manifest: Manifest, progress: Progress) -> dict[str, int]:
    """Reads all shards once: documents, empty ones, postings, the sum and the greatest of impacts.

    Raises:
        ArtefactError: a shard is damaged or malformed, an id occurs twice, or no document has a term.
    """
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
    """Runs stock's indexer; returns its first complaint, or that it has none.

    Raises:
        ArtefactError: it ended with an error.
    """
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
