"""The command `python -m lexvl_plugins.bench`, the table of suites, and the suites of our own commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import orjson
import typer
from lexvl_eval.report.render import check_format

from lexvl_anserini.cli import Verbose, expand_options
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.registry import import_home
from lexvl_plugins.bench.collection import write_corpus
from lexvl_plugins.bench.processes import Stopwatch, check_system, take_turns
from lexvl_plugins.bench.suite import Options, Report


class Suite(NamedTuple):
    """A benchmark: `module:function` that maps `Options` to a `Report`, and the options that it uses."""

    target: str
    options: frozenset[str]


SYNTHETIC = frozenset({"documents", "shape", "terms", "workdir", "seed"})
QUERIES = frozenset({"query_count", "query_terms", "hits"})

SUITES: Mapping[str, Suite] = {
    "index": Suite(f"{__package__}.index:measure", SYNTHETIC | {"shards", "system", "repeats", "threads"}),
    "overhead": Suite(f"{__package__}.command:measure_overhead", frozenset({"documents", "encoder", "checkpoint"})),
    "overview": Suite(f"{__package__}.overview:measure", frozenset({"workdir", "seed"})),
    "protocol": Suite(
        f"{__package__}.protocols:measure",
        frozenset({"protocol", "shards", "dense_shards", "topics", "query_count", "repeats", "data_dir", "workdir"}),
    ),
    "search": Suite(
        f"{__package__}.search:measure", SYNTHETIC | QUERIES | {"shards", "queries", "system", "repeats", "threads"}
    ),
    "startup": Suite(f"{__package__}.command:measure_startup", frozenset({"repeats"})),
}


def check_options(suite: str, options: Options) -> None:
    """Refuses an unknown suite, and an option that the suite does not use."""
    if suite not in SUITES:
        raise UnknownName("suite", suite, SUITES)
    if unused := set(options.named()) - SUITES[suite].options:
        ignored, used = (
            ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
            for names in (unused, SUITES[suite].options)
        )
        raise UsageError(f"suite {suite!r} does not use {ignored}; it uses {used}")


def run_suite(suite: str, options: Options) -> Report:
    """Runs a suite with the options that it uses, on Linux."""
    check_options(suite, options)
    check_system()
    report: Report = import_home(SUITES[suite].target)(options)
    return report


def measure_startup(options: Options) -> Report:
    """Median seconds until a fresh interpreter has imported the package, and until a command has printed its help."""
    cases: Mapping[str, list[str]] = {
        "python_alone_s": ["-c", "pass"],
        "import_lexvl_anserini_s": ["-c", "import lexvl_anserini"],
        **{f"{hop}_help_s": ["-m", f"lexvl_anserini.{hop}", "--help"] for hop in ("encode", "index", "search")},
        "score_help_s": ["-m", "eval.score", "--help"],
    }
    runs = take_turns({name: partial(time_interpreter, case) for name, case in cases.items()}, options.repeats or 5)
    return Report({name: round(median(seconds), 3) for name, seconds in runs.items()})


def time_interpreter(arguments: list[str]) -> float:
    """The wall seconds of an interpreter with these arguments."""
    with Stopwatch() as watch:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return watch.wall_s


def measure_overhead(options: Options) -> Report:
    """Share of the wall time of encoding demo captions that is not the model's forward pass; loading does not count."""
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.encoders.parts.towers import LexicalTower
    from lexvl_anserini.shards.writing import write_impacts

    documents = options.single("documents", 2000)
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
    return Report(
        {
            "documents": manifest.counts.documents,
            "postings_per_document": round(manifest.counts.postings / documents, 1),
            "documents_per_s": round(documents / wall_s, 1),
            "wall_s": round(wall_s, 2),
            "forward_s": round(forward_s, 2),
            "overhead_share": round(1 - forward_s / wall_s, 4),
        }
    )


FORMATS: Mapping[str, Callable[[Report, str], str]] = {
    "text": lambda report, _: report.to_text(),
    "markdown": lambda report, _: report.to_text(markdown=True),
    "json": lambda report, suite: orjson.dumps(report.to_json(suite)).decode() + "\n",
}


@expand_options
def command(
    *,
    suite: Annotated[str | None, typer.Option(help=f"{', '.join(SUITES)}; default overhead.")] = None,
    options: Options,
    output: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
    style: Annotated[str, typer.Option("--format", help="Format of printed numbers: text, markdown or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Measure this package on this machine, next to the systems that it is compared with.

    Example: lexvl efficiency --suite startup
    """
    check_format(style, FORMATS)
    suite = suite or ("protocol" if options.protocol else "overhead")
    report = run_suite(suite, options)
    if output is not None:
        write_json(output, report.to_json(suite))
    sys.stdout.write(FORMATS[style](report, suite))
