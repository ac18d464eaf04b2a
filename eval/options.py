"""The options that several commands of this package share, so that each has the same meaning everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lexvl_anserini.cli import (
    BatchSize,
    Checkpoint,
    DataDir,
    Device,
    ImageEncoder,
    Settings,
    Tokenizer,
    corpus_names,
    parse_settings,
)
from lexvl_anserini.encoders.cards import CARDS, choose_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import CorpusRef, Measurement

from .measures.inputs import JudgementSource, RunCard, describe_run, label_runs, name_datasets, name_systems
from .measures.metrics import MEASURES

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Cuts that papers report.
CUTS = (1, 5, 10, 20, 100, 1000)


def measure_names() -> list[str]:
    """What the shell completes after --measure: every measure with the usual cuts, and alone where it needs none."""
    whole = [name for name, measure in MEASURES.items() if not measure.needs_cut]
    return [*whole, *(f"{name}@{cut}" for name in MEASURES for cut in CUTS)]


def list_class_sets() -> list[str]:
    """What the shell completes after --images."""
    from .analyses.classes.class_sets import CLASS_SETS

    return [*CLASS_SETS, *(f"{name}:" for name in CLASS_SETS)]


Runs = Annotated[
    list[Path], typer.Option("--run", help="A run in TREC's or MS MARCO's format, plain, .gz or .zst; repeatable.")
]
MEASURED = (
    "nDCG@k, RR@k, Recall@k, HitRate@k, AP@k, P@k, AP(rel=2)@k; trec_eval's and ir_measures' names too; "
    "repeat for several."
)
DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]
Measures = Annotated[list[str], typer.Option("--measure", help=MEASURED, autocompletion=measure_names)]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="A run's system, one per --run; default: the encoder of its manifest, or the path."),
]
DatasetLabels = Annotated[
    list[str] | None,
    typer.Option("--dataset-label", help="A dataset's name in the output, one per dataset in their order."),
]
TestName = Literal["randomisation", "student"]
Test = Annotated[TestName, typer.Option("--test", help="Paired test.")]
MarkingTest = Annotated[
    TestName | None,
    typer.Option("--test", help="Mark values that differ significantly from the first system's by this paired test."),
]
AVERAGES = "Columns of an average over datasets: beir-12, beir-13, beir-18, cqadupstack, vidore-2; repeatable."
Averages = Annotated[list[str] | None, typer.Option("--average", help=AVERAGES)]
FIGURES = "Also the figures of the searches: terms, MB, ms; default yes, but not in LaTeX."
Efficiency = Annotated[bool | None, typer.Option("--efficiency/--no-efficiency", help=FIGURES)]
EscapeIds = Annotated[bool, typer.Option("--escape-ids", help="Percent-encode the judgements' ids, as in the run.")]
Results = Annotated[
    Path | None,
    typer.Option("--results", help="Folder that gets a JSON file per run and dataset, and a line in results.jsonl."),
]
PerTopic = Annotated[bool, typer.Option("--per-topic", help="Also print every topic's value.")]
ScoreFormat = Annotated[
    Literal["text", "json", "csv"], typer.Option("--format", help="Columns, or the fields of Measurement.")
]
WORDS = "Words for a dense encoder: folder or hub id of a tokenizer, or a packaged name."
Words = Annotated[str, typer.Option("--vocabulary", help=WORDS)]
TableFormat = Annotated[
    Literal["text", "markdown", "latex", "csv", "json"], typer.Option("--format", help="How the table is written.")
]
Topics = Annotated[
    str | None, typer.Option(help="dataset/split, a topics file, or encoded queries; default the corpus's own.")
]
CLASSIFIED_IMAGES = typer.Option(
    "--images",
    help="A folder of class folders, a list (.tsv or .csv: image, class), or a known set: pets, or pets:FOLDER.",
    autocompletion=list_class_sets,
)
ClassifiedImages = Annotated[str, CLASSIFIED_IMAGES]
CLASSES = "JSON with `classes` and `templates`; default those of the known set, or the folders' names."
ClassFile = Annotated[Path | None, typer.Option("--classes", help=CLASSES)]
OnUnreadable = Annotated[
    Literal["fail", "skip"], typer.Option("--on-error", help="For images that cannot be read; skipped ones are named.")
]
QrelsFile = Annotated[
    Path | None, typer.Option("--qrels", help="Judgements in TREC's format or BEIR's, plain, .gz or .zst.")
]
DATASET = "Dataset of the judgements, or with --qrels their name; default: that of the run's manifest."
DatasetName = Annotated[str | None, typer.Option("--dataset", help=DATASET, autocompletion=corpus_names)]
TiesName = Literal["rank", "trec_eval"]
Ties = Annotated[
    TiesName | None,
    typer.Option("--ties", help="Equal scores: the run's order (default for runs that search wrote), or by doc id."),
]
Split = Annotated[str | None, typer.Option("--split", help="Split of the judgements; default: the run's, else test.")]


def choose_figures(cards: Sequence[RunCard], efficiency: bool | None, output_format: str) -> Sequence[RunCard]:
    """The runs with the figures of their searches, or without; a table for a paper has them only on request."""
    shown = output_format != "latex" if efficiency is None else efficiency
    return cards if shown else [replace(card, efficiency={}) for card in cards]


@dataclass(frozen=True)
class JudgementOptions:
    """Where the judgements come from; what is not given comes from the run's manifest."""

    qrels: QrelsFile = None
    dataset: DatasetName = None
    split: Split = None
    data_dir: DataDir = None

    def source(self, escape_ids: bool = False, direction: str | None = None) -> JudgementSource:
        """The judgements that the options name."""
        corpus = CorpusRef(self.dataset or "", self.split, self.data_dir, escape_ids, direction=direction)
        return JudgementSource(self.qrels, corpus)


