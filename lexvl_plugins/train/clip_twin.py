"""CLIP as the authors of STAIR and of FDT train it for comparison: over the networks of their models, without the head.

They publish neither; `train` writes them (kind dense-crossmodal with `pooling`, or over `text.merges`). Over FDT's
networks with a ViT the layout is that of its published code, which the encoder `clip` loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import PositiveInt, ValidationError
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.checkpoints.clip_layout import (
    NO_MERGES,
    ClipShape,
    build_open_texts,
    build_swin,
    find_merges,
    is_swin,
    run_config,
    run_entry,
)
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import build, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.dense_crossmodal import compute_mean_state
from lexvl_anserini.encoders.families.stair import ImageShape, Stair, StairConfig, TextShape
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.encoders.parts.images.pixels import Crop, Pixels, make_crop
from lexvl_anserini.encoders.parts.images.vision import Images
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.encoders.parts.towers import DenseTower, Direction, Texts, in_direction
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.typed import plain
from lexvl_plugins.train.model_settings import PoolingSettings, Settings
from lexvl_plugins.train.run_folder import write_weights

MODEL_TYPE: Literal["stair-clip"] = "stair-clip"


class TwinConfig(Settings):
    """A CLIP over STAIR's networks as in its config.json; `vocab_size` are the tokens of its tokenizer."""

    model_type: Literal["stair-clip"] = MODEL_TYPE
    vocab_size: PositiveInt
    text: TextShape
    image: ImageShape
    dimensions: PositiveInt
    pooling: PoolingSettings

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str) -> TwinConfig:
        """Reads the contents of a config.json."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(f"{where}: {'.'.join(map(str, first['loc']))}: {plain(first)}") from error


class AttentionPooling(nn.Module):
    """Attention of one learned query over the states of an item."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """One state [B, D] of [B, L, D]; no attention to positions that `real` [B, L] has as 0."""
        query, padded = self.query.expand(len(states), 1, -1), real == 0
        pooled: Tensor = self.attention(query, states, states, key_padding_mask=padded, need_weights=False)[0]
        return pooled[:, 0]


def take_last_state(states: Tensor, real: Tensor) -> Tensor:
    """The state of the last position that is no padding, [B, D]."""
    return states[torch.arange(len(states), device=states.device), real.sum(dim=1) - 1]


def take_max_state(states: Tensor, real: Tensor) -> Tensor:
    """The largest of each number over the positions that are no padding, [B, D]."""
    return states.masked_fill(real[:, :, None] == 0, -torch.inf).amax(dim=1)


# From states [B, L, D] and positions that are no padding [B, L] to one state [B, D].
POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda states, real: states[:, 0],
    "last": take_last_state,
    "mean": compute_mean_state,
    "max": take_max_state,
}


class PooledHead(nn.Module):
    """v = W pool_i h_i, of unit length."""

    def __init__(self, width: int, heads: int, dimensions: int, pooling: str):
        super().__init__()
        self.pool = POOLINGS[pooling] if pooling in POOLINGS else AttentionPooling(width, heads)
        self.proj = nn.Linear(width, dimensions, bias=False)

    def forward(self, states: Tensor, real: Tensor | None = None) -> Tensor:
        """Vectors [B, d] of states [B, L, D]; all positions count, or those that `real` [B, L] has as 1."""
        real = torch.ones(states.shape[:2], dtype=torch.long, device=states.device) if real is None else real
        return normalize(self.proj(self.pool(states, real)), dim=1)


class StairTwin(Stair):
    """STAIR's text and image encoders with dense heads."""

    def __init__(self, config: TwinConfig):
        text, image = config.text, config.image
        super().__init__(StairConfig(config.vocab_size, text, image))
        self.twin_config = config
        self.text_head: Any = PooledHead(text.width, text.heads, config.dimensions, config.pooling.text)
        self.image_head: Any = PooledHead(image.width, image.heads, config.dimensions, config.pooling.image)


def save_stair_twin(twin: StairTwin, tokenizer: Any, folder: Path, kind: torch.dtype) -> None:
    """Writes a CLIP over STAIR's networks, with numbers of a type, as `load_clip_twin` reads it."""
    tokenizer.save_pretrained(str(folder))
    write_weights(twin.state_dict(), folder, kind)
    write_json(folder / "config.json", twin.twin_config.model_dump(mode="json"))


