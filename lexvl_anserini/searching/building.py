"""Planning, building, changing and checking an index: the same steps for every engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.engines.engine import (
    ChangingEngine,
    EngineOptions,
    choose_engine,
    find_engine,
    get_changing_engine,
    get_engine,
    resolve_target,
)
from lexvl_anserini.engines.index_folder import REPORT, is_index, list_commits, read_report
from lexvl_anserini.ground.claims import Claim, claim, report_finished
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import clear_remains, sole_writer
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.registry import ENGINES
from lexvl_anserini.ground.typed import MOST_THREADS, check_count, check_type
from lexvl_anserini.queries.query_source import find_vocabulary_file, read_queries
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.shards.layout import combine_manifests, list_part_folders

Folders = Path | str | Sequence[Path | str]
FOLDER = "a folder of shards, or a list of such folders"  # how an error names them


@dataclass(frozen=True)
class BuildPlan:
    """An index to build of folders of shards, or of indexes to merge.

    Attributes:
        engine: a row of `registry.ENGINES`.
        overwrite: another index of that name may be replaced.
        finished: the index is there already, as planned.
    """

    sources: Sequence[Path]
    index: Path
    manifest: Manifest
    engine: str
    options: EngineOptions
    overwrite: bool
    finished: bool = False

    def look_again(self) -> BuildPlan:
        """Looks again at what is there."""
        return replace(self, finished=is_built(self))


def build_plan(
    shards: Folders, index: Path | str | None, engine: str | None, options: Mapping[str, Any], overwrite: bool
) -> BuildPlan:
    """Plans what `build_index` does; nothing is written."""
    sources = list_folders(shards)
    check_type("index", index, Path | str | None, "a folder or a URL")
    named = shards if isinstance(shards, Path | str) else shards[0]
    target = resolve_target(Path("indexes", Path(named).resolve().name) if index is None else index, engine, options)
    if index is None and len(sources) == 1 and is_index(sources[0]):
        raise UsageError(
            f"{named}: an index already; search it with lexvl search --index {named}, or name the folder of its shards"
        )
    manifest = plan_manifest(sources, target.engine)
    name = choose_engine(manifest.kind, target.engine)
    chosen = get_engine(name).options(select_options(name, manifest.kind, target.options))
    return BuildPlan(sources, target.folder, manifest, name, chosen, overwrite).look_again()


def list_folders(shards: Folders) -> list[Path]:
    """Lists one folder or several; in place of a collection its parts."""
    check_type("shards", shards, Iterable | Path, FOLDER)
    named = [shards] if isinstance(shards, Path | str) else list(shards)
    for folder in named:
        check_type("a folder of shards", folder, Path | str, FOLDER)
    folders = [part for folder in named for part in list_part_folders(Path(folder))]
    if not folders:
        raise UsageError("no shards; name a folder that encode wrote")
    return folders


def plan_manifest(sources: Sequence[Path], engine: str | None = None) -> Manifest:
    """Returns the manifest of an index of these folders."""
    if len(sources) == 1:
        return read_manifest(sources[0])
    merging = get_changing_engine(sources[0], engine)
    return combine_manifests([merging.source_manifest(folder) for folder in sources], sources)


def select_options(engine: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the options without those of other engines that are switched off."""
    names = get_engine(engine).option_names
    named = {name: value for name, value in options.items() if name in names or value is not False}
    foreign = [name for name in named if name not in names]
    for other, row in sorted(ENGINES.items(), key=lambda item: kind not in item[1].kinds):
        if owned := [name for name in foreign if other != engine and name in get_engine(other).option_names]:
            raise UsageError(
                f"{', '.join(owned)}: no option of the engine {engine}, which indexes these shards ({kind}), but of "
                f"{other}, which indexes {' and '.join(row.kinds)} shards"
            )
    return named


