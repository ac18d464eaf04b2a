"""What must hold of every encoder, whatever its model: one suite over all of the registry."""

import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import sparse
from tiny_encoders import BERT, SPARSE, TINY_ENCODERS, Runs, Tiny, copied, pytest_generate_tests, weight_files  # noqa: F401

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.ground.errors import FAIL, CheckpointError, DataError, LexvlError, OnError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import Document, Topic

IDF = f"{SPARSE}st6_inference_free_idf_log1p"

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

# A model that was trained in float32 and computes in bfloat16 (8 bits of mantissa) keeps the direction of its vectors.
BFLOAT16_COSINE = 0.99


def pictures() -> list[Image.Image]:
    """Pictures of all modes and of sizes from 1 pixel to wide and high, the same every time."""
    rng = np.random.default_rng(11)

    def drawn(width: int, height: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))

    sixteen = Image.fromarray(rng.integers(0, 1 << 16, (20, 30), dtype=np.uint16))
    names = ("RGB", "L", "RGBA", "LA", "P", "CMYK", "1", "YCbCr", "HSV", "I", "F")
    modes = [drawn(40, 30).convert(mode) for mode in names]
    return [*modes, sixteen, drawn(1, 1), drawn(1, 300), drawn(700, 2), drawn(224, 224), drawn(333, 500)]


quickly = settings(max_examples=5, derandomize=True)


# ---- the models


@pytest.fixture(scope="session")
def fresh(located):
    """`fresh(row, **changes)`: the encoder of a row, on the CPU unless changed, with changed options."""

    def load(row: Tiny, **changes: Any) -> Any:
        checkpoint, options = located(row)
        return load_encoder(row.encoder, checkpoint, **{"device": "cpu", **options, **changes})

    return load


@pytest.fixture(scope="session")
def tiny(fresh):
    """`tiny(row)`: the encoder, loaded once."""
    return cache(fresh)


@pytest.fixture
def any_model(request, tiny):
    """Every encoder that computes vectors, with its row of the table."""
    return tiny(request.param), request.param


def towers(model):
    return (model.query, model.document)


def reads(tower, about: Tiny) -> str:
    """text, image or vector."""
    if about.vectors:
        return "vector"
    try:
        tower.read_topic(Topic("1", text="a dog"))
        return "text"
    except UsageError:
        return "image"


def inputs_for(tower, about: Tiny) -> list[Any]:
    """Six ordinary inputs, two of them equal."""
    kind = reads(tower, about)
    if kind == "text":
        return list(TEXTS)
    if kind == "image":
        some = pictures()
        return [some[0], some[-1], some[2], some[-2], some[-1], some[1]]
    vectors = np.random.default_rng(2).standard_normal((6, about.vectors)).astype(np.float32)
    vectors[4] = vectors[1]
    return list(vectors)


def encoded(tower, inputs, batch_size=32, on_error=FAIL):
    """Vectors, dense [n, D] or [n, V]; progress counts every input that is not skipped."""
    done: list[int] = []
    if tower.kind == "dense":
        found = tower.vectors(inputs, batch_size, done.append, on_error)
        assert found.dtype == np.float32 and found.shape[0] == len(inputs) and np.isfinite(found).all()
    else:
        found = tower.weights(inputs, batch_size, done.append, on_error)
        check(found, len(inputs), tower)
        found = found.toarray()
    assert sum(done) == len(inputs) - len(on_error.skipped)
    return found


def raw(tower, inputs):
    """Vectors before the sparsifier."""
    return tower.vectors(inputs) if tower.kind == "dense" else tower.dense_weights(inputs)


def check(weights, count, tower):
    """CSR [count, V] float32, weights finite and > 0, dimensions strictly ascending."""
    assert isinstance(weights, sparse.csr_matrix) and weights.shape == (count, len(tower.vocabulary))
    assert weights.dtype == np.float32
    assert np.isfinite(weights.data).all() and (weights.data > 0).all()
    for row in range(count):
        dims = weights.indices[weights.indptr[row] : weights.indptr[row + 1]]
        assert (np.diff(dims) > 0).all()


def test_every_registered_encoder_has_a_tiny_model():
    assert {tiny.encoder for tiny in TINY_ENCODERS.values()} == set(CARDS.core)


# ---- vectors

# Vectors of `inputs_for` one by one, by the tower's id (towers live as long as the session).
ALONE: dict[int, np.ndarray] = {}


@quickly
@given(picks=st.lists(st.integers(0, 5), min_size=1, max_size=7), batch_size=st.integers(1, 8))
def test_a_vector_depends_on_its_own_item_only(any_model, picks, batch_size):
    """Whatever the batch size, the order and the neighbours."""
    model, about = any_model
    for tower in towers(model):
        inputs = inputs_for(tower, about)
        alone = ALONE[id(tower)] if id(tower) in ALONE else ALONE.setdefault(id(tower), encoded(tower, inputs, 1))
        together = encoded(tower, [inputs[i] for i in picks], batch_size)
        np.testing.assert_allclose(together, alone[picks], atol=1e-5, rtol=1e-5)