@dataclass(frozen=True)
class NameOptions:
    """What systems and datasets are called in the output."""

    labels: Labels = None
    dataset_labels: DatasetLabels = None

    def cards(self, runs: Iterable[Path]) -> list[RunCard]:
        """The runs under the names of their systems."""
        return label_runs([describe_run(path) for path in runs], self.labels)

    def open_runs(self, cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]]) -> list[list[Measurement]]:
        """Measurements of runs by their labels, or their paths where there are none; datasets by theirs."""
        return name_datasets(name_systems(cards, measured) if self.labels else measured, self.dataset_labels)


@dataclass(frozen=True)
class RuleOptions:
    """How a run is measured, named as the parameters of `measure_runs`."""

    relevance_level: Annotated[
        int,
        typer.Option(
            "--relevance-level",
            help="Least relevance that counts (2 for TREC DL), for measures without (rel=N); not for nDCG.",
        ),
    ] = 1
    ties: Ties = None
    remove_query: Annotated[
        bool | None,
        typer.Option(
            "--remove-query/--keep-query", help="Drop hits whose doc id is the query id; default: the dataset's rule."
        ),
    ] = None


@dataclass(frozen=True)
class ImageEncoderOptions:
    """An encoder of texts and images; without one, the packaged pair for pictures."""

    encoder: ImageEncoder = None
    checkpoint: Checkpoint = None
    tokenizer: Tokenizer = None
    settings: Settings = None
    device: Device = "auto"
    batch_size: BatchSize = 32

    def load(self) -> Encoder:
        """The encoder, whose queries are texts and whose documents are images; no prompt of its own precedes a text."""
        from lexvl_anserini.encoders.describing import list_options
        from lexvl_anserini.encoders.loading import DEFAULT_DIRECTION, load_encoder

        name, default_checkpoint = choose_encoder("folder", "text-to-image", self.encoder)
        if not CARDS[name].reads_images:
            raise UsageError(f"encoder {name!r} reads texts only; choose one that reads images")
        settings = parse_settings(self.settings or ())
        if (direction := settings.get("direction", DEFAULT_DIRECTION)) != DEFAULT_DIRECTION:
            raise UsageError(f"--set direction={direction}: this command encodes texts as queries, images as documents")
        if "prompt" in (option.name for option in list_options(name)):
            settings = {"prompt": "", **settings}
        return load_encoder(name, self.checkpoint or default_checkpoint, self.tokenizer, device=self.device, **settings)
