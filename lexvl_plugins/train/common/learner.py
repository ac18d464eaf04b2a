"""A step of a stage: encodes a batch, computes its loss, changes the weights by the gradients; and what judges them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.swa_utils import AveragedModel

from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common import tower_pair
from lexvl_plugins.train.common.lamb import Lamb
from lexvl_plugins.train.common.processes import Pieces, make_accelerator
from lexvl_plugins.train.common.tower_pair import AnyBatches, ImageBatch, TextBatch, TowerPair, drop_registers, sparsify
from lexvl_plugins.train.model_settings import AnyModel, ImagePairSettings, TextPairSettings
from lexvl_plugins.train.objectives import AUXILIARIES, OBJECTIVES, RAMPS, REGULARISERS, LossRow, flops, sum_penalties
from lexvl_plugins.train.objectives.contrastive import Dense, Encoded, keep_heaviest, require_bag
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
    known: dict[str, Any] = dict.fromkeys(("temperature", "model_temperature"), temperatures.scores)
    known |= {"bag_temperature": temperatures.bags, "topk": model.kept_of_texts}

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


def compute_penalty(stage: StageSettings, rounds: Sequence[Encoded], step: int) -> Loss:
    """The weighted regularisers of a step, counted from 0 in its stage."""

    def compute_term(term: Regulariser) -> Tensor:
        function, share = REGULARISERS[term.name].function, RAMPS[term.ramp](step, term.ramp_steps)
        masked, values = stage.objective.options.get("masked"), []
        try:
            for encoded in rounds:
                weights = getattr(encoded, term.side)
                if term.side == "query" and (masked or not encoded.expanded):  # as the objective scores it
                    weights = weights * require_bag(encoded.query_bag)
                values.append(function(weights, **term.options))
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
    """AdamW, or LAMB; neither clips gradients, which `plan.clip` does before."""
    if plan.optimiser == "lamb":
        return Lamb(groups, plan.learning_rate, plan.betas)
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, eps=1e-8)


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


# The heaviest terms by which vectors are compared.
HEAVIEST = 10
# Vectors have collapsed if on average more than this share of all terms is active, or if neighbours in a batch are more
# alike than this.
DENSE, ALIKE = 0.5, {True: 0.9, False: 0.99}
# The number of examples, and of the characters of a text that names one.
COUNT, NAME = 4, 60


class Examples(NamedTuple):
    """A few fixed queries and documents, as many of each, named by a text or id, whose terms a run shows."""

    queries: TextBatch
    documents: ImageBatch | TextBatch
    query_names: Sequence[str]
    document_names: Sequence[str]

    @torch.inference_mode()
    def describe(
        self, pair: TowerPair, model: ImagePairSettings | TextPairSettings, terms: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """One row per example: its side and name, the number of its active terms, the heaviest with their weights."""
        encoded = Encoded(pair.encoder_q(self.queries), pair.encoder_p(self.documents), self.queries.bag)
        vectors = prepare_for_search(encoded, model)
        for side, names in (("query", self.query_names), ("document", self.document_names)):
            for name, weights in zip(names, getattr(vectors, side), strict=True):
                active = int((weights > 0).sum())
                top = weights.topk(min(HEAVIEST, active))
                heaviest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
                terms_of_row = [[terms[place], keep_digits(weight)] for place, weight in heaviest]
                yield {"side": side, "name": name, "active": active, "terms": terms_of_row}


@dataclass(frozen=True)
class StageInputs:
    """What a stage reads; examples are of the validation split, or of the training split where there is none.

    Validation has `measure`, from a pair and its settings to figures by name, and `score`, which compares checkpoints.
    """

    batches: AnyBatches
    validation: Any
    examples: Examples


def choose_examples(items: int) -> np.ndarray:
    """Positions of the examples among all items, evenly spread, int64."""
    return np.unique(np.linspace(0, items - 1, min(COUNT, items)).astype(np.int64))


def shorten(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= NAME else line[: NAME - 1] + "…"


def keep_digits(value: float) -> float:
    """A number with four digits, for the log."""
    return float(f"{value:.4g}")


def prepare_for_search(encoded: Encoded, model: ImagePairSettings | TextPairSettings) -> Encoded:
    """The vectors after the sparsifier of each side, [N, words] and [M, words]; dense ones as they are."""
    query, document = encoded.query.detach().float(), encoded.document.detach().float()
    if isinstance(model, TextPairSettings):
        if model.lexical:
            query, document = (sparsify(side, topk) for side, topk in zip((query, document), model.kept, strict=True))
    elif model.lexical:
        bag = None if encoded.query_bag is None else encoded.query_bag[:, model.registers :]
        query, document = drop_registers(query, model), drop_registers(document, model)
        if model.family.cut:
            query = keep_heaviest(query, bag, model.kept_of_texts)
            document = keep_heaviest(document, None, model.topk)
    return Encoded(query, document)


@torch.no_grad()
def measure_batch(encoded: Encoded, model: ImagePairSettings | TextPairSettings) -> dict[str, float]:
    """Figures of each side: mean active terms and FLOPS of a lexical pair, and how alike the vectors are."""
    vectors = prepare_for_search(encoded, model)
    figures: dict[str, float] = {}
    for side in ("query", "document"):
        weights: Tensor = getattr(vectors, side)
        if model.lexical:
            figures[f"{side}_terms"] = round(float((weights > 0).sum(dim=1).float().mean()), 1)
            figures[f"{side}_flops"] = keep_digits(float(flops(weights)))
        if len(weights) > 1:
            figures[f"{side}_alike"] = round(measure_likeness(weights, model.lexical), 3)
    return figures


def measure_likeness(weights: Tensor, lexical: bool) -> float:
    """How alike each vector [N, V] is to the next one: the common share of the ten heaviest terms, or the cosine."""
    following = weights.roll(1, dims=0)
    if not lexical:
        return float((normalize(weights, dim=1) * normalize(following, dim=1)).sum(dim=1).mean())
    top = weights.topk(min(HEAVIEST, weights.shape[1]), dim=1)
    heavy = torch.zeros_like(weights).scatter_(1, top.indices, (top.values > 0).to(weights.dtype))
    after = heavy.roll(1, dims=0)
    most = torch.maximum(heavy.sum(dim=1), after.sum(dim=1))
    return float(((heavy * after).sum(dim=1) / most.clamp(min=1)).mean())


def find_collapses(
    figures: Mapping[str, float], terms: int, model: ImagePairSettings | TextPairSettings, settled: bool
) -> dict[str, str]:
    """What is wrong with a batch, by side and kind; until it has `settled`, it may be dense and alike."""
    wrong = {}
    for side, name, limit in zip(("query", "document"), ("queries", "documents"), model.kept, strict=True):
        active, near = figures.get(f"{side}_terms"), figures.get(f"{side}_alike", 0.0)
        if active is not None and active < 0.5:
            advice = "lower the weights of regularisers, or the learning rate"
            wrong[f"{side} zero"] = f"vectors of {name} are zero; {advice}"
        elif active is not None and settled and limit is None and active > DENSE * terms:
            advice = "raise the weights of regularisers, or set topk"
            wrong[f"{side} dense"] = f"vectors of {name} have {active:g} of {terms} terms; {advice}"
        elif settled and near > ALIKE[model.lexical]:
            what = "the same heaviest terms" if model.lexical else "the same vector"
            wrong[f"{side} alike"] = f"{name} have {what} ({side}_alike {near:g}); lower the learning rate"
    return wrong
