"""Hostile checkpoints and hubs: each gives the true model or finite numbers, or one line; no code of it runs."""

import multiprocessing
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from damage import damaged
from hostile import changed
from hub_server import SHA, HubServer, git_sha1, serving
from rounds import Rounds
from tiny_encoders import TINY_ENCODERS  # noqa: F401  the table that `models` reads

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.ground.errors import CheckpointError

pytestmark = pytest.mark.heavy

# What one checkpoint may cost in CPU time and memory: its file has less than a MB.
MOST_SECONDS, MOST_MB = 20, 1000
# Only a process that hangs is silent for so long, also on a busy machine.
PATIENCE_S = 900

TEXTS = ["a dog on a beach", "", "two men ride horses"]
# An encoder, its checkpoint, its options.
Request = tuple[str, str, dict[str, Any]]


def serve(connection: Connection) -> None:
    """Loads what it is sent, in a process whose memory is limited; answers with a line, or with None if all is well."""
    import numpy as np

    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.ground.errors import LexvlError

    sys.stdin = Mock()  # says yes to every question
    sys.stdin.readline.return_value = "y\n"
    limited = False
    while True:
        name, folder, options = connection.recv()
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        line, what = None, "loaded"
        try:
            encoder = load_encoder(name, folder, device="cpu", **options)
            side: Any = encoder.document if options.get("direction") == "image-to-text" else encoder.query  # of texts
            found = side.weights(TEXTS) if encoder.kind == "impact" else side.vectors(TEXTS)
            if not np.isfinite(found.data if encoder.kind == "impact" else found).all():
                line = "not finite"
        except LexvlError as error:
            what, line = str(error), None
            if "\n" in what or "weights_only" in what or "trust_remote_code=True" in what or len(what) > 3000:
                line = f"not one line of ours: {what}"
        except BaseException as error:
            line = f"{type(error).__name__}: {error}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        if limited and grown > MOST_MB:
            line = f"{grown} MB; {line}"
        if limited and (seconds := time.process_time() - started) > MOST_SECONDS:
            line = f"{seconds:.0f} CPU s; {line}"
        asked = sys.stdin.readline.call_count
        connection.send((line or (f"asked {asked} questions" if asked else None), what))
        if not limited:  # all libraries are imported
            pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (pages + (6 << 30), pages + (6 << 30)))
            limited = True


class Loader:
    def __init__(self, warm: list[Request]):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        for request in warm:
            assert self(*request) == (None, "loaded"), request

    def __call__(self, *request: Any) -> tuple[str | None, str]:
        """What is wrong, or None; and the line of the refusal, or "loaded"."""
        self.connection.send(request)
        if not self.connection.poll(PATIENCE_S):
            self.process.kill()
            return f"no answer in {PATIENCE_S} s", ""
        try:
            line, what = self.connection.recv()
        except EOFError:
            return "the process died", ""
        return line, what


@pytest.fixture(scope="module")
def models(request, golden: Path, shared: Path, tmp_path_factory) -> list[Request]:
    """True checkpoints of the module's table: encoder, folder or file, options; beside the checkout if it is there."""
    made = tmp_path_factory.mktemp("made")

    def place(value: Any) -> str:
        return str(shared.parent / value if str(value).startswith("shared/") else golden / value)

    found = []
    for tiny in request.module.TINY_ENCODERS.values():
        if tiny.checkpoint is not None and not tiny.vectors and (shared.is_dir() or not tiny.marks):
            checkpoint = tiny.checkpoint if isinstance(tiny.checkpoint, str) else tiny.checkpoint(golden, made)
            options = dict(tiny.options)
            for key, value in options.items():
                if str(value).startswith("path:"):
                    options[key] = place(value.removeprefix("path:"))
            found.append((tiny.encoder, place(checkpoint), options))
    return found


@pytest.fixture(scope="module")
def loader(models: list[Request]) -> Iterator[list[Loader]]:
    """One process, which a test replaces when it is killed."""
    here = [Loader(models)]
    yield here
    here[0].process.kill()


@pytest.mark.attack(share=3)
def test_hostile_checkpoints(rounds: Rounds, models: list[Request], loader: list[Loader]) -> None:
    for one in rounds:
        name, folder, options = one.random.choice(models)
        mark = one.folder / "ran"
        hostile, done = changed(one.random, Path(folder), one.folder, mark)
        if not loader[0].process.is_alive():
            loader[0] = Loader(models)
        wrong, what = loader[0](name, str(hostile), options)
        assert wrong is None, f"{name}, {done}: {wrong} ({what})"
        assert not mark.exists(), f"{name}, {done}: its code ran ({what})"
        rounds.count("hostile checkpoints loaded" if what == "loaded" else "hostile checkpoints refused")


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
    server.listed, server.body = (lambda listed: listed), (lambda name, data: data)
    server.sha, server.headers, server.redirects, server.cut, server.broken = SHA, {}, {}, None, None


@pytest.mark.attack
def test_hostile_hubs(rounds: Rounds, hub: HubServer, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    true = {weights: find_checkpoint(str(golden / "splade/ckpt_bert"), weights).digest() for weights in (True, False)}
    for one in rounds:
        cache = one.folder / "a/b/c/cache"
        cache.mkdir(parents=True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        before, around = {*one.folder.rglob("*")}, set(Path("/tmp").iterdir())
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
            made = {path for path in one.folder.rglob("*") if cache not in path.parents}
            assert made == before, f"{done}: something is outside of the cache"
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
