"""Shards -> index: `python -m lexvl_anserini.index impacts/demo --index indexes/demo`."""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.data.lines import read_entries
from lexvl_anserini.engines.engine import find_engine, find_urls
from lexvl_anserini.engines.index_folder import RESIDENT, read_report
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import FIELDS, Manifest
from lexvl_anserini.searching.building import (
    append_index,
    approximate_index,
    build_plan,
    check_index,
    choose_threads,
    delete_documents,
    list_folders,
    plan_manifest,
    repair_index,
    run_plan,
)
from lexvl_anserini.searching.searcher import Index

log = logging.getLogger("lexvl_anserini.index")  # __name__ is "__main__" when the module runs as the command

# For --dry-run: the Lucene writer on a shared machine, 120 terms a document.
POSTINGS_PER_S = 1_500_000
BYTES_PER_POSTING = 3.0


@dataclass(frozen=True)
class ChangeOptions:
    """What to do to an index that exists, instead of building one."""

    append: Annotated[bool, typer.Option("--append", help="Add the documents to an index that exists.")] = False
    replace: Annotated[bool, typer.Option("--replace", help="Append; documents of equal id are replaced.")] = False
    delete_ids: Annotated[str | None, typer.Option(help="File of ids, one a line, of documents to delete.")] = None
    check: Annotated[bool, typer.Option("--check", help="Compare the index with SHARDS and its checksums.")] = False
    repair: Annotated[
        bool, typer.Option("--repair", help="Before --check: write resident.bin again if it is missing or damaged.")
    ] = False
    approximate: Annotated[
        bool,
        typer.Option("--approximate", help="Group similar documents for search --approximate; measure its recall."),
    ] = False
    queries: Annotated[
        str | None, typer.Option(help="For --approximate: encoded queries to measure with; default documents.")
    ] = None

    def action(self) -> str:
        """The option that is given, empty without any; raises UsageError for options that exclude each other."""
        names = ("append", "replace", "delete_ids", "check", "approximate")
        chosen = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in (None, False)]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} exclude each other; give one of them")
        for name, given, purpose in (("queries", self.queries, "approximate"), ("repair", self.repair, "check")):
            if given not in (None, False) and not getattr(self, purpose):
                raise UsageError(f"--{name} is for --{purpose}; give both")
        return chosen[0] if chosen else ""


@dataclass(frozen=True)
class BuildOptions:
    """How an index is built."""

    engine: Annotated[
        str | None,
        typer.Option(
            help="lucene (default for impacts), partitions (one of Lucene for each of SHARDS), faiss (for dense "
            "vectors), bm25 (for texts); of a URL its store."
        ),
    ] = None
    text: Annotated[bool, typer.Option("--text", help="For impacts: index the texts too, for BM25.")] = False
    store_text: Annotated[bool, typer.Option("--store-text", help="For impacts: store the texts.")] = False
    term_vectors: Annotated[
        bool, typer.Option("--term-vectors", help="Store documents' vectors: for feedback, and for RM3 of bm25.")
    ] = False
    metadata: Annotated[bool, typer.Option("--metadata/--no-metadata", help="For impacts: index metadata.")] = True
    threads: Annotated[
        int | None, typer.Option(min=1, help="For Lucene and BM25, default all cores; FAISS uses one.")
    ] = None
    faiss: Annotated[
        str | None, typer.Option(help="For dense vectors: flat (exact, default), hnsw, ivfpq, sq8 or binary.")
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the engine, KEY=VALUE (m=16); repeatable.")
    ] = None

    def options(self) -> dict[str, Any]:
        """The options of the engine that are given, by name."""
        named = {name: getattr(self, name) for name in ("text", "store_text", "term_vectors", "faiss")}
        options = {name: value for name, value in named.items() if value}
        options |= {} if self.metadata else {"metadata": False}
        return options | cli.parse_settings(self.settings or ())

    def refuse_with(self, action: str) -> None:
        """Raises UsageError for an option that only a build reads."""
        options = {"no-metadata": not self.metadata, "set": self.settings}
        options |= {name: getattr(self, name) for name in ("engine", "text", "store_text", "term_vectors", "faiss")}
        if foreign := next((name.replace("_", "-") for name, value in options.items() if value), None):
            raise UsageError(f"{action} keeps what the index was built with; --{foreign} is for building one")


