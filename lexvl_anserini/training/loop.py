"""The training loop, read top to bottom: read the data, make the pair, resume, step, validate, save.

`run_folder` describes the files of a run.
"""

from __future__ import annotations

import logging
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import torch
from torch import Tensor

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, columns_ascii
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.files import disk_errors, exclusive, make_folder, new_folder, sync_to, write_json
from lexvl_anserini.training.batches import Batches, TrainingBatch
from lexvl_anserini.training.data import CaptionedImages, digest, read_captioned, read_pixels, tokenise
from lexvl_anserini.training.loss import objective, penalty
from lexvl_anserini.training.measuring import Validation
from lexvl_anserini.training.objectives.caption_terms import CaptionTerms
from lexvl_anserini.training.objectives.contrastive import Encoded
from lexvl_anserini.training.optimiser import make_accelerator, make_optimiser
from lexvl_anserini.training.pairs import TowerPair, make_pair, save_pair
from lexvl_anserini.training.recipe import Recipe
from lexvl_anserini.training.run_folder import LOG, MODEL, PIXELS, STATE, WORDS, claim, entries, keep, resume, tidy
from lexvl_anserini.training.words import FIRST_TOKEN_ID, learn_words, save_tokenizer

log = logging.getLogger(__name__)

TRAINING, VALIDATION = "training", "validation"


def train(
    recipe: Recipe,
    output: Path,
    data_dir: str | None = None,
    device: str = "auto",
    overwrite: bool = False,
    stop_after: int | None = None,
) -> Path:
    """Trains a recipe and returns the folder of the checkpoint; an interrupted run resumes from its last state.

    On a CPU with the same number of threads, a resumed run ends with the same weights as an uninterrupted run.

    Args:
        recipe: the settings of the run.
        output: folder of the run.
        data_dir: folder of the datasets.
        device: auto, cpu, cuda, cuda:1.
        overwrite: start again and delete the run that the folder contains.
        stop_after: stop at this step, or at once if the run is beyond it.

    Returns:
        The folder of the checkpoint; if the run stopped before its end, the folder of the state.

    Raises:
        ArtefactError: `output` contains the run of another recipe or of other data, other files, or damaged states.
        UsageError: the recipe and its data do not fit, or the device does not exist.
    """
    chosen = choose_device(device)
    with disk_errors(output):
        make_folder(output)
    with exclusive(output), disk_errors(output):
        entries(output)  # a wrong folder raises here, before the data are read, which may take a minute
        log.info("%s: reading captions and images of %s", output, recipe.data.corpus)
        data = {role: read_captioned(dataset, limit) for role, (dataset, limit) in splits(recipe, data_dir).items()}
        digests = {role: digest(captioned) for role, captioned in data.items()}
        claim(output, recipe, digests, overwrite)
        if (output / MODEL).is_dir():
            log.info("%s: trained already, nothing to do", output)
            tidy(output)
            return output / MODEL
        accelerator = make_accelerator(chosen, recipe.precision)
        inputs = prepare(recipe, output, data, accelerator.device)
        torch.manual_seed(recipe.seed)
        pair = make_pair(recipe.model, inputs.columns, recipe.objective.temperature, recipe.objective.learn_temperature)
        learner = Learner(accelerator, *accelerator.prepare(pair, *make_optimiser(pair, recipe.optimisation)))
        if run_steps(recipe, output, inputs, learner, stop_after) < recipe.optimisation.steps:
            return output / STATE
        return save(recipe, output, inputs, learner.pair, digests)


def check(recipe: Recipe, data_dir: str | None, device: str) -> None:
    """Checks that the device and the data of a recipe exist; reads no image.

    Raises:
        LexvlError: one of them does not exist.
    """
    choose_device(device)
    for dataset, _ in splits(recipe, data_dir).values():
        if next(iter(dataset.qrels()), None) is None:
            raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")


def splits(recipe: Recipe, data_dir: str | None) -> dict[str, tuple[Dataset, int | None]]:
    """By role, the dataset for training and, if there is one, for validation; with the largest number of images."""
    data = recipe.data
    wanted = {TRAINING: (data.split, data.images), VALIDATION: (data.validation, None)}
    return {
        role: (load_dataset(data.corpus, split, data_dir, direction="text-to-image"), images)
        for role, (split, images) in wanted.items()
        if split
    }


@dataclass(frozen=True)
class Inputs:
    """What a run reads at each step.

    images         number of training images
    tokenizer      learned from the training captions
    columns        the dimension of each token
    batches        of the training split
    caption_terms  of the training split; None where the recipe has no auxiliary objective
    validation     None where the recipe has no validation split
    """

    images: int
    tokenizer: Any
    columns: TokenColumns
    batches: Batches
    caption_terms: CaptionTerms | None
    validation: Validation | None


def prepare(recipe: Recipe, output: Path, data: Mapping[str, CaptionedImages], device: torch.device) -> Inputs:
    """Learns the vocabulary, tokenises the captions and decodes the images."""
    text, plan, training = recipe.model.text, recipe.optimisation, data[TRAINING]
    tokenizer = save_tokenizer(learn_words(training.texts, text.words), output / WORDS, text.max_length)
    columns, reader = columns_ascii(tokenizer, FIRST_TOKEN_ID), TextReader(tokenizer, text.max_length)
    prepare_pixels = Pixels(recipe.model.image.resolution)

    def pixels_of(role: str) -> Any:
        return read_pixels(data[role].images, prepare_pixels, output / PIXELS.replace("*", role))

    pixels, tokens = pixels_of(TRAINING), tokenise(training.captions, reader)
    batches = Batches(
        pixels,
        tokens,
        columns,
        prepare_pixels,
        plan.batch_size,
        plan.captions_per_image,
        recipe.augmentation,
        recipe.seed,
        device,
    )
    validation = None
    if VALIDATION in data:
        held_out = tokenise(data[VALIDATION].captions, reader)
        validation = Validation(pixels_of(VALIDATION), held_out, columns, prepare_pixels)
    # The only auxiliary objective, `naming`, needs these terms; the other objectives need none.
    terms = CaptionTerms.of(tokens, columns, device) if recipe.auxiliaries else None
    return Inputs(len(training.images), tokenizer, columns, batches, terms, validation)


