"""Which module imports which: syntax trees, and the graph of imports, those within functions counted."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from declared import ROOT

# The packages of the core, and their folders in a checkout; then those of plug-ins.
PACKAGES = {"lexvl_anserini": ROOT / "lexvl_anserini", "lexvl_eval": ROOT / "eval"}
PLUGINS = {"lexvl_plugins": ROOT / "lexvl_plugins"}


def sources(packages: Mapping[str, Path]) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree, of every module of some packages; relative imports are made absolute."""
    trees = {}
    for package, home in packages.items():
        for path in sorted(home.rglob("*.py")):
            parts = (package, *path.relative_to(home).with_suffix("").parts)
            tree = trees[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.level:
                    node.module = ".".join((*parts[: -node.level], *filter(None, [node.module])))
    return trees


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, at its top or within functions, but not for types only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & SOURCES.keys() or {node.module}
        else:
            yield from imported_by_name(node)
            yield from imports(node)


def imported_by_name(node: ast.AST) -> Iterator[str]:
    """The module that a call of `import_module` names by a constant."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
        yield from (one.value.partition(":")[0] for one in node.args[:1] if isinstance(one, ast.Constant))


def chain_heights(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Per module the modules on its longest chain of imports, those within functions counted."""
    heights: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        heights[module] = 1 + max((heights[other] for other in graph[module]), default=0)
    return heights


def graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    return {name: {module for module in imports(tree) if module in SOURCES} - {name} for name, tree in trees.items()}


CORE_SOURCES, PLUGIN_SOURCES = sources(PACKAGES), sources(PLUGINS)
SOURCES = CORE_SOURCES | PLUGIN_SOURCES
GRAPH, PLUGIN_GRAPH = graph(CORE_SOURCES), graph(PLUGIN_SOURCES)
