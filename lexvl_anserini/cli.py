"""What all commands share: options, exit codes, logging, progress, and the `lexvl` console script.

Exit codes: 0 done, 1 failure (one readable line; the traceback with --verbose), 2 usage. Logs go to stderr, data to
stdout.
"""

from __future__ import annotations

import atexit
import errno
import gc
import inspect
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import orjson
import typer
from typer.core import TyperCommand, TyperGroup

from lexvl_anserini import __version__
from lexvl_anserini.ground.errors import JavaError, LexvlError, UsageError
from lexvl_anserini.ground.machine import expand_path, find_home_folder
from lexvl_anserini.ground.progress import progress_bar as progress_bar
from lexvl_anserini.ground.registry import EXTRA_PACKAGES, CommandRow, Registry, describe_extra, import_home

Command = Callable[..., None]


# Options of many commands.
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error and debug log lines.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder of the datasets; default $LEXVL_DATA, else ~/.cache/lexvl.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a finished output of another request.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Style = Annotated[Literal["text", "json"], typer.Option("--format", help="Format of what is printed: text or json.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per forward pass.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="An option of the encoder, KEY=VALUE (query_topk=64); repeatable.")
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", help="Folder, hub id (owner/name[@revision]), or packaged: minilm, photos-vdr, demo-vdr, ..."
    ),
]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Take the tokenizer from this folder or hub id.")]
BackboneConfig = Annotated[
    str | None, typer.Option("--backbone-config", help="Take the backbone's configuration from this folder or hub id.")
]
ShardsManifest = Annotated[
    Path | None, typer.Option("--manifest", help="manifest.json of the shards, for an index that stock Pyserini built.")
]


def encoder_names() -> list[str]:
    """What the shell completes after --encoder."""
    from lexvl_anserini.encoders.cards import CARDS

    return list(CARDS)


def corpus_names() -> list[str]:
    """What the shell completes after --corpus: datasets of the registry, and those of BEIR that can be downloaded."""
    from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
    from lexvl_anserini.ground.registry import CORPORA

    families = [f"{family}:" if row.has_path else family for family, row in CORPORA.items()]
    return [*families, *(f"beir/{name}" for name in BEIR_ARCHIVES)]


ImageEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="One that reads images; default as for a folder of pictures.", autocompletion=encoder_names
    ),
]

# Options whose values are texts, terms or ids, in which `~` is a character.
TEXTS = frozenset(
    {"--query", "--match", "--where", "--require", "--forbid", "--term", "--doc-id", "--query-id", "--example"}
)

# The sections of `lexvl --help`, in their order; those of plug-ins that name others come after them.
SECTIONS = START, ENCODE, SEARCH, COMBINE, EVALUATE, DATASETS, ANALYSE = (
    "Start here",
    "Train and encode",
    "Index and search",
    "Combine runs",
    "Evaluate runs",
    "Evaluate runs by the rules of one dataset",
    "Analyses and benchmarks",
)

COMMANDS: Registry[CommandRow] = Registry(
    "command",
    "lexvl.commands",
    {
        "encode": CommandRow("lexvl_anserini.encode", ENCODE, "Encode a corpus, or topics, into vectors on disk"),
        "prune": CommandRow("lexvl_anserini.prune", ENCODE, "Prune encoded documents before they are indexed"),
        "index": CommandRow("lexvl_anserini.index", SEARCH, "Build, change or check an index"),
        "search": CommandRow("lexvl_anserini.search", SEARCH, "Write a run, or print the hits of one query"),
        "explain": CommandRow("lexvl_anserini.explain", SEARCH, "Show the terms that query and document share"),
        "localise": CommandRow("lexvl_anserini.localise", SEARCH, "Show where in images queries are"),
        "fuse": CommandRow("lexvl_anserini.fuse", COMBINE, "Fuse runs by ranks or scores"),
        "rerank": CommandRow(
            "lexvl_anserini.rerank", COMBINE, "Score the first documents of a run again, by full vectors"
        ),
        "hybrid": CommandRow("lexvl_anserini.hybrid", COMBINE, "Add weighted scores of several encoders"),
        "score": CommandRow("lexvl_eval.score", EVALUATE, "Measure runs against judgements"),
        "table": CommandRow("lexvl_eval.table", EVALUATE, "Print systems as rows and measures as columns"),
        "results": CommandRow("lexvl_eval.results", EVALUATE, "Print stored results, or write them as MTEB does"),
        "compare": CommandRow("lexvl_eval.compare", EVALUATE, "Compare runs with a baseline, with significance"),
        "sheet": CommandRow("lexvl_eval.sheet", EVALUATE, "Draw queries with their first hits and terms"),
        "beir": CommandRow("lexvl_eval.beir", DATASETS, "BEIR: nDCG@10, Recall@100"),
        "msmarco": CommandRow("lexvl_eval.msmarco", DATASETS, "MS MARCO passages: RR@10"),
        "coco": CommandRow("lexvl_eval.coco", DATASETS, "COCO captions: R@1, R@5, R@10"),
        "flickr30k": CommandRow("lexvl_eval.flickr30k", DATASETS, "Flickr30k captions: R@1, R@5, R@10"),
        "flickr8k": CommandRow("lexvl_eval.flickr8k", DATASETS, "Flickr8k captions: R@1, R@5, R@10"),
        "score-demo": CommandRow("lexvl_eval.demo", DATASETS, "The drawn demo images: R@1, R@5, R@10"),
        "classify": CommandRow(
            "lexvl_eval.analyses.classify", ANALYSE, "Classify images, zero-shot or by linear probe"
        ),
        "interpretability": CommandRow(
            "lexvl_eval.analyses.interpretability", ANALYSE, "Whether terms are words of captions, classes, sentences"
        ),
        "codewords": CommandRow(
            "lexvl_eval.analyses.codewords", ANALYSE, "Draw the images and words where single terms are strongest"
        ),
        "terms": CommandRow(
            "lexvl_eval.analyses.terms", ANALYSE, "The heaviest terms of a corpus, a document or an image"
        ),
        "quantisation": CommandRow("lexvl_eval.analyses.quantisation", ANALYSE, "What integer impacts lose"),
        "pruning": CommandRow("lexvl_eval.analyses.pruning", ANALYSE, "What shorter queries and documents lose"),
        "doctor": CommandRow("lexvl_anserini.doctor", ANALYSE, "Whether everything runs here, and what is missing"),
    },
)


