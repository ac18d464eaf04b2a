"""What must hold of every lexical tower, whatever its model: one suite over all compositions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexvl_anserini.errors import UsageError
from lexvl_anserini.records import Document

BERT, DISTILBERT, PUBLISHED = "splade/ckpt_bert", "splade/ckpt_distilbert", "vdr/text-tiny"
IDF = "sentence_transformers_sparse/st6_inference_free_idf_log1p"

COMPOSITIONS = {
    "bag-of-tokens": ("bag-of-tokens", BERT, {}),
    "splade max": ("splade", DISTILBERT, {}),
    "splade sum": ("splade", BERT, {"pooling": "sum"}),
    "splade doc-only": ("splade", BERT, {"doc_only": True}),
    "splade topk": ("splade", BERT, {"topk": 16, "query_topk": 4}),
    "splade lexical": ("splade", BERT, {"lexical": "both"}),
    "splade idf": ("splade", IDF, {"query_topk": 3}),
    "bertlex vdr": ("bertlex", BERT, {"topk": 32}),
    "bertlex mlm": ("bertlex", BERT, {"head": "mlm", "topk": 32}),
    "vdr untrained": ("vdr", BERT, {"topk": 32}),
    "vdr full": ("vdr", PUBLISHED, {}),
    "vdr unpadded union": ("vdr", PUBLISHED, {"padding": "none", "lexical_union": True}),
    "vdr alpha": ("vdr", PUBLISHED, {"mode": "alpha"}),
    "vdr beta": ("vdr", PUBLISHED, {"mode": "beta"}),
    "vdr norm": ("vdr", "vdr/text-tiny-norm", {"mode": "alpha"}),
    "svdr": ("svdr", PUBLISHED, {"padding": "none"}),
}

TEXTS = (
    "a man riding a horse on a beach",
    "a dog",
    "",
    "two dogs and a frisbee in the park near the ocean on a sunny day with many people around them",
    "a dog",
    "PIZZA, on a wooden table!",
)

AWKWARD = {
    "empty": "",
    "white space": " \t\n\r\u00a0\u3000 ",
    "10,000 words": "dog " * 10_000,
    "one endless word": "a" * 30_000,
    "emoji": "a dog \U0001f436 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3fd",
    "CJK": "海辺を走る犬 一只狗在海滩上",
    "right to left": "كلب على الشاطئ \u202eabc\u202c כלב",
    "a special token": "a [SEP] dog [CLS] [PAD] [MASK] [UNK] [unused1]",
    "another tokenizer's special token": "a dog</s><s><pad> <|endoftext|>",
    "control characters": "a\x00dog\x07\x1b[31m\x7f\u0085\ufeff\u200b",
    "combining marks": "e\u0301 n\u0303 " + "a" + "\u0300" * 200,
    "not a character": "a \ufffe \uffff \ufffd dog",
}

quickly = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=COMPOSITIONS)
def model(request, load):
    name, checkpoint, options = COMPOSITIONS[request.param]
    return load(name, checkpoint, **options)


def towers(model):
    return (model.query, model.document)


def check(weights, count, tower):
    """CSR [count, V] float32, weights finite and > 0, dimensions strictly ascending."""
    assert weights.shape == (count, len(tower.vocabulary))
    assert weights.dtype == np.float32
    assert np.isfinite(weights.data).all() and (weights.data > 0).all()
    for row in range(count):
        dims = weights.indices[weights.indptr[row] : weights.indptr[row + 1]]
        assert (np.diff(dims) > 0).all()


@quickly
@given(
    picks=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=8),
    batch_size=st.integers(1, 9),
)
def test_a_vector_depends_on_its_own_text_only(model, picks, batch_size):
    for tower in towers(model):
        alone = np.concatenate([tower.weights([text]).toarray() for text in TEXTS])
        together = tower.weights([TEXTS[i] for i in picks], batch_size=batch_size)
        check(together, len(picks), tower)
        np.testing.assert_allclose(together.toarray(), alone[picks], atol=1e-5, rtol=1e-5)


def test_awkward_texts(model):
    for tower in towers(model):
        texts = list(AWKWARD.values())
        check(tower.weights(texts, batch_size=5), len(texts), tower)


@quickly
@given(texts=st.lists(st.text(max_size=40), max_size=3))
def test_any_text(model, texts):
    for tower in towers(model):
        check(tower.weights(texts), len(texts), tower)


def test_no_input(model):
    for tower in towers(model):
        check(tower.weights([]), 0, tower)
        assert tower.dense_weights([]).shape == (0, len(tower.vocabulary))


def test_what_is_kept_is_as_it_was_before_the_sparsifier(model):
    for tower in towers(model):
        kept, dense = tower.weights(TEXTS, batch_size=2).tocoo(), tower.dense_weights(TEXTS, batch_size=3)
        np.testing.assert_allclose(kept.data, dense[kept.row, kept.col], atol=1e-5, rtol=1e-5)


def test_progress_counts_every_input(model):
    for tower in towers(model):
        done = []
        tower.weights(TEXTS, 4, done.append)
        assert sum(done) == len(TEXTS)


def test_white_space_is_an_empty_text(model):
    for tower in towers(model):
        blank, empty = tower.weights([AWKWARD["white space"], ""]).toarray()
        np.testing.assert_allclose(blank, empty, atol=1e-5, rtol=1e-5)


def test_truncation_reads_the_beginning(model):
    """A text beyond the limit gives the vector of its first tokens."""
    for tower in towers(model):
        limit = tower.reader.max_length
        long, longer = "dog " * (limit + 1), "dog " * limit + "pizza horse frisbee " * 50
        found = tower.weights([long, longer])
        assert len(tower.reader([longer])[0]) <= limit
        np.testing.assert_allclose(found[0].toarray(), found[1].toarray(), atol=1e-5, rtol=1e-5)


def test_documents_are_read_with_their_title(model):
    tower = model.document
    joined = tower.read(Document("1", "a dog", "on a beach"))
    assert joined.startswith("a dog") and joined.endswith("on a beach")
    assert tower.read(Document("1", None, "on a beach")) == tower.read(Document("1", "", "on a beach")) == "on a beach"
    assert tower.read(Document("1", "a dog")) == "a dog"
    assert tower.read(Document("1", text="")) == ""
    with pytest.raises(UsageError, match="document '7' has no text"):
        tower.read(Document("7", image="a.png"))


def test_names_of_sentence_transformers(model):
    query, document = model.encode_query(TEXTS), model.encode_document(TEXTS)
    assert (query != model.query.weights(TEXTS)).nnz == 0
    (terms,) = model.decode(document[:1], top_k=3)
    assert len(terms) <= 3
    row = document[0].toarray()[0]
    assert [weight for _, weight in terms] == sorted(row, reverse=True)[: len(terms)]
    assert all(row[model.document.vocabulary.dimension[term]] == pytest.approx(weight) for term, weight in terms)


def test_decode_breaks_ties_by_dimension(load):
    model = load("bag-of-tokens", BERT)
    (terms,) = model.decode(model.encode_document(["dog a man"]))
    assert [term for term, _ in terms] == sorted((t for t, _ in terms), key=model.document.vocabulary.dimension.get)


def test_both_towers_share_the_vocabulary(model):
    assert model.query.vocabulary.digest == model.document.vocabulary.digest


def test_a_bag_counts_each_own_token_once(load):
    model = load("bag-of-tokens", BERT)
    terms = model.document.vocabulary.terms
    weights = model.document.weights(["Dog dog [SEP] man !"])
    assert {terms[d] for d in weights.indices} == {"dog", "man", "!"}
    assert (weights.data == 1).all()


def test_doc_only_leaves_special_tokens_out_whatever_the_folder(load):
    plain, static = (load("splade", checkpoint, doc_only=True) for checkpoint in (BERT, IDF))
    found = [model.query.weights(["a dog on a beach"]) for model in (plain, static)]
    assert (found[0] != found[1]).nnz == 0 and found[0].nnz == 4


def test_idf_weights_and_their_topk(load):
    full = load("splade", IDF).query.weights(["a man riding a horse on the beach"]).toarray()[0]
    three = load("splade", IDF, query_topk=3).query.weights(["a man riding a horse on the beach"]).toarray()[0]
    assert set(np.flatnonzero(three)) == set(np.argsort(-full, kind="stable")[:3])
