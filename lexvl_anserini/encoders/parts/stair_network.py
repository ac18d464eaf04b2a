"""The network of STAIR: two transformers and a token projection head on each, over one tied vocabulary.

There is no public code or checkpoint. Each choice that the paper does not state is a field of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lexvl_anserini.encoders.parts.images.vision import PatchTransformer, ResidualBlock
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.typed import plain

MODEL_TYPE = "stair"
Stage = Literal["single", "1", "2", "3"]

# An unknown key is an error, here and below.
STRICT = {"extra": "forbid"}


@dataclass(frozen=True)
class TextShape:
    """The text transformer, by default of section 4.2; no text says whether it is causal, and all states are pooled."""

    __pydantic_config__ = STRICT
    width: int = 512
    layers: int = 12
    heads: int = 8
    max_length: int = 76
    causal: bool = False


@dataclass(frozen=True)
class ImageShape:
    """The vision transformer, by default of section 4.2, which states neither resolution (CLIP-B/16's) nor class token.

    A class token counts in the maximum, but has no cell in a localisation map.
    """

    __pydantic_config__ = STRICT
    resolution: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    class_token: bool = True
    stem: dict[str, list[int]] | None = None


@dataclass(frozen=True)
class StairConfig:
    """A STAIR model as in its config.json.

    Attributes:
        vocab_size: tokens of the tokenizer, which are the dimensions.
        bridge: how TRANSFORM, which equation 4 leaves open, fits an embedding of another width: True keeps the states'
            width and maps linearly afterwards, False lets its first layer change the width. True, as the image encoder
            then has the 86.8 M parameters of table 1, and 86.2 M otherwise: so that number is no test of this network.
        layer_norm_eps: of the heads; not stated in the paper, 1e-12 is that of BERT's head.
        stage: the stage of training that wrote the weights: 1, 2, 3, or single. After stage 1 texts stay masked.
        mask_specials: [CLS] and [SEP] count among a text's own tokens; not stated in the paper.
        padding: none: the maximum ignores padding; max_length: it does not. Not stated in the paper.
        prompt: is put before each text, but not in a bag of tokens.
    """

    __pydantic_config__ = STRICT
    vocab_size: int = 30522
    text: TextShape = field(default_factory=TextShape)
    image: ImageShape = field(default_factory=ImageShape)
    bridge: bool = True
    layer_norm_eps: float = 1e-12
    stage: Stage = "single"
    mask_specials: bool = False
    padding: Literal["none", "max_length"] = "none"
    prompt: str = "a photo of "

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str) -> StairConfig:
        """Reads the contents of a config.json."""
        from pydantic import TypeAdapter, ValidationError

        if content.get("model_type") != MODEL_TYPE:
            what = f"model_type {content.get('model_type')!r}, expected {MODEL_TYPE!r}"
            raise CheckpointError(f"{where}: {what}; STAIR checkpoints are those that `save_stair` wrote")
        try:
            config = TypeAdapter(cls).validate_python({k: v for k, v in content.items() if k != "model_type"})
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(f"{where}: {'.'.join(map(str, first['loc']))}: {plain(first)}") from error
        for name, shape in (("text", config.text), ("image", config.image)):
            if shape.width % shape.heads:
                raise CheckpointError(f"{where}: {name}: width {shape.width} does not divide by {shape.heads} heads")
        return config

    def to_json(self) -> dict[str, Any]:
        """The contents of a config.json, for `read`."""
        return {"model_type": MODEL_TYPE, **asdict(self)}


class MaskedBlock(ResidualBlock):
    """The residual block of CLIP for texts: no token attends to padding."""

    def forward(self, x: Tensor, padded: Tensor | None = None, causal: Tensor | None = None) -> Tensor:  # [B, L, D]
        """States of the next layer; no attention to `padded` [B, L], nor from row to column of `causal` [L, L]."""
        normed, masks = self.ln_1(x), {"key_padding_mask": padded, "attn_mask": causal}
        x = x + self.attn(normed, normed, normed, **masks, need_weights=False, is_causal=False)[0]
        return x + self.mlp(self.ln_2(x))


class TextTransformer(nn.Module):
    """Captions to a state per token; its parts have the names in CLIP checkpoints."""

    def __init__(self, vocab_size: int, shape: TextShape):
        super().__init__()
        self.causal = shape.causal
        self.token_embedding = nn.Embedding(vocab_size, shape.width)
        self.positional_embedding = nn.Parameter(torch.zeros(shape.max_length, shape.width))
        self.transformer: Any = nn.Module()
        self.transformer.resblocks = nn.ModuleList(MaskedBlock(shape.width, shape.heads) for _ in range(shape.layers))
        self.ln_final = nn.LayerNorm(shape.width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # [B, L], [B, L]
        """States [B, L, D]."""
        length = input_ids.shape[1]
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        padded = attention_mask == 0
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1) if self.causal else None
        for block in self.transformer.resblocks:
            x = block(x, padded, later)
        return self.ln_final(x)


class ClassPatchTransformer(PatchTransformer):
    """The vision transformer with CLIP's class token before the patches."""

    def __init__(self, shape: ImageShape):
        super().__init__(shape.resolution, shape.patch_size, shape.width, shape.layers, shape.heads, shape.stem)
        self.class_embedding = nn.Parameter(torch.zeros(shape.width))
        self.positional_embedding = nn.Parameter(torch.zeros(len(self.positional_embedding) + 1, shape.width))

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """States [B, 1 + P, D], the class token first."""
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)  # [B, P, D]
        x = torch.cat([self.class_embedding.expand(len(patches), 1, -1), patches], dim=1)
        x = self.ln_pre(x + self.positional_embedding)
        for block in self.transformer.resblocks:  # type: ignore[union-attr]
            x = block(x)
        return self.ln_post(x)


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


class Stair(nn.Module):
    """Both encoders up to the vocabulary: the weights that training saves and `load_stair` loads."""

    def __init__(self, config: StairConfig):
        super().__init__()
        self.config = config
        image, embedding = config.image, config.text.width
        self.text = TextTransformer(config.vocab_size, config.text)
        shape = {key: value for key, value in asdict(image).items() if key != "class_token"}
        self.image: nn.Module = ClassPatchTransformer(image) if image.class_token else PatchTransformer(**shape)
        heads = (config.vocab_size, config.bridge, config.layer_norm_eps)
        self.text_head = TokenHead(config.text.width, embedding, *heads)
        self.image_head = TokenHead(image.width, embedding, *heads)

    @property
    def embeddings(self) -> Tensor:
        """The matrix e of both heads, [V, D']: the text encoder's token embeddings."""
        return self.text.token_embedding.weight
