"""The core stays small: what it has of each kind is at most what budget.toml says, and that number follows it down."""

import ast
import inspect
import re
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from declared import FORWARDERS, ROOT, packages
from import_graph import GRAPH, chain_heights
from line_files import list_files

from lexvl_anserini.cli import COMMANDS

BUDGET = tomllib.loads((ROOT / "tests/project/budget.toml").read_text())["core"]
CORE = ("lexvl_anserini", "eval")

# First words of functions that do something.
VERBS = re.compile(
    r"""^(?:
    add|append|apply|ask|build|calibrate|call|carry|check|choose|claim|clear|close|
    collate|collect|compare|complain|compute|convert|copy|count|create|decode|delete|
    describe|draw|drop|encode|ensure|estimate|evaluate|expand|expect|explain|export|fetch|
    fill|filter|find|finish|fit|format|forward|from|fuse|generate|get|give|group|handle
    |has|import|index|init|is|iter|join|keep|list|load|log|look|make|map|mark|
    measure|merge|move|normalise|open|pack|parse|place|plot|pool|prepare|print|process|
    prune|publish|pull|push|put|quantise|raise|rank|read|refuse|register|remove|render|
    replace|report|rerank|resolve|resume|run|sample|save|score|search|select|send|set|
    settle|shard|show|sort|split|start|stop|store|sum|take|to|tokenise|tokenize|train|
    transform|tune|unpack|update|upload|validate|verify|wait|walk|warn|weigh|write
    )(?:_|$)""",
    re.VERBOSE,
)
PARTICIPLE = re.compile(
    r"^([a-z]+ed|built|chosen|sent|kept|drawn|taken|found|shown|known|written|made|told|spelt|left|given|held)(_|$)"
)
OF = re.compile(r"(^|_)of(_|$)")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def count_lines(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def function_names() -> list[str]:
    """The names of the core's functions and methods; properties are values, and double underscores are Python's."""
    names = []
    for path in sources(*CORE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
                if not marks & {"property", "cached_property"}:
                    names.append(node.name.lstrip("_"))
    return names


def share(names: list[str], pattern: re.Pattern[str]) -> float:
    return 100 * sum(pattern.search(name) is not None for name in names) / len(names)


def count_options() -> int:
    modules = (import_module(row.module.replace("lexvl_eval", "eval")) for row in COMMANDS.core.values())
    return sum(len(inspect.signature(module.command).parameters) for module in modules)


def count_loose() -> int:
    """The most modules that lie in one folder."""
    paths = [path for path in sources(*CORE) if path.stem != "__init__" and path.name not in FORWARDERS]
    return max(Counter(path.parent for path in paths).values())


COUNTS = {
    "lines": lambda: count_lines(sources(*CORE)),
    "files": lambda: len(sources(*CORE)),
    "floors": lambda: max(chain_heights(GRAPH).values()),
    "loose": count_loose,
    "commands": lambda: len(COMMANDS.core),
    "options": count_options,
    "required": lambda: len(packages()),
    "line": lambda: len(list_files()),
    "tests": lambda: count_lines([path for path in sources("tests") if "plugins" not in path.parts]),
    "of": lambda: share(function_names(), OF),
    "participles": lambda: share(function_names(), PARTICIPLE),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_core_keeps_its_budget(name: str) -> None:
    count, most = COUNTS[name](), BUDGET[name]
    assert count <= most, (
        f"{name}: {count:,.1f}, at most {most:,} (budget.toml); delete from the core what you add to it"
    )
    assert count >= 0.95 * most - 1, f"{name}: {count:,.1f}; lower its number in budget.toml ({most:,})"


def test_functions_begin_with_verbs() -> None:
    assert share(function_names(), VERBS) >= BUDGET["verbs"]
