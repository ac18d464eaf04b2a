"""The shape of the packages: what they export, what importing them loads, and that registries hold what they say."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import rlcompleter
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import lexvl_eval
import pytest
from declared import EXTRAS, ROOT, SETUP, package_of, packages
from import_graph import CORE_SOURCES, GRAPH, PACKAGES, PLUGIN_GRAPH, PLUGINS, SOURCES, imports

import lexvl_anserini
import lexvl_plugins
from eval.reproduction.matrix import WAYS
from lexvl_anserini.cli import COMMANDS as COMMAND_ROWS
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.describing import read_equation
from lexvl_anserini.ground.registry import CORPORA, ENGINES, PICTURES, RUNTIMES, WRAPPERS, import_home

HEAVY = ("torch", "transformers", "sentence_transformers", "jnius", "pyserini", "pandas", "faiss", "scipy", "pyarrow")
# What importing a command's module must not load: the model, the JVM and the table libraries.
MODELS = ("torch", "transformers", "sentence_transformers", "jnius", "pyserini", "pandas", "faiss", "ranx", "beir")
COMMANDS = {name: row.module for name, row in COMMAND_ROWS.items()}
TABLES = (CARDS, COMMAND_ROWS, CORPORA, ENGINES, PICTURES, RUNTIMES, WAYS, WRAPPERS)
TEXT_SUFFIXES = {".py", ".md", ".sh", ".cfg", ".toml", ".yaml", ".yml", ".txt", ".cff", ".ini"}


def modules(package):
    return [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]


def test_exports_resolve():
    assert set(lexvl_anserini.__all__) == set(lexvl_anserini._HOMES)
    assert sorted(lexvl_anserini.__all__) == lexvl_anserini.__all__
    for name in lexvl_anserini.__all__:
        assert getattr(lexvl_anserini, name) is not None


def test_exports_are_what_type_checkers_see():
    """Names imported under TYPE_CHECKING are those that are imported on demand, from the same homes."""
    text = (ROOT / "lexvl_anserini/__init__.py").read_text()
    block = text[text.index("if TYPE_CHECKING") : text.index("_HOMES")]
    homes = {
        name.strip(): home
        for home, names in re.findall(r"from lexvl_anserini\.([\w.]+) import (.+)", block)
        for name in names.split(",")
    }
    assert homes == lexvl_anserini._HOMES


def test_a_shell_completes_exported_names():
    completer = rlcompleter.Completer({"lexvl_anserini": lexvl_anserini})
    assert completer.attr_matches("lexvl_anserini.load_") == [
        "lexvl_anserini.load_dataset(",
        "lexvl_anserini.load_encoder(",
    ]
    assert set(lexvl_anserini.__all__) < set(dir(lexvl_anserini))


def loaded_by(module, names):
    code = f"import sys, {module}; print(*sorted(set({names!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_importing_the_package_loads_no_heavy_library():
    assert loaded_by("lexvl_anserini", (*HEAVY, "numpy")) == []


def test_importing_a_command_loads_no_model_library():
    """One process imports all; it names the first module that loads one."""
    modules = [*COMMANDS.values(), "lexvl_anserini.cli", "lexvl_anserini.shards.writing"]
    code = (
        f"import importlib, sys\nfor module in {modules!r}:\n    importlib.import_module(module)\n"
        f"    assert not set({MODELS!r}) & set(sys.modules), module\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["encode", "index", "search"])
def test_the_commands_of_the_line_load_no_scipy(module):
    assert loaded_by(f"lexvl_anserini.{module}", ("scipy",)) == []


def test_every_module_can_be_imported():
    """But for modules of plug-ins that import a package of an extra, where it is not installed."""
    of_extras = {package for extra in EXTRAS for package in packages(extra)} - packages()
    for package in (lexvl_anserini, lexvl_eval, lexvl_plugins):
        for name in modules(package):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                missing = error.name.partition(".")[0]
                assert package is lexvl_plugins and package_of(missing) in of_extras and find_spec(missing) is None, (
                    error
                )


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in TABLES for name in table])
def test_rows_resolve(table, name):
    row = table[name]
    homes = [row] if isinstance(row, str) else [row[0]] if isinstance(row, tuple) else [row.loader]
    assert all(import_home(home) for home in homes)


def test_every_encoder_has_an_equation_of_its_own():
    """`--describe` and model cards print the first line of the docstring of its loader, or of its module."""
    equations = {read_equation(name) for name in CARDS}
    assert "" not in equations and len(equations) == len(CARDS)


def test_packaging():
    assert SETUP["metadata"]["version"] == lexvl_anserini.__version__
    for home in PACKAGES.values():
        folders = {path.parent for path in home.rglob("*.py")}
        assert all((folder / "__init__.py").is_file() for folder in folders), "a folder of modules is no package"
        assert (home / "py.typed").is_file()
    assert "lexvl = lexvl_anserini.cli:main" in SETUP["options.entry_points"]["console_scripts"]


def repository_files():
    """Text files of the repository: those git tracks or would, or all that are no build product."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = (
        listed.stdout.splitlines() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    )
    paths = [ROOT / name for name in names if Path(name).suffix in TEXT_SUFFIXES]
    return [path for path in paths if path.is_file() and "golden" not in path.parts]


