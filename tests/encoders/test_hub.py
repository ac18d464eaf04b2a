"""A hub, or a mirror of it, that lies: no file outside the cache, no byte that differs from the listing."""

import shutil
import threading
from pathlib import Path

import pytest
from hub_server import SHA, away, git_sha1, serving

from lexvl_anserini.encoders.checkpoints import find as find_module
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint, is_safe_name
from lexvl_anserini.ground.errors import CheckpointError

BERT = "splade/ckpt_bert"
OTHER = "f" * 40


@pytest.fixture
def hub(golden, tmp_path, monkeypatch):
    """A hub with `tiny/splade`; its cache is `deep/down/in/cache` of an empty folder."""
    files = Path(shutil.copytree(golden / BERT, tmp_path / "repository"))
    with serving(files, tmp_path / "deep/down/in/cache", monkeypatch) as server:
        server.cache = tmp_path / "deep/down/in/cache"
        yield server


@pytest.fixture
def true_digest(golden):
    return find_checkpoint(str(golden / BERT)).digest()


@pytest.fixture(autouse=True)
def nothing_outside(hub, tmp_path):
    """No test of this file leaves anything outside of the cache."""
    before = set(tmp_path.rglob("*"))
    yield
    new = {path for path in tmp_path.rglob("*") if hub.cache not in (path, *path.parents)} - before
    assert new <= set(hub.cache.parents)


def refused(reference="tiny/splade"):
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


EVIL = ("../../x", "../" * 9 + "x", "/tmp/lexvl-evil", "..\\x", "a/../../../x", "x" * 300, "")


@pytest.mark.parametrize("evil", (*EVIL, 3, None, [OTHER], OTHER.upper()))
def test_a_commit_is_40_hex_digits(hub, evil):
    hub.sha = evil
    assert "expected 40 hex digits" in refused() or evil is None
    hub.sha = OTHER
    assert f"tiny/splade@{SHA}: the hub answers with another commit" in refused(f"tiny/splade@{SHA}")
    assert not hub.cache.exists()


@pytest.mark.parametrize(
    "name", ["../x.json", "a/../../vocab.json", "/tmp/lexvl-evil/vocab.json", "config.json/vocab.json"]
)
def test_names_that_lead_elsewhere(hub, name, true_digest):
    """Refused in one line; hidden files are not wanted in the first place."""
    evil = {"rfilename": name, "size": 3, "blobId": git_sha1(b"{}\n")}
    hub.listed = lambda siblings: [evil, *siblings]
    if name.startswith(".."):
        assert find_checkpoint("tiny/splade").digest() == true_digest
    else:
        assert "refused" in refused() and not hub.cache.exists()


def test_names_of_files():
    for name in ("config.json", "1_Pooling/config.json", "ä b/é.json", "...json", "a..b.json"):
        assert is_safe_name(name)
    outside = ("", "/", "a/", "..", "a/..", "a//x", "./x", "a/./x", "a\\..\\x", "C:\\x", 3, None)
    unprintable = ("a\x7fb", "x\0", "x\n", "x" * 256, "a/" * 600 + "x", ".git/x", "a/.GIT/hooks/x")
    assert not any(map(is_safe_name, outside + unprintable))


@pytest.mark.parametrize(
    "changes",
    [
        *({"blobId": digest} for digest in ("../../x", None, "A" * 40)),
        *({"size": size} for size in (-1, "3")),
        {"lfs": {"size": 3, "sha256": "../../../x", "pointerSize": 1}},
        {"lfs": {"size": None, "sha256": "0" * 64, "pointerSize": 1}},
    ],
)
def test_a_listing_without_digests(hub, changes):
    hub.listed = lambda siblings: [{**one, **changes} if one["rfilename"] == "vocab.txt" else one for one in siblings]
    assert "no size and digest of vocab.txt" in refused()


