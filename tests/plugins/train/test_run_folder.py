"""The folder of a training run: its request, what may be deleted, damaged and hostile runs, and what a run reports."""

import errno
import json
import logging
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_model
from tiny_encoders import Runs
from torch import nn
from typer.testing import CliRunner

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_plugins.train.common import learner as loss
from lexvl_plugins.train.common.learner import find_collapses, measure_batch, measure_likeness
from lexvl_plugins.train.common.processes import make_accelerator
from lexvl_plugins.train.common.tower_pair import TextStore
from lexvl_plugins.train.images.captioned import CaptionedImages, read_captioned
from lexvl_plugins.train.loop import draw_curve, make_panels, train
from lexvl_plugins.train.objectives.contrastive import Encoded
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from lexvl_plugins.train.run_folder import OURS, TrainingState, clear, read_best, reserve, resume, save_state, tidy
from lexvl_plugins.train.splits import Sources, check
from lexvl_plugins.train.texts.material import TextMaterial, TextValidation
from tests.plugins.train.test_texts import loaded
from tests.plugins.train.test_texts import recipe_of as recipe_of_texts
from tests.plugins.train.tiny_training import rows_of, same_weights, tiny_recipe, write_plain_squares

AT_THE_END = {"best", "best.safetensors", "curve.png", "failed-batch.json"}
DATA = {"training": "a", "validation": "b"}


def recipe_of(corpus: str, **changes: Any) -> Recipe:
    """A recipe of six steps; `changes` replace top-level entries."""
    tower = {"width": 8, "layers": 1, "heads": 2}
    sides = {"text": {**tower, "max_length": 8, "dropout": 0.1}, "image": {**tower, "resolution": 16, "patch_size": 8}}
    model = {"kind": "vdr-crossmodal", "topk": 4, **sides}
    objective = {"name": "vdr", "options": {"topk": 4}}
    plan = {"steps": 6, "batch_size": 4, "warmup_steps": 2}
    every = {"state_every": 2, "log_every": 4, "validate_every": 6}
    return tiny_recipe(corpus, model, **{"objective": objective, "optimisation": plan, **every, **changes})


@pytest.fixture(scope="module")
def trained(images: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    return train(recipe_of(images), tmp_path_factory.mktemp("trained"), device="cpu")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_files_does_not_change(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    (tmp_path / "model").mkdir()
    with pytest.raises(ArtefactError, match="not empty and not written by train; name another --output"):
        reserve(tmp_path, recipe_of("demo"), DATA, overwrite)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "thesis.tex"]


def test_overwrite_deletes_a_run_and_nothing_else(tmp_path: Path) -> None:
    reserve(tmp_path, recipe_of("demo"), DATA, overwrite=False)
    for name in ("notes.txt", "notes.part"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "state").mkdir()
    (tmp_path / "model.lexvl.part").mkdir()
    (tmp_path / "stored-pixels-training-0.npy").write_bytes(b"")
    (tmp_path / "stored-pixels-validation-0.npy.lexvl.part").write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "words").symlink_to(tmp_path / "elsewhere")
    reserve(tmp_path, recipe_of("demo", seed=7), DATA, overwrite=True)
    found = sorted(entry.name for entry in tmp_path.iterdir())
    assert found == ["data.json", "elsewhere", "notes.part", "notes.txt", "recipe.yaml"]
    tidy(tmp_path)
    assert found == sorted(entry.name for entry in tmp_path.iterdir())


def test_clear_deletes_all_files_of_a_run(images: str, tmp_path: Path) -> None:
    train(recipe_of(images), tmp_path, device="cpu", stop_after=5, keep_every="epoch")
    assert {entry.name for entry in tmp_path.iterdir()} >= set(OURS) - {"model", "network", "stored-*", *AT_THE_END}
    clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_recipe_replaces_a_run_without_states(tmp_path: Path) -> None:
    for seed in (12345, 7):
        reserve(tmp_path, recipe_of("demo", seed=seed), DATA, overwrite=False)
    (tmp_path / "state").mkdir()
    with pytest.raises(ArtefactError, match="a run of another request .seed: 7 found, 8 requested.; --overwrite"):
        reserve(tmp_path, recipe_of("demo", seed=8), DATA, overwrite=False)


