"""The command `lexvl efficiency`: the table of suites, what they take and return, and the suites of our commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import orjson
import typer
from lexvl_eval.measures.measure_runs import machine
from lexvl_eval.report import tables

from lexvl_anserini.cli import DataDir, Verbose, encoder_names, expand_options
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.registry import import_home
from lexvl_plugins.bench.collection import write_corpus
from lexvl_plugins.bench.processes import Stopwatch, check_system, take_turns


def offer(help_text: str, *names: str, **limits: Any) -> Any:
    """An option of a command."""
    return typer.Option(*names, help=help_text, **limits)


@dataclass(frozen=True)
class Options:
    """The options of all suites; None is a suite's own default."""

    documents: Annotated[list[int] | None, offer("Documents of the collection.", min=1)] = None
    shape: Annotated[list[str] | None, offer("Synthetic vectors: mixture (default), splade or vdr.")] = None
    terms: Annotated[int | None, offer("Terms of a synthetic document; default 150 at most.", min=1)] = None
    protocol: Annotated[str | None, offer("vdr-g, stair-9 or lexlip: two models, as a paper measures.")] = None
    shards: Annotated[Path | None, offer("Folder that encode wrote, or .npz of impacts, instead of drawn ones.")] = None
    dense_shards: Annotated[Path | None, offer("The same corpus by a dense model, for a protocol.")] = None
    topics: Annotated[str | None, offer("Topics of a protocol: dataset/split or a file; default its own.")] = None
    queries: Annotated[Path | None, offer("Encoded queries Q.jsonl[.gz], or .npz, for --shards.")] = None
    query_count: Annotated[int | None, offer("Queries per round; default 200.", min=1)] = None
    query_terms: Annotated[int | None, offer("Terms of a synthetic query; default 30, or a mixture's.", min=1)] = None
    hits: Annotated[list[int] | None, offer("Documents per query; repeatable, default 10 and 1000.", min=1)] = None
    system: Annotated[list[str] | None, offer("What to compare; repeatable, default all.")] = None
    repeats: Annotated[int | None, offer("Rounds of alternating runs; default 3.", min=1)] = None
    threads: Annotated[int | None, offer("Threads of indexing and batch search; default 1.", min=1)] = None
    encoder: Annotated[str | None, offer("Default vdr.", autocompletion=encoder_names)] = None
    checkpoint: Annotated[str | None, offer("Default minilm.")] = None
    data_dir: DataDir = None
    workdir: Annotated[Path | None, offer("Keeps synthetic files here, for use in later runs.")] = None
    seed: Annotated[int | None, offer("Seed of all synthetic data.")] = None

    def named(self) -> list[str]:
        """The names of the options that the user gives."""
        return [option.name for option in fields(self) if getattr(self, option.name) is not None]

    def single(self, name: str, default: Any) -> Any:
        """The value of an option that may be repeated, for a suite that measures one collection."""
        values = getattr(self, name) or (default,)
        if len(values) > 1:
            raise UsageError(f"several --{name}: give one")
        return values[0]


class Ratio(NamedTuple):
    """The other side over ours, round by round of alternating runs: the median, the least and the greatest."""

    what: str
    median: float
    low: float
    high: float
    rounds: int


def ratio(what: str, others: Sequence[float], ours: Sequence[float]) -> Ratio:
    """The other side over ours, paired by round: a slow period of the machine affects both sides of a pair."""
    values = [other / our for other, our in zip(others, ours, strict=True)]
    return Ratio(what, median(values), min(values), max(values), len(values))


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles and mean of single queries in milliseconds, and queries per second."""
    milliseconds = np.asarray(seconds) * 1000
    rows = {f"p{p}_ms": round(float(np.percentile(milliseconds, p)), 3) for p in (50, 90, 95, 99)}
    mean = float(milliseconds.mean())
    return {**rows, "mean_ms": round(mean, 3), "queries_per_s": round(1000 / mean, 1)}


def mib(size: float) -> float:
    """Bytes as MiB."""
    return round(size / (1 << 20), 1)


@dataclass(frozen=True)
class Report:
    """The results of a suite: single figures, rows by system and case, ratios, and what readers need to judge them."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    ratios: tuple[Ratio, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Report] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=machine, compare=False)

    def to_json(self, suite: str) -> dict[str, Any]:
        """One object: the figures, then all other fields that are not empty."""
        content: dict[str, Any] = {
            "settings": dict(self.settings),
            "rows": [dict(row) for row in self.rows],
            "ratios": [ratio._asdict() for ratio in self.ratios],
            "notes": list(self.notes),
            "parts": {name: part.to_json(name) for name, part in self.parts.items()},
        }
        present = {name: value for name, value in content.items() if value}
        return {"suite": suite, **self.figures, **present, "machine": dict(self.machine)}

    def to_text(self, markdown: bool = False) -> str:
        """Settings and figures by name, then the two tables, then the notes; in Markdown for a README."""
        values, table = {**self.settings, **self.figures}, tables.to_markdown if markdown else tables.to_text
        width = max(map(len, values), default=0)
        blocks = [
            "".join(f"* {k}: {v}\n" if markdown else f"{k:{width}}  {v}\n" for k, v in values.items()),
            table(tabulate_rows(self.rows)) if self.rows else "",
            table(tables.Table.make_columns(self.ratios, RATIOS)) if self.ratios else "",
            "".join(f"{note}\n" for note in self.notes),
        ]
        return "\n".join(filter(None, blocks))


