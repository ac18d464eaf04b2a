"""The console script: every module that is a command is one of its commands, and its options are the recorded ones."""

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, get_args
from unittest.mock import Mock

import pytest
import typer
from declared import COMMANDS, ROOT
from invoking import run_process
from typer.testing import CliRunner

import lexvl_anserini
from eval.measures.metrics import parse_measure
from eval.options import measure_names
from lexvl_anserini import cli
from lexvl_anserini.cli import SECTIONS, Command, expand_options, make_app, quiet_libraries, run_guarded
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.registry import CORPORA

# What the installed script `lexvl` does; the last line shows what it has imported.
SCRIPT = """
import sys
from lexvl_anserini.cli import main
sys.argv[0] = "lexvl"
try:
    main()
finally:
    print("imported:", *sys.modules, file=sys.stderr)
"""
# Every option of each command of the last release: names, type, limits and default; and those that this version lacks
# or changes, which docs/stability.md tells users. New options are in neither.
RELEASED: dict[str, list[str]] = json.loads((ROOT / "tests/golden/cli/options-0.3.0.json").read_text(encoding="utf-8"))
GONE: dict[str, list[str]] = json.loads((ROOT / "tests/golden/cli/gone.json").read_text(encoding="utf-8"))
MODULES = {name: row.module for name, row in cli.COMMANDS.items()}


def test_every_command_is_listed() -> None:
    paths = [path for package in ("lexvl_anserini", "eval", "lexvl_plugins") for path in (ROOT / package).rglob("*.py")]
    commands = re.compile(r"^(def command\(|command = )", re.MULTILINE)
    found = [path.relative_to(ROOT) for path in paths if commands.search(path.read_text(encoding="utf-8"))]
    assert sorted(".".join(path.with_suffix("").parts) for path in found) == sorted(COMMANDS.values())


TEXTS = re.compile(r"pathlib\.(_local\.)?Path|frozenset\[str\]|[\w.]+\.Cut\b")


def option_lines(command: Command) -> list[str]:
    """One line for each option of a command, in the order of its help."""
    annotations = {name: p.annotation for name, p in inspect.signature(command, eval_str=True).parameters.items()}
    lines = []
    for option in typer.main.get_command(make_app(command)).params:
        if option.name not in annotations:
            continue
        kind, about = get_args(annotations[option.name])
        limits = "".join(f" {end}={getattr(about, end)}" for end in ("min", "max") if getattr(about, end) is not None)
        default = "required" if option.required else f"default {option.default!r}"
        names = " ".join((*option.opts, *option.secondary_opts))
        # What a user writes as a text; the home of paths is another one from Python 3.13 on.
        shown = TEXTS.sub("str", inspect.formatannotation(kind))
        shown = re.sub(r"(typing\.)?Literal\[[^]]*\]", "str", shown)  # some texts instead of any
        shown = re.sub(r"(typing\.)?Optional\[str\]", "str | None", shown)
        lines.append(f"{names}: {shown}{limits}, {default}")
    return lines


def test_names_of_the_last_release_keep_their_parameters() -> None:
    released = json.loads((ROOT / "tests/golden/cli/names-0.3.0.json").read_text(encoding="utf-8"))
    lost = {}
    for name, parameters in released.items():
        kept = inspect.signature(getattr(lexvl_anserini, name)).parameters if parameters else ()
        if gone := [parameter for parameter in parameters.split() if parameter not in kept]:
            lost[name] = gone
    assert lost == GONE["lexvl_anserini"]


@pytest.mark.parametrize("name", RELEASED)
def test_options_of_the_last_release_work_or_are_listed(name: str) -> None:
    lines = option_lines(import_module(COMMANDS[name]).command) if name in COMMANDS else []
    changed = [line.partition(":")[0] for line in RELEASED[name] if TEXTS.sub("str", line) not in lines]
    assert changed == GONE.get(name, [])


