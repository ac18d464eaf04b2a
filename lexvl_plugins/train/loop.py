"""Training, read top to bottom: read the data, make the pair, resume, and for each stage step, watch and keep; save.

`learner` has a step; `run_folder` describes the files of a run.
"""

from __future__ import annotations

import logging
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from shutil import copytree
from typing import Any, BinaryIO

import orjson
import torch
from safetensors.torch import load_model, save_model

from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.ground import files
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.files import disk_errors, make_folder
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.registry import require
from lexvl_plugins.train import run_folder
from lexvl_plugins.train.common.learner import (
    Learner,
    NotFinite,
    StageInputs,
    StepRecord,
    find_collapses,
    measure_batch,
)
from lexvl_plugins.train.common.processes import (
    Processes,
    explain_memory,
    keep_freed_memory,
    keep_random_numbers,
    lacks_memory,
)
from lexvl_plugins.train.common.tower_pair import TowerPair, TrainingBatch
from lexvl_plugins.train.images.dense_heads import HeadMaterial
from lexvl_plugins.train.images.material import Material
from lexvl_plugins.train.model_settings import HeadSettings, ModelSettings, TextPairSettings
from lexvl_plugins.train.recipe import Recipe, StageSettings
from lexvl_plugins.train.splits import TRAINING, Sources
from lexvl_plugins.train.texts.material import TextMaterial

log = logging.getLogger(__name__)

# What a run reads and writes, by the settings of its model.
AnyMaterial = Material | HeadMaterial | TextMaterial
READERS: Mapping[type, Callable[[Recipe, Path, Sources], AnyMaterial]] = {
    ModelSettings: Material.read,
    HeadSettings: HeadMaterial.read,
    TextPairSettings: TextMaterial.read,
}


def train(
    recipe: Recipe,
    output: Path,
    data_dir: str | None = None,
    device: str = "auto",
    overwrite: bool = False,
    stop_after: int | None = None,
    hours: float | None = None,
    cache: Path | None = None,
    keep_every: str | None = None,
) -> Path:
    """Trains a recipe and returns the folder of the checkpoint, or of the state where it stopped; a run resumes.

    On a CPU with the same number of threads, a resumed run ends with the same weights as an uninterrupted run. It stops
    at the step `stop_after`, or with the first step that ends so many `hours` after the data were read. The cache is a
    folder of what frozen networks make of the data, which runs share; None for that of the run, which deletes it.
    """
    if keep_every not in (None, *PERIODS):
        raise UnknownName("--keep-every", str(keep_every), PERIODS)
    require("accelerate", "matplotlib")
    keep_freed_memory()
    chosen = choose_device(device)
    processes = Processes.start(chosen)
    processes.check(recipe)
    for folder in (output, cache or output):
        with disk_errors(folder):
            make_folder(folder)
    with processes.open_folder(output) as own, disk_errors(output), keep_random_numbers(chosen):
        run_folder.check_entries(own)  # a wrong folder raises here, before the data are read, which may take a minute
        log.info("%s: reading %s", output, ", ".join(recipe.data.corpora))
        # Only the first of several processes writes into the cache.
        sources = Sources.read(recipe, data_dir, cache if cache and processes.first else own, cache or output)
        run_folder.reserve(own, recipe, sources.digests, overwrite)
        processes.state.wait_for_everyone()
        if (output / run_folder.MODEL).is_dir():
            log.info("%s: trained already, nothing to do", output)
            run_folder.tidy(own)
            return output / run_folder.MODEL
        with processes.state.main_process_first():
            # Transformers saves fresh networks in the first process alone.
            if not processes.first and (output / run_folder.WORDS).is_dir():
                copytree(output / run_folder.WORDS, own / run_folder.WORDS)
            material: AnyMaterial = READERS[type(recipe.model)](recipe, own, sources)
        saving = Saving(recipe, output, material, sources.digests, keep_every)
        run = Training(recipe, output, own, processes, chosen, material, material.make_pair(recipe, chosen), saving)
        if run.run_stages(stop_after or recipe.steps, hours) < recipe.steps:
            return output / run_folder.STATE
        return saving.save_last(run.pair) if processes.first else output / run_folder.MODEL


