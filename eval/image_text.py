"""The command that measures runs on a dataset of images with captions; `eval.coco` and others name the dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from lexvl_anserini.cli import Command, Verbose, expand_options
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import CorpusRef

from . import options
from .measures.inputs import JudgementSource, RunCard, name_datasets
from .measures.measure_runs import Subsets, measure_runs, measure_subsets
from .measures.metrics import HEADINGS, RSUM, means, sum_recalls
from .report.tables import build_caption_table, render

Direction = Annotated[
    Literal["text-to-image", "image-to-text", "text-to-text"] | None, typer.Option(help="Default: the run's.")
]


@dataclass(frozen=True)
class CaptionOptions:
    """Which captions and images are measured, and how."""

    direction: Direction = None
    ties: options.Ties = None
    captions: Annotated[
        int | None, typer.Option(min=1, help="Only that many captions of each image, the first ones (FDT: 5).")
    ] = None
    folds: Annotated[
        int, typer.Option(min=1, help="The mean over that many folds of the images, each by itself (COCO 1k: 5).")
    ] = 1


def choose_judgements(card: RunCard, corpus: str) -> RunCard:
    """The run, judged by its own dataset if that is named by a path, else by `corpus`.

    `embeddings:<folder>` and `karpathy:<json>` do not say whose captions they contain, and have their own judgements.
    """
    name = card.corpus.name
    return card if name == corpus or ":" in name else replace(card, corpus=CorpusRef(corpus))


def render_captions(
    cards: Sequence[RunCard],
    source: JudgementSource,
    output_format: str = "text",
    ties: str | None = None,
    results: Path | None = None,
    dataset_labels: Sequence[str] | None = None,
    subsets: Subsets = Subsets(),
) -> str:
    """The table of runs on images with captions, measured against these judgements."""
    if subsets.is_whole:
        measured = measure_runs(cards, source, list(HEADINGS), ties=ties, results=results)
    elif results:
        raise UsageError("--results keeps the values of whole test sets; leave out --captions and --folds")
    else:
        measured = [measure_subsets(card, source, list(HEADINGS), subsets, ties) for card in cards]
    measured = name_datasets(measured, dataset_labels)
    rows = []
    for measurements in measured:
        whole = [row for row in measurements if row.query_id == "all"]
        rows += [*whole, whole[0]._replace(measure=RSUM, value=sum_recalls(means(whole)))]
    return render(build_caption_table(cards, measured), rows, output_format)


def make_caption_command(corpus: str, module: str) -> Command:
    """The command that measures runs on one dataset of images with captions."""

    def command(
        runs: options.Runs,
        judgements: options.JudgementOptions,
        names: options.NameOptions,
        how: CaptionOptions,
        efficiency: options.Efficiency = None,
        results: options.Results = None,
        output_format: options.TableFormat = "text",
        verbose: Verbose = False,
    ) -> None:
        cards = options.choose_figures(names.cards(runs), efficiency, output_format)
        if judgements.dataset is None:
            cards = [choose_judgements(card, corpus) for card in cards]
        source, subsets = judgements.source(direction=how.direction), Subsets(how.captions, how.folds)
        report = render_captions(cards, source, output_format, how.ties, results, names.dataset_labels, subsets)
        sys.stdout.write(report)

    command.__doc__ = f"""Measure runs on {corpus}: R@1, R@5, R@10 as hit rates, MRR@10, recall@10, rsum; in percent.

    Example: python -m {module} --run runs/{corpus}.vdr-crossmodal.trec
    """
    return expand_options(command)
