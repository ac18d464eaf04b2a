"""Which files of vectors are read, and by what."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lexvl_anserini.data.lines import plain_suffix, without_packing
from lexvl_anserini.exchange.ciff_reading import CiffVectors
from lexvl_anserini.exchange.importing import ImportSettings, import_vectors
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent

CIFF = ".ciff"


def default_shards(source: Path) -> Path:
    """`downloads/robust04.ciff.gz` -> `impacts/robust04`."""
    return Path("impacts") / Path(without_packing(source.name)).stem


def import_file(
    source: Path,
    output: Path,
    settings: ImportSettings = ImportSettings(),
    overwrite: bool = False,
    progress: Progress = silent,
    suffix: str | None = None,
) -> Manifest:
    """Writes the vectors of a file as shards; see `import_vectors`.

    Args:
        suffix: the format, as the suffix of a file; default that of the name.

    Raises:
        UsageError: the name says no format that is read.
    """
    if (suffix or plain_suffix(source)) != CIFF:
        raise UsageError(f"{source}: expected a file in {CIFF}, or {CIFF}.gz")
    opened = partial(CiffVectors, source, span=settings.layout.shard_size, escape_ids=settings.escape_ids)
    return import_vectors(source, output, opened, settings, overwrite, progress)
