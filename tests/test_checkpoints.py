"""Where checkpoints come from, what they are recognised by, and the hub against a server of our own."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from torch import nn

from lexvl_anserini.encoders.checkpoints import (
    Checkpoint,
    find_checkpoint,
    load_strictly,
    model_files,
    read_weight_file,
    read_weights,
)
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.errors import CheckpointError

BERT = "splade/ckpt_bert"
LOOK_UP = socket.getaddrinfo
SHA = "0123456789abcdef0123456789abcdef01234567"


# ---- which files count


def test_files_of_a_model():
    names = [
        "README.md",
        ".gitattributes",
        ".cache/x.json",
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "tf_model.h5",
        "vocab.txt",
        "merges.txt",
        "spiece.model",
        "training_args.bin",
        "onnx/model.onnx",
        "1_Pooling/config.json",
        "2_Dense/pytorch_model.bin",
    ]
    assert model_files(reversed(names)) == [
        "1_Pooling/config.json",
        "2_Dense/pytorch_model.bin",
        "config.json",
        "merges.txt",
        "model.safetensors",
        "spiece.model",
        "vocab.txt",
    ]
    without = model_files(names, weights=False)
    assert set(model_files(names)) - set(without) == {"model.safetensors", "2_Dense/pytorch_model.bin"}
    assert model_files(["pytorch_model-00001-of-00002.bin"]) == ["pytorch_model-00001-of-00002.bin"]


@pytest.fixture
def copy(golden, tmp_path):
    return Path(shutil.copytree(golden / BERT, tmp_path / "model"))


def test_digest_is_of_contents(golden, copy):
    before = find_checkpoint(str(copy)).digest()
    assert before == find_checkpoint(str(golden / BERT)).digest()
    (copy / "README.md").write_text("new")
    (copy / "pytorch_model.bin").write_bytes(b"not read, there are safetensors")
    assert find_checkpoint(str(copy)).digest() == before
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert find_checkpoint(str(copy)).digest() != before


def test_digest_below_a_hidden_folder(copy, tmp_path):
    """The hub's own cache lies under ~/.cache."""
    hidden = tmp_path / ".cache" / "model"
    shutil.copytree(copy, hidden)
    assert Checkpoint("x", hidden).digest() == Checkpoint("x", copy).digest()
    (hidden / "vocab.txt").write_text("other")
    assert Checkpoint("x", hidden).digest() != Checkpoint("x", copy).digest()


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


def test_weights_of_both_formats_agree(golden):
    safe, torch_file = read_weights(golden / BERT), read_weights(golden / "splade/ckpt_bert_bin")
    assert set(safe) <= set(torch_file)  # safetensors drops the tied decoder
    assert all(torch.equal(safe[key], torch_file[key]) for key in safe)


