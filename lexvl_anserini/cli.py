"""What all commands share: options, exit codes, logging, progress, and the `lexvl` console script.

Exit codes: 0 done, 1 failure (one readable line; the traceback with --verbose), 2 usage. Logs go to stderr, data to
stdout.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import orjson
import typer

from lexvl_anserini.errors import LexvlError, UsageError
from lexvl_anserini.progress import Progress

Command = Callable[..., None]

# Options of many commands.
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error and debug log lines.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder of the datasets; default $LEXVL_DATA, else ~/.cache/lexvl.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a finished output of another request.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Style = Annotated[str, typer.Option("--format", help="Format of what is printed: text or json.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per forward pass.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the encoder, KEY=VALUE (query_topk=64); repeatable.")
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", help="Folder, hub id (owner/name[@revision]), or packaged: minilm, demo-vdr, demo-dense."
    ),
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Take the tokenizer from this folder or hub id.")]
BackboneConfig = Annotated[
    str | None,
    typer.Option("--backbone-config", help="Take the backbone's configuration from this folder or hub id."),
]
MovedCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Where the encoder's checkpoint is now, if it was moved.")
]
MovedTokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Where its tokenizer is now, if it was moved.")]

# Seconds between two progress lines when stderr is not a terminal.
LOG_EVERY_S = 10.0

COMMANDS = {
    "train": "lexvl_anserini.train",
    "encode": "lexvl_anserini.encode",
    "index": "lexvl_anserini.index",
    "prune": "lexvl_anserini.prune",
    "search": "lexvl_anserini.search",
    "explain": "lexvl_anserini.explain",
    "fuse": "lexvl_anserini.fuse",
    "rerank": "lexvl_anserini.rerank",
    "hybrid": "lexvl_anserini.hybrid",
    "localise": "lexvl_anserini.localise",
    "score": "lexvl_eval.score",
    "table": "lexvl_eval.table",
    "compare": "lexvl_eval.compare",
    "beir": "lexvl_eval.beir",
    "msmarco": "lexvl_eval.msmarco",
    "coco": "lexvl_eval.coco",
    "flickr30k": "lexvl_eval.flickr30k",
    "flickr8k": "lexvl_eval.flickr8k",
    "demo": "lexvl_eval.demo",
    "sheet": "lexvl_eval.sheet",
    "ceiling": "lexvl_eval.ceiling",
    "concepts": "lexvl_eval.concepts",
    "quantisation": "lexvl_eval.quantisation",
    "pruning": "lexvl_eval.pruning",
    "ann": "lexvl_eval.ann",
    "efficiency": "lexvl_eval.efficiency.command",
}


@dataclass(frozen=True)
class QueryEncoderOptions:
    """The encoder of an index, as a search uses it."""

    settings: Settings = None
    data_dir: DataDir = None
    manifest: Annotated[
        str | None, typer.Option(help="manifest.json of the shards, for an index that stock Pyserini built.")
    ] = None
    checkpoint: MovedCheckpoint = None
    tokenizer: MovedTokenizer = None
    device: Device = "auto"


def set_up_logging(verbose: bool = False) -> None:
    """Plain log lines on stderr for our two packages; other libraries only from warnings on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for package in ("lexvl_anserini", "lexvl_eval", "eval"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def quiet_libraries() -> None:
    """Turns off the progress bars and advice of the model libraries, unless the user set them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def expanded(command: Command) -> Command:
    """The command with every parameter that is a dataclass replaced by the fields of that class, one option each.

    A field is declared like a parameter of a command, or is of another such dataclass:

        @dataclass(frozen=True)
        class FusionOptions:
            method: Annotated[str, typer.Option(help="rrf or interpolation.")] = "rrf"

        @expanded
        def command(output: Output, fusion: FusionOptions, verbose: Verbose = False) -> None: ...

    The command line has `--output --method --verbose`, in this order, and `command` receives a `FusionOptions`. The
    expanded command takes the options by keyword.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            parameters += _parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def flat(**options: Any) -> None:
        groups = {
            parameter.name: _grouped(parameter.annotation, options)
            for parameter in signature.parameters.values()
            if is_dataclass(parameter.annotation)
        }
        command(**options, **groups)

    flat.__name__, flat.__module__, flat.__doc__ = command.__name__, command.__module__, command.__doc__
    flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return flat


def _annotated(group: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a dataclass, each with its annotation."""
    hints = get_type_hints(group, include_extras=True)
    return ((field, hints[field.name]) for field in fields(group))


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass as parameters of a command."""
    for field, annotation in _annotated(group):
        if is_dataclass(annotation):
            yield from _parameters(annotation)
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _grouped(group: Any, options: dict[str, Any]) -> Any:
    """The dataclass filled with its options, which are taken out of `options`; absent ones keep their defaults."""
    values: dict[str, Any] = {}
    for field, annotation in _annotated(group):
        if is_dataclass(annotation):
            values[field.name] = _grouped(annotation, options)
        elif field.name in options:
            values[field.name] = options.pop(field.name)
    return group(**values)


def make_app(command: Command, name: str | None = None) -> typer.Typer:
    """A Typer application of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    register(app, command, name)
    return app


def register(app: typer.Typer, command: Command, name: str | None = None) -> None:
    """Adds a command to an application; the `Example:` line at the end of its docstring ends its help."""
    text, _, example = (inspect.getdoc(command) or "").partition("\n\nExample: ")
    # The \b keeps the example on one line; wrapped at a hyphen it would not run.
    app.command(name=name, help=text, epilog=f"\b\nExample: {example}" if example else None)(command)


def guarded(app: Callable[[], Any]) -> None:
    """Calls `app` and exits the process with the exit code of its outcome."""
    verbose = "--verbose" in sys.argv
    set_up_logging(verbose)
    quiet_libraries()
    try:
        app()
    except LexvlError as error:
        if verbose:
            logging.getLogger("lexvl_anserini").exception("error")
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if verbose:
            raise
        print(f"error: {type(error).__name__}: {error} (--verbose shows where)", file=sys.stderr)
        sys.exit(1)


def run(command: Command) -> None:
    """Runs a module that is one command."""
    guarded(make_app(command))


def main() -> None:
    """The console script `lexvl`: the same commands under one name."""
    app = typer.Typer(
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        help="Lexical vision-language retrieval on Lucene: encode, index, search, measure.",
    )
    for name, module in COMMANDS.items():
        register(app, import_module(module).command, name)
    guarded(app)


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`["topk=64", "mode=alpha"]` -> `{"topk": "64", "mode": "alpha"}`; the loader's signature gives the types.

    Raises:
        UsageError: an entry is not KEY=VALUE.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting!r}: expected KEY=VALUE, for example --set topk=64")
        parsed[key.strip().replace("-", "_")] = value
    return parsed


def check_style(style: str) -> None:
    """Raises UsageError unless `style` is text or json."""
    if style not in ("text", "json"):
        raise UsageError(f"--format {style!r}: expected text or json")


def print_rows(rows: Mapping[str, Any], style: str) -> None:
    """A mapping as aligned text or as one JSON object, on stdout."""
    if style == "json":
        sys.stdout.write(orjson.dumps(rows).decode() + "\n")
        return
    width = max(map(len, rows))
    for key, value in rows.items():
        typer.echo(f"{key:{width}}  {value}")


def file_name(corpus: str) -> str:
    """A corpus name as part of a file name: `beir/scifact` -> `beir-scifact`, `beir:/data/mine` -> `beir-mine`."""
    family, colon, path = corpus.partition(":")
    return f"{family}-{Path(path).name}" if colon else corpus.replace("/", "-")


@contextmanager
def progress_bar(label: str, total: int | None, unit: str = "documents") -> Iterator[Progress]:
    """Yields `advance(n)`: a bar on a terminal, a log line every ten seconds and at the end otherwise."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda n: bar.advance(task, n)
        return

    log = logging.getLogger("lexvl_anserini")
    started = last = time.monotonic()
    done = 0

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - last >= LOG_EVERY_S:
            last = now
            log.info("%s: %d%s %s, %.0f s", label, done, f" of {total}" if total else "", unit, now - started)

    yield advance
