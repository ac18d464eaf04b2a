"""Other programs: their vectors, CIFF, indexes of stock Anserini, adapters, saved encoders, and the hub."""

from lexvl_anserini.ground.registry import CommandRow

# Other plug-ins that this one imports.
NEEDS = ("cluster",)
_PANEL = "Index and search"
IMPORT = CommandRow(f"{__name__}.import_shards", "Train and encode", "Import vectors that another program encoded")
ADOPT = CommandRow(f"{__name__}.adopt", _PANEL, "Search an index of stock Anserini as one of ours")
EXPORT_CIFF = CommandRow(f"{__name__}.export_ciff", _PANEL, "Export an index as a file that other systems read")
PUSH = CommandRow(f"{__name__}.sharing.push", _PANEL, "Push an index to the hub or to storage")
PULL = CommandRow(f"{__name__}.sharing.pull", _PANEL, "Pull an index from the hub or from storage")
