"""Progress: a bar on terminals and in notebooks, lines of the log elsewhere; and no library module prints."""

import logging
import re
import sys
from contextlib import suppress
from io import StringIO
from types import SimpleNamespace
from unittest.mock import MagicMock

from declared import ROOT
from invoking import read_output

from lexvl_anserini.cli import COMMANDS
from lexvl_anserini.ground import progress

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
    notebook = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert progress.is_notebook()
    bars = MagicMock()
    monkeypatch.setattr("rich.progress.Progress", bars)
    with progress.progress_bar("encode", 9) as advance:
        advance(9)
    # rich shows a bar below the cell through the console of standard output.
    assert not bars.call_args.kwargs["console"].stderr
    bar = bars.return_value.__enter__.return_value
    bar.add_task.assert_called_once_with("encode", total=9)
    bar.advance.assert_called_once_with(bar.add_task.return_value, 9)
    notebook.get_ipython = lambda: None
    assert not progress.is_notebook()


def test_no_library_module_prints_and_all_log_lines_have_one_name():
    commands = {*(row.module for row in COMMANDS.values()), *OF_COMMANDS}
    others = {f"{module.replace('.', '/')}.py" for module in commands}
    paths = [path for path in (ROOT / "lexvl_anserini").rglob("*.py") if str(path.relative_to(ROOT)) not in others]
    assert len(paths) > 100
    read_output([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "T20,LOG", *paths])
    # A logger of ours is `lexvl_anserini` or has the name of its module, so that one name sets the level of all.
    found = {
        name
        for path in (ROOT / "lexvl_anserini").rglob("*.py")
        for name in re.findall(r"\.getLogger\(([^)]+)\)", path.read_text())
        if name not in ("__name__", '"lexvl_anserini"', f'"{".".join(path.relative_to(ROOT).with_suffix("").parts)}"')
    }
    # Those of other projects, whose levels are set and to which nothing is logged.
    others = {"opensearch", "httpx", "org.apache.lucene", "package", "torch.onnx"}
    assert {name.strip('"') for name in found} <= others