def test_no_file_names_a_place_on_a_machine():
    places = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt|data\d*)/\w")
    allowed = re.compile(r"/data/(mine|x)\b")
    for path in repository_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = places.search(allowed.sub("", line))
            assert not match, f"{path.relative_to(ROOT)} line {number}: {line.strip()}"


# The rooms of the library in import order: a module imports its own room and those before it.
ROOMS = ("ground", "data", "encoders", "shards", "queries", "runs", "engines", "searching")


def room_of(module):
    """The room of a module of the library; None for commands, which may import everything."""
    if module in COMMANDS.values():
        return None
    parts = module.split(".")
    return parts[1] if parts[0] == "lexvl_anserini" and len(parts) > 1 and parts[1] in ROOMS else None


def climbs(module, other):
    """Whether an import leads from a room of the library to one after it, or to a command."""
    room, target = room_of(module), room_of(other)
    if room is None or other == "lexvl_anserini":
        return False
    if target is None:
        return True
    return ROOMS.index(target) > ROOMS.index(room)


def test_rooms_import_only_rooms_before_them():
    wrong = [f"{module} imports {other}" for module in sorted(GRAPH) for other in sorted(GRAPH[module])]
    assert [line for line in wrong if climbs(*line.split(" imports "))] == []


# The floors inside a package, the lowest first; what is named nowhere is above them all, and a longer name goes before.
FLOORS = {
    "lexvl_anserini.encoders": (
        ("cards",),
        ("encoder",),
        ("checkpoints",),
        ("loading",),
        ("parts", "checkpoints.itc_layout", "checkpoints.naver_layout"),
        ("families",),
    ),
    "lexvl_eval": (
        ("measures",), ("report",), ("analyses.classes",), ("options",), ("analyses",), ("reproduction",)
    ),
}  # fmt: skip


def floor_of(module, package):
    """The floor of a module inside a package."""
    name, floors = module.removeprefix(f"{package}."), FLOORS[package]
    fitting = [
        (len(start), floor)
        for floor, names in enumerate(floors)
        for start in names
        if f"{name}.".startswith(f"{start}.")
    ]
    return max(fitting, default=(0, len(floors)))[1]


@pytest.mark.parametrize("package", FLOORS)
def test_modules_import_only_floors_below_them_or_their_own(package):
    inside = {name for name in GRAPH if name.startswith(f"{package}.")}
    pairs = [(module, other) for module in inside for other in GRAPH[module] & inside]
    assert [pair for pair in pairs if floor_of(pair[0], package) < floor_of(pair[1], package)] == []


def plugin_of(module):
    """The plug-in that a module belongs to, if any."""
    parts = module.split(".")
    return parts[1] if parts[0] == "lexvl_plugins" and len(parts) > 1 else None


def test_the_core_imports_no_plugin():
    assert [(module, other) for module in GRAPH for other in GRAPH[module] if plugin_of(other)] == []


def test_plugins_import_those_that_they_name():
    """`NEEDS` of a plug-in's `__init__.py`; plug-ins need each other in no circle."""
    needs = defaultdict(set)
    for module, imported in PLUGIN_GRAPH.items():
        needs[plugin_of(module)] |= {plugin_of(other) for other in imported} - {plugin_of(module), None}
    folders = {path.parent.name for path in (ROOT / "lexvl_plugins").glob("*/__init__.py")}
    named = {name: {*getattr(importlib.import_module(f"lexvl_plugins.{name}"), "NEEDS", ())} for name in folders}
    assert named == {name: needs[name] for name in folders}
    TopologicalSorter(named).prepare()


# Words of plug-ins, which the core writes in no name, comment or message; prompts ("a photo of") are of models.
FOREIGN = re.compile(
    r"\b(albums?|ray|onnx|mcp|ciff|opensearch|qdrant|milvus|pgvector|pyterrier|langchain|webdataset|vidore|pdfs?|ocr|s3)"
    r"\b|(?<!\ba )photo",
    re.IGNORECASE,
)
# Tables of rows, of extras, and of the numbers that papers print, may name them.
NAMING = re.compile(
    r"lexvl_anserini\.(ground\.registry|cli|encoders\.cards|encoders\.parts\.images\.image_backbones)"
    r"|lexvl_eval\.(reproduction\.|measures\.averages|options)"
)


def test_the_core_names_no_plugin():
    found = {}
    for package, home in PACKAGES.items():
        for path in sorted(home.rglob("*.py")):
            module = ".".join((package, *path.relative_to(home).with_suffix("").parts))
            if not NAMING.match(module) and path.name not in FORWARDERS:
                found |= {f"{module}: {match[0]}": None for match in FOREIGN.finditer(path.read_text(encoding="utf-8"))}
    assert list(found) == []


def definitions(*kinds):
    """(module, node) of every definition of these kinds in both packages."""
    return [(name, node) for name, tree in SOURCES.items() for node in ast.walk(tree) if isinstance(node, kinds)]


