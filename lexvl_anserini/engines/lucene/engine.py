"""`LuceneEngine`: the protocol of all engines, implemented with the modules of this folder."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import ChangingEngine, ImpactEngine
from lexvl_anserini.engines.index_folder import BuiltIndex, new_index, read_report
from lexvl_anserini.engines.jvm import java_calls, java_cast, java_class, java_errors, our_class
from lexvl_anserini.engines.lucene import postings
from lexvl_anserini.engines.lucene.checking import check_index
from lexvl_anserini.engines.lucene.compile import Compiler, refuse_rounding
from lexvl_anserini.engines.lucene.fields import (
    ID,
    as_reader,
    count_index,
    field_similarity,
    keywords,
    refuse_duplicates,
)
from lexvl_anserini.engines.lucene.readers import open_verified
from lexvl_anserini.engines.lucene.record import finish_index, source_manifest, sources_of
from lexvl_anserini.engines.lucene.searching import BatchSearcher, LucenePostings
from lexvl_anserini.engines.lucene.updating import append, delete, merge, repair
from lexvl_anserini.engines.lucene.writing import IndexOptions, write_lucene
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries.clauses import Clause, check_tree
from lexvl_anserini.shards.reading import expect_counts, read_vocabulary


class LuceneEngine(ImpactEngine, ChangingEngine):
    """Searches an impact index, ours or one that stock Anserini built from the same shards."""

    option_names = frozenset(field.name for field in fields(IndexOptions))

    def __init__(self, index: Path, manifest: Manifest):
        jvm.start()
        self.opened = open_verified(index, manifest)
        self.reader, self.manifest, self.verification, self.resident = self.opened
        with java_calls():
            self._prepare(index)

    def _prepare(self, index: Path) -> None:
        self.documents = int(self.reader.maxDoc())
        self.searcher = java_class("org.apache.lucene.search.IndexSearcher")(as_reader(self.reader))
        self.searcher.setSimilarity(field_similarity())
        report = read_report(index)
        self.fields = report.fields
        ready = self.resident.ready if self.resident else None
        lucene = LucenePostings(self.reader)
        self.batches = BatchSearcher(lucene, self.documents, self.manifest.counts.max_impact, ready)
        sort_field = java_class("org.apache.lucene.search.SortField")
        by_id = sort_field(ID, java_class("org.apache.lucene.search.SortField$Type").STRING_VAL)
        self.order = java_class("org.apache.lucene.search.Sort")(sort_field.FIELD_SCORE, by_id)
        # What a static method returns is made in any thread, so its class is known before.
        self.static, _ = our_class("TreeSearch"), java_class("org.apache.lucene.search.TopFieldDocs")
        # One call into Java costs some microseconds, so one call returns all hits of a query, as JSON.
        self.json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: IndexOptions | None = None,
    ) -> BuiltIndex:
        """Writes the index, streaming over the shards: Python reads them, `threads` threads of Java index.

        Raises:
            ArtefactError: a shard is damaged or malformed, an id occurs twice, or what Lucene holds afterwards is
                not what the shards hold.
        """
        jvm.start()
        options = options or IndexOptions()
        vocabulary = read_vocabulary(shards, manifest)
        with new_index(index, shards, manifest) as part, java_errors(f"{index}: cannot be written"):
            counts = write_lucene(shards, part, manifest, vocabulary, options, threads, progress)
            total = {name: counts[name] for name in ("documents", "empty", "postings", "max_impact")}
            expect_counts(str(shards), total, manifest.counts)
            if not counts["documents"]:
                raise ArtefactError(f"{shards}: no document; nothing to index")
            refuse_duplicates(part)
            held = count_index(part)
            expect_counts(f"{index} after writing", held, counts)
            finish_index(part, manifest, counts, options, sources_of(shards, manifest))
        return BuiltIndex(index, manifest, counts["documents"])

    @staticmethod
    def options(given: Mapping[str, Any]) -> IndexOptions:
        """The typed options.

        Raises:
            UnknownName, UsageError: no such option, or a value that is neither True nor False.
        """
        for name, value in given.items():
            if name not in LuceneEngine.option_names:
                raise UnknownName("option of the engine lucene", name, LuceneEngine.option_names)
            if not isinstance(value, bool):
                raise UsageError(f"option {name} of the engine lucene: {value!r}, expected True or False")
        return IndexOptions(**given)

    @staticmethod
    def stored_options(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options in index.json; empty in one of an older version."""
        stored: Mapping[str, Any] = report.get("options") or {}
        return stored

    source_manifest = staticmethod(source_manifest)
    merge = staticmethod(merge)
    append = staticmethod(append)
    delete = staticmethod(delete)
    keywords = staticmethod(keywords)

    repair = staticmethod(repair)

    @staticmethod
    def check(index: Path, shards: Sequence[Path], progress: Progress = silent) -> dict[str, Any]:
        """Compares an index with its shards; see `checking`."""
        return check_index(index, shards, LuceneEngine, progress)

    @staticmethod
    def stored_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str] | None:
        """The texts of documents, if the index was built with `store_text`."""
        stored = read_report(index).options.get("store_text")
        return postings.stored_texts(index, doc_ids) if stored else None

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One list per query; every term of a query counts, however many or frequent they are.

        `threads` share the queries of a batch.
        """
        lists = self.batches.search(queries, hits, threads)
        while True:
            with self.verification.reading():
                documents = next(lists, None)
            if documents is None:
                return
            yield documents

    def served(self) -> Mapping[str, int]:
        """The number of queries that each form of the postings has answered; trees are Lucene's."""
        return self.batches.served

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach: sum over terms of weight x greatest impact."""
        return self.batches.bound(vector)

    @cached_property
    def compiler(self) -> Compiler:
        """Compiles clause trees; knows the index's fields."""
        return Compiler(self.fields)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> list[ScoredDoc]:
        """The ranked list of a clause tree."""
        check_count("hits", hits)
        check_tree(clause)
        with self.verification.reading():
            refuse_rounding(query_id, clause, self.bound)
            self.batches.count(self.batches.lucene.name, 1)
            return self.top(self.compiler.query(clause), hits, query_id)

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has, read from the postings."""
        with self.verification.reading():
            return postings.impacts_of(self.reader, doc_id, terms)

    def vector(self, doc_id: str) -> dict[str, int]:
        """The document's whole vector, read from its term vector."""
        with self.verification.reading():
            return postings.vector_of(self.reader, doc_id)

    def verified(self) -> None:
        """Waits until all of Lucene's files are compared with their checksums."""
        self.verification.wait()
        if self.resident is not None:
            self.resident.verified()

    def close(self) -> None:
        """Closes the files."""
        self.opened.close()

    def top(self, query: Any, hits: int, query_id: str = "query") -> list[ScoredDoc]:
        """The best hits of any `org.apache.lucene.search.Query`: score descending, then doc_id ascending."""
        with java_errors(f"topic {query_id!r} cannot be searched"):
            cast = java_cast("org.apache.lucene.search.Query", query)
            top = self.static.top(self.searcher, cast, min(hits, self.documents), self.order)
            with java_calls():
                found = orjson.loads(self.json.writeValueAsString(top))["scoreDocs"]
        scored = []
        for rank, hit in enumerate(found, start=1):
            score, doc_id = hit["fields"]
            start = doc_id["offset"]
            raw = base64.b64decode(doc_id["bytes"])[start : start + doc_id["length"]]
            scored.append(ScoredDoc(query_id, raw.decode(), rank, score))
        return scored
