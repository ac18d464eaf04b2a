"""What `load_encoder` refuses, and that it says why."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import BERT, PUBLISHED, SPARSE, made_dense

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra, UnknownName, UsageError
from lexvl_anserini.ground.machine import find_package
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.query_source import check_readable

WITHOUT, BAG = "splade/ckpt_bert_bin", "bag-of-tokens"  # without a tokenizer; an encoder that needs nothing else
UNPUBLISHED = ("splade", "bertlex", "sentence", "stair")
NOWHERE = ("/nowhere/model", "./nowhere", "nowhere/", "a b")
SPLADES = ("st5_symmetric_bert_max", "st6_two_encoders", "st6_doc_only_ones")


def edit(folder, side=None, **changes):
    """Changes a configuration, or the part of a side; None removes a field."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    place = config if side is None else config[side]
    place.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del place[key]
    path.write_text(json.dumps(config))


# ---- names and options


@pytest.mark.parametrize(
    "name,checkpoint,options,error,message",
    [
        ("spalde", None, {}, UnknownName, "unknown encoder 'spalde'; did you mean 'splade'"),
        ("splade", BERT, {"top_k": 3}, UnknownName, "option of encoder 'splade' 'top_k'; did you mean 'topk'"),
        ("bm25", None, {"k2": 0.9}, UnknownName, r"option of encoder 'bm25' 'k2'; did you mean 'k1'"),
        ("bm25", None, {"k1": -1}, UsageError, "'bm25': k1=-1.0 and b=0.4, expected k1 of at least 0 and b from 0 to"),
        ("bm25", None, {"b": "nan"}, UsageError, "'bm25': k1=0.9 and b=nan, expected"),
        ("bm25", None, {"stemmer": "none", "language": "de"}, UsageError, "are of English; .* language=de has its own"),
        # A name near one in the package is no model of the hub.
        ("sentence", "minlm", {}, CheckpointError, "minlm: no such folder and no .*; did you mean 'minilm'"),
        ("bm25", BERT, {}, UsageError, "'bm25' has no model; leave the checkpoint out"),
        *((name, None, {}, UsageError, f"encoder '{name}' needs a checkpoint") for name in UNPUBLISHED),
        *(("splade", place, {}, CheckpointError, "no such folder") for place in NOWHERE),
        # Tests run offline: the default checkpoint cannot be had, and the error says what to do.
        ("vdr", None, {}, CheckpointError, "vsearch/svdr-msmarco.*pass its folder"),
        ("vdr-crossmodal", None, {}, CheckpointError, "vsearch/vdr-cross-modal.*; the checkpoint photos-vdr, "),
        ("sentence", BERT, {}, CheckpointError, r"no modules\.json.*sparse checkpoints are loaded with"),
        ("sentence", PUBLISHED, {}, CheckpointError, r"no modules\.json.*sparse checkpoints are loaded with"),
        *(
            ("sentence", f"{SPARSE}{name}", {}, CheckpointError, "a sparse model; .*--encoder splade")
            for name in SPLADES
        ),
        ("splade", PUBLISHED, {}, CheckpointError, r"config\.json"),
        # transformers 5 would make a tokenizer of five tokens.
        *((name, WITHOUT, {}, CheckpointError, r"no tokenizer .*--tokenizer") for name in ("splade", "vdr", BAG)),
    ],
)
def test_what_is_refused(golden, name, checkpoint, options, error, message):
    with pytest.raises(error, match=message) as caught:
        folder = checkpoint and golden / checkpoint
        load_encoder(name, str(folder) if folder and folder.exists() else checkpoint, **options)
    assert "\n" not in str(caught.value)


MISFITS = {
    "splade": [
        *({"topk": "many"}, {"topk": 6.5}, {"topk": 0}, {"query_topk": -1}, {"pooling": "mean"}),
        *({"doc_only": "perhaps"}, {"doc_only": True, "lexical": "both"}, {"doc_only": True, "query_topk": 3}),
        *({"max_length": 2}, {"max_length": 129}),
    ],
    "bertlex": [{"head": "cls"}, {"head": "mlm", "max_length": 129}],
    "vdr": [{"mode": "gamma"}, {"topk": -2}, {"padding": "longest"}, {"max_length": 129}],
    BAG: [{"shift": 5000}, {"max_length": 1}],
}


@pytest.mark.parametrize("name,options", [(name, one) for name, several in MISFITS.items() for one in several])
def test_option_values_that_do_not_fit(golden, name, options):
    with pytest.raises(UsageError):
        load_encoder(name, str(golden / BERT), device="cpu", **options)


def test_options_come_as_text_from_the_command_line(load):
    model = load("splade", BERT, topk="7", doc_only="true")
    assert model.options == {"topk": 7, "doc_only": True}
    assert model.document.weights(["a dog"]).nnz == 7


