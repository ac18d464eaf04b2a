"""Measures runs as BEIR does: hits that are the query itself go before the cut, every topic of the qrels counts."""

from __future__ import annotations

from eval import options
from eval.measures.inputs import Source
from eval.score import Format, print_scores
from lexvl_anserini.cli import DataDir, Verbose, run

DEFAULT_MEASURES = ["nDCG@10", "Recall@100", "Recall@1000", "RR@10"]


def command(
    runs: options.Runs,
    qrels: options.Qrels = None,
    dataset: options.DatasetName = None,
    split: options.Split = None,
    data_dir: DataDir = None,
    measures: options.Measures = DEFAULT_MEASURES,
    escape_ids: options.EscapeIds = False,
    per_topic: options.PerTopic = False,
    output_format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Measure runs on a BEIR data set: nDCG@10, Recall@100, Recall@1000 and RR@10.

    Example: python -m eval.beir --run runs/beir-scifact.vdr.trec --dataset beir/scifact
    """
    source = Source(qrels, dataset, split, data_dir, escape_ids)
    print_scores(runs, source, measures, per_topic=per_topic, output_format=output_format, remove_query=True)


if __name__ == "__main__":
    run(command)
