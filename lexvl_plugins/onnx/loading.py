"""The folder of an exported encoder, which `export-onnx` writes, and the runtime `onnx`, which reads it.

    FOLDER/export.json             an `Export`: the encoder, its sides, the SHA-256 of every file, and its own digest
    FOLDER/query.onnx              the network of a side, up to the weights before the sparsifier, or the dense vectors;
    FOLDER/document.onnx           none for a bag of tokens, nor for the documents of an export of queries alone
    FOLDER/query.tokenizer.json    the tokenizer of a side that reads texts
    FOLDER/query.columns.npy       the dimension of each token id, int64, of a lexical side that reads texts
    FOLDER/query.weight.npy        the weight of each dimension, float32, of a weighted bag of tokens
    FOLDER/vocab.txt               the terms of a lexical encoder

Files with equal bytes are one. Inputs of a graph are token ids and attention (of DPR token types too), int64 [B, L], or
crops, uint8 [B, R, R, 3]; its output is float32 [B, V], or [B, D]. Nothing here loads torch or transformers.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import orjson

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsImages, ReadsTexts, Tower, as_lexical
from lexvl_anserini.encoders.loading import EXPORT, EncoderSpec
from lexvl_anserini.encoders.parts import sparsify
from lexvl_anserini.encoders.parts.batches import BagTower, PassageReader, collate_texts, read_passage
from lexvl_anserini.encoders.parts.images.pixels import Crop, Pixels, Squares, read_crop_batches
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import (
    FAIL,
    CheckpointError,
    LexvlError,
    MissingExtra,
    OnError,
    UsageError,
    describe_error,
)
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import PLACES, EncoderRef
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows
from lexvl_anserini.ground.records import VOCABULARY, Document, Topic, Vocabulary
from lexvl_anserini.ground.registry import require
from lexvl_anserini.ground.typed import Entry, check

ONNX = "onnx"
FORMAT = "lexvl-onnx/1"
SIDES = ("query", "document")
# The key of export.json with the digest of all its other keys.
DIGEST = "digest"
REMEDY = "export again with lexvl export-onnx"
# What a side reads.
TEXTS, PASSAGES, IMAGES = "texts", "passages", "images"
READER_KEYS = ("max_length", "padding", "specials", "limit", "prompt")


class SideOfExport(Entry):
    """One side of an exported encoder, which reads texts, passages or images; without a graph it is a bag of tokens.

    A lexical network normalises itself. `reader` has the fields of `TextReader` with `tokenizer` (a file), `pad_id`,
    `cuts_start` and `joiner`; `pixels` and `sparsifier` are those of `parts.images.pixels` and `parts.sparsify`.
    """

    reads: str
    graph: str | None = None
    columns: str | None = None
    weight: str | None = None
    topk: int | None = None
    adds: bool = False
    width: int = 0
    dimensions: int | None = None
    normalise: bool = False
    reader: Mapping[str, Any] = MappingProxyType({})
    pixels: Mapping[str, Any] = MappingProxyType({})
    sparsifier: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Export:
    """What export.json holds: `document` is None if queries alone are encoded, `files` has SHA-256 (hex) by name."""

    encoder: EncoderRef
    kind: str
    query: SideOfExport
    document: SideOfExport | None
    files: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for `files.write_json`, with its own digest."""
        return {**asdict(self), DIGEST: hash_description(asdict(self))}

    @classmethod
    def read(cls, folder: Path) -> Export:
        """The description of an export; its files are compared when they are read."""
        path = folder / EXPORT
        data = read_json(path, "description of an exported encoder", CheckpointError)
        digest = data.pop(DIGEST, None)
        if data.get("format") != FORMAT or data.keys() - {key.name for key in fields(cls)}:
            raise CheckpointError(f"{path}: not an export of this version (format {FORMAT}); {REMEDY}")
        if digest != hash_description(data):
            raise CheckpointError(f"{path}: not as it was written (its {DIGEST} is another); {REMEDY}")
        try:
            check(data, cls, str(path), REMEDY)
            sides = {side: SideOfExport(data[side]) for side in SIDES if data[side]}
            return cls(**{**data, "encoder": EncoderRef(data["encoder"]), **sides})
        except Exception as error:
            raise CheckpointError(str(error)) from error