def test_idle_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside busy programs, threads that spin take several times the CPU time."""
    for given, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        with monkeypatch.context() as patched:
            patched.setattr(os, "environ", environ := dict(given))
            quiet_libraries()
        assert environ["OMP_WAIT_POLICY"] == expected


@dataclass(frozen=True)
class Where:
    path: Annotated[str, typer.Option(help="A path.")]
    limit: Annotated[int | None, typer.Option("--max", min=1, help="At most.")] = None


@dataclass(frozen=True)
class Seen(Where):
    bits: Annotated[list[int], typer.Option(help="Several.")] = field(default_factory=lambda: [4, 8])


seen: list[Any] = []


@expand_options
def toy(
    first: Annotated[str, typer.Argument(help="First.")], where: Seen, last: Annotated[int, typer.Option()] = 3
) -> None:
    """Shows its options.

    Example: toy a --path b
    """
    seen[:] = [first, where, last]


def test_dataclasses_are_expanded_in_place() -> None:
    first, *others = option_lines(toy)
    assert (first, others[0]) == ("first: str, required", "--path: str, required")
    assert others[1:3] == ["--max: int | None min=1, default None", "--bits: list[int], default [4, 8]"]
    assert others[3:] == ["--last: int, default 3"]
    done = CliRunner().invoke(make_app(toy), ["a", "--path", "b", "--max", "2", "--bits", "1", "--last", "4"])
    assert done.exit_code == 0 and seen == ["a", Seen("b", 2, [1]), 4]
    assert CliRunner().invoke(make_app(toy), ["a", "--path", "b", "--max", "0"]).exit_code == 2
    assert CliRunner().invoke(make_app(toy), ["a"]).exit_code == 2
    shown = CliRunner().invoke(make_app(toy), ["--help"]).stdout
    assert "Shows its options." in shown and "A path." in shown and "Example: toy a --path b" in shown


def test_a_home_folder_is_expanded_in_paths_and_not_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/of/a")
    arguments = ["~/sh", "--output=~/i", "--run", "~/r", "b/~", "--set=k=~/x", "--query", "~/q", "--where=~/w"]
    expected = ["/of/a/sh", "--output=/of/a/i", "--run", "/of/a/r", *arguments[4:]]
    assert list(cli.expand_home(arguments)) == expected
    assert CliRunner().invoke(make_app(toy), ["a", "--path=~/b"]).exit_code == 0 and seen[1].path == "/of/a/b"


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_process([sys.executable, *arguments], cwd=ROOT, env={**os.environ, "COLUMNS": "80", **variables})


def lexvl(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What the script prints, and the modules that it has imported."""
    done = python("-c", SCRIPT, *arguments, **variables)
    log, _, imported = done.stderr.rpartition("imported:")
    assert log == "" and done.returncode == 0, done.stderr
    return done.stdout, set(imported.split())


def test_help_lists_the_commands_in_groups_and_imports_none() -> None:
    shown, imported = lexvl("--help")
    sections = shown.split("\n\n")
    for title in SECTIONS:
        section = next(text for text in sections if text.startswith(f"{title}:\n"))
        names = [line.split()[0] for line in section.splitlines()[1:] if re.match(r"  \w", line)]
        assert names == [name for name, row in cli.COMMANDS.items() if row.group == title]
    assert max(map(len, shown.splitlines())) <= 80
    assert not imported & {*MODULES.values(), "numpy"}


def test_an_unknown_command_is_a_usage_error() -> None:
    done = python("-m", "lexvl_anserini", "seerch")
    assert done.returncode == 2 and "No such command 'seerch'. Did you mean 'search'?" in done.stderr


