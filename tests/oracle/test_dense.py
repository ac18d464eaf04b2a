"""CLIP, BLIP and ALBEF, and D2S and Joint, against transformers' classes or formulas written afresh, on drawn sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from oracle_parts import (
    CLIP_MEAN,
    CLIP_STD,
    SEEDS,
    TEXTS,
    attention,
    bert,
    bert_shapes,
    byte_symbols,
    close,
    dense,
    dense_shapes,
    draw,
    ln,
    norm_shapes,
    padded,
    pixels_of,
    random_weights,
    randomise,
    shorter_side_crop,
    top_columns,
    unit,
    write_pictures,
    write_wordpieces,
)
from PIL import Image
from safetensors.torch import save_file

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.features import Embedded


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[str]:
    return write_pictures(tmp_path_factory.mktemp("pictures"), seed=7)


def write_clip_tokenizer(folder: Path, seed: int) -> int:
    """A byte-level BPE in CLIP's files; returns its number of tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    symbols = byte_symbols().values()
    merges = ["t h", "th e</w>", "a n", "i n", "d o", "do g</w>", "e r</w>"][: draw(seed, 7, 3, 5)]
    terms = [*symbols, *(f"{s}</w>" for s in symbols), *(merge.replace(" ", "") for merge in merges)]
    terms += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({term: n for n, term in enumerate(terms)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": 77,
        "pad_token": draw(seed, "!", "<|endoftext|>"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(terms)


def sizes(seed: int, drawn: list[tuple[int, ...]], **others: object) -> dict:
    """The drawn sizes of a network, with other keys of its configuration."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {name: draw(seed, *choices) for name, choices in zip(names, drawn, strict=True)} | others


TEXT_SIZES = [(24, 32, 40), (48, 30, 64), (1, 2, 3), (2, 4, 5)]
IMAGE_SIZES = [(36, 20, 28), (50, 44, 32), (2, 1, 2), (3, 4, 2)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["highest", "first"])
def test_clip(pictures, tmp_path, seed, end):
    size = write_clip_tokenizer(tmp_path, seed)
    side, patch = draw(seed, (40, 8), (36, 12), (21, 7))
    shared = {
        "hidden_act": draw(seed, "quick_gelu", "gelu", "gelu_new"),
        "layer_norm_eps": draw(seed, 1e-5, 1e-3, 1e-6),
    }
    specials = {"eos_token_id": 2 if end == "highest" else size - 1, "bos_token_id": size - 2, "pad_token_id": 0}
    limit = draw(seed, 77, 20, 33)
    text = sizes(seed, TEXT_SIZES, vocab_size=size, max_position_embeddings=limit, **specials, **shared)
    vision = sizes(seed, IMAGE_SIZES, image_size=side, patch_size=patch, **shared)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=draw(seed, 11, 24, 17))
    model = randomise(transformers.CLIPModel(config), seed)
    model.save_pretrained(tmp_path)
    shorter = side + draw(seed, 0, 5, 3)
    mean, std, resample = draw(
        seed, (CLIP_MEAN, CLIP_STD, 3), ((0.5,) * 3, (0.25,) * 3, 2), ((0.1, 0.2, 0.3), CLIP_STD, 1)
    )
    settings = {
        "image_processor_type": "CLIPImageProcessor", "do_resize": True, "do_center_crop": True, "do_rescale": True,
        "do_normalize": True, "image_mean": mean, "image_std": std, "resample": resample,
        "size": draw(seed, {"shortest_edge": shorter}, shorter),
        "crop_size": draw(seed, {"height": side, "width": side}, side),
    }  # fmt: skip
    if draw(seed, True, False):  # as transformers 5 saves a processor, and as before
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    else:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    prompt = draw(seed, "", "a photo of ")
    ours = load_encoder("clip", str(tmp_path), device="cpu", prompt=prompt)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    with torch.no_grad():
        for caption, found in zip(TEXTS, ours.query.vectors(TEXTS, 4), strict=True):
            inputs = tokenizer(prompt + caption, truncation=True, max_length=limit, return_tensors="pt")
            states = model.text_model(**inputs).pooler_output
            close(found, unit(model.text_projection(states))[0])
        crops = [shorter_side_crop(path, shorter, side, resample, floor=True) for path in pictures]
        states = model.vision_model(pixels_of(crops, mean, std)).pooler_output
        close(ours.document.vectors(pictures, 4), unit(model.visual_projection(states)), atol=5e-5)


def squeezed(path: str, side: int, resample: int = Image.Resampling.BICUBIC) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB").resize((side, side), resample))


@pytest.mark.parametrize("seed", SEEDS)
def test_blip_of_transformers(golden, pictures, tmp_path, seed):
    size, extra = draw(seed, 1300, 1999, 1024), 2
    tokenizer = write_wordpieces(golden, tmp_path, size)
    side, patch = draw(seed, (40, 8), (36, 12), (32, 16))
    vision = sizes(seed, IMAGE_SIZES, image_size=side, patch_size=patch, layer_norm_eps=draw(seed, 1e-5, 1e-6, 1e-3))
    text = sizes(
        seed, TEXT_SIZES, vocab_size=size + extra, max_position_embeddings=draw(seed, 64, 40, 100), bos_token_id=size,
        layer_norm_eps=draw(seed, 1e-12, 1e-5, 1e-7), sep_token_id=102, eos_token_id=102,
        encoder_hidden_size=vision["hidden_size"],
    )  # fmt: skip
    config = transformers.BlipConfig(
        text_config=text, vision_config=vision, image_text_hidden_size=draw(seed, 9, 14, 20)
    )
    model = randomise(transformers.BlipForImageTextRetrieval(config), seed)
    model.save_pretrained(tmp_path)
    mean, std = draw(seed, (CLIP_MEAN, CLIP_STD), ((0.5,) * 3, (0.25,) * 3))
    resample = draw(seed, 3, 2, 3)
    settings = {
        "image_processor_type": "BlipImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "size": {"height": side, "width": side}, "image_mean": mean, "image_std": std, "resample": resample,
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    ours = load_encoder("blip", str(tmp_path), device="cpu")
    with torch.no_grad():
        pixels = pixels_of([squeezed(p, side, resample) for p in pictures], mean, std)
        images = unit(model.vision_proj(model.vision_model(pixels).last_hidden_state[:, 0]))
        close(ours.document.vectors(pictures, 4), images, atol=5e-5)
        for caption, found in zip(TEXTS, ours.query.vectors(TEXTS, 4), strict=True):
            inputs = tokenizer(caption, truncation=True, max_length=35, return_tensors="pt")
            states = model.text_encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
            wanted = unit(model.text_proj(states[:, 0]))
            close(found, wanted[0])
            # The same through the model's own forward, which multiplies the two.
            whole = model(inputs["input_ids"], pixels[:1], use_itm_head=False, attention_mask=inputs["attention_mask"])
            close((images[:1] @ wanted.T), whole.itm_score, atol=5e-5)


def vit_shapes(width: int, layers: int, inner: int, patches: int, patch: int) -> dict[str, tuple[int, ...]]:
    """timm's ViT as LAVIS names it."""
    at = "visual_encoder."
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}cls_token": (1, 1, width),
        f"{at}pos_embed": (1, 1 + patches, width),
        f"{at}patch_embed.proj.weight": (width, 3, patch, patch),
        f"{at}patch_embed.proj.bias": (width,),
    }
    shapes |= norm_shapes(width, f"{at}norm")
    for layer in range(layers):
        block = f"{at}blocks.{layer}."
        shapes |= dense_shapes(f"{block}attn.qkv", 3 * width, width) | dense_shapes(f"{block}attn.proj", width, width)
        shapes |= dense_shapes(f"{block}mlp.fc1", inner, width) | dense_shapes(f"{block}mlp.fc2", width, inner)
        shapes |= norm_shapes(width, f"{block}norm1", f"{block}norm2")
    return shapes


def vit(weights: dict[str, torch.Tensor], pixels: torch.Tensor, layers: int, heads: int) -> torch.Tensor:
    at = "visual_encoder."
    patch = weights[f"{at}patch_embed.proj.weight"]
    x = torch.nn.functional.conv2d(pixels, patch, weights[f"{at}patch_embed.proj.bias"], stride=patch.shape[-1])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([weights[f"{at}cls_token"].expand(len(x), 1, -1), x], dim=1) + weights[f"{at}pos_embed"]
    for layer in range(layers):
        block = f"{at}blocks.{layer}."
        packed = dense(ln(x, weights, f"{block}norm1", 1e-6), weights, f"{block}attn.qkv")
        x = x + dense(attention(*packed.chunk(3, dim=-1), heads), weights, f"{block}attn.proj")
        inner = torch.nn.functional.gelu(dense(ln(x, weights, f"{block}norm2", 1e-6), weights, f"{block}mlp.fc1"))
        x = x + dense(inner, weights, f"{block}mlp.fc2")
    return ln(x, weights, f"{at}norm", 1e-6)


def cleaned(caption: str) -> str:
    for mark in '.!"()*#:;~':
        caption = caption.replace(mark, " ")
    words = " ".join(part for part in caption.lower().replace("\t", " ").split(" ") if part)
    return " ".join(words.split(" ")[:50])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["blip", "albef"])
