"""The suites of our own commands: the start of one, and the overhead of encoding."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lexvl_plugins.bench.collection import write_corpus
from lexvl_plugins.bench.processes import Stopwatch, take_turns
from lexvl_plugins.bench.suite import Options, Report, median

STARTUP_REPEATS = 5
OVERHEAD_DOCUMENTS = 2000


def measure_startup(options: Options) -> Report:
    """Median seconds until a fresh interpreter has imported the package, and until a command has printed its help."""
    rounds = options.repeats or STARTUP_REPEATS
    cases: Mapping[str, list[str]] = {
        "python_alone_s": ["-c", "pass"],
        "import_lexvl_anserini_s": ["-c", "import lexvl_anserini"],
        **{f"{hop}_help_s": ["-m", f"lexvl_anserini.{hop}", "--help"] for hop in ("encode", "index", "search")},
        "score_help_s": ["-m", "eval.score", "--help"],
    }
    runs = take_turns({name: partial(seconds_of, arguments) for name, arguments in cases.items()}, rounds)
    return Report({name: round(median(seconds), 3) for name, seconds in runs.items()})


def seconds_of(arguments: list[str]) -> float:
    """The wall seconds of an interpreter with these arguments."""
    with Stopwatch() as watch:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return watch.wall_s


def measure_overhead(options: Options) -> Report:
    """Share of the wall time of encoding that is not the model's forward pass (backbone, head and pooling).

    A corpus of demo captions is read from a file and its shards are written, as the command does it, including
    calibration; loading the model does not count.
    """
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.encoders.parts.towers import LexicalTower
    from lexvl_anserini.shards.writing import write_impacts

    documents = options.single("documents", OVERHEAD_DOCUMENTS)
    checkpoint = options.checkpoint or ("minilm" if options.encoder is None else None)
    model = load_encoder(options.encoder or "vdr", checkpoint)
    forward_s = 0.0
    tower = model.document
    assert isinstance(tower, LexicalTower), "an encoder whose weights come from a network"
    pooled: Callable[..., Any] = tower.pooled

    def timed(*inputs: Any) -> Any:
        nonlocal forward_s
        started = time.perf_counter()
        result = pooled(*inputs)
        forward_s += time.perf_counter() - started
        return result

    tower.pooled = timed  # type: ignore[method-assign, assignment]
    tower.weights(["warm up"] * 64)
    forward_s = 0.0
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "corpus", documents)
        dataset = load_dataset(f"beir:{folder}/corpus")
        started = time.perf_counter()
        manifest = write_impacts(dataset, model, Path(folder) / "impacts")
        wall_s = time.perf_counter() - started
    figures = {
        "documents": manifest.counts.documents,
        "postings_per_document": round(manifest.counts.postings / documents, 1),
        "documents_per_s": round(documents / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "forward_s": round(forward_s, 2),
        "overhead_share": round(1 - forward_s / wall_s, 4),
    }
    return Report(figures)