# ---- no checkpoint


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_is_missing(bert, file):
    (bert / file).unlink()
    for name in ("splade", "vdr", "bertlex"):
        with pytest.raises(CheckpointError, match="weights" if "model" in file else r"config\.json"):
            load_encoder(name, str(bert))


def test_a_network_that_is_not_installed_names_the_extra_of_the_checkpoint(monkeypatch):
    """[photos] installs both networks of photos-vdr; [minilm] would leave the other one missing."""
    known = {"lexvl_anserini": find_package("lexvl_anserini")}
    monkeypatch.setattr("lexvl_anserini.encoders.checkpoints.find.find_package", known.get)
    with pytest.raises(MissingExtra, match=r"the checkpoint 'photos-vdr' .*'lexvl-anserini\[photos\]'"):
        load_encoder("vdr-crossmodal", "photos-vdr")
    with pytest.raises(MissingExtra, match=r"pip install 'lexvl-anserini\[minilm\]'"):
        load_encoder("vdr", "minilm")


# ---- another kind


def test_dense_as_sparse(bert, golden, tmp_path):
    """And a plain BERT folder without the masked-LM head: transformers alone would invent one."""
    with pytest.raises(CheckpointError, match="Transformer, Pooling.*--encoder sentence"):
        load_encoder("splade", str(made_dense(golden, tmp_path)))
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


def test_a_picture_for_an_encoder_of_texts(load):
    with pytest.raises(UsageError, match="encoder 'splade' reads texts only, and the query is an image$"):
        check_readable(Topic("query", image="a.png"), load("splade", BERT))


# ---- tokenizers


def test_query_encoder_without_tokenizer_shares_the_documents(golden, load, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden / "splade/ckpt_query_bert" / name, tmp_path / name)
    alone = load("splade", BERT, query_checkpoint=str(tmp_path))
    whole = load("splade", BERT, query_checkpoint=str(golden / "splade/ckpt_query_bert"))
    assert (alone.query.weights(["a dog"]) != whole.query.weights(["a dog"])).nnz == 0


def test_query_encoder_of_another_vocabulary(golden, bert):
    about = json.loads((bert / "tokenizer.json").read_text())
    words = about["model"]["vocab"]
    words["dog"], words["beach"] = words["beach"], words["dog"]
    (bert / "tokenizer.json").write_text(json.dumps(about))
    (bert / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match="another vocabulary"):
        load_encoder("splade", str(golden / BERT), query_checkpoint=str(bert))


# ---- weights


def change_weights(folder, changes):
    """Weights by name; None removes one."""
    weights = load_file(folder / "model.safetensors") | changes
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


NOT_KNOWN = "is not known; expected max, or mean with a number"


@pytest.mark.parametrize(
    "side,changes,message",
    [
        ("encoder_p", {"type": "vdr_crossmodal_image"}, "encoder_p is of type 'vdr_crossmodal_image'"),
        *(("encoder_p", {key: None}, f"encoder_p lacks {key}") for key in ("model_id", "max_len", "shift_vocab_num")),
        ("encoder_q", {"pooling": "mean"}, NOT_KNOWN),
        ("encoder_q", {"pooling": "sum", "pooling_topk": 2}, NOT_KNOWN),
    ],
)
def test_published_configurations_that_do_not_fit(published, side, changes, message):
    edit(published, side, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_encoder("vdr", str(published))


def test_old_position_ids_are_tolerated(published, load):
    key = "encoder_q.bert_model.embeddings.position_ids"
    change_weights(published, {key: torch.arange(160)[None]})
    assert load_encoder("vdr", str(published), device="cpu").query.weights(["a dog"]).nnz == 64


def test_published_checkpoint_whose_backbone_is_elsewhere(published, golden):
    edit(published, "encoder_q", model_id="somewhere/else")
    edit(published, "encoder_p", model_id="somewhere/else")
    with pytest.raises(CheckpointError, match="somewhere/else"):
        load_encoder("vdr", str(published))
    tiny = str(golden / "vdr/tiny-bert")
    model = load_encoder("vdr", str(published), tokenizer=tiny, backbone_config=tiny, device="cpu")
    assert model.options == {"tokenizer": str(Path(tiny).resolve()), "backbone_config": str(Path(tiny).resolve())}


@pytest.mark.parametrize(
    "name,message", [("weight", "7 weights for 2000 tokens"), ("other", "no tensor 'weight', found other")]
)
def test_static_weights_that_do_not_fit(golden, tmp_path, name, message):
    static = Path(shutil.copytree(golden / f"{SPARSE}st6_doc_only_ones", tmp_path / "model"))
    save_file({name: torch.ones(7)}, static / "query_0_SparseStaticEmbedding/model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_encoder("splade", str(static))
