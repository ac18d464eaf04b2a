"""SPLADE, DPR and VDR on texts against transformers', sentence-transformers' and their formulas, on drawn sizes.

Every seed has other sizes, vocabularies, weights and options than the golden checkpoints.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from oracle_parts import (
    SEEDS,
    TEXTS,
    bert,
    bert_config,
    close,
    config_shapes,
    draw,
    elu1p,
    ln,
    norm_shapes,
    padded,
    random_weights,
    randomise,
    top_columns,
    write_wordpieces,
)
from safetensors.torch import save_file

from lexvl_anserini.encoders.families.splade import load_static_parts
from lexvl_anserini.encoders.loading import load_encoder


def any_bert_config(seed: int, size: int) -> transformers.BertConfig:
    act, eps = draw(seed, "gelu", "relu", "gelu_new"), draw(seed, 1e-12, 1e-5, 1e-3)
    return bert_config(seed, size, hidden_act=act, layer_norm_eps=eps, type_vocab_size=draw(seed, 2, 2, 3))


def distilbert_config(seed: int, size: int) -> transformers.DistilBertConfig:
    drawn = {
        "dim": (24, 16, 32), "n_layers": (2, 1, 3), "n_heads": (2, 4, 1), "hidden_dim": (64, 30, 48),
        "max_position_embeddings": (40, 64, 128), "activation": ("relu", "gelu", "gelu"),
    }  # fmt: skip
    options = {name: draw(seed, *choices) for name, choices in drawn.items()}
    return transformers.DistilBertConfig(vocab_size=size, sinusoidal_pos_embds=bool(seed % 2), **options)


@pytest.fixture(scope="module")
def tokenizer_of(golden: Path):
    return lambda folder, size: write_wordpieces(golden, folder, size)


def logits_of(model, tokenizer, texts, length):
    """Per text, masked-LM logits [L, V] of its own positions alone."""
    rows = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
    with torch.no_grad():
        return rows, [model(input_ids=torch.tensor([row])).logits[0].double() for row in rows]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_splade(tokenizer_of, tmp_path, seed, architecture):
    layout = draw(seed + len(architecture), "safetensors", "bin", "half")
    size = draw(seed, 1300, 1999, 1024)
    tokenizer = tokenizer_of(tmp_path, size)
    if architecture == "bert":
        model = randomise(transformers.BertForMaskedLM(any_bert_config(seed, size)), seed)
    else:
        model = randomise(transformers.DistilBertForMaskedLM(distilbert_config(seed, size)), seed)
    if layout == "half":
        model.half().save_pretrained(tmp_path)
        model.float()
    elif layout == "bin":
        model.config.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    else:
        model.save_pretrained(tmp_path)
    length = model.config.max_position_embeddings  # fewer than the default's 256 tokens
    rows, logits = logits_of(model, tokenizer, TEXTS, length)
    activations = [torch.log1p(x.clamp(min=0)) for x in logits]
    splade = load_encoder("splade", str(tmp_path), device="cpu")
    close(splade.document.weights(TEXTS, 4).toarray(), torch.stack([a.amax(0) for a in activations]))
    summed = load_encoder("splade", str(tmp_path), device="cpu", pooling="sum")
    close(summed.query.weights(TEXTS, 3).toarray(), torch.stack([a.sum(0) for a in activations]), rtol=2e-5)
    bags = load_encoder("splade", str(tmp_path), device="cpu", doc_only=True).query.weights(TEXTS)
    for row, bag in zip(rows, bags, strict=True):
        assert bag.indices.tolist() == sorted(set(row) - {0, 101, 102})
        assert (bag.data == 1).all()
    lexical = load_encoder("splade", str(tmp_path), device="cpu", lexical="both").query.weights(TEXTS).toarray()
    for row, weights, activation in zip(rows, lexical, activations, strict=True):
        own_terms = torch.zeros(size).scatter_(0, torch.tensor(row), 1.0)
        own_terms[[0, 101, 102]] = 0
        close(weights, activation.amax(0) * own_terms)
    top = load_encoder("splade", str(tmp_path), device="cpu", topk=9, query_topk=4).document.weights(TEXTS)
    for weights, activation in zip(top, activations, strict=True):
        pooled = activation.amax(0)
        assert set(weights.indices) == {c for c in top_columns(pooled.float(), 9) if pooled[c] > 0}


@pytest.mark.parametrize("seed", SEEDS)
def test_splade_as_sentence_transformers(tokenizer_of, tmp_path, seed):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    try:
        from sentence_transformers.base.modules import Router, Transformer
    except ImportError:
        from sentence_transformers.sentence_transformer.modules import Router, Transformer

    size = draw(seed, 1300, 1999, 1024)
    tokenizer = tokenizer_of(tmp_path / "mlm", size)
    randomise(transformers.BertForMaskedLM(any_bert_config(seed, size)), seed).save_pretrained(tmp_path / "mlm")
    pooling = SpladePooling(draw(seed, "max", "sum", "sum"), draw(seed, "log1p_relu", "log1p_relu", "relu"))
    network = Transformer(str(tmp_path / "mlm"), transformer_task="fill-mask")
    weight = torch.rand(size, generator=torch.Generator().manual_seed(seed)).sub(0.2).clamp(min=0)
    static = SparseStaticEmbedding(tokenizer, weight=weight)
    router = Router.for_query_document(query_modules=[static], document_modules=[network, pooling])
    theirs = SparseEncoder(
        modules=[router],
        device="cpu",
        prompts=draw(seed, {"query": "search for: ", "passage": "a text: "}, {"corpus": "c "}, {"all": "any "}),
        default_prompt_name=draw(seed, None, None, "all"),
        max_active_dims=draw(seed, 20, None, 40),
    )
    theirs.save_pretrained(str(tmp_path / "router"))
    ours = load_encoder("splade", str(tmp_path / "router"), device="cpu")
    close(ours.query.weights(TEXTS).toarray(), theirs.encode_query(TEXTS).to_dense())
    close(ours.document.weights(TEXTS).toarray(), theirs.encode_document(TEXTS).to_dense(), rtol=3e-5)


@pytest.mark.parametrize("lower_case", [False, True])
def test_lower_case_of_the_5x_layout(tokenizer_of, tmp_path, lower_case):
    """`do_lower_case` counts beside a tokenizer that keeps capitals."""
    from sentence_transformers import SparseEncoder

    tokenizer_of(tmp_path, 1999)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    randomise(transformers.BertForMaskedLM(any_bert_config(7, 1999)), 7).save_pretrained(tmp_path)
    types = "sentence_transformers.sparse_encoder.models."
    modules = [("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling")]
    rows = [{"idx": n, "name": str(n), "path": path, "type": types + name} for n, (path, name) in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    (tmp_path / "1_SpladePooling").mkdir()
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 1999}
    (tmp_path / "1_SpladePooling/config.json").write_text(json.dumps(pooling))
    limits = {"max_seq_length": 21, "do_lower_case": lower_case}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(limits))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    theirs = SparseEncoder(str(tmp_path), device="cpu")
    ours = load_encoder("splade", str(tmp_path), device="cpu")
    close(ours.document.weights(TEXTS).toarray(), theirs.encode_document(TEXTS).to_dense())


def test_idf_weights_of_a_file(tokenizer_of, tmp_path):
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    side = tmp_path / "query_0_SparseStaticEmbedding"
    tokenizer = tokenizer_of(side, 1300)
    words = tokenizer.convert_ids_to_tokens(list(range(1100, 1110)))
    (side / "idf.json").write_text(json.dumps({word: 0.5 + n for n, word in enumerate(words)}))
    (side / "config.json").write_text(json.dumps({"path": "idf.json"}))
    theirs = SparseStaticEmbedding.from_json(str(side / "idf.json"), tokenizer)
    close(load_static_parts(side, None).weight, theirs.weight.detach())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("projection", [0, 13])
def test_dpr(tokenizer_of, tmp_path, seed, projection):
    size = draw(seed, 1300, 1999, 1024)
    sizes = any_bert_config(seed, size).to_dict()
    del sizes["model_type"], sizes["architectures"]
    config = transformers.DPRConfig(**sizes, projection_dim=projection)
    question = randomise(transformers.DPRQuestionEncoder(config), seed)
    context = randomise(transformers.DPRContextEncoder(config), seed + 1)
    for name, model in (("question", question), ("context", context)):
        tokenizer = tokenizer_of(tmp_path / name, size)
        model.save_pretrained(tmp_path / name)
    ours = load_encoder("dpr", str(tmp_path / "context"), device="cpu", query_checkpoint=str(tmp_path / "question"))
    titles = ["", "Horse", "A [SEP] title", *[f"Title {n}" for n in range(len(TEXTS) - 3)]]
    pairs = list(zip(titles, TEXTS, strict=True))
    length = config.max_position_embeddings
    with torch.no_grad():
        for text, found in zip(TEXTS, ours.query.vectors(TEXTS, 4), strict=True):
            inputs = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
            close(found, question(**inputs).pooler_output[0])
        for (title, text), found in zip(pairs, ours.document.vectors(pairs, 4), strict=True):
            whole = (title, text) if title else (text,)
            inputs = tokenizer(*whole, truncation=True, max_length=length, return_tensors="pt")
            close(found, context(**inputs).pooler_output[0])


def write_vdr(folder: Path, tokenizer_of, seed: int, shared: bool, norm: bool) -> dict:
    """A checkpoint in the hub's layout; returns its weights and sizes."""
    size, shift = draw(seed, 1500, 1999, 1100), draw(seed, 999, 104, 1000)
    config = any_bert_config(seed, size)
    config.hidden_act = "gelu"
    (folder / "base").mkdir(parents=True)
    config.save_pretrained(folder / "base")
    tokenizer = tokenizer_of(folder / "base", size)
    shapes = config_shapes("bert_model.", config)
    shapes["bert_model.embeddings.token_type_embeddings.weight"] = (config.type_vocab_size, config.hidden_size)
    shapes |= norm_shapes(config.hidden_size, "ln")
    sides = {"encoder_q": random_weights(shapes, seed), "encoder_p": random_weights(shapes, seed + (not shared))}
    about = {
        "type": "vdr", "model_id": "base", "norm": norm, "shift_vocab_num": shift, "topk": draw(seed, 40, 7, 5000),
        "pooling": draw(seed, "max", "mean", "max"), "pooling_topk": draw(seed, None, 3, None),
    }  # fmt: skip
    lengths = {"encoder_q": draw(seed, 12, 30, 17), "encoder_p": draw(seed, 33, 20, 48)}
    (folder / "config.json").write_text(
        json.dumps({side: about | {"max_len": lengths[side]} for side in sides} | {"shared_encoder": shared})
    )
    named = {f"{side}.{key}": value for side, weights in sides.items() for key, value in weights.items()}
    if shared:
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors")
    if shared:
        lengths = dict.fromkeys(lengths, max(lengths.values()))
    return {"sides": sides, "about": about, "lengths": lengths, "config": config, "tokenizer": tokenizer}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["max_length", "none"])
