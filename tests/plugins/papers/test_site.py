"""The site's pages of papers: cells with numbers and verdicts, commands, filters and copying in a browser."""

import re
import shlex
import shutil
import sys

import pytest
import typer
from declared import ROOT, SITE, load_from_site

from lexvl_anserini.cli import make_app
from lexvl_plugins.papers.command import command
from lexvl_plugins.papers.prepared import list_rows
from lexvl_plugins.papers.published import find_expected_folder, load_published_tables, read_tables
from lexvl_plugins.papers.tables import make_key, read_record

pytestmark = pytest.mark.extended

pages = load_from_site("pages")
sys.modules.setdefault("pages", pages)  # as `docs/site/build.py` finds it


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
