"""Shards -> smaller shards.

python -m lexvl_anserini.prune impacts/scifact --output impacts/scifact-128 --document-terms 128
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import Overwrite, Verbose, check_style, print_rows, progress_bar, run
from lexvl_anserini.errors import UsageError
from lexvl_anserini.files import exclusive, file_sha256, publish, told_about_disk, write_json
from lexvl_anserini.manifest import MANIFEST, Counts, Manifest, finished, read_manifest
from lexvl_anserini.progress import Progress, silent
from lexvl_anserini.queries.refine import read_terms
from lexvl_anserini.shards.layout import shard_stream
from lexvl_anserini.shards.pruning import Pruning, TermCuts, term_cuts
from lexvl_anserini.shards.reading import checked_shards, expect_counts, read_impacts, read_shard, read_vocabulary
from lexvl_anserini.vocabulary import VOCABULARY, Vocabulary

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.prune")


def prune_shards(
    shards: Path, output: Path, pruning: Pruning, overwrite: bool = False, progress: Progress = silent
) -> Manifest:
    """Writes shards with fewer postings: the same documents, formats, texts and metadata.

    Args:
        shards: of impacts, finished.
        output: a folder that appears whole or not at all.
        overwrite: replace shards of another request.
        progress: called with the number of documents just done.

    Returns:
        The manifest of the new shards; `layout.pruning` says what was done.

    Raises:
        UsageError: the shards hold no impacts.
        ArtefactError: they are damaged, or the output holds something else.
    """
    manifest = read_manifest(shards)
    if manifest.kind != "impact":
        raise UsageError(f"{shards} is {manifest.kind}; only impacts are pruned")
    done = [*manifest.layout.get("pruning", ()), pruning.to_json()]
    wanted = replace(manifest, layout={**manifest.layout, "pruning": done})
    found = read_manifest(output) if output.exists() else None
    if finished(output, "shards", wanted.request(), found.request() if found else None, overwrite):
        log.info("%s: finished already, nothing to do", output)
        assert found is not None
        return found
    vocabulary = read_vocabulary(shards, manifest)
    cuts = term_cuts((d.vector for d in read_impacts(shards, manifest, vocabulary)), pruning)
    part = output.with_name(output.name + ".part")
    with told_about_disk(output):
        part.mkdir(parents=True, exist_ok=True)
        with exclusive(part):
            try:
                for left in part.iterdir():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                (part / "docs").mkdir()
                entries = []
                for path, entry in checked_shards(shards, manifest):
                    entries.append(prune_shard(path, part / entry["name"], entry, pruning, cuts, vocabulary))
                    progress(entry["documents"])
                shutil.copyfile(shards / VOCABULARY, part / VOCABULARY)
                whole = replace(wanted, counts=summed(manifest.counts, entries), shards=tuple(entries))
                write_json(part / MANIFEST, whole.to_json())
                shutil.rmtree(output, ignore_errors=True)
                publish(part, output)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    return whole


def prune_shard(
    path: Path,
    target: Path,
    entry: Mapping[str, Any],
    pruning: Pruning,
    cuts: TermCuts | None,
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    """Writes one shard anew and returns its entry for the manifest.

    Raises:
        ArtefactError: the shard is malformed, or its counts differ from its entry.
    """
    before = {"documents": 0, "empty": 0, "postings": 0}
    kept: list[dict[str, int]] = []
    for document in read_shard(path, vocabulary):
        before["documents"] += 1
        before["empty"] += not document.vector
        before["postings"] += len(document.vector)
        vector = pruning.document(document.vector)
        kept.append(vector if cuts is None else cuts.keep(vector))
    expect_counts(str(path), before, entry)
    with shard_stream(target, target.suffix == ".gz") as out:
        if path.suffix == ".parquet":
            write_parquet(path, out, kept, vocabulary)
        else:
            for row, vector in zip(rows_of(path), kept, strict=True):
                out.write(orjson.dumps({**row, "vector": vector}) + b"\n")
    after = {
        "empty": sum(not vector for vector in kept),
        "postings": sum(map(len, kept)),
        "max_impact": max((i for vector in kept for i in vector.values()), default=0),
    }
    return {**entry, **after, "bytes": target.stat().st_size, "sha256": file_sha256(target)}


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl shard that was read without complaint."""
    from lexvl_anserini.data.lines import parse_object, read_lines

    return map(parse_object, read_lines(path))


def write_parquet(path: Path, out: Any, vectors: Sequence[Mapping[str, int]], vocabulary: Vocabulary) -> None:
    """A parquet shard with other vectors, its other columns as they are."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path)
    dims = pa.array([[vocabulary.dimension[t] for t in vector] for vector in vectors], pa.list_(pa.uint32()))
    impacts = pa.array([list(vector.values()) for vector in vectors], pa.list_(pa.uint32()))
    for name, column in (("term", dims), ("impact", impacts)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, pa.field(name, column.type), column)
    parquet.write_table(table, out, compression="zstd", row_group_size=len(vectors) or 1)


def summed(counts: Counts, entries: Sequence[Mapping[str, Any]]) -> Counts:
    """The counts of all shards; what pruning does not touch stays."""
    totals = {name: sum(entry[name] for entry in entries) for name in ("documents", "empty", "postings")}
    return Counts({**counts, **totals, "max_impact": max(entry["max_impact"] for entry in entries)})


def command(
    shards: Annotated[str, typer.Argument(help="Folder that encode wrote, of impacts.")],
    output: Annotated[str, typer.Option(help="Folder to write.")],
    document_terms: Annotated[int | None, typer.Option(min=1, help="Keep a document's largest impacts.")] = None,
    least_impact: Annotated[int, typer.Option(min=1, help="Drop smaller impacts.")] = 1,
    term_documents: Annotated[int | None, typer.Option(min=1, help="Keep a term's largest impacts.")] = None,
    only_terms: Annotated[str | None, typer.Option(help="File of terms; documents keep no others.")] = None,
    without_terms: Annotated[str | None, typer.Option(help="File of terms that documents lose.")] = None,
    overwrite: Overwrite = False,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Prune encoded documents before they are indexed; `python -m eval.pruning` measures what that costs.

    Example: python -m lexvl_anserini.prune impacts/demo --output impacts/demo-64 --document-terms 64
    """
    check_style(style)
    pruning = Pruning(
        only_terms=read_terms(Path(only_terms)) if only_terms else None,
        without_terms=read_terms(Path(without_terms)) if without_terms else frozenset(),
        least_impact=least_impact,
        document_terms=document_terms,
        term_documents=term_documents,
    )
    before = read_manifest(Path(shards)).counts
    with progress_bar(f"prune {shards}", before["documents"]) as progress:
        manifest = prune_shards(Path(shards), Path(output), pruning, overwrite, progress)
    counts = manifest.counts
    rows = {
        "output": output,
        "documents": counts["documents"],
        "empty": counts["empty"],
        "postings": counts["postings"],
    }
    print_rows({**rows, "kept_share": round(counts["postings"] / max(1, before.get("postings", 0)), 4)}, style)


if __name__ == "__main__":
    run(command)
