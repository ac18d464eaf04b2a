"""Benchmarks of time, memory and size on this machine; settings tuned on one split for another."""

from lexvl_anserini.ground.registry import CommandRow, Way

# Other plug-ins that this one imports.
NEEDS = ("cluster", "exchange", "papers", "train")
_PANEL = "Analyses and benchmarks"
TUNE = CommandRow(f"{__name__}.tune", _PANEL, "Choose settings on one split, report them on another")
EFFICIENCY = CommandRow(f"{__name__}.command", _PANEL, "Time, memory and size on this machine")
CLUSTER_EFFICIENCY = CommandRow(f"{__name__}.cluster", _PANEL, "A cluster of this machine against one process")

_HOME = "lexvl_plugins.bench.reproduction"
LATENCY = Way(
    f"{_HOME}:measure_latency", f"{_HOME}:list_latency_needs", f"{_HOME}:estimate_latency", f"{_HOME}:has_protocol"
)
SPEED = Way(f"{_HOME}:measure_speed", "", f"{_HOME}:estimate_speed", f"{_HOME}:can_be_timed")
