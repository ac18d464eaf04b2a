"""Exports that are found without being named: of the encoder of an index, by what the index notes of it.

    CHECKPOINT.onnx                    beside the folder of the weights, where the user exported it to
    $LEXVL_DATA/exports/KEY            the cache, which `lexvl export-onnx` without --output writes

KEY names the encoder, the digest of its checkpoint and its options. A folder of the cache that is damaged counts as
none, and is written again; all may be deleted at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.ground.errors import CheckpointError, LexvlError
from lexvl_anserini.ground.machine import expanded_path
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_plugins.onnx.loading import ONNX, Export, is_export, read_file

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

# Behind the name of the folder of a checkpoint; inside, it would change the checkpoint's digest.
BESIDE = ".onnx"


def cached_export(ref: EncoderRef) -> Path:
    """The folder of the cache for an encoder, which may not be there."""
    key = orjson.dumps(ref.without_places(), option=orjson.OPT_SORT_KEYS)
    return data_root(None) / "exports" / f"{ref.name}-{sha256(key).hexdigest()[:24]}"


def export_of(ref: EncoderRef, checkpoint: str | None = None) -> Path | None:
    """The folder of an export of exactly this encoder; None if there is none, or one that needs a missing ONNX Runtime.

    Args:
        ref: the encoder, as torch loads it.
        checkpoint: the folder of its checkpoint now, if it moved; it may be an export itself.
    """
    return next((folder for folder in _candidates(ref, checkpoint) if is_export(folder) and _fits(folder, ref)), None)


def load_quickly(ref: EncoderRef, checkpoint: str | None, vocabulary: str | None) -> Encoder | None:
    """The encoder of an artefact by an export of it; None if there is none that can be loaded.

    Args:
        ref, checkpoint: as for `export_of`.
        vocabulary: digest that the encoder's vocabulary must have.
    """
    folder = export_of(ref, checkpoint)
    if folder is None:
        return None
    try:
        model = load_encoder_of(ref, str(folder), settings={"runtime": ONNX}, vocabulary=vocabulary)
    except LexvlError as error:
        log.warning("%s; torch encodes the query", error)
        return None
    log.debug("queries are encoded by %s: %s", ONNX, folder)
    return model


def is_sound(folder: Path) -> bool:
    """Whether an export has all files that it names, as they were written."""
    try:
        export = Export.read(folder)
        for name in export.files:
            read_file(folder, export, name)
    except CheckpointError:
        return False
    return True


def _candidates(ref: EncoderRef, checkpoint: str | None) -> Iterator[Path]:
    """Where an export may be; nothing is downloaded."""
    if checkpoint is None:
        yield cached_export(ref)
    reference = checkpoint or ref.checkpoint
    if reference and (reference in PACKAGED or expanded_path(reference).is_dir()):
        folder = find_checkpoint(reference).folder
        yield from (folder, folder.with_name(folder.name + BESIDE))


def _fits(folder: Path, ref: EncoderRef) -> bool:
    """Whether an export is one of an encoder, by name, digest of the checkpoint, and options, and can be computed."""
    try:
        export = Export.read(folder)
        can_run = not export.graphs or find_spec("onnxruntime") is not None
        return can_run and export.encoder.without_places() == ref.without_places()
    except CheckpointError as error:
        log.warning("%s; it counts as none", error)
        return False