def test_listings_of_another_type(hub):
    for answer in (3, [], "x", [3], [{}], [{"rfilename": 3}], {"rfilename": "a.json"}):
        hub.listed = lambda siblings, answer=answer: answer
        assert refused().startswith("tiny/splade")


def test_a_changed_letter_of_a_small_file(hub, true_digest):
    """transformers reads such a tokenizer without an error."""
    hub.body = lambda name, data: data.replace(b"beach", b"bEach") if name == "tokenizer.json" else data
    line = refused()
    assert line.startswith(f"tiny/splade@{SHA}: tokenizer.json arrived damaged (git SHA-1 ")
    assert "was removed; run again to download it" in line
    assert not any(hub.cache.rglob("tokenizer.json"))
    hub.body = lambda name, data: data
    assert find_checkpoint("tiny/splade").digest() == true_digest


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
@pytest.mark.parametrize("offline", [False, True])
def test_a_changed_letter_in_the_cache(hub, true_digest, name, offline, monkeypatch):
    from huggingface_hub import constants

    blob = (find_checkpoint("tiny/splade").folder / name).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    assert f"{name} arrived damaged" in refused() and not blob.exists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert find_checkpoint("tiny/splade").digest() == true_digest


def test_a_cache_of_other_files_becomes_that_of_the_listing(hub, true_digest, tmp_path):
    """Another program followed a lying mirror: links to other blobs, a link out of the cache, a file without link."""
    folder = find_checkpoint("tiny/splade").folder
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "repository/vocab.txt")
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").symlink_to((folder / "tokenizer.json").resolve())
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    for name in ("config.json", "tokenizer.json", "vocab.txt"):
        assert f"{name} arrived damaged" in refused()
    assert find_checkpoint("tiny/splade").digest() == true_digest
    assert (tmp_path / "repository/vocab.txt").is_file()


def test_more_bytes_than_the_listing_says(hub):
    hub.body = lambda name, data: data + b"x" * 10_000_000 if name == "vocab.txt" else data
    assert "vocab.txt" in refused()
    assert sum(path.stat().st_size for path in hub.cache.rglob("*") if path.is_file()) < 5_000_000


def test_a_listing_that_changes(hub, true_digest):
    """Another commit between two calls: both snapshots are whole, and each file is from one listing."""
    first = find_checkpoint("tiny/splade")
    hub.sha = OTHER
    (hub.repositories["tiny/splade"] / "config.json").write_bytes(
        first.folder.joinpath("config.json").read_bytes() + b"\n"
    )
    second = find_checkpoint("tiny/splade")
    assert second.reference == f"tiny/splade@{OTHER}" and second.digest() != true_digest
    assert first.digest() == true_digest
    away(hub)
    assert find_checkpoint("tiny/splade") == second and find_checkpoint(f"tiny/splade@{SHA}") == first


