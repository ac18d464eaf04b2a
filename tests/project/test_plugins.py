"""A package of anybody adds rows by entry points; the core runs without the plug-ins of this distribution."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from declared import EXTRAS, ROOT, SETUP, package_of, packages
from invoking import read_output, run_process, write_texts

from lexvl_anserini import cli
from lexvl_anserini.cli import COMMANDS
from lexvl_anserini.ground.errors import MissingExtra, UsageError
from lexvl_anserini.ground.registry import EXTRA_PACKAGES, Registry, require

# Whatever a case calls: commands, each with its arguments, one after another; a command of exit code 0 returns.
RUN_ALL = """
import importlib, pkgutil, runpy, sys
for line in sys.stdin.read().splitlines():
    sys.argv = line.split("|")
    if sys.argv[0] == "import":
        package = importlib.import_module(sys.argv[1])
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
        continue
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise
"""


def run_all(folder: Path, *commands: str, isolated: bool = True) -> str:
    """What commands print, one after another in one process; the folder goes first, `isolated` hides the checkout."""
    (folder / "run_all.py").write_text(RUN_ALL)
    checkout = {str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/attack"), ""}
    paths = [str(folder), *(path for path in sys.path if path not in checkout and isolated)]
    command = [sys.executable, *(["-S"] if isolated else []), "-P", "-m", "run_all"]
    # Lucene's postings spare the process the kernels, which numba compiles anew for each folder.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "LEXVL_POSTINGS": "lucene"}
    done = run_process(command, cwd=folder, env=environ, input="\n".join(commands), timeout=900)
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    return done.stdout


# A plug-in of somebody else: rows in one module that imports nothing heavy, and what they name.
FOREIGN = {
    "harbour/__init__.py": """
from lexvl_anserini.encoders.cards import Card
from lexvl_anserini.ground.registry import CommandRow, CorpusRow
ENCODER = Card("harbour.things:load_boats", paper="Nobody")
CORPUS = CorpusRow("harbour.things:load_quay")
COMMAND = CommandRow("harbour.things", "At sea", "Say ahoy")
""",
    "harbour/things.py": '''
"""Boats: the weight of a term is 1 if it occurs."""
import numpy as np
from scipy import sparse
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import Encoder, ReadsTexts
from lexvl_anserini.ground.records import Document, Vocabulary
TERMS = ("boat", "red", "tug")
class Boats(ReadsTexts):
    kind, binary, vocabulary = "impact", False, Vocabulary(TERMS)
    def weights(self, inputs, batch_size=32, progress=lambda n: None, on_error=None):
        rows = [[float(term in text.split()) for term in TERMS] for text in inputs]
        progress(len(rows))
        return sparse.csr_matrix(np.array(rows, dtype=np.float32))
def load_boats(source) -> Encoder:
    """Three words."""
    return Encoder("harbour", "impact", Boats(), Boats())
def load_quay(ref):
    documents = [Document("1", text="a red boat"), Document("2", text="a tug")]
    return Dataset.of(ref, lambda: iter(documents), lambda: iter(()), lambda: iter(()))
def command(name: str = "sailor") -> None:
    print("ahoy", name)
''',
    "harbour-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: harbour\nVersion: 1\n",
    "harbour-1.dist-info/entry_points.txt": """