def set_up_logging(verbose: bool = False) -> None:
    """Plain log lines on stderr for our packages; other libraries only from warnings on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for package in ("lexvl_anserini", "lexvl_eval", "lexvl_plugins"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def quiet_libraries() -> None:
    """Turns off progress bars, advice and spinning threads of the model libraries, unless the user set them.

    Beside busy programs, OpenMP's idle threads that spin instead of sleeping take several times the CPU time.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def expand_options(command: Command) -> Command:
    """The command with every parameter that is a dataclass replaced by the fields of that class, one option each.

    A field is declared like a parameter of a command, or is of another such dataclass; a field without an annotation of
    typer is no option, and keeps its default. The expanded command takes the options by keyword.
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
            parameter.name: _group_options(parameter.annotation, options)
            for parameter in signature.parameters.values()
            if is_dataclass(parameter.annotation)
        }
        command(**options, **groups)

    flat.__name__, flat.__module__, flat.__doc__ = command.__name__, command.__module__, command.__doc__
    flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return flat


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        annotation = hints[field.name]
        if is_dataclass(annotation):
            yield from _parameters(annotation)
        if get_origin(annotation) is not Annotated:
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _group_options(group: Any, options: dict[str, Any]) -> Any:
    """The dataclass filled with its options, which are taken out of `options`; absent ones keep their defaults."""
    values: dict[str, Any] = {}
    for name, annotation in get_type_hints(group, include_extras=True).items():
        if is_dataclass(annotation):
            values[name] = _group_options(annotation, options)
        elif name in options:
            values[name] = options.pop(name)
    return group(**values)


def make_app(command: Command, name: str | None = None, program: str | None = None) -> typer.Typer:
    """A Typer application of one command.

    The `Example:` line at the end of the command's docstring ends its help; `program`, how the user called the command,
    replaces the `python -m MODULE` in it.
    """
    text, _, example = (inspect.getdoc(command) or "").partition("\n\nExample: ")
    if program and example:  # `python -m MODULE ...`, or `lexvl NAME ...`
        *_, arguments = example.split(maxsplit=3 if example.startswith("python") else 2)
        example = f"{program} {arguments}"
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    # The \b keeps the example on one line; wrapped at a hyphen it would not run.
    app.command(name=name, cls=HomeCommand, help=text, epilog=f"\b\nExample: {example}" if example else None)(command)
    return app


class HomeCommand(TyperCommand):
    """A command in whose paths a leading `~` is the home folder: a shell leaves it after an equals sign."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parses the arguments, with `~` expanded."""
        return super().parse_args(ctx, list(expand_home(args)))


