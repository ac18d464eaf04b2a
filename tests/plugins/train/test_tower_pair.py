"""The projection's values and gradients are those of the plain formula, whatever the slices."""

from __future__ import annotations

import pytest
import torch

from lexvl_plugins.train.common import tower_pair as projection
from lexvl_plugins.train.common.tower_pair import project_max


@pytest.mark.parametrize("slice_floats", [1, 40, 1 << 20])
@pytest.mark.parametrize("with_mask", [False, True])
def test_it_equals_the_plain_formula(slice_floats: int, with_mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "SLICE_FLOATS", slice_floats)
    torch.manual_seed(0)
    features = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    masked = torch.tensor([[False] * 5, [False, False, True, True, True]]) if with_mask else None
    logits = features @ matrix.T  # [B, L, V]
    if masked is not None:
        logits = logits.masked_fill(masked[:, :, None], -torch.inf)
    expected = logits.amax(dim=1)
    pull = torch.randn(2, 7, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * pull).sum(), (features, matrix))
    found = project_max(features, matrix, masked)
    gradients = torch.autograd.grad((found * pull).sum(), (features, matrix))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, wanted)
