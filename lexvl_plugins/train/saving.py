"""The checkpoints of a run: the last one, the one that validated best, and those of epochs or stages."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import torch
from safetensors.torch import load_model

from lexvl_anserini.ground.files import make_folder, new_folder, write_json
from lexvl_anserini.ground.machine import versions_of
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.curve import draw_curve
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import BEST, BEST_WEIGHTS, CURVE, KEPT, LOG, MODEL, best_of, tidy
from lexvl_plugins.train.splits import TRAINING

log = logging.getLogger(__name__)

# What may end with a checkpoint of its own: an epoch is as many steps of a stage as pass all training items once.
PERIODS = EPOCH, STAGE = "epoch", "stage"


class Saves(Protocol):
    """The data of a run that saving its pair reads."""

    @property
    def data(self) -> Mapping[str, Sized]:
        """The items by role."""
        ...

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes a pair into an empty folder, in the layout of its encoder."""
        ...


@dataclass(frozen=True)
class Saving:
    """Writes checkpoints into the folder of a run.

    recipe      of the run
    output      the folder of the run
    material    writes a pair in the layout of its encoder
    digests     of the data
    keep_every  what ends with a checkpoint of its own; None for the last and the best checkpoint alone
    """

    recipe: Recipe
    output: Path
    material: Saves
    digests: Mapping[str, str]
    keep_every: str | None = None

    def last(self, pair: TowerPair) -> Path:
        """Writes the last and the best checkpoint, deletes what was stored, and returns the folder of the last one."""
        measured = self.measured()
        draw_curve(self.output / LOG, self.output / CURVE)
        best, _ = best_of(self.output)
        # The folder of the last checkpoint appears at the end: it says that the run is finished.
        with new_folder(self.output / MODEL) as part:
            self.write(pair, part, self.recipe.steps, measured.get(max(measured, default=0)))
            if best and best != max(measured):
                log.info("%s: step %d validated best", self.output / BEST, best)
                load_model(pair, self.output / BEST_WEIGHTS)
                with new_folder(self.output / BEST) as other:
                    self.write(pair, other, best, measured.get(best))
        tidy(self.output)
        return self.output / MODEL

    def due(self, number: int, done: int, per_epoch: int, ended: bool) -> str | None:
        """The name of the checkpoint that is due after `done` steps of a stage; None for no checkpoint."""
        stage, epoch = f"{STAGE}-{number + 1}", f"{EPOCH}-{done // per_epoch}"
        if self.keep_every == EPOCH and done % per_epoch == 0:
            return f"{stage}-{epoch}" if len(self.recipe.stages) > 1 else epoch
        return stage if self.keep_every == STAGE and ended else None

    def keep(self, pair: TowerPair, name: str, step: int) -> None:
        """Writes the checkpoint of an epoch or of a stage in the place of an older one; the pair stays as it was."""
        device, training = pair.log_temperature.device, pair.training
        make_folder(self.output / KEPT)
        with new_folder(self.output / KEPT / name) as part:
            self.write(pair, part, step, self.measured().get(step))
        pair.to(device).train(training)
        log.info("%s: step %d", self.output / KEPT / name, step)

    def write(self, pair: TowerPair, folder: Path, step: int, validation: Mapping[str, Any] | None) -> None:
        """Writes the checkpoint of a step into an empty folder, with the log so far and what it was trained on."""
        self.material.save(self.recipe.until(step), pair, folder)
        shutil.copyfile(self.output / LOG, folder / LOG)
        content = {
            "recipe": self.recipe.model_dump(mode="json"),
            "data": dict(self.digests),
            "queries" if self.recipe.model.of_texts else "images": len(self.material.data[TRAINING]),
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "versions": versions_of(("torch", "transformers", "accelerate", "lexvl-anserini")),
            "validation": validation,
        }
        write_json(folder / "training.json", content)

    def measured(self) -> dict[int, Mapping[str, Any]]:
        """The validation figures of the log, by step."""
        rows = [orjson.loads(line) for line in (self.output / LOG).read_bytes().splitlines()]
        return {row["step"]: row for row in rows if "temperature" in row}
