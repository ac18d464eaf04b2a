"""What the oracles in `tests/oracle/` share: drawn sizes, weights, texts and images, and formulas written afresh.

Nothing here uses the package's own modules: an oracle that shared code with what it checks would agree with its errors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, softmax

SEEDS = (101, 202, 303)

TEXTS = [
    "A Man, riding a HORSE on a beach -- near the ocean!",
    "",
    "   two\tdogs \n playing   ",
    "Café Zürich, naïve façade; 中国 和 日本 – it’s “quoted” #42 @ 7:30?",
    "שלום עולم مرحبا 🐶🐶 e\u0301tude ﬁancé İstanbul",
    "a [SEP] b [MASK] c [unused5] </s> <|endoftext|> &amp; &lt;b&gt;",
    "supercalifragilisticexpialidocious " * 3 + "x" * 120,
    "the small brown dog jumped over the old wooden fence " * 40,
    "pizza",
]

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def draw(seed: int, *choices: Any) -> Any:
    """One of `choices`, by the seed."""
    return choices[seed % len(choices)]


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int, spread: float = 0.25) -> dict[str, Tensor]:
    """Normal weights by name; those of LayerNorms (one dimension, `weight`) around 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        value = spread * torch.randn(shape, generator=generator)
        weights[name] = value + 1 if len(shape) == 1 and name.endswith("weight") else value
    return weights


def randomise(model: nn.Module, seed: int, spread: float = 0.25) -> Any:
    """The model in eval mode with such weights (tied ones stay tied)."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    weights = random_weights(shapes, seed, spread)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def write_wordpieces(vocabulary: Path, folder: Path, size: int) -> Any:
    """The first `size` lines of a BERT vocabulary as a tokenizer's folder; returns transformers' tokenizer."""
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    lines = vocabulary.read_text(encoding="utf-8").splitlines()[:size]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    about = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    if not (folder / "config.json").is_file():
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": size}))
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        (folder / "config.json").unlink()
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert len(tokenizer) == size
    return tokenizer


def padded(rows: list[list[int]], length: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and attention, int64 [n, length]."""
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return ids, attention


