"""A step of a stage: encodes a batch, computes its loss, and changes the weights by the gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from lexvl_anserini.ground.errors import InstallationError, UsageError, describe_error
from lexvl_plugins.train.common import tower_pair
from lexvl_plugins.train.common.processes import Pieces, make_accelerator
from lexvl_plugins.train.model_settings import AnyModel
from lexvl_plugins.train.objectives import AUXILIARIES, OBJECTIVES, REGULARISERS, LossRow
from lexvl_plugins.train.objectives.encoded import Dense, Encoded, require_bag
from lexvl_plugins.train.objectives.regularisers import RAMPS, sum_penalties
from lexvl_plugins.train.recipe import Optimisation, Recipe, Regulariser, StageSettings


class StepRecord(NamedTuple):
    """The items that a step read, their vectors, and the loss that it minimised, with its parts by name."""

    batch: tower_pair.TrainingBatch
    rounds: Sequence[Encoded]
    loss: float
    parts: Mapping[str, float]


class NotFinite(ArithmeticError):
    """Loss or gradients of a step are not finite."""

    def __init__(self, problem: str, step: StepRecord):
        super().__init__(problem)
        self.step = step


@dataclass(frozen=True)
class Learner:
    """A pair in a stage, and what changes its weights, prepared by the accelerator; `average` has their average."""

    accelerator: Any
    pair: tower_pair.TowerPair
    optimiser: torch.optim.Optimizer
    scheduler: Any
    average: Any

    @classmethod
    def start(cls, stage: StageSettings, pair: tower_pair.TowerPair, device: torch.device, precision: str) -> Learner:
        """A learner at the start of a stage."""
        accelerator = make_accelerator(device, precision)
        pair.to(accelerator.device).start(stage)
        average = make_average(pair, stage.optimisation)
        if average is not None:
            accelerator.register_for_checkpointing(average)
        set_checkpointing(pair, stage.optimisation.checkpointing)
        # Gradients of several processes are gathered by `Pieces`, not by a wrapper around the pair.
        accelerator.prepare_model(pair, evaluation_mode=True)
        optimiser = choose_optimiser(group_parameters(pair, stage.optimisation), stage.optimisation)
        rates = torch.optim.lr_scheduler.LambdaLR(optimiser, make_learning_rate(stage.optimisation))
        prepared, scheduler = accelerator.prepare(optimiser, rates)
        return cls(accelerator, pair, prepared, scheduler, average)

    @property
    def tested(self) -> tower_pair.TowerPair:
        """The pair that validates: with averaged weights where the stage has an average."""
        pair: tower_pair.TowerPair = self.pair if self.average is None else self.average.module
        return pair

    def take_step(
        self, recipe: Recipe, stage: StageSettings, batches: tower_pair.AnyBatches, step: int, done: int
    ) -> StepRecord:
        """Changes the weights by the gradients of a step's loss, of which steps `done` were done in this stage."""
        seed, plan = recipe.seed * 1_000_003 + step, stage.optimisation
        torch.manual_seed(seed)  # dropout, a function of the step alone
        batch, pieces = batches[step], Pieces(self.accelerator, plan.piece, seed)
        rounds = encode(self.pair, batch, pieces)
        try:
            main = compute_objective(stage, recipe.model, rounds, self.pair.temperatures)
            extra = compute_penalty(stage, rounds, done)
        except UsageError as error:
            raise UsageError(f"recipe {recipe.name}: {error}") from error
        total, parts = main.total + extra.total, {**main.parts, **extra.parts}
        values = torch.stack([total.detach(), *(part.detach() for part in parts.values())]).tolist()
        taken = StepRecord(batch, rounds, values[0], dict(zip(parts, values[1:], strict=True)))
        if not math.isfinite(taken.loss):
            raise NotFinite(f"the loss is {taken.loss}", taken)
        if not self.update(total, pieces, plan.clip):
            raise NotFinite("the gradients are not finite", taken)
        return taken

    def update(self, loss: Tensor, pieces: Pieces, clip: float) -> bool:
        """Changes the weights by the gradients of a loss, clipped to norm `clip`; False if they are not finite."""
        self.accelerator.backward(loss)
        pieces.backward()
        pieces.average_gradients(self.pair.parameters())
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


