"""Training, read top to bottom: read the data, make the pair, resume, and for each stage step and watch; save.

`learner` has a step, `watching` what is reported; `run_folder` describes the files of a run.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import torch

from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.files import disk_errors, make_folder
from lexvl_anserini.ground.registry import require
from lexvl_plugins.train import run_folder
from lexvl_plugins.train.common.learner import Learner, NotFinite
from lexvl_plugins.train.common.processes import (
    Processes,
    explain_memory,
    keep_freed_memory,
    keep_random_numbers,
    lacks_memory,
)
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.dense_heads import HeadMaterial
from lexvl_plugins.train.images.material import Material
from lexvl_plugins.train.model_settings import HeadSettings, ModelSettings, TextPairSettings
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.splits import TRAINING, Sources
from lexvl_plugins.train.texts.material import TextMaterial
from lexvl_plugins.train.watching import PERIODS, Saving, Watch

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

    On a CPU with the same number of threads, a resumed run ends with the same weights as an uninterrupted run.

    Args:
        recipe: the settings of the run.
        output: folder of the run.
        data_dir: folder of the datasets.
        device: auto, cpu, cuda, cuda:1.
        overwrite: delete the run that the folder contains, and start again.
        stop_after: stop at this step, or at once if the run is beyond it.
        hours: stop with the first step that ends so many hours after the data were read.
        cache: folder of decoded images and of what frozen networks make of images and texts, which runs over the same
            data and networks share; the folder of the run if None, which deletes them at its end.
        keep_every: epoch or stage: the folder of the run keeps a checkpoint of each, `kept/epoch-1` or `kept/stage-1`.
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
            resumed[:] = [self.start_learner(self.find_stage(step))]
            return resumed[0].accelerator

        with self.processes.state.main_process_first():
            progress = run_folder.resume(start_at, self.output)
        run_folder.rewind(self.own, progress.step)
        before = progress.step
        for number, first in self.list_starts():
            if number < self.find_stage(progress.step):
                continue
            learner = resumed.pop() if resumed else self.start_learner(number)
            self.run_stage(number, first, learner, progress, last, deadline)
            if progress.step < first + self.recipe.stages[number].optimisation.steps:
                break
            learner.finish()
            # Each call does a step at least.
            if progress.step > before and self.processes.agree(time.monotonic() >= deadline):
                break
        return progress.step

    def start_learner(self, number: int) -> Learner:
        """A learner at the start of a stage."""
        return Learner.start(self.recipe.stages[number], self.pair, self.device, self.recipe.precision)

    def list_starts(self) -> Iterator[tuple[int, int]]:
        """The number of each stage, and the steps before it."""
        first = 0
        for number, stage in enumerate(self.recipe.stages):
            yield number, first
            first += stage.optimisation.steps

    def find_stage(self, step: int) -> int:
        """The stage whose state has so many steps: at the end of a stage, this stage and not the next."""
        return next(number for number, first in reversed(list(self.list_starts())) if first < step or not number)

    def run_stage(
        self, number: int, first: int, learner: Learner, progress: run_folder.TrainingState, last: int, deadline: float
    ) -> None:
        """Runs the steps of a stage from `progress` on, with log, validation, states and kept checkpoints."""
        recipe, stage = self.recipe, self.recipe.stages[number]
        end = first + stage.optimisation.steps
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
                    raise DataError(
                        f"{error}; {self.output} has the state of step {progress.step}: run again"
                    ) from error
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