def write_pictures(folder: Path, seed: int) -> list[str]:
    """Files of awkward sizes and modes, without transparency that formats would composite differently."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)

    def noise(width: int, height: int, *channels: int) -> np.ndarray:
        return rng.integers(0, 256, (height, width, *channels), dtype=np.uint8)

    smooth = Image.fromarray(noise(5, 4, 3)).resize((91, 67), Image.Resampling.BICUBIC)
    pictures = {
        "smooth.png": smooth,
        "pixel.png": Image.fromarray(noise(1, 1, 3)),
        "wide.png": Image.fromarray(noise(500, 3, 3)),
        "tall.png": Image.fromarray(noise(3, 500, 3)),
        "odd.png": Image.fromarray(noise(77, 33, 3)),
        "grey.png": Image.fromarray(noise(41, 40)),
        "grey-alpha.png": Image.merge("LA", [Image.fromarray(noise(30, 52)) for _ in range(2)]),
        "palette.png": smooth.quantize(17),
        "alpha.png": Image.fromarray(noise(64, 48, 4)),
        "cmyk.jpg": Image.merge("CMYK", [Image.fromarray(noise(33, 47)) for _ in range(4)]),
        "bit.png": Image.fromarray(noise(20, 31)).convert("1"),
    }
    for name, picture in pictures.items():
        picture.save(folder / name)
    return [str(folder / name) for name in pictures]


def shorter_side_crop(path: str, shorter: int, side: int, filter: int, floor: bool) -> np.ndarray:
    """uint8 [side, side, 3]: RGB, shorter side resized, centre cropped, as torchvision (or transformers: `floor`)."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    new = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    pixels = np.asarray(image.resize(new, filter))
    top, left = ((n - side) // 2 if floor else int(round((n - side) / 2.0)) for n in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def pixels_of(crops: list[np.ndarray], mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """float32 [n, 3, side, side]."""
    values = (np.stack(crops).astype(np.float64) / 255.0 - np.array(mean)) / np.array(std)
    return torch.from_numpy(values.transpose(0, 3, 1, 2)).float()


def ln(x: Tensor, weights: dict[str, Tensor], name: str, eps: float) -> Tensor:
    """LayerNorm by its name."""
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def dense(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """A linear layer by its name, with or without bias."""
    return linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """Multi-head attention over [B, L, D], `bias` added to its logits [B or 1, heads or 1, L, L]."""
    batch, length, width = query.shape

    def split(x: Tensor) -> Tensor:
        return x.reshape(batch, length, heads, width // heads).permute(0, 2, 1, 3)

    logits = split(query) @ split(key).transpose(2, 3) / (width // heads) ** 0.5
    if bias is not None:
        logits = logits + bias
    return (softmax(logits, dim=-1) @ split(value)).permute(0, 2, 1, 3).reshape(batch, length, width)


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x)."""
    return x / (1 + torch.exp(-1.702 * x))


def clip_blocks(
    x: Tensor, weights: dict[str, Tensor], prefix: str, layers: int, heads: int, bias: Any = None
) -> Tensor:
    """CLIP's residual blocks in OpenAI's names, packed projections."""
    for layer in range(layers):
        at = f"{prefix}transformer.resblocks.{layer}."
        normed = ln(x, weights, f"{at}ln_1", 1e-5)
        packed = linear(normed, weights[f"{at}attn.in_proj_weight"], weights[f"{at}attn.in_proj_bias"])
        x = x + dense(attention(*packed.chunk(3, dim=-1), heads, bias), weights, f"{at}attn.out_proj")
        x = x + dense(
            quick_gelu(dense(ln(x, weights, f"{at}ln_2", 1e-5), weights, f"{at}mlp.c_fc")), weights, f"{at}mlp.c_proj"
        )
    return x


def clip_block_shapes(prefix: str, width: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of such blocks."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        at = f"{prefix}transformer.resblocks.{layer}."
        shapes |= {
            f"{at}attn.in_proj_weight": (3 * width, width),
            f"{at}attn.in_proj_bias": (3 * width,),
            f"{at}attn.out_proj.weight": (width, width),
            f"{at}attn.out_proj.bias": (width,),
            f"{at}mlp.c_fc.weight": (4 * width, width),
            f"{at}mlp.c_fc.bias": (4 * width,),
            f"{at}mlp.c_proj.weight": (width, 4 * width),
            f"{at}mlp.c_proj.bias": (width,),
        }
        shapes |= {f"{at}{name}.{kind}": (width,) for name in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    return shapes


def bert_shapes(prefix: str, size: int, width: int, layers: int, inner: int, positions: int) -> dict[str, tuple]:
    """Names and shapes of BERT's encoder without pooler."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.word_embeddings.weight": (size, width),
        f"{prefix}embeddings.position_embeddings.weight": (positions, width),
        f"{prefix}embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = [f"{prefix}embeddings.LayerNorm"]
    for layer in range(layers):
        at = f"{prefix}encoder.layer.{layer}."
        for name, rows, columns in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", inner, width),
            ("output.dense", width, inner),
        ):
            shapes |= {f"{at}{name}.weight": (rows, columns), f"{at}{name}.bias": (rows,)}
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    return shapes | {f"{norm}.{kind}": (width,) for norm in norms for kind in ("weight", "bias")}


def bert(
    weights: dict[str, Tensor],
    prefix: str,
    ids: Tensor,
    mask: Tensor,
    layers: int,
    heads: int,
    types: Tensor | None = None,
    token_types: bool = True,
    eps: float = 1e-12,
) -> Tensor:
    """BERT's last hidden states [B, L, D]; `token_types=False` leaves their embeddings out (BLIP, ALBEF)."""
    x = weights[f"{prefix}embeddings.word_embeddings.weight"][ids]
    x = x + weights[f"{prefix}embeddings.position_embeddings.weight"][: ids.shape[1]]
    if token_types:
        x = (
            x
            + weights[f"{prefix}embeddings.token_type_embeddings.weight"][
                torch.zeros_like(ids) if types is None else types
            ]
        )
    x = ln(x, weights, f"{prefix}embeddings.LayerNorm", eps)
    bias = torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None, :]
    for layer in range(layers):
        at = f"{prefix}encoder.layer.{layer}."
        projections = (dense(x, weights, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
        mixed = dense(attention(*projections, heads, bias), weights, f"{at}attention.output.dense")
        x = ln(x + mixed, weights, f"{at}attention.output.LayerNorm", eps)
        inner = dense(gelu(dense(x, weights, f"{at}intermediate.dense")), weights, f"{at}output.dense")
        x = ln(x + inner, weights, f"{at}output.LayerNorm", eps)
    return x


def unit(x: Tensor) -> Tensor:
    """Rows of unit length."""
    return x / x.norm(dim=-1, keepdim=True)


def top_columns(row: Tensor, k: int) -> set[int]:
    """The k largest, the lowest first among equals."""
    return set(sorted(range(len(row)), key=lambda column: (-row[column].item(), column))[:k])


def close(found: Any, wanted: Any, atol: float = 2e-5, rtol: float = 1e-5) -> None:
    """Fails unless two arrays agree; shows by how much they do not."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=atol, rtol=rtol)
