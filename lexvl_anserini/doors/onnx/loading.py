"""The runtime `onnx`: an exported folder -> an encoder whose networks ONNX Runtime computes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lexvl_anserini.doors.onnx.export_folder import (
    IMAGES,
    PASSAGES,
    REMEDY,
    SIDES,
    Export,
    SideOfExport,
    is_export,
    read_file,
)
from lexvl_anserini.doors.onnx.tokenizing import bare_tokenizer
from lexvl_anserini.doors.onnx.towers import (
    DenseGraphTower,
    Graph,
    GraphImages,
    GraphItems,
    GraphPassages,
    GraphTexts,
    LexicalGraphTower,
)
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import Encoder, Tower
from lexvl_anserini.encoders.parts.images.crops import pixels_of
from lexvl_anserini.encoders.parts.sparsify import Sparsifier
from lexvl_anserini.encoders.parts.texts.bags import BagTower
from lexvl_anserini.encoders.parts.texts.passages import PassageReader
from lexvl_anserini.encoders.parts.texts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError, reason_of
from lexvl_anserini.ground.manifest import PLACES
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary

# The name of this runtime, as an option of an encoder in manifests.
ONNX = "onnx"


def load_exported(
    name: str,
    checkpoint: str | None,
    tokenizer: str | None,
    backbone_config: str | None,
    device: str,
    options: Mapping[str, Any],
) -> Encoder:
    """Loads an exported encoder; arguments as those of `load_encoder`.

    Options are settled by the export: those given must be its own.

    Raises:
        UsageError: no checkpoint, or an option that the export does not have.
        CheckpointError: the checkpoint is no export, one of another encoder, or damaged.
        MissingExtra: ONNX Runtime is not installed.
    """
    command = f"lexvl export-onnx --encoder {name} --checkpoint {checkpoint or 'CHECKPOINT'} --output FOLDER"
    if checkpoint is None:
        raise UsageError(f"--runtime onnx needs a folder that was exported, as --checkpoint; `{command}` writes one")
    folder = find_checkpoint(checkpoint).folder
    if not is_export(folder):
        raise CheckpointError(f"{checkpoint}: not exported for --runtime onnx; `{command}` does that")
    export = Export.read(folder)
    if export.encoder.name != name:
        raise CheckpointError(f"{folder}: an export of encoder {export.encoder.name!r}, expected one of {name!r}")
    if device not in ("auto", "cpu"):
        raise UsageError(f"--runtime onnx computes on the CPU, --device is {device}; leave it out, or use torch")
    if tokenizer or backbone_config:
        raise UsageError("an exported folder has its tokenizer and its network; leave the other folders out")
    refuse_other_options(folder, export.encoder.options, {k: v for k, v in options.items() if k not in PLACES})
    try:
        towers = {side: tower_of(folder, export, getattr(export, side)) for side in SIDES}
    except LexvlError:
        raise
    except Exception as error:  # an entry of another content than this version writes
        raise CheckpointError(f"{folder}: cannot be loaded ({reason_of(error)}); {REMEDY}") from error
    return Encoder(
        name,
        "dense" if export.kind == "dense" else "impact",
        query=towers["query"],
        document=towers["document"],
        checkpoint=str(folder.resolve()),
        checkpoint_digest=export.encoder.checkpoint_digest,
        options={**export.encoder.options, "runtime": ONNX},
        device="cpu",
    )


def refuse_other_options(folder: Path, exported: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuses options that the export does not have; of the command line all values are texts."""
    for key, value in wanted.items():
        if str(exported.get(key)).lower() != str(value).lower():
            stored = f"{key}={exported[key]}" if key in exported else f"no {key}"
            raise UsageError(
                f"{folder}: exported with {stored}, requested {key}={value}; export again with --set {key}={value}"
            )


def tower_of(folder: Path, export: Export, side: SideOfExport) -> Tower:
    """The tower of a side."""
    items = items_of(folder, export, side)
    if export.kind == "dense" and side.graph:
        graph = Graph(read_file(folder, export, side.graph), str(folder / side.graph))
        return DenseGraphTower(items, graph, side.width, side.normalise, side.dimensions)
    columns = columns_of(folder, export, side)
    if side.graph:
        graph = Graph(read_file(folder, export, side.graph), str(folder / side.graph))
        return LexicalGraphTower(items, graph, columns, Sparsifier(**side.get("sparsifier", {})))
    if not isinstance(items, GraphTexts):
        raise CheckpointError(f"{folder}: a side without a graph reads {side.reads}, expected texts; {REMEDY}")
    weight = array_of(folder, export, side.weight) if side.weight else None
    return BagTower(items.reader, columns, weight, items.joiner, side.normalise, side.topk)


def items_of(folder: Path, export: Export, side: SideOfExport) -> GraphItems:
    """What reads documents and topics of a side."""
    if side.reads == IMAGES:
        return GraphImages(pixels_of(side.get("pixels") or {}))
    about = side.get("reader") or {}
    data = read_file(folder, export, about.get("tokenizer", ""))
    tokenizer = bare_tokenizer(
        data, about.get("pad_id", 0), about.get("cuts_start", False), f"{folder / about['tokenizer']}"
    )
    settings: dict[str, Any] = {key: about.get(key) for key in ("max_length", "padding", "specials", "limit", "prompt")}
    reader = TextReader(tokenizer, **settings)
    return (
        GraphPassages(PassageReader(reader)) if side.reads == PASSAGES else GraphTexts(reader, about.get("joiner", " "))
    )


def columns_of(folder: Path, export: Export, side: SideOfExport) -> TokenColumns:
    """The vocabulary of a side, and the dimension of each token id; of images there are no token ids."""
    terms = read_file(folder, export, VOCABULARY).decode().split("\n")[:-1]
    of_token = array_of(folder, export, side.columns) if side.columns else np.empty(0, dtype=np.int64)
    return TokenColumns(Vocabulary(terms, str(folder / VOCABULARY)), of_token)


def array_of(folder: Path, export: Export, name: str) -> np.ndarray:
    """An array of an export."""
    try:
        array: np.ndarray = np.load(io.BytesIO(read_file(folder, export, name)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CheckpointError(f"{folder / name}: not an array of numpy; {REMEDY}") from error
    return array
