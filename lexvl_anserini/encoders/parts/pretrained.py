"""Towers over networks that `train` writes: pretrained ones, of which a checkpoint has the changes, or its own.

An entry with `backbone` in config.json names the network: `checkpoint`, a packaged name or a folder in the checkpoint
itself, and `digest`, that of the weights which the checkpoint was trained over. Other weights are refused: they would
give vectors that mean nothing. Without `backbone`, all weights of the network are in the checkpoint, and the entry of
the images has the shape of a `PatchTransformer`.

STAIR, LexLIP and FDT are a `NetworkPair`: states up to the family's heads. Their config.json has an entry per side,
`encoder_q` of texts and `encoder_p` of images, of the types FAMILY_text and FAMILY_image. `terms` in the entry of the
texts names the file with the terms that are dimensions; with `vocabulary: tokens` instead, all tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, gelu

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint, resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import build, complain, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import (
    build_bert,
    load_backbone,
    read_config,
    read_position_limit,
    take_hidden_states,
)
from lexvl_anserini.encoders.parts.images.image_backbones import (
    PUBLISHED,
    EfficientNetLite,
    ImageBackbone,
    load_image_backbone,
)
from lexvl_anserini.encoders.parts.images.pixels import Pixels, place_on_grid
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    TokenColumns,
    load_tokenizer,
    make_all_columns,
    make_term_columns,
)
from lexvl_anserini.encoders.parts.towers import Backbone, Head
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra, UsageError
from lexvl_anserini.ground.records import Vocabulary

# The key of an embedding matrix with this ending has rows that follow those of the pretrained matrix.
ADDED = ".added"

# Images of one forward pass on a CPU. The largest maps of EfficientNet-Lite2 then have 26 MB; the C library keeps and
# reuses blocks up to 32 MiB.
PIECE = 4


# Values of fields that the published configurations omit.
VISION_DEFAULTS = {"resolution": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12}


def read_entry(
    checkpoint: Checkpoint, config: Mapping[str, Any], prefix: str, types: tuple[str, ...]
) -> Mapping[str, Any]:
    """The entry of config.json for one side."""
    entry = config.get(prefix) or {}
    if entry.get("type") not in types:
        raise CheckpointError(f"{checkpoint.folder}: {prefix} is of type {entry.get('type')!r}, expected {types[0]!r}")
    return entry


def read_vision_shape(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the PatchTransformer that an entry of config.json describes."""
    shape = {key: default if entry.get(key) is None else entry[key] for key, default in VISION_DEFAULTS.items()}
    return shape | ({"stem": entry["stem"]} if entry.get("stem") else {})


class StatesHead(nn.Module):
    """f = ln(W s): states of a network [B, P, before] in the width of a vocabulary's rows, [B, P, width]."""

    def __init__(self, before: int, width: int):
        super().__init__()
        self.linear = nn.Linear(before, width, bias=False)
        self.ln = nn.LayerNorm(width)
        self.width = width

    def forward(self, states: Tensor) -> Tensor:  # [B, P, before]
        """Features [B, P, width]."""
        features: Tensor = self.ln(self.linear(states))
        return features


class VectorHead(nn.Sequential):
    """v = W_2 gelu(W_1 s + b_1) + b_2: the mean state of a network [B, before] as a vector [B, dimensions]."""

    def __init__(self, before: int, hidden: int, dimensions: int):
        super().__init__(nn.Linear(before, hidden), nn.GELU(), nn.Linear(hidden, dimensions))
        self.hidden, self.dimensions = hidden, dimensions


class TokenHead(nn.Module):
    """TRANSFORM of equation 4 (dense, GELU, LayerNorm), a bridge to another width, and the bias b; e are embeddings."""

    def __init__(self, width: int, embedding: int, vocab_size: int, bridge: bool, eps: float):
        super().__init__()
        inner = width if bridge else embedding
        self.dense = nn.Linear(width, inner)
        self.norm = nn.LayerNorm(inner, eps=eps)
        self.bridge = nn.Linear(inner, embedding, bias=False) if inner != embedding else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:  # [B, L, D]
        """Transformed states [B, L, D']; the logits are their products with e, plus b."""
        return self.bridge(self.norm(gelu(self.dense(hidden))))


