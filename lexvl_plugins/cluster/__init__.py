"""More than one machine: plans of corpora, parts, Ray, indexes in partitions, and storage behind URLs."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow, EngineRow

CLUSTER_EFFICIENCY = CommandRow(
    "lexvl_plugins.cluster.efficiency", "Analyses and benchmarks", "A cluster of this machine against one process"
)
PARTITIONS = EngineRow("lexvl_plugins.cluster.partitions:PartitionsEngine", ("impact",))