@quickly
@example(texts=list(AWKWARD.values()))
@given(texts=st.lists(st.text(max_size=40), max_size=3))
def test_any_text(any_model, texts):
    model, about = any_model
    for tower in towers(model):
        if reads(tower, about) == "text":
            encoded(tower, texts, 5)


def test_pictures_of_all_modes_and_sizes(any_model, tmp_path):
    """As PIL images and as files; a file's vector is that of its picture."""
    model, about = any_model
    for tower in towers(model):
        if reads(tower, about) == "image":
            some = pictures()
            found = encoded(tower, some, 4)
            paths = [str(tmp_path / f"{number}.png") for number in range(2)]
            for path, picture in zip(paths, some, strict=False):
                picture.save(path)
            np.testing.assert_allclose(encoded(tower, paths), found[:2], atol=1e-5)


def test_what_cannot_be_read_is_skipped_if_told(any_model, tmp_path):
    """A broken image has a row of zeros and is reported; all else has the row that it has without it."""
    model, about = any_model
    for tower in towers(model):
        inputs, policy = inputs_for(tower, about), OnError("skip")
        assert len(encoded(tower, [])) == 0
        if reads(tower, about) != "image":
            np.testing.assert_array_equal(encoded(tower, inputs, on_error=policy), encoded(tower, inputs))
            continue
        broken = str(tmp_path / "broken.png")
        with pytest.raises(DataError, match=r"broken\.png: "):
            encoded(tower, [*inputs[:2], broken, *inputs[2:]], 4)
        found = encoded(tower, [*inputs[:2], broken, *inputs[2:]], 4, policy)
        assert not found[2].any() and [(one.position, one.reference) for one in policy.skipped] == [(2, broken)]
        np.testing.assert_allclose(np.delete(found, 2, axis=0), encoded(tower, inputs, 4), atol=1e-5)


def test_bfloat16_keeps_the_direction(any_model):
    model, about = any_model
    for tower in towers(model):
        inputs = [item for item in inputs_for(tower, about) if not (isinstance(item, str) and not item)]
        exact = raw(tower, inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = raw(tower, inputs)
        assert rough.dtype == np.float32
        lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(rough, axis=1)
        cosines = (exact * rough).sum(axis=1)[lengths > 0] / lengths[lengths > 0]
        assert (cosines >= BFLOAT16_COSINE).all(), cosines
        assert ((np.linalg.norm(exact, axis=1) == 0) == (np.linalg.norm(rough, axis=1) == 0)).all()


# ---- loading


def test_an_encoder_is_loaded_again_from_what_its_manifest_says(every, tiny):
    model = tiny(every)
    vocabulary = {"digest": model.query.vocabulary.digest} if model.kind == "impact" else {}
    manifest = Manifest(model.kind, model.identity(), {"name": "x"}, {"documents": 1}, vocabulary=vocabulary)
    read = Manifest.from_json(manifest.to_json())
    again = load_encoder_from(read.encoder, device="cpu", vocabulary=read.vocabulary_digest)
    assert again.identity() == model.identity() and again.device == "cpu"
    for before, after in zip(towers(model), towers(again), strict=True):
        if model.kind != "text":
            inputs = inputs_for(before, every)
            np.testing.assert_array_equal(encoded(after, inputs), encoded(before, inputs))


def test_weights_saved_in_another_format_give_the_same_vectors(weighted, tiny, located, tmp_path):
    """safetensors become a torch file; a torch file becomes one with the wrapper of a training framework."""
    checkpoint, options = located(weighted)
    place = copied(Path(checkpoint), tmp_path / "copy")
    for path in weight_files(place):
        weights = read_weights(path)
        if path.suffix == ".safetensors":
            path.unlink()
            torch.save(weights, path.with_name("pytorch_model.bin"))
        elif place.is_file():
            extra = torch.load(path, weights_only=True)
            torch.save({**extra, "state_dict": {f"module.{k}": v for k, v in weights.items()}, "model": None}, path)
    again = load_encoder(weighted.encoder, str(place), device="cpu", **options)
    for before, after in zip(towers(tiny(weighted)), towers(again), strict=True):
        inputs = inputs_for(before, weighted)
        np.testing.assert_allclose(encoded(after, inputs), encoded(before, inputs), atol=1e-6)


def test_a_malicious_pickle_is_refused_and_not_run(weighted, located, tmp_path):
    checkpoint, options = located(weighted)
    place, malicious = copied(Path(checkpoint), tmp_path / "copy"), Runs(os.mkdir, str(tmp_path / "marker"))
    assert weight_files(place)
    for path in weight_files(place):
        weights = read_weights(path)
        path.unlink()
        target = path.with_name("pytorch_model.bin") if path.suffix == ".safetensors" else path
        torch.save({**weights, "state_dict": weights, "x": malicious}, target)
    with pytest.raises(CheckpointError) as caught:
        load_encoder(weighted.encoder, str(place), device="cpu", **options)
    assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)
    assert not (tmp_path / "marker").exists()
    pickle.loads(pickle.dumps(malicious))
    assert (tmp_path / "marker").exists()  # a plain unpickler runs it


