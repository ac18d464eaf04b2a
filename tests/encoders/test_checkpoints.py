"""Where checkpoints come from, what they are recognised by, and the hub against a server of our own."""

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections import OrderedDict, defaultdict
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hub_server import SHA, away, serving
from safetensors.torch import save_file
from tiny_encoders import Runs
from torch import nn

from lexvl_anserini.encoders.checkpoints.find import TORCH_SUFFIXES, Checkpoint, find_checkpoint, list_model_files
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_contents, read_weights
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError
from lexvl_anserini.ground.manifest import EncoderRef

BERT = "splade/ckpt_bert"


# ---- which files count


def test_files_of_a_model():
    kept = ["1_Pooling/config.json", "2_Dense/pytorch_model.bin", "config.json", "merges.txt", "model.safetensors"]
    kept += ["spiece.model", "vocab.txt"]
    names = [*kept, "README.md", ".gitattributes", ".cache/x.json", "pytorch_model.bin", "tf_model.h5"]
    names += ["training_args.bin", "onnx/model.onnx", "notes.txt", "trainer_state.json", "my.yaml", "1_Pooling/x.json"]
    names += ["._model.safetensors", "2_Dense/._pytorch_model.bin"]
    assert list_model_files(reversed(names)) == kept
    without = list_model_files(names, weights=False)
    assert set(list_model_files(names)) - set(without) == {"model.safetensors", "2_Dense/pytorch_model.bin"}
    assert list_model_files(["pytorch_model-00001-of-00002.bin"]) == ["pytorch_model-00001-of-00002.bin"]


def test_digest_is_of_contents(golden, bert):
    before = find_checkpoint(str(bert)).digest()
    assert before == find_checkpoint(str(golden / BERT)).digest()
    for note in ("README.md", "notes.txt", "all_results.json", "passwords.yaml"):
        (bert / note).write_text("new")
    (bert / "pytorch_model.bin").write_bytes(b"not read, there are safetensors")
    assert find_checkpoint(str(bert)).digest() == before
    hidden = bert.parent / ".cache" / "model"  # the hub's own cache lies under ~/.cache
    shutil.copytree(bert, hidden)
    (bert / "config.json").write_text((bert / "config.json").read_text() + "\n")
    assert find_checkpoint(str(bert)).digest() != before == Checkpoint("x", hidden).digest()
    (hidden / "vocab.txt").write_text("other")
    assert Checkpoint("x", hidden).digest() != before


def test_notes_that_an_older_version_digested(bert):
    """An index of 0.3.0 is searched with its model, as long as the notes are as they were."""
    (bert / "notes.txt").write_text("first")
    made = load_encoder("splade", str(bert), device="cpu").identity()
    older = EncoderRef({**made, "checkpoint_digest": find_checkpoint(str(bert)).digest(older=True)})
    assert load_encoder_from(older, device="cpu").identity() == made != older
    (bert / "notes.txt").write_text("second")
    assert load_encoder_from(made, device="cpu").identity() == made
    with pytest.raises(ArtefactError, match="give that checkpoint or encode again"):
        load_encoder_from(older, device="cpu")


def test_digest_covers_every_part(golden, load):
    """A query encoder or a tokenizer from elsewhere is part of what made the vectors; where it lies is not."""
    alone = load("splade", BERT)
    separate = load("splade", BERT, query_checkpoint=str(golden / "splade/ckpt_query_bert"))
    assert alone.checkpoint_digest == find_checkpoint(str(golden / BERT)).digest()
    assert separate.checkpoint_digest != alone.checkpoint_digest
    assert load("splade", BERT, tokenizer=str(golden / BERT)).checkpoint_digest != alone.checkpoint_digest


def test_places_are_recorded_as_absolute(golden, monkeypatch):
    monkeypatch.chdir(golden / "splade")
    model = load_encoder("splade", "ckpt_bert", query_checkpoint="ckpt_query_bert", device="cpu")
    assert model.checkpoint == str((golden / BERT).resolve())
    assert model.options == {"query_checkpoint": str((golden / "splade/ckpt_query_bert").resolve())}