@dataclass(frozen=True)
class Learner:
    """A pair of towers, and what changes its weights; all prepared by the accelerator."""

    accelerator: Any
    pair: TowerPair
    optimiser: torch.optim.Optimizer
    scheduler: Any

    def loss(self, recipe: Recipe, inputs: Inputs, step: int) -> tuple[Tensor, Tensor]:
        """The loss of a step, and the temperature.

        Raises:
            UsageError: the loss is not finite.
        """
        torch.manual_seed(recipe.seed * 1_000_003 + step)  # dropout, a function of the step alone
        batch = inputs.batches[step]
        with self.accelerator.autocast():
            rounds, temperature = encode(self.pair, batch)
        if inputs.caption_terms:
            rounds = inputs.caption_terms.add_to(rounds, batch.images)
        loss = objective(recipe, rounds, temperature) + penalty(recipe, rounds, step)
        if not torch.isfinite(loss):
            raise UsageError(f"step {step}: the loss is {loss.item()}; lower the learning rate or the clip")
        return loss, temperature

    def update(self, loss: Tensor, clip: float) -> None:
        """Changes the weights by the gradients of a loss, clipped to norm `clip`."""
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.pair.parameters(), clip)
        self.optimiser.step()
        self.scheduler.step()
        self.optimiser.zero_grad()


def encode(pair: TowerPair, batch: TrainingBatch) -> tuple[Sequence[Encoded], Tensor]:
    """One `Encoded` per round of captions, all with the same images; and the temperature."""
    # Padding is masked everywhere, so rounds of different lengths pass the text side one after the other.
    images = pair.encoder_p(batch.pixels).float()
    rounds = [Encoded(pair.encoder_q(texts).float(), images, texts.bag) for texts in batch.rounds]
    return rounds, pair.log_temperature.exp()


def run_steps(recipe: Recipe, output: Path, inputs: Inputs, learner: Learner, stop_after: int | None) -> int:
    """Runs the steps of a recipe from the last state on, with log, validation and states; returns the steps done."""
    plan, validation = recipe.optimisation, inputs.validation
    progress = resume(learner.accelerator, output)
    log.info(
        "%s: %s, %d images, %d terms, %.2f M parameters, step %d of %d",
        output,
        recipe.model.kind,
        inputs.images,
        len(inputs.columns.vocabulary),
        sum(p.numel() for p in learner.pair.parameters()) / 1e6,
        progress.step,
        plan.steps,
    )
    last = min(plan.steps, stop_after or plan.steps)
    learner.pair.train()
    began = time.monotonic() - progress.seconds
    with open(output / LOG, "ab") as lines:
        for step in range(progress.step, last):
            loss, temperature = learner.loss(recipe, inputs, step)
            learner.update(loss, plan.clip)
            done = step + 1
            progress.record(loss.item(), time.monotonic() - began)
            if done % recipe.log_every == 0 or done == plan.steps:
                rate, seconds = learner.scheduler.get_last_lr()[0], round(progress.seconds, 1)
                row = {"step": done, "loss": progress.mean_loss(), "learning_rate": rate, "seconds": seconds}
                report(lines, row)
            if validation and (done % recipe.validate_every == 0 or done == plan.steps):
                row = {"step": done, "temperature": round(temperature.item(), 4)}
                report(lines, {**row, **validation.measure(learner.pair, recipe.model)})
            if done % recipe.state_every == 0 or done == last:
                keep(learner.accelerator, output, progress)
    return progress.step


def report(lines: BinaryIO, row: Mapping[str, Any]) -> None:
    """Writes a line of the log, and prints it."""
    lines.write(orjson.dumps(row) + b"\n")
    sync_to(lines)
    log.info("%s", "  ".join(f"{key} {value}" for key, value in row.items()))


def save(recipe: Recipe, output: Path, inputs: Inputs, pair: TowerPair, digests: Mapping[str, str]) -> Path:
    """Writes the checkpoint with recipe and log, deletes the decoded images, and returns the checkpoint's folder."""
    with new_folder(output / MODEL) as part:
        save_pair(pair, recipe.model, inputs.tokenizer, part, getattr(torch, recipe.weights))
        shutil.copyfile(output / LOG, part / LOG)
        write_json(part / "training.json", about(recipe, output, inputs.images, digests))
    tidy(output)
    return output / MODEL


def about(recipe: Recipe, output: Path, images: int, digests: Mapping[str, str]) -> dict[str, Any]:
    """The content of training.json: recipe, data, last validation figures, versions."""
    rows = [orjson.loads(line) for line in (output / LOG).read_bytes().splitlines()]
    measured = [row for row in rows if "t2i_R@1" in row]
    return {
        "recipe": recipe.model_dump(mode="json"),
        "data": dict(digests),
        "images": images,
        "validation": measured[-1] if measured else None,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate", "lexvl-anserini")},
    }
