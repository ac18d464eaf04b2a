"""More than one machine: plans of corpora, parts, Ray, indexes in partitions, and storage behind URLs."""

from __future__ import annotations

from lexvl_anserini.ground.registry import EngineRow

PARTITIONS = EngineRow("lexvl_plugins.cluster.partitions:PartitionsEngine", ("impact",))
