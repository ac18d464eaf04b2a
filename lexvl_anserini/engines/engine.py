"""The protocol of all engines: how an engine builds an index, and what an open index answers.

A new engine is one class (a subclass of `Engine`; for impacts of `ImpactEngine`; of `ChangingEngine` if its indexes can
be changed), one row in `registry.ENGINES` and one test. No other module of the project knows the insides of an engine.

Calling the class opens an index: `LuceneEngine(index, manifest)`; `find_engine` finds the class of an index.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from lexvl_anserini.engines.index_folder import BuiltIndex, read_report
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import Manifest, expect_lexical, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.registry import DEFAULT_ENGINES, ENGINES, import_home, refuse_gone_engine
from lexvl_anserini.queries.clauses import All, Clause, Impacts, Unscored
from lexvl_anserini.queries.query_vectors import RM3
from lexvl_anserini.runs.order import RankedList, group_by_documents


class EngineOptions:
    """What a user can choose about an index: a frozen dataclass per engine, or this class where there is nothing."""

    def to_json(self) -> dict[str, Any]:
        """The requested options, named and valued as in index.json."""
        return {}


def check_switches(engine: str, values: Mapping[str, Any], names: frozenset[str]) -> Mapping[str, bool]:
    """Options that are switched on or off, of an engine that has no others."""
    for name, value in values.items():
        if name not in names:
            raise UnknownName(f"option of the engine {engine}", name, names)
        if not isinstance(value, bool):
            raise UsageError(f"option {name} of the engine {engine}: {value!r}, expected True or False")
    return values


def read_switches(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Such options in index.json; empty in one of an older version."""
    return report.get("options") or {}