@dataclass(frozen=True)
class Training:
    """The stages of a recipe on one pair; `output` is the folder of the run, `own` that of this process."""

    recipe: Recipe
    output: Path
    own: Path
    processes: Processes
    device: torch.device
    material: AnyMaterial
    pair: TowerPair
    saving: Saving

    def run_stages(self, last: int, hours: float | None) -> int:
        """Runs the stages from the last state on up to a step or for some hours, and returns the steps done."""
        deadline = math.inf if hours is None else time.monotonic() + 3600 * hours
        resumed: list[Learner] = []

        def start_at(step: int) -> Any:
            resumed[:] = [self.start_learner(self.recipe.find_stage(step))]
            return resumed[0].accelerator

        with self.processes.state.main_process_first():
            progress = run_folder.resume(start_at, self.output)
        run_folder.rewind(self.own, progress.step)
        before = progress.step
        for number in range(self.recipe.find_stage(progress.step), len(self.recipe.stages)):
            learner = resumed.pop() if resumed else self.start_learner(number)
            self.run_stage(number, learner, progress, last, deadline)
            if progress.step < self.recipe.starts[number + 1]:
                break
            learner.finish()
            # Each call does a step at least.
            if progress.step > before and self.processes.agree(time.monotonic() >= deadline):
                break
        return progress.step

    def start_learner(self, number: int) -> Learner:
        """A learner at the start of a stage."""
        return Learner.start(self.recipe.stages[number], self.pair, self.device, self.recipe.precision)

    def run_stage(
        self, number: int, learner: Learner, progress: run_folder.TrainingState, last: int, deadline: float
    ) -> None:
        """Runs the steps of a stage from `progress` on, with log, validation, states and kept checkpoints."""
        recipe, stage = self.recipe, self.recipe.stages[number]
        first, end = recipe.starts[number : number + 2]
        last = min(last, end)
        if progress.step >= last:
            return
        inputs = self.material.make_stage_inputs(recipe, number, learner.pair)
        self.announce(number, progress.step, len(inputs.batches))
        learner.pair.train()
        # Those of the dimensions that search uses.
        terms = self.material.columns.vocabulary.terms[getattr(recipe.model, "registers", 0) :]
        began = time.monotonic() - progress.seconds
        with open(self.own / run_folder.LOG, "ab") as lines, open(self.own / run_folder.EXAMPLES, "ab") as examples:
            watch = Watch(recipe, stage, first, self.own, terms, inputs, lines, examples)
            for step in range(progress.step, last):
                try:
                    taken = learner.take_step(recipe, stage, inputs.batches, step, step - first)
                except NotFinite as error:
                    raise watch.write_failure(error, learner, step, self.material.data[TRAINING].describe) from error
                except DataError as error:  # of a stream: a shard has gone, or is not as it was
                    if not self.processes.first or not progress.step:
                        raise
                    run_folder.save_state(learner.accelerator, self.output, progress)
                    state = f"{self.output} has the state of step {progress.step}"
                    raise DataError(f"{error}; {state}: run again") from error
                except (MemoryError, RuntimeError) as error:
                    if not lacks_memory(error):
                        raise
                    raise explain_memory(step, stage.optimisation, error) from error
                progress.record(taken.loss, taken.parts, time.monotonic() - began)
                watch.report_step(taken, learner, progress)
                done = progress.step - first
                patience = stage.optimisation.patience
                if patience and self.processes.agree(progress.count_waits(first) >= patience):
                    watch.end_early(progress)
                stops = progress.step >= last or self.processes.agree(time.monotonic() >= deadline)
                name = self.saving.name_due(number, done, inputs.batches.per_epoch, progress.step == end)
                # Before the state: a run that resumes from a state has all checkpoints up to its step.
                if name and self.processes.first:
                    self.saving.keep(learner.tested, name, first + done)
                if self.processes.first and (progress.step % recipe.state_every == 0 or stops):
                    run_folder.save_state(learner.accelerator, self.output, progress)
                if stops:
                    break

    def announce(self, number: int, step: int, items: int) -> None:
        """Logs what is about to be trained."""
        model, sizes = self.recipe.model, [(p.numel(), p.requires_grad) for p in self.pair.parameters()]
        log.info(
            f"{self.output}: {model.kind}, stage {number + 1} of {len(self.recipe.stages)}, "
            f"{items} {'queries' if model.of_texts else 'images'}, {len(self.material.columns.vocabulary)} terms, "
            f"{sum(size for size, changes in sizes if changes) / 1e6:.2f} M parameters of "
            f"{sum(size for size, _ in sizes) / 1e6:.2f} M change, step {step} of {self.recipe.steps}"
        )


# Terms of an example that are printed; the file has ten with their weights.
PRINTED = 6


