"""What encoding costs a loaded system: seconds of alternating rounds, memory above the model; runs in children."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eval.efficiency.processes import Stopwatch, forget_peak, resident_bytes

# Items whose vectors are compared between the systems.
COMPARED = 8


class Encoding(NamedTuple):
    """A loaded system: `vectors` is timed, `dense` is compared (before VDR's top k, whose ties rounding decides)."""

    vectors: Callable[[Sequence[str], int], Any]
    dense: Callable[[Sequence[str]], np.ndarray]


class Compared(NamedTuple):
    """Costs per system and round, how far each system's vectors are from ours, and their dimensions."""

    costs: dict[str, list[dict[str, float]]]
    differences: dict[str, float]
    dimensions: int


def alternate(loaded: Mapping[str, Encoding], inputs: Sequence[str], batch_size: int, repeats: int) -> Compared:
    """Lets the systems encode the same inputs in turns."""
    dense = {name: system.dense(inputs[:COMPARED]) for name, system in loaded.items()}
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in loaded}
    for _ in range(repeats):
        for name, system in loaded.items():
            with Stopwatch() as watch:
                system.vectors(inputs, batch_size)
            costs[name].append(watch.told())
    reference = dense.get("ours", next(iter(dense.values())))
    differences = {name: float(np.abs(vectors - reference).max()) for name, vectors in dense.items()}
    return Compared(costs, differences, int(reference.shape[1]))


def memory(system: Encoding, inputs: Sequence[str], batch_size: int) -> dict[str, int]:
    """Resident bytes of the loaded system, and how many more it took while it encoded."""
    # What the first call loads for good is not counted.
    system.vectors(inputs[:1], batch_size)
    before = resident_bytes("VmRSS")
    forget_peak()
    system.vectors(inputs, batch_size)
    return {"before": before, "extra": resident_bytes() - before}
