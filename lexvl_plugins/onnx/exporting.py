"""An encoder of torch -> a folder that ONNX Runtime runs (see `loading`).

A graph is the whole network of a side, pooling and activation included; of images also the normalisation of pixels. It
ends before the sparsifier, whose rule is data. Batch size and length are free.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.encoder import Encoder, Tower
from lexvl_anserini.encoders.families.sentence import SentenceTower
from lexvl_anserini.encoders.parts.bags import BagTower
from lexvl_anserini.encoders.parts.images.pixels import Pixels, describe_pixels
from lexvl_anserini.encoders.parts.images.vision import Images, ImageTower
from lexvl_anserini.encoders.parts.pooling import Activation, Pooling, masked_last, masked_max, masked_sum, top_mean
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, is_fast
from lexvl_anserini.encoders.parts.towers import Batch, Composition, DenseTower, Texts, TextTower
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra, UsageError, reason_of
from lexvl_anserini.ground.files import new_folder, write_json
from lexvl_anserini.ground.installed import versions_of
from lexvl_anserini.ground.vocabulary import VOCABULARY
from lexvl_plugins.onnx.loading import EXPORT, IMAGES, PASSAGES, SIDES, TEXTS, Export, SideOfExport

# The encoders of which `export` can write at least one layout; the tests try all of the registry.
EXPORTED = (
    "bag-of-tokens",
    "bertlex",
    "dense-crossmodal",
    "dpr",
    "sentence",
    "splade",
    "svdr",
    "vdr",
    "vdr-crossmodal",
)

# Terms whose logits exist at once, [B, L, COLUMNS].
COLUMNS = 4096

# A batch that is not of size 1 in any dimension which may change: torch takes 1 as a constant.
EXAMPLE, LENGTH = 2, 7

MADE_WITH = ("lexvl-anserini", "onnx", "onnxscript", "torch", "transformers")


class ExportedSide(NamedTuple):
    """A side to write: its entry, without names of files, its network, and its small files.

    network  inputs of the graph -> [B, V] or [B, D]; None for a bag of tokens
    inputs   an example of them, by name
    files    by the key of the entry that names them
    """

    entry: dict[str, Any]
    network: Callable[..., Tensor] | None
    inputs: Mapping[str, Tensor]
    files: Mapping[str, bytes]


def export(model: Encoder, folder: Path, queries_only: bool = False) -> Export:
    """Writes an encoder, or its side of queries alone, as graphs; the folder appears whole."""
    sides = {name: side_of(model, getattr(model, name)) for name in SIDES[: 1 if queries_only else 2]}
    if any(side.network for side in sides.values()):
        check_exporter()
    with new_folder(folder) as part:
        files: dict[str, str] = {}
        written = {name: SideOfExport(write_side(part, name, side, files)) for name, side in sides.items()}
        if model.kind == "impact":
            write(part, VOCABULARY, "".join(f"{term}\n" for term in model.vocabulary).encode(), files)
        query, document = written["query"], written.get("document")
        exported = Export(model.identity(), model.kind, query, document, files, versions_of(MADE_WITH))
        write_json(part / EXPORT, exported.to_json())
    return exported


def check_exporter() -> None:
    """Checks the packages that torch's exporter needs."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra("export-onnx", "onnx") from error


def side_of(model: Encoder, tower: Tower) -> ExportedSide:
    """What to write of a tower; a bag of tokens can be written for every encoder."""
    sides: Mapping[type, Callable[[Any], ExportedSide]] = {
        BagTower: bag_side,
        DenseTower: dense_side,
        ImageTower: image_side,
        SentenceTower: sentence_side,
        TextTower: text_side,
    }
    if type(tower) not in sides or (model.name not in EXPORTED and type(tower) is not BagTower):
        alone = "; of this one the queries alone can (--queries-only)" if type(model.query) is BagTower else ""
        raise UsageError(f"encoder {model.name!r} cannot be exported; those that can: {', '.join(EXPORTED)}{alone}")
    return sides[type(tower)](tower)


def text_side(tower: TextTower) -> ExportedSide:
    """A lexical tower of texts."""
    masks = tower.reader.padding != "max_length"

    def network(ids: Tensor, attention: Tensor) -> Tensor:
        return pooled(tower.composition, (ids, attention), attention == 0 if masks else None)

    entry = {"reads": TEXTS, "sparsifier": asdict(tower.composition.sparsifier)}
    return with_reader(entry, network, tower.reader, tower.columns, tower.joiner)


def image_side(tower: ImageTower) -> ExportedSide:
    """A lexical tower of images."""
    entry = {"reads": IMAGES, "sparsifier": asdict(tower.composition.sparsifier)}
    return of_images(entry, tower.pixels, lambda pixels: pooled(tower.composition, (pixels,), None))


