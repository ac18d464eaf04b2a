"""Rows of `lexvl.ways`: time, as papers measure it."""

from __future__ import annotations

from lexvl_eval.reproduction.matrix import Way, nothing_needed

from lexvl_plugins.bench.reproduction import cost_of_latency, cost_of_speed, needs_of_latency

LATENCY = Way(
    "lexvl_plugins.bench.reproduction:measure_latency",
    needs_of_latency,
    cost_of_latency,
    lambda part: bool(part.system and part.system.protocol and part.system.dense),
)
SPEED = Way(
    "lexvl_plugins.bench.reproduction:measure_speed",
    nothing_needed,
    cost_of_speed,
    lambda part: bool(part.system and part.system.suite),
)
