"""Numbers of parameters, counted in networks that are built without weights and without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .rows import Finding, RowPart, Workplace

# Millions; papers print one decimal.
TOLERANCE = 0.05


def stair_part(side: str) -> float:
    """A transformer of STAIR with its head, in the shapes of the paper; the text side has the embeddings."""
    import torch

    from lexvl_anserini.encoders.parts.stair_network import Stair, StairConfig

    with torch.device("meta"):
        model = Stair(StairConfig())
    return millions(getattr(model, side), getattr(model, f"{side}_head"))


def d2s_head() -> float:
    """D2S's head over BLIP's vectors of 256 dimensions, with DistilBERT's width and vocabulary."""
    import torch

    from lexvl_anserini.encoders.families.d2s import D2SHead

    with torch.device("meta"):
        return millions(D2SHead(256, 768, 30522))


def millions(*modules: Any) -> float:
    """The parameters of networks, in millions."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters()) / 1e6


# Encoder -> what papers count -> the function that counts it.
COUNTS: Mapping[str, Mapping[str, Callable[[], float]]] = {
    "stair": {"text parameters": partial(stair_part, "text"), "image parameters": partial(stair_part, "image")},
    "d2s": {"parameters": d2s_head},
}


def can_be_counted(part: RowPart) -> bool:
    """True for the numbers of parameters of a network that this project builds."""
    return part.system is not None and {*part.measures} <= COUNTS.get(part.system.encoder, {}).keys()


def count_parameters(part: RowPart, place: Workplace) -> Finding:
    """The parameters of a part's network, in millions."""
    assert part.system is not None, "`can_be_counted` is true of it"
    counts = COUNTS[part.system.encoder]
    return Finding({name: counts[name]() for name in part.measures}, TOLERANCE)
