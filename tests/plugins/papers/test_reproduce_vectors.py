"""Rows that are measured on vectors: terms of both sides, latency beside a dense twin, weights of single items."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from corpus_folders import COLOURS, coloured_coco
from PIL import Image
from tiny_encoders import made_stair

from eval.report.tables import Table, to_text
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_plugins.papers.prepared import Workplace, list_rows, prepare
from lexvl_plugins.papers.published import PublishedTable, load_published_tables, read_tables
from lexvl_plugins.papers.tables import CELLS, ReproducedCell, check_agreement, make_plan, reproduce_rows


def table_of(tmp_path: Path, text: str) -> PublishedTable:
    (tmp_path / "paper.yaml").write_text(f"paper: A\ntables:\n  t:\n    title: a table\n{text}", encoding="utf-8")
    [table] = read_tables(tmp_path / "paper.yaml")
    return table


def cells_of(table: PublishedTable, place: Workplace) -> list[ReproducedCell]:
    return [cell for cells in reproduce_rows(list_rows(table), place) for cell in cells]


SPARSE = """\
    columns: ["sparsity coco/test [query terms, document terms, FLOPS]"]
    unit: count
    rows: {STAIR: "<MOST ? ?"}
    systems: {STAIR: {encoder: stair}}
"""


def test_terms_of_both_sides_by_hand(golden, tmp_path):
    """Means of the terms of the captions and of the images."""
    weights, data = made_stair(golden, tmp_path), coloured_coco(tmp_path / "data")
    model = load_encoder("stair", str(weights), device="cpu")
    texts = model.encode_query([f"{word} {colour} picture" for colour in COLOURS for word in ("a", "the")])
    images = model.encode_document([str(data / f"coco/images/{colour}.png") for colour in COLOURS])
    flops = float(((texts > 0).mean(axis=0) @ (images > 0).mean(axis=0).T).item())

    def measured(most: int) -> list[ReproducedCell]:
        place = Workplace(tmp_path / "out", str(data), checkpoints={"STAIR": str(weights)})
        return cells_of(table_of(tmp_path, SPARSE.replace("MOST", str(most))), place)

    cells = measured(3000)
    # 8-bit impacts drop weights below half a step: never more terms than the floats have.
    assert 0 < cells[0].measured <= texts.nnz / 6 and 0 < cells[1].measured <= images.nnz / 3
    assert cells[0].measured == pytest.approx(texts.nnz / 6, rel=0.05)
    assert cells[2].measured == pytest.approx(flops, rel=0.1)
    assert [cell.published for cell in cells] == [3000, None, None]
    drawn = "drawn without a number; other weights"
    assert [cell.reason for cell in cells] == ["other weights", drawn, drawn]
    assert {cell.verdict for cell in cells} == {"not compared"}
    text = to_text(Table.make_columns(cells, CELLS))
    assert re.search(r"query terms +[0-9.]+ +<3000 +-", text) and re.search(r"FLOPS +[0-9.]+ +– +– +not compared", text)


def test_a_run_of_the_row_shares_the_encoded_documents(tmp_path):
    place = Workplace(tmp_path, checkpoints={"STAIR": "a/b"})
    of_terms, of_run = (
        prepare(part, place)
        for row in list_rows(load_published_tables()["stair-figure8"], "STAIR with 1e-3")
        for part in row.parts()
        if (part.task, part.data) in {("sparsity", "coco/test"), ("text-to-image", "coco/test")}
    )
    assert of_terms.names.documents == of_run.names.documents and of_terms.names.run != of_run.names.run
    # A bound is kept or not.
    first = next(cell for cell in load_published_tables()["stair-figure8"].cells if cell.bound)
    assert (first.value, first.label, first.quantity.measure) == (512, "STAIR with 1e-2", "query terms")
    assert check_agreement(511.9, first, 0) and not check_agreement(512.0, first, 0)


WEIGHED = """\
    data: our-pictures
    unit: "1"
    terms: {image of red: "boat 1.0, bear 2.0, nosuchword 0.5", caption: "boat 1.0"}
    systems:
      image of red: {encoder: stair, weights: STAIR, item: red}
      caption: {encoder: stair, weights: STAIR, text: a boat}
