"""Contact sheets with maps: hits keep their colours where the shared terms are."""

from __future__ import annotations

import numpy as np
import pytest
from colour_towers import colour_tower, painted
from PIL import Image
from typer.testing import CliRunner

from eval.report.answers import SIDE, with_maps
from eval.report.strips import Cell, Item, Strip, layout, legend_of
from eval.sheet import command
from lexvl_anserini.cli import make_app
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.shared_terms import SharedTerm
from lexvl_anserini.shards.writing import write_impacts


def model(grid=2):
    tower = colour_tower(grid)
    return Encoder("colours", "impact", query=tower, document=tower)


def cell(image, *terms):
    return Cell(Item("a.png", image, ""), 9.0, False, [SharedTerm(term, 2, 1, 2) for term in terms], ())


def saturation(picture):
    picture = np.asarray(picture).astype(int)
    return picture.max(axis=2) - picture.min(axis=2)


def test_colours_stay_where_the_shared_terms_are():
    image = painted(80, 40, green=(0, 0, 20, 40), red=(20, 0, 40, 20), blue=(40, 20, 60, 40))
    hits = (cell(image, "red"), cell(image, "blue"), cell(image, "red", "blue"), cell(image))
    [strip] = with_maps([Strip(Item("q", None, "red"), hits)], model())
    red, blue, both, neither = (saturation(one.item.image) for one in strip.cells)
    assert red[2, 22] == 255 and red[38, 58] == 0
    assert blue[2, 22] == 0 and blue[38, 58] == 255
    assert both[2, 22] == both[38, 58] == 255
    assert not neither.any(), "no shared term: all is pale"
    assert not both[:, :19].any(), "left of the crop, which the model does not see, all is pale"
    assert [one.terms for one in strip.cells] == [one.terms for one in hits]


def test_a_large_image_is_made_smaller():
    [strip] = with_maps([Strip(Item("q", None, "red"), (cell(painted(3000, 1500, red=(0, 0, 9, 9)), "red"),))], model())
    assert strip.cells[0].item.image.size == (SIDE, SIDE // 2)


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
    arguments = ["--index", str(index.path), "--query", "a red boat", "--device", "cpu"]
    sheets = [tmp_path / "plain.png", tmp_path / "maps.png"]
    for sheet, option in zip(sheets, ([], ["--maps"]), strict=True):
        done = CliRunner().invoke(make_app(command), [*arguments, *option, "--output", str(sheet)])
        assert done.exit_code == 0, done.output
    plain, maps = (Image.open(sheet).convert("RGB") for sheet in sheets)
    strips = [Strip(Item("", None, ""), [cell(None, "boat")])]
    assert maps.width == layout(strips, 5, legend_of(strips, maps=True)).width > plain.width
    left, top = 24 + 202 + 14, 24  # of the hit; its image fills the middle half of the square's height
    boxes = [np.asarray(sheet)[top + 70 : top + 180, left + 5 : left + 250] for sheet in (plain, maps)]
    assert saturation(boxes[1]).sum() < saturation(boxes[0]).sum()
    assert not saturation(np.asarray(plain)[top : top + 60, left : left + 250]).any(), "not stretched to a square"
