"""Rows of `lexvl.ways`: time, as papers measure it."""

from __future__ import annotations

from lexvl_eval.reproduction.matrix import Way, nothing_needed

from lexvl_plugins.bench.reproduction import estimate_latency, estimate_speed, list_latency_needs

LATENCY = Way(
    "lexvl_plugins.bench.reproduction:measure_latency",
    list_latency_needs,
    estimate_latency,
    lambda part: bool(part.system and part.system.protocol and part.system.dense),
)
SPEED = Way(
    "lexvl_plugins.bench.reproduction:measure_speed",
    nothing_needed,
    estimate_speed,
    lambda part: bool(part.system and part.system.suite),
)
