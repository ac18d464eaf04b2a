"""Measures runs on pages as ViDoRe does: nDCG@5 with trec_eval's order of equal scores, every topic of the qrels."""

from __future__ import annotations

from lexvl_eval.score import judged_command

from lexvl_anserini.cli import run

command = judged_command(
    """Measure runs on pages of ViDoRe, VisRAG or MMEB: nDCG@5, nDCG@10, Recall@5 and Recall@100.

    Example: python -m lexvl_plugins.pages.vidore --run runs/esg.v-splade.trec --dataset vidore:data/esg_reports
    """,
    ["nDCG@5", "nDCG@10", "Recall@5", "Recall@100"],
    ties="trec_eval",
)

if __name__ == "__main__":
    run(command)
