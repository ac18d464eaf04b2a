"""Conformance with the public reference code, on tiny random checkpoints (tests/golden/*/README.md says how made)."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoders import BERT, Tiny, close

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document

ST_MODELS = ("symmetric_bert_max", "two_encoders", "inference_free_idf_log1p", "doc_only_ones")
SIDES = ("q", "p")


# ---- tokenizer


def test_token_ids(golden):
    texts = json.loads((golden / "common/texts.json").read_text())
    expected = json.loads((golden / "common/tokenized.json").read_text())
    tokenizer = load_tokenizer(golden / "common/tokenizer_bert_tiny")
    for key, length, specials in (
        ("pad_longest", 512, True),
        ("longest_max256", 256, True),
        ("max_length_30_pad", 30, True),
        ("no_special", 512, False),
    ):
        rows, masks = expected[key]["input_ids"], expected[key].get("attention_mask")
        if masks is not None:
            rows = [[t for t, m in zip(row, mask, strict=True) if m] for row, mask in zip(rows, masks, strict=True)]
        assert TextReader(tokenizer, length, specials=specials)(texts) == rows


# ---- SPLADE


DISTILBERT, TOKENIZER = "splade/ckpt_distilbert", {"tokenizer": f"path:{BERT}"}
QUERY_ENCODER = {"query_checkpoint": "path:splade/ckpt_query_bert"}


@pytest.mark.parametrize(
    "checkpoint,options,documents,queries",
    [
        (BERT, {}, "bert_max_doc", "bert_max_query"),
        (BERT, {"pooling": "sum"}, "bert_sum_doc", "bert_sum_query"),
        (f"{BERT}_bin", TOKENIZER, "bert_max_doc", "bert_max_query"),
        (f"{BERT}_bin", {**TOKENIZER, "pooling": "sum"}, "bert_sum_doc", "bert_sum_query"),
        (DISTILBERT, {}, "distilbert_max_doc", "distilbert_max_query"),
        (DISTILBERT, {"pooling": "sum"}, "distilbert_sum_doc", "distilbert_sum_query"),
        (BERT, QUERY_ENCODER, "bert_max_doc", "separate_query_max"),
        (BERT, {"topk": 16, "query_topk": 4}, "topk16_doc", "topk4_query"),
        (BERT, {"lexical": "query"}, "lexical_query_doc", "lexical_query_query"),
        (BERT, {"lexical": "document"}, "lexical_document_doc", "lexical_document_query"),
        (BERT, {"lexical": "both"}, "lexical_both_doc", "lexical_both_query"),
    ],
)
def test_splade(located, load, splade, checkpoint, options, documents, queries):
    expected, docs, topics = splade
    path, options = located(Tiny("splade", checkpoint, options))
    model = load("splade", path, **options)
    close(model.document.weights(docs, batch_size=4), expected[documents])
    close(model.query.weights(topics), expected[queries])


def test_splade_doc_only(load, splade):
    expected, docs, queries = splade
    model = load("splade", "splade/ckpt_distilbert", doc_only=True)
    close(model.query.weights(queries), expected["doc_only_query_bow"], atol=0, rtol=0)
    close(model.document.weights(docs), expected["doc_only_doc_max"])
    assert model.query.binary and not model.document.binary


def as_exported(tower: Any, impacts: Any) -> list[dict[str, int]]:
    terms = tower.vocabulary.terms
    return [{terms[d]: int(v) for d, v in zip(row.indices, row.data, strict=True)} for row in impacts]


def same_but_for_halves(found: dict[str, int], expected: dict[str, int], weights: np.ndarray, terms: Any) -> None:
    """Equal, or one apart where weight x 100 lies within 1e-3 of a half."""
    for term in set(found) | set(expected):
        difference = abs(found.get(term, 0) - expected.get(term, 0))
        scaled = float(weights[terms.dimension[term]]) * 100
        assert difference == 0 or (difference == 1 and abs(scaled % 1 - 0.5) < 1e-3), (term, scaled)


def test_splade_exported(golden, load, splade):
    _, docs, queries = splade
    model = load("splade", "splade/ckpt_bert")
    weights = model.document.weights(docs)
    found = as_exported(model.document, Quantiser.named("naver").documents(weights).impacts)
    lines = [json.loads(line) for line in (golden / "splade/docs_anserini.jsonl").read_text().splitlines()]
    # The reference gives a document without any impact one made-up term; the empty document here has real ones.
    assert len(lines) == len(found) == len(docs)
    for row, line in enumerate(lines):
        assert line["content"] == docs[line["id"]]
        same_but_for_halves(found[row], line["vector"], weights[row].toarray()[0], model.document.vocabulary)
    weights = model.query.weights(queries)
    found = as_exported(model.query, Quantiser.named("naver").queries(weights).impacts)
    text = gzip.decompress((golden / "splade/queries_anserini.tsv.gz").read_bytes()).decode()
    for line in text.splitlines():
        number, _, words = line.partition("\t")
        row = int(number)
        same_but_for_halves(found[row], Counter(words.split()), weights[row].toarray()[0], model.query.vocabulary)


# ---- sentence-transformers


@pytest.mark.parametrize("name", ST_MODELS)
@pytest.mark.parametrize("version", ["st5", "st6"])
def test_sparse_encoder_folders(golden, load, splade, version, name):
    _, docs, queries = splade
    expected = np.load(golden / f"sentence_transformers_sparse/{version}_outputs.npz")
    model = load("splade", f"sentence_transformers_sparse/{version}_{name}")
    query, document = model.encode_query(queries), model.encode_document(docs)
    close(query, expected[f"{name}_query"])
    close(document, expected[f"{name}_doc"])
    close(query @ document.T, expected[f"{name}_sim"], atol=1e-4)
    assert model.query.binary == (name == "doc_only_ones")


def test_sparse_encoder_max_active_dims(golden, load, splade, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(golden / "sentence_transformers_sparse/st6_symmetric_bert_max", folder)
    about = json.loads((folder / "config_sentence_transformers.json").read_text())
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**about, "max_active_dims": 16}))
    expected = np.load(golden / "sentence_transformers_sparse/st6_outputs.npz")
    option = load("splade", "sentence_transformers_sparse/st6_symmetric_bert_max", topk=16)
    for model in (option, load_encoder("splade", str(folder), device="cpu")):
        close(model.document.weights(splade[1]), expected["symmetric_bert_max_active16_doc"])


@pytest.mark.parametrize("version", ["st5", "st6"])
def test_sparse_encoder_decode(golden, load, splade, version):
    about = json.loads((golden / f"sentence_transformers_sparse/{version}_meta.json").read_text())
    model = load("splade", f"sentence_transformers_sparse/{version}_symmetric_bert_max")
    decoded = model.decode(model.encode_document(splade[1][:1]), top_k=5)[0]
    expected = about["symmetric_bert_max"]["decode_doc0_top5"]
    assert [term for term, _ in decoded] == [term for term, _ in expected]
    assert [weight for _, weight in decoded] == pytest.approx([weight for _, weight in expected], abs=1e-5)


# ---- VDR


@pytest.fixture(scope="module")
def vdr(golden):
    about = json.loads((golden / "vdr/text-tiny.json").read_text())
    return dict(np.load(golden / "vdr/text-tiny.npz")), {"q": about["queries"], "p": about["passages"]}, about


def tower_of(model: Any, side: str) -> Any:
    return model.query if side == "q" else model.document


def longest(tower: Any, texts: list[str]) -> int:
    """The reference pads to the longest text of its batch; giving that length as the limit does the same."""
    return max(map(len, tower.reader(texts)))


UNION: dict[str, Any] = {"lexical_union": True}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "checkpoint,options,limit,name,atol",
    [
        ("text-tiny", {"padding": "none", **UNION}, None, "{}_embed_bs1", 2e-5),
        ("text-tiny", UNION, 8, "{}_embed_len8", 2e-5),
        ("text-tiny", UNION, "longest", "{}_embed", 2e-5),
        ("text-tiny", {}, "longest", "{}_embed_nolex", 2e-5),
        ("text-tiny", {"topk": 0}, "longest", "{}_embed_top0", 2e-5),
        ("text-tiny", {"topk": 16, **UNION}, "longest", "{}_embed_top16", 2e-5),
        ("text-tiny", {"topk": -1}, "longest", "{}_embed_all", 2e-5),
        ("text-tiny-norm", UNION, "longest", "norm_{}_embed", 1e-6),
        ("text-tiny-shared", UNION, "longest", "shared_{}_embed", 2e-5),
    ],
)
def test_vdr(load, vdr, side, checkpoint, options, limit, name, atol):
    expected, texts, _ = vdr
    if limit == "longest":
        limit = longest(tower_of(load("vdr", f"vdr/{checkpoint}"), side), texts[side])
    lengths = {} if limit is None else {"max_length": limit, "query_max_length": limit}
    model = load("vdr", f"vdr/{checkpoint}", **options, **lengths)
    close(tower_of(model, side).weights(texts[side]), expected[name.format(side)], atol=atol)


@pytest.mark.parametrize("side", SIDES)
def test_vdr_tokens_and_weights_before_the_mask(load, vdr, side):
    expected, texts, about = vdr
    tower = tower_of(load("vdr", "vdr/text-tiny"), side)
    assert tower.reader(texts[side]) == about[f"{side}_input_ids"]
    close(tower.dense_weights(texts[side], batch_size=3), expected[f"{side}_dense_padmax"], atol=2e-5)


@pytest.mark.parametrize(
    "side,mode,checkpoint,name,atol",
    [
        ("q", "alpha", "text-tiny", "q_bow", 0),
        ("p", "beta", "text-tiny", "p_bow", 0),
        ("q", "alpha", "text-tiny-norm", "norm_q_bow", 1e-6),
    ],
)
def test_vdr_bag_of_tokens(load, vdr, side, mode, checkpoint, name, atol):
    expected, texts, _ = vdr
    tower = tower_of(load("vdr", f"vdr/{checkpoint}", mode=mode), side)
    close(tower.weights(texts[side]), expected[name], atol=atol, rtol=0)
    assert tower.binary == (atol == 0)


def test_svdr_is_vdr_with_documents_as_bags(load, vdr):
    expected, texts, _ = vdr
    model = load("svdr", "vdr/text-tiny")
    close(model.document.weights(texts["p"]), expected["p_bow"], atol=0, rtol=0)
    close(model.query.dense_weights(texts["q"]), expected["q_dense_padmax"], atol=2e-5)


def test_vdr_titles(load, vdr):
    expected, _, about = vdr
    entries = [e if isinstance(e, dict) else {"text": e} for e in about["encode_corpus_input"]]
    documents = [Document(str(i), e.get("title"), e["text"]) for i, e in enumerate(entries)]
    tower = load("vdr", "vdr/text-tiny").document
    texts = [tower.read(document) for document in documents]
    tower = load("vdr", "vdr/text-tiny", max_length=longest(tower, texts)).document
    close(tower.weights(texts), expected["encode_corpus"], atol=2e-5)


def test_vdr_shared_encoder_reads_as_much_on_both_sides(load, vdr):
    model = load("vdr", "vdr/text-tiny-shared")
    lengths = [model.query.reader.max_length, model.document.reader.max_length]
    assert [*lengths, True] == vdr[2]["shared_max_len"]
    assert model.query.composition.head.matrix is model.document.composition.head.matrix


def variant(golden: Path, folder: Path, checkpoint: str = "text-tiny", **changes: Any) -> str:
    """A copy of a published checkpoint with other fields in both encoders' configurations."""
    shutil.copytree(golden / "vdr" / checkpoint, folder / checkpoint)
    shutil.copytree(golden / "vdr/tiny-bert", folder / "tiny-bert")
    config = json.loads((folder / checkpoint / "config.json").read_text())
    for side in ("encoder_q", "encoder_p"):
        config[side] = {**config[side], **changes}
    (folder / checkpoint / "config.json").write_text(json.dumps(config))
    return str(folder / checkpoint)


