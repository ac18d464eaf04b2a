"""What PDFium, Pillow and OCR read in files, in this process: pages, pictures, words with boxes."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageDraw, ImageFont

from lexvl_anserini.data.pictures.archives import PageReference, find_file, find_page
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.pages import pdf
from lexvl_plugins.pages.ocr import MOST_LINES, sort_lines
from lexvl_plugins.pages.page import OCR, TEXT_LAYER, Box, PageWords, Word, join_words
from lexvl_plugins.pages.reading import LONGEST, count_pages, draw_page, read_content
from tests.plugins.pages.pdf_files import large_jpeg, locked_pdf, many_pages, pdf_of, stream, words_at

pytestmark = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("pypdfium2", "rapidocr")),
    reason="the extra is not installed: pip install 'lexvl-anserini[pages]'",
)


@pytest.fixture
def written(tmp_path):
    """`written(data)`: the first page of a new PDF."""

    def write(data, name="a.pdf"):
        (tmp_path / name).write_bytes(data)
        return PageReference(str(tmp_path / name), 1)

    return write


def texts(page):
    return [word.text for word in pdf.read_text_layer(page)]


# --- references -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference, expected",
    [
        ("a.pdf#3", ("a.pdf", 3)),
        ("x/y.tar::b c.TIF#12", ("x/y.tar::b c.TIF", 12)),
        ("C#/a.pdf#1", ("C#/a.pdf", 1)),
        ("a.pdf#1#2", None),
        ("a.pdf", None),
        ("a.pdf#0", None),
        ("dir.v2#1/a.jpg", None),
        ("a#3", None),
    ],
)
def test_a_page_is_named_by_its_file_and_number(reference, expected):
    assert find_page(reference) == expected
    if expected:
        assert str(find_page(reference)) == reference


def test_a_page_of_a_member_is_in_the_archive():
    found = [str(find_file(name)) for name in ("y.tar::b.tif#2", "y.tar::b.tif", "b.tif#2", "b.tif")]
    assert found == ["y.tar", "y.tar", "b.tif", "b.tif"]


# --- words of text layers -------------------------------------------------------------------------------------------


def test_words_have_boxes_from_the_top_left_corner(written):
    page = written(pdf_of(f"{words_at(100, 300, 'two  words')} {words_at(0, 0, 'low')}", paper=(200, 400)))
    two, words, low = pdf.read_text_layer(page)
    assert (two.text, words.text, low.text) == ("two", "words", "low")
    # The letters stand on the line that is 300 of 400 points above the bottom, and are less than 12 points high.
    assert two.box.left == pytest.approx(100 / 200, abs=0.01) and two.box.bottom == pytest.approx(0.25, abs=0.01)
    assert 0.25 - 12 / 400 < two.box.top < two.box.bottom and two.box.right < words.box.left
    assert low.box.left == pytest.approx(0, abs=0.01) and low.box.bottom == pytest.approx(1, abs=0.01)


def test_boxes_are_of_the_page_as_it_is_shown(written):
    word = words_at(100, 300, "word")
    upright = pdf.read_text_layer(written(pdf_of(word, paper=(200, 400))))[0].box
    turned = pdf.read_text_layer(written(pdf_of(word, paper=(200, 400), page="/Rotate 90"), "b.pdf"))
    expected = (1 - upright.bottom, upright.left, 1 - upright.top, upright.right)
    assert turned[0].box == pytest.approx(expected, abs=0.001)
    cropped = pdf.read_text_layer(written(pdf_of(word, page="/CropBox [100 300 200 400]"), "c.pdf"))
    assert cropped[0].box.left == pytest.approx(0, abs=0.02) and cropped[0].box.bottom == pytest.approx(1, abs=0.02)


def test_a_word_that_a_line_end_divides_is_whole_in_the_text(written):
    page = written(pdf_of(f"{words_at(20, 300, 'some infor-')} {words_at(20, 286, 'mation and a well-known')}"))
    words = pdf.read_text_layer(page)
    assert [word.text for word in words][:4] == ["some", "infor\u00ad", "mation", "and"]
    assert words[1].box.bottom < words[2].box.bottom
    assert join_words(words) == "some information and a well-known"


def mapped(*targets):
    """A font whose letters A, B, ... mean these texts."""
    rows = "\n".join(f"<{65 + number:02X}> <{text.encode('utf-16-be').hex()}>" for number, text in enumerate(targets))
    table = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def 1 begincodespacerange <00> <FF> "
        f"endcodespacerange {len(targets)} beginbfchar\n{rows}\nendbfchar endcmap end end"
    )
    return {"objects": [stream(table)], "font": "/ToUnicode 10 0 R"}


def test_right_to_left_words_keep_the_order_of_pdfium(written):
    import pypdfium2

    page = written(pdf_of(words_at(20, 300, "CBA ED"), **mapped("\u05e9", "\u05dc", "\u05d5", "\u05dd", "\u05d1")))
    text = pypdfium2.PdfDocument(page.file)[0].get_textpage().get_text_range()
    assert texts(page) == text.split() and set("".join(texts(page))) == set("\u05e9\u05dc\u05d5\u05dd\u05d1")


def test_ligatures_are_letters_and_letters_without_a_meaning_are_left_out(written):
    page = written(pdf_of(words_at(20, 300, "AB C D"), **mapped("\ufb01", "\U0001f600", "\ue000", "\ufe8e")))
    assert texts(page) == ["fi\U0001f600", "\u0627"]


def test_a_page_without_words(written):
    assert pdf.read_text_layer(written(pdf_of("0 0 10 10 re f"))) == ()
    assert join_words(()) == ""


def test_words_are_the_same_after_json():
    words = PageWords((Word("é", Box(0, 0.25, 0.5, 1)), Word("b", Box(0, 0, 0, 0))), OCR)
    assert PageWords.from_json(words.to_json()) == words


# --- files and pages ------------------------------------------------------------------------------------------------


def test_every_page_is_counted_and_each_is_read_alone(written):
    page = written(many_pages(10_000, words_at(20, 300, "same")))
    assert count_pages(page.file) == (10_000, True)
    assert texts(page._replace(page=10_000)) == ["same"]
    with pytest.raises(DataError, match=r"a\.pdf#10001: no such page; the file has 10,000"):
        pdf.read_text_layer(page._replace(page=10_001))


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"", "it is empty"),
        (b"<html>", "not a PDF, or a damaged one"),
        (pdf_of(words_at(20, 300, "x"))[:300], "not a PDF, or a damaged one"),
        (locked_pdf(), "a password protects it"),
        (pdf_of(), "not a PDF, or a damaged one"),
    ],
)
def test_files_that_cannot_be_opened_say_why(written, data, reason):
    page = written(data)
    with pytest.raises(DataError) as caught:
        count_pages(page.file)
    assert str(caught.value) == f"{page.file}: {reason}"


def test_a_file_without_an_end_is_opened_and_has_damaged_pages(written):
    data = pdf_of(words_at(20, 300, "first"), words_at(20, 300, "second"))
    page = written(data[: data.index(b"startxref")].replace(b"12 0 obj", b"99 0 obj"))
    assert count_pages(page.file) == (2, False) and texts(page) == ["first"]
    with pytest.raises(DataError, match=r"a\.pdf#2: a damaged page"):
        pdf.read_text_layer(page._replace(page=2))


@pytest.mark.parametrize(
    "paper, expected", [((20_000, 20_000), (LONGEST, LONGEST)), ((20_000, 10), (LONGEST, 1)), ((72, 144), (200, 400))]
)
def test_a_picture_is_bounded(written, paper, expected):
    picture = pdf.draw_page(written(pdf_of("0 0 5 5 re f", paper=paper)), LONGEST)
    assert picture.size == expected and picture.mode == "RGB"


def test_a_changed_file_is_opened_again(written):
    assert texts(written(pdf_of(words_at(20, 300, "before")))) == ["before"]
    assert texts(written(pdf_of(words_at(20, 300, "afterwards")))) == ["afterwards"]


def test_pages_of_a_tiff_and_of_other_pictures(tmp_path):
    reds = [Image.new("RGB", (8, 4), (red, 0, 0)) for red in (10, 20, 30)]
    reds[0].save(tmp_path / "a.tif", save_all=True, append_images=reds[1:])
    reds[0].save(tmp_path / "a.gif", save_all=True, append_images=reds[1:])
    assert [count_pages(str(tmp_path / name)).number for name in ("a.tif", "a.gif")] == [3, 1]
    page = PageReference(str(tmp_path / "a.tif"), 2)
    assert np.asarray(draw_page(page, LONGEST))[0, 0].tolist() == [20, 0, 0]
    with pytest.raises(DataError, match="no such page; the file has 3"):
        draw_page(page._replace(page=4), LONGEST)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="not a picture of a known format"):
        count_pages(str(tmp_path / "b.png"))


def test_a_large_jpeg_is_never_decoded_whole(tmp_path):
    (tmp_path / "a.jpg").write_bytes(large_jpeg(10_000))
    assert draw_page(PageReference(str(tmp_path / "a.jpg"), 1), LONGEST).size == (LONGEST, LONGEST)


# --- OCR ------------------------------------------------------------------------------------------------------------


def test_a_page_without_a_text_layer_is_read_by_ocr(tmp_path, written):
    font = ImageFont.load_default(32)
    picture = Image.new("RGB", (400, 300), "white")
    ImageDraw.Draw(picture).text((20, 40), "Invoice 2024-17", fill="black", font=font)
    ImageDraw.Draw(picture).text((200, 220), "total: 3,50", fill="black", font=font)
    picture.save(tmp_path / "scan.pdf")
    read = read_content(PageReference(str(tmp_path / "scan.pdf"), 1))
    assert read.source == OCR and [word.text for word in read.words] == ["Invoice", "2024-17", "total:", "3,50"]
    first, second, third, _ = (word.box for word in read.words)
    assert 0.03 < first.left < 0.08 and first.right < second.left and first.bottom < third.top
    assert third.left == pytest.approx(0.5, abs=0.02)
    assert read_content(written(pdf_of(words_at(20, 300, "layer")))).source == TEXT_LAYER
    for size in ((1, 1), (60, 1)):
        Image.new("RGB", size, "white").save(tmp_path / "blank.png")
        assert read_content(PageReference(str(tmp_path / "blank.png"), 1)) == ((), OCR)


TWO_COLUMNS = [[0, 20, 45, 30], [55, 20, 100, 30], [0, 32, 45, 42], [55, 33, 100, 43], [0, 44, 20, 54]]
HEADING, FOOT = [0, 0, 100, 10], [0, 60, 100, 70]


@pytest.mark.parametrize(
    ("lines", "order"),
    [
        ([], []),
        ([HEADING], [0]),
        ([HEADING, *TWO_COLUMNS, FOOT], [0, 1, 3, 5, 2, 4, 6]),
        (TWO_COLUMNS, [0, 2, 4, 1, 3]),
        # A picture's line across parts what is above it from what is below.
        ([*TWO_COLUMNS[:2], [0, 40, 100, 50], [0, 60, 45, 70], [55, 60, 100, 70]], [0, 1, 2, 3, 4]),
        # Pieces of one line with less than its height between are no columns.
        ([[0, 0, 45, 10], [50, 0, 100, 10], [0, 12, 45, 22], [50, 12, 100, 22]], [0, 1, 2, 3]),
        # The lines of a page that lies askew have heights in common.
        ([[0, 8, 100, 22], [0, 20, 45, 34], [60, 14, 100, 28], [0, 32, 45, 46], [60, 26, 100, 40]], [0, 1, 3, 2, 4]),
    ],
)
def test_lines_are_read_down_one_column_and_then_the_next(lines, order):
    assert sort_lines(np.array(lines, float).reshape(-1, 4)) == order


@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=1, max_dims=1, max_side=12), elements=st.integers(0, 10**8 - 1)))
def test_every_line_has_one_place_wherever_it_is(places):
    left, top, width, height = (places // 100**digit % 100 for digit in range(4))
    boxes = np.stack([left, top, left + width + 1, top + height + 1], axis=1).astype(float)
    assert sorted(sort_lines(boxes)) == list(range(len(boxes)))


def test_a_page_of_very_many_lines_keeps_their_order():
    boxes = np.tile([[60.0, 0, 100, 1], [0, 0, 40, 1]], (MOST_LINES, 1))
    assert sort_lines(boxes) == list(range(len(boxes)))
