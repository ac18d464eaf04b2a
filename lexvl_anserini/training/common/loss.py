"""The loss of a stage: its objective, its auxiliary objectives, and its regularisers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.model_settings import AnyModel
from lexvl_anserini.training.objectives import AUXILIARIES, OBJECTIVES, REGULARISERS
from lexvl_anserini.training.objectives.contrastive import Encoded
from lexvl_anserini.training.objectives.regularisers import RAMPS, total_penalty
from lexvl_anserini.training.recipe import Regulariser, StageSettings


class Temperatures(NamedTuple):
    """What divides scores: those of vectors, and those of bags of words where a stage learns one of their own."""

    scores: Tensor
    bags: Tensor | None = None


class Loss(NamedTuple):
    """What a step minimises.

    total  scalar
    parts  scalars by the names of objectives and regularisers, each as it counts; their sum is the total, but for
           `running_penalty`
    """

    total: Tensor
    parts: Mapping[str, Tensor]


def objective(stage: StageSettings, model: AnyModel, rounds: Sequence[Encoded], temperatures: Temperatures) -> Loss:
    """The mean of the stage's objective over the rounds, plus the weighted auxiliary objectives.

    Raises:
        UsageError: options or data do not fit a function.
    """
    known = {
        "temperature": temperatures.scores,
        "model_temperature": temperatures.scores,
        "bag_temperature": temperatures.bags,
        "topk": model.kept_of_texts,
    }

    def mean(function: Callable[..., Tensor], role: str, options: Mapping[str, Any], given: Sequence[str]) -> Tensor:
        names = inspect.signature(function).parameters
        ours = {key: known[key] for key in given if key in names}
        try:
            return torch.stack([function(encoded, **{**ours, **options}) for encoded in rounds]).mean()
        except (TypeError, ValueError) as error:
            raise UsageError(f"{role}: {error}") from error

    main = stage.objective
    parts = {main.name: mean(OBJECTIVES[main.name], f"objective {main.name}", main.options, list(known))}
    total = parts[main.name]
    for auxiliary in stage.auxiliaries:
        # `temperature` of an auxiliary objective is its own.
        given = ["model_temperature", "bag_temperature", "topk"]
        value = mean(AUXILIARIES[auxiliary.name], f"auxiliary {auxiliary.name}", auxiliary.options, given)
        part = auxiliary.weight * value
        total, parts[auxiliary.name] = total + part, parts.get(auxiliary.name, 0) + part
    return Loss(total, parts)


def penalty(stage: StageSettings, rounds: Sequence[Encoded], step: int) -> Loss:
    """The weighted regularisers of a step, counted from 0 in its stage.

    Raises:
        UsageError: a regulariser's side is empty.
    """

    def term(regulariser: Regulariser) -> Tensor:
        function, share = REGULARISERS[regulariser.name], RAMPS[regulariser.ramp](step, regulariser.ramp_steps)
        try:
            values = [function(getattr(encoded, regulariser.side), **regulariser.options) for encoded in rounds]
        except ValueError as error:
            raise UsageError(f"regulariser {regulariser.name} of {regulariser.side}: {error}") from error
        return regulariser.weight * share * torch.stack(values).mean()

    totals: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    for regulariser in stage.regularisers:
        name, value = f"{regulariser.name}_{regulariser.side}", term(regulariser)
        totals[regulariser.name] = totals.get(regulariser.name, 0) + value
        parts[name] = parts.get(name, 0) + value
    return Loss(total_penalty(totals.values(), stage.running_penalty).to(rounds[0].query.device), parts)
