"""Benchmarks of the line itself: ratios and shares of one run on one machine, never a pass or a failure.

python -m eval.efficiency --suite overhead --checkpoint minilm
python -m eval.efficiency --suite memory
python -m eval.efficiency --suite startup
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import Verbose, check_style, print_rows, run
from lexvl_anserini.errors import LexvlError, UnknownName

REPEATS = 5
MEMORY_SIZES = (10_000, 100_000)


def overhead(documents: int, encoder: str, checkpoint: str | None) -> dict[str, Any]:
    """Share of the wall time of encoding that is not the model's forward pass (backbone, head and pooling).

    A corpus of demo captions is read from a file and its shards are written, as the command does it, calibration
    included; loading the model is not counted.
    """
    from lexvl_anserini.data.base import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.impacts import write_impacts

    model = load_encoder(encoder, checkpoint)
    forward_s = 0.0
    pooled: Callable[..., Any] = model.document.pooled

    def timed(*inputs: Any) -> Any:
        nonlocal forward_s
        started = time.perf_counter()
        result = pooled(*inputs)
        forward_s += time.perf_counter() - started
        return result

    model.document.pooled = timed
    model.document.weights(["warm up"] * 64)
    forward_s = 0.0
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "corpus", documents)
        dataset = load_dataset(f"beir:{folder}/corpus")
        started = time.perf_counter()
        manifest = write_impacts(dataset, model, Path(folder) / "impacts")
        wall_s = time.perf_counter() - started
    return {
        "documents": manifest.counts["documents"],
        "postings_per_document": round(manifest.counts["postings"] / documents, 1),
        "documents_per_s": round(documents / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "forward_s": round(forward_s, 2),
        "overhead_share": round(1 - forward_s / wall_s, 4),
    }


def write_corpus(folder: Path, documents: int) -> None:
    """A BEIR-layout corpus of that many documents, made of demo captions under new ids."""
    from lexvl_anserini.data.base import load_dataset

    def endless() -> Iterator[str]:
        while True:
            for document in load_dataset("demo", split="train").documents():
                yield document.contents

    folder.mkdir(parents=True)
    with open(folder / "corpus.jsonl", "wb") as out:
        for number, text in enumerate(islice(endless(), documents)):
            out.write(orjson.dumps({"_id": f"d{number}", "title": "", "text": text}) + b"\n")
    (folder / "queries.jsonl").write_bytes(orjson.dumps({"_id": "q0", "text": "a boat"}) + b"\n")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")


def peak_mib(command: list[str]) -> tuple[float, float]:
    """Runs a command; its peak resident memory in MiB and its wall time in seconds.

    Raises:
        LexvlError: the command failed.
    """
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = child.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise LexvlError(f"{' '.join(command)} failed: {said.strip().splitlines()[-1] if said.strip() else status}")
    return usage.ru_maxrss / 1024, time.perf_counter() - started


def memory(documents: int, encoder: str, checkpoint: str | None) -> dict[str, Any]:
    """Peak resident memory of `encode` and of `index`, each its own process, for a corpus and one ten times larger."""
    rows: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for size in MEMORY_SIZES:
            corpus, shards, index = (Path(folder) / f"{name}-{size}" for name in ("corpus", "impacts", "index"))
            write_corpus(corpus, size)
            encode = ["--corpus", f"beir:{corpus}", "--encoder", encoder, "--output", str(shards)]
            if checkpoint:
                encode += ["--checkpoint", checkpoint]
            for hop, arguments in (("encode", encode), ("index", [str(shards), "--index", str(index)])):
                peak, seconds = peak_mib([sys.executable, "-m", f"lexvl_anserini.{hop}", *arguments])
                rows[f"{hop}_{size}_peak_mib"] = round(peak)
                rows[f"{hop}_{size}_s"] = round(seconds, 1)
    small, large = MEMORY_SIZES
    for hop in ("encode", "index"):
        rows[f"{hop}_memory_ratio"] = round(rows[f"{hop}_{large}_peak_mib"] / rows[f"{hop}_{small}_peak_mib"], 2)
    return rows


def startup(documents: int, encoder: str, checkpoint: str | None) -> dict[str, Any]:
    """Median seconds until a fresh interpreter has imported the package, and until a command has printed its help."""
    cases: Mapping[str, list[str]] = {
        "python_alone_s": ["-c", "pass"],
        "import_lexvl_anserini_s": ["-c", "import lexvl_anserini"],
        **{f"{hop}_help_s": ["-m", f"lexvl_anserini.{hop}", "--help"] for hop in ("encode", "index", "search")},
        "score_help_s": ["-m", "eval.score", "--help"],
    }
    rows = {}
    for name, arguments in cases.items():
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        rows[name] = round(statistics.median(seconds), 3)
    return rows


SUITES: Mapping[str, Callable[[int, str, str | None], dict[str, Any]]] = {
    "memory": memory,
    "overhead": overhead,
    "startup": startup,
}


def command(
    suite: Annotated[str, typer.Option(help="overhead, memory or startup.")] = "overhead",
    documents: Annotated[int, typer.Option(min=1, help="Documents of the demo corpus to encode (overhead).")] = 2000,
    encoder: Annotated[str | None, typer.Option(help="Default vdr for overhead, bag-of-tokens for memory.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Default minilm for overhead, none for memory.")] = None,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Measure the line itself on this machine.

    Example: python -m eval.efficiency --suite startup
    """
    check_style(style)
    if suite not in SUITES:
        raise UnknownName("suite", suite, SUITES)
    if encoder is None:
        encoder, checkpoint = ("vdr", checkpoint or "minilm") if suite == "overhead" else ("bag-of-tokens", checkpoint)
    print_rows(SUITES[suite](documents, encoder, checkpoint), style)


if __name__ == "__main__":
    run(command)
