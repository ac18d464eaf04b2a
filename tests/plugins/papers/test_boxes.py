"""How terms spread: boxes of mean weights, evenness of the lists, terms of short and of long texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import COLOURS, captioned_image, coloured_coco
from matplotlib.cbook import boxplot_stats
from sklearn.preprocessing import normalize
from tiny_encoders import made_stair

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_plugins.papers.boxes import find_box
from lexvl_plugins.papers.prepared import Workplace
from lexvl_plugins.papers.retrieval import average_quarters, compute_evenness
from lexvl_plugins.papers.tables import make_plan
from tests.plugins.papers.test_reproduce_vectors import cells_of, table_of


def test_evenness_by_hand():
    """Lists of 2, 1 and 1 documents in a vocabulary of 4: (1/2 ln 2 + 2 x 1/4 ln 4) / ln 4 = 3/4."""
    assert compute_evenness([2, 1, 1], 4) == pytest.approx(0.75)
    assert compute_evenness([7, 7, 7, 7], 4) == pytest.approx(1) and compute_evenness([3, 0], 2) == 0
    assert compute_evenness([5, 5], 4) == pytest.approx(0.5) and compute_evenness([5], 1) == 0


def test_quarters_by_hand():
    """Eight texts: two are a quarter, and the third has as many words as the second."""
    words, terms = [9, 2, 5, 1, 2, 3, 8, 5], [40, 5, 9, 3, 7, 9, 20, 9]
    assert average_quarters(words, terms) == (5, 30)
    assert average_quarters([4, 4, 4], [1, 2, 6]) == (3, 3) and average_quarters([1, 2], [3, 5]) == (3, 5)


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, 100], [0.5], [3, 3, 3, 9], list(np.geomspace(1, 50, 100))])
def test_boxes_are_those_that_are_drawn(values):
    [drawn] = boxplot_stats(values)
    assert find_box(values) == pytest.approx((drawn["med"], drawn["whishi"]))


SPREAD = """\
    columns:
      - "distribution coco/test [images mean, images median, images first 100]"
      - "distribution coco/test [texts mean, texts upper whisker, texts first 100]"
      - "sparsity coco/test [evenness, terms of the shortest quarter, terms of the longest quarter]"
    unit: "1"
    rows: {STAIR: "? ? ? ? ? ? ? ? ?"}
    systems: {STAIR: {encoder: stair}}
"""


def write_captions(folder: Path) -> Path:
    """Coloured pictures whose captions have 2, 3, ... 9 words."""
    data = coloured_coco(folder)
    texts = ["red dog", "a red dog", "a red dog runs"], ["a blue boat on water", "a small blue boat on water"], []
    texts[2].extend([f"the {'very ' * more}green bus on the street" for more in (1, 2, 3)])
    images = [
        captioned_image(number, texts=own, first=10 * number, filename=f"{colour}.png")
        for number, (own, colour) in enumerate(zip(texts, COLOURS, strict=True))
    ]
    (data / "coco/dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return data


def test_both_sides_of_a_model(golden, tmp_path):
    """As from the model's floats: 8-bit impacts move means a little."""
    weights, data = str(made_stair(golden, tmp_path)), write_captions(tmp_path / "data")
    place = Workplace(tmp_path / "out", str(data), checkpoints={"STAIR": weights}, device="cpu")
    table = table_of(tmp_path, SPREAD)
    assert make_plan(table, place).runs == 9
    cells = {cell.quantity.split("coco/test ")[1]: cell.measured for cell in cells_of(table, place)}
    model, records = (
        load_encoder("stair", weights, device="cpu"),
        json.loads((data / "coco/dataset_coco.json").read_text()),
    )
    texts = [sentence["raw"] for image in records["images"] for sentence in image["sentences"]]
    vectors = {
        "images": model.encode_document([str(data / f"coco/images/{colour}.png") for colour in COLOURS]),
        "texts": model.encode_query(texts),
    }
    for side, rows in vectors.items():
        means = np.asarray(normalize(rows).mean(axis=0)).ravel()
        first = np.sort(means)[::-1][:100]
        assert cells[f"{side} mean"] == pytest.approx(first.mean(), rel=0.02)
        assert cells[f"{side} first 100"] == pytest.approx(first.sum() / means.sum(), rel=0.02)
    terms = (vectors["texts"] > 0).sum(axis=1).A1
    assert cells["terms of the shortest quarter"] == pytest.approx(terms[[0, 1]].mean(), rel=0.05)
    assert cells["terms of the longest quarter"] == pytest.approx(terms[[6, 7]].mean(), rel=0.05)
    assert 0 < cells["evenness"] < 1 and 0 < cells["images median"] < cells["texts upper whisker"] * 10
    folders = sorted(path.name.split(".")[1] for path in (tmp_path / "out/impacts").iterdir())
    assert folders == ["image-to-text", "text-to-image"], "each side is encoded once, in the folder of its direction"
