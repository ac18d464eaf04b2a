"""Photos with words in them: the corpus, `lexvl photos --read-text`, and the frames of the search page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.doors.pages import reading
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.photos import command
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.searching.shared_terms import explain

pytestmark = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("pebble", "pypdfium2", "rapidocr", "fastapi")),
    reason="the extras are not installed: pip install 'lexvl-anserini[pages,serve]'",
)

WORDS = {"bakery.png": "BAKERY", "sea.png": "", "street.png": "Hotel Astoria"}


def picture(words: str) -> Image.Image:
    """The sky, with words on it."""
    image = Image.new("RGB", (400, 300), (90, 140, 200))
    ImageDraw.Draw(image).text((60, 60), words, fill="white", font=ImageFont.load_default(40))
    return image


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics").mkdir()
    for name, words in WORDS.items():
        picture(words).save(tmp_path / "pics" / name)
    (tmp_path / "pics" / "sea.txt").write_text("the sea")
    return tmp_path / "pics"


def printed(capsys, *queries: str) -> list[str]:
    """What the command prints."""
    command(folder=Path("pics"), queries=list(queries), hits=3, read_text=True, checkpoint="demo-vdr", device="cpu")
    return capsys.readouterr().out.splitlines()


def first_of(lines: list[str], query: str) -> str:
    """The line of the first hit."""
    return lines[lines.index(f'"{query}"') + 1]


def test_pictures_have_the_words_in_them_beside_their_captions(folder):
    documents = list(load_dataset(f"read-pictures:{folder}").documents())
    read = [(document.doc_id, document.text, dict(document.metadata)) for document in documents]
    assert read == [
        ("bakery.png", "BAKERY", {"words": "ocr"}),
        ("sea.png", "the sea", {}),
        ("street.png", "Hotel Astoria", {"words": "ocr"}),
    ]


def test_words_in_photos_are_asked_for_and_changes_are_followed(folder, capsys, monkeypatch):
    lines = printed(capsys, "bakeries", "a hotel")
    assert "bakery.png" in first_of(lines, "bakeries") and "text:bakeri" in first_of(lines, "bakeries")
    assert "street.png" in first_of(lines, "a hotel")
    assert Path("lexvl-photos/pics/contact-sheet.png").is_file()
    index = Path("lexvl-photos/pics/read/index")
    assert read_manifest(index).encoder.options == {"text.weight": 6 * 255, "image.weight": 1}
    before = read_manifest(index).to_json()

    with monkeypatch.context() as patch:
        patch.setattr(reading, "begin", None)  # the call that would read a picture
        assert first_of(printed(capsys, "a hotel"), "a hotel") == first_of(lines, "a hotel")
    assert read_manifest(index).to_json() == before

    (folder / "street.png").unlink()
    picture("Hotel Sacher").save(folder / "new.png")
    lines = printed(capsys, "astoria", "sacher")
    assert "new.png" in first_of(lines, "sacher") and not any("street.png" in line for line in lines)
    assert read_manifest(index).counts.documents == 3


def test_scores_are_sums_over_what_a_photo_shows_and_what_it_says(folder, capsys):
    printed(capsys)
    with Searcher("lexvl-photos/pics/read/index") as searcher:
        hit = searcher.search("a hotel")[0]
    [explained] = explain("lexvl-photos/pics/read/index", "a hotel", hits=1)
    assert {term.field for term in explained.terms} == {"text", "image"}
    assert sum(term.product for term in explained.terms) == explained.score == hit.score


def test_the_page_frames_words_and_maps_terms(folder, capsys):
    from lexvl_anserini.doors.serving.answering import Service
    from lexvl_anserini.doors.serving.messages import MapQuestion, ProductsQuestion, Question
    from lexvl_anserini.doors.serving.opened import Shelf, served_indexes

    printed(capsys)
    shelf = Shelf(served_indexes([Path("lexvl-photos/pics/read/index")], [], "cpu", None))
    try:
        service = Service(shelf)
        assert service.description().indexes[0].maps
        question = Question(index="pics", text="a hotel")
        [products] = service.products(ProductsQuestion(question=question, doc_ids=["street.png"]))
        of_image = next(product.term for product in products.products if product.field == "image")
        word, term, whole = (
            service.heat_map(MapQuestion(question=question, doc_id="street.png", term=term))
            for term in ("text:hotel", of_image, None)
        )
        assert (word.grid, word.region) == ([[1.0]], [0, 0, 1, 1])
        [(left, top, right, bottom)] = word.boxes
        assert 0.1 < left < right < 0.5 and 0.1 < top < bottom < 0.45, "the first of two words"
        assert term.boxes == [] and len(term.grid) > 1
        assert whole.boxes == word.boxes and whole.grid != word.grid
        assert service.heat_map(MapQuestion(question=question, doc_id="sea.png")).boxes == []
    finally:
        shelf.close()
