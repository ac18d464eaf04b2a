"""The folder of a training run: its files, its request, its log and its states.

OUT/
  recipe.yaml   the recipe of the run
  data.json     digests of the images and captions for training and for validation
  log.jsonl     one line per report: step, loss, learning rate, seconds, the loss by the names of its parts, what the
                vectors of a batch are like; or step and validation figures; or the step where a stage stopped early
  examples.jsonl  one line per validation and example of a lexical pair: step, side, name, active terms, heaviest terms
  curve.png     losses, validation figures and active terms over the steps; drawn at the end
  words/        the tokenizer, learned from the training captions
  network/      the image network for images of another side (model.image.resolution)
  stored-*      decoded images (.npy), what frozen networks made of images and texts, what is known of shards (.json),
                unless a cache has them; deleted at the end
  state/        the newest state from which the run can resume; state.old/ is the state before it, in case of damage
  best.safetensors  the weights that validated best, with step and score; deleted at the end
  failed-batch.json  the batch at which loss or gradients were not finite, if the run stopped there
  kept/         checkpoints of epochs (epoch-3; of several stages, stage-1-epoch-3) or of stages (stage-1): --keep-every
  best/         the checkpoint that validated best, where this is not the last one
  model/        the last checkpoint in the layout of its encoder; exists when the run is finished
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lexvl_anserini.ground import files
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, describe_error
from lexvl_plugins.train.recipe import Recipe, read_recipe

log = logging.getLogger(__name__)

# Names of what is computed once; `images/stores.py` fills in what they are.
STORED = "stored-*"
# The folder of a checkpoint with the tokenizer and the configuration of a text network.
TEXT_FOLDER = "text"
RECIPE, DATA, LOG, WORDS = "recipe.yaml", "data.json", "log.jsonl", "words"
STATE, OLD_STATE, MODEL, BEST = "state", "state.old", "model", "best"
EXAMPLES, CURVE, BEST_WEIGHTS, FAILED = "examples.jsonl", "curve.png", "best.safetensors", "failed-batch.json"
KEPT, NETWORK = "kept", "network"
OURS: tuple[str, ...] = (RECIPE, DATA, LOG, WORDS, NETWORK, STORED, STATE, OLD_STATE, KEPT, MODEL, BEST)
OURS += (EXAMPLES, CURVE, BEST_WEIGHTS, FAILED)
# Those of them that a process leaves that is killed while it writes.
UNFINISHED = tuple(f"{name}*.part" for name in OURS)
# Entries that took training steps.
TRAINED = (STATE, OLD_STATE, MODEL)

# In the folder of a state: a `TrainingState`, and the SHA-256 (hex) of every other file by its name.
STATE_FILE, DIGESTS = "step.json", "digests.json"


@dataclass
class TrainingState:
    """The progress of a run, beside the accelerator's weights and optimiser; a score has the step of its validation.

    Losses and their parts are those since the last line of the log; the time counts all processes of the run.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    parts: dict[str, list[float]] = field(default_factory=dict)
    scores: list[tuple[int, float]] = field(default_factory=list)

    def record(self, loss: float, parts: Mapping[str, float], seconds: float) -> None:
        """Counts a step with its loss; `seconds` is the time of all steps so far."""
        self.step += 1
        self.losses.append(loss)
        for name, part in parts.items():
            self.parts.setdefault(name, []).append(part)
        self.seconds = seconds

    def take_means(self) -> tuple[float, dict[str, float]]:
        """The means of the losses and of their parts since the last call; clears them."""
        means = round(fmean(self.losses), 4), {name: float(f"{fmean(of):.4g}") for name, of in self.parts.items()}
        self.clear_losses()
        return means

    def clear_losses(self) -> None:
        """Forgets the losses since the last line of the log."""
        self.losses.clear()
        self.parts.clear()

    def count_waits(self, first: int) -> int:
        """The number of validations since the best one after the step `first`."""
        scores = [score for step, score in self.scores if step > first]
        return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def reserve(output: Path, recipe: Recipe, data: Mapping[str, str], overwrite: bool) -> None:
    """Reserves a folder for a run: empty, with this run, with one without a saved state, or to overwrite."""
    names, requested = check_entries(output), build_request(recipe, data)
    earlier = None
    if names and not overwrite:
        try:
            earlier = build_request(read_recipe(output / RECIPE), files.read_json(output / DATA, "digest of the data"))
        except LexvlError as error:
            earlier = {**requested, "files": f"unreadable ({error})"}
    if claim(output, "a run", requested, earlier, overwrite=not names.intersection(TRAINED)) is not Claim.FRESH:
        return
    clear(output)
    with files.atomic_write(output / RECIPE) as out:
        out.write(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False).encode())
    files.write_json(output / DATA, data)


def check_entries(output: Path) -> set[str]:
    """The names in the folder of a run; an empty set where no run has started."""
    names = {entry.name for entry in output.iterdir()} - {files.name_part(output / RECIPE).name}
    if names and RECIPE not in names:
        raise ArtefactError(f"{output}: not empty and not written by train; name another --output")
    return names


