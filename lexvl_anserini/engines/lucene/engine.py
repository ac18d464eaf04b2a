"""`LuceneEngine`: the protocol of all engines, implemented with the modules of this folder.

Other processes may change an index while it is opened; `OpenedIndex` opens one state of it, and compares its files.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from math import ceil
from pathlib import Path
from sys import getsizeof
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import ChangingEngine, ImpactEngine, check_switches, open_verified, read_switches
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    RESIDENT,
    BuiltIndex,
    choose_setting,
    read_report,
    read_settled,
    write_index,
)
from lexvl_anserini.engines.jvm import Exclusive, call_cast, call_java, get_java_class, get_our_class, raise_java_errors
from lexvl_anserini.engines.lucene import fields, writing
from lexvl_anserini.engines.lucene.searching import BatchSearcher, Compiler, LucenePostings
from lexvl_anserini.engines.lucene.updating import append, check_index, delete, merge, repair
from lexvl_anserini.engines.resident.choosing import Resident, find_usable_files, lacks_kernels
from lexvl_anserini.engines.resident.layout import REMEDY, parse_contents
from lexvl_anserini.engines.verifying import HeldFiles, Reading, Verification
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries import clauses
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.runs.order import RankedList, in_order
from lexvl_anserini.shards.reading import expect_counts, read_vocabulary

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.approximate import ApproximatePostings

FILTER_BYTES = 1 << 28  # conditions that stay in memory take at most so many bytes: their texts, and a byte a document


class JavaSearch(NamedTuple):
    """What Java has of an open index: postings, `IndexSearcher`, the order of hits, TreeSearch, a writer of JSON."""

    postings: LucenePostings
    searcher: Any
    order: Any
    static: Any
    json: Any

    @classmethod
    @call_java()
    def of(cls, reader: Any) -> JavaSearch:
        """What queries need of an open reader."""
        searcher = get_java_class("org.apache.lucene.search.IndexSearcher")(fields.as_reader(reader))
        searcher.setSimilarity(fields.make_similarity())
        sort_field = get_java_class("org.apache.lucene.search.SortField")
        by_id = sort_field(fields.ID, get_java_class("org.apache.lucene.search.SortField$Type").STRING_VAL)
        order = get_java_class("org.apache.lucene.search.Sort")(sort_field.FIELD_SCORE, by_id)
        # What a static method returns is made in any thread, so its class is known before.
        static, _ = get_our_class("TreeSearch"), get_java_class("org.apache.lucene.search.TopFieldDocs")
        # All hits of a query are one call, because a call into Java costs some microseconds.
        json = get_java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        return cls(LucenePostings(reader), searcher, order, static, json)


class LuceneSearch(ImpactEngine):
    """Searches an impact index, ours or one that stock Anserini built from the same shards.

    Java starts, and Lucene opens the index, when a query needs more than resident postings.
    """

    def __init__(self, index: Path, manifest: Manifest):
        self.opened = opened = OpenedIndex(index, manifest)
        self.manifest, self.documents, self.resident = opened.manifest, opened.documents, opened.resident
        self.path, self.report = index, opened.report
        serving, most = self.resident.serve if self.resident else None, self.manifest.counts.max_impact
        # Nothing refers back to this object, so that the end of it is the end of its mapped files.
        self.batches = BatchSearcher(lambda: opened.java.postings, self.documents, most, serving)
        # The documents of each condition, the one used last at the end.
        self.filters, self.filter_bytes, self.filtering = dict[str, np.ndarray](), 0, Lock()
        self.approximate_postings: ApproximatePostings | None = None
        self.closed = False

    @property
    def reader(self) -> Any:
        """Lucene's reader of the index."""
        return self.opened.reader

    def prepare(self) -> None:
        """Opens what any query may need."""
        _ = self.opened.java
        if self.resident:
            self.resident.compile()

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query, by all of its terms; `threads` share the queries of a batch."""
        return self._reading(self.batches.search(queries, hits, threads))

    def search_approximately(
        self, queries: Iterable[ImpactQuery], hits: int, recall: float, threads: int = 1
    ) -> Iterator[RankedList]:
        """One list per query, with exact scores; of the fastest setting whose measured recall reaches this one."""
        reach = choose_setting(self.report, self.path, recall, hits).reach

        def ready(_: int) -> ApproximatePostings:
            with self.filtering:
                if self.closed:
                    raise ArtefactError(f"{self.path}: the index is closed; open it again")
                if self.approximate_postings is None:
                    self.approximate_postings = open_approximate(self.opened.files, self.report.commit)
                return self.approximate_postings.at(reach)

        return self._reading(self.batches.over(ready).search(queries, hits, threads))

    def _reading(self, lists: Iterator[RankedList]) -> Iterator[RankedList]:
        """The lists, each checked while the files are compared."""
        with self.opened.reading() as reading:
            for documents in lists:
                reading.check()
                yield documents

    def served(self) -> Mapping[str, int]:
        """The number of queries that each form of the postings has answered; trees are Lucene's."""
        return self.batches.served

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach: sum over terms of weight x greatest impact."""
        return self.batches.bound(vector)

    @cached_property
    def compiler(self) -> Compiler:
        """Compiles clause trees, by Java; knows the index's fields."""
        _ = self.opened.java
        return Compiler(self.report.fields)

    def search_where(
        self, queries: Iterable[ImpactQuery], where: Clause, hits: int, threads: int = 1
    ) -> Iterator[RankedList]:
        """One list per query, of documents that match a condition; as trees of an index without resident postings."""
        clauses.check_tree(where)
        stream = iter(queries)
        # Lucene enters documents by their ids, so these cost less than all postings of the query.
        while clauses.has_named_documents(where) or self.batches.resident() is None:
            query = next(stream, None)
            if query is None:
                return
            yield from super().search_where([query], where, hits)
        yield from self._reading(self.batches.search(stream, hits, threads, self._matching(where)))

    def search_passages(
        self, queries: Iterable[ImpactQuery], best: int, hits: int, threads: int = 1, where: Clause | None = None
    ) -> Iterator[RankedList]:
        """One list of documents per query; of resident postings, each passage is scored once."""
        if where is None:
            return self._reading(self.batches.search(queries, hits, threads, best=best))
        clauses.check_tree(where)
        if clauses.has_named_documents(where) or self.batches.resident() is None:
            return super().search_passages(queries, best, hits, threads, where)
        return self._reading(self.batches.search(queries, hits, threads, self._matching(where), best))

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        """The ranked list of a clause tree: of the resident postings where these have its scores, else Lucene's."""
        check_count("hits", hits)
        clauses.check_tree(clause)
        with self.opened.reading():
            if (most := clauses.bound(clause, self.bound)) >= SCORE_LIMIT:
                raise clauses.describe_inexact_score(query_id, ceil(most), "lower the weights of the tree")
            filtered = clauses.to_filtered(clause)
            if filtered is None or clauses.has_named_documents(filtered.condition) or self.batches.resident() is None:
                self.batches.count(LucenePostings.name, 1)
                return self.top(self.compiler.query(clause), hits, query_id)
            allowed = None if filtered.condition is None else self._matching(filtered.condition)
            return next(self.batches.search([ImpactQuery(query_id, filtered.vector)], hits, 1, allowed))

    def _matching(self, condition: Clause) -> np.ndarray:
        """The documents that match a condition, uint8 [documents]; those of the last conditions stay in memory."""
        name = repr(condition)
        with self.filtering:
            matching = self._forget(name)
        if matching is None:
            with self.opened.reading(), raise_java_errors("the condition cannot be searched"):
                query, java = self.compiler.query(condition), self.opened.java
                bits = np.frombuffer(java.static.matching(java.searcher, query).tostring(), np.uint8)
            matching = np.unpackbits(bits, count=self.opened.places, bitorder="little")
        with self.filtering:
            self._forget(name)  # another thread may have read it meanwhile
            self.filters[name] = matching
            self.filter_bytes += getsizeof(name) + matching.nbytes
            while self.filter_bytes > FILTER_BYTES:
                self._forget(next(iter(self.filters)))
        return matching

    def _forget(self, name: str) -> np.ndarray | None:
        """Takes a condition out of the memory; returns its documents if they were there."""
        matching = self.filters.pop(name, None)
        if matching is not None:
            self.filter_bytes -= getsizeof(name) + matching.nbytes
        return matching

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has, read from the postings."""
        with self.opened.reading():
            if self.resident:
                return self.resident.impacts(doc_id, terms)
            return fields.read_impacts(self.reader, doc_id, terms)

    def vector(self, doc_id: str) -> dict[str, int]:
        """The document's whole vector, read from its term vector."""
        with self.opened.reading():
            return fields.read_vector(self.reader, doc_id)

    def verify(self) -> None:
        """Waits until all files that were opened are compared with their checksums."""
        for verification in self.opened.verifications:
            verification.wait()

    def close(self) -> None:
        """Closes the files."""
        self.closed, self.approximate_postings = True, None
        self.opened.close()

    def top(self, query: Any, hits: int, query_id: str = "query") -> RankedList:
        """The best hits of any `org.apache.lucene.search.Query`: score descending, then doc_id ascending."""
        with raise_java_errors(f"topic {query_id!r} cannot be searched"):
            cast, java = call_cast("org.apache.lucene.search.Query", query), self.opened.java
            top = java.static.top(java.searcher, cast, min(hits, self.documents), java.order)
            with call_java():
                scored_docs = orjson.loads(java.json.writeValueAsString(top))["scoreDocs"]
        scored = []
        for hit in scored_docs:
            score, doc_id = hit["fields"]
            start = doc_id["offset"]
            raw = base64.b64decode(doc_id["bytes"])[start : start + doc_id["length"]]
            scored.append((raw.decode(), score))
        return in_order(query_id, scored)