@pytest.mark.parametrize("heads_from", ["an option", "a file"])
def test_lavis_files(golden, pictures, tmp_path, seed, family, heads_from):
    size = draw(seed, 1300, 1999, 1024)
    tokenizer = write_wordpieces(golden, tmp_path / "tokens", size)
    rows = size + (2 if family == "blip" else 0)
    head = draw(seed, 8, 4, 8)
    width, text_width = draw(seed, (24, 16), (16, 32), (24, 48))
    grid, patch = draw(seed, (3, 8), (2, 16), (5, 7))
    layers, text_layers, fusion = draw(seed, (1, 3, 1), (3, 2, 1), (2, 5, 3))
    inner, text_inner, positions = draw(seed, (40, 24, 60), (64, 128, 40), (16, 50, 77))
    shapes = vit_shapes(width, layers, inner, grid * grid, patch)
    shapes |= bert_shapes("text_encoder.", rows, text_width, text_layers, text_inner, positions)
    del shapes["text_encoder.embeddings.token_type_embeddings.weight"]
    for layer in range(0 if family == "blip" else fusion, text_layers):
        at = f"text_encoder.encoder.layer.{layer}.crossattention."
        for name, columns in (("query", text_width), ("key", width), ("value", width)):
            shapes |= dense_shapes(f"{at}self.{name}", text_width, columns)
        shapes |= dense_shapes(f"{at}output.dense", text_width, text_width)
        shapes |= norm_shapes(text_width, f"{at}output.LayerNorm")
    text_heads = text_width // head
    heads = width // head if heads_from == "an option" else text_heads
    eps = 1e-12 if heads_from == "an option" else 1e-4
    size_of_vector = draw(seed, 6, 10, 8)
    for name, columns in (("vision_proj", width), ("text_proj", text_width), ("itm_head", text_width)):
        shapes |= dense_shapes(name, size_of_vector, columns)
    weights = random_weights(shapes, seed)
    queues = {"image_queue": torch.randn(size_of_vector, 7), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    momentum = {f"visual_encoder_m.{n}": torch.zeros(1) for n in ("cls_token", "pos_embed")}
    extra = {
        "temp": torch.tensor(0.07), **queues, **momentum,
        "text_encoder.embeddings.position_ids": torch.arange(positions)[None],
    }  # fmt: skip
    path = tmp_path / f"{family}_coco_retrieval.pth"
    torch.save({"model": {**weights, **extra}}, path)
    options = {"tokenizer": str(tmp_path / "tokens")}
    if heads_from == "an option":
        options["head_width"] = head
    else:
        settings = {"num_attention_heads": text_heads, "hidden_size": text_width, "layer_norm_eps": eps}
        (tmp_path / "med_config.json").write_text(json.dumps(settings))
    ours = load_encoder(family, str(path), device="cpu", **options)
    side = grid * patch
    pixels = pixels_of([squeezed(p, side) for p in pictures], CLIP_MEAN, CLIP_STD)
    states = vit(weights, pixels, layers, heads)
    close(ours.document.vectors(pictures, 4), unit(dense(states[:, 0], weights, "vision_proj")), atol=5e-5)
    captions = [*TEXTS, 'A (very) *odd*  caption: #1; ~ "quoted"!', "word " * 60]
    rows_of_ids = tokenizer([cleaned(c) for c in captions], truncation=True, max_length=35)["input_ids"]
    for row, found in zip(rows_of_ids, ours.query.vectors(captions, 4), strict=True):
        ids, mask = padded([row], len(row))
        read = text_layers if family == "blip" else fusion
        states = bert(weights, "text_encoder.", ids, mask, read, text_heads, token_types=False, eps=eps)
        close(found, unit(dense(states[:, 0], weights, "text_proj"))[0])


# ---- D2S and Joint: lexical heads over vectors


def vectors_of(seed: int, width: int, length: bool) -> torch.Tensor:
    """A vector per text, in double the usual spread so that many dimensions are below 0."""
    vectors = 2 * torch.randn(len(TEXTS), width, generator=torch.Generator().manual_seed(seed))
    return unit(vectors) if length else vectors


def own_mask(tokenizer, text: str, size: int, specials: bool) -> torch.Tensor:
    """1 at the tokens of a text of at most 512 tokens."""
    ids = tokenizer(text, truncation=True, max_length=512, add_special_tokens=specials)["input_ids"]
    mask = torch.zeros(size)
    mask[ids] = 1
    mask[[0] if specials else [0, 101, 102]] = 0
    return mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["safetensors", "bin", "model.pt"])