def set_checkpointing(pair: tower_pair.TowerPair, enabled: bool) -> None:
    """Lets the trained networks of transformers compute the states of their layers again for gradients, or not."""
    able: list[Any] = [part for part in pair.modules() if getattr(part, "supports_gradient_checkpointing", False)]
    networks = [network for network in able if any(weight.requires_grad for weight in network.parameters())]
    if enabled and not networks:
        raise UsageError("optimisation.checkpointing: no network of transformers changes; leave it out")
    for network in networks:
        # Earlier versions of transformers 5 have the older name alone.
        new = hasattr(network, "activation_checkpointing_enable")
        name = "activation_checkpointing" if new else "gradient_checkpointing"
        if enabled:
            getattr(network, f"{name}_enable")({"use_reentrant": False})
        else:
            getattr(network, f"{name}_disable")()


def encode(pair: tower_pair.TowerPair, batch: tower_pair.TrainingBatch, pieces: Pieces) -> list[Encoded]:
    """One `Encoded` per round of texts, all with the same documents: all that objectives read of a batch."""
    # Padding is masked everywhere, so rounds of different lengths pass the text side one after the other.
    documents = pieces(compute_details, pair.encoder_p, batch.documents)
    queries = [pieces(compute_details, pair.encoder_q, texts) for texts in batch.rounds]
    fields: list[dict[str, Any]] = [{} for _ in queries]
    with pieces.run_whole():
        for part in pair.active:
            computed = part.compute_fields(pair, batch, documents)
            fields = [{**known, **more} for known, more in zip(fields, computed, strict=True)]
    codebook = getattr(pair.encoder_p, "codebook", None)
    return [
        Encoded(
            query=query.vectors,
            document=documents.vectors,
            query_bag=texts.bag,
            document_bag=batch.documents.bag if isinstance(batch.documents, tower_pair.TextBatch) else None,
            named=batch.named,
            frequency=batch.frequency,
            taught=batch.taught[number] if batch.taught else None,
            dense=None if query.dense is None or documents.dense is None else Dense(query.dense, documents.dense),
            expanded=batch.expanded,
            codebook=None if codebook is None else codebook.rows,
            # A caption's vector has its own terms alone.
            caption=None if documents.logits is None else query.vectors * texts.bag,
            logits=documents.logits,
            **fields[number],
        )
        for number, (query, texts) in enumerate(zip(queries, batch.rounds, strict=True))
    ]


def compute_details(side: Any, inputs: Any) -> tower_pair.Details:
    """What a side computes, in float32; a side that is no `DetailedSide` has vectors alone."""
    computed = side.compute(inputs) if isinstance(side, tower_pair.DetailedSide) else tower_pair.Details(side(inputs))
    return tower_pair.Details(*(None if part is None else part.float() for part in computed))  # type: ignore[arg-type]


class Loss(NamedTuple):
    """What a step minimises, and its parts by name, whose sum it is but for `running_penalty`; all are scalars."""

    total: Tensor
    parts: Mapping[str, Tensor]


def compute_objective(
    stage: StageSettings, model: AnyModel, rounds: Sequence[Encoded], temperatures: tower_pair.Temperatures
) -> Loss:
    """The mean of the stage's objective over the rounds, plus the weighted auxiliary objectives."""
    known = {
        "temperature": temperatures.scores,
        "model_temperature": temperatures.scores,
        "bag_temperature": temperatures.bags,
        "topk": model.kept_of_texts,
    }

    def compute_mean(role: str, row: LossRow, options: Mapping[str, Any], offered: Sequence[str]) -> Tensor:
        function: Callable[..., Tensor] = row.function
        ours = {key: known[key] for key in offered if key in inspect.signature(function).parameters}
        try:
            return torch.stack([function(encoded, **{**ours, **options}) for encoded in rounds]).mean()
        except (TypeError, ValueError) as error:
            raise UsageError(f"{role}: {error}") from error

    main = stage.objective
    total = compute_mean(f"objective {main.name}", OBJECTIVES[main.name], main.options, list(known))
    parts = {main.name: total}
    for auxiliary in stage.auxiliaries:
        # `temperature` of an auxiliary objective is its own.
        offered, role = ["model_temperature", "bag_temperature", "topk"], f"auxiliary {auxiliary.name}"
        part = auxiliary.weight * compute_mean(role, AUXILIARIES[auxiliary.name], auxiliary.options, offered)
        total, parts[auxiliary.name] = total + part, parts.get(auxiliary.name, 0) + part
    return Loss(total, parts)


