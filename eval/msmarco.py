"""Measures runs as MS MARCO passage ranking does: the reciprocal rank within the first ten."""

from __future__ import annotations

from eval import options
from eval.measures.inputs import Source
from eval.score import Format, print_scores
from lexvl_anserini.cli import DataDir, Verbose, run

DEFAULT_MEASURES = ["RR@10"]


def command(
    runs: options.Runs,
    qrels: options.Qrels = None,
    dataset: options.DatasetName = None,
    split: options.Split = None,
    data_dir: DataDir = None,
    measures: options.Measures = DEFAULT_MEASURES,
    per_topic: options.PerTopic = False,
    output_format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Measure runs on MS MARCO passages: RR@10 over all topics of the qrels.

    Example: python -m eval.msmarco --run runs/dev.splade.trec --qrels qrels.dev.small.tsv
    """
    source = Source(qrels, dataset, split, data_dir)
    print_scores(runs, source, measures, per_topic=per_topic, output_format=output_format, remove_query=False)


if __name__ == "__main__":
    run(command)
