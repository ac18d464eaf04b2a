"""What a stage reports: the log, examples, the best weights, warnings, the batch that stopped it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import torch
from safetensors.torch import save_model

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import atomic_write, disk_errors, json_bytes, part_of, publish, sync_path, sync_to
from lexvl_plugins.train.common.batches import TrainingBatch
from lexvl_plugins.train.common.evaluation import StageInputs, find_collapses, measure_batch
from lexvl_plugins.train.common.learner import Learner, NotFinite, Step
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.objectives.encoded import Encoded
from lexvl_plugins.train.recipe import Recipe, StageSettings
from lexvl_plugins.train.run_folder import BEST_WEIGHTS, EXAMPLES, FAILED, LOG, TrainingState, best_of

log = logging.getLogger(__name__)

# Terms of an example that are printed; the file has ten with their weights.
PRINTED = 6


@dataclass
class Watch:
    """The reports of one stage.

    recipe    of the run
    stage     of the recipe
    first     steps before the stage
    output    the folder of the run
    terms     of the dimensions that search uses
    inputs    of the stage
    lines     log.jsonl
    examples  examples.jsonl
    collapsed  what was wrong with the vectors of the last line
    """

    recipe: Recipe
    stage: StageSettings
    first: int
    output: Path
    terms: Sequence[str]
    inputs: StageInputs
    lines: BinaryIO
    examples: BinaryIO
    collapsed: set[str] = field(default_factory=set)

    @classmethod
    @contextmanager
    def opened(
        cls, recipe: Recipe, number: int, first: int, output: Path, terms: Sequence[str], inputs: StageInputs
    ) -> Iterator[Watch]:
        """A watch whose files are open; the arguments are its fields, and the number of the stage."""
        with open(output / LOG, "ab") as lines, open(output / EXAMPLES, "ab") as examples:
            yield cls(recipe, recipe.stages[number], first, output, terms, inputs, lines, examples)

    def after(self, step: Step, learner: Learner, progress: TrainingState) -> None:
        """Reports what is due after a step."""
        done, end = progress.step, self.first + self.stage.optimisation.steps
        if done % self.recipe.log_every == 0 or done == end:
            self.log(step, learner, progress)
        if done % self.recipe.validate_every == 0 or done == end:
            self.validate(learner, progress)

    def log(self, step: Step, learner: Learner, progress: TrainingState) -> None:
        """A line with the mean losses since the last one, and what the vectors of this step's batch are like."""
        model, plan = self.recipe.model, self.stage.optimisation
        loss, parts = progress.mean_losses()
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

    def validate(self, learner: Learner, progress: TrainingState) -> None:
        """Lines of the validation figures and of the examples; keeps the weights if they are the best so far."""
        pair, model, validation = learner.tested, self.recipe.model, self.inputs.validation
        pair.eval()
        if model.lexical:
            for row in self.inputs.examples.describe(pair, model, self.terms):
                self.examples.write(orjson.dumps({"step": progress.step, **row}) + b"\n")
                terms = " ".join(term for term, _ in row["terms"][:PRINTED])
                log.info("  %s %s: %s", row["side"], row["name"], terms)
            sync_to(self.examples)
        if validation:
            figures = validation.measure(pair, model)
            score = validation.score(figures)
            row = {"step": progress.step, "temperature": round(pair.log_temperature.exp().item(), 4)}
            report(self.lines, {**row, **figures, "score": score})
            progress.scores.append((progress.step, score))
            keep_best(pair, self.output, progress.step, score)
        pair.train()
        learner.pair.train()

    def ends_early(self, progress: TrainingState) -> bool:
        """Whether validation has not improved for `patience` validations."""
        patience = self.stage.optimisation.patience
        return patience > 0 and progress.waited(self.first) >= patience

    def end(self, progress: TrainingState) -> None:
        """Ends the stage early: the progress becomes that of its end."""
        plan = self.stage.optimisation
        report(self.lines, {"step": progress.step, "stopped": f"{plan.patience} validations without a better score"})
        progress.step = self.first + plan.steps
        progress.clear_losses()  # those of the next stage have their own mean

    def failed(
        self, error: NotFinite, learner: Learner, step: int, listed: Callable[[TrainingBatch], Any]
    ) -> UsageError:
        """Writes the batch at which loss or gradients were not finite, and returns the error that names the file."""
        taken, path = error.step, self.output / FAILED
        sides = {side: not_finite(taken.rounds, side) for side in ("query", "document")}
        content = {
            "step": step,
            "found": str(error),
            "losses": {name: str(value) for name, value in taken.parts.items()},
            "vectors that are not finite": sides,
            "weights that are not finite": [
                name for name, weight in learner.pair.named_parameters() if not torch.isfinite(weight).all()
            ],
            "items": listed(taken.batch),
        }
        with atomic_write(path) as out:
            out.write(json_bytes(content))
        return UsageError(f"step {step}: {error}; {path} has the batch; lower the learning rate or the clip")


def not_finite(rounds: Sequence[Encoded], side: str) -> list[int]:
    """The rows of a side whose vectors are not finite in a round."""
    rows = torch.stack([~torch.isfinite(getattr(encoded, side)).all(dim=1) for encoded in rounds]).any(dim=0)
    return rows.nonzero().flatten().tolist()


def report(lines: BinaryIO, row: Mapping[str, Any]) -> None:
    """Writes a line of the log, and prints it."""
    lines.write(orjson.dumps(row) + b"\n")
    sync_to(lines)
    flat = {**{key: value for key, value in row.items() if key != "losses"}, **row.get("losses", {})}
    log.info("%s", "  ".join(f"{key} {value}" for key, value in flat.items()))


def keep_best(pair: TowerPair, output: Path, step: int, score: float) -> None:
    """Writes the weights of a pair unless those that are there validated as well."""
    path = output / BEST_WEIGHTS
    if best_of(output)[1] >= score:
        return
    part = part_of(path)
    with disk_errors(path):
        save_model(pair, str(part), metadata={"step": str(step), "score": repr(score)})
        sync_path(part)
        publish(part, path)
