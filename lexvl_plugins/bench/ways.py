"""Rows of `lexvl.ways`: time, as papers measure it."""

from __future__ import annotations

from lexvl_anserini.ground.registry import Way

_HOME = "lexvl_plugins.bench.reproduction"
LATENCY = Way(
    f"{_HOME}:measure_latency", f"{_HOME}:list_latency_needs", f"{_HOME}:estimate_latency", f"{_HOME}:has_twin"
)
SPEED = Way(f"{_HOME}:measure_speed", "", f"{_HOME}:estimate_speed", f"{_HOME}:has_suite")
