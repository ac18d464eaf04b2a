"""Shards -> index: Lucene for impacts, FAISS for dense vectors, stock Anserini for plain text (BM25)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import Overwrite, Verbose, check_style, print_rows, progress_bar, run
from lexvl_anserini.engines.folder import REPORT, read_report
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.records import MANIFEST, Index, Manifest
from lexvl_anserini.registry import ENGINES, resolve

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.index")

# For --dry-run: our Lucene writer on one core of a shared machine, 120 terms a document.
POSTINGS_PER_S = 700_000
BYTES_PER_POSTING = 3.0


def default_index(shards: Path) -> Path:
    """`impacts/demo.vdr` -> `indexes/demo.vdr`."""
    return Path("indexes") / shards.resolve().name


def build_index(
    shards: Path | str,
    index: Path | str | None = None,
    threads: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda n: None,
    options: Mapping[str, Any] | None = None,
) -> Index:
    """Builds the index of an encoded corpus; the kind in its manifest chooses the engine.

    Args:
        shards: a folder that `encode` wrote.
        index: where to; default `indexes/<name of the shards folder>`. It appears whole or not at all.
        threads: of the engine, where it can use more than one.
        overwrite: replace a finished index of other shards.
        progress: called with the number of documents just read.
        options: of FAISS: `faiss`, its layout (flat, hnsw, ivfpq, sq8, binary), and that layout's parameters.

    Returns:
        The index; one that is there already and was built from the same shards is left as it is.

    Raises:
        ArtefactError: the shards are unfinished, damaged or malformed, the index exists, or counts in and out differ.
        JavaError: no usable Java.
    """
    from lexvl_anserini.impacts import read_manifest

    shards = Path(shards)
    index = default_index(shards) if index is None else Path(index)
    manifest = read_manifest(shards)
    if options and manifest.kind != "dense":
        raise UsageError(
            f"{shards}: {manifest.kind} vectors; {', '.join(options)} are for dense ones, which FAISS indexes"
        )
    if is_finished(index, manifest, shards, overwrite, options):
        log.info("%s: finished already, nothing to do", index)
        return Index(index, manifest, manifest.counts["documents"])
    engine = resolve("engine", manifest.kind, ENGINES)
    of_faiss = {"options": options} if manifest.kind == "dense" else {}
    built: Index = engine.build(shards, index, manifest, threads, progress, **of_faiss)
    return built


def is_finished(
    index: Path, manifest: Manifest, shards: Path, overwrite: bool, options: Mapping[str, Any] | None = None
) -> bool:
    """True if `index` was built from these shards; False if it may be built.

    Raises:
        ArtefactError: the place is taken by something else: shards, a folder that is no index of ours, or, unless it
            may be overwritten, the index of other shards.
    """
    from lexvl_anserini.impacts import read_manifest

    if not index.exists():
        return False
    if index.is_dir() and not any(index.iterdir()):
        index.rmdir()
        return False
    if not (index / REPORT).is_file() or not (index / MANIFEST).is_file():
        raise ArtefactError(f"{index}: exists and is no index of ours; name another --index")
    found = read_manifest(index)
    other = other_layout(index, options) if manifest.kind == "dense" else ""
    if found == manifest and not other:
        return True
    if overwrite:
        return False
    if found == manifest:
        raise ArtefactError(f"{index}: {other}; --overwrite replaces it")
    ours, theirs = manifest.to_json(), found.to_json()
    differing = ", ".join(name for name in ours if ours[name] != theirs[name])
    raise ArtefactError(
        f"{index}: an index of other shards than {shards} (they differ in {differing}); --overwrite replaces it"
    )


def other_layout(index: Path, options: Mapping[str, Any] | None) -> str:
    """How the FAISS layout of an index differs from the one asked for; empty if it does not."""
    kept = read_report(index).get("faiss") or {"layout": "flat"}
    asked = {
        "layout" if key == "faiss" else key: str(value) for key, value in {"faiss": "flat", **(options or {})}.items()
    }
    differing = [key for key in asked if str(kept.get(key)) != asked[key]]
    return "; ".join(f"{key} is {kept.get(key)}, {asked[key]} asked for" for key in differing)


def report(index: Index, seconds: float | None) -> dict[str, Any]:
    """What the command prints: counts, size and time."""
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
    return rows if seconds is None else {**rows, "seconds": round(seconds, 2)}


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


def command(
    shards: Annotated[str, typer.Argument(help="Folder that encode wrote.")],
    index: Annotated[str | None, typer.Option(help="Folder to make; default indexes/<name of SHARDS>.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of BM25: one a shard; the other engines use one.")] = 1,
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
    """Build the index of an encoded corpus.

    Example: python -m lexvl_anserini.index impacts/demo --index indexes/demo
    """
    from lexvl_anserini.encode import parse_settings
    from lexvl_anserini.impacts import read_manifest

    check_style(style)
    manifest = read_manifest(Path(shards))
    target = Path(index) if index else default_index(Path(shards))
    options = {**({"faiss": faiss} if faiss else {}), **parse_settings(settings or ())}
    finished = is_finished(target, manifest, Path(shards), overwrite, options)
    if dry_run:
        print_rows({**estimate(Path(shards), target, manifest), "finished": finished}, style)
        return
    started = time.perf_counter()
    with progress_bar(f"index {shards}", manifest.counts["documents"]) as progress:
        built = build_index(shards, target, threads, overwrite, progress, options)
    print_rows(report(built, None if finished else time.perf_counter() - started), style)


if __name__ == "__main__":
    run(command)
