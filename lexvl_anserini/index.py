"""Shards -> index: Lucene for impacts, FAISS for dense vectors, stock Anserini for plain text (BM25)."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import Overwrite, Verbose, check_style, parse_settings, print_rows, progress_bar, run
from lexvl_anserini.engines.index_folder import REPORT, clear_remains, read_report
from lexvl_anserini.engines.opening import engine_class, engine_name
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.manifest import MANIFEST, Manifest, finished
from lexvl_anserini.progress import Progress, silent
from lexvl_anserini.records import Index

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.index")

# For --dry-run: our Lucene writer on a shared machine, 120 terms a document.
POSTINGS_PER_S = 1_500_000
BYTES_PER_POSTING = 3.0


def default_index(shards: Path) -> Path:
    """`impacts/demo.vdr` -> `indexes/demo.vdr`."""
    return Path("indexes") / shards.resolve().name


def build_index(
    shards: Path | str | Sequence[Path | str],
    index: Path | str | None = None,
    threads: int = 1,
    overwrite: bool = False,
    progress: Progress = silent,
    options: Mapping[str, Any] | None = None,
    text: bool = False,
    store_text: bool = False,
    term_vectors: bool = False,
    metadata: bool = True,
) -> Index:
    """Builds the index of an encoded corpus; the kind in its manifest chooses the engine.

    Args:
        shards: a folder that `encode` wrote, or several of impacts (or impact indexes), which become one index.
        index: where to; default `indexes/<name of the shards folder>`. It appears whole or not at all.
        threads: of the engine, where it can use more than one.
        overwrite: replace a finished index of other shards.
        progress: called with the number of documents just read.
        options: of FAISS: `faiss`, its layout (flat, hnsw, ivfpq, sq8, binary), and that layout's parameters.
        text: of impacts: index the documents' texts too, for BM25 beside impacts.
        store_text: of impacts: keep the documents' texts, to be shown.
        term_vectors: of impacts: keep each document's impacts, to be read back.
        metadata: of impacts: one field for each key of the documents' metadata.

    Returns:
        The index; one that is there already and was built from the same shards is left as it is.

    Raises:
        ArtefactError: the shards are unfinished, damaged or malformed, the index exists, counts in and out differ, or
            several folders do not go together.
        JavaError: no usable Java.
    """
    folders = paths(shards)
    target = default_index(folders[0]) if index is None else Path(index)
    manifest = manifest_of(folders)
    of_lucene = {"text": text, "store_text": store_text, "term_vectors": term_vectors, "metadata": metadata}
    wanted = engine_options(manifest, options or {}, of_lucene)
    if is_finished(target, manifest, folders[0], overwrite, wanted):
        log.info("%s: finished already, nothing to do", target)
        clear_remains(target)
        return Index(target, manifest, manifest.counts["documents"])
    if manifest.kind == "impact":
        return build_impact_index(folders, target, manifest, wanted, threads, progress)
    engine: Any = engine_class(engine_name(manifest.kind))
    more = {"options": wanted} if wanted else {}
    built: Index = engine.build(folders[0], target, manifest, threads, progress, **more)
    return built


def build_impact_index(
    folders: Sequence[Path],
    index: Path,
    manifest: Manifest,
    options: Mapping[str, bool],
    threads: int,
    progress: Progress,
) -> Index:
    """Builds from one folder of shards, or merges several folders of shards or indexes."""
    from lexvl_anserini.engines.lucene.updating import is_index, merge
    from lexvl_anserini.engines.lucene.writing import IndexOptions

    made = IndexOptions(**options)
    if len(folders) > 1 or is_index(folders[0]):
        return merge(folders, index, threads, progress, made)
    return engine_class("lucene").build(folders[0], index, manifest, threads, progress, made)


def append_index(
    index: Path | str,
    shards: Path | str | Sequence[Path | str],
    replace: bool = False,
    threads: int = 1,
    progress: Progress = silent,
) -> Index:
    """Adds the documents of shards (or of other indexes) to an impact index; those it has already are left alone.

    Args:
        index: it changes whole or not at all; whoever has it open goes on reading what it was.
        shards: one folder or several, of the index's encoder, vocabulary and quantiser.
        replace: documents of an id that the index has take its place; without, that is an error.

    Raises:
        ArtefactError: no index, folders that do not go with it, or an id that is there already.
    """
    from lexvl_anserini.engines.lucene.updating import append

    return append(Path(index), paths(shards), replace, threads, progress)


def delete_documents(index: Path | str, doc_ids: Iterable[str]) -> Index:
    """Removes documents from an impact index by id.

    Raises:
        ArtefactError: no index, or an id that is not in it; nothing is removed then.
    """
    from lexvl_anserini.engines.lucene.updating import delete

    return delete(Path(index), doc_ids)


def check_index(
    index: Path | str, shards: Path | str | Sequence[Path | str], progress: Progress = silent
) -> dict[str, Any]:
    """Compares an impact index with the shards it was built from, and with its own checksums.

    Raises:
        ArtefactError: something differs; the message lists what.
    """
    from lexvl_anserini.engines.lucene import LuceneEngine

    return LuceneEngine.check(Path(index), paths(shards), progress)


def paths(shards: Path | str | Sequence[Path | str]) -> list[Path]:
    """One folder or several, as a list.

    Raises:
        UsageError: none.
    """
    found = [Path(shards)] if isinstance(shards, Path | str) else [Path(folder) for folder in shards]
    if not found:
        raise UsageError("no shards; name a folder that encode wrote")
    return found


def manifest_of(folders: Sequence[Path]) -> Manifest:
    """The manifest of what an index of these folders will hold.

    Raises:
        ArtefactError: one is not finished, or they do not go together.
    """
    from lexvl_anserini.manifest import read_manifest

    if len(folders) == 1:
        return read_manifest(folders[0])
    from lexvl_anserini.engines.lucene.updating import read_impact_manifest
    from lexvl_anserini.shards.combine import combined

    return combined([read_impact_manifest(folder) for folder in folders], folders)


def engine_options(manifest: Manifest, of_faiss: Mapping[str, Any], of_lucene: Mapping[str, bool]) -> dict[str, Any]:
    """The options of the manifest's engine.

    Raises:
        UsageError: some are for another engine.
    """
    if of_faiss and manifest.kind != "dense":
        raise UsageError(f"{manifest.kind} vectors; {', '.join(of_faiss)} are for dense ones, which FAISS indexes")
    asked = [name for name in ("text", "store_text", "term_vectors") if of_lucene[name]]
    if asked and manifest.kind != "impact":
        raise UsageError(f"{manifest.kind} shards; {', '.join(asked)} are for impact indexes")
    return dict({"dense": of_faiss, "impact": of_lucene}.get(manifest.kind, {}))


def is_finished(
    index: Path, manifest: Manifest, shards: Path, overwrite: bool, options: Mapping[str, Any] | None = None
) -> bool:
    """True if `index` was built from these shards; False if it may be built.

    Raises:
        ArtefactError: the place is taken by something else: shards, a folder that is no index of ours, or, unless it
            may be overwritten, the index of other shards.
    """
    from lexvl_anserini.manifest import read_manifest

    if not index.exists():
        return False
    if index.is_dir() and not any(index.iterdir()):
        index.rmdir()
        return False
    if not (index / REPORT).is_file() or not (index / MANIFEST).is_file():
        raise ArtefactError(f"{index}: exists and is no index of ours; name another --index")
    found = read_manifest(index)
    wanted, made = requested_options(index, manifest.kind, options or {})
    if found != manifest:
        wanted, made = manifest.to_json(), found.to_json()
    return finished(index, "an index", wanted, made, overwrite)


def requested_options(index: Path, kind: str, options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The options that are requested, and the same options of the index that is there."""
    report = read_report(index)
    kept, wanted = report.get("options", {}), options
    if kind == "dense":
        kept = report.get("faiss") or {"layout": "flat"}
        wanted = {"layout" if key == "faiss" else key: value for key, value in {"faiss": "flat", **options}.items()}
    return {key: str(wanted[key]) for key in wanted}, {key: str(kept.get(key)) for key in wanted}


