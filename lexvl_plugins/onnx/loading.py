"""The folder of an exported encoder, which `export-onnx` writes, and the runtime `onnx`, which reads it.

    FOLDER/export.json             the encoder, its two sides, and the SHA-256 of every other file: an `Export`, with a
                                   digest of its own
    FOLDER/query.onnx              the network of a side, up to the weights before the sparsifier, or the dense vectors;
    FOLDER/document.onnx           none for a bag of tokens. Sides with equal networks share a file. There is none of
                                   documents in an export of queries alone
    FOLDER/query.tokenizer.json    the tokenizer of a side that reads texts
    FOLDER/query.columns.npy       the dimension of each token id, int64, of a lexical side that reads texts
    FOLDER/query.weight.npy        the weight of each dimension, float32, of a weighted bag of tokens
    FOLDER/vocab.txt               the terms of a lexical encoder

Inputs of a graph are token ids and attention (of DPR token types too), int64 [B, L], or crops, uint8 [B, R, R, 3]. Its
output is float32 [B, V], or [B, D].
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import Encoder, Tower
from lexvl_anserini.encoders.loading import EXPORT, EncoderSpec
from lexvl_anserini.encoders.parts.bags import BagTower
from lexvl_anserini.encoders.parts.batches import PassageReader
from lexvl_anserini.encoders.parts.images.pixels import build_pixels
from lexvl_anserini.encoders.parts.sparsify import Sparsifier
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError, reason_of
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import PLACES, EncoderRef
from lexvl_anserini.ground.typed import Entry, Key, check
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary
from lexvl_plugins.onnx.towers import (
    DenseGraphTower,
    Graph,
    GraphItems,
    LexicalGraphTower,
    QueriesAlone,
    graph_images,
    graph_passages,
    graph_texts,
)

# The name of this runtime, as an option of an encoder in manifests.
ONNX = "onnx"

FORMAT = "lexvl-onnx/1"

SIDES = ("query", "document")

# The key of export.json with the digest of all its other keys.
DIGEST = "digest"
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
    """How an image becomes a square, see `parts.images.pixels`; the other keys are the fields of the class `kind`."""

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
    weight, topk, adds     of a bag of tokens
    width, dimensions      of a dense network
    normalise              of a bag of tokens or a dense network; a lexical network does it itself
    """

    reads: Key[str] = Key("", required=True)
    graph: Key[str | None] = Key(None)
    columns: Key[str | None] = Key(None)
    weight: Key[str | None] = Key(None)
    topk: Key[int | None] = Key(None)
    adds: Key[bool] = Key(False)
    width: Key[int] = Key(0)
    dimensions: Key[int | None] = Key(None)
    normalise: Key[bool] = Key(False)
    inside = {"reader": ReaderEntry, "pixels": PixelsEntry, "sparsifier": SparsifierEntry}


@dataclass(frozen=True)
class Export:
    """What export.json holds.

    encoder          as `Encoder.identity` of the exported one
    kind             impact or dense
    query, document  the sides; without the second, queries alone are encoded
    files            SHA-256 (hex) of every other file that belongs to the export
    versions         of what made the graphs
    """

    encoder: EncoderRef
    kind: str
    query: SideOfExport
    document: SideOfExport | None
    files: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def graphs(self) -> list[str]:
        """The files that ONNX Runtime computes."""
        return [side.graph for side in (self.query, self.document) if side and side.graph]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for `files.write_json`, with its own digest."""
        return {**asdict(self), DIGEST: digest_of(asdict(self))}

    @classmethod
    def read(cls, folder: Path) -> Export:
        """The description of an export; its files are compared when they are read."""
        path = folder / EXPORT
        data = read_json(path, "description of an exported encoder", CheckpointError)
        digest = data.pop(DIGEST, None)  # older versions wrote none
        if data.get("format") != FORMAT or data.keys() - {key.name for key in fields(cls)}:
            raise CheckpointError(f"{path}: not an export of this version (format {FORMAT}); {REMEDY}")
        try:
            check(data, cls, str(path), REMEDY)
        except Exception as error:
            raise CheckpointError(str(error)) from error
        if digest not in (None, digest_of(data)):
            raise CheckpointError(f"{path}: not as it was written (its {DIGEST} is another); {REMEDY}")
        sides = {side: SideOfExport(data[side]) for side in SIDES if data[side]}
        return cls(**{**data, "encoder": EncoderRef(data["encoder"]), **sides})


def digest_of(description: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the content of export.json."""
    return sha256(orjson.dumps(description, option=orjson.OPT_SORT_KEYS)).hexdigest()


def is_export(folder: Path) -> bool:
    """Whether a folder is that of an exported encoder."""
    return (folder / EXPORT).is_file()


