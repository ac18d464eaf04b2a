"""Corpus -> plan of its parts -> shards of all parts, by the processes of a cluster; folders may be URLs of storage."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from lexvl_anserini.cli import DryRun, Overwrite, Style, Verbose, expand_options, print_rows
from lexvl_anserini.data.dataset import Dataset, begun
from lexvl_anserini.encode import EncoderOptions, InputOptions, QuantiserOptions, ShardOptions, encode_corpus, estimate
from lexvl_anserini.encoders.cards import remark_on
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.claims import claim
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.shards.layout import Layout
from lexvl_plugins.cluster.options import RunnerOptions, print_urls
from lexvl_plugins.cluster.parts import PartsRequest, encode_parts, load_plan
from lexvl_plugins.cluster.plans import CorpusPlan, name_listing, plan_corpus
from lexvl_plugins.cluster.runners import run_on
from lexvl_plugins.cluster.storage import fetch_file, place, publish_after

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanOptions:
    """The plan that parts share."""

    plan: Annotated[
        str | None,
        typer.Option(help="Plan of the corpus, written by --parts; then all parts are encoded, or that of --shard-id."),
    ] = None
    parts: Annotated[int | None, typer.Option(min=1, help="Write the --plan for so many parts, and stop.")] = None

    def check(self, inputs: InputOptions, runner: RunnerOptions) -> None:
        """Raises UsageError for options that do not go together, ArtefactError for a plan that is not there."""
        alone = self.plan is None or inputs.shard_id is not None
        if inputs.topics:
            raise UsageError("--topics are encoded as a whole, into a local file, by lexvl encode")
        if self.parts is not None and (alone or inputs.output is not None):
            raise UsageError("--parts N writes the --plan alone; then encode with --output and without --parts")
        if runner != RunnerOptions() and (alone or self.parts):
            all_parts = "--runner and its options are for all parts of a plan"
            raise UsageError(f"{all_parts}: write it with --parts N --plan FILE first")
        if self.plan is not None and self.parts is None and not fetch_file(place(self.plan)).is_file():
            raise ArtefactError(f"{self.plan}: no plan of a corpus; --parts N writes it")


class Work(NamedTuple):
    """What every way of encoding reads; `settings` end with batch size and policy for images that cannot be read."""

    inputs: InputOptions
    encoder: EncoderOptions
    settings: tuple[Quantiser, Layout, int, str]
    overwrite: bool


@expand_options
def command(
    inputs: InputOptions,
    encoder: EncoderOptions,
    quantised: QuantiserOptions,
    shards: ShardOptions,
    planning: PlanOptions,
    runner: RunnerOptions,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Plan a corpus in parts (--plan --parts N), then encode them all; --plan and --output may be URLs of storage.

    Without --plan, it encodes a corpus as `lexvl encode` does.

    Example: lexvl cluster-encode --corpus demo --encoder bag-of-tokens --plan plan.json --parts 4
    """
    inputs.check()
    inputs = replace(inputs, output=inputs.output and str(place(inputs.output)))
    settings = (quantised.load(), shards.layout(), encoder.batch_size, inputs.on_error)
    work = Work(inputs, encoder, settings, overwrite)
    with print_urls():
        planning.check(inputs, runner)
        if planning.plan is None or planning.parts or inputs.part or dry_run:
            rows = encode_here(work, planning, dry_run)
        else:
            rows = encode_all_parts(work, place(planning.plan), runner)
        print_rows(rows, style)


def encode_here(work: Work, planning: PlanOptions, dry_run: bool) -> dict[str, Any]:
    """Plans a corpus, or encodes it or one part of it in this process; returns the rows of the command."""
    inputs, part = work.inputs, work.inputs.part
    dataset = begun(inputs.load_corpus())
    model = work.encoder.request(inputs, dataset.direction).load()
    if remark := remark_on(model.checkpoint, inputs.corpus):
        log.warning(remark)
    target = inputs.target(model.name)
    if dry_run:
        rows = {"output": str(target), "encoder": model.name, "checkpoint": model.checkpoint, "corpus": inputs.corpus}
        return {**rows, **estimate(dataset, model, *work.settings, part)}
    if planning.parts:
        return write_plan(work, dataset, model, place(planning.plan or ""), planning.parts)
    planned = load_plan(place(planning.plan)).take_part(part) if planning.plan and part else part
    with publish_after(target):
        settings = dict(zip(("quantiser", "layout", "batch_size", "on_error"), work.settings, strict=True))
        return encode_corpus(dataset, model, target, part=planned, overwrite=work.overwrite, **settings)


def write_plan(work: Work, dataset: Dataset, model: Encoder, path: Path, parts: int) -> dict[str, Any]:
    """Writes the plan of a corpus, and returns the rows of the command: what each part reads."""
    # Another plan, whose parts may be in use, is not replaced unless it may be overwritten.
    if not work.overwrite and fetch_file(path).is_file():
        earlier = CorpusPlan.read(path)
        corpus, encoder = earlier.manifest.corpus.name, earlier.manifest.encoder.name
        requested = {"parts": parts, "corpus": dataset.name, "encoder": model.name}
        claim(path, "a plan", requested, {"parts": earlier.parts, "corpus": corpus, "encoder": encoder}, False)
    plan = plan_corpus(dataset, model, parts, *work.settings, listing=name_listing(path))
    plan.write(path)
    rows: dict[str, Any] = {"plan": str(path), "documents": plan.manifest.corpus.documents, "parts": plan.parts}
    scale = plan.manifest.quantiser.get("document", {}).get("scale")
    rows |= {name: value for name, value in (("scale", scale), ("listing", str(plan.listing or ""))) if value}
    return {**rows, "threads": plan.threads}


def encode_all_parts(work: Work, path: Path, runner: RunnerOptions) -> dict[str, Any]:
    """Encodes all parts of a plan by a runner, and returns the rows of the command."""
    started, inputs, documents = time.perf_counter(), work.inputs, CorpusPlan.read(path).summary.documents
    dataset = inputs.load_corpus()
    encoder = work.encoder.request(inputs, dataset.direction)
    output = place(inputs.target(encoder.name))
    request = PartsRequest(path, output, inputs.corpus_ref(), encoder, *work.settings, work.overwrite)
    with run_on(runner), progress_bar(f"encode {dataset.name} with {encoder.name}", documents) as progress:
        collection = encode_parts(request, progress)
    rows = {"output": str(output), "encoder": encoder.name, "parts": collection.parts, **collection.manifest.counts}
    return {**rows, "seconds": round(time.perf_counter() - started, 2)}