@cli.expand_options
def command(
    shards: Annotated[
        list[str] | None, typer.Argument(help="Folder that encode wrote; several (or indexes) become one index.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="Folder to write, or URL of a store; default indexes/<SHARDS>.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            help="Join these shards as a field of SHARDS first, NAME=FOLDER; repeatable. Default impacts/<FOLDER+...>.",
        ),
    ] = None,
    *,
    change: ChangeOptions,
    build: BuildOptions,
    overwrite: cli.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")] = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Build the index of an encoded corpus; or append to it, delete from it, check it.

    Example: python -m lexvl_anserini.index impacts/demo --index indexes/demo
    """
    from lexvl_anserini.engines import jvm

    action = change.action()
    # The options of a Java that only indexes, unless the user sets others; processes of this command read them too.
    java = os.environ.get("LEXVL_JAVA_OPTIONS", jvm.INDEXING_OPTIONS)
    with jvm.set_environment(LEXVL_JAVA_OPTIONS=java):
        if fields:
            shards = [str(join_shards(fields, shards or (), overwrite, dry_run))]
        if action:
            if index is None or overwrite:
                raise UsageError(f"{action} is for an index that exists: name it with --index, and without --overwrite")
            rows = change_rows(shards or (), index, change, build, dry_run, style)
        else:
            rows = build_rows(shards or (), index, build, overwrite, dry_run, style)
    cli.print_rows(rows, style)


def join_shards(fields: Sequence[str], shards: Sequence[str], overwrite: bool, with_others: bool) -> Path:
    """Writes the shards of several fields as one folder of shards; returns it."""
    from lexvl_anserini.engines.lucene.fields import load_word_analysis
    from lexvl_anserini.shards.fields import join_fields

    if len(shards) > 1 or with_others:
        raise UsageError("--field writes one folder of SHARDS, before an index can be estimated")
    folders: dict[str, Path] = {}
    for field in fields:
        name, equals, folder = field.partition("=")
        if not equals or name in folders:
            raise UsageError(
                f"--field {field!r}: expected NAME=FOLDER, each name once, such as text=impacts/pages.bm25"
            )
        folders[name] = Path(folder)
    names = "+".join(folder.resolve().name for folder in folders.values())
    output = Path(shards[0]) if shards else Path("impacts") / names
    with cli.progress_bar(f"join {output}", None) as progress:
        join_fields(folders, output, load_word_analysis, overwrite, progress)
    return output


def build_rows(
    shards: Sequence[str], index: str | None, build: BuildOptions, overwrite: bool, dry_run: bool, style: str
) -> dict[str, Any]:
    """Builds an index; returns what the command prints."""
    started = time.perf_counter()
    plan = build_plan(list(shards), index, build.engine, build.options(), overwrite)
    first = plan.sources[0]
    if dry_run:
        where = {"index": str(getattr(plan.options, "place", plan.index))}
        return {**estimate(first, plan.index, plan.manifest), **where, "todo": "build", "finished": plan.finished}
    with cli.progress_bar(f"index {first}", plan.manifest.counts.documents) as progress:
        index_built = run_plan(plan, choose_threads(build.threads), progress)
    return report(index_built, None if plan.finished else time.perf_counter() - started, style)


def change_rows(
    shards: Sequence[str], place: str, change: ChangeOptions, build: BuildOptions, dry_run: bool, style: str
) -> dict[str, Any]:
    """Changes, checks or prepares an index; returns what the command prints."""
    started, index, action = time.perf_counter(), Path(place), change.action()
    if find_urls(place):
        raise UsageError(f"{action}: an index of a URL is built again (--overwrite)")
    if shards and action in ("--delete-ids", "--approximate"):
        raise UsageError(f"{action} takes no shards, but {shards[0]!r} was given")
    if change.delete_ids is not None:
        doc_ids = read_ids(Path(change.delete_ids))
        if dry_run:
            return {"index": place, "delete": len(doc_ids)}
        return report(delete_documents(index, doc_ids), time.perf_counter() - started, style)
    build.refuse_with(action)
    if change.approximate:
        if dry_run:
            return {"index": place, "todo": "approximate"}
        prepared = approximate_index(index, change.queries)
        return report(prepared, time.perf_counter() - started, style) | describe_settings(prepared, style)
    if change.repair and not dry_run and repair_index(place):
        log.info("%s: %s written again", place, RESIDENT)
    sources = list_folders(list(shards))
    manifest = plan_manifest(sources)
    if dry_run:
        return {**estimate(sources[0], index, manifest), "todo": action[2:], "finished": False}
    with cli.progress_bar(f"index {sources[0]}", manifest.counts.documents) as progress:
        if action == "--check":
            return check_index(index, sources, progress)
        changed_index = append_index(index, sources, action == "--replace", build.threads, progress)
    return report(changed_index, time.perf_counter() - started, style)


def report(index: Index, seconds: float | None, style: str) -> dict[str, Any]:
    """Counts and size of an index; after a build also its time and the peak memory of the process."""
    report = read_report(index.path)
    # An index in a store has a URL; its folder here is a copy of what the store says.
    rows: dict[str, Any] = {"index": report.get("url", str(index.path))}
    rows |= {name: report[name] for name in ("engine", "documents", "empty")}
    rows |= find_engine(index.path, index.manifest.kind).figures(report)
    if fields := index.manifest.layout.get(FIELDS):
        rows[FIELDS] = ", ".join(f"{field['name']} {field['documents']}" for field in fields)
    rows |= {"bytes": report["bytes"]} if "bytes" in report else {}
    sizes = {"resident_bytes": report.resident_bytes, "approximate_bytes": report.approximate_bytes}
    rows |= {name: size for name, size in sizes.items() if size}
    if report["postings"] and "bytes" in report:
        rows["bytes_per_posting"] = round(report["bytes"] / report["postings"], 3)
    if lists := report.get("longest_lists"):
        as_rows = [{"term": term, "documents": documents} for documents, term in lists]
        rows["longest_lists"] = as_rows if style == "json" else ", ".join(f"{term} {n}" for n, term in lists)
    if seconds is None:
        return rows
    return {**rows, "seconds": round(seconds, 2), "peak_memory_mib": round(peak_memory_bytes() / (1 << 20))}


def describe_settings(index: Index, style: str) -> dict[str, Any]:
    """The settings of approximate search that were measured, and with which queries."""
    approximation = read_report(index.path).approximation
    settings = approximation["settings"]
    if style == "json":
        return {"measured_with": dict(approximation)}
    rows = {"measured_with": f"{approximation.queries} {approximation.source}"}
    for hits in dict.fromkeys(setting["hits"] for setting in settings):
        pairs = (f"{s['recall']} of {s['documents']:.0f} documents" for s in settings if s["hits"] == hits)
        rows[f"recall@{hits}"] = ", ".join(pairs)
    return rows


def peak_memory_bytes() -> int:
    """Greatest resident memory of this process; the system counts it in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def estimate(shards: Path, index: Path, manifest: Manifest) -> dict[str, Any]:
    """What a dry run prints about a build."""
    rows: dict[str, Any] = {"shards": str(shards), "index": str(index)}
    rows |= {"kind": manifest.kind, "documents": manifest.counts.documents}
    if postings := manifest.counts.postings:
        rows["postings"] = postings
        rows["estimated_seconds"] = round(postings / POSTINGS_PER_S, 1)
        rows["estimated_bytes"] = round(postings * BYTES_PER_POSTING)
    else:
        rows["estimated_bytes"] = sum(shard["bytes"] for shard in manifest.shards)
    return rows


def read_ids(path: Path) -> list[str]:
    """The ids of a file, one a line."""
    ids = read_entries(path, "id")
    for number, item_id in ids.items():
        if item_id.split() != [item_id]:
            raise DataError(f"{path} line {number}: {item_id!r}, expected an id without white space")
    return list(ids.values())


if __name__ == "__main__":
    cli.run(command)
