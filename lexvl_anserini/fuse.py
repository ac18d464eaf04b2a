"""Runs -> one run: `python -m lexvl_anserini.fuse --run A.trec --run B.trec --output runs/fused.trec`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import Overwrite, Verbose, check_style, print_rows, run
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.files import file_sha256
from lexvl_anserini.manifest import EncodedCorpus, EncoderRef, RunManifest, read_run_manifest
from lexvl_anserini.ranking.fusion import RRF_K, Fusion, fuse_lists
from lexvl_anserini.ranking.runs import DEFAULT_HITS, is_finished, read_run, write_run
from lexvl_anserini.records import ScoredDoc

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.fuse")

# What the runs must agree in to be fused, and the fused run tells of them.
SHARED = ("topics", "topics_sha256", "dataset", "split", "data_dir", "remove_query")


def fuse_runs(runs: Sequence[Path], fusion: Fusion, hits: int = DEFAULT_HITS) -> Iterator[list[ScoredDoc]]:
    """The fused lists of all topics, in the order in which the runs first name them.

    Raises:
        DataError: a run cannot be read.
        UsageError: weights that do not fit the runs.
    """
    fusion.of_runs(len(runs))
    by_topic: list[dict[str, list[ScoredDoc]]] = []
    for path in runs:
        lists: dict[str, list[ScoredDoc]] = {}
        for document in read_run(path):
            lists.setdefault(document.query_id, []).append(document)
        if not lists:
            log.warning("%s: no hits in it; the other runs are fused without it", path)
        by_topic.append(lists)
    for query_id in dict.fromkeys(query_id for lists in by_topic for query_id in lists):
        yield fuse_lists(query_id, [lists.get(query_id, ()) for lists in by_topic], fusion, hits)


def fused_manifest(runs: Sequence[Path], fusion: Fusion, hits: int) -> RunManifest:
    """What is known of the fused run: where its judgements are, and which files it was made of.

    Raises:
        DataError: there is no such run.
        UsageError: the runs answer different topics.
    """
    if absent := next((path for path in runs if not path.is_file()), None):
        raise DataError(f"{absent}: no such run; write one with python -m lexvl_anserini.search")
    known: Mapping[Path, RunManifest] = {path: about for path in runs if (about := read_run_manifest(path))}
    shared: dict[str, Any] = {}
    for name in SHARED:
        values = {getattr(about, name): path for path, about in known.items()}
        if len(values) > 1 and name != "data_dir":
            (one, of_one), (other, of_other) = list(values.items())[:2]
            raise UsageError(f"{of_one} has {name} {one!r}, {of_other} has {other!r}; fuse runs of the same topics")
        shared[name] = next(iter(values), None)
    if not known:
        shared = {**dict.fromkeys(SHARED, ""), "data_dir": None, "remove_query": False}
    # Two runs of one name would be told apart by nothing else.
    parts = [f"{path.name}@{file_sha256(path)[:12]}" for path in runs]
    first = next(iter(known.values()), None)
    return RunManifest(
        **shared,
        corpus=first.corpus if first else EncodedCorpus(),
        encoder=EncoderRef(name="fusion", options={**fusion.to_json(), "runs": parts}),
        quantiser={},
        index="",
        hits=hits,
        versions={"lexvl-anserini": version("lexvl-anserini")},
    )


def command(
    runs: Annotated[list[Path], typer.Option("--run", help="A run in TREC format, plain or .gz; give two or more.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    method: Annotated[str, typer.Option(help="rrf (reciprocal ranks) or interpolation (normalised scores).")] = "rrf",
    weights: Annotated[
        list[float] | None, typer.Option("--weight", help="Of each run, in their order; default equal.")
    ] = None,
    k: Annotated[float, typer.Option(help="Of rrf: 1 / (k + rank).")] = RRF_K,
    normalisation: Annotated[str, typer.Option(help="Of interpolation: min-max, z-score or none.")] = "min-max",
    hits: Annotated[int, typer.Option(min=1, help="Per topic.")] = DEFAULT_HITS,
    overwrite: Overwrite = False,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Fuse runs of the same topics into one.

    Example: python -m lexvl_anserini.fuse --run runs/demo.bm25.trec --run runs/demo.vdr.trec --output runs/fused.trec
    """
    check_style(style)
    if len(runs) < 2:
        raise UsageError("give --run twice or more")
    fusion = Fusion(method, tuple(weights or ()), k, normalisation)
    wanted = fused_manifest(runs, fusion, hits)
    if is_finished(output, wanted, overwrite):
        log.info("%s: finished already, nothing to do", output)
        written = read_run_manifest(output)
        assert written is not None
    else:
        written = write_run(output, fuse_runs(runs, fusion, hits), wanted, tag=method)
    print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    run(command)
