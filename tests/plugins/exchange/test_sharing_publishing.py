"""Encoders on the hub: pushed in one commit through huggingface_hub, and loaded again with equal vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import SHA, HubServer

from lexvl_anserini import load_encoder
from lexvl_anserini.ground.errors import LexvlError, UsageError
from lexvl_anserini.ground.records import Measurement
from lexvl_plugins.exchange.sharing.saving import push_to_hub

TEXTS = ["a dog runs on the beach", "two men and a boat"]
TOKEN = "hf_writes"


@pytest.fixture
def model(golden: Path) -> Any:
    return load_encoder("vdr", str(golden / "vdr/text-tiny"), topk=24, device="cpu")


def list_files(server: HubServer, name: str) -> set[str]:
    folder = server.repositories[name]
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_pushed_encoder_loads_with_equal_vectors(hub, model):
    from sentence_transformers import SparseEncoder

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
    for side in ("query", "document"):
        vectors = [getattr(encoder, f"encode_{side}")(TEXTS).toarray() for encoder in (again, model)]
        np.testing.assert_array_equal(*vectors)
    sparse = SparseEncoder("me/tiny-vdr", device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(sparse.encode_query(TEXTS).to_dense().numpy(), model.encode_query(TEXTS).toarray())


def test_a_second_push_replaces_the_first_in_one_commit(hub, model, golden):
    push_to_hub(model, "me/tiny-vdr", token=TOKEN)
    splade = load_encoder("splade", str(golden / "splade/ckpt_bert"), device="cpu")
    push_to_hub(splade, "me/tiny-vdr", token=TOKEN)
    assert len(hub.commits) == 2
    assert "1_SpladePooling/config.json" in list_files(hub, "me/tiny-vdr")
    assert not any(name.startswith("tiny-bert/") for name in list_files(hub, "me/tiny-vdr"))
    vectors = load_encoder("splade", "me/tiny-vdr", device="cpu").encode_query(TEXTS)
    np.testing.assert_array_equal(vectors.toarray(), splade.encode_query(TEXTS).toarray())


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
    folder = tmp_path / "hub" / "me" / "thesis"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("x")
    hub.repositories["me/thesis"] = folder
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
