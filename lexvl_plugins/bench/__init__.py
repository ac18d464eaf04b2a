"""Benchmarks of time, memory and size on this machine; settings tuned on one split for another."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow

# Other plug-ins that this one imports.
NEEDS = ("cluster", "exchange")


TUNE = CommandRow(
    "lexvl_plugins.bench.tune", "Analyses and benchmarks", "Choose settings on one split, report them on another"
)
EFFICIENCY = CommandRow(
    "lexvl_plugins.bench.command", "Analyses and benchmarks", "Time, memory and size on this machine"
)
CLUSTER_EFFICIENCY = CommandRow(
    "lexvl_plugins.bench.cluster", "Analyses and benchmarks", "A cluster of this machine against one process"
)
