"""Training on what is small, damaged, of another family, or larger than memory: it trains, or ends with one line."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.train.common import learner as loss
from lexvl_plugins.train.common.processes import lacks_memory
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.objectives.contrastive import Encoded
from lexvl_plugins.train.recipe import Recipe, check_recipe
from tests.plugins.train.test_run_folder import recipe_of as recipe_of_images
from tests.plugins.train.test_texts import recipe_of, weights
from tests.plugins.train.tiny_training import rows_of, write_corpus, write_plain_squares

FRESH = {"words": 200, "width": 16, "layers": 1, "heads": 2, "max_length": 16, "dropout": 0.1}


def in_stages(corpus: str) -> Recipe:
    """Three stages of two steps: of all weights in pieces, of one side with an average, with a regulariser."""
    plan = {"steps": 2, "batch_size": 3, "negatives": 1, "warmup_steps": 1, "learning_rate": 0.01}
    objective = {"name": "vdr", "learn_temperature": True, "options": {"topk": 8}}
    stages = [
        {"optimisation": {**plan, "piece": 2}},
        {"optimisation": {**plan, "average": 0.5}, "trained": ["encoder_q.*"]},
        {"optimisation": plan, "regularisers": [{"name": "flops", "side": "query", "weight": 0.1, "ramp_steps": 2}]},
    ]
    content = recipe_of(corpus, "vdr", {"query": FRESH, "document": FRESH}).model_dump(mode="json")
    content |= {"stages": [{"objective": objective, **stage} for stage in stages], "validate_every": 1, "log_every": 2}
    return check_recipe(content, "tiny.yaml")


def test_a_run_that_stops_after_every_step_ends_the_same(texts: str, tmp_path: Path) -> None:
    """In and between stages, with pieces, averages, frozen sides, ramps; the log and the best checkpoint too."""
    recipe = in_stages(texts)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    for step in range(1, recipe.steps):
        train(recipe, tmp_path / "part", device="cpu", stop_after=step)
    assert weights(train(recipe, tmp_path / "part", device="cpu")) == weights(whole)

    def lines(folder: str) -> list[Any]:
        return [{**row, "seconds": 0} for row in rows_of(tmp_path / folder)]

    assert lines("part") == lines("whole")
    assert (tmp_path / "part/examples.jsonl").read_bytes() == (tmp_path / "whole/examples.jsonl").read_bytes()
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("part", "whole")]
    assert names[0] == names[1]


def test_a_stage_that_trains_no_weight_is_refused(texts: str, tmp_path: Path) -> None:
    recipe = recipe_of(texts, "vdr", {"query": FRESH}, trained=["encoder_x.*", "encoder_q.proj"])
    with pytest.raises(LexvlError, match=r"trained encoder_x\.\*, encoder_q\.proj: names no weight; .* as \w+ is"):
        train(recipe, tmp_path, device="cpu")


def test_a_bare_no_is_the_precision_of_that_name(texts: str) -> None:
    """YAML reads it as false."""
    assert recipe_of(texts, "vdr", precision=False).precision == "no"


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Expects an error of one line."""
    with pytest.raises(LexvlError, match=match) as error:
        yield
    assert "\n" not in str(error.value)


def test_one_pair_trains(tmp_path: Path) -> None:
    """It has nothing to be told apart from: its loss is 0."""
    (tmp_path / "one.tsv").write_text("a red boat\tthe boat is red\n")
    corpus = f"pairs:{tmp_path}/one.tsv"

    def recipe(size: int) -> Recipe:
        return recipe_of(corpus, "dpr", data={"corpus": corpus}, optimisation={"steps": 1, "batch_size": size})

    assert (train(recipe(1), tmp_path / "texts", device="cpu") / "training.json").is_file()
    [row] = rows_of(tmp_path / "texts")
    assert row["loss"] == 0 and "query_alike" not in row
    with refused("batch_size 2 is more than the 1 training queries"):
        train(recipe(2), tmp_path / "two", device="cpu")
    (tmp_path / "images").mkdir()
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pictures = write_corpus(tmp_path / "images", [pixels, pixels], [["a square", "one square"], ["a square"]], train=1)
    plan = {"steps": 1, "batch_size": 1}
    assert train(recipe_of_images(pictures, optimisation=plan), tmp_path / "run", device="cpu").is_dir()


@pytest.mark.parametrize("caption", ["", "   ", "!?"])
def test_an_empty_caption_trains_as_a_text_without_words(caption: str, tmp_path: Path) -> None:
    recipe = recipe_of_images(write_plain_squares(tmp_path / "corpus", last=caption))
    assert train(recipe, tmp_path / "run", device="cpu").is_dir()


def test_an_empty_query_or_passage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("a red boat\tthe boat is red\n\tthe house\n")
    with refused("empty.tsv"):
        train(recipe_of(f"pairs:{tmp_path}/empty.tsv", "dpr"), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_missing_or_damaged_image_is_named(damaged: bool, tmp_path: Path) -> None:
    corpus = write_plain_squares(tmp_path / "corpus")
    (tmp_path / "corpus/2.png").unlink()
    if damaged:
        (tmp_path / "corpus/2.png").write_bytes(b"\x89PNG nothing")
    with refused("2.png"):
        train(recipe_of_images(corpus), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("kind", ["dpr", "splade", "sentence"])
def test_a_checkpoint_of_another_family_is_refused(kind: str, texts: str, golden: Path, tmp_path: Path) -> None:
    recipe = recipe_of(texts, kind, {"query": {"checkpoint": str(golden / "vdr/text-tiny")}})
    with refused("text-tiny"):
        train(recipe, tmp_path, device="cpu")


def greedy(encoded: Encoded) -> torch.Tensor:
    """A loss for which no machine has the memory."""
    return encoded.query.new_empty(1 << 60).sum()


def test_out_of_memory_says_which_keys_need_less(texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("lexvl_plugins.train.common.learner", "lexvl_plugins.train.recipe"):
        monkeypatch.setattr(f"{table}.OBJECTIVES", {**loss.OBJECTIVES, "greedy": loss.LossRow(greedy)})
    keys = "set optimisation.piece below 3, or set optimisation.checkpointing, or lower max_length of the model"
    with refused(rf"step 0: out of memory \(.*\); {keys}, or lower optimisation.batch_size"):
        train(recipe_of(texts, "dpr", objective={"name": "greedy"}), tmp_path, device="cpu")


def test_errors_of_too_little_memory() -> None:
    assert lacks_memory(torch.OutOfMemoryError("CUDA out of memory")) and lacks_memory(MemoryError())
    assert not lacks_memory(RuntimeError("shapes differ")) and not lacks_memory(ValueError("not enough memory"))


def test_freed_memory_stays_with_the_process() -> None:
    """A large block that is freed and made again is the same memory; glibc's default maps new pages each time.

    In a process of its own: this one may have kept other memory, in which a block finds no place.
    """
    lines = [
        "import resource",
        "from lexvl_plugins.train.common.processes import keep_freed_memory",
        "kept = keep_freed_memory()",
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        "for round in range(7):",
        "    before = faults() if round == 3 else before if round else 0",
        "    bytearray(64 << 20)",  # 16,384 pages
        "print(kept, faults() - before)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    if kept == "False":
        pytest.skip("the C library is not glibc")
    assert int(faults) < 16_384
