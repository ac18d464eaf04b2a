"""FDT: sparse weights over a learned codebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.clip_layout import (
    NO_MERGES,
    ClipShape,
    build_open_clip,
    build_open_texts,
    build_swin,
    find_merges,
    is_swin,
    run_config,
    run_entry,
)
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_contents, take_below
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.encoders.parts.images.pixels import Pixels, make_crop
from lexvl_anserini.encoders.parts.images.vision import ImageTower, PatchStates
from lexvl_anserini.encoders.parts.pretrained import IMAGE, TEXT, is_pair, read_pair
from lexvl_anserini.encoders.parts.sparsify import keep_positive, mark_top
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.encoders.parts.towers import (
    Activation,
    Backbone,
    Batch,
    Composition,
    DenseTower,
    Direction,
    Head,
    LexicalTower,
    Pooling,
    TextTower,
    compute_decay,
    in_direction,
    pool_max,
)
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError, UsageError
from lexvl_anserini.ground.records import Vocabulary

# Folder and files of the weights of a training run.
RUN_FOLDER, RUN_FILES = "checkpoints", "ckpt_*.pth.tar"

# Keys outside of the two towers; the reference does not use `logit_scale_sd`.
CODEBOOK = "space_dict"
OTHERS = (CODEBOOK, "logit_scale_sd")
QUERY_MAPS = {"text": "txt_query_model.", "image": "img_query_model."}

# The settings from which the temperature is computed.
DECAY = ("org_t", "sd_T_decay_iter", "sd_T_decay_w", "sd_T_min")


def sparsemax(logits: Tensor) -> Tensor:  # [B, K]
    """Euclidean projection of each row to the simplex: exact zeros, rows sum to 1 (Martins and Astudillo, 2016)."""
    shifted = logits - logits.amax(dim=1, keepdim=True)
    descending = shifted.sort(dim=1, descending=True).values
    sums = descending.cumsum(dim=1)
    ranks = torch.arange(1, logits.shape[1] + 1, device=logits.device, dtype=logits.dtype)
    support = (1 + ranks * descending > sums).sum(dim=1, keepdim=True)  # [B, 1], >= 1
    threshold = (sums.gather(1, support - 1) - 1) / support
    return (shifted - threshold).clamp(min=0)


# Functions from relevances [B, K] to weights, by the name in the configuration (`att_func_type`).
ATTENTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": sparsemax,
    "softmax": partial(torch.softmax, dim=1),
    "sigmoid": torch.sigmoid,
}


def pool_floored_max(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """Max over positions, where a masked one is 0: the reference multiplies padding by 0."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, 0.0)
    return activation(logits.amax(dim=1))


def pool_floored_mean(logits: Tensor, masked: Tensor, activation: Activation, positions: int = 1) -> Tensor:
    """Sum over positions, where a masked one is 0, by all `positions` of the model; activations are linear."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, 0.0)
    return activation(logits.sum(dim=1)) / positions


POOLINGS: Mapping[str, Callable[[int], Any]] = {
    "max": lambda positions: pool_floored_max,
    "sum": lambda positions: pool_floored_mean,
    "mean": lambda positions: partial(pool_floored_mean, positions=positions),
}


@dataclass(frozen=True)
class Grounding:
    """From relevances to weights [B, K], and from weights to the vector of the index; options as of `load_fdt`."""

    attention: Callable[[Tensor], Tensor]
    topk: int | None = None
    threshold: float = 0.0
    normalise: bool = True

    def prune(self, weights: Tensor) -> Tensor:
        """The vectors of the index, [B, K], from weights [B, K]."""
        if self.topk is not None:
            weights = weights * mark_top(weights, self.topk)
        if self.threshold:
            weights = weights * (weights >= self.threshold * weights.amax(dim=1, keepdim=True))
        return nn.functional.normalize(weights, dim=1) if self.normalise else weights


class QueryMap(nn.Module):
    """States [B, L, D] -> queries [B, L, d]; its part has the name in checkpoints."""

    def __init__(self, states: int, width: int):
        super().__init__()
        self.q_map = nn.Sequential(
            nn.LayerNorm(states), nn.Linear(states, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Position by position."""
        queries: Tensor = self.q_map(states)
        return queries