@pytest.mark.parametrize("name", cli.GONE)
def test_a_command_that_is_gone_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["lexvl", name, "anything"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == UsageError.exit_code and name not in cli.COMMANDS
    assert capsys.readouterr().err == f"error: lexvl {name}: gone since {cli.GONE[name]}\n"


def test_version_starts_neither_java_nor_torch() -> None:
    shown, imported = lexvl("--version")
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert list(rows) == ["lexvl-anserini", "Python", "pyserini", "torch", "transformers", "Lucene"]
    assert rows["lexvl-anserini"] == lexvl_anserini.__version__ and rows["torch"] == version("torch")
    assert not imported & {"torch", "transformers", "pyserini", "jnius", "numpy"}
    assert python("-m", "lexvl_anserini", "--version").stdout == shown


CALLS = "lexvl_anserini index|lexvl_anserini.index|lexvl_eval.score|eval.score|lexvl_plugins.bench"


@pytest.mark.parametrize("called", CALLS.split("|"))
def test_the_example_names_the_command_as_it_was_called(called: str) -> None:
    shown = python("-m", *called.split(), "--help").stdout
    assert shown.startswith(f"Usage: python -m {called} ")
    assert re.search(rf"^  Example: python -m {called} \S", shown, re.MULTILINE), shown


def test_every_example_starts_with_the_name_in_lexvl() -> None:
    for name, module in COMMANDS.items():
        example = (inspect.getdoc(import_module(module).command) or "").partition("\n\nExample: ")[2]
        assert example.startswith((f"python -m {module} ", f"lexvl {name} ")), name
        shown = CliRunner().invoke(make_app(import_module(module).command, name, f"lexvl {name}"), ["--help"]).stdout
        assert re.search(rf"^  Example: lexvl {name} \S", shown, re.MULTILINE), name


OFFERED = [name for name in cli.COMMANDS if name.startswith("s")]


def completed(shell: str, line: str) -> tuple[list[str], set[str]]:
    """What a shell offers for the last word of a line, and what was imported for that."""
    words = line.split(" ")
    shown, imported = lexvl(
        _LEXVL_COMPLETE=f"complete_{shell}", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), _TYPER_COMPLETE_ARGS=line
    )
    offered = shown.split() if shell == "bash" else re.findall(r'^(?:_arguments .*\(\()?"([^"]+)"', shown, re.MULTILINE)
    return [value.replace("\\", "") for value in offered], imported


@pytest.mark.parametrize(
    "shell,line,expected",
    [
        ("bash", "lexvl s", OFFERED),
        ("zsh", "lexvl s", OFFERED),
        ("bash", "lexvl encode --encoder sp", ["splade", "sparse-encoder"]),
        ("zsh", "lexvl encode --corpus f", ["flickr30k", "flickr8k", "folder:"]),
        ("bash", "lexvl encode --corpus beir/sci", ["beir/scidocs", "beir/scifact"]),
        ("zsh", "lexvl score --measure RR", ["RR", *(f"RR@{cut}" for cut in (1, 5, 10, 20, 100, 1000))]),
        ("bash", "lexvl beir --dataset beir/nf", ["beir/nfcorpus"]),
    ],
)
def test_values_are_completed(shell: str, line: str, expected: list[str]) -> None:
    offered, imported = completed(shell, line)
    assert offered == expected
    assert not imported & {"torch", "transformers", "pyserini", "jnius", "ranx", "pandas"}


def test_completed_names_are_names() -> None:
    assert cli.encoder_names() == list(CARDS)
    offered = {name for name in cli.corpus_names() if "/" not in name}
    assert offered == {f"{family}:" if row.has_path else family for family, row in CORPORA.items()}
    assert {"coco", "demo", "folder:"} <= offered
    assert len({str(parse_measure(name)) for name in measure_names()}) == len(measure_names())


def test_no_room_for_standard_output_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        run_guarded(Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: standard output: the disk is full")


def test_the_end_of_a_command_looks_for_no_garbage() -> None:
    """A cycle that the command leaves is not collected; Python alone would, and `__del__` would print."""
    members = "{'__init__': lambda me: vars(me).update(me=me), '__del__': lambda me: print('collected')}"
    code = f"import gc; from lexvl_anserini.cli import run_guarded; gc.disable(); run_guarded(type('A', (), {members}))"
    assert python("-c", f"{code}; print('done')").stdout == "done\n"
