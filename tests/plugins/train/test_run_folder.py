"""The folder of a training run: its request, what may be deleted, stopped and damaged runs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_plugins.train.common.processes import make_accelerator
from lexvl_plugins.train.images.captioned import CaptionedImages, read_captioned
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import OURS, clear, reserve, tidy
from lexvl_plugins.train.splits import check
from tests.plugins.train.tiny_training import rows_of, same_weights, tiny_recipe, write_plain_squares

AT_THE_END = {"best", "best.safetensors", "curve.png", "failed-batch.json"}
DATA = {"training": "a", "validation": "b"}


def recipe_of(corpus: str, **changes: Any) -> Recipe:
    """A recipe of six steps; `changes` replace top-level entries."""
    tower = {"width": 8, "layers": 1, "heads": 2}
    model = {
        "kind": "vdr-crossmodal",
        "topk": 4,
        "text": {**tower, "max_length": 8, "dropout": 0.1},
        "image": {**tower, "resolution": 16, "patch_size": 8},
    }
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
    assert {entry.name for entry in tmp_path.iterdir()} >= set(OURS) - {"model", "stored-*", *AT_THE_END}
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