def test_vdr(tokenizer_of, tmp_path, seed, shared, padding):
    norm = seed % 2 == 0
    made = write_vdr(tmp_path, tokenizer_of, seed, shared, norm)
    about, config, shift = made["about"], made["config"], made["about"]["shift_vocab_num"]
    loaded = {
        union: load_encoder("vdr", str(tmp_path), device="cpu", padding=padding, lexical_union=union)
        for union in (False, True)
    }
    alpha, beta = (load_encoder("vdr", str(tmp_path), device="cpu", mode=mode) for mode in ("alpha", "beta"))
    for side, name in (("encoder_q", "query"), ("encoder_p", "document")):
        weights, length = made["sides"][side], made["lengths"][side]
        rows = made["tokenizer"](TEXTS, truncation=True, max_length=length)["input_ids"]
        wanted = []
        for row in rows:
            ids, mask = padded([row], length if padding == "max_length" else len(row))
            hidden = bert(
                weights, "bert_model.", ids, mask, config.num_hidden_layers, config.num_attention_heads,
                eps=config.layer_norm_eps,
            )  # fmt: skip
            matrix = weights["bert_model.embeddings.word_embeddings.weight"][shift:]
            values = elu1p(ln(hidden, weights, "ln", 1e-5)[0] @ matrix.T)
            if about["pooling"] == "max":
                pooled = values.amax(0)
            else:
                pooled = values.topk(min(about["pooling_topk"], len(values)), dim=0).values.mean(0)
            wanted.append(pooled / pooled.norm() if norm else pooled)
        close(getattr(loaded[False], name).dense_weights(TEXTS, 4), torch.stack(wanted), rtol=3e-5)
        for union, model in loaded.items():
            for row, found, dense in zip(rows, getattr(model, name).weights(TEXTS, 4), wanted, strict=True):
                own = {token - shift for token in row if token >= shift}
                keep = top_columns(dense, min(about["topk"], len(dense))) | (own if union else set())
                mask = torch.zeros(len(dense)).scatter_(0, torch.tensor(sorted(keep)), 1.0)
                close(found.toarray()[0], dense * mask, rtol=3e-5)
        bag = (alpha if name == "query" else beta).__getattribute__(name).weights(TEXTS)
        for row, found in zip(rows, bag, strict=True):
            own = sorted({token - shift for token in row if token >= shift})
            assert found.indices.tolist() == own
            close(found.data, np.full(len(own), len(own) ** -0.5 if norm and own else 1.0))