def test_files_of_another_listing_of_the_same_commit(hub, true_digest):
    """A mirror added a file; the hub does not have it. A file that is no link may be the user's own and stays."""
    (hub.repositories["tiny/splade"] / "added_tokens.json").write_bytes(b"{}")
    assert find_checkpoint("tiny/splade").digest() != true_digest
    (hub.repositories["tiny/splade"] / "added_tokens.json").unlink()
    folder = find_checkpoint("tiny/splade").folder
    assert find_checkpoint("tiny/splade").digest() == true_digest
    (folder / "added_tokens.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"added_tokens\.json: not in the hub's listing .*move the file away"):
        find_checkpoint("tiny/splade")
    (folder / "added_tokens.json").unlink()


def test_a_folder_in_the_place_of_a_file(hub):
    """Two servers call one name a file and a folder: what either left does not end a download from the other."""
    snapshot, blob = hub.cache / "snapshot", hub.cache / "blob"
    (snapshot / "a/b").mkdir(parents=True)
    blob.write_bytes(b"{}")
    for name in ("config.json", "a/b/x.json", "model.safetensors", "vocab.txt", "README.md"):
        (snapshot / name).symlink_to(blob)
    listed = {"config.json/vocab.json", "a", "model.safetensors/y.json", "vocab.txt"}
    for _ in range(2):
        find_module.remove_others(snapshot, listed, weights=False)
        assert {path.name for path in snapshot.iterdir()} == {"vocab.txt", "README.md"}
    blob.unlink()
    find_module.remove_others(snapshot, {"vocab.txt/z.json"}, weights=True)
    assert {path.name for path in snapshot.iterdir()} == {"README.md"}
    (snapshot / "config.json").write_bytes(b"the user's")
    with pytest.raises(CheckpointError, match="move the file away"):
        find_module.remove_others(snapshot, {"config.json/vocab.json"}, weights=True)
    assert (snapshot / "config.json").read_bytes() == b"the user's"


def test_weights_in_another_form_stay(hub):
    """Another program downloaded them into the cache that it shares with us."""
    snapshot, blob = hub.cache / "snapshot", hub.cache / "blob"
    snapshot.mkdir(parents=True)
    blob.write_bytes(b"{}")
    for name in ("model.safetensors", "pytorch_model.bin", "tf_model.h5", "config.json"):
        (snapshot / name).symlink_to(blob)
    for listed in ({"model.safetensors", "config.json"}, {"model.safetensors", "config.json", "vocab.txt"}):
        find_module.remove_others(snapshot, listed, weights=True)
        assert len(list(snapshot.iterdir())) == 4
    (snapshot / "model.safetensors").unlink()  # listed, and not yet here
    find_module.remove_others(snapshot, {"model.safetensors", "config.json"}, weights=True)
    assert {path.name for path in snapshot.iterdir()} == {"pytorch_model.bin", "tf_model.h5", "config.json"}


def test_a_redirect_gets_no_token(hub, golden, tmp_path, monkeypatch, true_digest):
    """Real hubs send requests for large files to another host, which must not see the token; its bytes are checked."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.MonkeyPatch.context() as patch, serving(tmp_path / "repository", tmp_path / "unused", patch) as other:
        target = f"{other.address}/tiny/splade/resolve/{SHA}/model.safetensors"
        patch.undo()
        hub.redirects = {"model.safetensors": target}
        other.body = lambda name, data: data[::-1]
        assert "model.safetensors arrived damaged" in refused()
        other.body = lambda name, data: data
        assert find_checkpoint("tiny/splade").digest() == true_digest
        assert other.tokens == {None} and hub.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    "target", ["file:///etc/hostname", "/tiny/splade/resolve/x/vocab.txt", "http://", "\\", "gopher://x"]
)
def test_redirects_to_nowhere(hub, target, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.redirects = {"vocab.txt": target}
    assert "the download broke off" in refused()


@pytest.mark.parametrize("revision", ["../../x", "a/../../x", "/x", "", "a//b", "a\0b", "main/.."])
def test_a_revision_is_a_name(hub, revision):
    """A manifest of someone else's names one."""
    assert "not a hub id either" in refused(f"tiny/splade@{revision}") and not hub.requests


def test_two_at_once(hub, true_digest):
    found = []
    threads = [threading.Thread(target=lambda: found.append(find_checkpoint("tiny/splade").digest())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [true_digest] * 4
    assert len([path for path in hub.requests if path.endswith("/model.safetensors")]) == 2  # HEAD, GET


def test_a_process_reads_large_files_once(hub, monkeypatch):
    """To verify them and for the digest, at the first load and at later ones."""
    read = []
    monkeypatch.setattr(find_module, "compute_sha256", lambda path: read.append(path.name) or real(path))
    real = __import__("lexvl_anserini.ground.files", fromlist=["compute_sha256"]).compute_sha256
    for _ in range(3):
        find_checkpoint("tiny/splade").digest()
    assert len([name for name in read if len(name) == 64]) <= 2  # as `.part` and as blob at most