def is_built(plan: BuildPlan) -> bool:
    """Returns True if a planned index is there, False if it may be built; refuses a folder of something else."""
    index, manifest = plan.index, plan.manifest
    if not index.exists() or index.is_dir() and not any(index.iterdir()):
        return False
    if not (index / REPORT).is_file() or not (index / MANIFEST).is_file():
        raise ArtefactError(f"{index}: exists and is no index of ours; name another --index")
    stored_manifest, report = read_manifest(index), read_report(index)
    if stored_manifest != manifest:
        return claim(index, "an index", manifest.to_json(), stored_manifest.to_json(), plan.overwrite) is Claim.DONE
    engine = find_engine(index, manifest.kind)
    stored = {"engine": report.get("engine"), **engine.read_options(report)}
    requested = {name: str(value) for name, value in {"engine": plan.engine, **plan.options.to_json()}.items()}
    earlier: dict[str, Any] = {name: str(stored.get(name)) for name in requested}
    # The manifest counts the documents of indexes that changed, and does not say which they are.
    changed = {"commits": [commit for source in plan.sources for commit in list_commits(source)]}
    earlier |= {"commits": report.source_commits}
    decision = claim(index, "an index", {**requested, **changed}, earlier, plan.overwrite)
    return decision is Claim.DONE and engine.is_whole(index, report)


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
        term_vectors: Lucene stores each document's impacts, to read them back; bm25 its words, for RM3.
        metadata: Lucene makes one field for each key of the documents' metadata; default True.
        engine: a row of `registry.ENGINES`; default lucene for impacts, faiss for dense vectors, bm25 for texts.

    Returns:
        The index; one that is there already and was built from the same shards is left as it is.
    """
    threads = choose_threads(threads)
    switches = {"text": text, "store_text": store_text, "term_vectors": term_vectors}
    named = {name: True for name, on in switches.items() if on} | ({} if metadata else {"metadata": False})
    plan = build_plan(shards, index, engine, {**(options or {}), **named}, overwrite)
    return run_plan(plan, threads, progress)


def choose_threads(threads: int | None) -> int:
    """Chooses the number of threads that write an index: default all cores that this process may use."""
    if threads is None:
        return count_usable_cores()
    check_count("threads", threads, most=MOST_THREADS)
    return threads


def run_plan(plan: BuildPlan, threads: int = 1, progress: Progress = silent) -> Index:
    """Builds a planned index, unless it is finished."""
    clear_remains(plan.index)
    if plan.finished:
        return _keep(plan)
    with sole_writer(plan.index, folder=True):
        # Another process may have built it since the plan was made.
        return _keep(plan) if plan.look_again().finished else _build(plan, threads, progress)


def _keep(plan: BuildPlan) -> Index:
    report_finished(read_report(plan.index).get("url", plan.index))
    return Index(plan.index, plan.manifest)


def _build(plan: BuildPlan, threads: int, progress: Progress) -> Index:
    engine, (first, *others) = get_engine(plan.engine), plan.sources
    settings = (plan.index, threads, progress, plan.options)
    if others or is_index(first) and issubclass(engine, ChangingEngine):
        built = get_changing_engine(first, plan.engine).merge(plan.sources, *settings)
    else:
        built = engine.build(first, plan.index, plan.manifest, *settings[1:])
    return Index(built.path, built.manifest)


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
    threads = choose_threads(threads)
    sources = list_folders(shards)
    changed = find_changing_engine(Path(index), "append to").append(Path(index), sources, replace, threads, progress)
    return Index(changed.path, changed.manifest)


def delete_documents(index: Path | str, doc_ids: Iterable[str]) -> Index:
    """Removes documents from an impact index by id."""
    changed = find_changing_engine(Path(index), "delete from").delete(Path(index), doc_ids)
    return Index(changed.path, changed.manifest)


def read_keywords(index: Path | str, key: str) -> dict[str, str]:
    """Reads the value of a metadata key by document id, of an impact index; documents without the key are absent."""
    return find_changing_engine(Path(index), "read").keywords(Path(index), key)


def check_index(index: Path | str, shards: Folders, progress: Progress = silent) -> dict[str, Any]:
    """Compares an impact index with its shards and with its checksums; an error lists what differs."""
    folder, sources = Path(index), list_folders(shards)
    for source in sources:
        if is_index(source):
            raise UsageError(f"{source}: an index; name the shards that it was built from")
    return get_changing_engine(folder, read_report(folder).get("engine")).check(folder, sources, progress)


def approximate_index(index: Path | str, queries: Path | str | None = None) -> Index:
    """Prepares an impact index for approximate search, and measures the recall of its settings.

    Args:
        index: it changes completely or not at all; another change of it takes the preparation away.
        queries: a file of encoded queries to measure with; default: documents of the index.
    """
    folder, vectors, source = Path(index), list[ImpactQuery](), ""
    engine = find_changing_engine(folder, "prepare")
    if queries is not None:
        path = Path(queries)
        vectors = list(read_queries(path, folder, read_manifest(folder), find_vocabulary_file(folder, None)))
        source = f"queries of {path.name}"
    changed = engine.approximate(folder, vectors, source)
    return Index(changed.path, changed.manifest)


def repair_index(index: Path | str) -> bool:
    """Writes again what an impact index lacks beside its documents, or what is damaged there; True if it did."""
    return find_changing_engine(Path(index), "repair").repair(Path(index))


def find_changing_engine(index: Path, purpose: str) -> type[ChangingEngine]:
    """Finds the engine of an existing index, to change it."""
    clear_remains(index)
    if not is_index(index):
        raise ArtefactError(f"{index}: no index of ours to {purpose}; build it first")
    return get_changing_engine(index, read_report(index).get("engine"))
