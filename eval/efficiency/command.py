"""The command `python -m eval.efficiency`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from eval.efficiency.options import Options
from eval.efficiency.report import Report
from eval.efficiency.suites import SUITES
from eval.report.render import check_format
from lexvl_anserini.cli import DataDir, Verbose
from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.files import write_json
from lexvl_anserini.registry import resolve


def checked(suite: str, options: Options) -> None:
    """Refuses an option that the suite would ignore.

    Raises:
        UnknownName: no such suite.
        UsageError: there is such an option.
    """
    if suite not in SUITES:
        raise UnknownName("suite", suite, SUITES)
    ignored = sorted(set(options.given()) - SUITES[suite].heeds)
    if ignored:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        heeded = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(SUITES[suite].heeds))
        raise UsageError(f"suite {suite!r} does not heed {flags}; it heeds {heeded}")


def measured(suite: str, options: Options) -> Report:
    """Runs a suite."""
    checked(suite, options)
    targets: Mapping[str, str] = {name: row.target for name, row in SUITES.items()}
    report: Report = resolve("suite", suite, targets)(options)
    return report


FORMATS: Mapping[str, Callable[[Report, str], str]] = {
    "text": lambda report, _: report.to_text(),
    "markdown": lambda report, _: report.to_markdown(),
    "json": lambda report, suite: orjson.dumps(report.to_json(suite)).decode() + "\n",
}


def many(values: list[Any] | None) -> tuple[Any, ...] | None:
    """A repeatable option; None if it was not given."""
    return tuple(values) if values else None


def command(
    suite: Annotated[str, typer.Option(help=f"{', '.join(SUITES)}.")] = "overhead",
    documents: Annotated[
        list[int] | None, typer.Option(min=1, help="Of the collection; repeat it for the sizes of cost and memory.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Of made-up vectors: splade or vdr; of encode also image. Repeatable.")
    ] = None,
    terms: Annotated[int | None, typer.Option(min=1, help="Per made-up document; default 120 or 768.")] = None,
    shards: Annotated[Path | None, typer.Option(help="Folder that encode wrote, instead of made-up vectors.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Encoded queries Q.jsonl[.gz], instead of made-up ones.")] = None,
    query_count: Annotated[int | None, typer.Option(min=1, help="Queries a round; default 200.")] = None,
    query_terms: Annotated[int | None, typer.Option(min=1, help="Per made-up query; default 30.")] = None,
    hits: Annotated[list[int] | None, typer.Option(min=1, help="Per query; repeatable, default 10 and 1000.")] = None,
    system: Annotated[list[str] | None, typer.Option(help="What to compare; repeatable, default all.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds of alternating runs; default 3.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of indexing, batch search, encoding; default 1.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Of encoding; default 32, pictures 64.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Default vdr for overhead, bag-of-tokens for memory.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Default minilm for overhead, none for memory.")] = None,
    corpus: Annotated[str | None, typer.Option(help="Whose texts encode reads, instead of made-up ones.")] = None,
    data_dir: DataDir = None,
    workdir: Annotated[Path | None, typer.Option(help="Keeps made-up files here, to be used again.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything made up.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file; cost and overview draw a plot beside it.")] = None,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text, markdown or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Measure the line on this machine, next to what it is compared with.

    Example: python -m eval.efficiency --suite startup
    """
    check_format(style, FORMATS)
    options = Options(
        documents=many(documents),
        shape=many(shape),
        terms=terms,
        shards=shards,
        queries=queries,
        query_count=query_count,
        query_terms=query_terms,
        hits=many(hits),
        system=many(system),
        repeats=repeats,
        threads=threads,
        batch_size=batch_size,
        encoder=encoder,
        checkpoint=checkpoint,
        corpus=corpus,
        data_dir=data_dir,
        workdir=workdir,
        seed=seed,
    )
    report = measured(suite, options)
    if output is not None:
        write_json(output, report.to_json(suite))
        if curve := {"cost": report}.get(suite) or report.parts.get("cost"):
            from eval.efficiency.plot import cost_plot

            cost_plot(curve, output.with_suffix(".png"))
    sys.stdout.write(FORMATS[style](report, suite))