class Standard(nn.Module):
    """s' = (s - mean) / std, number by number: layers of a network have very different ranges."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:  # [B, P, D]
        """States [B, P, D]."""
        return (states - self.mean) / self.std


def cells(maps: Sequence[Tensor], side: int) -> Tensor:
    """Maps [B, C, H, W] of several layers, averaged to side x side cells: [B, side^2, sum of C], row by row."""
    return torch.cat([adaptive_avg_pool2d(layer, side).flatten(2) for layer in maps], dim=1).transpose(1, 2)


def windows(maps: Sequence[Tensor], grid: int) -> Tensor:
    """Means of a cell's size around all positions of the last layer's grid, as in training: [B, side^2, sum of C]."""
    side = maps[-1].shape[2]
    around = -(-side // grid) // 2
    pooled = cells(maps, side).unflatten(1, (side, side)).permute(0, 3, 1, 2)
    means = avg_pool2d(pooled, 2 * around + 1, stride=1, padding=around, count_include_pad=False)
    return means.flatten(2).transpose(1, 2)


def all_cells(maps: Sequence[Tensor], grid: int) -> Tensor:
    """The mean of maps and grid x grid averaged cells, [B, 1 + grid^2, D], the mean first."""
    return torch.cat([cells(maps, side) for side in (1, grid)], dim=1)


class CellsOf(nn.Module):
    """A network as an image tower reads it: standardised cells; `fine` gives its whole grid, for maps.

    On a CPU it computes `PIECE` images at a time: larger maps would each be new memory from the system.
    """

    def __init__(self, network: nn.Module, grid: int, standard: Standard):
        super().__init__()
        self.network, self.grid, self.standard = network, grid, standard

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, R, R] to cells [B, 1 + grid^2, D]."""
        return self._pool(pixels, all_cells)

    def fine(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, R, R] to `windows` [B, P, D]."""
        return self._pool(pixels, windows)

    def _pool(self, pixels: Tensor, pool: Callable[[Sequence[Tensor], int], Tensor]) -> Tensor:
        # A graph that is exported has no loop over pieces: its runtime reuses its memory.
        whole = pixels.device.type != "cpu" or torch.compiler.is_exporting()
        pieces = (pixels,) if whole else pixels.split(PIECE)
        pooled = torch.cat([pool(list_layers(self.network, piece), self.grid) for piece in pieces])
        standardised: Tensor = self.standard(pooled)
        return standardised


def list_layers(network: nn.Module, pixels: Tensor) -> list[Tensor]:
    """The maps [B, C, H, W] of a network's layers; of one that gives states alone, these as one layer."""
    if isinstance(network, EfficientNetLite):
        return network.layers(pixels)
    states: Tensor = network(pixels)
    return [place_on_grid(states).permute(0, 3, 1, 2)]


def load_pretrained_image(
    checkpoint: Checkpoint, entry: Mapping[str, Any], changes: Mapping[str, Tensor]
) -> ImageBackbone:
    """The image network of a side, with the weights that training changed (`own`, keys of the network)."""
    name, digest = read_named_backbone(checkpoint, entry)
    place = name if name in PUBLISHED else str(resolve_inside(checkpoint.folder, name, "config.json"))
    with name_needed_extra(checkpoint):
        backbone = load_image_backbone(place)
    check_digest(checkpoint, name, digest, backbone.digest)
    changed = {**backbone.network.state_dict(), **changes}
    load_strictly(backbone.network, changed, f"{checkpoint.folder}: backbone")
    return backbone


def build_cells(
    backbone: ImageBackbone,
    entry: Mapping[str, Any],
    side_weights: Mapping[str, Tensor],
    where: str,
    device: torch.device,
) -> CellsOf:
    """The cells of a side from its network, as it encodes fastest, and its keys `standard.*`."""
    grid = entry.get("grid")
    if type(grid) is not int or grid < 1:
        raise CheckpointError(f"{where}: grid {grid!r:.80}, expected a number of cells")
    standard = Standard(backbone.width)
    load_strictly(standard, take_below(side_weights, "standard."), f"{where}.standard")
    return CellsOf(fill_folded(backbone.network), grid, standard).eval().to(device)


def fill_folded(network: nn.Module) -> nn.Module:
    """The network, changed to compute as fast as it can where it does not train."""
    return network.fold() if isinstance(network, EfficientNetLite) else network