def read_file(folder: Path, export: Export, name: str) -> bytes:
    """A file of an export, after comparing its digest."""
    path = folder / name
    if name not in export.files or Path(name).name != name:
        raise CheckpointError(f"{folder / EXPORT}: names the file {name!r:.80} without its digest; {REMEDY}")
    if path.exists() and not path.is_file():  # a pipe or a device may have no end
        raise CheckpointError(f"{path}: not a regular file; {REMEDY}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
    if (digest := sha256(data).hexdigest()) != export.files[name]:
        raise CheckpointError(
            f"{path}: has SHA-256 {digest[:16]}, expected {export.files[name][:16]}, the exported file; {REMEDY}"
        )
    return data


def load_exported(spec: EncoderSpec) -> Encoder:
    """Loads an exported encoder.

    Options are settled by the export: those given must be its own.

    Raises:
        UsageError: no checkpoint, or an option that the export does not have.
        CheckpointError: the checkpoint is no export, one of another encoder, or damaged.
        MissingExtra: ONNX Runtime is not installed.
    """
    name, checkpoint = spec.name, spec.checkpoint
    command = f"lexvl export-onnx --encoder {name} --checkpoint {checkpoint or 'CHECKPOINT'} --output FOLDER"
    if checkpoint is None:
        raise UsageError(f"--runtime onnx needs a folder that was exported, as --checkpoint; `{command}` writes one")
    folder = find_checkpoint(checkpoint).folder
    if not is_export(folder):
        raise CheckpointError(f"{checkpoint}: not exported for --runtime onnx; `{command}` does that")
    export = Export.read(folder)
    if export.encoder.name != name:
        raise CheckpointError(f"{folder}: an export of encoder {export.encoder.name!r}, expected one of {name!r}")
    if spec.device not in ("auto", "cpu"):
        raise UsageError(f"--runtime onnx computes on the CPU, --device is {spec.device}; leave it out, or use torch")
    if spec.tokenizer or spec.backbone_config:
        raise UsageError("an exported folder has its tokenizer and its network; leave the other folders out")
    refuse_other_options(folder, export.encoder.options, {k: v for k, v in spec.options.items() if k not in PLACES})
    try:
        query = tower_of(folder, export, export.query)
        document = tower_of(folder, export, export.document) if export.document else QueriesAlone(query)
    except LexvlError:
        raise
    except Exception as error:  # an entry of another content than this version writes
        raise CheckpointError(f"{folder}: cannot be loaded ({reason_of(error)}); {REMEDY}") from error
    return Encoder(
        name,
        "dense" if export.kind == "dense" else "impact",
        query=query,
        document=document,
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
    graph = Graph(read_file(folder, export, side.graph), str(folder / side.graph)) if side.graph else None
    reader = reader_of(folder, export, side) if side.reads != IMAGES else None
    if graph is None:
        if side.reads != TEXTS or reader is None:
            raise CheckpointError(f"{folder}: a side without a graph reads {side.reads}, expected texts; {REMEDY}")
        weight = array_of(folder, export, side.weight) if side.weight else None
        columns = columns_of(folder, export, side)
        return BagTower(reader, columns, weight, joiner_of(side), side.normalise, side.topk, side.adds)
    items = items_of(side, reader)
    if export.kind == "dense":
        return DenseGraphTower(items, graph, side.width, side.normalise, side.dimensions)
    return LexicalGraphTower(items, graph, columns_of(folder, export, side), Sparsifier(**side.get("sparsifier", {})))


def items_of(side: SideOfExport, reader: TextReader | None) -> GraphItems:
    """What reads documents and topics of a side."""
    if reader is None:
        return graph_images(build_pixels(side.get("pixels") or {}))
    return graph_passages(PassageReader(reader)) if side.reads == PASSAGES else graph_texts(reader, joiner_of(side))


def joiner_of(side: SideOfExport) -> str:
    """What is put between title and text."""
    return str((side.get("reader") or {}).get("joiner", " "))


def reader_of(folder: Path, export: Export, side: SideOfExport) -> TextReader:
    """The reader of texts of a side."""
    entry = side.get("reader") or {}
    data = read_file(folder, export, entry.get("tokenizer", ""))
    where = f"{folder / entry['tokenizer']}"
    tokenizer = bare_tokenizer(data, entry.get("pad_id", 0), entry.get("cuts_start", False), where)
    settings: dict[str, Any] = {key: entry.get(key) for key in ("max_length", "padding", "specials", "limit", "prompt")}
    return TextReader(tokenizer, **settings)


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


class Encodings(NamedTuple):
    """What a call of a fast tokenizer returns, as far as we read it."""

    encodings: list[Any]


@dataclass(frozen=True)
class BareTokenizer:
    """A `tokenizers.Tokenizer` without transformers.

    backend_tokenizer  truncates and pads nothing
    pad_token_id       id of the padding token
    truncation_side    "right", or "left" where the start of a long text is cut
    """

    backend_tokenizer: Any
    pad_token_id: int
    truncation_side: str = "right"
    is_fast: ClassVar[bool] = True

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens as texts."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def __call__(self, texts: Sequence[str], add_special_tokens: bool = True, **_: Any) -> Encodings:
        """The texts as encodings; the other arguments of transformers choose what it would return beside them."""
        return Encodings(self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens))

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens a text, or a pair, gets."""
        return int(self.backend_tokenizer.num_special_tokens_to_add(pair))


def bare_tokenizer(data: bytes, pad_id: int, cuts_start: bool, where: str) -> BareTokenizer:
    """The tokenizer of a tokenizer.json."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # its own class is Exception
        raise CheckpointError(f"{where}: the tokenizer cannot be read ({reason_of(error)})") from error
    return BareTokenizer(tokenizer, pad_id, "left" if cuts_start else "right")
