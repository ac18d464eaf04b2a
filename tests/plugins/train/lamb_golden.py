"""Writes tests/golden/lamb/timm.npz: fifty steps of timm's LAMB on weights and gradients drawn at random, in float64.

python tests/plugins/train/lamb_golden.py FOLDER    # which has timm's sources: timm/optim/lamb.py
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

STEPS, WARM = 50, 10
# Shapes of the parameters, and whether they decay; the last one begins at 0.
SHAPES = {"matrix": ((4, 3), True), "bias": ((3,), False), "zeros": ((2, 3), True)}
PLAN = {"betas": (0.9, 0.98)}
DECAY = 0.01
TARGET = Path(__file__).parents[2] / "golden/lamb/timm.npz"


def load_lamb(folder: Path) -> type[torch.optim.Optimizer]:
    """The class Lamb of timm/optim/lamb.py, without what timm imports otherwise."""
    package = ModuleType("timm_optim")
    package.__path__ = [str(folder / "timm/optim")]
    sys.modules[package.__name__] = package
    return import_module(f"{package.__name__}.lamb").Lamb


def main(folder: Path) -> None:
    draws, lamb = np.random.default_rng(59), load_lamb(folder)
    rates = [0.1 * min((step + 1) / WARM, (STEPS - step) / (STEPS - WARM)) for step in range(STEPS)]
    arrays = {"rates": np.array(rates)}
    for name, (shape, _) in SHAPES.items():
        arrays[f"start/{name}"] = draws.normal(size=shape) * (name != "zeros")
        # Norms on both sides of 1, and one gradient of zeros.
        scale = draws.uniform(0.02, 1.0, size=(STEPS, *[1] * len(shape)))
        arrays[f"gradients/{name}"] = (
            draws.normal(size=(STEPS, *shape)) * scale * (np.arange(STEPS) != 7).reshape(scale.shape)
        )
    for kind, most in (("free", None), ("clipped", 1.0)):
        weights = {name: torch.nn.Parameter(torch.from_numpy(arrays[f"start/{name}"].copy())) for name in SHAPES}
        groups = [{"params": [weights[name]], "weight_decay": DECAY * decays} for name, (_, decays) in SHAPES.items()]
        optimiser, found = lamb(groups, lr=1.0, max_grad_norm=most, **PLAN), {name: [] for name in SHAPES}
        for step, rate in enumerate(rates):
            for group in optimiser.param_groups:
                group["lr"] = rate
            for name, parameter in weights.items():
                parameter.grad = torch.from_numpy(arrays[f"gradients/{name}"][step].copy())
            optimiser.step()
            for name, parameter in weights.items():
                found[name].append(parameter.detach().numpy().copy())
        arrays |= {f"{kind}/{name}": np.stack(rows) for name, rows in found.items()}
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
