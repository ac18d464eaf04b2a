"""`PartitionsEngine`: an index of impacts whose documents are in several indexes of Lucene, on one machine or many.

Every score is that of one index of all documents, and so is every list: the best of each partition are merged by score
and id. Queries are quantised for the greatest impact of all partitions, which the manifest of the whole has.

INDEX.lexvl.room/partition-00000/   finished partitions, until all are; a call that was killed finds them again
INDEX/partition-00000/              an index of Lucene, with `partition.json`
INDEX/index.json, manifest.json     of the whole
"""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.engines.engine import ChangingEngine, ImpactEngine, open_impact_index
from lexvl_anserini.engines.index_folder import (
    HEADS,
    PARTITION,
    REPORT,
    BuiltIndex,
    is_index,
    read_report,
    write_index,
    write_report,
)
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.writing import IndexOptions, read_source_manifest
from lexvl_anserini.engines.verifying import link_file
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import ROOM, name_beside, read_json, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries.clauses import Clause, Text, walk
from lexvl_anserini.runs.order import RankedList, merge_lists
from lexvl_anserini.shards.layout import combine_manifests, source_digest
from lexvl_anserini.shards.reading import check_distinct, read_ids
from lexvl_plugins.cluster.runners import Pending, get_runner, run_all
from lexvl_plugins.cluster.storage import discard, fetch, find_url, make_place, place, publish, publish_after

# Queries that one call sends, at most, and the hits that one call returns.
BATCH_QUERIES = 256
BATCH_HITS = 1 << 17

# Batches that are sent before the answer of the first is awaited.
AHEAD = 2

# What to do about partitions that are missing or have changed.
REPAIR = "run the command that built the index again, which builds what is missing"


def name_partition(number: int) -> str:
    """`partition-00003`."""
    return f"partition-{number:05}"


def build_partitions(
    sources: Sequence[Path], index: Path, threads: int = 1, progress: Progress = silent, options: Any = None
) -> BuiltIndex:
    """Builds one partition from each folder, and from these the index, which is published."""
    sources, index = [place(source) for source in sources], place(index)
    manifests = [read_shards_manifest(source) for source in sources]
    manifest = combine_manifests(manifests, sources)
    if "parts" in manifest.corpus:
        refuse_common_ids(sources, manifests)
    # Where partitions wait until all are there: beside the index; in storage, where nothing is renamed, in it.
    staging = index if find_url(index) else name_beside(index, ROOM)
    # Names the documents of all partitions together, and the greatest impact that their queries are made for.
    digest = sha256(orjson.dumps([[*map(source_digest, manifests)], manifest.counts.max_impact])).hexdigest()
    make_place(staging)
    options = options or IndexOptions()
    names = [name_partition(number) for number in range(len(sources))]
    for name in names if staging != index else ():
        # The partitions of an older index of the same collection are linked.
        if (index / name).is_dir() and not (staging / name).exists():
            with suppress(ArtefactError):
                check_partition(index / name, digest)
                shutil.copytree(index / name, staging / name, copy_function=link_file)
    build = partial(build_partition, staging, tuple(sources), options, threads, digest)
    numbers = range(len(sources))
    for _, documents in run_all(get_runner(), build, numbers, lambda number: str(sources[number]), threads):
        progress(documents)
    reports = [read_report(fetch(staging / name, [REPORT])) for name in names]
    total = {key: sum(report[key] for report in reports) for key in ("documents", "empty", "postings", "bytes")}
    for key in ("documents", "empty", "postings"):
        if total[key] != manifest.counts[key]:
            raise ArtefactError(f"{index}: {total[key]} {key} in its partitions, {manifest.counts[key]} in the shards")
    with write_index(index, fetch(sources[0], HEADS), manifest) as part:
        for name in names if staging != index else ():
            (staging / name).rename(part / name)
        counts = {"engine": "partitions", **total, "max_impact": manifest.counts.max_impact, "partitions": len(names)}
        write_report(part, {**counts, "options": options.to_json(), "collection": digest})
    if staging != index:
        shutil.rmtree(staging)
    publish(index)
    return BuiltIndex(index, manifest)


def read_shards_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards."""
    if is_index(folder):
        raise UsageError(f"{folder}: an index; partitions are built from shards, so name those it was built from")
    return read_source_manifest(folder)


def refuse_common_ids(sources: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Reads the ids of several corpora; those of the parts of one were compared when it was planned."""

    def ids() -> Iterator[str]:
        for source, manifest in zip(sources, manifests, strict=True):
            yield from read_ids(fetch(source), manifest)

    seen = SeenIds()
    for doc_id in ids():
        seen.add(doc_id)
    check_distinct(seen, ids)