# ---- weights


WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2)}
MODULE = {f"module.{key}": value for key, value in WEIGHTS.items()}

FORMATS = {
    "state.bin": WEIGHTS,
    "state.pt": OrderedDict(WEIGHTS),
    "parameters.pth": {key: nn.Parameter(value) for key, value in WEIGHTS.items()},
    "beside.pt": {**WEIGHTS, "epoch": 3, "note": "x", "history": [1, 2.5, None]},
    "lightning.ckpt": {
        "epoch": 1,
        "state_dict": WEIGHTS,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(1)}}}],
        "hyper_parameters": {"lr": 0.1, "names": ["a"]},
    },
    "lavis.pth": {"model": WEIGHTS, "optimizer": {"state": {}}, "config": {"run": {"seed": 1}}, "epoch": 2},
    "naver model.tar": {"epoch": 7, "model_state_dict": MODULE, "optimizer_state_dict": {}, "loss": 0.5},
    "with regularisers.tar": {"model_state_dict": MODULE, "regularizer": {"train": None}},
    "dpr.cp": {"model_dict": WEIGHTS, "optimizer_dict": {}, "offset": 3},
    "ckpt_3.pth.tar": {"last_iter": 3, "model": MODULE, "optimizer": {"param_groups": [{"lr": 0.1}]}},
    "compiled.pt": {f"_orig_mod.module.{key}": value for key, value in WEIGHTS.items()},
    "slip.pt": {
        "state_dict": MODULE,
        "args": argparse.Namespace(model="x"),
        "best": np.float32(0.5),
        "at": Path("x"),
        "seen": defaultdict(list, {"a": [1]}),
    },
}


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_weights(tmp_path, name, old):
    if old and name == "slip.pt":
        pytest.skip("the names of foreign classes cannot be listed in that format")
    torch.save(FORMATS[name], tmp_path / name, _use_new_zipfile_serialization=not old)
    for place in (tmp_path, tmp_path / name):
        found = read_weights(place)
        assert list(found) == list(WEIGHTS) and all(torch.equal(found[key], WEIGHTS[key]) for key in WEIGHTS)


class PosixPath:
    """A path as Python 3.13 pickles it: a class of the module `pathlib._local`."""

    def __reduce__(self):
        return type(self), ()


def test_a_path_that_python_3_13_wrote(tmp_path, monkeypatch):
    PosixPath.__module__ = "pathlib._local"
    monkeypatch.setitem(sys.modules, "pathlib._local", SimpleNamespace(PosixPath=PosixPath))
    torch.save({"state_dict": WEIGHTS, "at": PosixPath()}, tmp_path / "x.pt")
    monkeypatch.undo()
    assert b"pathlib._local" in (tmp_path / "x.pt").read_bytes()
    assert list(read_weights(tmp_path / "x.pt")) == list(WEIGHTS)


def test_what_stands_beside_the_weights(tmp_path):
    torch.save(FORMATS["lightning.ckpt"], tmp_path / "x.ckpt")
    assert read_contents(tmp_path / "x.ckpt").extra == {"epoch": 1, "hyper_parameters": {"lr": 0.1, "names": ["a"]}}
    torch.save(FORMATS["beside.pt"], tmp_path / "x.ckpt")
    assert read_contents(tmp_path / "x.ckpt").extra == {"epoch": 3, "note": "x", "history": [1, 2.5, None]}
    value: list = [1]
    value.append(value)  # it holds itself
    torch.save({"a": torch.ones(1), "options": value}, tmp_path / "x.pt")
    assert read_contents(tmp_path / "x.pt").extra.keys() == {"options"}