def load_pretrained_bert(
    checkpoint: Checkpoint, entry: Mapping[str, Any], changes: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of a side's BERT: those of the network that the entry names, with `own` instead or added."""
    name, digest = read_named_backbone(checkpoint, entry)
    with name_needed_extra(checkpoint):
        weights, actual = read_bert_weights(find_named_part(checkpoint, name))
    check_digest(checkpoint, name, digest, actual)
    return add_changes(weights, changes, str(checkpoint.folder))


def read_bert_weights(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], str]:
    """The weights of a BERT without its heads, and the SHA-256 (hex) of the files that they are read from."""
    model, _ = load_backbone(checkpoint, torch.device("cpu"))
    if model.config.model_type != "bert":
        raise CheckpointError(f"{checkpoint.folder}: a {model.config.model_type} model, expected a BERT")
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith("pooler.")}
    return weights, checkpoint.digest()


def add_changes(weights: Mapping[str, Tensor], changes: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Weights with those of `own` in their place, or, with the ending `ADDED`, after their rows."""
    changed = dict(weights)
    for key, value in changes.items():
        if not key.endswith(ADDED):
            changed[key] = value
            continue
        base = changed.get(key.removesuffix(ADDED))
        if base is None or base.shape[1:] != value.shape[1:]:
            expected = "no such matrix" if base is None else f"rows of {list(base.shape[1:])}"
            complain(where, (), (), [f"{key} {list(value.shape)}, expected {expected}"])
        else:
            changed[key.removesuffix(ADDED)] = torch.cat([base, value.to(base.dtype)])
    return changed


@contextmanager
def name_needed_extra(checkpoint: Checkpoint) -> Iterator[None]:
    """Names the extra of a packaged checkpoint, which installs all its networks, where one is missing."""
    try:
        yield
    except MissingExtra:
        packaged = PACKAGED.get(checkpoint.reference)
        if packaged is None:
            raise
        raise MissingExtra(f"the checkpoint {checkpoint.reference!r}", packaged.extra) from None


def read_named_backbone(checkpoint: Checkpoint, entry: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the digest of the network that an entry of config.json names."""
    backbone = entry.get("backbone")
    name, digest = (backbone.get(key) if isinstance(backbone, Mapping) else None for key in ("checkpoint", "digest"))
    if not isinstance(name, str) or not isinstance(digest, str):
        where = f"{checkpoint.folder}/config.json"
        raise CheckpointError(f"{where}: backbone {backbone!r:.80}, expected checkpoint and digest")
    return name, digest


def find_named_part(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """A packaged checkpoint, or a folder in the checkpoint itself."""
    if name in PACKAGED:
        return find_checkpoint(name)
    folder = resolve_inside(checkpoint.folder, name, "config.json")
    return Checkpoint(str(folder), folder)


def check_digest(checkpoint: Checkpoint, name: str, expected: str, actual: str) -> None:
    """Compares the digest of a network with the one that a checkpoint was trained over."""
    if actual != expected:
        digests = f"SHA-256 {expected[:16]}, found {actual[:16]}"
        raise CheckpointError(
            f"{checkpoint.reference}: was trained over {name} with {digests}; install the version that its extra names"
        )


def load_states_head(side_weights: Mapping[str, Tensor], before: int, where: str, device: torch.device) -> StatesHead:
    """The head of a side from its keys `head.*`."""
    weights = take_below(side_weights, "head.")
    matrix = weights.get("linear.weight")
    head = StatesHead(before, matrix.shape[0] if matrix is not None and matrix.dim() == 2 else before)
    load_strictly(head, weights, f"{where}.head")
    return head.eval().to(device)


def load_vocabulary_rows(
    weights: Mapping[str, Tensor], side: str, size: int, width: int, where: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows of the vocabulary that both sides share, [size, width], and the bias of each term on `side`, [size]."""
    shapes = {"encoder_p.proj": [size, width], f"{side}.bias": [size]}
    actual = {key: list(weights[key].shape) for key in shapes if key in weights}
    wrong = [f"{key} {shape}, expected {shapes[key]}" for key, shape in actual.items() if shape != shapes[key]]
    complain(where, shapes.keys() - actual, (), wrong)
    rows, bias = (weights[key].float().to(device) for key in shapes)
    return rows, bias


def load_vector_head(side_weights: Mapping[str, Tensor], before: int, where: str, device: torch.device) -> VectorHead:
    """The head of a dense side from its keys `head.*`."""
    weights = take_below(side_weights, "head.")
    shapes = [weights[key].shape for key in ("0.weight", "2.weight") if key in weights and weights[key].dim() == 2]
    hidden, dimensions = (shapes[0][0], shapes[1][0]) if len(shapes) == 2 else (before, before)
    head = VectorHead(before, hidden, dimensions)
    load_strictly(head, weights, f"{where}.head")
    return head.eval().to(device)


def find_dense_pair(checkpoint: Checkpoint, **of_reference: Any) -> tuple[Checkpoint, Vocabulary] | None:
    """The dense pair of a checkpoint and its terms; None for one of the reference, which alone has `of_reference`."""
    if checkpoint.file is not None or not (checkpoint.folder / "config.json").is_file():
        return None
    config = checkpoint.config()
    if "backbone" not in config:
        return None
    if options := [name for name, value in of_reference.items() if value is not None]:
        raise UsageError(f"{', '.join(options)}: {checkpoint.reference} names its own dense pair")
    name, digest = read_named_backbone(checkpoint, config)
    pair = find_named_part(checkpoint, name)
    check_digest(checkpoint, name, digest, pair.digest())
    path = resolve_inside(checkpoint.folder, str(config.get("terms")), f"{checkpoint.folder}/config.json")
    return pair, Vocabulary.read(path)


TEXT, IMAGE = "encoder_q", "encoder_p"
# The value of `vocabulary` where all tokens are dimensions.
TOKENS = "tokens"
# The weights of a side that are its network's, by the beginning of their keys.
NETWORKS = (f"{TEXT}.bert_model.", f"{IMAGE}.backbone.", f"{IMAGE}.standard.")
# The epsilon of the layer before the vocabulary, as in BERT's head.
HEAD_EPS = 1e-12


class NetworkPair(NamedTuple):
    """The two sides up to their heads."""

    where: str  # names the checkpoint in errors
    config: Mapping[str, Any]
    text: Backbone  # token ids and attention [B, L] -> states [B, L, D]
    image: CellsOf  # pixels [B, 3, R, R] -> standardised cells [B, 1 + grid^2, D']
    widths: Mapping[str, int]  # D and D' by side
    reader: TextReader
    pixels: Pixels
    columns: TokenColumns | None  # the dimension of each token; None where dimensions are no terms
    heads: Mapping[str, Tensor]  # all weights but those of the networks


def is_pair(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has this layout, and not that of the reference."""
    if checkpoint.file is not None or not (checkpoint.folder / "config.json").is_file():
        return False
    return {TEXT, IMAGE} <= checkpoint.config().keys()


def read_pair(source: Source, checkpoint: Checkpoint, family: str, max_length: int | None = None) -> NetworkPair:
    """The sides of a checkpoint of a family; `max_length` replaces the checkpoint's number of tokens per text."""
    config, weights, where = checkpoint.config(), read_weights(checkpoint.folder), str(checkpoint.folder)
    texts, images = (read_entry(checkpoint, config, side, (name,)) for side, name in list_types(family).items())
    if missing := [key for key in ("model_id", "max_len") if key not in texts]:
        raise CheckpointError(f"{where}/config.json: {TEXT} lacks {', '.join(missing)}")
    complain(where, (), [key for key in weights if key.partition(".")[0] not in (TEXT, IMAGE)], ())
    folder = resolve_inside(checkpoint.folder, texts["model_id"], f"{where}/config.json")
    bert_config = read_config(folder)
    tokenizer = load_tokenizer(source.tokenizer_folder(folder), bert_config.vocab_size)
    of_bert = take_below(weights, NETWORKS[0])
    if "backbone" in texts:
        of_bert = load_pretrained_bert(checkpoint, texts, of_bert)
    bert = build_bert(bert_config, of_bert, f"{where}: {TEXT}", source.device)
    network, pixels, width = load_image_network(checkpoint, images, weights, source.device)
    columns = make_all_columns(tokenizer) if texts.get("vocabulary") == TOKENS else None
    if listed := texts.get("terms"):
        path = resolve_inside(checkpoint.folder, listed, f"{where}/config.json")
        columns = make_term_columns(tokenizer, Vocabulary.read(path), str(path))
    reader = TextReader(tokenizer, texts["max_len"], limit=read_position_limit(bert_config)).with_max_length(max_length)
    heads = {key: value for key, value in weights.items() if not key.startswith(NETWORKS)}
    widths = {TEXT: bert_config.hidden_size, IMAGE: width}
    return NetworkPair(where, config, take_hidden_states(bert), network, widths, reader, pixels, columns, heads)


def list_types(family: str) -> dict[str, str]:
    """The types of both sides' entries of a family, which is the name of its encoder."""
    name = family.replace("-", "_")
    return {TEXT: f"{name}_text", IMAGE: f"{name}_image"}


def load_image_network(
    checkpoint: Checkpoint, entry: Mapping[str, Any], weights: Mapping[str, Tensor], device: torch.device
) -> tuple[CellsOf, Pixels, int]:
    """The cells of images, how an image becomes pixels, and the width of a cell."""
    where, side_weights = f"{checkpoint.folder}: {IMAGE}", take_below(weights, f"{IMAGE}.")
    of_network = take_below(side_weights, "backbone.")
    if "backbone" in entry:
        backbone = load_pretrained_image(checkpoint, entry, of_network)
    else:
        shape, described = read_vision_shape(entry), f"{checkpoint.folder}/config.json: {IMAGE}"
        network = build(lambda: PatchTransformer(**shape), of_network, described)
        backbone = make_image_backbone(network, shape["resolution"])
        load_strictly(backbone.network, of_network, f"{where}.backbone")
    return build_cells(backbone, entry, side_weights, where, device), backbone.pixels, backbone.width


def make_image_backbone(network: PatchTransformer, resolution: int) -> ImageBackbone:
    """A patch transformer whose weights no package and no folder has."""
    return ImageBackbone("", network.eval(), Pixels(resolution), network.ln_post.normalized_shape[0], "")


def build_token_heads(pair: NetworkPair, device: torch.device) -> tuple[Head, Head]:
    """The heads of texts and of images; a text side that does not share the rows `encoder_p.proj` has its own."""
    if pair.columns is None:
        raise CheckpointError(f"{pair.where}/config.json: {TEXT} has no terms")
    text_rows = f"{TEXT}.proj" if f"{TEXT}.proj" in pair.heads else f"{IMAGE}.proj"
    known = (f"{TEXT}.head.", f"{IMAGE}.head.", f"{IMAGE}.proj", text_rows)
    complain(pair.where, (), [key for key in pair.heads if not key.startswith(known)], ())
    size = len(pair.columns.vocabulary)
    heads = []
    for side, key in ((TEXT, text_rows), (IMAGE, f"{IMAGE}.proj")):
        rows = pair.heads.get(key)
        if rows is None or rows.dim() != 2 or len(rows) != size:
            raise CheckpointError(f"{pair.where}: {key} is missing or has not {size} rows, one per term")
        head = TokenHead(pair.widths[side], rows.shape[1], size, bridge=False, eps=HEAD_EPS)
        load_strictly(head, take_below(pair.heads, f"{side}.head."), f"{pair.where}: {side}.head")
        head.eval().to(device)
        heads.append(Head(head, rows.float().to(device), head.bias.detach()))
    return heads[0], heads[1]


def find_companions(source: Source, checkpoint: Checkpoint, model_id: str) -> tuple[Any, Path]:
    """A backbone's configuration and tokenizer; `model_id` is relative to the checkpoint or its parent, or a hub id."""
    import transformers

    near = [checkpoint.folder, checkpoint.folder / model_id, checkpoint.folder.parent / model_id]
    if source.backbone_config is not None:
        config = read_config(find_checkpoint(source.backbone_config, weights=False).folder)
    elif local := [folder for folder in near[1:] if (folder / "config.json").is_file()]:
        config = read_config(local[0])
    elif model_id == "bert-base-uncased":
        config = transformers.BertConfig()  # its defaults are bert-base-uncased
    else:
        config = read_config(find_checkpoint(model_id, weights=False).folder)
    return config, source.tokenizer_folder(*near, default=model_id)
