"""The layout of VDR cross-modal folders, lexical or dense: one entry in config.json and one prefix of keys per side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.ground.errors import CheckpointError

# Values of fields that the published configurations omit.
VISION_DEFAULTS = {"resolution": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12}


def about(checkpoint: Checkpoint, config: Mapping[str, Any], prefix: str, types: tuple[str, ...]) -> Mapping[str, Any]:
    """The entry of config.json for one side.

    Raises:
        CheckpointError: it is missing, or of another type.
    """
    entry = config.get(prefix) or {}
    if entry.get("type") not in types:
        raise CheckpointError(f"{checkpoint.folder}: {prefix} is of type {entry.get('type')!r}, expected {types[0]!r}")
    return entry


def vision_shape_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the PatchTransformer that an entry of config.json describes."""
    shape = {key: default if entry.get(key) is None else entry[key] for key, default in VISION_DEFAULTS.items()}
    return shape | ({"stem": entry["stem"]} if entry.get("stem") else {})