def test_vdr_mean_of_the_two_largest(golden, load, vdr, tmp_path):
    expected, texts, _ = vdr
    checkpoint = variant(golden, tmp_path, pooling="mean", pooling_topk=2)
    length = longest(load("vdr", "vdr/text-tiny").query, texts["q"])
    model = load_encoder("vdr", checkpoint, device="cpu", query_max_length=length, lexical_union=True)
    close(model.query.weights(texts["q"]), expected["mean2_q_embed"], atol=2e-5)


@pytest.mark.parametrize(
    "changes,nonzero",
    [
        ({"topk": None}, 768),
        ({"topk": -1}, 1901),
        ({"topk": 5, "pooling": None, "new": 1}, 5),
        ({"topk": 0}, None),
        ({"norm": True, "topk": -1}, 1901),
    ],
)
def test_vdr_fields_of_the_configuration(golden, load, vdr, tmp_path, changes, nonzero):
    """A topk of 0 keeps a text's own tokens."""
    checkpoint = "text-tiny-shared" if "norm" in changes else "text-tiny"
    model = load_encoder("vdr", variant(golden, tmp_path, checkpoint, **changes), device="cpu")
    weights, bag = model.document.weights(vdr[1]["p"]), load("vdr", "vdr/text-tiny", mode="beta").document
    counts = np.diff(bag.weights(vdr[1]["p"]).indptr) if nonzero is None else [nonzero] * len(vdr[1]["p"])
    assert np.diff(weights.indptr).tolist() == list(counts)
    if "norm" in changes:
        np.testing.assert_allclose(weights.multiply(weights).sum(axis=1), 1, atol=1e-5)
