"""More than one machine: plans of corpora, parts, Ray, indexes in partitions, and storage behind URLs."""

from lexvl_anserini.ground.registry import CommandRow, EngineRow

PARTITIONS = EngineRow("lexvl_plugins.cluster.partitions:PartitionsEngine", ("impact",))

SECTION = "Several machines, and storage"
ENCODE = CommandRow("lexvl_plugins.cluster.encode", SECTION, "Plan a corpus in parts, and encode the parts")
INDEX = CommandRow("lexvl_plugins.cluster.index", SECTION, "Build an index in partitions, or in storage")
SEARCH = CommandRow("lexvl_plugins.cluster.search", SECTION, "Search an index in partitions, or in storage")