[lexvl.encoders]
harbour = harbour:ENCODER
[lexvl.corpora]
quay = harbour:CORPUS
[lexvl.commands]
ahoy = harbour:COMMAND
""",
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    return write_texts(tmp_path_factory.mktemp("foreign"), FOREIGN)


def test_a_package_of_anybody_adds_rows(foreign) -> None:
    """An encoder and a corpus, of which the line makes an index and answers; a command with its own section."""
    printed = run_all(
        foreign,
        "lexvl_anserini|--help",
        "lexvl_anserini|ahoy|--name|skipper",
        "lexvl_anserini.encode|--list-encoders",
        "lexvl_anserini.encode|--encoder|harbour|--corpus|quay|--output|impacts",
        "lexvl_anserini.index|impacts|--index|index",
        "lexvl_anserini.search|--index|index|--query|the red tug boat",
        isolated=False,
    )
    assert re.search(r"At sea:?\n +ahoy +Say ahoy", printed)
    assert "ahoy skipper" in printed
    assert re.search(r"^harbour +text +unknown +Nobody", printed, re.MULTILINE)
    assert [line.split()[2] for line in printed.splitlines()[-2:]] == ["1", "2"]


def declare(folder: Path, package: str, point: str) -> None:
    """Installs a package that has an entry point of the group `lexvl.harbours`, and nothing else."""
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n"
    texts = {"METADATA": metadata, "entry_points.txt": f"[lexvl.harbours]\n{point}\n"}
    write_texts(folder / f"{package}-1.dist-info", texts)


@pytest.mark.parametrize("second", ["core", "twice"])
def test_a_plugin_replaces_no_row(monkeypatch, foreign, tmp_path, second) -> None:
    """A name of the core or of another plug-in is an error, and one whose module is gone is no row."""
    monkeypatch.syspath_prepend(foreign)
    monkeypatch.syspath_prepend(tmp_path)
    declare(tmp_path, "first", "twice = harbour:ENCODER")
    declare(tmp_path, "gone", "sunk = sunk:ENCODER")
    assert list(Registry("harbour", "lexvl.harbours", {"core": None})) == ["core", "twice"]
    declare(tmp_path, "second", f"{second} = harbour:ENCODER")
    with pytest.raises(UsageError, match=f"second harbour of the name '{second}'"):
        len(Registry("harbour", "lexvl.harbours", {"core": None}))


PLUGINS = sorted(path.parent.name for path in (ROOT / "lexvl_plugins").glob("*/__init__.py"))
LINE = (
    "lexvl_anserini.encode|--corpus|demo|--output|impacts/demo",
    "lexvl_anserini.index|impacts/demo|--index|indexes/demo",
    "lexvl_anserini.search|--index|indexes/demo|--hits|10|--output|runs/demo.trec",
    "lexvl_anserini.explain|--index|indexes/demo|--query|a red boat",
    "lexvl_eval.demo|--run|runs/demo.trec",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The packages, copied: nothing of the checkout can be imported from there."""
    folder = tmp_path_factory.mktemp("copy")
    for source, target in (("lexvl_anserini", "lexvl_anserini"), ("eval", "lexvl_eval"), ("lexvl_plugins",) * 2):
        shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.extended
@pytest.mark.parametrize("name", ["", *PLUGINS])
def test_the_core_needs_no_plugin(copy, tmp_path, name) -> None:
    """Without one, and without all: every module is imported, the help has the rows of the others, the line runs."""
    plugin = copy / "lexvl_plugins" / name
    plugin.rename(tmp_path / "away")
    try:
        commands = ("import|lexvl_anserini", "import|lexvl_eval", "lexvl_anserini|--help")
        printed = run_all(copy, *commands, *(() if name else LINE))
    finally:
        (tmp_path / "away").rename(plugin)
    lines = printed[: printed.index("lexvl COMMAND --help shows")]
    shown = {command for command in COMMANDS if re.search(rf"^ +{command} ", lines, re.MULTILINE)}
    away = ".".join(("lexvl_plugins", name)).rstrip(".")
    assert shown == {command for command, row in COMMANDS.items() if not row.module.startswith(away)}
    assert name or re.search(r"0?\.\d|\d\d\.\d", printed[printed.index("R@1 ") :])


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lexvl_plugins":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


# Tests that compare with what the whole distribution has: all commands.
WHOLE = ("commands/test_cli",)


@pytest.mark.heavy
def test_the_tests_of_the_core_pass_without_plugins(tmp_path) -> None:
    """Those of its rooms and commands, in processes that cannot import a plug-in."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    rooms = ("data", "encoders", "engines", "ground", "queries", "runs", "searching", "shards", "commands", "eval")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not heavy and not extended"]
    command += [*(f"tests/{room}" for room in rooms), *(f"--ignore=tests/{file}.py" for file in WHOLE)]
    read_output(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)})


def test_each_plugin_has_tests_and_its_extras() -> None:
    """Every row of this distribution is one of a plug-in; nothing that is required is of an extra."""
    tests = {path.name for path in (ROOT / "tests/plugins").iterdir() if any(path.glob("test_*.py"))}
    assert tests == set(PLUGINS)
    points = [text for group, text in SETUP["options.entry_points"].items() if group != "console_scripts"]
    for line in "".join(points).strip().splitlines():
        assert re.match(rf".+ = lexvl_plugins\.({'|'.join(PLUGINS)})[.:]", line), line
    assert {*EXTRA_PACKAGES.values(), "all"} <= set(EXTRAS)
    for module, extra in EXTRA_PACKAGES.items():
        assert package_of(module) in packages(extra) - packages(), (module, extra)


def test_a_missing_package_of_an_extra_is_one_line(monkeypatch, capsys) -> None:
    def fails() -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.figure")

    monkeypatch.setattr(sys, "argv", ["lexvl"])
    with pytest.raises(SystemExit) as ended:
        cli.run_guarded(fails)
    assert ended.value.code == MissingExtra.exit_code
    expected = "this command (matplotlib is not installed) needs an extra: pip install 'lexvl-anserini[plots]'"
    assert capsys.readouterr().err == f"error: {expected}\n"
    monkeypatch.setitem(EXTRA_PACKAGES, "no_such_package", "plots")
    require("matplotlib")
    with pytest.raises(MissingExtra, match=r"no_such_package is not installed.*\[plots\]"):
        require("matplotlib", "no_such_package")
