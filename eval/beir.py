"""Measures runs as BEIR does: drops hits that are the query itself before the cut, counts every topic of the qrels."""

from lexvl_anserini.cli import run

from .score import make_judged_command

command = make_judged_command(
    """Measure runs on a BEIR dataset: nDCG@10, Recall@100, Recall@1000 and RR@10.

    Example: python -m eval.beir --run runs/beir-scifact.vdr.trec --dataset beir/scifact
    """,
    ["nDCG@10", "Recall@100", "Recall@1000", "RR@10"],
    remove_query=True,
)

if __name__ == "__main__":
    run(command)
