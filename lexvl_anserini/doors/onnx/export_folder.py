"""The folder of an exported encoder: what `export-onnx` writes and ONNX Runtime reads.

    FOLDER/export.json             the encoder, its two sides, and the SHA-256 of every other file: an `Export`
    FOLDER/query.onnx              the network of a side, up to the weights before the sparsifier, or the dense vectors;
    FOLDER/document.onnx           none for a bag of tokens. Sides with equal networks share a file
    FOLDER/query.tokenizer.json    the tokenizer of a side that reads texts
    FOLDER/query.columns.npy       the dimension of each token id, int64, of a lexical side that reads texts
    FOLDER/query.weight.npy        the weight of each dimension, float32, of a weighted bag of tokens
    FOLDER/vocab.txt               the terms of a lexical encoder

Inputs of a graph are token ids and attention (of DPR token types too), int64 [B, L], or crops, uint8 [B, R, R, 3]. Its
output is float32 [B, V], or [B, D].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.loading import EXPORT
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.ground.typed import Entry, Key, check

FORMAT = "lexvl-onnx/1"

SIDES = ("query", "document")
REMEDY = "export again with lexvl export-onnx"

# What a side reads.
TEXTS, PASSAGES, IMAGES = "texts", "passages", "images"


class ReaderEntry(Entry):
    """How texts are tokenised, see `parts.tokens.TextReader`; `pad_id`, `cuts_start` of its tokenizer."""

    tokenizer: Key[str] = Key("", required=True)
    max_length: Key[int] = Key(0, required=True)
    padding: Key[str] = Key("none")
    specials: Key[bool] = Key(True)
    limit: Key[int | None] = Key(None)
    prompt: Key[str] = Key("")
    joiner: Key[str] = Key(" ")
    pad_id: Key[int] = Key(0)
    cuts_start: Key[bool] = Key(False)


class PixelsEntry(Entry):
    """How an image becomes a square, see `parts.crops`; the other keys are the fields of the class `kind`."""

    kind: Key[str] = Key("", required=True)
    resolution: Key[int] = Key(0, required=True)
    mean: Key[list[float]] = Key([], required=True)
    std: Key[list[float]] = Key([], required=True)
    shorter: Key[int | None] = Key(None)
    resample: Key[int | None] = Key(None)
    floor: Key[bool | None] = Key(None)


class SparsifierEntry(Entry):
    """Which weights a vector keeps, see `parts.sparsify.Sparsifier`."""

    topk: Key[int | None] = Key(None)
    own: Key[bool] = Key(False)
    first: Key[int | None] = Key(None)


class SideOfExport(Entry):
    """One side of an exported encoder.

    reads                  texts, passages or images
    graph                  file of the network; None for a bag of tokens
    reader, pixels         of texts, and of images
    columns, sparsifier    of a lexical network
    weight, topk           of a bag of tokens
    width, dimensions      of a dense network
    normalise              of a bag of tokens or a dense network; a lexical network does it itself
    """

    reads: Key[str] = Key("", required=True)
    graph: Key[str | None] = Key(None)
    columns: Key[str | None] = Key(None)
    weight: Key[str | None] = Key(None)
    topk: Key[int | None] = Key(None)
    width: Key[int] = Key(0)
    dimensions: Key[int | None] = Key(None)
    normalise: Key[bool] = Key(False)
    inside = {"reader": ReaderEntry, "pixels": PixelsEntry, "sparsifier": SparsifierEntry}


@dataclass(frozen=True)
class Export:
    """What export.json holds.

    encoder          as `Encoder.identity` of the exported one
    kind             impact or dense
    query, document  the sides
    files            SHA-256 (hex) of every other file that belongs to the export
    versions         of what made the graphs
    """

    encoder: EncoderRef
    kind: str
    query: SideOfExport
    document: SideOfExport
    files: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for `files.write_json`."""
        return asdict(self)

    @classmethod
    def read(cls, folder: Path) -> Export:
        """The description of an export; its files are compared when they are read."""
        path = folder / EXPORT
        data = read_json(path, "description of an exported encoder", CheckpointError)
        if data.get("format") != FORMAT or data.keys() - {key.name for key in fields(cls)}:
            raise CheckpointError(f"{path}: not an export of this version (format {FORMAT}); {REMEDY}")
        try:
            check(data, cls, str(path), REMEDY)
        except Exception as error:
            raise CheckpointError(str(error)) from error
        read = {"encoder": EncoderRef(data["encoder"]), **{side: SideOfExport(data[side]) for side in SIDES}}
        return cls(**{**data, **read})


def is_export(folder: Path) -> bool:
    """Whether a folder is that of an exported encoder."""
    return (folder / EXPORT).is_file()


def read_file(folder: Path, export: Export, name: str) -> bytes:
    """A file of an export, after comparing its digest."""
    path = folder / name
    if name not in export.files or Path(name).name != name:
        raise CheckpointError(f"{folder / EXPORT}: names the file {name!r:.80} without its digest; {REMEDY}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
    if (digest := sha256(data).hexdigest()) != export.files[name]:
        raise CheckpointError(
            f"{path}: has SHA-256 {digest[:16]}, expected {export.files[name][:16]}, the exported file; {REMEDY}"
        )
    return data