@pytest.mark.parametrize("text", ["", "name: [", "name: tiny\n", "\xff"])
def test_a_damaged_recipe_raises(text: str, tmp_path: Path) -> None:
    reserve(tmp_path, recipe_of("demo"), DATA, overwrite=False)
    (tmp_path / "state").mkdir()
    (tmp_path / "recipe.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(ArtefactError, match=r"unreadable .*recipe.yaml.*--overwrite replaces it") as error:
        reserve(tmp_path, recipe_of("demo"), DATA, overwrite=False)
    assert "\n" not in str(error.value)
    reserve(tmp_path, recipe_of("demo"), DATA, overwrite=True)


@pytest.mark.parametrize("stop", [2, None])
def test_other_images_or_captions_raise(stop: int | None, tmp_path: Path) -> None:
    corpus, output = write_plain_squares(tmp_path / "corpus"), tmp_path / "run"
    train(recipe_of(corpus), output, device="cpu", stop_after=stop)
    write_plain_squares(tmp_path / "corpus")  # the same data, written again
    train(recipe_of(corpus), output, device="cpu", stop_after=stop)
    Image.new("RGB", (16, 16)).save(tmp_path / "corpus" / "5.png")
    with pytest.raises(ArtefactError, match="content of validation: .* found, .* requested.; --overwrite"):
        train(recipe_of(corpus), output, device="cpu")
    write_plain_squares(tmp_path / "corpus", last="a snowy square")
    with pytest.raises(ArtefactError, match="content of training: .*content of validation: "):
        train(recipe_of(corpus), output, device="cpu")
    train(recipe_of(corpus), output, device="cpu", overwrite=True)


def test_the_digest_depends_on_content_and_not_on_the_folder(tmp_path: Path) -> None:
    def of(folder: str, **changes: str) -> str:
        name = write_plain_squares(tmp_path / folder, **changes)
        return read_captioned(load_dataset(name, "train", direction="text-to-image")).digest()

    assert of("here") == of("there") != of("other", last="a snowy square")
    with pytest.raises(DataError, match="gone.png: cannot be read"):
        CaptionedImages(["gone"], [str(tmp_path / "gone.png")], [["a square"]]).digest()


def test_outputs_and_devices_that_cannot_be_used(images: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="file: cannot be written .*choose another output"):
        train(recipe_of(images), tmp_path / "file", device="cpu")
    for device in ["nonsense"] if torch.cuda.is_available() else ["nonsense", "cuda"]:
        for call in (lambda recipe, device: train(recipe, tmp_path, device=device), partial(check, data_dir=None)):
            with pytest.raises(UsageError, match=f"device '{device}' cannot be used here"):
                call(recipe_of(images), device=device)


def test_check_reads_both_splits(images: str) -> None:
    check(recipe_of(images), None, "cpu")
    for key in ("split", "validation"):
        with pytest.raises(DataError, match="no image of split 'nowhere'"):
            check(recipe_of(images, data={"corpus": images, key: "nowhere"}), None, "cpu")


def test_precisions_may_differ_within_a_process() -> None:
    cpu = torch.device("cpu")
    assert make_accelerator(cpu, "bf16").mixed_precision == "bf16"
    assert make_accelerator(cpu, "no").mixed_precision == "no"
    with pytest.raises(UsageError, match="precision fp16: cpu does not compute in it; expected no or bf16"):
        make_accelerator(cpu, "fp16")
    assert make_accelerator(cpu, "no").device == cpu


def test_a_run_in_half_precision_trains(images: str, trained: Path, tmp_path: Path) -> None:
    assert not same_weights(train(recipe_of(images, precision="bf16"), tmp_path, device="cpu"), trained)


def test_a_run_stops_at_a_step_or_at_once_if_beyond_it(images: str, trained: Path, tmp_path: Path) -> None:
    assert train(recipe_of(images), tmp_path, device="cpu", stop_after=5) == tmp_path / "state"
    assert train(recipe_of(images), tmp_path, device="cpu", stop_after=3) == tmp_path / "state"
    assert not (tmp_path / "model").exists()
    assert same_weights(train(recipe_of(images), tmp_path, device="cpu", stop_after=6), trained)


def test_the_log_resumes(images: str, trained: Path, tmp_path: Path) -> None:
    train(recipe_of(images), tmp_path, device="cpu", stop_after=3)  # one step before a line
    state = tmp_path / "state" / "step.json"
    content = json.loads(state.read_bytes())
    assert content["step"] == len(content["losses"]) == 3
    state.write_text(json.dumps({**content, "seconds": content["seconds"] + 1000}))
    (state.parent / "digests.json").unlink()
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(b'{"step": 4, "lo{"step": 4, "loss": 1}\n')  # a write that failed in the middle
    train(recipe_of(images), tmp_path, device="cpu")

    def losses(folder: Path) -> list[Any]:
        return [(row["step"], row["loss"]) for row in rows_of(folder) if "loss" in row]

    assert losses(tmp_path) == losses(trained.parent) and len(losses(tmp_path)) == 2
    assert all(row["seconds"] >= 1000 for row in rows_of(tmp_path) if "seconds" in row)


def test_a_damaged_state_falls_back_to_the_one_before(images: str, trained: Path, tmp_path: Path) -> None:
    train(recipe_of(images), tmp_path, device="cpu", stop_after=5)
    for name, length in (("model.safetensors", 100), ("step.json", 3)):
        whole = (tmp_path / "state" / name).read_bytes()
        (tmp_path / "state" / name).write_bytes(whole[:length])
        train(recipe_of(images), tmp_path, device="cpu", stop_after=5)
    for state in ("state", "state.old"):
        (tmp_path / state / "optimizer.bin").write_bytes(b"")
    with pytest.raises(ArtefactError, match="state: a damaged state .*state.old: .*--overwrite starts again") as error:
        train(recipe_of(images), tmp_path, device="cpu")
    assert "\n" not in str(error.value)
    model = train(recipe_of(images), tmp_path, device="cpu", overwrite=True)
    assert same_weights(model, trained)


@pytest.mark.parametrize("name", ["random_states_0.pkl", "model.safetensors", "step.json"])
def test_a_state_is_that_which_was_written_or_none(name: str, images: str, trained: Path, tmp_path: Path) -> None:
    """Without its random states accelerate goes on, and other weights or steps of the same form are valid too."""
    train(recipe_of(images), tmp_path, device="cpu", stop_after=3)
    for state in ("state", "state.old"):
        if name.startswith("random"):
            (tmp_path / state / name).unlink()
        else:
            data = bytearray((tmp_path / state / name).read_bytes())
            data[data.index(b"2" if state == "state.old" else b"3") if name == "step.json" else -1] ^= 1
            (tmp_path / state / name).write_bytes(data)
        if state == "state":
            resumed = tmp_path.with_name(tmp_path.name + "-resumed")
            shutil.copytree(tmp_path, resumed)
            assert same_weights(train(recipe_of(images), resumed, device="cpu"), trained)
    with pytest.raises(ArtefactError, match=f"state: a damaged state .*{name}: missing, or not as written.*state.old"):
        train(recipe_of(images), tmp_path, device="cpu")


def test_an_old_state_that_cannot_be_deleted_is_one_line(images, tmp_path, monkeypatch):
    train(recipe_of(images), tmp_path, device="cpu", stop_after=3)
    remove = os.unlink

    def failing(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).endswith("optimizer.bin"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        remove(path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(ArtefactError, match=r"state\.old.*: cannot be written"):
        patch.setattr(os, "unlink", failing)
        train(recipe_of(images), tmp_path, device="cpu", stop_after=5)


def test_the_command_prints_the_state_where_it_stopped(images: str, tmp_path: Path) -> None:
    import typer

    from lexvl_plugins.train.command import command

    app = typer.Typer()
    app.command()(command)
    (tmp_path / "tiny.yaml").write_text(json.dumps(recipe_of(images).model_dump(mode="json")))
    arguments = ["--recipe", str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "run"), "--format", "json"]
    arguments += ["--device", "cpu"]

    def printed(*more: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, *more])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    assert printed("--dry-run")["steps"] == 6 and not (tmp_path / "run").exists()
    assert printed("--stop-after", "1") == {"state": str(tmp_path / "run" / "state"), "step": 1}
    assert printed() == {"model": str(tmp_path / "run" / "model")}


def test_a_recipe_is_data(tmp_path):
    """YAML may name Python objects; an objective of a recipe is a row of a table."""

    for text in (f"!!python/object/apply:os.mkdir [{tmp_path / 'ran'}]", "objective: {name: 'os:mkdir'}"):
        (tmp_path / "recipe.yaml").write_text(text)
        with pytest.raises(LexvlError) as caught:
            read_recipe(tmp_path / "recipe.yaml")
        assert "recipe.yaml" in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["optimizer.bin", "random_states_0.pkl"])
