"""The engine for texts: stock Anserini BM25, which gives the published BEIR "flat" rows.

Anserini's own classes index and search, inside this process. Their printed lines are captured, and documents that they
skip silently are counted and raise an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.encoders.families.bm25 import ENGLISH, BM25Settings
from lexvl_anserini.engines import index_folder, jvm
from lexvl_anserini.engines.engine import EngineOptions, TextEngine, check_switches, read_switches
from lexvl_anserini.engines.jvm import call_java, capture_stdout, get_java_class, raise_java_errors, read_lucene_version
from lexvl_anserini.engines.lucene.fields import close, get_reader, list_commit_files, make_analyzer, open_whole_index
from lexvl_anserini.engines.lucene.writing import find_manifest, read_written_report
from lexvl_anserini.engines.verifying import HeldFiles, Reading, Verification
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.query_vectors import RM3
from lexvl_anserini.runs.order import RankedList, in_order
from lexvl_anserini.shards.reading import check_distinct, expect_counts, read_ids, read_texts

MEMORY_BUFFER_MB = 256  # the memory of Anserini's indexer; its default of 4 GB is more than the Java heap

BATCH_SIZE = 256


@dataclass(frozen=True)
class BM25Options(EngineOptions):
    """What an index of texts holds besides ids and postings: `term_vectors`, the terms of each document, for RM3."""

    term_vectors: bool = False

    def to_json(self) -> dict[str, bool]:
        """For index.json; empty at the default, as older versions wrote it."""
        return {name: value for name, value in asdict(self).items() if value}


class BM25Engine(TextEngine):
    """Searches a text index with Anserini's `SimpleSearcher`.

    The options of the encoder in the manifest decide k1, b and the analyser; `BM25Settings` has the equation.
    """

    option_names = frozenset(field.name for field in fields(BM25Options))

    def __init__(self, index: Path, manifest: Manifest):
        jvm.start()
        self.index, self.settings = index, BM25Settings.of(manifest.encoder.options)
        with get_reader(index) as reader:
            counts = read_written_report(index, find_manifest(index)) or manifest.counts
            self.files = HeldFiles(index)
            self.verification = Verification(self.files, list_commit_files(reader))
        with (
            raise_java_errors(f"{index}: cannot be opened as a Lucene index"),
            index_folder.refuse_newer(index),
            call_java(),
        ):
            documents = self._open(index, self.settings)
        expected = counts.documents - counts.empty
        if documents != expected:
            self.close()
            raise ArtefactError(f"{index}: {documents} documents, the manifest says {expected} with text; index again")

    def _open(self, index: Path, settings: BM25Settings) -> int:
        """Makes the searcher; returns its number of documents."""
        self.searcher = get_java_class("io.anserini.search.SimpleSearcher")(str(index.absolute()))
        self.searcher.set_bm25(settings.k1, settings.b)
        self.searcher.set_analyzer(make_analyzer(settings))
        # One call returns the hits of a whole batch as JSON, without the stored documents.
        self.json = get_java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        stored = get_java_class("java.lang.Class").forName("org.apache.lucene.document.Document")
        self.json.configOverride(stored).setIsIgnoredType(get_java_class("java.lang.Boolean")("true"))
        return int(self.searcher.get_total_num_docs())

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: BM25Options | None = None,
    ) -> index_folder.BuiltIndex:
        """Runs Anserini's `IndexCollection` on `docs/`, one thread a shard at most.

        Anserini skips documents without text, and so do the published figures; they are counted as empty.
        """
        options = options or BM25Options()
        jvm.start()
        counts = _count_texts(shards, manifest, progress)
        with index_folder.write_index(index, shards, manifest) as part:
            with capture_stdout() as printed, raise_java_errors(f"{index}: Anserini could not write it"):
                get_java_class("io.anserini.index.IndexCollection").main(
                    _arguments(shards, part, manifest, threads, options)
                )
                complaint = next((line for line in printed().splitlines() if " ERROR " in line), "no reason given")
            with raise_java_errors(f"{index}: Anserini wrote no index ({complaint})"), open_whole_index(part) as whole:
                held = whole.counts()
            if held["documents"] != counts["documents"] - counts["empty"]:
                raise ArtefactError(
                    f"{index}: Anserini indexed {held['documents']} of {counts['documents']} documents, of which "
                    f"{counts['empty']} are empty ({complaint})"
                )
            report = {"engine": "bm25", "lucene": index_folder.format_version(read_lucene_version()), **counts}
            report |= {"postings": held["postings"]}
            report |= {"options": options.to_json()} if options.to_json() else {}
            report |= {"bytes": index_folder.measure_folder(part), "commit": index_folder.read_commit_id(part)}
            index_folder.write_report(part, report, manifest)
        return index_folder.BuiltIndex(index, manifest)

    @staticmethod
    def options(values: Mapping[str, Any]) -> BM25Options:
        """The typed options."""
        return BM25Options(**check_switches("bm25", values, BM25Engine.option_names))

    read_options = staticmethod(read_switches)

    def search(
        self, queries: Iterable[Topic], hits: int, threads: int = 1, rm3: RM3 | None = None
    ) -> Iterator[RankedList]:
        """One list per topic, in batches on `threads` threads; a topic whose words are all stop words has none."""
        check_count("hits", hits)
        check_count("threads", threads, most=MOST_THREADS)
        if rm3 is not None and not index_folder.read_report(self.index).options.get("term_vectors"):
            raise UsageError(
                f"{self.index}: no term vectors, which RM3 reads; build it again: lexvl index SHARDS --index "
                f"{self.index} --term-vectors --overwrite"
            )
        for batch in make_batches(queries, BATCH_SIZE):
            yield from self._search_batch(batch, hits, threads, rm3)

    def verify(self) -> None:
        """Waits until all of Lucene's files are compared with their checksums."""
        self.verification.wait()

    def close(self) -> None:
        """Closes Lucene's files."""
        self.verification.close()
        self.files.close()
        close(self.searcher)

    @contextmanager
    def _expanding(self, rm3: RM3 | None) -> Iterator[None]:
        """Searches inside the block expand their queries; no other thread searches meanwhile."""
        if rm3 is None:
            yield
            return
        # Other languages than English have other letters.
        english = self.settings.language == ENGLISH
        self.searcher.set_rm3(None, rm3.terms, rm3.documents, rm3.weight, False, english)
        try:
            yield
        finally:
            self.searcher.unset_rm3()

    def _search_batch(self, batch: Sequence[Topic], hits: int, threads: int, rm3: RM3 | None) -> Iterator[RankedList]:
        for topic in batch:
            if topic.text is None:
                raise UsageError(f"topic {topic.query_id!r} has no text; BM25 searches texts only")
        reading, failing = Reading([self.verification]), raise_java_errors("Anserini could not search")
        # `capture_stdout` lets one thread in at a time.
        with reading, capture_stdout() as printed, failing, call_java(), self._expanding(rm3):
            # Anserini merges topics of one id; positions are distinct.
            texts, numbers = java_list(str(topic.text) for topic in batch), java_list(map(str, range(len(batch))))
            answer = self.searcher.batch_search(texts, numbers, hits, threads)
            lists = orjson.loads(self.json.writeValueAsString(answer))
            lost = next((topic for number, topic in enumerate(batch) if str(number) not in lists), None)
            if lost is not None:
                raise ArtefactError(f"Anserini lost topic {lost.query_id!r}: {printed()[-300:]}")
        for number, topic in enumerate(batch):
            yield in_order(topic.query_id, [(hit["docid"], hit["score"]) for hit in lists[str(number)]])


