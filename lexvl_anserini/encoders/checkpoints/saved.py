"""`lexvl.json` in a folder that `Encoder.save_pretrained` wrote: which encoder its checkpoint is, and its options.

    {"encoder": "vdr", "options": {"topk": 64}, "places": {"tokenizer": "tokenizer"}, "folder": "", "file": null}

`load_encoder` of that encoder takes the options and places that the caller does not give. Places are folders of the
same checkpoint, or packaged names: a folder from the hub names nothing outside of it.

The layout of VDR cross-modal folders, lexical or dense: one entry in config.json and one prefix of keys per side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.filenames import inside
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import PLACES
from lexvl_anserini.ground.typed import Entry, Key, check

SAVED = "lexvl.json"


class SavedEncoder(Entry):
    """What `lexvl.json` holds.

    encoder  the name of its card
    options  that it was saved with, but those that name places
    places   folders of its other parts in the checkpoint (`manifest.PLACES`), or packaged names
    folder   of the weights in the checkpoint, "" for the checkpoint itself
    file     the weight file, of an encoder that is loaded from a file
    """

    encoder: Key[str] = Key("", required=True)
    options: Key[Mapping[str, Any]] = Key(MappingProxyType({}))
    places: Key[Mapping[str, Any]] = Key(MappingProxyType({}))
    folder: Key[str] = Key("")
    file: Key[str | None] = Key(None)

    def weights_of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with the folder and the file of its weights."""
        where = str(checkpoint.folder / SAVED)
        folder = inside(checkpoint.folder, self.folder, where) if self.folder else checkpoint.folder
        file = inside(folder, self.file, where) if self.file else checkpoint.file
        if file is not None and not file.is_file():
            raise CheckpointError(f"{where}: names the weight file {self.file!r}, which is not there")
        return replace(checkpoint, folder=folder, file=file)

    def places_in(self, checkpoint: Checkpoint) -> dict[str, str]:
        """The paths of its other parts, or their packaged names."""
        where = str(checkpoint.folder / SAVED)
        if strange := sorted(set(self.places) - set(PLACES)):
            raise CheckpointError(f"{where}: {strange[0]!r:.80} is no part of an encoder; known: {', '.join(PLACES)}")
        return {
            key: name if name in PACKAGED else str(inside(checkpoint.folder, name, where))
            for key, name in self.places.items()
        }


def read_saved(checkpoint: Checkpoint) -> SavedEncoder | None:
    """What `lexvl.json` of a checkpoint holds; None if it has none."""
    path = checkpoint.folder / SAVED
    if checkpoint.file is not None or not path.is_file():
        return None
    data = read_json(path, "saved encoder", CheckpointError)
    try:
        check(data, SavedEncoder, str(path), "save the encoder again")
    except ArtefactError as error:
        raise CheckpointError(str(error)) from error
    saved = SavedEncoder(data)
    if named := sorted(set(saved.options) & {"source", *PLACES}):
        raise CheckpointError(f"{path}: {named[0]!r} among the options; save the encoder again")
    return saved


# Values of fields that the published configurations omit.
VISION_DEFAULTS = {"resolution": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12}


def about(checkpoint: Checkpoint, config: Mapping[str, Any], prefix: str, types: tuple[str, ...]) -> Mapping[str, Any]:
    """The entry of config.json for one side."""
    entry = config.get(prefix) or {}
    if entry.get("type") not in types:
        raise CheckpointError(f"{checkpoint.folder}: {prefix} is of type {entry.get('type')!r}, expected {types[0]!r}")
    return entry


def vision_shape_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the PatchTransformer that an entry of config.json describes."""
    shape = {key: default if entry.get(key) is None else entry[key] for key, default in VISION_DEFAULTS.items()}
    return shape | ({"stem": entry["stem"]} if entry.get("stem") else {})