def tabulate_rows(rows: Sequence[Mapping[str, Any]]) -> tables.Table:
    """One line per mapping; a column for every key of any of them, in the order of their first use."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    named = {key for row in rows for key, value in row.items() if isinstance(value, str)}
    columns = tuple(tables.Column(key.replace("_", " "), number=key not in named) for key in keys)
    return tables.Table(columns, tuple(tuple(cell(row.get(key)) for key in keys) for row in rows))


RATIOS = (
    tables.FieldColumn("ratio", "what"),
    *(tables.FieldColumn(name, name, tables.TWO_DECIMALS) for name in ("median", "low", "high")),
    tables.FieldColumn("rounds", "rounds", tables.PLAIN),
)


def cell(value: Any) -> str:
    """A value as text, with separators of thousands."""
    if value is None:
        return tables.MISSING
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class Suite(NamedTuple):
    """A benchmark: `module:function` that maps `Options` to a `Report`, and the options that it uses."""

    target: str
    options: frozenset[str]


INDEXED = frozenset(["documents", "shape", "terms", "workdir", "seed", "shards", "system", "repeats", "threads"])
PROTOCOL = frozenset(["protocol", "shards", "dense_shards", "topics", "query_count", "repeats", "data_dir", "workdir"])
QUERIES = frozenset({"query_count", "query_terms", "hits"})
SUITES: Mapping[str, Suite] = {
    "fdt-cost": Suite(f"{__package__}.fdt_cost:measure", frozenset({"documents", "system", "repeats"})),
    "index": Suite(f"{__package__}.index:measure", INDEXED),
    "overhead": Suite(f"{__package__}.command:measure_overhead", frozenset({"documents", "encoder", "checkpoint"})),
    "overview": Suite(f"{__package__}.overview:measure", frozenset({"workdir", "seed"})),
    "protocol": Suite(f"{__package__}.protocols:measure", PROTOCOL),
    "search": Suite(f"{__package__}.search:measure", INDEXED | QUERIES | {"queries"}),
    "startup": Suite(f"{__package__}.command:measure_startup", frozenset({"repeats"})),
}


def check_options(suite: str, options: Options) -> None:
    """Refuses an unknown suite, and an option that the suite does not use."""
    if suite not in SUITES:
        raise UnknownName("suite", suite, SUITES)
    used = SUITES[suite].options
    if unused := set(options.named()) - used:
        ignored, known = (", ".join(f"--{n.replace('_', '-')}" for n in sorted(names)) for names in (unused, used))
        raise UsageError(f"suite {suite!r} does not use {ignored}; it uses {known}")


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

    def time_interpreter(arguments: list[str]) -> float:
        with Stopwatch() as watch:
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return watch.wall_s

    runs = take_turns({name: partial(time_interpreter, case) for name, case in cases.items()}, options.repeats or 5)
    return Report({name: round(median(seconds), 3) for name, seconds in runs.items()})


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
    pooled: Callable[..., Any] = tower.pool_batch

    def timed(*inputs: Any) -> Any:
        nonlocal forward_s
        started = time.perf_counter()
        result = pooled(*inputs)
        forward_s += time.perf_counter() - started
        return result

    tower.pool_batch = timed  # type: ignore[method-assign, assignment]
    tower.weights(["warm up"] * 64)
    forward_s = 0.0
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "corpus", documents)
        dataset = load_dataset(f"beir:{folder}/corpus")
        with Stopwatch() as watch:
            manifest = write_impacts(dataset, model, Path(folder) / "impacts")
    rates = {"postings_per_document": manifest.counts.postings / documents, "documents_per_s": documents / watch.wall_s}
    figures = {name: round(rate, 1) for name, rate in rates.items()}
    figures |= {"wall_s": round(watch.wall_s, 2), "forward_s": round(forward_s, 2)}
    figures["overhead_share"] = round(1 - forward_s / watch.wall_s, 4)
    return Report({"documents": manifest.counts.documents, **figures})


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
    tables.check_format(style, FORMATS)
    suite = suite or ("protocol" if options.protocol else "overhead")
    report = run_suite(suite, options)
    if output is not None:
        write_json(output, report.to_json(suite))
    sys.stdout.write(FORMATS[style](report, suite))