def report(index: Index, seconds: float | None, style: str = "json") -> dict[str, Any]:
    """What the command prints: counts, size, and of a build its time and the most memory the process has had."""
    found = read_report(index.path)
    rows: dict[str, Any] = {"index": str(index.path), "engine": found["engine"], "documents": found["documents"]}
    rows["empty"] = found["empty"]
    if found["engine"] == "faiss":
        rows["dimensions"] = found["dimensions"]
        rows.update(found.get("faiss") or {})
    else:
        rows["postings"] = found["postings"]
    rows["bytes"] = found["bytes"]
    if found["postings"]:
        rows["bytes_per_posting"] = round(found["bytes"] / found["postings"], 3)
    if lists := found.get("longest_lists"):
        told = [{"term": term, "documents": documents} for documents, term in lists]
        rows["longest_lists"] = told if style == "json" else ", ".join(f"{term} {n}" for n, term in lists)
    if seconds is None:
        return rows
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**rows, "seconds": round(seconds, 2), "peak_memory_mib": round(peak_kib / 1024)}


def estimate(shards: Path, index: Path, manifest: Manifest) -> dict[str, Any]:
    """What a dry run tells."""
    rows: dict[str, Any] = {
        "shards": str(shards),
        "index": str(index),
        "kind": manifest.kind,
        "documents": manifest.counts["documents"],
    }
    if postings := manifest.counts.get("postings"):
        rows["postings"] = postings
        rows["estimated_seconds"] = round(postings / POSTINGS_PER_S, 1)
        rows["estimated_bytes"] = round(postings * BYTES_PER_POSTING)
    else:
        rows["estimated_bytes"] = sum(shard["bytes"] for shard in manifest.shards)
    return rows