class Engine(Protocol):
    """One kind of index: static methods build and change it, an instance is an open index.

    An engine implements the abstract methods and its constructor; the other methods fit an engine without options.
    """

    option_names: ClassVar[frozenset[str]] = frozenset()
    # Whether `build` reads the shards in the process that calls it.
    reads_shards: ClassVar[bool] = True

    def __init__(self, index: Path, manifest: Manifest) -> None:
        """Opens an index; refuses (ArtefactError) a damaged one, or one with other documents than the manifest's."""

    @abstractmethod
    def search(self, queries: Iterable[Any], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One ranked list per query, in the order of the queries; an empty query has an empty list.

        A query is an item of `Quantiser.queries` for impacts, a vector for dense indexes, a text for BM25. A list is
        ordered by score descending, then doc_id ascending (code points), also across the cut at `hits`. A query whose
        scores could leave the range in which the engine's arithmetic is exact is refused (ArtefactError).
        """

    def prepare(self) -> None:
        """Opens what any query may need."""
        return

    def search_passages(self, queries: Iterable[Any], best: int, hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query, as `search`, of documents scored by the sum of so many of their best passages."""
        return group_by_documents(partial(self.search, threads=threads), queries, hits, best)

    def verify(self) -> None:
        """Waits until the files that answers came from are compared with their checksums; then the answers count."""
        return

    def served(self) -> Mapping[str, int]:
        """The number of queries by the form of the index that answered them; empty for an engine of one form."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Releases files and memory."""

    @staticmethod
    def options(values: Mapping[str, Any]) -> EngineOptions:
        """Options by name as this engine's typed options; all names are in `option_names`."""
        return EngineOptions()

    @staticmethod
    def read_options(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options that an index was built with, from its index.json; comparable with `EngineOptions.to_json`."""
        return {}

    @staticmethod
    def is_whole(index: Path, report: Mapping[str, Any]) -> bool:
        """Whether an index has all that its index.json names; False for one that the same request is to complete."""
        return True

    @staticmethod
    @abstractmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: Any = None,
    ) -> BuiltIndex:
        """Builds `index` from the folder `shards`, whole or not at all (see `index_folder.write_index`).

        index.json has at least the engine's name (a row of `registry.ENGINES`) and the numbers of documents, empty
        documents, postings and bytes.

        Args:
            progress: called with the number of documents just read.
            options: what `options` returned; None is the default options.
        """

    @staticmethod
    def figures(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the command `index` prints from index.json besides the number of documents and bytes."""
        return {"postings": report["postings"]}

    @staticmethod
    def load_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str] | None:
        """The texts of documents by id, from an index that stores them; None from one that does not."""
        return None


class ImpactEngine(Engine, Protocol):
    """An engine for impacts: a score is an integer, the dot product of query weights and impacts."""

    @abstractmethod
    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        """The ranked list of a clause tree; refuses (UsageError) a field or value that the index cannot search."""

    def search_where(
        self, queries: Iterable[ImpactQuery], where: Clause, hits: int, threads: int = 1
    ) -> Iterator[RankedList]:
        """One list per query, as `search`, of the documents that match a condition, which adds no score."""
        for query in queries:
            yield self.search_tree(query.query_id, All((Impacts(query.vector), Unscored(where))), hits)

    def search_approximately(
        self, queries: Iterable[ImpactQuery], hits: int, recall: float, threads: int = 1
    ) -> Iterator[RankedList]:
        """One list per query, as `search`, of the mean share of the hits that the index's measurement promises."""
        raise UsageError("this index has no approximate search, which is for indexes of the engine lucene")

    def search_passages(
        self, queries: Iterable[ImpactQuery], best: int, hits: int, threads: int = 1, where: Clause | None = None
    ) -> Iterator[RankedList]:
        """As that of `Engine`; of the passages that match a condition."""

        def passages(some: Sequence[ImpactQuery], depth: int) -> Iterator[RankedList]:
            if where is None:
                return self.search(some, depth, threads)
            return self.search_where(some, where, depth, threads)

        return group_by_documents(passages, queries, hits, best)

    @abstractmethod
    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact (>= 1) for each of `terms` that it has, in their order."""

    @abstractmethod
    def vector(self, doc_id: str) -> dict[str, int]:
        """The document's whole vector, term -> impact, of an index that stores vectors."""

    @abstractmethod
    def bound(self, vector: Mapping[str, float]) -> float:
        """An upper bound of the score of any document.

        Where it is 2^24 or more, it is the sum over terms of weight x greatest impact of the term in this index.
        """


class TextEngine(Engine, Protocol):
    """An engine for texts, which analyses queries itself."""

    @abstractmethod
    def search(
        self, queries: Iterable[Any], hits: int, threads: int = 1, rm3: RM3 | None = None
    ) -> Iterator[RankedList]:
        """As that of `Engine`; `rm3` expands each query by its best documents."""


@runtime_checkable
class ChangingEngine(Protocol):
    """An engine whose indexes can be merged, appended to, deleted from and checked."""

    @staticmethod
    @abstractmethod
    def source_manifest(folder: Path) -> Manifest:
        """The manifest of a folder (shards, or an index of this engine) that `merge` and `append` read."""

    @staticmethod
    @abstractmethod
    def merge(
        sources: Sequence[Path], index: Path, threads: int = 1, progress: Progress = silent, options: Any = None
    ) -> BuiltIndex:
        """Builds one index of several folders, each of shards or an index of this engine."""

    @staticmethod
    @abstractmethod
    def append(
        index: Path, sources: Sequence[Path], replacing: bool = False, threads: int = 1, progress: Progress = silent
    ) -> BuiltIndex:
        """Adds documents of other shards or indexes, if they are new; the index changes whole or not at all.

        With `replacing`, a new document replaces the one of its id; without, a common id raises.
        """

    @staticmethod
    @abstractmethod
    def delete(index: Path, doc_ids: Iterable[str]) -> BuiltIndex:
        """Removes documents by id; the index changes whole or not at all."""

    @staticmethod
    @abstractmethod
    def keywords(index: Path, key: str) -> dict[str, str]:
        """The value of a metadata key by id of the documents that have it, where values are lines of text."""

    @staticmethod
    def approximate(index: Path, queries: Sequence[ImpactQuery], source: str) -> BuiltIndex:
        """Prepares an index for approximate search, and measures its recall with queries, or with its own documents.

        The index changes whole or not at all; index.json names the `source` of the queries.
        """
        raise UsageError(f"{index}: its engine has no approximate search, which is for indexes of lucene")

    @staticmethod
    def repair(index: Path) -> bool:
        """Writes again what an index has beside its documents and lacks, or what is damaged; True if it did."""
        return False

    @staticmethod
    @abstractmethod
    def check(index: Path, shards: Sequence[Path], progress: Progress = silent) -> dict[str, Any]:
        """Compares an index with its shards and its own checksums; returns what was compared, or lists what differs."""


OpenEngine = TypeVar("OpenEngine", bound=Engine)


def choose_engine(kind: str, requested: str | None = None) -> str:
    """The name of the engine for shards of a kind: `requested`, or the kind's default."""
    if kind not in DEFAULT_ENGINES:
        raise UnknownName("engine", kind, DEFAULT_ENGINES)
    name = requested or DEFAULT_ENGINES[kind]
    kinds = ENGINES[name].kinds
    if kind not in kinds:
        fitting = ", ".join(sorted(name for name, row in ENGINES.items() if kind in row.kinds))
        raise UsageError(f"engine {name!r} indexes {' and '.join(kinds)} shards, these are {kind}; expected {fitting}")
    return name


def get_engine(name: str) -> type[Engine]:
    """The class of a registered engine."""
    return import_home(ENGINES[name].home)


def find_engine(index: Path, kind: str) -> type[Engine]:
    """The class of the engine that built an index; of an index without index.json the default for its kind."""
    return get_engine(choose_engine(kind, read_report(index).get("engine")))


def open_index(index: Path, manifest: Manifest) -> Engine:
    """Opens an index with the engine that built it."""
    if not index.is_dir():  # Lucene would make the folder
        raise ArtefactError(f"{index}: no such index; it was removed")
    return find_engine(index, manifest.kind)(index, manifest)


@contextmanager
def open_verified(engine: OpenEngine) -> Iterator[OpenEngine]:
    """Closes an engine at the end, whose answers count only if none of its files turned out to be damaged."""
    try:
        yield engine
        engine.verify()
    finally:
        engine.close()


def open_impact_index(index: Path, manifest: Manifest) -> ImpactEngine:
    """Opens an impact index; as `open_index`."""
    expect_lexical(index, manifest.kind, "expected an impact index")
    return cast(ImpactEngine, open_index(index, manifest))


def get_changing_engine(folder: Path, engine: str | None) -> type[ChangingEngine]:
    """The engine for a folder of shards or an index, which can merge and change indexes."""
    kind = read_manifest(folder).kind
    name = choose_engine(kind, engine)
    cls = get_engine(name)
    if not issubclass(cls, ChangingEngine):
        able = ", ".join(name for name in ENGINES if issubclass(get_engine(name), ChangingEngine))
        raise UsageError(
            f"{folder}: {kind}, for the engine {name}; only indexes of {able} (impacts) are merged, changed and "
            "checked; build it again"
        )
    return cls


_URL = re.compile(r"([a-z][a-z\d]*)(?:\+\w*)?:")  # the beginning of the URL of an index: its engine, and a form of URL


class Target(NamedTuple):
    """Where `index` writes: a local folder; for a URL its engine, and the options that have the URL."""

    folder: Path
    engine: str | None
    options: dict[str, Any]


def find_urls(index: str | Path) -> Any:
    """What an engine says of the URLs of its indexes: its functions `copied` and `target`; None for a folder."""
    match = _URL.match(str(index))
    if match is None:
        return None
    refuse_gone_engine(match[1], match[1])
    row = ENGINES.get(match[1])
    return import_home(row.urls) if row and row.urls else None


def index_name(index: str | Path) -> str:
    """The name of an index: that of its folder, or the last part of its URL; empty for the root of a disk."""
    return str(index).rpartition("/")[2] if find_urls(index) else Path(index).resolve().name


def index_path(index: Path | str) -> Path:
    """The folder of an index; of a URL, the local folder that has what its engine says of it."""
    urls = find_urls(index)
    return urls.copied(index) if urls else Path(index)


def resolve_target(index: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where an index is to be written; the local folder of a URL has what is there, or is absent."""
    urls = find_urls(index)
    return urls.target(index, engine, options) if urls else Target(Path(index), engine, dict(options))