def bag_side(tower: BagTower) -> ExportedSide:
    """A bag of tokens, which has no network."""
    entry = {"reads": TEXTS, "normalise": tower.normalise, "topk": tower.topk, "adds": tower.adds}
    side = with_reader(entry, None, tower.reader, tower.columns, tower.joiner)
    if tower.weight is None:
        return side
    return side._replace(files={**side.files, "weight": array_bytes(tower.weight)})


def dense_side(tower: DenseTower) -> ExportedSide:
    """A dense tower of texts, of passages or of images."""
    from lexvl_anserini.encoders.families.dpr import Passages

    entry = {"width": tower.width, "normalise": tower.normalise, "dimensions": tower.dimensions}
    items, nowhere = tower.items, np.empty(0, dtype=np.int64)

    def network(*inputs: Tensor) -> Tensor:
        return tower.embed(Batch(nowhere, inputs))

    if type(items) is Images:
        return of_images({"reads": IMAGES, **entry}, items.pixels, network)
    if type(items) is Texts:
        return with_reader({"reads": TEXTS, **entry}, network, items.reader)
    if type(items) is Passages:
        side = with_reader({"reads": PASSAGES, **entry}, network, items.passages.reader)
        return side._replace(inputs={**side.inputs, "types": torch.zeros(EXAMPLE, LENGTH, dtype=torch.int64)})
    raise UsageError(f"a dense tower of {type(items).__name__} cannot be exported")


def sentence_side(tower: SentenceTower) -> ExportedSide:
    """The side of a sentence-transformers model."""
    model: Any = tower.model
    names = [type(module).__name__ for module in model]
    if names[:2] != ["Transformer", "Pooling"] or set(names[2:]) - {"Dense", "Normalize"}:
        raise UsageError(
            f"a model of {', '.join(names)} cannot be exported; expected Transformer, Pooling, then Dense or Normalize"
        )
    prompt = (model.prompts or {}).get(tower.side) or ""
    if prompt and not getattr(model[1], "include_prompt", True):
        raise UsageError("a model whose pooling leaves the prompt out cannot be exported")

    def network(ids: Tensor, attention: Tensor) -> Tensor:
        features = {"input_ids": ids, "attention_mask": attention, "token_type_ids": torch.zeros_like(ids)}
        names = model.tokenizer.model_input_names
        vectors: Tensor = model({key: features[key] for key in features if key in names})["sentence_embedding"]
        return vectors

    reader = TextReader(model.tokenizer, model.max_seq_length, prompt=prompt)
    width = model.get_embedding_dimension()
    entry = {"reads": TEXTS, "width": width, "normalise": tower.normalise, "dimensions": tower.dimensions}
    return with_reader(entry, network, reader)


def with_reader(
    entry: dict[str, Any],
    network: Callable[..., Tensor] | None,
    reader: TextReader,
    columns: TokenColumns | None = None,
    joiner: str = " ",
) -> ExportedSide:
    """A side that reads texts."""
    tokenizer = reader.tokenizer
    if not is_fast(tokenizer):
        raise UsageError(f"a {type(tokenizer).__name__} cannot be exported; only tokenizers with a tokenizer.json can")
    settings = {key: getattr(reader, key) for key in ("max_length", "padding", "specials", "limit", "prompt", "pad_id")}
    settings |= {"joiner": joiner, "cuts_start": tokenizer.truncation_side == "left"}
    ids = torch.full((EXAMPLE, LENGTH), reader.pad_id, dtype=torch.int64)
    attention = torch.ones_like(ids)
    files = {"tokenizer": tokenizer.backend_tokenizer.to_str().encode()}
    if columns is not None:
        files["columns"] = array_bytes(columns.of_token)
    return ExportedSide({**entry, "reader": settings}, network, {"ids": ids, "attention": attention}, files)


def of_images(entry: dict[str, Any], pixels: Pixels, network: Callable[[Tensor], Tensor]) -> ExportedSide:
    """A side that reads images: its graph normalises crops, uint8 [B, R, R, 3]."""
    crops = torch.zeros(EXAMPLE, pixels.resolution, pixels.resolution, 3, dtype=torch.uint8)
    return ExportedSide(
        {**entry, "pixels": describe_pixels(pixels)},
        lambda crops: network(pixels.normalise(crops)),
        {"crops": crops},
        {},
    )


