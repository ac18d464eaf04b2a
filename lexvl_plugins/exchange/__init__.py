"""Other programs: their vectors, CIFF, indexes of stock Anserini, adapters, saved encoders, and the hub."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow

# Other plug-ins that this one imports.
NEEDS = ("cluster",)


IMPORT = CommandRow(
    "lexvl_plugins.exchange.import_shards", "Train and encode", "Import vectors that another program encoded"
)
ADOPT = CommandRow(
    "lexvl_plugins.exchange.adopt", "Index and search", "Search an index of stock Anserini as one of ours"
)
EXPORT_CIFF = CommandRow(
    "lexvl_plugins.exchange.export_ciff", "Index and search", "Export an index as a file that other systems read"
)
PUSH = CommandRow("lexvl_plugins.exchange.sharing.push", "Index and search", "Push an index to the hub or to storage")
PULL = CommandRow(
    "lexvl_plugins.exchange.sharing.pull", "Index and search", "Pull an index from the hub or from storage"
)