def hash_description(description: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the content of export.json."""
    return sha256(orjson.dumps(description, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_whole(folder: Path) -> Export | None:
    """The description of an export that has all files as they were written; None for a damaged one, or none."""
    try:
        export = Export.read(folder)
        for name in export.files:
            SideLoader(folder, export, export.query).read(name)
    except CheckpointError:
        return None
    return export


class GraphBatch(NamedTuple):
    """One run of a graph: the positions of its items among the inputs of the tower, its inputs, and ids of texts."""

    positions: np.ndarray
    inputs: tuple[np.ndarray, ...]
    rows: list[list[int]] | None = None


@dataclass(frozen=True)
class GraphTexts(ReadsTexts):
    """Texts, the longest first."""

    reader: TextReader
    joiner: str = " "

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Token ids and attention."""
        for positions, rows, arrays in collate_texts(self.reader, inputs, batch_size):
            yield GraphBatch(positions, arrays, rows)


@dataclass(frozen=True)
class GraphPassages(ReadsTexts):
    """Pairs of title and text, as DPR reads them, the longest first."""

    passages: PassageReader

    def read(self, document: Document) -> str:
        """The passage of a document."""
        return read_passage(document)

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Token ids, attention and token types."""
        for positions, arrays in self.passages.batches(inputs, batch_size):
            yield GraphBatch(positions, arrays)


@dataclass(frozen=True)
class GraphImages(ReadsImages):
    """Images in their order: paths, `archive.tar::member` or PIL images; the graph normalises their crops."""

    pixels: Pixels

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Crops; a skipped image is in no batch."""
        for positions, crops in read_crop_batches(self.pixels, inputs, batch_size, on_error):
            yield GraphBatch(positions, (crops,))


GraphItems: TypeAlias = GraphTexts | GraphPassages | GraphImages


class Graph:
    """A network in ONNX Runtime; threads may run it at once."""

    def __init__(self, data: bytes, where: str):
        require("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # As torch does; 0 are all cores.
        threads = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
        options.log_severity_level = 3  # warnings are about the graph's own shapes, errors are raised
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise CheckpointError(f"{where}: ONNX Runtime cannot load the graph ({describe_error(error)})") from error
        self.names = [node.name for node in self.session.get_inputs()]

    def __call__(self, inputs: tuple[np.ndarray, ...], first: Any) -> np.ndarray:
        """float32 [B, V] or [B, D], from the inputs of the graph; an error names `first`, an input of the tower."""
        [output] = self.session.run(None, dict(zip(self.names, inputs, strict=True)))
        if not np.isfinite(output).all():
            raise LexvlError(f"the model gave a number that is not finite for input {str(first)[:60]!r} or its batch")
        return np.asarray(output)


@dataclass(frozen=True)
class GraphTower:
    """One side of an encoder, whose network is a graph."""

    items: GraphItems
    graph: Graph

    def read(self, document: Document) -> str:
        """The input that a document gives this tower."""
        return self.items.read(document)

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower."""
        return self.items.read_topic(topic)

    def run(
        self, inputs: Sequence[Any], batch_size: int, progress: Progress, on_error: OnError
    ) -> Iterator[tuple[GraphBatch, np.ndarray]]:
        """The runs of the graph with their outputs."""
        for batch in self.items.batches(inputs, batch_size, on_error):
            yield batch, self.graph(batch.inputs, inputs[batch.positions[0]])
            progress(len(batch.positions))


def mark_kept_rows(weights: np.ndarray, own: np.ndarray | None, sparsifier: sparsify.Sparsifier) -> np.ndarray:
    """As `mark_kept`, of arrays."""
    positive = (weights > 0) & np.isfinite(weights)
    mask: np.ndarray = sparsify.mark_by_rule(sparsifier, mark_top_rows, positive, weights, own)
    return mask


def mark_top_rows(weights: np.ndarray, k: int) -> np.ndarray:
    """As `mark_top`, of an array."""
    k = min(k, weights.shape[1])
    if k <= 0:
        return np.zeros_like(weights, dtype=bool)
    last = weights.shape[1] - k
    boundary = np.partition(weights, last, axis=1)[:, last : last + 1]  # [B, 1]
    above, equal = weights > boundary, weights == boundary
    room = k - above.sum(axis=1, keepdims=True)  # [B, 1], >= 1
    equal &= equal.cumsum(axis=1) <= room
    mask: np.ndarray = above | equal
    return mask


@dataclass(frozen=True)
class LexicalGraphTower(sparsify.WeightsOfRows, GraphTower):
    """Inputs to lexical vectors: as `parts.towers.LexicalTower`, with a graph in place of the composition."""

    columns: TokenColumns
    sparsifier: sparsify.Sparsifier

    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def knows(self, text: str) -> bool:
        """Whether a token of the text is a term, so that more than associations finds documents."""
        [batch] = self.items.batches([text], 1)
        return batch.rows is None or len(self.columns.own(batch.rows)[0]) > 0

    def csr_rows(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(inputs)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(inputs)
        for batch, weights in self.run(inputs, batch_size, progress, on_error):  # [B, V]
            own = None
            if self.sparsifier.needs_own and batch.rows is not None:
                own = np.zeros(weights.shape, dtype=bool)
                for row, terms in enumerate(self.columns.own(batch.rows)):
                    own[row, terms] = True
            mask = mark_kept_rows(weights, own, self.sparsifier)
            for position, row_weights, keep in zip(batch.positions, weights, mask, strict=True):
                dims[position] = np.flatnonzero(keep).astype(np.int32)
                values[position] = row_weights[dims[position]]
        return sparsify.join_rows(dims, values, len(self.vocabulary))

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        result = np.empty((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for batch, weights in self.run(inputs, batch_size, silent, FAIL):
            result[batch.positions] = weights
        return result


@dataclass(frozen=True)
class DenseGraphTower(GraphTower):
    """Inputs to dense vectors: as `parts.towers.DenseTower`, with a graph that embeds."""

    width: int
    normalise: bool
    dimensions: int | None = None

    kind: ClassVar[Kind] = "dense"

    def __post_init__(self) -> None:
        sparsify.check_dimensions(self.dimensions, self.width)

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        features = np.zeros((len(inputs), self.width), dtype=np.float32)
        for batch, output in self.run(inputs, batch_size, progress, on_error):
            features[batch.positions] = output
        return sparsify.cut(features, self.dimensions, self.normalise)


class QueriesAlone(ReadsTexts):
    """In place of the side of documents where an export has none: the terms of the queries, and no vectors."""

    binary = False

    def __init__(self, query: Tower):
        self.query, self.kind = query, query.kind

    @property
    def vocabulary(self) -> Vocabulary:
        """The terms of a lexical encoder."""
        return as_lexical(self.query).vocabulary

    def weights(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError: there are no vectors."""
        raise UsageError("exported for queries alone; encode documents by torch, or export again without queries-only")

    dense_weights = vectors = weights


def load_exported(spec: EncoderSpec) -> Encoder:
    """Loads an exported encoder; errors as those of `load_encoder`. Options must be the export's own."""
    name, checkpoint = spec.name, spec.checkpoint
    command = f"lexvl export-onnx --encoder {name} --checkpoint {checkpoint or 'CHECKPOINT'} --output FOLDER"
    if checkpoint is None:
        raise UsageError(f"the runtime onnx needs a folder that was exported, as --checkpoint; `{command}` writes one")
    folder = find_checkpoint(checkpoint).folder
    if not (folder / EXPORT).is_file():
        raise CheckpointError(f"{checkpoint}: not exported for the runtime onnx; `{command}` does that")
    export = Export.read(folder)
    if export.encoder.name != name:
        raise CheckpointError(f"{folder}: an export of encoder {export.encoder.name!r}, expected one of {name!r}")
    if spec.device not in ("auto", "cpu"):
        raise UsageError(f"the runtime onnx computes on the CPU, --device is {spec.device}; leave it out, or use torch")
    if spec.tokenizer or spec.backbone_config:
        raise UsageError("an exported folder has its tokenizer and its network; leave the other folders out")
    exported = export.encoder.options
    for key, value in spec.options.items():  # of the command line, texts
        if key not in PLACES and str(exported.get(key)).lower() != str(value).lower():
            stored = f"{key}={exported[key]}" if key in exported else f"no {key}"
            option = f"{key}={value}"
            raise UsageError(f"{folder}: exported with {stored}, requested {option}; export again with --set {option}")
    load = partial(SideLoader, folder, export)
    try:
        query = load(export.query).build_tower()
        document = load(export.document).build_tower() if export.document else QueriesAlone(query)
    except Exception as error:  # any error of an entry of another content than this version writes
        if isinstance(error, MissingExtra) or (isinstance(error, CheckpointError) and str(folder) in str(error)):
            raise
        raise CheckpointError(f"{folder}: cannot be loaded ({describe_error(error)}); {REMEDY}") from error
    kind: Kind = "dense" if export.kind == "dense" else "impact"
    digest, options = export.encoder.checkpoint_digest, {**exported, "runtime": ONNX}
    return Encoder(name, kind, query, document, str(folder.resolve()), digest, options, "cpu")


@dataclass(frozen=True)
class SideLoader:
    """Builds one side from the files of an export."""

    folder: Path
    export: Export
    side: SideOfExport

    def build_tower(self) -> Tower:
        """The tower."""
        side = self.side
        if side.graph is None:
            weight = self.load_array(side.weight) if side.weight else None
            columns, joiner = self.load_columns(), side.reader["joiner"]
            return BagTower(self.load_reader(), columns, weight, joiner, side.normalise, side.topk, side.adds)
        items: GraphItems
        if side.reads == IMAGES:
            items = GraphImages(build_pixels(side.pixels))
        elif side.reads == PASSAGES:
            items = GraphPassages(PassageReader(self.load_reader()))
        else:
            items = GraphTexts(self.load_reader(), side.reader["joiner"])
        graph = Graph(self.read(side.graph), str(self.folder / side.graph))
        if self.export.kind == "dense":
            return DenseGraphTower(items, graph, side.width, side.normalise, side.dimensions)
        return LexicalGraphTower(items, graph, self.load_columns(), sparsify.Sparsifier(**side.sparsifier))

    def read(self, name: str) -> bytes:
        """A file, after comparing its digest."""
        path, digests = self.folder / name, self.export.files
        if name not in digests or Path(name).name != name:
            raise CheckpointError(f"{self.folder / EXPORT}: names the file {name!r:.80} without its digest; {REMEDY}")
        if path.exists() and not path.is_file():  # a pipe or a device may have no end
            raise CheckpointError(f"{path}: not a regular file; {REMEDY}")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
        if (digest := sha256(data).hexdigest()) != digests[name]:
            expected = f"expected {digests[name][:16]}, the exported file"
            raise CheckpointError(f"{path}: has SHA-256 {digest[:16]}, {expected}; {REMEDY}")
        return data

    def load_reader(self) -> TextReader:
        """The reader of texts."""
        from tokenizers import Tokenizer

        entry = self.side.reader
        tokenizer = Tokenizer.from_str(self.read(entry["tokenizer"]).decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        bare = BareTokenizer(tokenizer, entry["pad_id"], "left" if entry["cuts_start"] else "right")
        return TextReader(bare, **{key: entry[key] for key in READER_KEYS})

    def load_columns(self) -> TokenColumns:
        """The vocabulary, and the dimension of each token id; images have no token ids."""
        terms = self.read(VOCABULARY).decode().split("\n")[:-1]
        of_token = self.load_array(self.side.columns) if self.side.columns else np.empty(0, dtype=np.int64)
        return TokenColumns(Vocabulary(terms, str(self.folder / VOCABULARY)), of_token)

    def load_array(self, name: str) -> np.ndarray:
        """An array."""
        return np.asarray(np.load(io.BytesIO(self.read(name)), allow_pickle=False))


@dataclass(frozen=True)
class BareTokenizer:
    """A `tokenizers.Tokenizer` without transformers, which truncates and pads nothing; readers cut long texts."""

    backend_tokenizer: Any
    pad_token_id: int
    truncation_side: str = "right"
    is_fast: ClassVar[bool] = True

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens as texts."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def __call__(self, texts: Sequence[str], add_special_tokens: bool = True, **_: Any) -> Any:
        """The texts as `encodings`; the other arguments of transformers choose what it would return beside them."""
        encodings = self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return SimpleNamespace(encodings=encodings)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens a text, or a pair, gets."""
        return int(self.backend_tokenizer.num_special_tokens_to_add(pair))


# Ways to make a square, as an exported encoder names them.
CROPS: Mapping[str, type[Pixels]] = {cls.__name__: cls for cls in (Pixels, Crop, Squares)}


def describe_pixels(pixels: Pixels) -> dict[str, Any]:
    """The class and the fields of a way to make a square, for JSON."""
    if CROPS.get(type(pixels).__name__) is not type(pixels):
        raise UsageError(f"{type(pixels).__name__} has no name in JSON; those that have: {', '.join(CROPS)}")
    return {"kind": type(pixels).__name__, **asdict(pixels)}


def build_pixels(description: Mapping[str, Any]) -> Pixels:
    """The reverse of `describe_pixels`."""
    listed = description.items()
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in listed}
    kind = str(values.pop("kind", None))
    try:
        return CROPS[kind](**values)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"pixels of kind {kind!r:.40}: expected {', '.join(CROPS)} and their fields") from error
