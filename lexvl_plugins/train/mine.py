"""Run + judgements -> training pairs with hard negatives: `lexvl mine --run RUN --output FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Overwrite, Style, Verbose, print_rows, run


def command(
    ranked: Annotated[Path, typer.Option("--run", help="Run of the training topics, in TREC format.")],
    output: Annotated[Path, typer.Option(help="File of DPR's JSON lines to write (.jsonl or .jsonl.gz).")],
    corpus: Annotated[
        str | None, typer.Option(help="Corpus with judgements, beir/scifact/train; default the run's own.")
    ] = None,
    first_rank: Annotated[int, typer.Option(min=1, help="Draw from this rank on.")] = 1,
    depth: Annotated[int, typer.Option(min=1, help="Draw down to this rank.")] = 100,
    number: Annotated[int, typer.Option(min=1, help="Hard negatives per query.")] = 7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 12345,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Mine hard negatives for training from a run.

    Example: python -m lexvl_plugins.train.mine --run runs/train.trec --corpus beir/scifact/train --output mined.jsonl
    """
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.ground.claims import refuse_existing
    from lexvl_anserini.ground.errors import UsageError
    from lexvl_anserini.ground.manifest import read_run_manifest
    from lexvl_plugins.train.negatives import Mining, mine, write_dpr

    if first_rank > depth:
        raise UsageError(f"--first-rank {first_rank} is after --depth {depth}")
    if not output.name.endswith((".jsonl", ".jsonl.gz")):
        raise UsageError(f"--output {output}: expected a name in .jsonl or .jsonl.gz, as `train` reads it (dpr:FILE)")
    refuse_existing(output, overwrite)
    if corpus:
        dataset = load_dataset(corpus, None, data_dir)
    else:
        manifest = read_run_manifest(ranked)
        if manifest is None or not manifest.dataset:
            raise UsageError(f"{ranked}: no manifest names the dataset of its topics; name it with --corpus")
        dataset = load_dataset(manifest.dataset, manifest.split, data_dir or manifest.data_dir)
    mined = mine(dataset, ranked, Mining(first_rank, depth, number, seed))
    write_dpr(output, mined, dataset)
    rows = {
        "pairs": str(output),
        "queries": len(mined),
        "positives": sum(len(query.positives) for query in mined),
        "negatives": sum(len(query.negatives) for query in mined),
        "queries_with_fewer": sum(len(query.negatives) < number for query in mined),
    }
    print_rows(rows, style)


if __name__ == "__main__":
    run(command)
