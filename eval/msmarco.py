"""Measures runs as MS MARCO passage ranking does: the reciprocal rank within the first ten."""

from lexvl_anserini.cli import run

from .score import make_judged_command

command = make_judged_command(
    """Measure runs on MS MARCO passages: RR@10 over all topics of the qrels.

    Example: python -m eval.msmarco --run runs/dev.splade.trec --qrels qrels.dev.small.tsv
    """,
    ["RR@10"],
)

if __name__ == "__main__":
    run(command)
