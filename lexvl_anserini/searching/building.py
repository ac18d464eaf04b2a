"""Building, changing and checking an index: the same steps for every engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lexvl_anserini.data.pictures.images import usable_cores
from lexvl_anserini.engines.engine import ChangingEngine
from lexvl_anserini.engines.index_folder import is_index, read_report
from lexvl_anserini.engines.opening import changing_engine, engine_class
from lexvl_anserini.engines.planning import BuildPlan, Folders, folders_of, plan_index
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import clear_remains, sole_writer
from lexvl_anserini.ground.places import fetched, publish
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.searching.index import Index

log = logging.getLogger(__name__)


def build_index(
    shards: Folders,
    index: Path | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
    options: Mapping[str, Any] | None = None,
    text: bool = False,
    store_text: bool = False,
    term_vectors: bool = False,
    metadata: bool = True,
    *,
    engine: str | None = None,
) -> Index:
    """Builds the index of an encoded corpus.

    Args:
        shards: a folder that `encode` wrote, or several of impacts (or impact indexes), which become one index.
        index: the folder to write; default `indexes/<name of the shards folder>`. It appears whole or not at all.
        threads: of the engine, where it can use more than one; default all cores that this process may use.
        overwrite: replace a finished index of other shards or options.
        progress: called with the number of documents just read.
        options: of the engine, by name. FAISS: `faiss`, its layout (flat, hnsw, ivfpq, sq8, binary), and that layout's
            parameters. Lucene: the four parameters below.
        text: Lucene indexes the documents' texts too, for BM25 beside impacts.
        store_text: Lucene stores the documents' texts, to show them.
        term_vectors: Lucene stores each document's impacts, to read them back.
        metadata: Lucene makes one field for each key of the documents' metadata; default True.
        engine: a row of `registry.ENGINES`; default lucene for impacts, faiss for dense vectors, bm25 for texts.

    Returns:
        The index; one that is there already and was built from the same shards is left as it is.

    Raises:
        ArtefactError: the shards are unfinished, damaged or malformed, the index exists, counts in and out differ, or
            several folders do not go together.
        UsageError: an unknown engine, one for shards of another kind, or an option that is not one of its own.
        JavaError: no usable Java.
    """
    threads = checked_threads(threads)
    switches = {"text": text, "store_text": store_text, "term_vectors": term_vectors}
    named = {name: True for name, on in switches.items() if on} | ({} if metadata else {"metadata": False})
    plan = plan_index(shards, index, engine, {**(options or {}), **named}, overwrite)
    return carry_out(plan, threads, progress)


def checked_threads(threads: int | None) -> int:
    """The number of threads that writes an index: as given, or all cores that this process may use."""
    if threads is None:
        return usable_cores()
    check_count("threads", threads, most=MOST_THREADS)
    return threads


def carry_out(plan: BuildPlan, threads: int = 1, progress: Progress = silent) -> Index:
    """Builds a planned index, unless it is finished."""
    clear_remains(plan.index)
    if plan.finished:
        return _finished(plan)
    with sole_writer(plan.index, folder=True):
        # Another process may have built it since the plan was made.
        return _finished(plan) if plan.looked_at().finished else _built(plan, threads, progress)


def _finished(plan: BuildPlan) -> Index:
    log.info("%s: finished already, nothing to do", read_report(plan.index).get("url", plan.index))
    return Index(plan.index, plan.manifest, plan.manifest.counts.documents)


def _built(plan: BuildPlan, threads: int, progress: Progress) -> Index:
    engine = engine_class(plan.engine)
    first, *others = sources = [fetched(source) if engine.reads_shards else source for source in plan.sources]
    if others or is_index(first) and issubclass(engine, ChangingEngine):
        built = changing_engine(first, plan.engine).merge(sources, plan.index, threads, progress, plan.options)
    else:
        built = engine.build(first, plan.index, plan.manifest, threads, progress, plan.options)
    publish(plan.index)
    return Index.of(built)


def append_index(
    index: Path | str, shards: Folders, replace: bool = False, threads: int | None = None, progress: Progress = silent
) -> Index:
    """Adds the documents of shards (or of other indexes) to an impact index; it skips those that it holds already.

    Args:
        index: it changes completely or not at all; a process that has it open continues to read the older one.
        shards: one folder or several, of the index's encoder, vocabulary and quantiser.
        replace: a new document replaces the one of its id; without, a common id raises.
        threads: default all cores that this process may use.
    """
    threads = checked_threads(threads)
    sources = folders_of(shards)
    changed = built_engine(Path(index), "append to").append(Path(index), sources, replace, threads, progress)
    return Index.of(changed)


def delete_documents(index: Path | str, doc_ids: Iterable[str]) -> Index:
    """Removes documents from an impact index by id."""
    return Index.of(built_engine(Path(index), "delete from").delete(Path(index), doc_ids))


def metadata_texts(index: Path | str, key: str) -> dict[str, str]:
    """The value of a metadata key by document id, of an impact index; documents without the key are absent.

    Args:
        index: its folder.
        key: of the metadata that was stored with the shards; its values are texts without line feeds.
    """
    return built_engine(Path(index), "read").keywords(Path(index), key)


def check_index(index: Path | str, shards: Folders, progress: Progress = silent) -> dict[str, Any]:
    """Compares an impact index with the shards it was built from, and with its own checksums.

    Raises:
        ArtefactError: something differs; the message lists what.
        UsageError: an index of an engine that only builds.
    """
    folder = Path(index)
    sources = folders_of(shards)
    for source in sources:
        if is_index(source):
            raise UsageError(f"{source}: an index; name the shards that it was built from")
    return changing_engine(folder, read_report(folder).get("engine")).check(folder, sources, progress)


def repair_index(index: Path | str) -> bool:
    """Writes again what an impact index has beside its documents and lacks, or what is damaged; True if it did."""
    return built_engine(Path(index), "repair").repair(Path(index))


def built_engine(index: Path, purpose: str) -> type[ChangingEngine]:
    """The engine of an existing index, to change it.

    Raises:
        ArtefactError: no index.
        UsageError: an index of an engine that only builds.
    """
    clear_remains(index)
    if not is_index(index):
        raise ArtefactError(f"{index}: no index of ours to {purpose}; build it first")
    return changing_engine(index, read_report(index).get("engine"))