# A tied head needs no weights of its own: these make a lexical model of any BERT-like folder, as documented.
HEADLESS = {"vdr", "svdr", "bertlex", "bag-of-tokens", "bm25"}


def test_checkpoints_of_the_other_kind_are_refused(weighted, tiny, located):
    """Dense as sparse, sparse as dense: an error that names the checkpoint, never a model."""
    both = {"fdt", "joint"}  # one checkpoint holds a sparse and a dense model
    dense = {"albef", "blip", "clip", "dense-crossmodal", "dpr", "sentence"}
    if weighted.encoder in both:
        pytest.skip("its checkpoint is of both kinds")
    others = set(CARDS) - HEADLESS - dense - both - {weighted.encoder} if tiny(weighted).kind == "dense" else dense
    for other in sorted(others):
        with pytest.raises(LexvlError) as caught:
            load_encoder(other, located(weighted)[0], device="cpu")
        assert "\n" not in str(caught.value), other


def test_devices(every, tiny, fresh):
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    assert tiny(every).device == "cpu"
    absent = ["nonsense", "meta", "cuda:99", "", *([] if cuda else ["cuda", "cuda:1"]), *([] if mps else ["mps"])]
    for device in absent:
        with pytest.raises(UsageError, match=f"device '{device}' cannot be used here .*try the device cpu"):
            fresh(every, device=device)
    assert fresh(every, device="auto").device == ("cuda" if cuda else "cpu")


# ---- options of several encoders


def test_topk_of_either_side(limited, fresh):
    model = fresh(limited, topk=7, query_topk=3)
    for tower, most in ((model.query, 3), (model.document, 7)):
        assert (np.diff(tower.weights(inputs_for(tower, limited)).indptr) <= most).all()


def test_vectors_have_unit_length_unless_the_user_says_otherwise(of_unit_length, fresh):
    for one, other in zip(towers(fresh(of_unit_length)), towers(fresh(of_unit_length, normalise=False)), strict=True):
        inputs = inputs_for(one, of_unit_length)
        unit, plain = raw(one, inputs), raw(other, inputs)
        lengths = np.linalg.norm(plain, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, plain / np.maximum(lengths, 1e-12), atol=1e-5)


# ---- directions


def test_directions(directed, fresh):
    """The sides change places, and each says what an input lacks."""
    there, back = fresh(directed, direction="text-to-image"), fresh(directed, direction="image-to-text")
    for text, image in ((there.query, there.document), (back.document, back.query)):
        assert text.read_topic(Topic("q", text="a")) == "a" == text.read(Document("d", text="a"))
        assert image.read_topic(Topic("q", image="x")) == "x" == image.read(Document("d", image="x"))
        with pytest.raises(UsageError, match="document 'd' has no image"):
            image.read(Document("d", text="a"))
        with pytest.raises(UsageError, match="topic 'q' has no text"):
            text.read_topic(Topic("q", image="x"))
    np.testing.assert_array_equal(raw(back.document, TEXTS), raw(there.query, TEXTS))
    np.testing.assert_array_equal(raw(back.query, pictures()[:3]), raw(there.document, pictures()[:3]))
    if "text-to-text" in directed.directions:
        captions = fresh(directed, direction="text-to-text")
        np.testing.assert_array_equal(raw(captions.query, TEXTS), raw(captions.document, TEXTS))


# ---- lexical text encoders


@pytest.fixture
def model(request, tiny):
    return tiny(request.param)


def test_what_is_kept_is_as_it_was_before_the_sparsifier(model):
    for tower in towers(model):
        kept, dense = tower.weights(TEXTS, batch_size=2).tocoo(), tower.dense_weights(TEXTS, batch_size=3)
        np.testing.assert_allclose(kept.data, dense[kept.row, kept.col], atol=1e-5, rtol=1e-5)


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
    assert model.query.vocabulary.digest == model.document.vocabulary.digest
    (terms,) = model.decode(document[:1], top_k=3)
    assert len(terms) <= 3
    row = document[0].toarray()[0]
    assert [weight for _, weight in terms] == sorted(row, reverse=True)[: len(terms)]
    dimension = model.document.vocabulary.dimension
    assert all(row[dimension[term]] == pytest.approx(weight) for term, weight in terms)
    assert terms == sorted(terms, key=lambda pair: (-pair[1], dimension[pair[0]]))


def test_doc_only_leaves_special_tokens_out_whatever_the_folder(load):
    plain, static = (load("splade", checkpoint, doc_only=True) for checkpoint in (BERT, IDF))
    found = [model.query.weights(["a dog on a beach"]) for model in (plain, static)]
    assert (found[0] != found[1]).nnz == 0 and found[0].nnz == 4