def pooled(composition: Composition, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
    """As `LexicalTower.pooled`, with operations that a graph has; `masked` is bool [B, L]."""
    features = composition.head.transform(composition.backbone(*inputs))  # [B, L, D']
    matrix, bias, pooling = composition.head.matrix, composition.head.bias, pooling_of(composition)
    pieces = []
    for start in range(0, len(matrix), COLUMNS):
        logits = features @ matrix[start : start + COLUMNS].T  # [B, L, COLUMNS]
        if bias is not None:
            logits = logits + bias[start : start + COLUMNS]
        pieces.append(pooling(logits, masked, composition.activation))
    weights = torch.cat(pieces, dim=1)  # [B, V]
    if not composition.normalise:
        return weights
    return weights / weights[:, : composition.unit_terms].norm(dim=1, keepdim=True).clamp(min=1e-12)


# (logits [B, L, C], bool [B, L] of masked positions or None, activation) -> [B, C]
GraphPooling = Callable[[Tensor, Tensor | None, Activation], Tensor]


def pooling_of(composition: Composition) -> GraphPooling:
    """The pooling of a composition, without the writing in place that saves memory in torch."""
    pooling = composition.pooling
    if isinstance(pooling, partial) and pooling.func is top_mean:
        return partial(graph_mean, n=pooling.keywords["n"])
    poolings: Mapping[Pooling, GraphPooling] = {masked_max: graph_max, masked_sum: graph_sum, masked_last: graph_last}
    return poolings[pooling]


def graph_max(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    """As `masked_max`."""
    return activation(without(logits, masked, -torch.inf).amax(dim=1))


def graph_sum(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    """As `masked_sum`."""
    return without(activation(logits), masked, 0.0).sum(dim=1)


def graph_last(logits: Tensor, masked: Tensor | None, activation: Activation) -> Tensor:
    """As `masked_last`."""
    places = torch.arange(logits.shape[1], device=logits.device).expand(logits.shape[:2])
    if masked is not None:
        places = places.masked_fill(masked, -1)
    others = (places < places.amax(dim=1, keepdim=True)) | (places < 0)
    return graph_max(logits, others, activation)


def graph_mean(logits: Tensor, masked: Tensor | None, activation: Activation, n: int) -> Tensor:
    """As `top_mean`; positions of -inf are added, so that every text has n."""
    added = torch.full((1, n, 1), -torch.inf, device=logits.device).expand(logits.shape[0], n, logits.shape[2])
    top = torch.cat([without(logits, masked, -torch.inf), added], dim=1).topk(n, dim=1).values  # [B, n, C]
    present = top > -torch.inf
    # 0 in the place of -inf, because 0 * activation(-inf) may be no number.
    values = activation(torch.where(present, top, 0.0)) * present
    return values.sum(dim=1) / present.sum(dim=1).clamp(min=1)


def without(values: Tensor, masked: Tensor | None, filled: float) -> Tensor:
    """The values [B, L, C] with another number at masked positions."""
    return values if masked is None else values.masked_fill(masked[:, :, None], filled)


class Network(nn.Module):
    """A function of tensors as the module that the exporter asks for."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the function gives."""
        return self.function(*inputs)


def graph_bytes(network: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> bytes:
    """A network as an ONNX file, by the exporter of torch."""
    import logging
    import warnings

    free = torch.export.Dim.DYNAMIC  # of texts batch and length, of images the batch
    changing = [{0: free, 1: free} if tensor.dim() == 2 else {0: free} for tensor in inputs.values()]
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it warns that torchvision is missing
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Network(network).eval(),
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
        raise CheckpointError(f"torch cannot export this network ({reason_of(error)})") from error
    finally:
        log.setLevel(level)


def write_side(folder: Path, name: str, side: ExportedSide, files: dict[str, str]) -> dict[str, Any]:
    """Writes the files of a side, notes their digests in `files`, and returns its entry with their names."""
    entry = {key: dict(value) if isinstance(value, dict) else value for key, value in side.entry.items()}
    endings = {"tokenizer": "tokenizer.json", "columns": "columns.npy", "weight": "weight.npy"}
    for key, data in side.files.items():
        place = entry["reader"] if key == "tokenizer" else entry
        place[key] = write(folder, f"{name}.{endings[key]}", data, files)
    if side.network is not None:
        entry["graph"] = write(folder, f"{name}.onnx", graph_bytes(side.network, side.inputs), files)
    return entry


def write(folder: Path, name: str, data: bytes, files: dict[str, str]) -> str:
    """Writes a file unless one with the same bytes is there; returns the name of that which has them."""
    digest = sha256(data).hexdigest()
    same = next((other for other, stored in files.items() if stored == digest), None)
    if same is not None:
        return same
    (folder / name).write_bytes(data)
    files[name] = digest
    return name


def array_bytes(array: np.ndarray) -> bytes:
    """An array as a file of numpy."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
