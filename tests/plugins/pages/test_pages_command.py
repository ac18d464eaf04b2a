"""`lexvl pages` on a few PDFs, scans and broken files: what it prints, draws, frames and reads again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.searching.searcher import Searcher
from lexvl_plugins.pages import reading
from lexvl_plugins.pages.answers import EDGE, INK, cut_snippet, draw_frames, match_words
from lexvl_plugins.pages.page import Box, Word
from lexvl_plugins.pages.pages import command
from tests.plugins.pages.pdf_files import locked_pdf, pdf_of, words_at

pytestmark = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("pebble", "pypdfium2", "rapidocr")),
    reason="the extra is not installed: pip install 'lexvl-anserini[pages]'",
)

WHOLE = Box(0, 0, 1, 1)


def page_of(*texts: str) -> str:
    """The content of a page with some lines."""
    return "\n".join(words_at(20, 390 - 20 * line, text) for line, text in enumerate(texts))


@pytest.fixture
def papers(tmp_path, monkeypatch):
    """Three pages in two PDFs, and files that cannot be read; the working folder is beside them."""
    folder = tmp_path / "my papers"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b.pdf").write_bytes(pdf_of(page_of("terms of payment", "thirty days"), page_of("a red boat")))
    (folder / "sub/c.pdf").write_bytes(pdf_of(page_of("boats on the lake", "payments")))
    (folder / "locked.pdf").write_bytes(locked_pdf())
    (folder / "empty.pdf").touch()
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    return folder


def printed(capsys, folder: Path, *queries: str, **options) -> list[str]:
    command(folder=folder, queries=list(queries), **options)
    return capsys.readouterr().out.splitlines()


def test_a_folder_is_indexed_asked_and_drawn(papers, capsys, caplog) -> None:
    caplog.set_level("INFO")
    lines = printed(capsys, papers, "boats", "terms of payment")
    assert lines[0] == "3 pages in the index"
    assert lines[2] == '"boats"' and lines[6] == '"terms of payment"' and len(lines) == 12
    # Stop words do not count: "boat" is one word of 2 on the first page, and one of 3 on the second.
    assert [line.split()[2:] for line in lines[3:5]] == [
        ["a", "b.pdf#2", "boat", "100%"],
        ["sub/c.pdf#1", "boat", "100%"],
    ]
    assert [line.split()[2:-2] for line in lines[7:9]][0][:3] == ["a", "b.pdf#1", "term"]
    left_out = "\n".join(caplog.messages)
    assert "a password protects it: 1 (locked.pdf)" in left_out and "it is empty: 1 (empty.pdf)" in left_out
    with Image.open("lexvl-pages/my papers/contact-sheet.png") as sheet:
        assert sheet.height == 24 + 2 * (256 + 40 + 5 * 29 + 2 * 24 + 36) + 17


def test_a_second_call_reads_nothing_and_follows_changes(papers, capsys, monkeypatch) -> None:
    printed(capsys, papers)
    index = Path("lexvl-pages/my papers/index")
    before = index.stat().st_ino
    start, calls = reading.start, []
    with monkeypatch.context() as patch:
        patch.setattr(reading, "start", lambda *call: (calls.append(call[0].__name__), start(*call))[1])
        lines = printed(capsys, papers)
    assert set(calls) == {"count_pages"}, "files without pages are tried again"
    assert lines[0] == "3 pages in the index" and lines[1].startswith("to ask: lexvl pages")
    assert index.stat().st_ino == before
    (papers / "sub/c.pdf").unlink()
    (papers / "d.pdf").write_bytes(pdf_of(page_of("a boat"), page_of("two boats"), page_of("no ship")))
    lines = printed(capsys, papers, "boat")
    assert lines[0] == "5 pages in the index"
    assert {line.split()[2] for line in lines[3:6]} == {"d.pdf#1", "d.pdf#2", "a"}


def test_a_damaged_page_is_counted_and_named(papers, capsys, monkeypatch) -> None:
    read = reading.wait_for

    def damaged(call, where):
        if where.endswith("a b.pdf#2"):
            call.cancel()
            raise DataError(f"{where}: a damaged page")
        return read(call, where)

    monkeypatch.setattr(reading, "wait_for", damaged)
    lines = printed(capsys, papers)
    assert lines[0] == "2 pages in the index"
    assert lines[1] == "1 pages cannot be read (a b.pdf#2); lexvl-pages/my papers/words/skipped.jsonl says why"


PICTURES = {"picture": "vdr-crossmodal", "checkpoint": "demo-vdr", "device": "cpu"}


def test_terms_of_pictures_are_a_second_field_whose_products_count_too(papers, capsys) -> None:
    lines = printed(capsys, papers, "a red boat", **PICTURES, hits=1)
    assert lines[2] == '"a red boat"' and "text:boat" in lines[3] and "image:" in lines[3]
    index = Path("lexvl-pages/my papers/index")
    with Searcher(index) as searcher:
        hit = searcher.search("a red boat")[0]
        [explained] = searcher.explain("a red boat", hits=1)
    assert {term.field for term in explained.terms} == {"text", "image"}
    assert sum(term.product for term in explained.terms) == explained.score == hit.score


def test_the_search_page_frames_words_and_maps_terms(papers, capsys) -> None:
    pytest.importorskip("fastapi", reason="the extra is not installed: pip install 'lexvl-anserini[serve]'")
    from lexvl_plugins.serve.answering import Service
    from lexvl_plugins.serve.indexes import Shelf, name_indexes
    from lexvl_plugins.serve.messages import MapQuestion, ProductsQuestion, Question

    printed(capsys, papers, **PICTURES)
    shelf = Shelf(name_indexes([Path("lexvl-pages/my papers/index")], [], "cpu", None))
    try:
        service, page = Service(shelf), "sub/c.pdf#1"
        assert service.describe().indexes[0].maps
        question = Question(index="my papers", text="a boat")
        [products] = service.explain(ProductsQuestion(question=question, doc_ids=[page]))
        of_image = next(product.term for product in products.products if product.field == "image")
        word, term, whole = (
            service.map_terms(MapQuestion(question=question, doc_id=page, term=term))
            for term in ("text:boat", of_image, None)
        )
        assert (word.grid, word.region) == ([[1.0]], [0, 0, 1, 1])
        [(left, top, right, bottom)] = word.boxes
        assert left < right < 0.4 and top < bottom < 0.1, "the first word of the first line"
        assert term.boxes == [] and len(term.grid) > 1
        assert whole.boxes == word.boxes and whole.grid != word.grid
    finally:
        shelf.close()


def test_nothing_fits_but_the_nearest_page_is_shown(papers, capsys) -> None:
    lines = printed(capsys, papers, "payment", "xqzzyv", min_score="99999999")
    assert lines[2] == '"payment"  nothing fits; nearest:' and "#1" in lines[3]
    assert "  nothing here has a term of this query" in lines


def test_bad_input_is_one_line(papers, capsys) -> None:
    with pytest.raises(UsageError, match="a query is empty"):
        command(folder=papers, queries=[" "])
    with pytest.raises(UsageError, match="among the pages; name a folder outside"):
        command(folder=papers, output=papers / "answers")
    with pytest.raises(UsageError, match="--checkpoint is of --picture"):
        command(folder=papers, checkpoint="demo-vdr")
    (papers / "none").mkdir()
    with pytest.raises(DataError, match="no file with pages in it"):
        command(folder=papers / "none")


def test_words_match_by_their_stems_and_across_line_ends() -> None:
    words = [Word(text, WHOLE) for text in ("The", "pay\u00ad", "ments,", "and", "days", "Days")]
    stems = {"The": [], "payments,": ["payment"], "and": [], "days": ["dai"], "Days": ["dai"]}
    assert match_words(words, frozenset({"payment", "dai"}), stems.__getitem__) == [(1, 2), (4,), (5,)]
    assert match_words(words, frozenset(), stems.__getitem__) == []


def test_a_snippet_has_the_words_around_the_first_match() -> None:
    words = [Word(str(number), WHOLE) for number in range(20)]
    assert cut_snippet(words, [(5, 6), (9,)]) == "… 3 4 5 6 7 8 9 10 11 12 …"
    assert cut_snippet(words, []) == "0 1 2 3 4 5 6 7 …" and cut_snippet(words[:2], [(0,)]) == "0 1"


def test_frames_are_around_their_words() -> None:
    picture = draw_frames(Image.new("RGB", (100, 200), "white"), [Box(0.2, 0.1, 0.6, 0.2)])
    # 2 pixels wide, outside the box: 18 and 19, 60 and 61 across; 18 and 19, 40 and 41 down.
    assert picture.getpixel((18, 30)) == picture.getpixel((40, 41)) == INK[:3]
    assert picture.getpixel((0, 100)) == EDGE[:3] and picture.getpixel((80, 150)) == (255, 255, 255)
    assert picture.getpixel((30, 30)) not in ((255, 255, 255), INK[:3])