class LuceneEngine(LuceneSearch, ChangingEngine):
    """Builds, changes and searches impact indexes."""

    option_names = frozenset(field.name for field in dataclasses.fields(writing.IndexOptions))

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: writing.IndexOptions | None = None,
    ) -> BuiltIndex:
        """Writes the index, streaming over the shards: Python reads them, `threads` threads of Java index."""
        jvm.start()
        options = options or writing.IndexOptions()
        vocabulary = read_vocabulary(shards, manifest)
        with write_index(index, shards, manifest) as part, raise_java_errors(f"{index}: cannot be written"):
            counts = writing.write_lucene(shards, part, manifest, vocabulary, options, threads, progress)
            total = {name: counts[name] for name in ("documents", "empty", "postings", "max_impact")}
            expect_counts(str(shards), total, manifest.counts)
            if not counts["documents"]:
                raise ArtefactError(f"{shards}: no document; nothing to index")
            with fields.open_whole_index(part) as whole:
                whole.refuse_duplicates()
                expect_counts(f"{index} after writing", whole.counts(), counts)
                [segment] = whole.segments()
                there, sources = {segment.state: RESIDENT}, writing.list_sources(shards, manifest)
                writing.finish_index(part, whole, manifest, counts, options, sources, there=there)
        if lacks_kernels(index):
            with open_verified(LuceneEngine(index, manifest)) as engine:
                assert engine.resident is not None, "`lacks_kernels` reads its files"
                engine.resident.compile()
        return BuiltIndex(index, manifest)

    @staticmethod
    def options(values: Mapping[str, Any]) -> writing.IndexOptions:
        """The typed options."""
        return writing.IndexOptions(**check_switches("lucene", values, LuceneEngine.option_names))

    read_options = staticmethod(read_switches)
    source_manifest = staticmethod(writing.read_source_manifest)
    merge = staticmethod(merge)
    append = staticmethod(append)
    delete = staticmethod(delete)
    keywords = staticmethod(fields.read_keywords)
    repair = staticmethod(repair)

    @staticmethod
    def approximate(index: Path, queries: Sequence[ImpactQuery], source: str) -> BuiltIndex:
        """Prepares an index for approximate search."""
        from lexvl_anserini.engines.resident.approximate import approximate

        return approximate(index, LuceneEngine, queries, source)

    @staticmethod
    def check(index: Path, shards: Sequence[Path], progress: Progress = silent) -> dict[str, Any]:
        """Compares an index with its shards; see `updating`."""
        return check_index(index, shards, LuceneEngine, progress)

    @staticmethod
    def load_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str] | None:
        """The texts of documents, if the index was built with `store_text`."""
        stored = read_report(index).options.get("store_text")
        return fields.load_texts(index, doc_ids) if stored else None