def read_ids(path: Path) -> list[str]:
    """Ids, one a line.

    Raises:
        ArtefactError: no such file, or a line is no id.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: no file of ids ({error})") from error
    ids = lines[:-1] if lines[-1] == "" else lines
    for number, line in enumerate(ids, start=1):
        if line.split() != [line]:
            raise ArtefactError(f"{path} line {number}: {line!r}, expected an id without white space")
    if not ids:
        raise ArtefactError(f"{path}: no id in it")
    return ids


def deed(append: bool, replace: bool, delete_ids: str | None, check: bool) -> str:
    """The one thing to do to an index that is there; empty if it is to be built.

    Raises:
        UsageError: more than one.
    """
    given = {"--append": append, "--replace": replace, "--delete-ids": delete_ids is not None, "--check": check}
    chosen = [name for name, wanted in given.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other; give one of them")
    return chosen[0] if chosen else ""


def command(
    shards: Annotated[
        list[str] | None, typer.Argument(help="Folder that encode wrote; several (or indexes) become one index.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Folder to make; default indexes/<name of SHARDS>.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the documents to the index that is there.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Append; documents of equal id are replaced.")] = False,
    delete_ids: Annotated[str | None, typer.Option(help="File of ids, a line each, of documents to delete.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare the index with SHARDS and its checksums.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Of impacts: index the texts too, for BM25.")] = False,
    store_text: Annotated[bool, typer.Option("--store-text", help="Of impacts: keep the texts.")] = False,
    term_vectors: Annotated[bool, typer.Option("--term-vectors", help="Of impacts: keep documents' vectors.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata/--no-metadata", help="Of impacts: index metadata.")] = True,
    threads: Annotated[int, typer.Option(min=1, help="Of Lucene and BM25; FAISS uses one.")] = 1,
    faiss: Annotated[
        str | None, typer.Option(help="Of dense vectors: flat (exact, default), hnsw, ivfpq, sq8 or binary.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the FAISS layout, KEY=VALUE (m=16); repeatable.")
    ] = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Build the index of an encoded corpus; or append to it, delete from it, check it.

    Example: python -m lexvl_anserini.index impacts/demo --index indexes/demo
    """
    from lexvl_anserini.engines.jvm import INDEXING_OPTIONS

    check_style(style)
    os.environ.setdefault("LEXVL_JAVA_OPTIONS", INDEXING_OPTIONS)
    started = time.perf_counter()
    todo = deed(append, replace, delete_ids, check)
    if todo and (index is None or overwrite):
        raise UsageError(f"{todo} is for an index that is there: name it with --index, and without --overwrite")
    if delete_ids is not None:
        if shards:
            raise UsageError(f"--delete-ids takes no shards, but {shards[0]!r} was given")
        assert index is not None
        ids = read_ids(Path(delete_ids))
        if dry_run:
            print_rows({"index": index, "delete": len(ids)}, style)
        else:
            print_rows(report(delete_documents(index, ids), time.perf_counter() - started, style), style)
        return
    building: dict[str, Any] = {"--text": text, "--store-text": store_text, "--term-vectors": term_vectors}
    building |= {"--no-metadata": not metadata, "--faiss": faiss, "--set": settings}
    if todo and (given := [name for name, wanted in building.items() if wanted]):
        raise UsageError(f"{todo} keeps what the index was built with; {given[0]} is for building one")
    folders = paths(shards or ())
    target = Path(index) if index else default_index(folders[0])
    manifest = manifest_of(folders)
    options = {**({"faiss": faiss} if faiss else {}), **parse_settings(settings or ())}
    of_lucene = {"text": text, "store_text": store_text, "term_vectors": term_vectors, "metadata": metadata}
    wanted = engine_options(manifest, options, of_lucene)
    finished = not todo and is_finished(target, manifest, folders[0], overwrite, wanted)
    if dry_run:
        print_rows({**estimate(folders[0], target, manifest), "todo": todo[2:] or "build", "finished": finished}, style)
        return
    with progress_bar(f"index {folders[0]}", manifest.counts["documents"]) as progress:
        if check:
            print_rows(check_index(target, folders, progress), style)
            return
        if todo:
            built = append_index(target, folders, replace, threads, progress)
        else:
            built = build_index(folders, target, threads, overwrite, progress, options, **of_lucene)
    print_rows(report(built, None if finished else time.perf_counter() - started, style), style)


if __name__ == "__main__":
    run(command)
