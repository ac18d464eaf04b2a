"""A step of a stage: encodes a batch, and changes the weights by the gradients of its loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.batches import TrainingBatch
from lexvl_anserini.training.common.encoding import encode
from lexvl_anserini.training.common.loss import objective, penalty
from lexvl_anserini.training.common.optimiser import make_accelerator, make_average, make_optimiser
from lexvl_anserini.training.common.pieces import Pieces
from lexvl_anserini.training.common.stage import StageInputs
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.objectives.contrastive import Encoded
from lexvl_anserini.training.recipe import Recipe, StageSettings


class Taken(NamedTuple):
    """What a step read and computed.

    batch   the items
    rounds  their vectors
    loss    what it minimised
    parts   the loss by the names of its parts
    """

    batch: TrainingBatch
    rounds: Sequence[Encoded]
    loss: float
    parts: Mapping[str, float]


class NotFinite(ArithmeticError):
    """Loss or gradients of a step are not finite."""

    def __init__(self, found: str, step: Taken):
        super().__init__(found)
        self.step = step


@dataclass(frozen=True)
class Learner:
    """A pair of towers in a stage, and what changes its weights; all prepared by the accelerator.

    average  a copy with the average of the weights; None where the stage has none
    """

    accelerator: Any
    pair: TowerPair
    optimiser: torch.optim.Optimizer
    scheduler: Any
    average: Any

    @classmethod
    def of(cls, stage: StageSettings, pair: TowerPair, device: torch.device, precision: str) -> Learner:
        """A learner at the start of a stage."""
        accelerator = make_accelerator(device, precision)
        pair.to(accelerator.device).trains(stage)
        average = make_average(pair, stage.optimisation)
        if average is not None:
            accelerator.register_for_checkpointing(average)
        recompute(pair, stage.optimisation.checkpointing)
        # Gradients of several processes are gathered by `Pieces`, not by a wrapper around the pair.
        accelerator.prepare_model(pair, evaluation_mode=True)
        optimiser, scheduler = accelerator.prepare(*make_optimiser(pair, stage.optimisation))
        return cls(accelerator, pair, optimiser, scheduler, average)

    @property
    def tested(self) -> TowerPair:
        """The pair that validates: with averaged weights where the stage has an average."""
        pair: TowerPair = self.pair if self.average is None else self.average.module
        return pair

    def step(self, recipe: Recipe, stage: StageSettings, inputs: StageInputs, step: int, done: int) -> Taken:
        """Changes the weights by the gradients of a step's loss, of which steps `done` were done in this stage.

        Raises:
            UsageError: options or data do not fit an objective.
            NotFinite: loss or gradients are not finite; the weights did not change.
        """
        seed, plan = recipe.seed * 1_000_003 + step, stage.optimisation
        torch.manual_seed(seed)  # dropout, a function of the step alone
        batch, pieces = inputs.batches[step], Pieces(self.accelerator, plan.piece, seed)
        rounds, temperatures = encode(self.pair, batch, pieces)
        rounds = inputs.add_to(rounds, batch.items, batch.texts)
        try:
            main, extra = objective(stage, recipe.model, rounds, temperatures), penalty(stage, rounds, done)
        except UsageError as error:
            raise UsageError(f"recipe {recipe.name}: {error}") from error
        total, parts = main.total + extra.total, {**main.parts, **extra.parts}
        values = torch.stack([total.detach(), *(part.detach() for part in parts.values())]).tolist()
        taken = Taken(batch, rounds, values[0], dict(zip(parts, values[1:], strict=True)))
        if not math.isfinite(taken.loss):
            raise NotFinite(f"the loss is {taken.loss}", taken)
        if not self.update(total, pieces, plan.clip):
            raise NotFinite("the gradients are not finite", taken)
        return taken

    def update(self, loss: Tensor, pieces: Pieces, clip: float) -> bool:
        """Changes the weights by the gradients of a loss, clipped to norm `clip`; False if they are not finite."""
        self.accelerator.backward(loss)
        pieces.backward()
        pieces.average(self.pair.parameters())
        norm = self.accelerator.clip_grad_norm_(self.pair.parameters(), clip)
        # The scaler of fp16 leaves out steps whose gradients overflow.
        if self.accelerator.scaler is None and not torch.isfinite(norm):
            return False
        self.optimiser.step()
        self.scheduler.step()
        self.optimiser.zero_grad()
        self.pair.settle()
        if self.average is not None:
            self.average.update_parameters(self.pair)
        return True

    def finish(self) -> None:
        """Gives the pair the weights that the stage ends with."""
        if self.average is not None:
            self.pair.load_state_dict(self.average.module.state_dict())


def recompute(pair: TowerPair, wanted: bool) -> None:
    """Lets the trained networks of transformers compute the states of their layers again for gradients, or not.

    Raises:
        UsageError: it is wanted, and no network that changes can do it.
    """
    vectors: list[Any] = [
        module
        for module in pair.modules()
        if getattr(module, "supports_gradient_checkpointing", False)
        and any(parameter.requires_grad for parameter in module.parameters())
    ]
    if wanted and not vectors:
        raise UsageError("optimisation.checkpointing: no network of transformers changes; leave it out")
    for network in vectors:
        # Earlier versions of transformers 5 have the older name alone.
        new = hasattr(network, "activation_checkpointing_enable")
        name = "activation_checkpointing" if new else "gradient_checkpointing"
        if wanted:
            getattr(network, f"{name}_enable")({"use_reentrant": False})
        else:
            getattr(network, f"{name}_disable")()
