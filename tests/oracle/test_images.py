"""VDR cross-modal, LexLIP, STAIR and FDT against their equations written afresh, on drawn sizes, texts and images."""

from __future__ import annotations

import gzip
import html
import json
import re

import numpy as np
import pytest
import torch
import transformers
from oracle_parts import (
    CLIP_MEAN,
    CLIP_STD,
    SEEDS,
    TEXTS,
    bert,
    bert_shapes,
    clip_block_shapes,
    clip_blocks,
    close,
    dense,
    draw,
    ln,
    padded,
    pixels_of,
    random_weights,
    shorter_side_crop,
    top_columns,
    unit,
    write_pictures,
    write_wordpieces,
)
from safetensors.torch import save_file
from torch.nn.functional import conv2d, gelu

from lexvl_anserini.encoders.loading import load_encoder

VOCABULARY = "common/tokenizer_bert_tiny/vocab.txt"
HALF = (0.5, 0.5, 0.5)
BILINEAR, BICUBIC = 2, 3


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[str]:
    return write_pictures(tmp_path_factory.mktemp("pictures"), seed=11)


def elu1p(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


# ---- VDR cross-modal


@pytest.mark.parametrize("seed", SEEDS)
def test_vdr_crossmodal(golden, pictures, tmp_path, seed):
    size = draw(seed, 1500, 1999, 1200)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=draw(seed, 24, 36, 20),
        num_hidden_layers=draw(seed, 1, 3, 2),
        num_attention_heads=draw(seed, 3, 2, 4),
        intermediate_size=draw(seed, 40, 20, 96),
        max_position_embeddings=draw(seed, 64, 96, 48),
    )
    (tmp_path / "base").mkdir()
    config.save_pretrained(tmp_path / "base")
    tokenizer = write_wordpieces(golden / VOCABULARY, tmp_path / "base", size)
    strings = tokenizer.convert_ids_to_tokens(range(size))
    valid = [token for token in range(999, size) if all(ord(letter) < 128 for letter in strings[token])]
    assert len(valid) < size - 999, "some tokens are not ASCII"
    side, patch = draw(seed, (64, 16), (40, 8), (63, 21))
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (20, 2, 2))
    text = bert_shapes(
        "encoder_q.bert_model.", size, config.hidden_size, config.num_hidden_layers, config.intermediate_size,
        config.max_position_embeddings,
    )  # fmt: skip
    text |= {f"encoder_q.ln.{kind}": (config.hidden_size,) for kind in ("weight", "bias")}
    image = {
        "encoder_p.conv1.weight": (width, 3, patch, patch),
        "encoder_p.positional_embedding": ((side // patch) ** 2, width),
        "encoder_p.proj": (len(valid), width),
    } | {f"encoder_p.{name}.{kind}": (width,) for name in ("ln_pre", "ln_post") for kind in ("weight", "bias")}
    weights = random_weights(text | image | clip_block_shapes("encoder_p.", width, layers), seed)
    save_file(weights, tmp_path / "model.safetensors")
    topk, length = draw(seed, 30, 512, 9000), draw(seed, 20, 33, 48)
    about = {
        "encoder_q": {
            "type": draw(seed, "vdr_crossmodal_text", "vdr_cm_text"), "model_id": "base", "max_len": length,
            "shift_vocab_num": 5, "pooling": "mean", "pooling_topk": 3, "topk": topk, "norm": False,
        },
        "encoder_p": {
            "type": draw(seed, "vdr_crossmodal_image", "vdr_cm_image"), "tokenizer_id": "base", "max_len": 7,
            "topk": topk, "resolution": side, "patch_size": patch, "width": width, "layers": layers, "heads": heads,
        },
        "shared_encoder": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = load_encoder("vdr-crossmodal", str(tmp_path), device="cpu")
    assert list(model.query.vocabulary.terms) == [strings[token] for token in valid]

    rows = tokenizer(TEXTS, truncation=True, max_length=length)["input_ids"]
    ids, mask = padded(rows, length)
    hidden = bert(
        weights, "encoder_q.bert_model.", ids, mask, config.num_hidden_layers, config.num_attention_heads
    )  # fmt: skip
    matrix = weights["encoder_q.bert_model.embeddings.word_embeddings.weight"][valid]
    wanted = unit(elu1p((ln(hidden, weights, "encoder_q.ln", 1e-5) @ matrix.T).amax(1)))
    close(model.query.dense_weights(TEXTS, 4), wanted, atol=2e-6)
    for row, found, dense_row in zip(rows, model.query.weights(TEXTS, 4), wanted, strict=True):
        own = {valid.index(token) for token in row if token in valid}
        assert set(found.indices) == top_columns(dense_row, topk) | own

    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    x = conv2d(pixels, weights["encoder_p.conv1.weight"], stride=patch).flatten(2).transpose(1, 2)
    x = ln(x + weights["encoder_p.positional_embedding"], weights, "encoder_p.ln_pre", 1e-5)
    x = ln(clip_blocks(x, weights, "encoder_p.", layers, heads), weights, "encoder_p.ln_post", 1e-5)
    wanted = unit(elu1p((x @ weights["encoder_p.proj"].T).amax(1)))
    close(model.document.dense_weights(pictures, 4), wanted, atol=2e-6, rtol=1e-4)
    for found, dense_row in zip(model.document.weights(pictures, 4), wanted, strict=True):
        assert found.nnz == min(topk, len(valid))
        assert found.data.min() >= dense_row.sort(descending=True).values[min(topk, len(valid)) - 1] - 1e-5

    alpha = load_encoder("vdr-crossmodal", str(tmp_path), device="cpu", mode="alpha").query.weights(TEXTS)
    for row, found in zip(rows, alpha, strict=True):
        assert found.indices.tolist() == sorted({valid.index(token) for token in row if token in valid})
        assert (found.data == 1).all()


# ---- LexLIP


@pytest.mark.parametrize("seed", SEEDS)
def test_lexlip(golden, pictures, tmp_path, seed):
    size = draw(seed, 1500, 1999, 1200)
    (tmp_path / "text").mkdir()
    tokenizer = write_wordpieces(golden / VOCABULARY, tmp_path / "text", size)
    heads = draw(seed, 2, 4, 3)
    width, layers, inner = draw(seed, (16, 2, 40), (32, 1, 24), (24, 3, 50))
    image_width, image_layers, image_heads = draw(seed, (24, 1, 3), (16, 3, 4), (36, 2, 2))
    grid, patch, rows_width = draw(seed, (2, 8, 12), (1, 10, 32), (3, 7, 20))
    side = 2 * grid * patch
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, max_position_embeddings=64,
    )  # fmt: skip
    config.save_pretrained(tmp_path / "text")
    strings = tokenizer.convert_ids_to_tokens(range(size))
    terms = strings[draw(seed, 1100, 1000, 1150) :]
    (tmp_path / "terms.txt").write_text("".join(f"{term}\n" for term in terms), encoding="utf-8")
    shapes = bert_shapes("encoder_q.bert_model.", size, width, layers, inner, 64) | {
        "encoder_p.backbone.conv1.weight": (image_width, 3, patch, patch),
        "encoder_p.backbone.positional_embedding": ((side // patch) ** 2, image_width),
        "encoder_p.standard.mean": (image_width,), "encoder_p.standard.std": (image_width,),
    }  # fmt: skip
    for name in ("ln_pre", "ln_post"):
        shapes |= {f"encoder_p.backbone.{name}.{kind}": (image_width,) for kind in ("weight", "bias")}
    shapes |= clip_block_shapes("encoder_p.backbone.", image_width, image_layers)
    for at, states in (("encoder_q.", width), ("encoder_p.", image_width)):
        shapes |= {
            f"{at}head.dense.weight": (rows_width, states), f"{at}head.dense.bias": (rows_width,),
            f"{at}head.norm.weight": (rows_width,), f"{at}head.norm.bias": (rows_width,),
            f"{at}head.bias": (len(terms),), f"{at}proj": (len(terms), rows_width),
        }  # fmt: skip
    weights = random_weights(shapes, seed)
    weights["encoder_p.standard.std"] = weights["encoder_p.standard.std"].abs() + 0.5
    save_file(weights, tmp_path / "model.safetensors")
    shape = {"resolution": side, "patch_size": patch, "width": image_width, "layers": image_layers}
    about = {
        "encoder_q": {"type": "lexlip_text", "model_id": "text", "max_len": 40, "terms": "terms.txt"},
        "encoder_p": {"type": "lexlip_image", "grid": grid, "heads": image_heads, **shape},
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = load_encoder("lexlip", str(tmp_path), device="cpu")
    assert list(model.vocabulary.terms) == terms

    def encoded(states: torch.Tensor, at: str) -> torch.Tensor:
        transformed = ln(gelu(dense(states, weights, f"{at}head.dense")), weights, f"{at}head.norm", 1e-12)
        logits = transformed @ weights[f"{at}proj"].T + weights[f"{at}head.bias"]
        return unit(torch.log1p(logits.amax(1).clamp(min=0)))

    for text, found in zip(TEXTS, model.query.weights(TEXTS, 4), strict=True):
        row = tokenizer([text], truncation=True, max_length=40)["input_ids"][0]
        ids, mask = padded([row], len(row))
        states = bert(weights, "encoder_q.bert_model.", ids, mask, layers, heads)
        close(found.toarray(), encoded(states, "encoder_q."), atol=2e-6)

    at = "encoder_p.backbone."
    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    x = conv2d(pixels, weights[f"{at}conv1.weight"], stride=patch).flatten(2).transpose(1, 2)
    x = ln(x + weights[f"{at}positional_embedding"], weights, f"{at}ln_pre", 1e-5)
    x = ln(clip_blocks(x, weights, at, image_layers, image_heads), weights, f"{at}ln_post", 1e-5)
    patches = x.view(len(x), grid, 2, grid, 2, image_width)  # a cell is the mean of 2 x 2 patches
    cells = torch.cat([x.mean(1, keepdim=True), patches.mean((2, 4)).flatten(1, 2)], dim=1)
    cells = (cells - weights["encoder_p.standard.mean"]) / weights["encoder_p.standard.std"]
    close(model.document.weights(pictures, 4).toarray(), encoded(cells, "encoder_p."), atol=1e-5, rtol=1e-4)


# ---- STAIR


@pytest.mark.parametrize("seed", SEEDS)
def test_stair(golden, pictures, tmp_path, seed):
    size = draw(seed, 1500, 1999, 1200)
    tokenizer = write_wordpieces(golden / VOCABULARY, tmp_path, size)
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (20, 2, 2))
    image_width, image_layers, image_heads = draw(seed, (16, 2, 2), (16, 1, 4), (36, 3, 3))
    side, patch = draw(seed, (48, 16), (40, 8), (63, 21))
    length, class_token, causal, bridge = draw(
        seed, (24, True, False, True), (40, False, True, True), (30, True, True, False)
    )
    eps = draw(seed, 1e-12, 1e-5, 1e-3)
    prompt = draw(seed, "a photo of ", "", "picture: ")
    shapes = {
        "text.token_embedding.weight": (size, width), "text.positional_embedding": (length, width),
        "image.conv1.weight": (image_width, 3, patch, patch),
        "image.positional_embedding": ((side // patch) ** 2 + class_token, image_width),
        "text_head.bias": (size,), "image_head.bias": (size,),
    }  # fmt: skip
    shapes |= clip_block_shapes("text.", width, layers) | clip_block_shapes("image.", image_width, image_layers)
    for name, columns in (("text.ln_final", width), ("image.ln_pre", image_width), ("image.ln_post", image_width)):
        shapes |= {f"{name}.weight": (columns,), f"{name}.bias": (columns,)}
    if class_token:
        shapes["image.class_embedding"] = (image_width,)
    for name, states in (("text_head", width), ("image_head", image_width)):
        inner = states if bridge else width
        shapes |= {f"{name}.dense.weight": (inner, states), f"{name}.dense.bias": (inner,)}
        shapes |= {f"{name}.norm.weight": (inner,), f"{name}.norm.bias": (inner,)}
        if inner != width:
            shapes[f"{name}.bridge.weight"] = (width, inner)
    weights = random_weights(shapes, seed)
    save_file(weights, tmp_path / "model.safetensors")
    about = {
        "model_type": "stair", "vocab_size": size, "bridge": bridge, "layer_norm_eps": eps, "prompt": prompt,
        "stage": "single", "mask_specials": False, "padding": "none",
        "text": {"width": width, "layers": layers, "heads": heads, "max_length": length, "causal": causal},
        "image": {
            "resolution": side, "patch_size": patch, "width": image_width, "layers": image_layers,
            "heads": image_heads, "class_token": class_token,
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(about))
    model = load_encoder("stair", str(tmp_path), device="cpu")
    embeddings = weights["text.token_embedding.weight"]

    def encoded(states: torch.Tensor, head: str) -> torch.Tensor:
        transformed = ln(gelu(dense(states, weights, f"{head}.dense")), weights, f"{head}.norm", eps)
        if f"{head}.bridge.weight" in weights:
            transformed = dense(transformed, weights, f"{head}.bridge")
        return torch.log1p((transformed @ embeddings.T + weights[f"{head}.bias"]).amax(1).clamp(min=0))

    rows = tokenizer([prompt + text for text in TEXTS], truncation=True, max_length=length)["input_ids"]
    masked = load_encoder("stair", str(tmp_path), device="cpu", text_mask="own").query.weights(TEXTS, 4)
    for row, found, own_found in zip(rows, model.query.weights(TEXTS, 4), masked, strict=True):
        x = embeddings[torch.tensor([row])] + weights["text.positional_embedding"][: len(row)]
        later = torch.full((len(row), len(row)), -torch.inf).triu(1)[None, None] if causal else None
        x = ln(clip_blocks(x, weights, "text.", layers, heads, later), weights, "text.ln_final", 1e-5)
        wanted = encoded(x, "text_head")
        close(found.toarray(), unit(wanted), atol=2e-6)
        own = torch.zeros(size).scatter_(
            0, torch.tensor([t for t in row if t not in (0, 101, 102)], dtype=torch.long), 1.0
        )
        close(own_found.toarray(), torch.nn.functional.normalize(wanted * own, dim=1), atol=2e-6)

    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    x = conv2d(pixels, weights["image.conv1.weight"], stride=patch).flatten(2).transpose(1, 2)
    if class_token:
        x = torch.cat([weights["image.class_embedding"].expand(len(x), 1, -1), x], dim=1)
    x = ln(x + weights["image.positional_embedding"], weights, "image.ln_pre", 1e-5)
    x = ln(clip_blocks(x, weights, "image.", image_layers, image_heads), weights, "image.ln_post", 1e-5)
    close(model.document.weights(pictures, 4).toarray(), unit(encoded(x, "image_head")), atol=1e-5, rtol=1e-4)

    bags = load_encoder("stair", str(tmp_path), device="cpu", text_encoder_free=True).query.weights(TEXTS)
    for text, found in zip(TEXTS, bags, strict=True):
        row = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        assert found.indices.tolist() == sorted(set(row) - {0, 101, 102})


# ---- FDT


def byte_pairs(text: str, merges: list[tuple[str, str]], ids: dict[str, int]) -> list[int]:
    """CLIP's byte-level BPE as OpenAI's code does it: one lowest-ranked pair at a time, within each word."""
    import ftfy
    import regex

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbol = {b: chr(b) for b in printable}
    symbol |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in printable)}
    rank = {pair: n for n, pair in enumerate(merges)}
    text = re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text))).strip()).strip().lower()
    pattern = r"<\|mask\|>|<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    found: list[int] = []
    for piece in regex.findall(pattern, text, regex.IGNORECASE):
        if piece in ids and piece.startswith("<|"):
            found.append(ids[piece])
            continue
        word = [symbol[b] for b in piece.encode()]
        word[-1] += "</w>"
        while len(word) > 1:
            best = min(zip(word, word[1:], strict=False), key=lambda pair: rank.get(pair, len(rank)))
            if best not in rank:
                break
            merged, n = [], 0
            while n < len(word):
                if n + 1 < len(word) and (word[n], word[n + 1]) == best:
                    merged.append(word[n] + word[n + 1])
                    n += 2
                else:
                    merged.append(word[n])
                    n += 1
            word = merged
        found += [ids[part] for part in word]
    return found


def project_on_simplex(row: np.ndarray) -> np.ndarray:
    """Sparsemax in double precision by bisection on the threshold, not by sorting."""
    low, high = row.max() - 1, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(row - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(row - high, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nested", [False, True])
def test_fdt(pictures, tmp_path, seed, nested):
    merges = [
        ("t", "h"),
        ("th", "e</w>"),
        ("o", "c"),
        ("d", "o"),
        ("do", "g"),
        ("dog", "s</w>"),
        ("e", "r"),
        ("a", "n"),
        ("an", "d</w>"),
    ]
    merges = merges[: draw(seed, 9, 4, 7)]
    end = draw(seed, "", "\n")
    with gzip.open(tmp_path / "bpe.txt.gz", "wt", encoding="utf-8") as out:
        out.write('"bpe_simple_vocab"#version: 0.2\n' + "\n".join(map(" ".join, merges)) + end)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(b) for b in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    terms = [*symbols, *(f"{s}</w>" for s in symbols), *map("".join, merges), *([""] if end else [])]
    terms += ["<|mask|>", "<|startoftext|>", "<|endoftext|>"]
    ids = {term: n for n, term in enumerate(terms)}

    side, patch = draw(seed, (56, 14), (112, 28), (28, 7))
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (20, 2, 2))
    text_width, text_layers, text_heads = draw(seed, (16, 2, 2), (24, 1, 4), (36, 3, 3))
    context, codes, code_width, joint = draw(seed, (77, 300, 20, 9), (25, 128, 32, 12), (40, 77, 8, 5))
    shapes = {
        "space_dict": (codes, code_width), "logit_scale": (1,), "logit_scale_sd": (1,),
        "visual.class_embedding": (width,), "visual.positional_embedding": ((side // patch) ** 2 + 1, width),
        "visual.proj": (width, joint), "visual.conv1.weight": (width, 3, patch, patch),
        "encode_text.positional_embedding": (context, text_width),
        "encode_text.token_embedding.weight": (len(terms), text_width),
        "encode_text.text_projection.weight": (joint, text_width), "encode_text.text_projection.bias": (joint,),
    }  # fmt: skip
    for name, columns in (("visual.ln_pre", width), ("visual.ln_post", width), ("encode_text.ln_final", text_width)):
        shapes |= {f"{name}.weight": (columns,), f"{name}.bias": (columns,)}
    shapes |= clip_block_shapes("visual.", width, layers) | clip_block_shapes("encode_text.", text_width, text_layers)
    for name, columns in (("img_query_model", width), ("txt_query_model", text_width)):
        for part, rows, inputs in (("1", code_width, columns), ("4", code_width, code_width)):
            shapes |= {f"{name}.q_map.{part}.weight": (rows, inputs), f"{name}.q_map.{part}.bias": (rows,)}
        for part, size in (("0", columns), ("3", code_width)):
            shapes |= {f"{name}.q_map.{part}.weight": (size,), f"{name}.q_map.{part}.bias": (size,)}
    weights = random_weights(shapes, seed)
    kind, pool = draw(seed, ("sparsemax", "max"), ("softmax", "mean"), ("sigmoid", "sum"))
    decay = draw(seed, (1000, 2700, 0.75, 0.01), (50, 100, 0.3, 2.0), (7.5, 1, 1, 0.01))
    iteration = draw(seed, 12345, 100000, 17)
    temperature = max(decay[0] * decay[2] ** (iteration / decay[1]), decay[3])
    about = {
        "image_encode": {"embed_dim": joint, "width": width, "layers": layers, "heads": heads, "patch_size": patch},
        "text_encode": {
            "bpe_path": "/somewhere/else/bpe.txt.gz", "embed_dim": joint, "transformer_width": text_width,
            "transformer_heads": text_heads, "transformer_layers": text_layers, "context_length": context,
        },
        "fdt": {
            "sd_temperature": 3, "att_func_type": kind, "pool_type": pool, "sd_num": codes, "sd_dim": code_width,
            "raw_img_ft_dim": width, "raw_txt_ft_dim": text_width,
        },
    }  # fmt: skip
    names = ("org_t", "sd_T_decay_iter", "sd_T_decay_w", "sd_T_min")
    config = {
        "model": {"type": "clip_fdt", "kwargs": {"clip": about} if nested else about},
        "t_decay": dict(zip(names, decay, strict=True)),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = {f"module.{key}": value for key, value in weights.items()}
    torch.save({"last_iter": iteration, "model": stored, "optimizer": {"state": {}}}, tmp_path / "ckpt_5.pth.tar")
    raw = load_encoder("fdt", str(tmp_path), device="cpu", normalise=False)
    model = load_encoder("fdt", str(tmp_path), device="cpu")
    features = load_encoder("fdt", str(tmp_path), device="cpu", space="features")
    codebook = weights["space_dict"]

    def attended(states: torch.Tensor, name: str, real: int | None) -> torch.Tensor:
        x = ln(states, weights, f"{name}.q_map.0", 1e-5)
        x = ln(gelu(dense(x, weights, f"{name}.q_map.1")), weights, f"{name}.q_map.3", 1e-5)
        relevance = dense(x, weights, f"{name}.q_map.4") @ codebook.T / code_width**0.5  # [B, L, K]
        if real is not None:
            relevance[:, real:] = 0
        relevance = relevance / temperature
        pooled = {"max": relevance.amax(1), "mean": relevance.mean(1), "sum": relevance.sum(1)}[pool]
        if kind == "softmax":
            return pooled.softmax(1)
        if kind == "sigmoid":
            return torch.sigmoid(pooled)
        return torch.from_numpy(np.stack([project_on_simplex(row) for row in pooled.double().numpy()])).float()

    def check(found: torch.Tensor, side_of: str, items: list, first: int) -> None:
        count = len(found)
        # At an extreme temperature float32 relevances are large; the weights' tolerance is the golden data's.
        piece = items[first : first + count]
        close(getattr(raw, side_of).weights(piece).toarray(), found, atol=1e-5, rtol=2e-4)
        close(getattr(model, side_of).weights(piece).toarray(), unit(found), atol=5e-5, rtol=5e-4)
        mixed = found / found.sum(1, keepdim=True) if kind == "sigmoid" else found
        close(getattr(features, side_of).vectors(piece), unit(mixed @ codebook), atol=2e-4, rtol=1e-3)

    for number, text in enumerate(TEXTS):
        inner = byte_pairs(text, merges, ids)
        tokens = [ids["<|startoftext|>"], *inner, ids["<|endoftext|>"]]
        if len(tokens) > context:
            tokens = [*tokens[: context - 1], ids["<|endoftext|>"]]
        row = torch.tensor([tokens + [0] * (context - len(tokens))])
        later = torch.full((context, context), -torch.inf).triu(1)[None, None]
        x = weights["encode_text.token_embedding.weight"][row] + weights["encode_text.positional_embedding"]
        x = clip_blocks(x, weights, "encode_text.", text_layers, text_heads, later)
        x = ln(x, weights, "encode_text.ln_final", 1e-5)
        check(attended(x, "txt_query_model", len(tokens)), "query", TEXTS, number)

    shorter = round(side * 256 / 224)
    crops = [
        shorter_side_crop(p, shorter, side, BILINEAR, floor=False) for p in pictures
    ]  # fmt: skip
    pixels = pixels_of(crops, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    x = conv2d(pixels, weights["visual.conv1.weight"], stride=patch).flatten(2).transpose(1, 2)
    x = torch.cat([weights["visual.class_embedding"].expand(len(x), 1, -1), x], dim=1)
    x = ln(x + weights["visual.positional_embedding"], weights, "visual.ln_pre", 1e-5)
    x = clip_blocks(x, weights, "visual.", layers, heads)[:, 1:]
    check(attended(x, "img_query_model", None), "document", pictures, 0)