@dataclass
class Watch:
    """The reports of one stage, before which `first` steps were done; `collapsed` was wrong with the last vectors."""

    recipe: Recipe
    stage: StageSettings
    first: int
    output: Path
    terms: Sequence[str]
    inputs: StageInputs
    lines: BinaryIO
    examples: BinaryIO
    collapsed: set[str] = field(default_factory=set)

    def report_step(self, step: StepRecord, learner: Learner, progress: run_folder.TrainingState) -> None:
        """Reports what is due after a step."""
        done, end = progress.step, self.first + self.stage.optimisation.steps
        if done % self.recipe.log_every == 0 or done == end:
            self.log(step, learner, progress)
        if done % self.recipe.validate_every == 0 or done == end:
            self.validate(learner, progress)

    def log(self, step: StepRecord, learner: Learner, progress: run_folder.TrainingState) -> None:
        """A line with the mean losses since the last one, and what the vectors of this step's batch are like."""
        model, plan = self.recipe.model, self.stage.optimisation
        loss, parts = progress.take_means()
        rate, seconds = learner.scheduler.get_last_lr()[0], round(progress.seconds, 1)
        row = {"step": progress.step, "loss": loss, "learning_rate": rate, "seconds": seconds, "losses": parts}
        figures = measure_batch(step.rounds[0], model)
        report(self.lines, {**row, **figures})
        ramps = [regulariser.ramp_steps for regulariser in self.stage.regularisers]
        settled = progress.step - self.first >= max(plan.warmup_steps, *ramps, 0)
        wrong = find_collapses(figures, len(self.terms), model, settled)
        for kind in sorted(wrong.keys() - self.collapsed):
            log.warning("step %d: %s", progress.step, wrong[kind])
        self.collapsed = set(wrong)

    def validate(self, learner: Learner, progress: run_folder.TrainingState) -> None:
        """Lines of the validation figures and of the examples; keeps the weights if they are the best so far."""
        pair, model, validation = learner.tested, self.recipe.model, self.inputs.validation
        pair.eval()
        if model.lexical:
            for row in self.inputs.examples.describe(pair, model, self.terms):
                self.examples.write(orjson.dumps({"step": progress.step, **row}) + b"\n")
                terms = " ".join(term for term, _ in row["terms"][:PRINTED])
                log.info("  %s %s: %s", row["side"], row["name"], terms)
            files.sync_to(self.examples)
        if validation:
            figures = validation.measure(pair, model)
            score = validation.score(figures)
            row = {"step": progress.step, "temperature": round(pair.log_temperature.exp().item(), 4)}
            report(self.lines, {**row, **figures, "score": score})
            progress.scores.append((progress.step, score))
            keep_best(pair, self.output, progress.step, score)
        pair.train()
        learner.pair.train()

    def end_early(self, progress: run_folder.TrainingState) -> None:
        """Ends the stage early: the progress becomes that of its end."""
        plan = self.stage.optimisation
        report(self.lines, {"step": progress.step, "stopped": f"{plan.patience} validations without a better score"})
        progress.step = self.first + plan.steps
        progress.clear_losses()  # those of the next stage have their own mean

    def write_failure(
        self, error: NotFinite, learner: Learner, step: int, listed: Callable[[TrainingBatch], Any]
    ) -> UsageError:
        """Writes the batch at which loss or gradients were not finite, and returns the error that names the file."""
        taken, path = error.step, self.output / run_folder.FAILED
        sides: dict[str, list[int]] = {}
        for side in ("query", "document"):
            wrong = [~torch.isfinite(getattr(encoded, side)).all(dim=1) for encoded in taken.rounds]
            sides[side] = torch.stack(wrong).any(dim=0).nonzero().flatten().tolist()
        weights = [name for name, one in learner.pair.named_parameters() if not torch.isfinite(one).all()]
        content = {
            "step": step,
            "found": str(error),
            "losses": {name: str(value) for name, value in taken.parts.items()},
            "vectors that are not finite": sides,
            "weights that are not finite": weights,
            "items": listed(taken.batch),
        }
        with files.atomic_write(path) as out:
            out.write(files.format_json(content))
        return UsageError(f"step {step}: {error}; {path} has the batch; lower the learning rate or the clip")


def report(lines: BinaryIO, row: Mapping[str, Any]) -> None:
    """Writes a line of the log, and prints it."""
    lines.write(orjson.dumps(row) + b"\n")
    files.sync_to(lines)
    flat = {**{key: value for key, value in row.items() if key != "losses"}, **row.get("losses", {})}
    log.info("%s", "  ".join(f"{key} {value}" for key, value in flat.items()))


def keep_best(pair: TowerPair, output: Path, step: int, score: float) -> None:
    """Writes the weights of a pair unless those that are there validated as well."""
    path = output / run_folder.BEST_WEIGHTS
    if run_folder.read_best(output)[1] >= score:
        return
    part = files.name_part(path)
    with files.disk_errors(path):
        save_model(pair, str(part), metadata={"step": str(step), "score": repr(score)})
        files.sync_path(part)
        files.publish(part, path)


# What may end with a checkpoint of its own: an epoch is as many steps of a stage as pass all training items once.
PERIODS = EPOCH, STAGE = "epoch", "stage"


