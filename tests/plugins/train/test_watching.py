"""What a run reports of itself: the log, examples, the best checkpoint, early stopping, collapse, NaN."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_model

from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common import learner as loss
from lexvl_plugins.train.common.learner import find_collapses, measure_batch, measure_likeness
from lexvl_plugins.train.common.tower_pair import TextStore
from lexvl_plugins.train.loop import draw_curve, make_panels, train
from lexvl_plugins.train.objectives.contrastive import Encoded
from lexvl_plugins.train.recipe import check_recipe
from lexvl_plugins.train.run_folder import read_best
from lexvl_plugins.train.splits import Sources
from lexvl_plugins.train.texts.material import TextMaterial, TextValidation
from tests.plugins.train.test_run_folder import recipe_of as recipe_of_images
from tests.plugins.train.test_texts import loaded, recipe_of
from tests.plugins.train.tiny_training import rows_of


def regularised(corpus: str, **changes: Any) -> Any:
    """SPLADE in four steps with a penalty, a validation and a log line at each."""
    flops = {"name": "flops", "side": "query", "weight": 0.01, "ramp": "n"}
    return recipe_of(corpus, "splade", regularisers=[flops], **{"validate_every": 1, **changes})


def test_the_log_names_losses_and_says_what_vectors_are_like(texts: str, tmp_path: Path) -> None:
    train(regularised(texts), tmp_path, device="cpu")
    rows = rows_of(tmp_path)
    steps = [row for row in rows if "loss" in row]
    assert len(steps) == 4
    for row in steps:
        assert row["losses"].keys() == {"info_nce", "flops_query"}
        assert sum(row["losses"].values()) == pytest.approx(row["loss"], rel=1e-3)
        assert row["query_flops"] > 0 and row["query_terms"] > 0 and 0 <= row["document_alike"] <= 1
    assert [row["score"] for row in rows if "score" in row] == [row["nDCG@10"] for row in rows if "score" in row]
    draw_curve(tmp_path / "log.jsonl", tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.format == "PNG" and picture.width > 1000


def test_the_panels_of_a_curve_by_hand() -> None:
    rows = [
        {"step": 1, "loss": 3.0, "learning_rate": 0.1, "seconds": 1, "losses": {"vdr": 2.0}, "query_terms": 5.0},
        {"step": 1, "temperature": 1.0, "nDCG@10": 0.5, "mean_query_terms": 4.0, "score": 0.5},
        {"step": 2, "stopped": "early"},
    ]
    assert make_panels(rows) == {
        "losses": {"vdr": [(1, 2.0)], "loss": [(1, 3.0)]},
        "active terms": {"query_terms": [(1, 5.0)], "mean_query_terms": [(1, 4.0)]},
        "validation": {"nDCG@10": [(1, 0.5)]},
    }


def test_examples_have_their_heaviest_terms(texts: str, images: str, tmp_path: Path) -> None:
    folder = train(regularised(texts, validate_every=2), tmp_path / "texts", device="cpu")
    rows = rows_of(tmp_path / "texts", "examples.jsonl")
    assert [row["step"] for row in rows] == [2] * 6 + [4] * 6  # three held-out queries, each with its positive
    last = [row for row in rows if row["step"] == 4 and row["side"] == "query"]
    encoder = loaded("splade", folder)
    expected = encoder.decode(encoder.query.weights([row["name"] for row in last]), top_k=10)
    assert [[term for term, _ in row["terms"]] for row in last] == [[term for term, _ in terms] for terms in expected]
    train(recipe_of_images(images), tmp_path / "images", device="cpu")
    rows = rows_of(tmp_path / "images", "examples.jsonl")
    names = ["a red square", "a green square", "a blue square", "a white square", "4", "5", "6", "7"]
    assert [row["name"] for row in rows] == names
    # Of these captions, only one word is frequent enough to be a term.
    assert all(row["active"] == 1 and row["terms"][0][0] == "square" for row in rows)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The scores of the validations to come."""
    coming: list[float] = []
    monkeypatch.setattr(TextValidation, "score", lambda self, figures: coming.pop(0))
    return coming


def test_the_best_checkpoint_is_that_of_the_best_validation(scores: list[float], texts: str, tmp_path: Path) -> None:
    recipe = regularised(texts)
    scores[:] = [0.1, 0.4, 0.4]
    train(recipe, tmp_path, device="cpu", stop_after=3)
    assert read_best(tmp_path) == (2, 0.4)
    material = TextMaterial.read(recipe, tmp_path / "made", Sources.read(recipe, None, tmp_path))
    pair = material.make_pair(recipe, torch.device("cpu"))
    load_model(pair, str(tmp_path / "best.safetensors"))
    scores[:] = [0.3]
    train(recipe, tmp_path, device="cpu")
    about = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("best", "model")]
    assert [content["validation"]["step"] for content in about] == [2, 4]
    assert not (tmp_path / "best.safetensors").exists()
    rows = material.query.read_queries(["a red boat"])
    batch = TextStore.make(rows, pair.encoder_q.columns, 0, torch.device("cpu")).read_batch(np.arange(1))
    with torch.inference_mode():
        expected = pair.eval().encoder_q(batch).numpy()
    towers = [as_lexical(loaded("splade", tmp_path / name).query) for name in ("best", "model")]
    found = [tower.dense_weights(["a red boat"]) for tower in towers]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    assert np.abs(found[1] - expected).max() > 1e-4


