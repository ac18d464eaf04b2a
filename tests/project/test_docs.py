"""The documentation: its commands and options exist, its links resolve, the opening example of each page runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import typer
from checkout import COMMANDS

from lexvl_anserini.cli import make_app
from lexvl_anserini.encoders import cards
from lexvl_anserini.encoders.loading import load_encoder

ROOT = Path(__file__).parents[2]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "docs/llms.txt"]
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "docs").glob("[at]*/*.md"))]
PACKAGES = (("lexvl_anserini",), ("eval",))
MODULES = {module.removesuffix(".command"): module for module in COMMANDS.values()}


def blocks(page: Path, language: str = r"[^`\n]*") -> list[str]:
    """The contents of a page's code blocks; continued lines are joined."""
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in found]


def list_options(module: str) -> set[str]:
    """The options of the command of a module."""
    command = typer.main.get_command(make_app(import_module(module).command))
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    text = "\n".join(blocks(page)) + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
    for module, rest in re.findall(r"python -m ((?:lexvl_anserini|eval)[\w.]*)([^\n|#]*)", text):
        if module not in MODULES:
            assert find_spec(module), f"{page.name}: no module {module}"
            continue
        unknown = set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) - list_options(MODULES[module]) - {"--help"}
        assert not unknown, f"{page.name}: {module} has no option {', '.join(sorted(unknown))}"
    for name, rest in re.findall(r"(?<![\w/.-])lexvl ((?!my)[a-z][\w-]*)([^\n|#]*)", text):
        assert name in COMMANDS, f"{page.name}: no command lexvl {name}"
        unknown = set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) - list_options(COMMANDS[name]) - {"--help"}
        assert not unknown, f"{page.name}: lexvl {name} has no option {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_a_wheel_has_what_the_pages_name(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "python -m eval" not in text, "a wheel has no package of the name eval; lexvl NAME runs everywhere"
    names = re.findall(r"--recipe ([\w/.-]+)", text)
    assert [name for name in names if not (ROOT / f"runs/recipes/{name}.yaml").is_file() and "/" in name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_in_the_guide_exist() -> None:
    """Files and folders in CONTRIBUTING.md: from the root, below one of the two packages, or a bare name anywhere.

    `mymodel.py`, `test_<room>_<module>.py` and `test_oracle_*.py` are placeholders.
    """
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    files = [Path(name) for name in listed] or [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    known = {one for path in files for one in (path, *path.parents)}
    known |= {Path(one.name) for one in known} | {Path(*one.parts[1:]) for one in known if one.parts[:1] in PACKAGES}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    spans = re.findall(r"`([^`\n]+)`", text) + re.findall(r"python -m pytest ([^\n`#]+)", text)
    words = [
        word for span in spans for word in span.split() if re.search(r"\w(?:/|\.(?:py|yaml|json|jar|md|sh))$", word)
    ]
    named = [word for word in words if not re.search(r"my[a-z]|[*<]|\.\./", word)]
    assert len(named) > 60
    assert [name for name in named if Path(name) not in known] == []


def test_the_encoder_of_the_guide_loads(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code, row = (dedent(block) for block in re.findall(r"^ *```python\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    module = ModuleType("lexvl_anserini.encoders.families.mymodel")
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    [(name, card)] = eval(f"{{{row}}}", {"Card": cards.Card}).items()
    monkeypatch.setitem(cards.CARDS.core, name, card)
    model = load_encoder(name, golden / "splade/ckpt_bert", topk=3)
    assert model.name == name and len(model.decode(model.encode_query("a red dog"))[0]) == 3


def test_tables_and_constants_in_the_guide_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sources = [
        path
        for folder in ("lexvl_anserini", "lexvl_plugins", "eval", "tools", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    defined = {
        name
        for path in sources
        for name in re.findall(r"^([A-Z][A-Z_]+)\b[^\n]* = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`([A-Z][A-Z_]{3,})`", text))
    assert len(named) > 10
    assert named <= defined, sorted(named - defined)


def test_the_guide_names_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for (package,) in PACKAGES:
        for file in (ROOT / package).rglob("*/__init__.py"):
            room = file.parent.relative_to(ROOT / package)
            names = (f"{room}/", f"eval/{room}/", f"{room.name}/")
            assert any(re.search(rf"`{name}", text) for name in names), f"CONTRIBUTING.md does not name {file.parent}"


def test_every_promise_has_a_test() -> None:
    """Each numbered promise of docs/guarantees.md has a row that names functions of test modules, and they exist."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows: list[str] = []
    for section in text.split("\n## ")[1:]:
        promises = re.findall(r"^(\d+)\. ", section, re.MULTILINE)
        of_section = re.findall(r"^\| (\d+ \| .+) \|$", section, re.MULTILINE)
        assert promises == [row.split(" ")[0] for row in of_section], section.split("\n")[0]
        assert promises == [str(number) for number in range(1, len(promises) + 1)]
        rows += of_section
    assert len(rows) > 50
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test for: {row}"
        for module, function in named:
            source = (ROOT / module).read_text(encoding="utf-8")
            assert re.search(rf"^def {function}\(", source, re.MULTILINE), f"{module} has no {function}"


def examples(page: Path) -> str:
    """The blocks of bash and Python of a page as one script, but those behind `<!-- not run: REASON -->`."""
    pattern = r"^(<!-- not run: [^>]+ -->\n+)?```(bash|python)\n(.*?)^```"
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    run = [(language, block) for reason, language, block in found if not reason]
    return "\n".join(
        block if language == "bash" else f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK" for language, block in run
    )


# Other projects that the examples of a page import.
NEEDED = {
    "adapters.md": ("ir_measures", "langchain_core", "pyterrier"),
    "pages.md": ("pebble", "pypdfium2", "rapidocr"),
}

# tests/project/test_docs_pyserini.py runs the page on Pyserini with what Pyserini needs.
WITH_EXAMPLES = [page for page in (ROOT / "README.md", *DOCS) if page.name not in ("comparison.md", "pyserini.md")]


@pytest.mark.heavy
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    """In their order, in one folder; a block without a language is a listing."""
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package)
    for folder in ("runs", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    if page.name == "SKILL.md":  # it begins with a folder of the user's own
        shutil.copytree(ROOT / "runs/expected", tmp_path / "pictures", ignore=shutil.ignore_patterns("*.yaml"))
    programs = f'python() {{ {sys.executable} "$@"; }}\nlexvl() {{ python -m lexvl_anserini "$@"; }}\n'
    script = "set -euo pipefail\n" + programs + examples(page)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
