"""Hostile checkpoints: each loads and gives finite numbers, or is one line, and no code of it runs."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hostile import changed
from rounds import Rounds
from tiny_encoders import TINY_ENCODERS  # noqa: F401  the table that `models` reads

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=3)]

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
    """A process that loads checkpoints, one after the other."""

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