def test_d2s(golden, tmp_path, seed, layout):
    size, width, inner = draw(seed, (1300, 12, 20), (1999, 30, 16), (1024, 8, 44))
    tokenizer = write_wordpieces(golden, tmp_path / "tokens", size)
    shapes = dense_shapes("proj", inner, width) | dense_shapes("vocab_projector", size, inner)
    shapes |= norm_shapes(inner, "vocab_layer_norm")
    weights = random_weights(shapes, seed)
    checkpoint = tmp_path / "d2s"
    checkpoint.mkdir()
    if layout == "model.pt":
        checkpoint = checkpoint / "model.pt"
        torch.save(weights, checkpoint)
    else:
        config = {"model_type": "d2s", "architectures": ["D2SModel"], "mlm_head": "nowhere/at-all", "dense_size": width}
        (checkpoint / "config.json").write_text(json.dumps(config))
        if layout == "bin":
            torch.save(weights, checkpoint / "pytorch_model.bin")
        else:
            save_file(weights, checkpoint / "model.safetensors")
    vectors = vectors_of(seed, width, length=True)
    hidden = ln(dense(vectors, weights, "proj"), weights, "vocab_layer_norm", 1e-12)
    wanted = torch.log1p(dense(hidden, weights, "vocab_projector").clamp(min=0))
    texts = [Embedded(text, vector.numpy()) for text, vector in zip(TEXTS, vectors, strict=True)]

    def load(**options):
        return load_encoder("d2s", str(checkpoint), device="cpu", tokenizer=str(tmp_path / "tokens"), **options)

    expanded = load(topk=7)
    close(expanded.query.weights(texts, 4).toarray()[:, :5], (wanted * top_masks(wanted, 7))[:, :5])
    close(load().query.weights(texts, 4).toarray(), wanted)
    close(load().document.weights(list(vectors.numpy()), 4).toarray(), wanted)
    for option, specials in (("masked", True), ("words", False)):
        model = load(text=option)
        masks = torch.stack([own_mask(tokenizer, text, size, specials) for text in TEXTS])
        close(model.query.weights(texts, 4).toarray(), wanted * masks)
        close(model.document.weights(list(vectors.numpy()), 4).toarray(), wanted)