def test_the_state_of_a_training_is_data(tmp_path, file):
    """A run folder from elsewhere, resumed: accelerate reads pickles."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    save_state(accelerator, tmp_path, TrainingState())
    (tmp_path / "state/digests.json").unlink()  # as a state of an older version, or with digests of its maker
    with open(tmp_path / "state" / file, "wb") as out:
        pickle.dump({"state": Runs(os.mkdir, str(tmp_path / "ran"))}, out, 2)
    if file == "optimizer.bin":  # accelerate goes on without random states
        with pytest.raises(ArtefactError, match=r"a damaged state \(UnpicklingError: more than plain data") as caught:
            resume(lambda _: accelerator, tmp_path)
        assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    else:
        resume(lambda _: accelerator, tmp_path)
    assert not (tmp_path / "ran").exists()


def regularised(corpus: str, **changes: Any) -> Any:
    """SPLADE in four steps with a penalty, a validation and a log line at each."""
    flops = {"name": "flops", "side": "query", "weight": 0.01, "ramp": "n"}
    return recipe_of_texts(corpus, "splade", regularisers=[flops], **{"validate_every": 1, **changes})


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
    train(recipe_of(images), tmp_path / "images", device="cpu")
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
    content = recipe_of_texts(texts, "dpr").model_dump(mode="json") | {"validate_every": 1, "stages": [stage, stage]}
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


@pytest.mark.parametrize(("gradient", "found"), [(False, "the loss is nan"), (True, "the gradients are not finite")])
def test_a_loss_of_no_number_stops_with_the_batch(gradient, found, texts, tmp_path, monkeypatch):
    for table in ("lexvl_plugins.train.common.learner", "lexvl_plugins.train.recipe"):
        monkeypatch.setattr(f"{table}.OBJECTIVES", {**loss.OBJECTIVES, "failing": loss.LossRow(failing)})
    recipe = recipe_of_texts(texts, "dpr", objective={"name": "failing", "options": {"gradient": gradient}})
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
        train(recipe_of(images, optimisation=plan), tmp_path, device="cpu")
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
    model = recipe_of_texts("pairs:x.tsv", kind, {"topk": 3} if kind == "vdr" else {}).model
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
        train(recipe_of(images, log_every=1), tmp_path, device="cpu")
    found = [record.message for record in caplog.records if "vectors of" in record.message]
    assert found == ["step 1: vectors of queries are zero; lower the weights of regularisers, or the learning rate"]