@dataclass(frozen=True)
class Saving:
    """Writes checkpoints of what a run reads, the `material`, into its folder, also one for each `keep_every`."""

    recipe: Recipe
    output: Path
    material: Any
    digests: Mapping[str, str]
    keep_every: str | None = None

    def save_last(self, pair: TowerPair) -> Path:
        """Writes the last and the best checkpoint, deletes what was stored, and returns the folder of the last one."""
        measured = self.read_figures()
        draw_curve(self.output / run_folder.LOG, self.output / run_folder.CURVE)
        best, _ = run_folder.read_best(self.output)
        # The folder of the last checkpoint appears at the end: it says that the run is finished.
        with files.new_folder(self.output / run_folder.MODEL) as part:
            self.write(pair, part, self.recipe.steps, measured.get(max(measured, default=0)))
            if best and best != max(measured):
                log.info("%s: step %d validated best", self.output / run_folder.BEST, best)
                load_model(pair, self.output / run_folder.BEST_WEIGHTS)
                with files.new_folder(self.output / run_folder.BEST) as other:
                    self.write(pair, other, best, measured.get(best))
        run_folder.tidy(self.output)
        return self.output / run_folder.MODEL

    def name_due(self, number: int, done: int, per_epoch: int, ended: bool) -> str | None:
        """The name of the checkpoint that is due after `done` steps of a stage; None for no checkpoint."""
        stage, epoch = f"{STAGE}-{number + 1}", f"{EPOCH}-{done // per_epoch}"
        if self.keep_every == EPOCH and done % per_epoch == 0:
            return f"{stage}-{epoch}" if len(self.recipe.stages) > 1 else epoch
        return stage if self.keep_every == STAGE and ended else None

    def keep(self, pair: TowerPair, name: str, step: int) -> None:
        """Writes the checkpoint of an epoch or of a stage in the place of an older one; the pair stays as it was."""
        device, training = pair.log_temperature.device, pair.training
        files.make_folder(self.output / run_folder.KEPT)
        with files.new_folder(self.output / run_folder.KEPT / name) as part:
            self.write(pair, part, step, self.read_figures().get(step))
        pair.to(device).train(training)
        log.info("%s: step %d", self.output / run_folder.KEPT / name, step)

    def write(self, pair: TowerPair, folder: Path, step: int, validation: Mapping[str, Any] | None) -> None:
        """Writes the checkpoint of a step into an empty folder, with the log so far and what it was trained on."""
        self.material.save(self.recipe.cut_at(step), pair, folder)
        shutil.copyfile(self.output / run_folder.LOG, folder / run_folder.LOG)
        content = {
            "recipe": self.recipe.model_dump(mode="json"),
            "data": dict(self.digests),
            "queries" if self.recipe.model.of_texts else "images": len(self.material.data[TRAINING]),
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "versions": list_versions(("torch", "transformers", "accelerate", "lexvl-anserini")),
            "validation": validation,
        }
        files.write_json(folder / "training.json", content)

    def read_figures(self) -> dict[int, Mapping[str, Any]]:
        """The validation figures of the log, by step."""
        rows = [orjson.loads(line) for line in (self.output / run_folder.LOG).read_bytes().splitlines()]
        return {row["step"]: row for row in rows if "temperature" in row}


DPI, WIDTH, HEIGHT = 90, 5.5, 4.0
# Keys of the log that no panel draws.
OTHERS = frozenset({"step", "learning_rate", "seconds", "temperature", "score", "stopped", "losses"})
# The panels of keys, by the ends of their names.
PANELS = {"loss": "losses", "_terms": "active terms", "_flops": "FLOPS"}


def draw_curve(log: Path, path: Path) -> None:
    """Draws a PNG with one panel for each kind of figure that the log has; equal logs give equal pixels."""
    panels = make_panels([orjson.loads(line) for line in log.read_bytes().splitlines()])
    with open_figure(path, WIDTH * max(1, len(panels)), HEIGHT) as figure:
        for number, (title, lines) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), number)
            for name, points in lines.items():
                axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 30 else None)
            axes.set(title=title, xlabel="step")
            axes.grid(True, alpha=0.3)
            axes.legend(fontsize="small")


@contextmanager
def open_figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """Yields a figure of matplotlib, of so many inches and without settings of the user's, and writes it as a PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = BytesIO()
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(drawn, format="png", dpi=DPI)
    with files.atomic_write(path) as out:
        out.write(drawn.getvalue())


def make_panels(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By panel and line, the points (step, value) of a log."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        other = "validation" if "temperature" in row else "likeness of neighbours"
        points = [("losses", name, value) for name, value in row.get("losses", {}).items()]
        for key in (key for key in row if key not in OTHERS):
            points.append((next((panel for end, panel in PANELS.items() if key.endswith(end)), other), key, row[key]))
        for panel, name, value in points:
            panels.setdefault(panel, {}).setdefault(name, []).append((row["step"], value))
    return panels