class LoadedTwin(NamedTuple):
    """Vectors [B, d] of texts from ids and attention, and of images from pixels; how both become these."""

    text: Callable[..., Tensor]
    image: Callable[..., Tensor]
    dimensions: int
    tokenizer: Any
    positions: int
    pixels: Pixels | Crop


def load_clip_twin(
    source: Source,
    direction: Direction = "text-to-image",
    prompt: str = "",
    text_max_length: int | None = None,
    dimensions: int | None = None,
    merges: str | None = None,
) -> Encoder:
    """CLIP over the networks of STAIR, or of FDT with a Swin: one state of each item, projected, of unit length.

    Over STAIR's networks `pooling` in config.json says what becomes one state. Over FDT's it is the state of the end
    symbol, and of images the mean (equations 1 to 3).

    Args:
        source: a folder that `train` wrote; `tokenizer` may name a folder that has tokenizer or merges.
        direction: the modalities of queries and documents.
        prompt: put before each text; "a photo of " is STAIR's for retrieval without training.
        text_max_length: tokens per text, with special tokens; default the positions of the model.
        dimensions: keep only the first ones (Matryoshka); default all.
        merges: BPE merges file; default the one beside the weights.
    """
    checkpoint = source.required("clip-twin")
    config, weights = run_config(checkpoint), read_weights(checkpoint.path)
    if is_swin(weights):
        twin = load_swin_twin(source, checkpoint, config, weights, merges)
    elif config.get("model_type") == MODEL_TYPE:
        twin = load_stair_twin(source, checkpoint, config, weights)
    else:
        what = f"model_type {config.get('model_type')!r}, expected {MODEL_TYPE!r} or CLIP's texts beside a Swin"
        raise CheckpointError(f"{checkpoint.path}: {what}, as `train` writes them; other CLIPs are for encoder clip")
    limit = twin.positions
    texts = Texts(TextReader(twin.tokenizer, text_max_length or limit, limit=limit, prompt=prompt), source.device)
    text = DenseTower(texts, lambda batch: twin.text(*batch.inputs), twin.dimensions, dimensions=dimensions)
    images = Images(twin.pixels, source.device)
    image = DenseTower(images, lambda batch: twin.image(*batch.inputs), twin.dimensions, dimensions=dimensions)
    query, document = in_direction(direction, text, image)
    return Encoder("clip-twin", "dense", query=query, document=document)


def load_stair_twin(
    source: Source, checkpoint: Checkpoint, content: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> LoadedTwin:
    """A folder of `save_stair_twin`."""
    where = f"{checkpoint.folder}/config.json"
    config = TwinConfig.read(content, where)
    twin = build(lambda: StairTwin(config), weights, where)
    load_strictly(twin, weights, str(checkpoint.path))
    twin.float().eval().to(source.device)
    with quietly():  # transformers does not know the type of the model beside the tokenizer, and says so
        tokenizer = load_tokenizer(source.tokenizer_folder(), config.vocab_size)
    return LoadedTwin(
        text=lambda ids, attention: twin.text_head(twin.text(ids, attention), attention),
        image=lambda pixels: twin.image_head(twin.image(pixels)),
        dimensions=config.dimensions,
        tokenizer=tokenizer,
        positions=config.text.max_length,
        pixels=Pixels(config.image.resolution),
    )


def load_swin_twin(
    source: Source,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    merges: str | None,
) -> LoadedTwin:
    """CLIP's texts beside a Swin transformer V2, in the layout of the runs of FDT's code."""
    where, device = str(checkpoint.path), source.device
    of_texts = {key: value for key, value in weights.items() if not key.startswith("visual.") and key != "logit_scale"}
    texts = build_open_texts(of_texts, ClipShape.from_run(config), where, device)
    swin = build_swin(take_below(weights, "visual."), run_entry(config, "image_encode"), where, device)
    path = find_merges(merges, source.tokenizer_folder(), config)
    if path is None:
        raise CheckpointError(f"{where}: {NO_MERGES}")
    return LoadedTwin(
        text=lambda ids, attention: texts(ids, attention).text_embeds,
        image=lambda pixels: swin(pixels).logits,
        dimensions=texts.config.projection_dim,
        tokenizer=ClipBpe(path, SPECIALS, texts.config.vocab_size),
        positions=texts.config.max_position_embeddings,
        pixels=make_crop(swin.config.image_size),
    )