def test_modules_do_not_import_each_other_in_a_circle():
    """Imports within functions count, and names in calls of `import_module`; those in tables of registries do not."""
    try:
        TopologicalSorter(GRAPH | PLUGIN_GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"import circle: {' <- '.join(error.args[1])}")


def test_the_evaluation_has_its_installed_name():
    """A wheel has no `eval`, and its users may have one of their own. In the evaluation imports are relative."""
    for package, home in (PACKAGES | PLUGINS).items():
        forbidden = r"^\s*(from|import) (lexvl_)?eval\b" if package == "lexvl_eval" else r"^\s*(from|import) eval\b"
        for path in home.rglob("*.py"):
            assert not re.search(forbidden, path.read_text(encoding="utf-8"), re.MULTILINE), path


# What commands share: their options, and the one command of all captioned image datasets.
OF_COMMANDS = {
    "lexvl_anserini.cli", "lexvl_eval.options", "lexvl_eval.image_text",
    # Records that the command line expands: one declaration of an option and of the attribute.
    "lexvl_anserini.searching.search", "lexvl_anserini.searching.query_encoder",
}  # fmt: skip


def test_only_commands_import_the_command_line():
    commands = {*COMMANDS.values(), *OF_COMMANDS, *(name for name in SOURCES if name.endswith(".__main__"))}
    commands |= {f"lexvl_anserini.{name[:-3]}" for name in FORWARDERS}
    for name in CORE_SOURCES.keys() - commands:
        wrong = {imported for imported in imports(SOURCES[name]) if imported.split(".")[0] == "typer"}
        wrong |= GRAPH[name] & {*COMMANDS.values(), "lexvl_anserini.cli"}
        assert not wrong, f"{name} imports {', '.join(sorted(wrong))}"


def test_no_class_name_is_given_twice():
    homes = defaultdict(list)
    for name, node in definitions(ast.ClassDef):
        homes[node.name].append(name)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_functions_are_short():
    """At most 60 lines, docstring included."""
    long = [
        f"{name}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for name, node in definitions(ast.FunctionDef, ast.AsyncFunctionDef)
        if node.end_lineno - node.lineno >= 60
    ]
    assert long == []


# Functions that may have more than ten parameters, and why.
WIDE = {
    "lexvl_anserini.searching.building.build_index": "public: its parameters are those of the released API",
    "lexvl_anserini.searching.searcher.search_index": "public: its parameters are those of the released API",
    "lexvl_anserini.encoders.families.stair.load_stair": "a loader's parameters are the options of its encoder (--set)",
    "lexvl_anserini.encoders.families.dense_heads.load_joint": "a loader's parameters are its encoder's options",
}


def test_functions_have_few_parameters():
    """At most 10 in library functions. Those of a command are its options, which dataclasses may group."""
    wide = {}
    for name, node in definitions(ast.FunctionDef, ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        if count > (20 if node.name == "command" and name in COMMANDS.values() else 10):
            wide[f"{name}.{node.name}"] = count
    assert wide.keys() <= WIDE.keys(), wide


# Modules that forward to commands of plug-ins, `python -m lexvl_anserini.train`.
FORWARDERS = {"train.py", "photos.py", "mine.py", "demo.py"}


def test_text_is_plain_english():
    """No passives that hide who acts, and no old words: raises, returns, stores, skips, reads."""
    words = re.compile(r"\b(?:(?:is|are) (?:told|asked)|nobody's|heeds?)\b")
    for path in repository_files():
        if path.name == "test_structure.py" or "fixtures" in path.parts:
            continue
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        match = words.search(text)
        assert not match, f"{path.relative_to(ROOT)}: {text[max(0, match.start() - 40) : match.end() + 40]}"


def test_docstrings_and_comments_are_sentences():
    """What begins with "Of" lacks the thing: "The limit of a file" says what "Of a file" leaves out. Help too."""
    fragment = re.compile(r'(?:^\s*(?:"""|# )|\bhelp=\(?\s*")Of ', re.MULTILINE)
    for home in PACKAGES.values():
        for path in home.rglob("*.py"):
            match = fragment.search(path.read_text(encoding="utf-8"))
            assert not match, f"{path.relative_to(ROOT)}: {match}"
    sentence = re.compile(r"(?:^|[.:|)] |^[*\d.]+ )Of \w", re.MULTILINE)
    for path in repository_files():
        if path.suffix == ".md" and "fixtures" not in path.parts:
            match = sentence.search(path.read_text(encoding="utf-8"))
            assert not match, f"{path.relative_to(ROOT)}: {match}"


# Words that name no thing: a manifest is `manifest`, what a search returns `hits`, what a caller chose `options`.
NAMELESS = {"about", "asked", "found", "kept", "made", "told", "wanted"}


def test_variables_name_things():
    names = {
        f"{name}: {node.id}"
        for name, node in definitions(ast.Name)
        if isinstance(node.ctx, ast.Store) and node.id in NAMELESS
    }
    assert names == set()
