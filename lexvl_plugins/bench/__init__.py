"""Benchmarks of time, memory and size on this machine; settings tuned on one split for another."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow

TUNE = CommandRow(
    "lexvl_plugins.bench.tune", "Analyses and benchmarks", "Choose settings on one split, report them on another"
)
EFFICIENCY = CommandRow(
    "lexvl_plugins.bench.command", "Analyses and benchmarks", "Time, memory and size on this machine"
)
