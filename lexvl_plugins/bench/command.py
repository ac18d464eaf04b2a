"""The command `python -m lexvl_plugins.bench`, and the table of suites."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import orjson
import typer
from lexvl_eval.report.render import check_format

from lexvl_anserini.cli import Verbose, expanded
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.registry import import_home
from lexvl_plugins.bench.processes import check_system
from lexvl_plugins.bench.suite import Options, Report


class Suite(NamedTuple):
    """A benchmark: `module:function` that maps `Options` to a `Report`, and the options that it uses."""

    target: str
    options: frozenset[str]


SYNTHETIC = frozenset({"documents", "shape", "terms", "workdir", "seed"})
QUERIES = frozenset({"query_count", "query_terms", "hits"})

SUITES: Mapping[str, Suite] = {
    "index": Suite(f"{__package__}.index:measure", SYNTHETIC | {"shards", "system", "repeats", "threads"}),
    "overhead": Suite(f"{__package__}.process:measure_overhead", frozenset({"documents", "encoder", "checkpoint"})),
    "overview": Suite(f"{__package__}.overview:measure", frozenset({"workdir", "seed"})),
    "protocol": Suite(
        f"{__package__}.protocols:measure",
        frozenset({"protocol", "shards", "dense_shards", "topics", "query_count", "repeats", "data_dir", "workdir"}),
    ),
    "search": Suite(
        f"{__package__}.search:measure",
        SYNTHETIC | QUERIES | {"shards", "queries", "system", "repeats", "threads"},
    ),
    "startup": Suite(f"{__package__}.process:measure_startup", frozenset({"repeats"})),
}


def check_options(suite: str, options: Options) -> None:
    """Refuses an unknown suite, and an option that the suite does not use."""
    if suite not in SUITES:
        raise UnknownName("suite", suite, SUITES)
    if unused := sorted(set(options.named()) - SUITES[suite].options):
        raise UsageError(f"suite {suite!r} does not use {_flags(unused)}; it uses {_flags(SUITES[suite].options)}")


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def run_suite(suite: str, options: Options) -> Report:
    """Runs a suite with the options that it uses, on Linux."""
    check_options(suite, options)
    check_system()
    report: Report = import_home(SUITES[suite].target)(options)
    return report


FORMATS: Mapping[str, Callable[[Report, str], str]] = {
    "text": lambda report, _: report.to_text(),
    "markdown": lambda report, _: report.to_markdown(),
    "json": lambda report, suite: orjson.dumps(report.to_json(suite)).decode() + "\n",
}


@expanded
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
