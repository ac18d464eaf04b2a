"""An encoder of torch -> a folder that ONNX Runtime runs (see `loading`).

A graph is the whole network of a side, pooling and activation included; of images also the normalisation of pixels. It
ends before the sparsifier, whose rule is data. Batch size and length are free.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.encoder import Encoder, Tower
from lexvl_anserini.encoders.families.dpr import Passages
from lexvl_anserini.encoders.families.sentence import SentenceTower
from lexvl_anserini.encoders.loading import EXPORT
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import Images, ImageTower
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, is_fast
from lexvl_anserini.encoders.parts.towers import (
    Activation,
    Batch,
    Composition,
    DenseTower,
    Pooling,
    Texts,
    TextTower,
    pool_last,
    pool_max,
    pool_sum,
    pool_top_mean,
)
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra, UsageError, describe_error
from lexvl_anserini.ground.files import new_folder, write_json
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.records import VOCABULARY
from lexvl_plugins.onnx.loading import (
    IMAGES,
    PASSAGES,
    READER_KEYS,
    SIDES,
    TEXTS,
    Export,
    SideOfExport,
    describe_pixels,
)

# The encoders of which `export` can write at least one layout; the tests try all of the registry.
EXPORTED = (
    "bag-of-tokens", "bertlex", "dense-crossmodal", "dpr", "sentence", "splade", "svdr", "vdr", "vdr-crossmodal",
)  # fmt: skip
# Terms whose logits exist at once, [B, L, COLUMNS].
COLUMNS = 4096
# A batch that is not of size 1 in any dimension which may change: torch takes 1 as a constant.
EXAMPLE, LENGTH = 2, 7
MADE_WITH = ("lexvl-anserini", "onnx", "onnxscript", "torch", "transformers")

# Inputs of a graph -> [B, V] or [B, D].
Network = Callable[..., Tensor]


def export(model: Encoder, folder: Path, queries_only: bool = False) -> Export:
    """Writes an encoder, or its side of queries alone, as graphs; the folder appears whole."""
    sides = {name: getattr(model, name) for name in SIDES[: 1 if queries_only else 2]}
    writers = {name: choose_writer(model, tower) for name, tower in sides.items()}
    with new_folder(folder) as part:
        files: dict[str, str] = {}
        entries = {
            name: SideOfExport(writers[name](tower, GraphFiles(part, name, files))) for name, tower in sides.items()
        }
        if model.kind == "impact":
            terms = "".join(f"{term}\n" for term in model.vocabulary)
            GraphFiles(part, "", files).write(VOCABULARY, terms.encode())
        query, document = entries["query"], entries.get("document")
        exported = Export(model.identity(), model.kind, query, document, files, list_versions(MADE_WITH))
        write_json(part / EXPORT, exported.to_json())
    return exported


@dataclass(frozen=True)
class GraphFiles:
    """Writes the files of a side and notes their SHA-256 in `files`; what the other side has is not written again."""

    folder: Path
    side: str
    files: dict[str, str]

    def write(self, ending: str, data: bytes) -> str:
        """Writes a file; returns its name."""
        digest = sha256(data).hexdigest()
        if same := next((name for name, stored in self.files.items() if stored == digest), None):
            return same
        name = f"{self.side}.{ending}" if self.side else ending
        (self.folder / name).write_bytes(data)
        self.files[name] = digest
        return name

    def write_array(self, ending: str, array: np.ndarray) -> str:
        """Writes an array; returns the name of its file."""
        out = io.BytesIO()
        np.save(out, array, allow_pickle=False)
        return self.write(ending, out.getvalue())

    def write_texts(
        self,
        reader: TextReader,
        network: Network | None,
        columns: TokenColumns | None = None,
        joiner: str = " ",
        types: bool = False,
    ) -> dict[str, Any]:
        """Writes what a side that reads texts has, a graph of ids, attention and, where it has them, token types."""
        tokenizer = reader.tokenizer
        if not is_fast(tokenizer):
            raise UsageError(f"a {type(tokenizer).__name__} has no tokenizer.json, so this encoder cannot be exported")
        settings = {key: getattr(reader, key) for key in (*READER_KEYS, "pad_id")}
        settings |= {"joiner": joiner, "cuts_start": tokenizer.truncation_side == "left"}
        settings["tokenizer"] = self.write("tokenizer.json", tokenizer.backend_tokenizer.to_str().encode())
        entry: dict[str, Any] = {"reader": settings}
        if columns is not None:
            entry["columns"] = self.write_array("columns.npy", columns.of_token)
        if network is not None:
            ids = torch.full((EXAMPLE, LENGTH), reader.pad_id, dtype=torch.int64)
            inputs = {"ids": ids, "attention": torch.ones_like(ids)}
            inputs |= {"types": torch.zeros_like(ids)} if types else {}
            entry["graph"] = self.write("onnx", build_graph(network, inputs))
        return entry

    def write_images(self, pixels: Pixels, network: Network) -> dict[str, Any]:
        """Writes a side that reads images: its graph normalises crops, uint8 [B, R, R, 3]."""
        crops = torch.zeros(EXAMPLE, pixels.resolution, pixels.resolution, 3, dtype=torch.uint8)
        graph = build_graph(lambda crops: network(pixels.normalise(crops)), {"crops": crops})
        return {"reads": IMAGES, "pixels": describe_pixels(pixels), "graph": self.write("onnx", graph)}


def choose_writer(model: Encoder, tower: Tower) -> Callable[[Any, GraphFiles], dict[str, Any]]:
    """What writes a tower; a bag of tokens can be written for every encoder."""
    writers: Mapping[type, Callable[[Any, GraphFiles], dict[str, Any]]] = {
        BagTower: write_bag,
        DenseTower: write_dense,
        ImageTower: write_images,
        SentenceTower: write_sentences,
        TextTower: write_texts,
    }
    if type(tower) not in writers or (model.name not in EXPORTED and type(tower) is not BagTower):
        alone = "; of this one the queries alone can (--queries-only)" if type(model.query) is BagTower else ""
        raise UsageError(f"encoder {model.name!r} cannot be exported; those that can: {', '.join(EXPORTED)}{alone}")
    return writers[type(tower)]


def write_texts(tower: TextTower, out: GraphFiles) -> dict[str, Any]:
    """Writes a lexical tower of texts; returns its entry of export.json, as the functions below."""
    masks = tower.reader.padding != "max_length"

    def network(ids: Tensor, attention: Tensor) -> Tensor:
        return pool_hidden(tower.composition, (ids, attention), attention == 0 if masks else None)

    entry = {"reads": TEXTS, "sparsifier": asdict(tower.composition.sparsifier)}
    return entry | out.write_texts(tower.reader, network, tower.columns, tower.joiner)


def write_images(tower: ImageTower, out: GraphFiles) -> dict[str, Any]:
    """Writes a lexical tower of images."""
    entry = out.write_images(tower.pixels, lambda pixels: pool_hidden(tower.composition, (pixels,), None))
    return entry | {"sparsifier": asdict(tower.composition.sparsifier)}


def write_bag(tower: BagTower, out: GraphFiles) -> dict[str, Any]:
    """Writes a bag of tokens, which has no network."""
    entry = {"reads": TEXTS, "normalise": tower.normalise, "topk": tower.topk, "adds": tower.adds}
    if tower.weight is not None:
        entry["weight"] = out.write_array("weight.npy", tower.weight)
    return entry | out.write_texts(tower.reader, None, tower.columns, tower.joiner)


def write_dense(tower: DenseTower, out: GraphFiles) -> dict[str, Any]:
    """Writes a dense tower of texts, of passages or of images."""
    entry = {"width": tower.width, "normalise": tower.normalise, "dimensions": tower.dimensions}
    items, nowhere = tower.items, np.empty(0, dtype=np.int64)

    def network(*inputs: Tensor) -> Tensor:
        return tower.embed(Batch(nowhere, inputs))

    if type(items) is Images:
        return entry | out.write_images(items.pixels, network)
    if type(items) is Texts:
        return {"reads": TEXTS, **entry, **out.write_texts(items.reader, network)}
    if type(items) is Passages:
        return {"reads": PASSAGES, **entry, **out.write_texts(items.passages.reader, network, types=True)}
    raise UsageError(f"a dense tower of {type(items).__name__} cannot be exported")


def write_sentences(tower: SentenceTower, out: GraphFiles) -> dict[str, Any]:
    """Writes the side of a sentence-transformers model."""
    model: Any = tower.model
    names = [type(module).__name__ for module in model]
    if names[:2] != ["Transformer", "Pooling"] or set(names[2:]) - {"Dense", "Normalize"}:
        expected = "expected Transformer, Pooling, then Dense or Normalize"
        raise UsageError(f"a model of {', '.join(names)} cannot be exported; {expected}")
    prompt = (model.prompts or {}).get(tower.side) or ""
    if prompt and not getattr(model[1], "include_prompt", True):
        raise UsageError("a model whose pooling leaves the prompt out cannot be exported")

    def network(ids: Tensor, attention: Tensor) -> Tensor:
        features = {"input_ids": ids, "attention_mask": attention, "token_type_ids": torch.zeros_like(ids)}
        names = model.tokenizer.model_input_names
        vectors: Tensor = model({key: features[key] for key in features if key in names})["sentence_embedding"]
        return vectors

    width = model.get_embedding_dimension()
    entry = {"reads": TEXTS, "width": width, "normalise": tower.normalise, "dimensions": tower.dimensions}
    return entry | out.write_texts(TextReader(model.tokenizer, model.max_seq_length, prompt=prompt), network)


def pool_hidden(composition: Composition, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
    """As `LexicalTower.pool_batch`, with operations that a graph has; `masked` is bool [B, L]."""
    features = composition.head.transform(composition.backbone(*inputs))  # [B, L, D']
    matrix, bias = composition.head.matrix, composition.head.bias
    if isinstance(composition.pooling, partial) and composition.pooling.func is pool_top_mean:
        pool: Network = partial(_pool_mean, n=composition.pooling.keywords["n"])
    else:
        pools: Mapping[Pooling, Network] = {pool_max: _pool_max, pool_sum: _pool_sum, pool_last: _pool_last}
        pool = pools[composition.pooling]
    pieces = []
    for start in range(0, len(matrix), COLUMNS):
        logits = features @ matrix[start : start + COLUMNS].T  # [B, L, COLUMNS]
        if bias is not None:
            logits = logits + bias[start : start + COLUMNS]
        pieces.append(pool(logits, masked, composition.activation))
    weights = torch.cat(pieces, dim=1)  # [B, V]
    if not composition.normalise:
        return weights
    return weights / weights[:, : composition.unit_terms].norm(dim=1, keepdim=True).clamp(min=1e-12)


# The poolings of `parts.towers` without the writing in place that saves memory in torch:
# (logits [B, L, C], bool [B, L] of masked positions or None, activation) -> [B, C]


def _pool_max(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    return activation(_fill(logits, masked, -torch.inf).amax(dim=1))


def _pool_sum(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    return _fill(activation(logits), masked, 0.0).sum(dim=1)


def _pool_last(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    places = torch.arange(logits.shape[1], device=logits.device).expand(logits.shape[:2])
    if masked is not None:
        places = places.masked_fill(masked, -1)
    others = (places < places.amax(dim=1, keepdim=True)) | (places < 0)
    return _pool_max(logits, others, activation)


def _pool_mean(logits: Tensor, masked: Tensor | None, activation: Activation, n: int) -> Tensor:
    # Positions of -inf are added, so that every text has n.
    added = torch.full((1, n, 1), -torch.inf, device=logits.device).expand(logits.shape[0], n, logits.shape[2])
    top = torch.cat([_fill(logits, masked, -torch.inf), added], dim=1).topk(n, dim=1).values  # [B, n, C]
    present = top > -torch.inf
    # 0 in the place of -inf, because 0 * activation(-inf) may be no number.
    values = activation(torch.where(present, top, 0.0)) * present
    return values.sum(dim=1) / present.sum(dim=1).clamp(min=1)


def _fill(values: Tensor, masked: Tensor | None, filled: float) -> Tensor:
    return values if masked is None else values.masked_fill(masked[:, :, None], filled)


class NetworkModule(nn.Module):
    """A function of tensors as the module that the exporter expects."""

    def __init__(self, function: Network):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the function gives."""
        return self.function(*inputs)


def build_graph(network: Network, inputs: Mapping[str, Tensor]) -> bytes:
    """A network as an ONNX file, by the exporter of torch."""
    if not (find_spec("onnx") and find_spec("onnxscript")):
        raise MissingExtra("export-onnx", "onnx")
    free = torch.export.Dim.DYNAMIC  # of texts batch and length, of images the batch
    changing = [{0: free, 1: free} if tensor.dim() == 2 else {0: free} for tensor in inputs.values()]
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it warns that torchvision is missing
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                NetworkModule(network).eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["vectors"],
                dynamic_shapes={"inputs": tuple(changing)},
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            return program.model_proto.SerializeToString()
    except Exception as error:
        raise CheckpointError(f"torch cannot export this network ({describe_error(error)})") from error
    finally:
        log.setLevel(level)
