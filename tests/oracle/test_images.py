"""VDR cross-modal, LexLIP, STAIR and FDT against their equations written afresh, on drawn sizes, texts and images."""

import gzip
import html
import json
import re

import numpy as np
import pytest
import torch
from oracle_parts import (
    CLIP_MEAN,
    CLIP_STD,
    SEEDS,
    TEXTS,
    bert,
    bert_config,
    byte_symbols,
    clip_block_shapes,
    clip_blocks,
    clip_vision,
    clip_vision_shapes,
    close,
    config_shapes,
    dense,
    dense_shapes,
    draw,
    elu1p,
    later_positions,
    ln,
    norm_shapes,
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
from torch.nn.functional import gelu

from lexvl_anserini.encoders.loading import load_encoder

BILINEAR, BICUBIC = 2, 3


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[str]:
    return write_pictures(tmp_path_factory.mktemp("pictures"), seed=11)


def bert_of(config, weights, ids, mask) -> torch.Tensor:
    sizes = config.num_hidden_layers, config.num_attention_heads
    return bert(weights, "encoder_q.bert_model.", ids, mask, *sizes)


# ---- VDR cross-modal


@pytest.mark.parametrize("seed", SEEDS)
def test_vdr_crossmodal(golden, pictures, tmp_path, seed):
    size = draw(seed, 1500, 1999, 1200)
    config = bert_config(seed, size)
    (tmp_path / "base").mkdir()
    config.save_pretrained(tmp_path / "base")
    tokenizer = write_wordpieces(golden, tmp_path / "base", size)
    strings = tokenizer.convert_ids_to_tokens(range(size))
    valid = [token for token in range(999, size) if all(ord(letter) < 128 for letter in strings[token])]
    assert len(valid) < size - 999, "some tokens are not ASCII"
    side, patch = draw(seed, (64, 16), (40, 8), (63, 21))
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (20, 2, 2))
    shapes = config_shapes("encoder_q.bert_model.", config)
    shapes |= norm_shapes(config.hidden_size, "encoder_q.ln") | {"encoder_p.proj": (len(valid), width)}
    shapes |= clip_vision_shapes("encoder_p.", width, layers, side, patch, class_token=False)
    weights = random_weights(shapes, seed)
    save_file(weights, tmp_path / "model.safetensors")
    topk, length = draw(seed, 30, 512, 9000), draw(seed, 20, 33, 48)
    settings = {
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
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = load_encoder("vdr-crossmodal", str(tmp_path), device="cpu")
    assert list(model.query.vocabulary.terms) == [strings[token] for token in valid]

    rows = tokenizer(TEXTS, truncation=True, max_length=length)["input_ids"]
    ids, mask = padded(rows, length)
    hidden = bert_of(config, weights, ids, mask)
    matrix = weights["encoder_q.bert_model.embeddings.word_embeddings.weight"][valid]
    wanted = unit(elu1p((ln(hidden, weights, "encoder_q.ln", 1e-5) @ matrix.T).amax(1)))
    close(model.query.dense_weights(TEXTS, 4), wanted, atol=2e-6)
    for row, found, dense_row in zip(rows, model.query.weights(TEXTS, 4), wanted, strict=True):
        own = {valid.index(token) for token in row if token in valid}
        assert set(found.indices) == top_columns(dense_row, topk) | own

    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    x = ln(clip_vision(pixels, weights, "encoder_p.", layers, heads), weights, "encoder_p.ln_post", 1e-5)
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
    config = bert_config(seed, size)
    (tmp_path / "text").mkdir()
    config.save_pretrained(tmp_path / "text")
    tokenizer = write_wordpieces(golden, tmp_path / "text", size)
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (36, 2, 2))
    grid, patch, features = draw(seed, (2, 8, 12), (1, 10, 32), (3, 7, 20))
    side = 2 * grid * patch
    terms = tokenizer.convert_ids_to_tokens(range(size))[draw(seed, 1100, 1000, 1150) :]
    (tmp_path / "terms.txt").write_text("".join(f"{term}\n" for term in terms), encoding="utf-8")
    shapes = config_shapes("encoder_q.bert_model.", config)
    shapes |= clip_vision_shapes("encoder_p.backbone.", width, layers, side, patch, class_token=False)
    shapes |= {"encoder_p.standard.mean": (width,), "encoder_p.standard.std": (width,)}
    for at, states in (("encoder_q.", config.hidden_size), ("encoder_p.", width)):
        shapes |= dense_shapes(f"{at}head.dense", features, states) | norm_shapes(features, f"{at}head.norm")
        shapes |= {f"{at}head.bias": (len(terms),), f"{at}proj": (len(terms), features)}
    weights = random_weights(shapes, seed)
    weights["encoder_p.standard.std"] = weights["encoder_p.standard.std"].abs() + 0.5
    save_file(weights, tmp_path / "model.safetensors")
    shape = {"resolution": side, "patch_size": patch, "width": width, "layers": layers, "heads": heads}
    settings = {
        "encoder_q": {"type": "lexlip_text", "model_id": "text", "max_len": 40, "terms": "terms.txt"},
        "encoder_p": {"type": "lexlip_image", "grid": grid, **shape},
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = load_encoder("lexlip", str(tmp_path), device="cpu")
    assert list(model.vocabulary.terms) == terms

    def encoded(states: torch.Tensor, at: str) -> torch.Tensor:
        transformed = ln(gelu(dense(states, weights, f"{at}head.dense")), weights, f"{at}head.norm", 1e-12)
        logits = transformed @ weights[f"{at}proj"].T + weights[f"{at}head.bias"]
        return unit(torch.log1p(logits.amax(1).clamp(min=0)))

    rows = tokenizer(TEXTS, truncation=True, max_length=40)["input_ids"]
    for row, found in zip(rows, model.query.weights(TEXTS, 4), strict=True):
        ids, mask = padded([row], len(row))
        states = bert_of(config, weights, ids, mask)
        close(found.toarray(), encoded(states, "encoder_q."), atol=2e-6)

    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    at = "encoder_p.backbone."
    x = ln(clip_vision(pixels, weights, at, layers, heads), weights, f"{at}ln_post", 1e-5)
    patches = x.view(len(x), grid, 2, grid, 2, width)  # a cell is the mean of 2 x 2 patches
    cells = torch.cat([x.mean(1, keepdim=True), patches.mean((2, 4)).flatten(1, 2)], dim=1)
    cells = (cells - weights["encoder_p.standard.mean"]) / weights["encoder_p.standard.std"]
    close(model.document.weights(pictures, 4).toarray(), encoded(cells, "encoder_p."), atol=1e-5, rtol=1e-4)


# ---- STAIR


@pytest.mark.parametrize("seed", SEEDS)
def test_stair(golden, pictures, tmp_path, seed):
    size = draw(seed, 1500, 1999, 1200)
    tokenizer = write_wordpieces(golden, tmp_path, size)
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
        "text_head.bias": (size,), "image_head.bias": (size,),
    }  # fmt: skip
    shapes |= clip_block_shapes("text.", width, layers) | norm_shapes(width, "text.ln_final")
    shapes |= clip_vision_shapes("image.", image_width, image_layers, side, patch, class_token)
    for name, states in (("text_head", width), ("image_head", image_width)):
        inner = states if bridge else width
        shapes |= dense_shapes(f"{name}.dense", inner, states) | norm_shapes(inner, f"{name}.norm")
        if inner != width:
            shapes[f"{name}.bridge.weight"] = (width, inner)
    weights = random_weights(shapes, seed)
    save_file(weights, tmp_path / "model.safetensors")
    settings = {
        "model_type": "stair", "vocab_size": size, "bridge": bridge, "layer_norm_eps": eps, "prompt": prompt,
        "stage": "single", "mask_specials": False, "padding": "none",
        "text": {"width": width, "layers": layers, "heads": heads, "max_length": length, "causal": causal},
        "image": {
            "resolution": side, "patch_size": patch, "width": image_width, "layers": image_layers,
            "heads": image_heads, "class_token": class_token,
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
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
        later = later_positions(len(row)) if causal else None
        x = ln(clip_blocks(x, weights, "text.", layers, heads, later), weights, "text.ln_final", 1e-5)
        wanted = encoded(x, "text_head")
        close(found.toarray(), unit(wanted), atol=2e-6)
        own = torch.zeros(size).scatter_(
            0, torch.tensor([t for t in row if t not in (0, 101, 102)], dtype=torch.long), 1.0
        )
        close(own_found.toarray(), torch.nn.functional.normalize(wanted * own, dim=1), atol=2e-6)

    pixels = pixels_of([shorter_side_crop(p, side, side, BICUBIC, floor=False) for p in pictures], CLIP_MEAN, CLIP_STD)
    x = ln(clip_vision(pixels, weights, "image.", image_layers, image_heads), weights, "image.ln_post", 1e-5)
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

    symbol = byte_symbols()
    rank = {pair: n for n, pair in enumerate(merges)}
    text = re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(text))).strip()).strip().lower()
    pattern = r"<\|mask\|>|<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokens: list[int] = []
    for piece in regex.findall(pattern, text, regex.IGNORECASE):
        if piece in ids and piece.startswith("<|"):
            tokens.append(ids[piece])
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
        tokens += [ids[part] for part in word]
    return tokens


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
    pairs = ("t h", "th e</w>", "o c", "d o", "do g", "dog s</w>", "e r", "a n", "an d</w>")
    merges = [tuple(pair.split()) for pair in pairs[: draw(seed, 9, 4, 7)]]
    end = draw(seed, "", "\n")
    with gzip.open(tmp_path / "bpe.txt.gz", "wt", encoding="utf-8") as out:
        out.write('"bpe_simple_vocab"#version: 0.2\n' + "\n".join(map(" ".join, merges)) + end)
    symbols = byte_symbols().values()
    terms = [*symbols, *(f"{s}</w>" for s in symbols), *map("".join, merges), *([""] if end else [])]
    terms += ["<|mask|>", "<|startoftext|>", "<|endoftext|>"]
    ids = {term: n for n, term in enumerate(terms)}

    side, patch = draw(seed, (56, 14), (112, 28), (28, 7))
    width, layers, heads = draw(seed, (24, 1, 3), (16, 3, 4), (20, 2, 2))
    text_width, text_layers, text_heads = draw(seed, (16, 2, 2), (24, 1, 4), (36, 3, 3))
    context, codes, code_width, joint = draw(seed, (77, 300, 20, 9), (25, 128, 32, 12), (40, 77, 8, 5))
    shapes = {
        "space_dict": (codes, code_width), "logit_scale": (1,), "logit_scale_sd": (1,),
        "visual.proj": (width, joint),
        "encode_text.positional_embedding": (context, text_width),
        "encode_text.token_embedding.weight": (len(terms), text_width),
    } | dense_shapes("encode_text.text_projection", joint, text_width)  # fmt: skip
    shapes |= clip_vision_shapes("visual.", width, layers, side, patch, class_token=True)
    shapes |= clip_block_shapes("encode_text.", text_width, text_layers)
    shapes |= norm_shapes(text_width, "encode_text.ln_final")
    for name, columns in (("img_query_model.q_map", width), ("txt_query_model.q_map", text_width)):
        shapes |= norm_shapes(columns, f"{name}.0") | dense_shapes(f"{name}.1", code_width, columns)
        shapes |= norm_shapes(code_width, f"{name}.3") | dense_shapes(f"{name}.4", code_width, code_width)
    weights = random_weights(shapes, seed)
    kind, pool = draw(seed, ("sparsemax", "max"), ("softmax", "mean"), ("sigmoid", "sum"))
    decay = draw(seed, (1000, 2700, 0.75, 0.01), (50, 100, 0.3, 2.0), (7.5, 1, 1, 0.01))
    iteration = draw(seed, 12345, 100000, 17)
    temperature = max(decay[0] * decay[2] ** (iteration / decay[1]), decay[3])
    settings = {
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
        "model": {"type": "clip_fdt", "kwargs": {"clip": settings} if nested else settings},
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

    def check(expected: torch.Tensor, side_of: str, items: list) -> None:
        # At an extreme temperature float32 relevances are large; the weights' tolerance is the golden data's.
        close(getattr(raw, side_of).weights(items).toarray(), expected, atol=1e-5, rtol=2e-4)
        close(getattr(model, side_of).weights(items).toarray(), unit(expected), atol=5e-5, rtol=5e-4)
        mixed = expected / expected.sum(1, keepdim=True) if kind == "sigmoid" else expected
        close(getattr(features, side_of).vectors(items), unit(mixed @ codebook), atol=2e-4, rtol=1e-3)

    for text in TEXTS:
        inner = byte_pairs(text, merges, ids)
        tokens = [ids["<|startoftext|>"], *inner, ids["<|endoftext|>"]]
        if len(tokens) > context:
            tokens = [*tokens[: context - 1], ids["<|endoftext|>"]]
        row = torch.tensor([tokens + [0] * (context - len(tokens))])
        x = weights["encode_text.token_embedding.weight"][row] + weights["encode_text.positional_embedding"]
        x = clip_blocks(x, weights, "encode_text.", text_layers, text_heads, later_positions(context))
        x = ln(x, weights, "encode_text.ln_final", 1e-5)
        check(attended(x, "txt_query_model", len(tokens)), "query", [text])

    shorter = round(side * 256 / 224)
    crops = [shorter_side_crop(p, shorter, side, BILINEAR, floor=False) for p in pictures]
    pixels = pixels_of(crops, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    x = clip_vision(pixels, weights, "visual.", layers, heads)[:, 1:]
    check(attended(x, "img_query_model", None), "document", pictures)