def build_request(recipe: Recipe, data: Mapping[str, str]) -> dict[str, Any]:
    """What decides the result of a run: the recipe, and the digests of the data and networks that it reads."""
    return {**recipe.model_dump(mode="json"), **{f"content of {role}": data[role] for role in data}}


def clear(output: Path) -> None:
    """Deletes the files of a run and nothing else; the recipe last, so that a folder half cleared is still a run."""
    delete(sorted(list_entries(output, OURS + UNFINISHED), key=lambda entry: entry.name == RECIPE))


def list_entries(output: Path, patterns: Sequence[str]) -> list[Path]:
    """The entries of a folder whose names fit one of the patterns."""
    return [entry for entry in output.iterdir() if any(fnmatch(entry.name, pattern) for pattern in patterns)]


def delete(entries: Iterable[Path]) -> None:
    """Deletes files, links and whole folders."""
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def tidy(output: Path) -> None:
    """Deletes what a finished run needs no more: stored images and texts, and unfinished files of a killed process."""
    delete(list_entries(output, (STORED, BEST_WEIGHTS, FAILED, *UNFINISHED)))
    delete(output.glob(f"{KEPT}/*.part"))


def save_state(accelerator: Any, output: Path, progress: TrainingState) -> None:
    """Writes a state whole; the state before it stays."""
    part, state, old = files.name_part(output / STATE), output / STATE, output / OLD_STATE
    with files.disk_errors(state):
        shutil.rmtree(part, ignore_errors=True)
        try:
            accelerator.save_state(str(part), safe_serialization=True)
        except RuntimeError as error:  # torch counts bytes and does not say why one is missing
            if shutil.disk_usage(output).free < 1 << 16:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            said = str(error).splitlines()[0]
            raise ArtefactError(f"{state}: cannot be written ({said}); look at the disk and at `ulimit -f`") from error
        files.write_json(part / STATE_FILE, asdict(progress))
        files.write_json(part / DIGESTS, compute_digests(part))
        files.sync_tree(part)
        _give_up(old)
        if state.exists():
            state.replace(old)
        files.publish(part, state)


def compute_digests(state: Path) -> dict[str, str]:
    """SHA-256 (hex) of the files of a state by their names."""
    return {path.name: files.compute_sha256(path) for path in sorted(state.iterdir()) if path.name != DIGESTS}


def _give_up(folder: Path) -> None:
    """Deletes a folder, if it is there."""
    with files.disk_errors(folder), suppress(FileNotFoundError):
        try:
            shutil.rmtree(folder)
        except OSError as error:  # it names a file without its folder
            raise OSError(error.errno, error.strerror, str(folder)) from error


def resume(accelerator_at: Callable[[int], Any], output: Path) -> TrainingState:
    """Loads the newest whole state into what `accelerator_at` prepares for its step; a new state if there is none."""
    problems = []
    for state in (output / STATE, output / OLD_STATE):
        if not state.exists():
            continue
        try:
            if (state / DIGESTS).exists():  # states of older versions have none
                stored, there = files.read_json(state / DIGESTS, "digests of the state"), compute_digests(state)
                if other := sorted(name for name in stored.keys() | there if stored.get(name) != there.get(name)):
                    raise ArtefactError(f"{', '.join(other)}: missing, or not as written")
            progress = TrainingState(**files.read_json(state / STATE_FILE, "training state"))
            accelerator_at(progress.step).load_state(str(state))
        except Exception as error:  # torch, pickle and safetensors each raise their own error for a truncated file
            problems.append(f"{state}: a damaged state ({describe_error(error)})")
            log.warning("%s", problems[-1])
            continue
        if state.name != STATE:
            _give_up(output / STATE)
            files.publish(state, output / STATE)
        return progress
    if problems:
        raise ArtefactError(f"{'; '.join(problems)}; --overwrite starts again")
    return TrainingState()


def rewind(output: Path, step: int) -> None:
    """Deletes what a killed process reported after the step of the state from which the run goes on."""

    def is_until(line: bytes) -> bool:
        try:
            return bool(line.endswith(b"\n") and orjson.loads(line)["step"] <= step)
        except (ValueError, KeyError, TypeError):  # what a failed write left
            return False

    for path in (output / LOG, output / EXAMPLES):
        if path.is_file():
            lines = path.read_bytes().splitlines(keepends=True)
            with files.atomic_write(path) as out:
                out.writelines(filter(is_until, lines))
    if not step:
        (output / BEST_WEIGHTS).unlink(missing_ok=True)


def write_weights(state: Mapping[str, Tensor], folder: Path, kind: torch.dtype) -> None:
    """Writes model.safetensors with numbers of a type."""
    saved = {
        key: (value.to(kind) if value.is_floating_point() else value).contiguous().cpu() for key, value in state.items()
    }
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})


def read_step(state: Path) -> int:
    """The number of steps of a state."""
    return int(files.read_json(state / STATE_FILE, "training state")["step"])


def read_best(output: Path) -> tuple[int, float]:
    """The step and the score of the best weights; step 0 if there are none."""
    path = output / BEST_WEIGHTS
    if not path.is_file():
        return 0, float("-inf")
    with safe_open(path, "pt") as stored:
        metadata = stored.metadata()
    return int(metadata["step"]), float(metadata["score"])