def expand_home(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments of a command with the home folder in the place of a leading `~`; texts keep it."""
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
        expanded = option not in TEXTS and value.startswith("~")
        yield f"{argument.removesuffix(value)}{expand_path(value)}" if expanded else argument
        before = argument


# Commands of older versions: the first version without each, and what there is instead.
GONE: Mapping[str, str] = {
    "ann": "0.4.0; FAISS's own tools compare its layouts with exact search",
    "caches": "0.4.0; docs/platforms.md lists the folders",
    "ceiling": "0.3.0; in a checkout: python tools/world ceiling",
    "completeness": "0.4.0; lexvl interpretability --pairs",
    "concepts": "0.3.0; in a checkout: python tools/world concepts",
    "draw-pages": "0.4.0; lexvl pages searches pages of your own",
    "linear-probe": "0.4.0; lexvl classify --train IMAGES",
    "sparsity": "0.4.0; lexvl terms --sparsity",
    "zeroshot": "0.4.0; lexvl classify",
    "split": "0.4.0; lexvl tune --split-seed draws the same halves and folds",
    "word-error": "0.4.0; other packages, such as jiwer, measure it",
    "duplicates": "0.4.0; 0.3.0 lists near-duplicates of an index",
    "teach": "0.4.0; 0.3.0 teaches words, and searches an index that has some",
}


class CommandGroup(TyperGroup):
    """The commands of `lexvl`. A command is imported when it is called; help and completion of names import none."""

    def __init__(self, **attributes: Any):
        super().__init__(**attributes)
        for name, row in COMMANDS.items():
            self.add_command(TyperCommand(name, short_help=row.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The name, the command itself, and the arguments that remain; the command is None if there is no such one."""
        if args[0] in GONE:
            raise UsageError(f"lexvl {args[0]}: gone since {GONE[args[0]]}")
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None:
            return None, None, rest
        command = import_home(COMMANDS[name].module).command
        return name, typer.main.get_command(make_app(command, name, f"{ctx.command_path} {name}")), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section of the help for each group."""
        width = max(map(len, COMMANDS))
        others = {row.group: None for row in COMMANDS.values() if row.group not in SECTIONS}
        for title in (*SECTIONS, *others):
            if rows := [(f"{name:{width}}", row.summary) for name, row in COMMANDS.items() if row.group == title]:
                with formatter.section(title):
                    formatter.write_dl(rows)


def run_guarded(app: Callable[[], Any]) -> None:
    """Calls `app` and exits the process with the exit code of its outcome."""
    # Else Python looks for garbage among all objects of torch while it ends, for most of a second.
    atexit.register(gc.freeze)
    verbose = "--verbose" in sys.argv
    set_up_logging(verbose)
    quiet_libraries()
    # Where the system knows no home of the user, libraries fail or make a folder of the name `~`.
    os.environ.setdefault("HOME", str(find_home_folder()))
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if verbose and not isinstance(error, LexvlError):
            raise
        if verbose:
            logging.getLogger("lexvl_anserini").exception("error")
        expected = as_expected(error)
        print(f"error: {expected}", file=sys.stderr)
        sys.exit(expected.exit_code)


def as_expected(error: Exception) -> LexvlError:
    """An error as one of ours: a package of an extra that is missing, standard output on a full disk, or a defect."""
    if isinstance(error, LexvlError):
        return error
    if isinstance(error, ModuleNotFoundError) and (package := str(error.name).partition(".")[0]) in EXTRA_PACKAGES:
        return describe_extra(package)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return LexvlError("standard output: the disk is full; free some space and run the same command again")
    return LexvlError(f"{type(error).__name__}: {error} (--verbose shows where)")


def run(command: Command) -> None:
    """Runs a module that is one command; its help names the module as the user did (`lexvl_eval.score`)."""
    spec = sys.modules["__main__"].__spec__
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    run_guarded(make_app(command, program=program))


def run_row(name: str) -> None:
    """Runs a module that forwards to the command of a plug-in."""
    run_guarded(lambda: run(import_home(COMMANDS[name].module).command))


def print_versions(requested: bool) -> None:
    """Prints the versions of this package and of what it builds on, and exits; imports none of them."""
    if not requested:
        return
    from lexvl_anserini.engines.jvm import find_jar
    from lexvl_anserini.ground.machine import find_lucene, find_version

    try:
        lucene = find_lucene(find_jar())
    except JavaError:
        lucene = None
    rows: dict[str, str | None] = {"lexvl-anserini": __version__, "Python": platform.python_version()}
    rows |= {package: find_version(package) for package in ("pyserini", "torch", "transformers")} | {"Lucene": lucene}
    print_rows({name: number or "not found" for name, number in rows.items()}, "text")
    raise typer.Exit


def lexvl(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=print_versions, help="Print versions, also of Lucene, and exit."
        ),
    ] = False,
) -> None:
    """Lexical vision-language retrieval on Lucene: encode, index, search, measure."""


def main() -> None:
    """The console script `lexvl`: the same commands under one name."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        epilog="lexvl COMMAND --help shows the options of a command and an example.",
    )
    app.callback()(lexvl)
    run_guarded(app)


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`["topk=64", "mode=alpha"]` -> `{"topk": "64", "mode": "alpha"}`; the loader's signature gives the types."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting!r}: expected KEY=VALUE, for example --set topk=64")
        parsed[key.strip().replace("-", "_")] = value
    return parsed


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
