"""Measures runs on images with captions as the papers do: R@k is a hit rate, in percent, per direction.

An image has several captions; the papers' R@k asks whether *any* relevant item is among the first k, so it is
HitRate@k here, and Recall@k (the fraction found) goes by its own name. rsum adds R@1, R@5 and R@10, over both
directions where a system has both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from eval import options
from eval.measures.inputs import RunCard, Source, describe_run
from eval.measures.metrics import means
from eval.report.grids import EFFICIENCY, format_figure
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import MISSING, Column, Table, check_format, json_rows
from eval.score import measure_runs
from eval.table import Labels, labelled
from lexvl_anserini.cli import Command, DataDir, Verbose
from lexvl_anserini.records import Measurement

# Measure -> the papers' heading.
HEADINGS: Mapping[str, str] = {
    "HitRate@1": "R@1",
    "HitRate@5": "R@5",
    "HitRate@10": "R@10",
    "RR@10": "MRR@10",
    "Recall@10": "recall@10",
}
SUMMED = ("HitRate@1", "HitRate@5", "HitRate@10")
RSUM = "rsum"

FORMATS = (*TABLE_FORMATS, "json")


def rsum(values: Mapping[str, float]) -> float:
    """R@1 + R@5 + R@10 of one direction, in percent: at most 300."""
    return 100 * sum(values[measure] for measure in SUMMED)


def caption_table(cards: Sequence[RunCard], measured: Iterable[Sequence[Measurement]]) -> Table:
    """One row per run: measures, then the figures of efficiency that any run has.

    A system with runs in both directions gets a row with its rsum over both, at most 600.
    """
    rows, sums = [], dict[str, dict[str, float]]()
    figures = [name for name in EFFICIENCY if any(name in card.efficiency for card in cards)]
    for card, measurements in zip(cards, measured, strict=True):
        values = means(measurements)
        sums.setdefault(card.system, {})[measurements[0].dataset] = rsum(values)
        cells = (f"{100 * values[measure]:.1f}" for measure in HEADINGS)
        costs = (format_figure(name, card.efficiency.get(name)) for name in figures)
        rows.append((card.system, measurements[0].dataset, *cells, f"{rsum(values):.1f}", *costs))
    for system, by_direction in sums.items():
        if len(by_direction) == 2:
            blanks = (MISSING,) * len(HEADINGS)
            dashes = (MISSING,) * len(figures)
            rows.append((system, "both directions", *blanks, f"{sum(by_direction.values()):.1f}", *dashes))
    texts = tuple(Column(heading, number=False) for heading in ("system", "dataset"))
    numbers = (*HEADINGS.values(), RSUM, *(EFFICIENCY[name].heading for name in figures))
    return Table((*texts, *map(Column, numbers)), tuple(rows))


def caption_rows(measured: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """Means under the measures' own names, and rsum, of every run."""
    rows = []
    for measurements in measured:
        run, dataset, values = measurements[0].run, measurements[0].dataset, means(measurements)
        rows += [Measurement(run, dataset, measure, "all", value) for measure, value in values.items()]
        rows.append(Measurement(run, dataset, RSUM, "all", rsum(values)))
    return rows


def with_judgements(card: RunCard, corpus: str) -> RunCard:
    """The run, judged by its own corpus where that is named by a path, else by `corpus`.

    `embeddings:<folder>` and `karpathy:<json>` do not say whose captions they hold, and know their own judgements.
    """
    own = card.source.dataset
    if own == corpus or (own is not None and ":" in own):
        return card
    return replace(card, source=Source(dataset=corpus))


def caption_command(corpus: str, module: str) -> Command:
    """The command that measures runs on one corpus of captioned images."""

    def command(
        runs: options.Runs,
        qrels: options.Qrels = None,
        dataset: options.DatasetName = None,
        split: options.Split = None,
        direction: Annotated[
            str | None, typer.Option(help="text-to-image, image-to-text or text-to-text; default: the run's.")
        ] = None,
        data_dir: DataDir = None,
        labels: Labels = None,
        efficiency: Annotated[
            bool, typer.Option("--efficiency/--no-efficiency", help="Also what the searches cost: terms, MB, ms.")
        ] = True,
        output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
        verbose: Verbose = False,
    ) -> None:
        check_format(output_format, FORMATS)
        cards = labelled([describe_run(Path(path)) for path in runs], labels)
        if not efficiency:
            cards = [replace(card, efficiency={}) for card in cards]
        if dataset is None:
            cards = [with_judgements(card, corpus) for card in cards]
        asked = Source(qrels, dataset, split, data_dir, direction=direction)
        measured = measure_runs(cards, asked, list(HEADINGS))
        if output_format == "json":
            sys.stdout.write(json_rows(caption_rows(measured)))
        else:
            sys.stdout.write(TABLE_FORMATS[output_format](caption_table(cards, measured)))

    command.__doc__ = f"""Measure runs on {corpus}: R@1, R@5, R@10 as hit rates, MRR@10, recall@10, rsum; in percent.

    Example: python -m {module} --run runs/{corpus}.vdr-crossmodal.trec
    """
    return command
