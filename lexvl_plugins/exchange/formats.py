"""Which files of vectors are read, and by what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lexvl_anserini.data.lines import plain_suffix, without_packing
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_plugins.exchange.ciff_reading import CiffVectors
from lexvl_plugins.exchange.importing import ImportSettings, Vectors, import_vectors
from lexvl_plugins.exchange.vectors import JSON_LINES, JsonVectors, MatrixVectors, read_terms

CIFF = ".ciff"
MATRICES = (".npz", ".pt")
READERS: dict[str, Callable[..., Vectors]] = {
    CIFF: CiffVectors,
    "": JsonVectors,
    **dict.fromkeys(JSON_LINES, JsonVectors),
}
READERS |= dict.fromkeys(MATRICES, MatrixVectors)


def default_shards(source: Path) -> Path:
    """`downloads/robust04.ciff.gz` -> `impacts/robust04`."""
    return Path("impacts") / Path(without_packing(source.resolve().name)).stem


def import_file(
    source: Path,
    output: Path,
    settings: ImportSettings = ImportSettings(),
    overwrite: bool = False,
    progress: Progress = silent,
    suffix: str | None = None,
) -> Manifest:
    """Writes the vectors of a file, or of a folder of JSON lines, as shards; see `import_vectors`.

    Args:
        suffix: the format, as the suffix of a file; default that of the name.

    Raises:
        UsageError: the name says no format that is read, or an option is for another format.
    """
    suffix = suffix or ("" if source.is_dir() else plain_suffix(source))
    if suffix not in READERS or not suffix and not source.is_dir():
        known = ", ".join(filter(None, READERS))
        raise UsageError(f"{source}: expected a file in {known}, plain or compressed, or a folder of JSON lines")
    opened = partial(READERS[suffix], source, span=settings.layout.shard_size, escape_ids=settings.escape_ids)
    if suffix in MATRICES:
        terms = settings.model.vocabulary if settings.model else read_terms(settings.vocabulary)
        opened = partial(opened, ids=settings.ids, terms=terms)
    elif settings.ids or settings.vocabulary:
        raise UsageError(f"{source}: --ids and --vocabulary are for matrices ({', '.join(MATRICES)})")
    return import_vectors(source, output, opened, settings, overwrite, progress)
