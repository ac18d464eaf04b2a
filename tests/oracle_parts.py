"""What the oracles in `tests/oracle/` share: drawn sizes, weights, texts and images, and formulas written afresh.

Nothing here uses the package's own modules: an oracle that shared code with what it checks would agree with its errors.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, layer_norm, linear, softmax

SEEDS = (101, 202, 303)

Shapes = dict[str, tuple[int, ...]]

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


def random_weights(shapes: Shapes, seed: int) -> dict[str, Tensor]:
    """Normal weights by name; those of LayerNorms (one dimension, `weight`) around 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        value = 0.25 * torch.randn(shape, generator=generator)
        weights[name] = value + 1 if len(shape) == 1 and name.endswith("weight") else value
    return weights


def randomise(model: nn.Module, seed: int) -> Any:
    """The model in eval mode with such weights (tied ones stay tied)."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    weights = random_weights(shapes, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def write_wordpieces(golden: Path, folder: Path, size: int) -> Any:
    """The first `size` lines of the tiny BERT vocabulary as a tokenizer's folder; returns transformers' tokenizer."""
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    lines = (golden / "common/tokenizer_bert_tiny/vocab.txt").read_text(encoding="utf-8").splitlines()[:size]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = folder / "config.json"
    alone = not config.is_file()
    if alone:
        config.write_text(json.dumps({"model_type": "bert", "vocab_size": size}))
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    if alone:
        config.unlink()
    assert len(tokenizer) == size
    return tokenizer


def bert_config(seed: int, size: int, **options: Any) -> Any:
    from transformers import BertConfig

    drawn = {
        "hidden_size": draw(seed, 24, 36, 20),
        "num_hidden_layers": draw(seed, 1, 3, 2),
        "num_attention_heads": draw(seed, 3, 2, 4),
        "intermediate_size": draw(seed, 40, 20, 96),
        "max_position_embeddings": draw(seed, 64, 96, 48),
    }
    return BertConfig(vocab_size=size, **drawn, **options)


def byte_symbols() -> dict[int, str]:
    """The letter by which CLIP's byte-level BPE writes each byte, in the order of its vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def padded(rows: list[list[int]], length: int) -> tuple[Tensor, Tensor]:
    """Ids and attention, int64 [n, length]."""
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
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
    values = (np.stack(crops).astype(np.float64) / 255.0 - np.array(mean)) / np.array(std)
    return torch.from_numpy(values.transpose(0, 3, 1, 2)).float()


def ln(x: Tensor, weights: dict[str, Tensor], name: str, eps: float) -> Tensor:
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
    return x / (1 + torch.exp(-1.702 * x))


def clip_blocks(
    x: Tensor, weights: dict[str, Tensor], prefix: str, layers: int, heads: int, bias: Any = None
) -> Tensor:
    for layer in range(layers):
        at = f"{prefix}transformer.resblocks.{layer}."
        normed = ln(x, weights, f"{at}ln_1", 1e-5)
        packed = linear(normed, weights[f"{at}attn.in_proj_weight"], weights[f"{at}attn.in_proj_bias"])
        x = x + dense(attention(*packed.chunk(3, dim=-1), heads, bias), weights, f"{at}attn.out_proj")
        x = x + dense(
            quick_gelu(dense(ln(x, weights, f"{at}ln_2", 1e-5), weights, f"{at}mlp.c_fc")), weights, f"{at}mlp.c_proj"
        )
    return x


def clip_vision(pixels: Tensor, weights: dict[str, Tensor], prefix: str, layers: int, heads: int) -> Tensor:
    """States [B, L, D] of OpenAI's ViT before its last LayerNorm; with a class token if the weights have one."""
    kernel = weights[f"{prefix}conv1.weight"]
    x = conv2d(pixels, kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    if f"{prefix}class_embedding" in weights:
        x = torch.cat([weights[f"{prefix}class_embedding"].expand(len(x), 1, -1), x], dim=1)
    x = ln(x + weights[f"{prefix}positional_embedding"], weights, f"{prefix}ln_pre", 1e-5)
    return clip_blocks(x, weights, prefix, layers, heads)


def later_positions(length: int) -> Tensor:
    """A bias of attention [1, 1, L, L] that hides later positions."""
    return torch.full((length, length), -torch.inf).triu(1)[None, None]


def dense_shapes(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def norm_shapes(width: int, *names: str) -> Shapes:
    return {f"{name}.{kind}": (width,) for name in names for kind in ("weight", "bias")}


def clip_block_shapes(prefix: str, width: int, layers: int) -> Shapes:
    shapes: Shapes = {}
    for layer in range(layers):
        at = f"{prefix}transformer.resblocks.{layer}."
        shapes |= {f"{at}attn.in_proj_weight": (3 * width, width), f"{at}attn.in_proj_bias": (3 * width,)}
        shapes |= dense_shapes(f"{at}attn.out_proj", width, width)
        shapes |= dense_shapes(f"{at}mlp.c_fc", 4 * width, width) | dense_shapes(f"{at}mlp.c_proj", width, 4 * width)
        shapes |= norm_shapes(width, f"{at}ln_1", f"{at}ln_2")
    return shapes


def clip_vision_shapes(prefix: str, width: int, layers: int, side: int, patch: int, class_token: bool) -> Shapes:
    """Names and shapes of OpenAI's ViT, without its projection."""
    shapes: Shapes = {
        f"{prefix}conv1.weight": (width, 3, patch, patch),
        f"{prefix}positional_embedding": ((side // patch) ** 2 + class_token, width),
    }
    if class_token:
        shapes[f"{prefix}class_embedding"] = (width,)
    norms = norm_shapes(width, f"{prefix}ln_pre", f"{prefix}ln_post")
    return shapes | norms | clip_block_shapes(prefix, width, layers)


def bert_shapes(prefix: str, size: int, width: int, layers: int, inner: int, positions: int) -> Shapes:
    """Names and shapes of BERT's encoder without pooler."""
    shapes: Shapes = {
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
            shapes |= dense_shapes(f"{at}{name}", rows, columns)
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
    return shapes | norm_shapes(width, *norms)


def config_shapes(prefix: str, config: Any) -> Shapes:
    """Those of a BERT's configuration."""
    sizes = (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.intermediate_size)
    return bert_shapes(prefix, *sizes, config.max_position_embeddings)


def bert(
    weights: dict[str, Tensor],
    prefix: str,
    ids: Tensor,
    mask: Tensor,
    layers: int,
    heads: int,
    token_types: bool = True,
    eps: float = 1e-12,
) -> Tensor:
    """Last hidden states [B, L, D]; `token_types=False` leaves their embeddings out (BLIP, ALBEF)."""
    x = weights[f"{prefix}embeddings.word_embeddings.weight"][ids]
    x = x + weights[f"{prefix}embeddings.position_embeddings.weight"][: ids.shape[1]]
    if token_types:
        x = x + weights[f"{prefix}embeddings.token_type_embeddings.weight"][torch.zeros_like(ids)]
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


def elu1p(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def top_columns(row: Tensor, k: int) -> set[int]:
    """The k largest, the lowest first among equals."""
    return set(sorted(range(len(row)), key=lambda column: (-row[column].item(), column))[:k])


def close(actual: Any, expected: Any, atol: float = 2e-5, rtol: float = 1e-5) -> None:
    """Fails unless two arrays agree; shows by how much they do not."""
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), atol=atol, rtol=rtol)
