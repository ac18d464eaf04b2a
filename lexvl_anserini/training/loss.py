"""The loss of a recipe: its objective, its auxiliary objectives, and its regularisers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.objectives import AUXILIARIES, OBJECTIVES, REGULARISERS
from lexvl_anserini.training.objectives.contrastive import Encoded
from lexvl_anserini.training.objectives.regularisers import ramp
from lexvl_anserini.training.recipe import Recipe


def objective(recipe: Recipe, rounds: Sequence[Encoded], temperature: Tensor) -> Tensor:
    """The mean of the recipe's objective over the rounds, plus the weighted auxiliary objectives.

    Raises:
        UsageError: options or data do not fit a function.
    """

    def mean(function: Callable[..., Tensor], role: str, options: Mapping[str, Any]) -> Tensor:
        try:
            return torch.stack([function(encoded, **options) for encoded in rounds]).mean()
        except (TypeError, ValueError) as error:
            raise UsageError(f"recipe {recipe.name}: {role}: {error}") from error

    main = recipe.objective
    function = OBJECTIVES[main.name]
    known = {"temperature": temperature, "topk": recipe.model.topk}
    accepted = {key: value for key, value in known.items() if key in inspect.signature(function).parameters}
    total = mean(function, f"objective {main.name}", {**accepted, **main.options})
    for auxiliary in recipe.auxiliaries:
        value = mean(AUXILIARIES[auxiliary.name], f"auxiliary {auxiliary.name}", auxiliary.options)
        total = total + auxiliary.weight * value
    return total


def penalty(recipe: Recipe, rounds: Sequence[Encoded], step: int) -> Tensor:
    """The weighted regularisers of a step."""
    total = torch.zeros((), device=rounds[0].query.device)
    for regulariser in recipe.regularisers:
        values = [REGULARISERS[regulariser.name](getattr(encoded, regulariser.side)) for encoded in rounds]
        total = total + regulariser.weight * ramp(step, regulariser.ramp_steps) * torch.stack(values).mean()
    return total