def build_partition(
    folder: Path, sources: Sequence[Path], options: IndexOptions, threads: int, collection: str, number: int
) -> int:
    """Builds one partition from its shards, unless it is finished; returns the number of its documents."""
    from lexvl_anserini.searching.building import build_plan, run_plan

    index = folder / name_partition(number)
    with publish_after(index):
        plan = build_plan(fetch(sources[number]), index, "lucene", options.to_json(), True)
        documents = run_plan(plan, threads).documents
        write_json(index / PARTITION, {"collection": collection, "number": number})
    discard(sources[number])
    return documents


def check_partition(folder: Path, collection: str) -> Manifest:
    """The manifest of a partition of this collection, which its folder names."""
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: the partition is missing; {REPAIR}")
    note = read_json(folder / PARTITION, "note of the partition")
    if (noted := note.get("collection")) != collection:
        other = f"a partition of the collection {str(noted)[:12]}, expected {collection[:12]}"
        raise ArtefactError(f"{folder}: {other}; queries are quantised for one collection; {REPAIR}")
    if name_partition(number := int(note.get("number", -1))) != folder.name:
        raise ArtefactError(f"{folder}: this is partition {number}; {REPAIR}")
    return read_manifest(folder)


class PartitionsEngine(ImpactEngine, ChangingEngine):
    """Searches an index in partitions by the workers of the runner that is in use."""

    # BM25 counts documents of the whole, which a partition does not know.
    option_names = LuceneEngine.option_names - {"text"}

    def __init__(self, index: Path, manifest: Manifest):
        runner, report = get_runner(), read_report(index)
        folders = list_folders(index, report)
        self.index, self.manifest, self.documents = index, manifest, report.documents
        shares = np.array_split(np.array(folders, object), min(runner.places, len(folders)))
        searcher = partial(PartitionSearcher, str(report["collection"]))
        self.workers = runner.start_workers(searcher, [list(share) for share in shares])

    options = staticmethod(LuceneEngine.options)
    read_options = staticmethod(LuceneEngine.read_options)
    merge = staticmethod(build_partitions)
    source_manifest = staticmethod(read_shards_manifest)

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: Any = None,
    ) -> BuiltIndex:
        """One partition; see `build_partitions`."""
        return build_partitions([shards], index, threads, progress, options)

    @staticmethod
    def is_whole(index: Path, report: Mapping[str, Any]) -> bool:
        """Whether all partitions are there, each in its place."""
        try:
            for folder in list_folders(index, report):
                check_partition(fetch(folder, [PARTITION, MANIFEST]), str(report["collection"]))
        except ArtefactError:
            return False
        return True

    @staticmethod
    def figures(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Postings and partitions."""
        return {"postings": report["postings"], "partitions": report["partitions"]}

    @staticmethod
    def append(index: Path, *_: Any, **__: Any) -> BuiltIndex:
        """Raises UsageError: partitions are not changed."""
        change = "an index in partitions is not changed; encode the documents as a collection and build it again"
        raise UsageError(f"{index}: {change}")

    delete = append

    @staticmethod
    def keywords(index: Path, key: str) -> dict[str, str]:
        """The value of a metadata key by document id, of all partitions."""
        values: dict[str, str] = {}
        for folder in map(fetch, list_folders(index, read_report(index))):
            values |= LuceneEngine.keywords(folder, key)
        return values

    @staticmethod
    def repair(index: Path) -> bool:
        """Repairs each partition; True if it wrote one."""
        return sum(LuceneEngine.repair(folder) for folder in map(fetch, list_folders(index, read_report(index)))) > 0

    @staticmethod
    def check(index: Path, shards: Sequence[Path], progress: Progress = silent) -> dict[str, Any]:
        """Compares each partition with its shards, in the order in which the index was built from them."""
        report = read_report(index)
        folders = list_folders(index, report)
        if len(shards) != len(folders):
            raise UsageError(f"{index}: {len(folders)} partitions, {len(shards)} folders of shards; name all of them")
        compared: Counter[str] = Counter()
        for folder, source in zip(folders, shards, strict=True):
            check_partition(fetch(folder), report["collection"])
            counts = LuceneEngine.check(folder, [source], progress)
            compared.update({name: value for name, value in counts.items() if isinstance(value, int)})
        return {"index": str(index), "partitions": len(folders), **compared}

    @staticmethod
    def load_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str] | None:
        """The texts of documents, if the partitions were built with `store_text`."""
        report, doc_ids = read_report(index), list(doc_ids)
        if not report.options.get("store_text"):
            return None
        texts: dict[str, str] = {}
        for doc_id, folder in product(doc_ids, map(fetch, list_folders(index, report))):
            if doc_id not in texts:
                with suppress(DataError):
                    texts |= LuceneEngine.load_texts(folder, [doc_id]) or {}
        if missing := [doc_id for doc_id in doc_ids if doc_id not in texts]:
            raise DataError(f"{index}: no document {missing[0]!r}")
        return {doc_id: texts[doc_id] for doc_id in doc_ids}

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query; batches are answered by all workers at the same time."""
        check_count("hits", hits)
        hits = min(hits, self.documents)
        sent: deque[list[Pending]] = deque()
        for batch in split_batches(queries, max(1, min(BATCH_QUERIES, BATCH_HITS // hits))):
            sent.append([worker.call("search", batch, hits, threads) for worker in self.workers])
            if len(sent) > AHEAD:
                yield from merge_answers(sent.popleft(), hits)
        while sent:
            yield from merge_answers(sent.popleft(), hits)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        """The ranked list of a clause tree."""
        check_count("hits", hits)
        if any(isinstance(node, Text) for node in walk(clause)):
            raise UsageError("BM25 needs statistics of the whole corpus, which partitions lack; build one index")
        return merge_lists(self._ask_all("search_tree", query_id, clause, hits), hits)

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has."""
        return self._read_document("impacts", doc_id, list(terms))

    def vector(self, doc_id: str) -> dict[str, int]:
        """The document's whole vector."""
        return self._read_document("vector", doc_id)

    def _read_document(self, method: str, doc_id: str, *arguments: Any) -> dict[str, int]:
        for impacts in self._ask_all("read_document", method, doc_id, *arguments):
            if impacts is not None:
                return dict(impacts)
        raise DataError(f"{self.index}: no document {doc_id!r}")

    def _ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all workers, which work at the same time."""
        pending = [worker.call(method, *arguments) for worker in self.workers]
        return [answer.result() for answer in pending]

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach, as that of one index."""
        most = self.manifest.counts.max_impact
        if most is not None and (quick := most * sum(vector.values())) < SCORE_LIMIT:
            return quick
        greatest = [max(impacts) for impacts in zip(*self._ask_all("find_greatest", list(vector)), strict=True)]
        return sum(weight * impact for weight, impact in zip(vector.values(), greatest, strict=True))

    def served(self) -> Mapping[str, int]:
        """Searches of partitions by the form of their postings."""
        return dict(sum(map(Counter, self._ask_all("served")), Counter[str]()))

    def verify(self) -> None:
        """Waits until the files of all partitions are compared with their checksums."""
        self._ask_all("verify")

    def close(self) -> None:
        """Ends the workers."""
        for worker in self.workers:
            worker.close()


def list_folders(index: Path, report: Mapping[str, Any]) -> list[Path]:
    """The folders of an index's partitions."""
    count = report.get("partitions")
    if not isinstance(count, int) or count < 1 or not isinstance(report.get("collection"), str):
        raise ArtefactError(f"{index}: index.json names no partitions; build the index again")
    return [place(index) / name_partition(number) for number in range(count)]


def split_batches(queries: Iterable[ImpactQuery], size: int) -> Iterator[list[ImpactQuery]]:
    """Consecutive queries; batches grow up to `size`, so that the first lists are returned early."""
    stream, step = iter(queries), 1
    while batch := list(islice(stream, step)):
        yield batch
        step = min(2 * step, size)


def merge_answers(pending: Sequence[Pending], hits: int) -> Iterator[RankedList]:
    """The lists of a batch, from the answers of all workers."""
    results = [answer.result() for answer in pending]
    return (merge_lists(lists, hits) for lists in zip(*results, strict=True))


class PartitionSearcher:
    """The open indexes of some partitions of a collection, whose digest names it."""

    def __init__(self, collection: str, folders: Sequence[Path]):
        self.engines: list[ImpactEngine] = []
        try:
            for folder in folders:
                manifest = check_partition(fetch(folder), collection)
                self.engines.append(open_impact_index(folder, manifest))
        except BaseException:
            self.close()
            raise

    def search(self, queries: Sequence[ImpactQuery], hits: int, threads: int) -> list[RankedList]:
        """One ranked list per query."""
        of_engines = [list(engine.search(queries, hits, threads)) for engine in self.engines]
        return [merge_lists(lists, hits) for lists in zip(*of_engines, strict=True)]

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        """The ranked list of a query tree."""
        return merge_lists([engine.search_tree(query_id, clause, hits) for engine in self.engines], hits)

    def read_document(self, method: str, doc_id: str, *arguments: Any) -> dict[str, int] | None:
        """What a method of engines says of a document; None if no partition has it."""
        for engine in self.engines:
            with suppress(DataError):
                impacts: dict[str, int] = getattr(engine, method)(doc_id, *arguments)
                return impacts
        return None

    def find_greatest(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        # From 2^24 on, a bound is weight times greatest impact.
        limits = [[int(engine.bound({term: SCORE_LIMIT})) for engine in self.engines] for term in terms]
        return [max(bounds) // SCORE_LIMIT for bounds in limits]

    def served(self) -> Mapping[str, int]:
        """The number of searches that each form of the postings has answered, over all partitions."""
        return dict(sum((Counter(engine.served()) for engine in self.engines), Counter[str]()))

    def verify(self) -> None:
        """Waits until the files of all partitions are compared with their checksums."""
        for engine in self.engines:
            engine.verify()

    def close(self) -> None:
        """Closes the files."""
        for engine in self.engines:
            engine.close()
