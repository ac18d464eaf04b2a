"""SPLADE's other formats: runs of naver's trainers, `model.tar`, padded matrices."""

import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from tiny_encoders import close

from lexvl_anserini.encoders.families.splade import fits
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, UsageError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def whole_state(folder: Path) -> dict[str, torch.Tensor]:
    """A model's state dict as PyTorch gives it, tied matrices and old buffers included."""
    state = transformers.AutoModelForMaskedLM.from_pretrained(str(folder)).state_dict()
    return {**state, "bert.embeddings.position_ids": torch.arange(128)[None]}


def tar_state(document: Path, query: Path | None = None, prefix: str = "") -> dict[str, torch.Tensor]:
    """What naver's trainer calls `model_state_dict`."""
    state = {f"{prefix}transformer_rep.transformer.{k}": v for k, v in whole_state(document).items()}
    if query is not None:
        state |= {f"{prefix}transformer_rep_q.transformer.{k}": v for k, v in whole_state(query).items()}
    return state


def write_tar(path: Path, state: dict[str, torch.Tensor], **beside: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": 7, "perf": 0.5, "model_state_dict": state, "optimizer_state_dict": {}, **beside}, path)
    return path


def write_run(folder: Path, document: Path, config: Any, init: Any, query: Path | None = None) -> Path:
    """A run of naver's trainer: its weights, and what its configuration says beside the models' places."""
    write_tar(folder / "model/model.tar", tar_state(document, query))
    config, init = {"tokenizer_type": str(document), **config}, {"model_type_or_dir": str(document), **init}
    (folder / "config.yaml").write_text(yaml.safe_dump({"config": config, "init_dict": init}))
    return folder


def copy_tokenizer(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        shutil.copyfile(source / name, folder / name)


@pytest.fixture(scope="module")
def bert(golden) -> Path:
    return golden / "splade/ckpt_bert"


@pytest.fixture(scope="module")
def tiny(golden) -> Path:
    return golden / "splade/ckpt_query_bert"


# ---- model.tar


def test_tar_with_a_configuration_beside_it(bert, splade, tmp_path):
    expected, docs, queries = splade
    tar = write_tar(tmp_path / "model/model.tar", tar_state(bert))
    copy_tokenizer(bert, tmp_path / "model")
    shutil.copyfile(bert / "config.json", tmp_path / "model/config.json")
    for name in (tmp_path, tmp_path / "model", tar):
        model = load_encoder("splade", str(name), device="cpu")
        close(model.document.weights(docs), expected["bert_max_doc"])
        close(model.query.weights(queries), expected["bert_max_query"])
    # A run named as a whole: its weights lie one folder below, and other weights are another encoder.
    one = load_encoder("splade", str(tmp_path), device="cpu").checkpoint_digest
    state = tar_state(bert)
    state["transformer_rep.transformer.cls.predictions.bias"] += 1
    write_tar(tar, state)
    assert load_encoder("splade", str(tmp_path), device="cpu").checkpoint_digest != one


def test_tar_alone(bert, splade, tmp_path):
    expected, docs, _ = splade
    tar = write_tar(tmp_path / "best.tar", tar_state(bert, prefix="module."))
    model = load_encoder("splade", str(tar), tokenizer=str(bert), backbone_config=str(bert), device="cpu")
    close(model.document.weights(docs), expected["bert_max_doc"])
    with pytest.raises(CheckpointError, match="best.tar: no configuration.*--backbone-config"):
        load_encoder("splade", str(tar), tokenizer=str(bert), device="cpu")
    with pytest.raises(CheckpointError, match="no tokenizer .*--tokenizer"):
        shutil.copyfile(bert / "config.json", tmp_path / "config.json")
        load_encoder("splade", str(tmp_path / "best.tar"), device="cpu")


def test_tar_of_two_encoders(bert, tiny, splade, tmp_path):
    expected, docs, queries = splade
    init = {"model_type_or_dir_q": str(tiny), "agg": "max"}
    write_run(tmp_path, bert, {"matching_type": "splade", "max_length": 100}, init, tiny)
    model = load_encoder("splade", str(tmp_path), device="cpu")
    close(model.document.weights(docs[:12]), expected["bert_max_doc"][:12])  # the last one has more tokens
    close(model.query.weights(queries), expected["separate_query_max"])
    assert model.query.reader.max_length == model.document.reader.max_length == 100


@pytest.mark.parametrize(
    "matching,init,query,document",
    [
        ("splade", {"agg": "sum"}, "bert_sum_query", "bert_sum_doc"),
        ("splade_doc", {"agg": "max"}, "doc_only_query_bow", "bert_max_doc"),
        ("splade_topk", {"top_d": 16, "top_q": 4}, "topk4_query", "topk16_doc"),
        ("splade_topk", {"top_d": -1, "top_q": -1}, "bert_max_query", "bert_max_doc"),
        ("splade_lexical", {"agg": "max"}, "lexical_query_query", "lexical_query_doc"),
        ("splade_lexical", {"agg": "max", "lexical_type": "both"}, "lexical_both_query", "lexical_both_doc"),
    ],
)
def test_recipe_of_a_run(bert, splade, tmp_path, matching, init, query, document):
    expected, docs, queries = splade
    write_run(tmp_path, bert, {"matching_type": matching}, init)
    model = load_encoder("splade", str(tmp_path), device="cpu")
    close(model.query.weights(queries), expected[query])
    close(model.document.weights(docs), expected[document])
    plain = load_encoder("splade", str(tmp_path), pooling="max", doc_only=False, lexical="none", device="cpu")
    if document != "topk16_doc":
        close(plain.query.weights(queries), expected["bert_max_query"])


def test_recipe_may_be_overruled(bert, splade, tmp_path):
    expected, _, queries = splade
    write_run(tmp_path, bert, {"matching_type": "splade_doc"}, {"agg": "max"})
    for options in ({"query_topk": 4}, {"query_checkpoint": str(bert), "query_topk": 4}):
        model = load_encoder("splade", str(tmp_path), device="cpu", **options)
        close(model.query.weights(queries), expected["topk4_query"])
    with pytest.raises(UsageError, match="doc_only leaves no query encoder"):
        load_encoder("splade", str(tmp_path), doc_only=True, query_topk=4)


@pytest.mark.parametrize(
    "config,init,message",
    [
        ({"matching_type": "siamese"}, {}, "matching_type 'siamese' is not SPLADE"),
        ({}, {"agg": "cls"}, "agg 'cls' is not known"),
        ({}, {"model_type_or_dir": "no/such-model"}, "trained from no/such-model.*--backbone-config"),
    ],
)
def test_runs_that_cannot_be_loaded(bert, tmp_path, config, init, message):
    write_run(tmp_path, bert, config, init)
    with pytest.raises(CheckpointError, match=message):
        load_encoder("splade", str(tmp_path), device="cpu")


def test_other_weights_in_a_tar(bert, tmp_path):
    write_tar(tmp_path / "bare.tar", whole_state(bert))
    with pytest.raises(CheckpointError, match=r"missing: transformer_rep\.transformer\.\*; unexpected: bert\."):
        load_encoder("splade", str(tmp_path / "bare.tar"), str(bert), str(bert))


def foreign(module: str, name: str, monkeypatch) -> Any:
    """An object of a class that only exists while the test runs."""
    parts = module.split(".")
    for i in range(len(parts)):
        inner = ".".join(parts[: i + 1])
        monkeypatch.setitem(sys.modules, inner, types.ModuleType(inner))
    kind = type(name, (), {"__module__": module})
    monkeypatch.setattr(sys.modules[module], name, kind, raising=False)
    thing = kind()
    thing.value = 3
    return thing


def test_tar_with_the_trainers_own_objects(bert, splade, tmp_path):
    """naver's trainer saves its configuration (omegaconf) and regularisers beside the tensors; none is imported."""
    expected, docs, _ = splade
    with pytest.MonkeyPatch.context() as patch:
        objects = {
            "config": foreign("omegaconf.dictconfig", "DictConfig", patch),
            "regularizer": {"train": {"FLOPS": {"loss": foreign("splade.losses.regularization", "FLOPS", patch)}}},
        }
        tar = write_tar(tmp_path / "model.tar", tar_state(bert), **objects)
    model = load_encoder("splade", str(tar), tokenizer=str(bert), backbone_config=str(bert), device="cpu")
    close(model.document.weights(docs), expected["bert_max_doc"])


# ---- folders of two encoders


@pytest.mark.parametrize("layout", ["model_q", "model/query", "query"])
def test_two_folders(bert, tiny, load, splade, tmp_path, layout):
    expected, docs, queries = splade
    main = tmp_path if layout == "query" else tmp_path / "model"
    shutil.copytree(bert, main, dirs_exist_ok=True)
    shutil.copytree(tiny, tmp_path / layout)
    model = load_encoder("splade", str(tmp_path), device="cpu")
    assert model.checkpoint_digest != load("splade", "splade/ckpt_bert").checkpoint_digest
    close(model.document.weights(docs), expected["bert_max_doc"])
    close(model.query.weights(queries), expected["separate_query_max"])
    # The trainer writes a tar too; safetensors need no unpickling.
    write_tar(main / "model.tar", {"transformer_rep.transformer.x": torch.zeros(1)})
    # The query encoder may share the documents' tokenizer.
    for name in TOKENIZER:
        (tmp_path / layout / name).unlink()
    close(load_encoder("splade", str(tmp_path), device="cpu").query.weights(queries), expected["separate_query_max"])


# ---- padded matrices


def padded(folder: Path, target: Path, rows: int) -> Path:
    """A copy of a masked LM whose matrices have more rows than there are tokens; the new ones win every maximum."""
    shutil.copytree(folder, target)
    model = transformers.AutoModelForMaskedLM.from_pretrained(str(folder))
    before = model.config.vocab_size
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().bias[before:] = 50.0
    model.save_pretrained(str(target))
    return target


@pytest.mark.parametrize("rows", [2008, 2048, 2127])
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_padded_rows_are_no_dimensions(golden, splade, tmp_path, name, rows):
    expected, docs, queries = splade
    folder = padded(golden / f"splade/ckpt_{name}", tmp_path / "model", rows)
    model = load_encoder("splade", str(folder), device="cpu")
    assert len(model.document.vocabulary) == 2000
    close(model.document.weights(docs), expected[f"{name}_max_doc"])
    close(model.query.weights(queries), expected[f"{name}_max_query"])


@pytest.mark.parametrize("rows", [1999, 2128, 30522])
def test_another_number_of_rows_is_another_models(bert, tmp_path, rows):
    with pytest.raises(CheckpointError, match=f"the tokenizer has 2000 tokens, the model {rows}; name"):
        load_encoder("splade", str(padded(bert, tmp_path / "model", rows)), device="cpu")


class Tokens:
    """Stands for a tokenizer with these ids."""

    def __init__(self, ids: list[int]):
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in self.ids}


@pytest.mark.parametrize(
    "ids,rows,answer",
    [
        *((range(40), rows, True) for rows in (40, 64, 79)),
        *((range(40), rows, False) for rows in (39, 80)),  # fewer; twice as many
        (range(5), 64, False),  # the tokenizer transformers makes up
        (range(128100 - 99), 128100, True),  # DeBERTa-v3
        (range(30522), 30528, True),  # BERT, padded to a multiple of 64
        (range(30522), 30522 + 128, False),
        ([*range(39), 50], 64, False),  # row 50 is a token
        ([], 3, False),
    ],
)
def test_what_counts_as_padding(ids, rows, answer):
    assert fits(rows, Tokens(list(ids))) is answer


def test_padded_static_weights(golden, load, splade, tmp_path):
    _, _, queries = splade
    name = "sentence_transformers_sparse/st6_inference_free_idf_log1p"
    folder = Path(shutil.copytree(golden / name, tmp_path / "model"))
    path = folder / "query_0_SparseStaticEmbedding/model.safetensors"
    save_file({"weight": torch.cat([load_file(path)["weight"], torch.full((48,), 9.0)])}, path)
    found = load_encoder("splade", str(folder), device="cpu").query.weights(queries)
    close(found, load("splade", name).query.weights(queries).toarray())


def test_another_similarity_than_dot_is_refused(golden, tmp_path):
    folder = Path(shutil.copytree(golden / "sentence_transformers_sparse/st5_doc_only_ones", tmp_path / "model"))
    about = folder / "config_sentence_transformers.json"
    about.write_text(about.read_text().replace('"dot"', '"cosine"'))
    with pytest.raises(CheckpointError, match="similarity_fn_name 'cosine', but an impact index"):
        load_encoder("splade", str(folder), device="cpu")
