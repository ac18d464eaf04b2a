"""Progress: a bar on terminals and in notebooks, lines of the log elsewhere; and no library module prints."""

from __future__ import annotations

import ast
import logging
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

from lexvl_anserini.cli import COMMANDS
from lexvl_anserini.ground import progress

ROOT = Path(__file__).parents[2]
# What commands share, and one that no table lists.
OF_COMMANDS = ("lexvl_anserini.cli", "lexvl_anserini.__main__", "lexvl_anserini.stock")


def test_lines_of_the_log_where_there_is_no_terminal(monkeypatch, caplog):
    clock = iter([0.0, 4.0, 11.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    with caplog.at_level(logging.INFO, "lexvl_anserini"), progress.progress_bar("encode", 9, "texts") as advance:
        advance(2)
        advance(3)
        advance(4)
    assert [record.getMessage() for record in caplog.records] == ["encode: 5 of 9 texts, 11 s"]


def test_a_terminal_names_the_steps_that_last(monkeypatch, caplog):
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    caplog.set_level(logging.WARNING, "lexvl_anserini")  # a program that is no command of ours
    with progress.waiting("starts Java"):
        pass
    assert terminal.getvalue() == ""
    caplog.set_level(logging.INFO, "lexvl_anserini")
    with suppress(ValueError), progress.waiting("starts Java"), progress.waiting("loads vdr"):
        raise ValueError
    lines = terminal.getvalue().replace(progress.CLEAR, "").split(progress.BACK)
    assert lines == ["starts Java ...", "starts Java, loads vdr ...", "starts Java ...", "", ""]
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress.waiting("starts Java"):
        pass
    assert terminal.getvalue().endswith(progress.CLEAR + progress.BACK)


def test_a_bar_in_a_notebook(monkeypatch):
    shell = type("Shell", (), {"__module__": "ipykernel.zmqshell"})()
    notebook = ModuleType("IPython")
    notebook.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert progress.is_notebook()
    made = []

    class Seen:
        def __init__(self, *columns, console, transient):
            made.append(console.stderr)
            self.done = 0

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

        def add_task(self, label, total):
            made.append((label, total))

        def advance(self, task, n):
            made.append(n)

    monkeypatch.setattr("rich.progress.Progress", Seen)
    with progress.progress_bar("encode", 9) as advance:
        advance(9)
    # rich shows a bar below the cell through the console of standard output.
    assert made == [False, ("encode", 9), 9]
    notebook.get_ipython = lambda: None  # type: ignore[attr-defined]
    assert not progress.is_notebook()


def library_modules() -> list[Path]:
    commands = {
        f"{module.replace('.', '/')}.py" for module in (*(row.module for row in COMMANDS.values()), *OF_COMMANDS)
    }
    return [
        path
        for path in sorted((ROOT / "lexvl_anserini").rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in commands
    ]


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def test_no_library_module_prints():
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in library_modules()
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    ]
    assert len(library_modules()) > 100 and found == []


def test_all_log_lines_have_one_name():
    """A logger of ours is `lexvl_anserini` or has the name of its module, so that one name sets the level of all."""
    found = []
    for path in sorted((ROOT / "lexvl_anserini").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        ours = {"__name__", repr("lexvl_anserini"), repr(module)}
        names = [ast.unparse(call.args[0]) for call in calls(path) if ast.unparse(call.func).endswith(".getLogger")]
        found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name not in ours]
    # Those of other projects, whose levels are set and to which nothing is logged.
    others = ("opensearch", "httpx", "org.apache.lucene", "package", "torch.onnx")
    assert [line for line in found if line.rpartition(": ")[2].strip("'") not in others] == []
    roots = [p for p in library_modules() for call in calls(p) if ast.unparse(call.func) in LOG_TO_ROOT]
    assert roots == []


LOG_TO_ROOT = {f"logging.{level}" for level in ("debug", "info", "warning", "error", "exception", "critical")}
