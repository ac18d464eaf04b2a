"""What a stage of training reads at each step, whatever its pair reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.training.common.batches import AnyBatches
from lexvl_anserini.training.common.examples import Examples
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.objectives.caption_terms import CaptionTerms
from lexvl_anserini.training.objectives.contrastive import Encoded


class AnyValidation(Protocol):
    """What validates during a run."""

    def measure(self, pair: TowerPair, model: Any) -> dict[str, float]:
        """Figures by name, of a pair with the settings of its model."""
        ...

    def score(self, figures: Mapping[str, float]) -> float:
        """The one figure by which checkpoints are compared; more is better."""
        ...


@dataclass(frozen=True)
class StageInputs:
    """What a stage reads at each step.

    batches        of the training split
    caption_terms  of the training split; None where the stage has no auxiliary objective
    validation     None where the recipe has no validation split
    taught         None where the stage has no teacher
    examples       of the validation split, or of the training split where there is none
    """

    batches: AnyBatches
    caption_terms: CaptionTerms | None
    validation: AnyValidation | None
    taught: Taught | None
    examples: Examples

    def add_to(self, rounds: Sequence[Encoded], images: np.ndarray, captions: np.ndarray) -> list[Encoded]:
        """The rounds of a batch with what its auxiliary objectives need.

        Args:
            rounds: of the batch.
            images: positions of its items [B] in the training split.
            captions: positions of its texts [rounds, B].
        """
        found = list(rounds)
        if self.caption_terms:
            found = self.caption_terms.add_to(found, images)
        if self.taught:
            found = [
                one._replace(taught=self.taught.scores(row, images)) for one, row in zip(found, captions, strict=True)
            ]
        return found


@dataclass(frozen=True)
class Taught:
    """The vectors of a dense pair for the training split: images [n, D], captions [m, D]."""

    images: Tensor
    captions: Tensor

    def scores(self, captions: np.ndarray, images: np.ndarray) -> Tensor:
        """The scores of some captions [N] and images [M], float32 [N, M]."""
        return self.captions[torch.from_numpy(captions)] @ self.images[torch.from_numpy(images)].T