def java_list(values: Iterable[str]) -> Any:
    """A Java list of strings."""
    array_list = get_java_class("java.util.ArrayList")()
    for value in values:
        array_list.add(value)
    return array_list


def _count_texts(shards: Path, manifest: Manifest, progress: Progress) -> dict[str, int]:
    """Reads all shards once, checks what Anserini does not check, and counts the documents that it will skip."""
    seen = SeenIds()
    counts = {"documents": 0, "empty": 0}
    for document in read_texts(shards, manifest):
        seen.add(document.doc_id)
        counts["documents"] += 1
        # Anserini applies Java's trim(), which removes all characters up to the blank.
        counts["empty"] += not document.contents.strip("".join(map(chr, range(33))))
        progress(1)
    check_distinct(seen, lambda: read_ids(shards, manifest))
    expect_counts(str(shards), {"documents": counts["documents"]}, manifest.counts)
    if counts["documents"] == counts["empty"]:
        raise ArtefactError(f"{shards}: no document with text; nothing to index")
    return counts


def _arguments(shards: Path, index: Path, manifest: Manifest, threads: int, stored: BM25Options) -> list[Any]:
    """The command line of `IndexCollection`."""
    settings = BM25Settings.of(manifest.encoder.options)
    options = {
        "-collection": "JsonCollection",
        "-generator": "DefaultLuceneDocumentGenerator",
        "-input": str((shards / "docs").absolute()),
        "-index": str(index.absolute()),
        "-threads": str(threads),
        "-memoryBuffer": str(MEMORY_BUFFER_MB),
        "-language": settings.language,
        "-stemmer": settings.stemmer,
    }
    words = [word for pair in options.items() for word in pair]
    switches = {"-keepStopwords": settings.keep_stopwords, "-storeDocvectors": stored.term_vectors}
    return [*words, *(name for name, on in switches.items() if on)]