@pytest.mark.parametrize("stop", [None, 1, 2])
def test_a_stage_ends_where_validation_does_not_improve(stop, scores, texts, tmp_path):
    """The best is that of step 1; two more end the stage of four steps at step 3, and the next one begins at step 4."""
    plan = {"steps": 4, "batch_size": 3, "patience": 2}
    stage = {"objective": {"name": "info_nce"}, "optimisation": plan}
    content = recipe_of(texts, "dpr").model_dump(mode="json") | {"validate_every": 1, "stages": [stage, stage]}
    recipe = check_recipe(content, "tiny.yaml")
    scores[:] = [0.5, 0.4, 0.5, 0.1, 0.2, 0.3, 0.4]
    if stop:
        train(recipe, tmp_path, device="cpu", stop_after=stop)
    train(recipe, tmp_path, device="cpu")
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows if "score" in row] == [1, 2, 3, 5, 6, 7, 8] and scores == []
    assert [row["step"] for row in rows if "stopped" in row] == [3]
    assert (tmp_path / "best").is_dir()


def failing(encoded: Encoded, gradient: bool = False) -> torch.Tensor:
    """A loss of no number at the second step; or of 0, whose gradients are none."""
    value = encoded.query.sum() * 0
    return value.sqrt() if gradient else value / 0


@pytest.mark.parametrize(
    ("options", "found"), [({}, "the loss is nan"), ({"gradient": True}, "the gradients are not finite")]
)
def test_a_loss_of_no_number_stops_with_the_batch(options, found, texts, tmp_path, monkeypatch):
    for table in ("lexvl_plugins.train.common.learner", "lexvl_plugins.train.recipe"):
        monkeypatch.setattr(f"{table}.OBJECTIVES", {**loss.OBJECTIVES, "failing": loss.LossRow(failing)})
    recipe = recipe_of(texts, "dpr", objective={"name": "failing", "options": options})
    with pytest.raises(UsageError, match=f"step 0: {found}; .*failed-batch.json has the batch") as error:
        train(recipe, tmp_path, device="cpu")
    assert "\n" not in str(error.value)
    batch = json.loads((tmp_path / "failed-batch.json").read_text())
    assert batch["step"] == 0 and len(batch["items"]) == 3 and batch["weights that are not finite"] == []
    assert all(item["query"].startswith("a ") and len(item["negatives"]) == 1 for item in batch["items"])
    assert batch["vectors that are not finite"] == {"query": [], "document": []}


def test_weights_of_no_number_are_named(images: str, tmp_path: Path) -> None:
    plan = {"steps": 4, "batch_size": 4, "warmup_steps": 1, "learning_rate": 1e30}
    with pytest.raises(UsageError, match="step 1: the loss is nan"):
        train(recipe_of_images(images, optimisation=plan), tmp_path, device="cpu")
    batch = json.loads((tmp_path / "failed-batch.json").read_text())
    assert batch["vectors that are not finite"]["query"] == [0, 1, 2, 3]
    assert [sorted(item) for item in batch["items"]] == [["captions", "id", "image"]] * 4


def test_how_alike_neighbours_are() -> None:
    """Rows 0 and 1 share one of two terms, 1 and 2 none, 2 and 0 none; a row of zeros shares none."""
    rows = torch.tensor([[1.0, 2, 0, 0], [3, 0, 1, 0], [0, 0, 0, 5]])
    assert measure_likeness(rows, lexical=True) == pytest.approx(1 / 6)
    assert measure_likeness(rows[:1].repeat(2, 1), lexical=True) == 1 and measure_likeness(rows * 0, lexical=True) == 0
    assert measure_likeness(torch.tensor([[1.0, 0], [1, 0]]), lexical=False) == 1
    assert measure_likeness(torch.tensor([[1.0, 0], [-2, 0]]), lexical=False) == -1


def collapsed(query: torch.Tensor, kind: str = "splade", settled: bool = True) -> list[str]:
    model = recipe_of("pairs:x.tsv", kind, {"topk": 3} if kind == "vdr" else {}).model
    found = measure_batch(Encoded(query, torch.eye(8)), model)
    return [line.split(";")[0] for line in find_collapses(found, query.shape[1], model, settled).values()]


def test_collapses_by_hand() -> None:
    healthy, same = torch.eye(8)[:3], torch.eye(8)[[2, 2, 2]]
    assert collapsed(healthy) == []
    assert collapsed(healthy * 0, settled=False) == ["vectors of queries are zero"]
    assert collapsed(healthy + 1) == ["vectors of queries have 8 of 8 terms"]
    assert collapsed(healthy + 1, settled=False) == collapsed(same, settled=False) == []
    assert collapsed(same) == ["queries have the same heaviest terms (query_alike 1)"]
    assert collapsed(same + 1, "vdr") == ["queries have the same heaviest terms (query_alike 1)"]
    assert collapsed(same, "dpr") == ["queries have the same vector (query_alike 1)"]


def test_a_collapse_is_one_warning(images, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("lexvl_plugins.train.loop.measure_batch", lambda encoded, model: {"query_terms": 0.0})
    with caplog.at_level(logging.WARNING):
        train(recipe_of_images(images, log_every=1), tmp_path, device="cpu")
    found = [record.message for record in caplog.records if "vectors of" in record.message]
    assert found == ["step 1: vectors of queries are zero; lower the weights of regularisers, or the learning rate"]