def test_sharded_weights_are_joined(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert {key: value.shape for key, value in read_weights(tmp_path).items()} == {"a": (1,), "b": (2,)}


def test_weight_file_that_is_a_list(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected a mapping"):
        read_weight_file(tmp_path / "pytorch_model.bin")


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


def test_load_strictly_cuts_long_lists():
    many = {f"key{i:02d}": torch.ones(1) for i in range(13)}
    with pytest.raises(CheckpointError, match="key09 and 3 more"):
        load_strictly(nn.Identity(), many, "here")


# ---- the hub


class Hub(BaseHTTPRequestHandler):
    """The part of the Hugging Face hub's protocol that a download needs; serves `server.repositories`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.server.requests.append(self.path)
        api = path[:2] == ["api", "models"]
        name = "/".join(path[2:4] if api else path[:2])
        rest = path[4:] if api else path[2:]
        folder = self.server.repositories.get(name)
        if folder is None:
            return self.refuse(401, "RepoNotFound")
        if name.startswith("gated/") and not (api and rest[:1] != ["tree"]):
            return self.refuse(403, "GatedRepo")
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if api and rest[:1] == ["tree"]:
            return self.send([self.entry(folder, file) for file in files], body)
        if api:
            if rest[:1] == ["revision"] and rest[1] not in ("main", SHA):
                return self.refuse(404, "RevisionNotFound")
            siblings = [{"rfilename": file} for file in files]
            return self.send({"id": name, "modelId": name, "sha": SHA, "siblings": siblings}, body)
        if rest[2:] == [self.server.broken]:
            return self.refuse(404, "EntryNotFound")
        data = (folder / "/".join(rest[2:])).read_bytes()
        etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": SHA}
        return self.send(data, body, **etag)

    def entry(self, folder, file):
        data = (folder / file).read_bytes()
        return {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def refuse(self, status: int, code: str) -> None:
        self.send(b"", False, status, **{"X-Error-Code": code, "X-Error-Message": code})

    def send(self, content, body: bool, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(golden, tmp_path, monkeypatch):
    """A hub on this machine with `tiny/splade` (both weight formats) and `gated/splade`; its cache in tmp_path."""
    from huggingface_hub import constants

    files = Path(shutil.copytree(golden / BERT, tmp_path / "repository"))
    shutil.copyfile(golden / "splade/ckpt_bert_bin/pytorch_model.bin", files / "pytorch_model.bin")
    (files / "README.md").write_text("never downloaded")
    (files / ".gitattributes").write_text("neither")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repositories = {"tiny/splade": files, "gated/splade": files}
    server.requests = []
    server.broken = None
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, here)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", here)
    monkeypatch.setattr(socket, "getaddrinfo", only_here)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / ".cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    yield server
    server.shutdown()
    server.server_close()


def only_here(host, *args, **kwargs):
    """Stands for socket.getaddrinfo: no test of ours ever asks for another machine."""
    assert host in ("127.0.0.1", b"127.0.0.1", "localhost"), f"a test asked for {host}"
    return LOOK_UP(host, *args, **kwargs)


def away(server) -> None:
    server.shutdown()
    server.server_close()


def test_download_by_id_pins_the_revision(hub, golden, load):
    model = load_encoder("splade", "tiny/splade", device="cpu")
    assert model.checkpoint == f"tiny/splade@{SHA}"
    assert model.checkpoint_digest == load("splade", BERT).checkpoint_digest
    found, expected = (m.document.weights(["a dog on a beach"]) for m in (model, load("splade", BERT)))
    assert (found != expected).nnz == 0
    assert not any("README" in path or "pytorch_model" in path for path in hub.requests)


@pytest.mark.parametrize("reference", ["tiny/splade", "tiny/splade@main", f"tiny/splade@{SHA}"])
def test_second_load_works_without_the_hub(hub, reference):
    first = find_checkpoint(reference)
    away(hub)
    second = find_checkpoint(reference)
    assert second == first and second.reference == f"tiny/splade@{SHA}"
    assert second.digest() == first.digest()
    assert find_checkpoint(first.reference) == first


def test_offline_mode_uses_the_cache(hub, monkeypatch):
    from huggingface_hub import constants

    first = find_checkpoint("tiny/splade")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = len(hub.requests)
    assert find_checkpoint("tiny/splade") == first and len(hub.requests) == requests


def test_a_tokenizer_is_had_without_weights(hub, golden):
    model = load_encoder("bag-of-tokens", tokenizer="tiny/splade")
    assert model.options == {"tokenizer": f"tiny/splade@{SHA}"}
    assert not any("model.safetensors" in path for path in hub.requests)
    away(hub)
    again = load_encoder("bag-of-tokens", tokenizer=model.options["tokenizer"])
    assert again.checkpoint_digest == model.checkpoint_digest


def test_torch_weights_where_there_are_no_others(hub):
    (hub.repositories["tiny/splade"] / "model.safetensors").unlink()
    model = load_encoder("splade", "tiny/splade", device="cpu")
    assert model.document.weights(["a dog"]).nnz


@pytest.mark.parametrize(
    "reference,told",
    [
        ("tiny/nothing", "tiny/nothing: not on the hub"),
        ("tiny/splade@v9", "tiny/splade@v9: not on the hub"),
        ("gated/splade", "gated/splade: gated on the hub; accept its terms there and set HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses(hub, reference, told):
    with pytest.raises(CheckpointError) as caught:
        load_encoder("splade", reference)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


def test_hub_away_and_nothing_cached(hub):
    away(hub)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("tiny/splade")
    message = str(caught.value)
    assert message.startswith("tiny/splade: cannot be had from the hub") and "pass its folder" in message
    assert "\n" not in message


def test_download_that_breaks_is_not_taken_for_whole(hub, golden):
    """The hub loses the weights in the middle: an error now, the whole model when they are back."""
    hub.broken = "model.safetensors"
    with pytest.raises(CheckpointError):
        load_encoder("splade", "tiny/splade")
    hub.broken = None
    assert find_checkpoint("tiny/splade").digest() == find_checkpoint(str(golden / BERT)).digest()