def choose_vectors(stage: StageSettings, encoded: Encoded, side: str) -> Tensor:
    """The vectors of a side as the objective scores them: own tokens of texts unexpanded (D2S) or masked (STAIR)."""
    weights: Tensor = getattr(encoded, side)
    own = not encoded.expanded or bool(stage.objective.options.get("masked"))
    return weights * require_bag(encoded.query_bag) if own and side == "query" else weights


def compute_penalty(stage: StageSettings, rounds: Sequence[Encoded], step: int) -> Loss:
    """The weighted regularisers of a step, counted from 0 in its stage."""

    def compute_term(term: Regulariser) -> Tensor:
        function, share = REGULARISERS[term.name].function, RAMPS[term.ramp](step, term.ramp_steps)
        try:
            values = [function(choose_vectors(stage, encoded, term.side), **term.options) for encoded in rounds]
        except ValueError as error:
            raise UsageError(f"regulariser {term.name} of {term.side}: {error}") from error
        return term.weight * share * torch.stack(values).mean()

    totals: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    for regulariser in stage.regularisers:
        name, value = f"{regulariser.name}_{regulariser.side}", compute_term(regulariser)
        totals[regulariser.name] = totals.get(regulariser.name, 0) + value
        parts[name] = parts.get(name, 0) + value
    return Loss(sum_penalties(totals.values(), stage.running_penalty).to(rounds[0].query.device), parts)


def make_average(pair: tower_pair.TowerPair, plan: Optimisation) -> AveragedModel | None:
    """A copy of a pair with an exponential average of its weights, of decay at most (1 + n) / (10 + n) at step n."""

    @torch.no_grad()
    def update(averaged: Any, current: Any, steps: Tensor | int) -> None:
        number = int(steps)
        torch._foreach_lerp_(averaged, current, 1 - min(plan.average, (1 + number) / (10 + number)))

    return AveragedModel(pair, multi_avg_fn=update) if plan.average else None


def choose_optimiser(groups: list[dict[str, Any]], plan: Optimisation) -> torch.optim.Optimizer:
    """AdamW of PyTorch, or LAMB of timm; `plan.clip` clips the gradients, so that LAMB itself does not."""
    if plan.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, eps=1e-8)
    try:
        from timm.optim import Lamb
    except Exception as error:  # a torchvision of another torch raises what it likes
        raise InstallationError(
            f"optimiser lamb needs timm ({describe_error(error)}); pip install timm torchvision, in the versions that "
            "fit this torch"
        ) from error
    optimiser: torch.optim.Optimizer = Lamb(groups, lr=plan.learning_rate, betas=plan.betas, max_grad_norm=None)
    return optimiser


def group_parameters(pair: tower_pair.TowerPair, plan: Optimisation) -> list[dict[str, Any]]:
    """Groups of weights by learning rate and decay: matrices decay, or all weights (`plan.decayed`)."""
    trained = [(name, parameter) for name, parameter in pair.named_parameters() if parameter.requires_grad]
    for pattern in plan.learning_rates:
        if not any(fnmatch(name, pattern) for name, _ in trained):
            raise UsageError(f"learning_rates: no weight that changes is named {pattern!r}, as {trained[0][0]!r} is")
    # By learning rate, and whether they decay; the learning rate of the first group is logged.
    groups: dict[tuple[float, bool], list[Tensor]] = {(plan.learning_rate, True): [], (plan.learning_rate, False): []}
    for name, parameter in trained:
        peak = next((peak for pattern, peak in plan.learning_rates.items() if fnmatch(name, pattern)), None)
        decays = plan.decayed == "all" or parameter.dim() >= 2
        groups.setdefault((peak or plan.learning_rate, decays), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": plan.weight_decay if decays else 0.0}
        for (rate, decays), parameters in groups.items()
    ]


def make_learning_rate(plan: Optimisation) -> Callable[[int], float]:
    """Factor of the peak at a step: linear warm-up, then the decay down to `last_learning_rate`."""

    def compute_factor(step: int) -> float:
        if step < plan.warmup_steps:
            return (step + (plan.warmup == "n")) / plan.warmup_steps
        progress = min(1.0, (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps))
        left = (1 + math.cos(math.pi * progress)) / 2 if plan.decay == "cosine" else 1 - progress
        return plan.last_learning_rate + (1 - plan.last_learning_rate) * left

    return compute_factor