class Grounded(LexicalTower):
    """A tower with attention over the whole vector of relevances, after pooling."""

    def __init__(self, grounding: Grounding, *parts: Any):
        super().__init__(*parts)
        self.grounding = grounding

    def compute_attention(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """The model's own weights, float32 [B, K]."""
        return self.grounding.attention(super().pool_batch(inputs, masked))

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """The vectors of the index, float32 [B, K]: the model's weights, pruned and normalised."""
        return self.grounding.prune(self.compute_attention(inputs, masked))


class FdtWords(Grounded, TextTower):
    """Texts; padding does not count."""


class FdtTexts(FdtWords):
    """Texts. A text shorter than the model's positions gets at least one position of padding, whose relevance is 0."""

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The longest texts come first."""
        most = self.reader.limit or self.reader.max_length
        for batch in super().batches(inputs, batch_size, on_error):
            input_ids, attention = batch.inputs
            if input_ids.shape[1] < most:
                input_ids, attention = (nn.functional.pad(part, (0, 1)) for part in (input_ids, attention))
            yield batch._replace(inputs=(input_ids, attention), masked=attention == 0)


class FdtImages(Grounded, ImageTower):
    """Images; pooling uses every patch."""


@dataclass(frozen=True)
class FdtModel:
    """A loaded checkpoint; backbone, query map and pooling by modality, the codebook [K, d] of keys and values."""

    states: Mapping[str, Backbone]
    query_maps: Mapping[str, nn.Module]
    codebook: Tensor
    attention: str
    pooling: Mapping[str, Pooling]
    temperature: float

    def composition(self, modality: str) -> Composition:
        """One side's equation up to the pooled relevances [B, K]."""
        scale = self.codebook.shape[1] ** 0.5

        def apply_temperature(logits: Tensor) -> Tensor:
            return logits / scale / self.temperature

        head = Head(self.query_maps[modality], self.codebook)
        return Composition(self.states[modality], head, apply_temperature, self.pooling[modality], keep_positive())

    def features(self, tower: Grounded, dimensions: int | None) -> DenseTower:
        """The dense side: the codebook's rows, averaged by the model's own weights; cosines."""

        def embed(batch: Batch) -> Tensor:
            weights = tower.compute_attention(batch.inputs, batch.masked)  # [B, K]
            if self.attention == "sigmoid":
                weights = weights / weights.sum(dim=1, keepdim=True)
            return weights @ self.codebook  # [B, d]

        return DenseTower(tower, embed, self.codebook.shape[1], dimensions=dimensions)


def load_fdt(
    source: Source,
    direction: Direction = "text-to-image",
    space: Literal["weights", "features"] = "weights",
    temperature: float | None = None,
    topk: int | None = None,
    threshold: float = 0.0,
    normalise: bool = True,
    dimensions: int | None = None,
    merges: str | None = None,
) -> Encoder:
    """FDT: texts and images as sparse weights over a learned codebook of finite discrete tokens.

    r_k = pool_t <q_map(f_t), C_k> / (sqrt(d) T) over patches or tokens; w = sparsemax(r); f = w C. The weights w are
    lexical vectors over anonymous terms fdt00000, fdt00001, ..., L2-normalised for the index; the features f are dense.

    A training run's folder (config.json and `checkpoints/`), or one of its files `ckpt_<iteration>.pth.tar`.

    Pairs over pretrained networks (`parts/pretrained.py`) load too.

    Args:
        source: `tokenizer` may name a folder that has the merges.
        direction: the modalities of queries and documents.
        space: weights (lexical, for an inverted index) or features (dense, for FAISS or for re-ranking).
        temperature: T; default the value of the run's decay at the checkpoint's iteration.
        topk: weights kept per vector, for models with long vectors; default all above 0.
        threshold: drop weights below this share of a vector's largest, for example 0.01.
        normalise: divide by the L2 norm, so that scores are cosines; False indexes the model's weights, which sum to 1.
        dimensions: of features: keep only the first ones (Matryoshka); default all.
        merges: BPE merges file; default the run's own beside config.json.
    """
    if space == "weights" and dimensions is not None:
        raise UsageError("dimensions is for dense vectors, and weights are lexical; give topk, or space=features")
    if space == "features" and (topk is not None or threshold or not normalise):
        raise UsageError("topk, threshold and normalise are for space=weights; features are dense and of unit length")
    if not 0 <= threshold < 1 or (topk is not None and topk < 1):
        raise UsageError(f"threshold {threshold}, topk {topk}: expected a share from 0 to below 1, and at least 1")
    checkpoint = source.required("fdt")
    read_sides = load_pair_sides if is_pair(checkpoint) else load_run_sides
    model, texts, reader, pixels = read_sides(source, checkpoint, temperature, merges)
    grounding = Grounding(ATTENTIONS[model.attention], topk, threshold, normalise)
    terms = Vocabulary([f"fdt{number:05d}" for number in range(len(model.codebook))], "the codebook")
    columns = TokenColumns(terms, np.full(0, -1, dtype=np.int64))  # tokens have no dimension
    sides: dict[str, Any] = {
        "text": texts(grounding, model.composition("text"), reader, columns, source.device),
        "image": FdtImages(grounding, model.composition("image"), pixels, columns, source.device),
    }
    if space == "features":
        sides = {modality: model.features(tower, dimensions) for modality, tower in sides.items()}
    query, document = in_direction(direction, sides["text"], sides["image"])
    return Encoder("fdt", "impact" if space == "weights" else "dense", query=query, document=document)


# A model, the class of its towers of texts, what tokenises texts, and how an image becomes pixels.
Sides = tuple[FdtModel, type[FdtWords], TextReader, Pixels]


def load_run_sides(source: Source, checkpoint: Checkpoint, temperature: float | None, merges: str | None) -> Sides:
    """A training run of the reference."""
    config = run_config(checkpoint)
    model, texts = read_model(checkpoint, config, temperature, source.device)
    path = find_merges(merges, source.tokenizer_folder(), config)
    if path is None:
        raise CheckpointError(f"{checkpoint.path}: {NO_MERGES}")
    limit, images = texts.max_position_embeddings, model.states["image"]
    assert isinstance(images, PatchStates)
    reader = TextReader(ClipBpe(path, SPECIALS, texts.vocab_size), limit, limit=limit)
    return model, FdtTexts, reader, make_crop(images.resolution)


def load_pair_sides(source: Source, checkpoint: Checkpoint, temperature: float | None, merges: str | None) -> Sides:
    """A pair over networks. Pooling ignores padding."""
    if merges is not None:
        raise UsageError("merges is for checkpoints of the reference; this one has a tokenizer")
    pair = read_pair(source, checkpoint, "fdt")
    where, device = pair.where, source.device
    entry = pair.config[IMAGE]
    if entry.get("attention") not in ATTENTIONS:
        raise CheckpointError(f"{where}: attention {entry.get('attention')!r}, expected {', '.join(ATTENTIONS)}")
    codebook, degree = pair.heads.get(f"{IMAGE}.codebook.rows"), temperature or entry.get("temperature")
    if codebook is None or codebook.dim() != 2 or not isinstance(degree, float | int) or not degree > 0:
        raise CheckpointError(f"{where}: {IMAGE}.codebook.rows [K, d] or the temperature is missing")
    query_maps = {}
    for modality, side in (("text", TEXT), ("image", IMAGE)):
        query_map = QueryMap(pair.widths[side], codebook.shape[1])
        load_strictly(query_map, take_below(pair.heads, f"{side}.head."), f"{where}: {side}.head")
        query_maps[modality] = query_map.eval().to(device)
    states: dict[str, Backbone] = {"text": pair.text, "image": pair.image}
    pooling = dict.fromkeys(states, pool_max)
    model = FdtModel(states, query_maps, codebook.float().to(device), entry["attention"], pooling, float(degree))
    return model, FdtWords, pair.reader, pair.pixels


def read_model(
    checkpoint: Checkpoint, config: Mapping[str, Any], temperature: float | None, device: torch.device
) -> tuple[FdtModel, Any]:
    """The model of one file of a run; and the configuration of its texts. Projections of its towers are unused."""
    path = find_weight_file(checkpoint)
    weights, extra = read_contents(path)
    where = str(path)
    if CODEBOOK not in weights:
        remedy = "load plain CLIP with --encoder clip"
        raise CheckpointError(f"{where}: no codebook ({CODEBOOK}), so not an FDT model; {remedy}")
    options = run_entry(config, "fdt")
    attention, pool = options.get("att_func_type", "sparsemax"), options.get("pool_type", "max")
    named: tuple[tuple[str, Any, Any], ...] = (("att_func_type", attention, ATTENTIONS), ("pool_type", pool, POOLINGS))
    for key, value, known in named:
        if value not in known:
            raise CheckpointError(f"{where}: {key} {value!r} is not known; expected {', '.join(known)}")
    codebook = weights[CODEBOOK].float()  # [K, d]
    plain = {k: v for k, v in weights.items() if not k.startswith(tuple(QUERY_MAPS.values())) and k not in OTHERS}
    # CLIP's networks, or CLIP's and a Swin transformer V2, of exactly these weights.
    shape = ClipShape.from_run(config)
    if is_swin(plain):
        swin = build_swin(take_below(plain, "visual."), run_entry(config, "image_encode"), where, device)
        plain = {k: v for k, v in plain.items() if not k.startswith("visual.") and k != "logit_scale"}
        texts, images = build_open_texts(plain, shape, where, device), PatchStates(swin)
    else:
        texts = build_open_clip(plain, shape, where, device)
        images = PatchStates(texts)
    about_text = getattr(texts.config, "text_config", texts.config)
    widths = {"image": images.width, "text": about_text.hidden_size}
    query_maps = {}
    for modality, prefix in QUERY_MAPS.items():
        module = QueryMap(widths[modality], codebook.shape[1])
        load_strictly(module, take_below(weights, prefix), f"{where}: {prefix[:-1]}")
        query_maps[modality] = module.eval().to(device)
    degree = read_temperature(config, extra, where) if temperature is None else temperature
    if not degree > 0:
        raise UsageError(f"temperature {degree}: expected a number above 0")
    positions = {"text": about_text.max_position_embeddings, "image": images.grid**2}
    pooling = {modality: POOLINGS[pool](count) for modality, count in positions.items()}
    # States of texts are those after the last LayerNorm; causal attention makes them independent of padding.
    states: dict[str, Backbone] = {"text": lambda ids, _: texts.text_model(ids).last_hidden_state, "image": images}
    return FdtModel(states, query_maps, codebook.to(device), attention, pooling, degree), about_text


def find_weight_file(checkpoint: Checkpoint) -> Path:
    """The weight file that the user names, else the only one of the run."""
    if checkpoint.file is not None:
        return checkpoint.file
    folders = (checkpoint.folder, checkpoint.folder / RUN_FOLDER)
    files = sorted(path for folder in folders for path in folder.glob(RUN_FILES))
    if not files:
        return checkpoint.folder  # weights under other names
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{checkpoint.folder}: several iterations ({names}); name the file")
    return files[0]


def read_temperature(config: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> float:
    """T at the checkpoint's iteration, as in the reference's evaluation; weights do not contain it.

    A `temperature` under `fdt` in the configuration, for converted checkpoints, comes first.
    """
    if (stored := run_entry(config, "fdt").get("temperature")) is not None:
        return float(stored)
    decay = config.get("t_decay") or {}
    missing = [key for key in DECAY if key not in decay] + ([] if "last_iter" in extra else ["last_iter"])
    if missing:
        lack = f"t_decay of config.json and the checkpoint lack {', '.join(missing)}"
        remedy = "give it with --set temperature=T (1000 for the released CC3M run)"
        raise CheckpointError(f"{where}: no temperature; {lack}; {remedy}")
    periods = extra["last_iter"] / decay["sd_T_decay_iter"]
    return compute_decay(decay["org_t"], decay["sd_T_decay_w"], periods, decay["sd_T_min"])
