"""Contact sheets: where things stand, what does not fit, the same bytes again, and runs that are another index's."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from colour_towers import colour_tower, painted
from invoking import invoked
from PIL import Image
from shard_folders import write_shards

import lexvl_anserini.searching.shared_terms
from eval.report import answers, strips
from eval.report.answers import make_item, make_query_strips, make_run_strips, read_hits, sample_queries, with_maps
from eval.report.strips import (
    Cell,
    Item,
    Strip,
    compute_layout,
    convert_colours,
    draw_sheet,
    fit_text,
    measure_text,
    wrap_text,
    write_legend,
)
from eval.sheet import DEFAULT_HITS, command
from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import CorpusRef, Document, Qrel, Topic
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.searching.shared_terms import SharedTerm
from lexvl_anserini.shards.writing import write_impacts
from tests.commands.test_search import Toy, encode

RED, BLUE = (255, 0, 0), (0, 0, 255)
TERMS = (SharedTerm("dog", 2, 9, 18), SharedTerm("cat", 1, 6, 6))


def cell(colour: Any = RED, relevant: bool = False, **changed: Any) -> Cell:
    item = Item("a.png", Image.new("RGB", (4, 4), colour), "")
    return Cell(item, 24.0, relevant, TERMS, ("dog", "cat"))._replace(**changed)


def strip(*cells: Cell, query: Item | None = None) -> Strip:
    return Strip(query or Item("q1", None, "a dog"), cells)


def drawn(tmp_path: Path, *shown: Strip, terms: int = 2) -> np.ndarray[Any, Any]:
    draw_sheet(shown, tmp_path / "sheet.png", terms)
    return np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB")).astype(int)


def near(pixel: Any, colour: Any) -> bool:
    return bool(np.abs(pixel - np.array(colour)).max() <= 8)


def test_a_sheet_is_as_wide_as_its_widest_strip():
    five, two = strip(*[cell()] * 5), strip(*[cell()] * 2)
    sheet = compute_layout([two, five], 5)
    # margins 24, the query 202, five times 256 and the gap of 14 before each
    assert sheet.width == 2 * 24 + 202 + 5 * (14 + 256)
    # picture 256, its name 40, five terms of 29, two lines of 24 of its own, and 36 to the next strip
    assert sheet.content == 256 + 40 + 5 * 29 + 2 * 24
    assert sheet.strip == sheet.content + 36
    assert sheet.height == 24 + 2 * sheet.strip + 17
    assert [sheet.top(0), sheet.top(1)] == [24, 24 + sheet.strip]
    assert [sheet.left(1), sheet.left(5)] == [24 + 202 + 14, 24 + 202 + 14 + 4 * 270]
    assert sheet.left(5) + 256 + 24 == sheet.width
    plain, judged = [strip(cell(RED))], [strip(cell(RED)), strip(cell(BLUE, relevant=True))]
    legends = strips.LEGEND, strips.JUDGED + strips.LEGEND, strips.LEGEND + strips.MAPPED
    assert tuple(write_legend(*given) for given in ((plain, False), (judged, False), (plain, True))) == legends


def test_pictures_frames_and_bars_are_where_the_layout_says(tmp_path):
    shown = [strip(cell(RED), cell(BLUE, relevant=True)), strip(cell(BLUE))]
    sheet = compute_layout(shown, 2, strips.write_legend(shown, maps=False))
    seen = drawn(tmp_path, *shown)
    assert seen.shape == (sheet.height, sheet.width, 3)
    middle = 24 + 128
    assert near(seen[middle, sheet.left(1) + 128], RED)
    assert near(seen[middle, sheet.left(2) + 128], BLUE)
    assert near(seen[sheet.top(1) + 128, sheet.left(1) + 128], BLUE)
    assert near(seen[middle, sheet.left(1) + 2], RED), "no frame around what is not relevant"
    assert near(seen[middle, sheet.left(2) + 2], (26, 127, 55)), "a green one around what is"
    # products of 18 and 6: the longest bar is as long as can be, the other a third of it
    longest = 256 - strips.NUMBER
    below = 24 + 256 + 40 + 2
    bar = (207, 227, 251)
    assert near(seen[below, sheet.left(1) + longest - 2], bar)
    assert not near(seen[below, sheet.left(1) + longest + 2], bar)
    assert near(seen[below + 29, sheet.left(1) + longest // 3 - 2], bar)
    assert not near(seen[below + 29, sheet.left(1) + longest // 3 + 2], bar)


def test_the_same_strips_are_the_same_bytes_whatever_the_users_settings(tmp_path):
    shown = [strip(cell(relevant=True), cell(BLUE, item=Item("c", None, "two boats — zwei Boote ⛵")))]
    draw_sheet(shown, tmp_path / "a.png", 5)
    with matplotlib.rc_context({"font.family": "monospace", "savefig.dpi": 30, "text.usetex": False, "font.size": 40}):
        draw_sheet(shown, tmp_path / "b.png", 5)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.mode == "P" and "Software" not in sheet.info
    written = (tmp_path / "a.png").stat().st_ino
    draw_sheet(shown, tmp_path / "a.png", 5)
    assert (tmp_path / "a.png").stat().st_ino == written, "a disk that may only be read has the sheet"


def test_few_colours_keep_a_rare_one():
    def converted(pixels):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return np.asarray(Image.open(io.BytesIO(convert_colours(out.getvalue()))).convert("RGB")).astype(int)

    picture = np.random.default_rng(3).integers(110, 140, (256, 256, 3), dtype=np.uint8)
    picture[:4, :4] = (128, 0, 128)
    few = converted(picture)
    assert len(np.unique(few.reshape(-1, 3), axis=0)) <= 256
    assert np.abs(few[0, 0] - (128, 0, 128)).max() < 16
    photo = np.random.default_rng(3).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    assert (converted(photo) == photo).all(), "photos keep theirs"


def test_lines_are_as_wide_as_they_may_be():
    text = "three small crimson vessels sail below a lighthouse on the ocean at dusk"
    lines = wrap_text(text, 200, 24, 20)
    assert " ".join(lines) == text and all(measure_text(line, 24) <= 200 for line in lines)
    for line, after in zip(lines, lines[1:], strict=False):
        assert measure_text(f"{line} {after.split()[0]}", 24) > 200
    assert wrap_text("", 200, 24, 3) == []
    # A text with more lines ends in an ellipsis.
    text = "one two three four five six seven eight nine ten eleven twelve"
    whole = wrap_text(text, 120, 24, 99)
    cut = wrap_text(text, 120, 24, 2)
    assert len(whole) > 2 and cut[0] == whole[0] and measure_text(cut[1], 24) <= 120
    assert cut[1].endswith("…") and cut[1].removesuffix("…") in whole[1]
    assert wrap_text(text, 120, 24, len(whole)) == whole and wrap_text(text, 120, 24, 0) == []


def test_words_wider_than_a_line_go_on_in_the_next():
    lines = wrap_text("a " + "w" * 40 + " b", 100, 24, 99)
    assert "".join(lines).replace(" ", "") == "a" + "w" * 40 + "b"
    assert all(measure_text(line, 24) <= 100 for line in lines)
    assert wrap_text("ww", 1, 24, 9) == ["w", "w"], "at least a letter a line"
    cut = fit_text("a very long name of a picture.png", 100, 17)
    assert cut.endswith("…") and measure_text(cut, 17) <= 100 and fit_text("w", 1, 17) == "w"


def test_letters_that_the_font_lacks_are_told_once(tmp_path, caplog):
    draw_sheet([strip(cell(), query=Item("q", None, "Ελληνικά кот 船と犬 $x_1$"))], tmp_path / "sheet.png", 1)
    [told] = [record.getMessage() for record in caplog.records]
    assert told == "3 letters are not in DejaVu Sans; they are drawn as empty boxes"


def test_a_long_query_stays_in_its_strip(tmp_path):
    long = Item("q", Image.new("RGB", (9, 9), RED), "word " * 500)
    seen = drawn(tmp_path, strip(cell(), query=long), strip(cell()))
    sheet = compute_layout([strip(cell())], 2)
    between = seen[sheet.top(0) + sheet.content + 4 : sheet.top(1) - strips.SPACE * 6 // 10 - 2, : strips.QUERY]
    assert (between == 255).all()
    assert (drawn(tmp_path, strip()) < 200).any(), "without hits: the query and what is said of them"
    assert drawn(tmp_path, strip(cell(terms=(), own=(), score=0.0))).shape[0] > 256, "a hit without terms"


def write_run_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_topics_are_taken_evenly_and_their_hits_in_order(tmp_path):
    run = write_run_lines(tmp_path / "r", *(f"q{n} Q0 d 1 5 t" for n in range(10)))
    assert sample_queries(run, 2) == ["q2", "q7"]
    assert sample_queries(run, 99) == [f"q{n}" for n in range(10)]
    with pytest.raises(DataError, match="no line; nothing to show"):
        sample_queries(write_run_lines(tmp_path / "e"), 3)
    # Hits of topics with and without some.
    run = write_run_lines(tmp_path / "r", "q1 Q0 b 2 5 t", "q1 Q0 a 1 9 t", "q2 Q0 c 1 3 t")
    found = read_hits(run, ["q1", "q3"])
    assert [d.doc_id for d in found["q1"]] == ["a", "b"]
    assert found["q3"] == []
    with pytest.raises(DataError, match="an MS MARCO run holds no scores, write it with --output-format trec"):
        read_hits(write_run_lines(tmp_path / "three", "q1\ta\t1"), ["q1"])


def test_items(tmp_path):
    Image.new("RGB", (2, 2), RED).save(tmp_path / "a.png")
    picture = make_item(Document("d", image=str(tmp_path / "a.png")))
    assert picture.name == "a.png" and picture.image is not None
    assert make_item(Document("d", title="T", text="x")) == Item("d", None, "T x")
    assert make_item(Topic("q", "x")) == Item("q", None, "x")
    with pytest.raises(DataError, match=r"none\.png: cannot be read"):
        make_item(Document("d", image=str(tmp_path / "none.png")))


@pytest.mark.parametrize(("direction", "split"), [("image-to-text", "test"), ("text-to-image", "val")])
def test_a_run_over_another_index_is_refused(tmp_path, monkeypatch, direction, split):
    about = Manifest("impact", {}, {"name": "demo", "split": split, "direction": direction}, {})
    run = write_run_lines(tmp_path / "r.trec", "q1 Q0 a 1 9 t")
    assert answers.resolve_corpus(run, about, None).direction == direction, "without a manifest, the index's"
    known = SimpleNamespace(corpus=CorpusRef("demo", "test", direction="text-to-image"))
    monkeypatch.setattr("eval.report.answers.describe_run", lambda path: known)
    with pytest.raises(UsageError, match=f"the index is of ({direction}|{split})"):
        answers.resolve_corpus(run, about, None)


SHOWN = [Document("d1", text="a dog and a cat"), Document("d2", text="Ein Boot, ein Hündchen — 犬"), Document("d3")]
ASKED = [Topic("q1", "dog cat"), Topic("q2", "zebra")]


class ToySheet(Toy):
    def __init__(self) -> None:
        super().__init__(["boat", "cat", "dog", "zebra"])
        self.encode_document = lambda documents: [document.text for document in documents]

    def decode(self, weights: Any, top_k: int) -> list[list[tuple[str, float]]]:
        return [[(word, 1.0) for word in (text or "").split()[:top_k]] for text in weights]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(lexvl_anserini.searching.shared_terms, "encode_queries", encode)
    vectors = [("d1", {"dog": 9, "cat": 1}), ("d2", {"dog": 3, "boat": 2}), ("d3", {})]
    write_shards(tmp_path / "shards", vectors, terms=["boat", "cat", "dog", "zebra"])
    return build_index(tmp_path / "shards", tmp_path / "index")


DATASET = Dataset(
    "toy", "test", lambda: iter(SHOWN), lambda: iter(ASKED), lambda: iter([Qrel("q1", "d2", 1), Qrel("q1", "d1", 0)])
)


def test_topics_hits_and_their_terms(tmp_path, index, caplog):
    run = write_run_lines(tmp_path / "r.trec", "q1 Q0 d1 1 10 t", "q1 Q0 d2 2 3 t")
    [first, second] = make_run_strips(DATASET, index, ToySheet(), run, ["q1", "q2"], DEFAULT_HITS)
    assert [(c.item.name, c.score, c.relevant) for c in first.cells] == [("d1", 10.0, False), ("d2", 3.0, True)]
    assert first.cells[0].terms == (SharedTerm("dog", 1, 9, 9), SharedTerm("cat", 1, 1, 1))
    assert first.cells[1].own == ["Ein", "Boot,", "ein", "Hündchen", "—", "犬"]
    assert first.rank_note == "relevant at rank 2"
    assert second == Strip(Item("q2", None, "zebra"), (), "not among 0 hits")
    assert not caplog.records
    other = write_run_lines(tmp_path / "other.trec", "q1 Q0 d1 1 99 t")
    make_run_strips(DATASET, index, ToySheet(), other, ["q1"], 5)
    assert "1 of 1 documents have another score there (d1: 99, here 10)" in caplog.text
    [only] = make_run_strips(DATASET, index, ToySheet(), run, ["q1"], 1)
    assert len(only.cells) == 1 and only.rank_note == "relevant at rank 2", "also of a hit that is not shown"
    draw_sheet([first, second], tmp_path / "sheet.png", 5)
    width = compute_layout([first], 5, write_legend([first], maps=False)).width
    assert Image.open(tmp_path / "sheet.png").width == width


def test_queries_that_were_typed(tmp_path, index):
    [dogs, boat] = make_query_strips(DATASET, index, ToySheet(), ["dog", "boat"], 5)
    assert [(c.item.name, c.score, c.relevant) for c in dogs.cells] == [("d1", 9, False), ("d2", 3, False)]
    assert boat.query == Item("", None, "boat") and boat.rank_note == ""
    assert [(c.item.name, c.terms) for c in boat.cells] == [("d2", (SharedTerm("boat", 1, 2, 2),))]
    draw_sheet([dogs, boat], tmp_path / "sheet.png", 5)
    with pytest.raises(UsageError, match="a text that is not empty"):
        make_query_strips(DATASET, index, ToySheet(), [" "], 5)
    other = replace(DATASET, documents=lambda: iter(SHOWN[1:]))
    with pytest.raises(DataError, match="'d1' is no longer in toy; encode and index it again"):
        make_query_strips(other, index, ToySheet(), ["dog"], 5)


@pytest.mark.parametrize("given", [(), ("--run", "a.trec", "--query", "dog"), ("--query", "dog", "--query-id", "q1")])
def test_a_run_or_queries(index, given):
    with pytest.raises(UsageError, match="give --run FILE .*, or --query TEXT"):
        invoked(command, "--index", index.path, *given)


@pytest.mark.parametrize(("query_id", "doc_id", "missing"), [("q1", "elsewhere", "elsewhere"), ("q9", "d1", "q9")])
def test_runs_of_another_data_set(tmp_path, index, query_id, doc_id, missing):
    run = write_run_lines(tmp_path / "r.trec", f"{query_id} Q0 {doc_id} 1 9 t")
    with pytest.raises(DataError, match=f"'{missing}' is not in toy/test; another dataset's run?"):
        make_run_strips(DATASET, index, ToySheet(), run, [query_id], 5)


def colours(grid=2):
    tower = colour_tower(grid)
    return Encoder("colours", "impact", query=tower, document=tower)


def hit(image, *terms):
    return Cell(Item("a.png", image, ""), 9.0, False, [SharedTerm(term, 2, 1, 2) for term in terms], ())


def saturation(picture):
    picture = np.asarray(picture).astype(int)
    return picture.max(axis=2) - picture.min(axis=2)


def test_colours_stay_where_the_shared_terms_are():
    image = painted(80, 40, green=(0, 0, 20, 40), red=(20, 0, 40, 20), blue=(40, 20, 60, 40))
    hits = (hit(image, "red"), hit(image, "blue"), hit(image, "red", "blue"), hit(image))
    [strip] = with_maps([Strip(Item("q", None, "red"), hits)], colours())
    red, blue, both, neither = (saturation(one.item.image) for one in strip.cells)
    assert red[2, 22] == 255 and red[38, 58] == 0
    assert blue[2, 22] == 0 and blue[38, 58] == 255
    assert both[2, 22] == both[38, 58] == 255
    assert not neither.any(), "no shared term: all is pale"
    assert not both[:, :19].any(), "left of the crop, which the model does not see, all is pale"
    assert [one.terms for one in strip.cells] == [one.terms for one in hits]
    # A large image is made smaller.
    large = hit(painted(3000, 1500, red=(0, 0, 9, 9)), "red")
    [strip] = with_maps([Strip(Item("q", None, "red"), (large,))], colours())
    assert strip.cells[0].item.image.size == (answers.SIDE, answers.SIDE // 2)


def test_texts_have_no_maps():
    tower = colour_tower(2)
    with pytest.raises(UsageError, match="the documents of this index are texts; maps are drawn over images"):
        with_maps([], Encoder("pictures", "impact", query=tower, document=object()))
    with pytest.raises(UsageError, match="'words' has no image side that pools over patches; maps need one"):
        with_maps([], Encoder("words", "impact", query=object(), document=object()))


def test_the_command_draws_maps(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    painted(60, 30, red=(0, 0, 30, 30)).save(folder / "a.png")
    dataset = load_dataset(f"folder:{folder}")
    write_impacts(dataset, load_encoder("vdr-crossmodal", checkpoint="demo-vdr", device="cpu"), tmp_path / "shards")
    index = build_index(tmp_path / "shards", tmp_path / "index")
    sheets = [tmp_path / "plain.png", tmp_path / "maps.png"]
    for sheet, option in zip(sheets, ([], ["--maps"]), strict=True):
        asked = ["--index", index.path, "--query", "a red boat", "--device", "cpu", "--output", sheet]
        invoked(command, *asked, *option)
    plain, maps = (Image.open(sheet).convert("RGB") for sheet in sheets)
    strips = [Strip(Item("", None, ""), [hit(None, "boat")])]
    assert maps.width == compute_layout(strips, 5, write_legend(strips, maps=True)).width > plain.width
    left, top = 24 + 202 + 14, 24  # of the hit; its image fills the middle half of the square's height
    boxes = [np.asarray(sheet)[top + 70 : top + 180, left + 5 : left + 250] for sheet in (plain, maps)]
    assert saturation(boxes[1]).sum() < saturation(boxes[0]).sum()
    assert not saturation(np.asarray(plain)[top : top + 60, left : left + 250]).any(), "not stretched to a square"