def top_masks(rows: torch.Tensor, k: int) -> torch.Tensor:
    mask = torch.zeros_like(rows)
    for row, columns in zip(mask, (top_columns(row, k) for row in rows), strict=True):
        row[sorted(columns)] = 1
    return mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", ["lightning", "bare"])
def test_joint(golden, tmp_path, seed, tied, layout):
    size, hidden, width, inner = draw(seed, (1300, 12, 20, 9), (1999, 30, 16, 24), (1024, 8, 44, 16))
    tokenizer = write_wordpieces(golden, tmp_path / "tokens", size)
    rows = size + draw(seed, 2, 0, 2)  # BLIP's vocabulary has [DEC] and [ENC] besides
    shapes = dense_shapes("text_proj", width, hidden) | dense_shapes("vision_proj", width, hidden)
    shapes |= dense_shapes("single_proj", inner, width) | norm_shapes(inner, "single_vocab_layer_norm")
    shapes |= dense_shapes("single_vocab_projector", rows, inner)
    if tied:
        del shapes["single_vocab_projector.bias"]
    weights = random_weights(shapes, seed)
    # Small states before the LayerNorm, so that its epsilon shows.
    weights["single_proj.weight"] *= 0.02
    weights["single_proj.bias"] *= 0.02
    checkpoint = tmp_path / "checkpoint_best.ckpt"
    stored = {f"model.{key}": value for key, value in weights.items()} if layout == "lightning" else weights
    temperature = torch.tensor(0.05)
    if layout == "lightning":
        outer = {
            "epoch": 2, "global_step": 9, "state_dict": {**stored, "temp": temperature, "loss_fn.temp": temperature},
            "hyper_parameters": {"config": {"w1": 0.2}}, "q_reg_t": 3, "q_reg_weight_t": 1e-5,
        }  # fmt: skip
        torch.save(outer, checkpoint)
    else:
        torch.save(stored, checkpoint)
    states = vectors_of(seed, hidden, length=False)
    eps = 1e-5 if tied else 1e-12
    texts = [Embedded(text, state.numpy()) for text, state in zip(TEXTS, states, strict=True)]

    def load(**options):
        return load_encoder("joint", str(checkpoint), device="cpu", tokenizer=str(tmp_path / "tokens"), **options)

    both = {}
    for side in ("text", "vision"):
        vectors = unit(dense(states, weights, f"{side}_proj"))
        features = ln(dense(vectors, weights, "single_proj"), weights, "single_vocab_layer_norm", eps)
        logits = dense(features, weights, "single_vocab_projector")
        both[side] = vectors, torch.log1p(logits.clamp(min=0))
    pictures = list(states.numpy())
    model = load()
    close(model.query.weights(texts, 4).toarray(), both["text"][1])
    close(model.document.weights(pictures, 4).toarray(), both["vision"][1])
    assert list(model.query.vocabulary.terms)[size:] == ["[DEC]", "[ENC]"][: rows - size]
    vectors = load(vectors="dense")
    close(vectors.query.vectors(texts, 4), both["text"][0])
    close(vectors.document.vectors(pictures, 4), both["vision"][0])
    for option, specials in (("masked", True), ("words", False)):
        masks = torch.stack([own_mask(tokenizer, text, rows, specials) for text in TEXTS])
        close(load(text=option).query.weights(texts, 4).toarray(), both["text"][1] * masks)
    reverse = load(direction="image-to-text")
    close(reverse.query.weights(pictures, 4).toarray(), both["vision"][1])
    assert np.array_equal(reverse.document.weights(texts).toarray() > 0, (both["text"][1] > 0).numpy())