def test_shards_are_joined_and_a_prefix_that_only_some_names_have_stays(tmp_path):
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"c": torch.zeros(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert {key: len(value) for key, value in read_weights(tmp_path).items()} == {"module.a": 1, "b": 1, "c": 2}


def test_sharded_safetensors_are_those_of_the_index(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "model-00002-of-00002.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "another.safetensors")
    with pytest.raises(CheckpointError, match=r"a is in several of another\.safetensors, model-00001"):
        read_weights(tmp_path)
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert {key: value.tolist() for key, value in read_weights(tmp_path).items()} == {"a": [1], "b": [1, 1]}
    (tmp_path / shards["b"]).unlink()
    with pytest.raises(CheckpointError, match="lists model-00002-of-00002.safetensors, not there"):
        read_weights(tmp_path)


def test_several_torch_files_are_not_guessed_from(tmp_path):
    for name in ("epoch1.ckpt", "last.ckpt"):
        torch.save(WEIGHTS, tmp_path / name)
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        torch.save({"x": 1}, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"several weight files \(epoch1\.ckpt, last\.ckpt\); name the one"):
        read_weights(tmp_path)
    (tmp_path / "epoch1.ckpt").unlink()
    assert set(read_weights(tmp_path)) == set(WEIGHTS)


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_with_code_is_named_and_not_run(tmp_path, old):
    for evil in (Runs(os.mkdir, str(tmp_path / "marker")), Runs(eval, "1"), Runs(getattr, "x", "upper"), Fraction(1)):
        path = tmp_path / "x.pt"
        torch.save({"a": torch.ones(1), "b": evil}, path, _use_new_zipfile_serialization=not old)
        with pytest.raises(CheckpointError, match=r"x\.pt: refused, .* could run code \(it has [\w.]+\)"):
            read_weights(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.filterwarnings("error")  # torch warns on several lines about what it then refuses
@pytest.mark.parametrize("suffix", TORCH_SUFFIXES)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_code_in_a_plain_pickle_is_refused(tmp_path, suffix, protocol):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(pickle.dumps({"a": Runs(os.mkdir, str(tmp_path / "marker"))}, protocol))
    with pytest.raises(CheckpointError, match=r"x\.\w+: (refused|cannot be read as weights)"):
        read_weights(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", [b"", b"junk" * 100, b"\x80\x02", b"PK\x03\x04" + b"\0" * 99])
@pytest.mark.parametrize("suffix", [".pt", ".ckpt", ".tar", ".safetensors"])
def test_garbage_is_one_line(tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"x\{suffix}: (cannot be read as weights|refused)") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_whole_numbers_without_scales_are_no_weights(tmp_path, suffix):
    """But positions and masks may be whole."""
    save = save_file if suffix == "safetensors" else torch.save
    buffers = {"position_ids": torch.arange(8)[None], "attn.bias": torch.ones(1, 1, 2, 2, dtype=torch.uint8)}
    for kind in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.complex64):
        save({"a.weight": torch.ones(2, 2, dtype=kind), **buffers}, path := tmp_path / f"model.{suffix}")
        with pytest.raises(CheckpointError, match=f"a.weight has numbers of type {str(kind)[6:]}, expected floats;"):
            read_weights(path)
    save({"a.weight": torch.ones(2, 2), **buffers}, path)
    assert len(read_weights(path)) == 3


def test_no_tensors(tmp_path):
    expected = "expected a mapping of names to tensors, (or one under state_dict|found list)"
    for data in ({"a": {"b": {"c": torch.ones(1)}}}, {}, {"model": 3}, {"epoch": 3}, [torch.ones(1)]):
        torch.save(data, tmp_path / "x.pt")
        with pytest.raises(CheckpointError, match=expected):
            read_weights(tmp_path)


# ---- a file as checkpoint


def test_a_weight_file_is_a_checkpoint(golden, tmp_path):
    torch.save(FORMATS["lavis.pth"], tmp_path / "blip.pth")
    torch.save(WEIGHTS, tmp_path / "other.pth")
    found = find_checkpoint(str(tmp_path / "blip.pth"))
    assert found.path == tmp_path / "blip.pth" and found.folder == tmp_path
    assert found.reference == str((tmp_path / "blip.pth").resolve())
    before = found.digest()
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "other.pth").unlink()
    assert found.digest() == before
    (tmp_path / "config.json").write_text("{}")
    assert found.digest() != before and find_checkpoint(str(tmp_path / "blip.pth")).config() == {}
    with pytest.raises(CheckpointError, match=r"notes\.json: not a weight file"):
        find_checkpoint(str(tmp_path / "notes.json"))
    assert find_checkpoint(str(tmp_path / "notes.json"), weights=False).path == tmp_path / "notes.json"
    with pytest.raises(CheckpointError, match="a file; name the folder"):
        find_checkpoint(str(golden / BERT / "model.safetensors"))


def test_configuration_in_yaml(tmp_path):
    (tmp_path / "config.yaml").write_text("a: 1\nb: {c: [x]}\n")
    assert Checkpoint("x", tmp_path).config() == {"a": 1, "b": {"c": ["x"]}}
    for wrong in ("- a", "a: [", "a: {b: 1, b: 1}", "[" * 5000, "!!python/object/apply:os.mkdir [x]"):
        (tmp_path / "config.yaml").write_text(wrong)
        with pytest.raises(CheckpointError, match=r"config\.yaml: (expected keys and values|not YAML)"):
            Checkpoint("x", tmp_path).config()


# ---- strict loading


def test_load_strictly_names_what_does_not_fit():
    linear = nn.Linear(2, 1)
    load_strictly(linear, {"weight": torch.ones(1, 2), "bias": torch.ones(1), "x.position_ids": torch.ones(1)}, "here")
    assert linear.weight.tolist() == [[1, 1]]
    with pytest.raises(CheckpointError) as caught:
        load_strictly(linear, {"weight": torch.ones(2, 1), "extra": torch.ones(1)}, "here")
    assert str(caught.value) == (
        "here: the weights do not fit the model; missing: bias; unexpected: extra; "
        "mis-shaped: weight [2, 1], expected [1, 2]"
    )
    many = {f"key{i:02d}": torch.ones(1) for i in range(13)}
    with pytest.raises(CheckpointError, match="key09 and 3 more .*--verbose names all") as caught:
        load_strictly(nn.Identity(), many, "here")
    assert caught.value.__notes__ == [f"unexpected: {', '.join(many)}"]


# ---- the hub


@pytest.fixture
def hub(golden, tmp_path, monkeypatch):
    """A hub on this machine with `tiny/splade` (both weight formats) and `gated/splade`; its cache in tmp_path."""
    files = Path(shutil.copytree(golden / BERT, tmp_path / "repository"))
    shutil.copyfile(golden / "splade/ckpt_bert_bin/pytorch_model.bin", files / "pytorch_model.bin")
    (files / "README.md").write_text("never downloaded")
    (files / ".gitattributes").write_text("neither")
    with serving(files, tmp_path / ".cache" / "hub", monkeypatch) as server:
        yield server


def test_download_by_id_pins_the_revision(hub, golden, load):
    model = load_encoder("splade", "tiny/splade", device="cpu")
    assert model.checkpoint == f"tiny/splade@{SHA}"
    assert model.checkpoint_digest == load("splade", BERT).checkpoint_digest
    found, expected = (m.document.weights(["a dog on a beach"]) for m in (model, load("splade", BERT)))
    assert (found != expected).nnz == 0
    assert not any("README" in path or "pytorch_model" in path for path in hub.requests)


@pytest.mark.parametrize("reference", ["tiny/splade", "tiny/splade@main", f"tiny/splade@{SHA}"])
@pytest.mark.parametrize("offline", [False, True])
def test_second_load_works_without_the_hub(hub, reference, offline, monkeypatch):
    first, requests = find_checkpoint(reference), len(hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    if not offline:
        away(hub)
    second = find_checkpoint(reference)
    assert second == first and second.reference == f"tiny/splade@{SHA}"
    assert second.digest() == first.digest()
    assert find_checkpoint(first.reference) == first and len(hub.requests) == requests


def test_a_tokenizer_is_had_without_weights(hub, golden):
    model = load_encoder("bag-of-tokens", tokenizer="tiny/splade")
    assert model.options == {"tokenizer": f"tiny/splade@{SHA}"}
    assert not any("model.safetensors" in path for path in hub.requests)
    away(hub)
    again = load_encoder("bag-of-tokens", tokenizer=model.options["tokenizer"])
    assert again.checkpoint_digest == model.checkpoint_digest


@pytest.mark.parametrize(
    "reference,told",
    [
        ("tiny/nothing", "tiny/nothing: not on the hub"),
        ("tiny/splade@v9", "tiny/splade@v9: not on the hub"),
        ("gated/splade", "gated/splade: gated on the hub; accept its terms there and set HF_TOKEN"),
        ("tiny/splade", "tiny/splade: cannot be had from the hub"),
    ],
)
def test_what_the_hub_refuses(hub, reference, told):
    if "cannot" in told:
        away(hub)
    with pytest.raises(CheckpointError) as caught:
        load_encoder("splade", reference)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


def test_torch_weights_where_there_are_no_others(hub):
    (hub.repositories["tiny/splade"] / "model.safetensors").unlink()
    model = load_encoder("splade", "tiny/splade", device="cpu")
    assert model.document.weights(["a dog"]).nnz


def test_an_interrupted_download_is_continued(hub, golden, monkeypatch):
    """The connection closes in the middle of the weights: an error that says so, then the rest only."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the library's own tries
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 14)  # real weights have many chunks
    hub.cut = "model.safetensors"
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("tiny/splade")
    message = str(caught.value)
    assert message.startswith("tiny/splade: ") and "\n" not in message
    assert "the download broke off" in message and "run again" in message
    assert hub.ranges[0] == 0 and hub.ranges[-1] > 0, "each try goes on where the last one stopped"
    hub.cut = None
    whole = find_checkpoint("tiny/splade")
    assert whole.digest() == find_checkpoint(str(golden / BERT)).digest()


def test_a_token_is_sent(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    find_checkpoint("tiny/splade")
    assert hub.tokens == {"Bearer hf_secret"}
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("gated/splade")
    assert "HF_TOKEN" in str(caught.value) and "hf_secret" not in str(caught.value)


def test_the_whole_line_from_a_hub_of_its_own(hub, golden, tmp_path):
    """A process that knows the hub by HF_ENDPOINT only; once the hub is away, the same command says it is finished."""
    (tmp_path / "beir/qrels").mkdir(parents=True)
    (tmp_path / "beir/corpus.jsonl").write_text('{"_id": "1", "title": "", "text": "a dog on a beach"}\n')
    (tmp_path / "beir/queries.jsonl").write_text('{"_id": "q", "text": "a dog"}\n')
    (tmp_path / "beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    environ = {
        **{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_CACHE": str(tmp_path / "home/hub"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }

    def encode() -> str:
        command = [sys.executable, "-m", "lexvl_anserini.encode", "--corpus", f"beir:{tmp_path / 'beir'}"]
        command += ["--encoder", "splade", "--checkpoint", "tiny/splade", "--output", str(tmp_path / "out")]
        done = subprocess.run([*command, "--device", "cpu"], env=environ, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stderr

    encode()
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["encoder"]["checkpoint"] == f"tiny/splade@{SHA}"
    assert manifest["encoder"]["checkpoint_digest"] == find_checkpoint(str(golden / BERT)).digest()
    away(hub)
    told = encode()
    assert "the hub cannot be reached" in told and "finished already" in told
