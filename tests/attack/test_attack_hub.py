"""Hostile hubs: nothing appears outside of the cache, and a load gives the true model or is one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged
from hub_server import SHA, HubServer, git_sha1, serving
from rounds import Rounds

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.ground.errors import CheckpointError

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

EVIL = (
    "../../x", "../" * 12 + "tmp/lexvl-evil", "/tmp/lexvl-evil", "a/../../../x", "..\\..\\x", "x\0y", "\ud800",
    "x" * 300, "a/" * 300 + "x", "", ".", ".git/config", "refs/heads/main", "config.json/x", "'$(touch x)'",
    "%2e%2e%2fx", SHA[:-1], SHA.upper(), git_sha1(b"x"), "0" * 64,
)  # fmt: skip
# Bodies of answers that are no file.
PIECES = (b"?", b"x" * 10**6, b"<html>Not found</html>")
OTHERS = (None, 3, -1, 10**30, [], {}, True, 1.5)


@pytest.fixture(scope="module")
def hub(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A hub with one model; the library's pauses between its tries are left out."""
    files = Path(shutil.copytree(golden / "splade/ckpt_bert", tmp_path_factory.mktemp("hub") / "repository"))
    with pytest.MonkeyPatch.context() as patch, serving(files, files.parent / "cache", patch) as server:
        patch.setattr("time.sleep", lambda seconds: None)
        yield server


def lying_name(random: Random, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A file of another name, or one more."""
    name = random.choice(EVIL) + random.choice(["", ".json", "/config.json", "/model.safetensors"])
    entry = {**random.choice(listed), "rfilename": random.choice([name, name, random.choice(OTHERS)])}
    return random.choice([[entry, *listed], [*listed, entry], [entry], [entry, *listed[1:]]])


def lying_entry(random: Random, listed: list[dict[str, Any]]) -> Any:
    """A size or digest that is another's, or no digest; or an entry of another type."""
    entries: list[Any] = [dict(entry) for entry in listed]
    key = random.choice(["rfilename", "size", "blobId", "lfs"])
    value = random.choice([*EVIL, *OTHERS, random.choice(listed).get(key)])
    if key == "lfs" and random.random() < 0.7:
        value = {"size": random.choice([value, 3]), "sha256": value, "pointerSize": 1}
    random.choice(entries)[key] = value
    return random.choice([entries, entries, entries[:1], [*entries, 3], {"x": entries}, None])


def lie(random: Random, server: HubServer) -> str:
    """Makes a server lie, each answer anew; returns how."""
    kind = random.choice(["name", "entry", "commit", "body", "cut", "broken", "redirect", "second answer"])
    files = sorted(path.name for path in server.repositories["tiny/splade"].iterdir())
    if kind in ("name", "entry"):
        change = lying_name if kind == "name" else lying_entry
        server.listed = lambda listed: change(random, listed)
    elif kind == "commit":
        server.sha = random.choice([*EVIL, *OTHERS])
    elif kind == "body":
        server.body = lambda name, data: damaged(random, data, PIECES) if random.random() < 0.4 else data
    elif kind == "cut":
        server.cut = random.choice(files)
    elif kind == "broken":
        server.broken = random.choice(files)
    elif kind == "redirect":
        own_file = f"{server.address}/tiny/splade/resolve/{SHA}/config.json"
        targets = [*EVIL[:4], "file:///etc/hostname", own_file, "http://"]
        target = random.choice(targets).encode("latin-1", "replace").decode("latin-1")  # what a header can hold
        server.redirects = {random.choice(files): target.replace("\0", "").replace("\n", "")}
    else:  # another commit and other bytes at every request
        server.listed = lambda listed: random.sample(listed, random.randrange(1, len(listed)))
        server.body = lambda name, data: random.choice([data, data, damaged(random, data, PIECES)])
    return kind


def honest(server: HubServer) -> None:
    """Makes a server tell the truth."""
    server.listed, server.body = (lambda listed: listed), (lambda name, data: data)
    server.sha, server.headers, server.redirects, server.cut, server.broken = SHA, {}, {}, None, None


def tree(folder: Path, cache: Path) -> set[Path]:
    """Everything below a folder but what is in a cache."""
    return {path for path in folder.rglob("*") if cache not in path.parents}


def test_hostile_hubs(rounds: Rounds, hub: HubServer, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    true = {weights: find_checkpoint(str(golden / "splade/ckpt_bert"), weights).digest() for weights in (True, False)}
    for one in rounds:
        cache = one.folder / "a/b/c/cache"
        cache.mkdir(parents=True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        before, around = tree(one.folder, cache), set(Path("/tmp").iterdir())
        for _ in range(one.random.choice([1, 2, 3])):
            weights, reference = one.random.random() < 0.8, one.random.choice(["tiny/splade", f"tiny/splade@{SHA}"])
            done = lie(one.random, hub)
            try:
                whole = find_checkpoint(reference, weights).digest() == true[weights]
                # A listing decides which files a model has; what it lists is true.
                assert whole or done in ("name", "entry", "second answer"), f"{done}: another model without an error"
                rounds.count("hostile answers survived")
            except CheckpointError as error:
                assert "\n" not in str(error) and str(error).startswith("tiny/splade"), f"{done}: {error}"
                rounds.count("hostile answers refused")
            finally:
                honest(hub)
            assert tree(one.folder, cache) == before, f"{done}: something is outside of the cache"
            if one.random.random() < 0.3:  # damage in the cache between two calls
                blobs = sorted(path for path in cache.rglob("blobs/*") if path.is_file() and path.stat().st_size)
                for blob in blobs[:1]:
                    blob.write_bytes(damaged(one.random, blob.read_bytes(), PIECES))
        assert not {path for path in set(Path("/tmp").iterdir()) - around if "evil" in path.name}
        for attempt in range(20):
            try:
                assert find_checkpoint("tiny/splade").digest() == true[True]
                break
            except CheckpointError as error:  # each call removes what is damaged
                assert "run again" in str(error) and attempt < 19, error