def open_approximate(files: HeldFiles, commit: str) -> ApproximatePostings:
    """The groups of an index at a commit, after their file was compared with its checksum."""
    from lexvl_anserini.engines.resident.approximate import REMEDY, ApproximatePostings

    path = files.folder / APPROXIMATE
    with closing(Verification(files, [APPROXIMATE], {APPROXIMATE: REMEDY})) as verification:
        verification.wait()
        with files.open(APPROXIMATE) as file:
            contents = parse_contents(file, path)
            if contents is None or contents.commit != commit:
                raise ArtefactError(f"{path}: of an older version, or not of the index as it was opened; {REMEDY}")
            return ApproximatePostings(file, path)


class OpenedIndex:
    """One state of an index, whose files are compared with their checksums.

    Resident postings of all its documents are opened without Java, which then opens Lucene's files when `reader` is
    first read: those that are held since, even if another process replaced the index. `manifest` is that of the opened
    state; `places` counts deleted documents too; `resident` is None where resident postings do not serve.
    """

    def __init__(self, index: Path, manifest: Manifest):
        self.index, self.manifest = index, manifest
        self.resident: Resident | None = None
        self._reader: Any = None
        self._opening, self._closed, self.verifications = RLock(), False, list[Verification]()
        now = read_settled(index, self._open, lambda _: self.close())
        if now is not None and _list_digests(manifest) <= _list_digests(now):
            self.manifest = now
        self._check_count(stock=now is None or self.report.engine == "pyserini")

    def _open(self) -> Manifest | None:
        """Opens the files; returns the manifest beside them."""
        self.verifications, self.resident, self._reader, self._closed = [], None, None, False
        self.files = HeldFiles(self.index)
        with ExitStack() as failing:
            failing.callback(self.close)
            now = writing.find_manifest(self.index)
            served = find_usable_files(self.index)
            places = sum(of.documents for of in served.values())
            self.places = places if served else int(Exclusive(self.reader).maxDoc())
            self.report = writing.read_written_report(self.index, now)
            self.documents = self.places - self.report.deleted
            if served:
                live = [file.live for file in self.report.resident_files] or [""]
                names = dict(zip(served, live, strict=True))
                remedies = dict.fromkeys(served, REMEDY) | dict.fromkeys(filter(None, live), "build the index again")
                self.verifications = [Verification(self.files, remedies, remedies)]
                self.resident = Resident(self.files, names, *self.verifications)
            failing.pop_all()
            return now

    def _check_count(self, stock: bool) -> None:
        """Compares the number of documents with the manifest."""
        documents, empty = self.manifest.counts.documents, self.manifest.counts.get("empty", 0)
        # Stock Anserini skips documents without terms; they cannot be hits.
        if self.documents == documents or stock and self.documents == documents - empty:
            return
        self.close()
        held = f"{self.documents} documents, the manifest says {documents} of which {empty} empty"
        raise ArtefactError(f"{self.index}: {held}; index again")

    @property
    def reader(self) -> Any:
        """Lucene's reader."""
        with self._opening:
            if self._closed:
                raise ArtefactError(f"{self.index}: the index is closed; open it again")
            if self._reader is None:
                jvm.start()
                with raise_java_errors(f"{self.index}: cannot be opened as a Lucene index"), self.files.link() as place:
                    reader = fields.open_reader(self.index, place)
                with ExitStack() as opening:
                    opening.callback(fields.close, reader)
                    self.verifications.append(Verification(self.files, fields.list_commit_files(reader)))
                    opening.pop_all()
                self._reader = reader
            return self._reader

    @cached_property
    def java(self) -> JavaSearch:
        """What Java has of the index."""
        return JavaSearch.of(self.reader)

    def reading(self) -> Reading:
        """Around reading the index."""
        return Reading(self.verifications)

    def close(self) -> None:
        """Closes the files; waits for another thread that opens Lucene's."""
        with self._opening:
            self._closed = True
            if self.resident is not None:
                self.resident.close()
            for verification in self.verifications:
                verification.close()
            if self._reader is not None:
                fields.close(self._reader)
            self.files.close()


def _list_digests(manifest: Manifest) -> set[str]:
    return {str(shard["sha256"]) for shard in manifest.shards}