"""


def test_weights_of_the_users_pictures_and_of_texts(golden, tmp_path):
    """Both rows have one name of weights; a text needs no picture."""
    weights, data = made_stair(golden, tmp_path), coloured_coco(tmp_path / "data")
    table = table_of(tmp_path, WEIGHED)
    bare = Workplace(tmp_path / "out", checkpoints={"STAIR": str(weights)})
    assert (make_plan(table, bare).own, make_plan(table, bare).later) == (3, 0)
    skipped, caption = cells_of(table, bare)[0], cells_of(table, bare)[3]
    assert (skipped.verdict, skipped.reason) == ("skipped", "missing: our-pictures")
    model = load_encoder("stair", str(weights), device="cpu")

    def weights_of(vectors) -> dict[str, float]:
        [terms] = model.decode(vectors)
        return dict(terms)

    assert caption.measured == pytest.approx(weights_of(model.encode_query(["a boat"])).get("boat", 0))
    place = replace(bare, corpora={"our-pictures": str(data / "coco/images")})
    own = weights_of(model.encode_document([str(data / "coco/images/red.png")]))
    cells = cells_of(table, place)
    expected = [own.get(term, 0) for term in ("boat", "bear", "nosuchword")]
    assert [cell.measured for cell in cells[:3]] == pytest.approx(expected)
    assert any(cell.measured for cell in cells) and {cell.reason for cell in cells} == {"other weights"}
    (data / "coco/images/red.png").unlink()
    [need] = [need for need in make_plan(table, place).needs if need.kind == "data"]
    assert (need.here, need.origin) == (False, "--corpus our-pictures names the folder")


PROBE = """\
    columns: ["completeness coco/train [sentence pairs, complete sentence first]"]
    units: {completeness coco/train sentence pairs: count}
    rows: {STAIR: "2 50.0"}
    systems: {STAIR: {encoder: stair}}
"""


def annotated(folder: Path) -> None:
    """COCO's layout: a red image of a cat and a dog, a green one of a cat, a blue one of all three categories."""
    (folder / "coco/annotations").mkdir(parents=True)
    (folder / "coco/train2017").mkdir()
    content: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    content["categories"] = [{"id": n, "name": name} for n, name in enumerate(("cat", "dog", "bus"))]
    for number, (colour, categories) in enumerate(zip(COLOURS, ((0, 1), (0,), (0, 1, 2)), strict=True)):
        Image.new("RGB", (48, 48), colour).save(folder / f"coco/train2017/{colour}.png")
        content["images"].append({"id": number, "file_name": f"{colour}.png"})
        content["annotations"] += [{"image_id": number, "category_id": category} for category in categories]
    (folder / "coco/annotations/instances_train2017.json").write_text(json.dumps(content))


def test_the_completeness_probe_has_a_pair_per_object_that_is_left_out(golden, tmp_path):
    """Five pairs of two images; those with a complete sentence that is nearer, by the model's own vectors."""
    checkpoint = str(made_stair(golden, tmp_path / "stair"))
    table = table_of(tmp_path, PROBE)
    place = Workplace(tmp_path / "out", str(tmp_path / "data"), {"STAIR": checkpoint}, device="cpu")
    assert all(cell.verdict == "skipped" and "instances_train2017" in cell.reason for cell in cells_of(table, place))
    annotated(tmp_path / "data")
    pairs, share = cells_of(table, place)
    model = load_encoder("stair", checkpoint, device="cpu")
    before = 0
    for colour, names in (("red", ("cat", "dog")), ("blue", ("bus", "cat", "dog"))):
        image = model.document.dense_weights([str(tmp_path / f"data/coco/train2017/{colour}.png")])[0]
        whole = "a photo of " + ", ".join(f"a {name}" for name in names[:-1]) + f" and a {names[-1]}"
        for left_out in names:
            rest = [name for name in names if name != left_out]
            part = "a photo of " + " and ".join(f"a {name}" for name in rest)
            both = model.query.dense_weights([whole, part])
            complete, partial = both @ image / (both**2).sum(axis=1) ** 0.5
            before += complete > partial
    assert (pairs.measured, share.measured) == (5, pytest.approx(100 * before / 5))
    assert share.reason == "other weights"
    # `--limit` counts images, of which the probe needs two.
    few, _ = cells_of(table, replace(place, limit=1))
    assert few.verdict == "skipped" and few.reason.endswith("pairs of 1 images, expected at least 2")
