"""ir_metadata (https://www.ir-metadata.org) of our runs, which lsr-benchmark, TIRA and others read.

Time, memory and energy are tirex-tracker's: search inside its `tracking`, then `register_metadata(describe_run(RUN))`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.manifest import read_run_manifest


def describe_run(run: Path | str) -> dict[str, Any]:
    """Describes what made a run, from the manifest beside it: collection, method, implementation and platform."""
    manifest = read_run_manifest(Path(run))
    if manifest is None:
        raise DataError(f"{run}: no manifest beside it, so nothing says what made it; search again")
    encoder = manifest.encoder
    collection = {"name": manifest.dataset or manifest.topics, "source": manifest.corpus.name}
    retrieval: dict[str, Any] = {"name": encoder.name, "index": manifest.index, "depth": manifest.hits}
    retrieval |= {"checkpoint": encoder.checkpoint} if encoder.checkpoint else {}
    retrieval |= {"options": {name: str(value) for name, value in encoder.options.items()}} if encoder.options else {}
    libraries = [f"{name} {version}" for name, version in manifest.versions.items()]
    return {
        "tag": Path(run).stem,
        "data": {"test collection": collection | ({"split": manifest.split} if manifest.split else {})},
        "method": {"automatic": True, "score ties": "document id", "retrieval": [retrieval]},
        "implementation": {"source": {"lang": "python", "repository": "lexvl-anserini"}},
        "platform": {"software": {"libraries": {"python": libraries}}},
    }


def write_ir_metadata(run: Path | str) -> Path:
    """Writes `<run>.ir_metadata.yml` beside a run and its manifest; returns its path."""
    path = Path(f"{run}.ir_metadata.yml")
    text = yaml.safe_dump(describe_run(run), sort_keys=False)
    with atomic_write(path) as file:
        file.write(text.encode())
    return path
