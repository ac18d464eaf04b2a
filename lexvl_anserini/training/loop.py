"""The training loop, read top to bottom: make ready, resume, step, measure, keep, ship; `folder` tells the files."""

from __future__ import annotations

import inspect
import logging
import math
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.encoders.parts.tokens import TextReader, columns_ascii
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.files import exclusive, publish, sync_to, told_about_disk, write_json
from lexvl_anserini.training.batches import Batches, TrainingBatch
from lexvl_anserini.training.data import Captioned, digest, read_captioned, read_pixels, tokenise
from lexvl_anserini.training.measuring import Validation
from lexvl_anserini.training.objectives import AUXILIARIES, OBJECTIVES, Encoded
from lexvl_anserini.training.pairs import Pair, make_pair, save_pair
from lexvl_anserini.training.recipe import Optimisation, Recipe
from lexvl_anserini.training.regularisers import REGULARISERS, ramp
from lexvl_anserini.training.run_folder import LOG, MODEL, PIXELS, STATE, WORDS, claim, entries, keep, resume
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
    """Trains a recipe and returns the folder of the checkpoint; an interrupted run goes on where its last state is.

    On a CPU with the same number of threads, the weights of a resumed run equal those of an undisturbed one.

    Args:
        recipe: what to train.
        output: folder of the run.
        data_dir: folder of the data sets.
        device: auto, cpu, cuda, cuda:1.
        overwrite: start again, whatever run lies there.
        stop_after: stop at this step, or at once if the run is beyond it.

    Returns:
        The folder of the checkpoint; where the run stopped before its end, that of the state to go on from.

    Raises:
        ArtefactError: `output` holds the run of another recipe or of other data, something else, or damaged states.
        UsageError: the recipe and its data do not fit, or there is no such device.
    """
    chosen = choose_device(device)
    with told_about_disk(output):
        output.mkdir(parents=True, exist_ok=True)
    with exclusive(output):
        entries(output)  # a wrong folder is told before the data are read, which may take a minute
        log.info("%s: reading captions and pictures of %s", output, recipe.data.corpus)
        data = {role: read_captioned(*asked) for role, asked in splits(recipe, data_dir).items()}
        digests = {role: digest(captioned) for role, captioned in data.items()}
        claim(output, recipe, digests, overwrite)
        if (output / MODEL).is_dir():
            log.info("%s: trained already, nothing to do", output)
            return output / MODEL
        return _train(recipe, output, data, digests, chosen, stop_after)


def check(recipe: Recipe, data_dir: str | None, device: str) -> None:
    """Whether the device and the data of a recipe are there; no picture is read.

    Raises:
        LexvlError: they are not.
    """
    choose_device(device)
    for dataset, _ in splits(recipe, data_dir).values():
        if next(iter(dataset.qrels()), None) is None:
            raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")


def splits(recipe: Recipe, data_dir: str | None) -> dict[str, tuple[Dataset, int | None]]:
    """The data set for training and, if there is one, for validation; with how many images of it count."""
    data = recipe.data
    wanted = {TRAINING: (data.split, data.images), VALIDATION: (data.validation, None)}
    return {
        role: (load_dataset(data.corpus, split, data_dir, direction="text-to-image"), images)
        for role, (split, images) in wanted.items()
        if split
    }


def make_accelerator(device: torch.device, precision: str) -> Any:
    """An accelerator on this device.

    Raises:
        UsageError: it does not compute in this precision there, or was configured for something else.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # It keeps device and precision for the whole process, where an earlier training may have had others.
    AcceleratorState._reset_state(reset_partial_state=True)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    try:
        accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
    except ValueError as error:
        raise UsageError(f"precision {precision} on {device}: {error}") from error
    if accelerator.device.type != device.type:
        raise UsageError(f"accelerate is configured for {accelerator.device}, not {device}; unset its ACCELERATE_...")
    if precision != "no" and not accelerator.native_amp:  # it would compute in float32 without a word
        raise UsageError(f"precision {precision}: {device} does not compute in it; expected no or bf16")
    if accelerator.num_processes > 1:
        raise UsageError(f"{accelerator.num_processes} processes: the contrastive batch is one process's; start one")
    return accelerator


def _train(
    recipe: Recipe,
    output: Path,
    data: Mapping[str, Captioned],
    digests: Mapping[str, str],
    device: torch.device,
    stop_after: int | None,
) -> Path:
    accelerator = make_accelerator(device, recipe.precision)

    # Data.
    training, held_out = data[TRAINING], data.get(VALIDATION)
    tokenizer = save_tokenizer(
        learn_words(training.texts, recipe.model.text.words), output / WORDS, recipe.model.text.max_length
    )
    columns = columns_ascii(tokenizer, FIRST_TOKEN_ID)
    reader = TextReader(tokenizer, recipe.model.text.max_length)
    prepare = Pixels(recipe.model.image.resolution)
    pixels = read_pixels(training.images, prepare, output / PIXELS.replace("*", TRAINING))
    plan = recipe.optimisation
    batches = Batches(
        pixels,
        tokenise(training.captions, reader),
        columns,
        prepare,
        plan.batch_size,
        plan.captions_per_image,
        recipe.augmentation,
        recipe.seed,
        accelerator.device,
        naming=bool(recipe.auxiliaries),
    )
    validation = None
    if held_out:
        seen = read_pixels(held_out.images, prepare, output / PIXELS.replace("*", VALIDATION))
        validation = Validation(seen, tokenise(held_out.captions, reader), columns, prepare)

    # Model.
    torch.manual_seed(recipe.seed)
    pair = make_pair(recipe.model, columns, recipe.objective.temperature, recipe.objective.learn_temperature)
    optimiser = torch.optim.AdamW(
        parameter_groups(pair, plan.weight_decay), lr=plan.learning_rate, betas=plan.betas, eps=1e-8
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, learning_rate_shape(plan))
    pair, optimiser, scheduler = accelerator.prepare(pair, optimiser, scheduler)
    standing = resume(accelerator, output)
    log.info(
        "%s: %s, %d images, %d terms, %.2f M parameters, step %d of %d",
        output,
        recipe.model.kind,
        len(training.images),
        len(columns.vocabulary),
        sum(p.numel() for p in pair.parameters()) / 1e6,
        standing.step,
        plan.steps,
    )

    # Steps.
    last = min(plan.steps, stop_after or plan.steps)
    pair.train()
    began = time.monotonic() - standing.seconds
    with open(output / LOG, "ab") as lines:

        def report(row: Mapping[str, Any]) -> None:
            lines.write(orjson.dumps(row) + b"\n")
            sync_to(lines)
            log.info("%s", "  ".join(f"{key} {value}" for key, value in row.items()))

        for step in range(standing.step, last):
            torch.manual_seed(recipe.seed * 1_000_003 + step)  # dropout, a function of the step alone
            batch = batches[step]
            with accelerator.autocast():
                encoded, temperature = encode(pair, batch)
            loss = objective(recipe, encoded, temperature) + penalty(recipe, encoded, step)
            if not torch.isfinite(loss):
                raise UsageError(f"step {step}: the loss is {loss.item()}; lower the learning rate or the clip")
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(pair.parameters(), plan.clip)
            optimiser.step()
            scheduler.step()
            optimiser.zero_grad()

            done = standing.step = step + 1
            standing.losses.append(loss.item())
            standing.seconds = time.monotonic() - began
            if done % recipe.log_every == 0 or done == plan.steps:
                rate, seconds = scheduler.get_last_lr()[0], round(standing.seconds, 1)
                report({"step": done, "loss": standing.mean_loss(), "learning_rate": rate, "seconds": seconds})
            if validation and (done % recipe.validate_every == 0 or done == plan.steps):
                report(
                    {
                        "step": done,
                        "temperature": round(temperature.item(), 4),
                        **validation.measure(pair, recipe.model),
                    }
                )
            if done % recipe.state_every == 0 or done == last:
                keep(accelerator, output, standing)
    if standing.step < plan.steps:
        return output / STATE

    # Ship.
    part = output / f"{MODEL}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    save_pair(pair, recipe.model, tokenizer, part, getattr(torch, recipe.weights))
    shutil.copyfile(output / LOG, part / LOG)
    write_json(part / "training.json", about(recipe, output, len(training.images), digests))
    publish(part, output / MODEL)
    for leftover in output.glob(PIXELS):
        leftover.unlink()
    return output / MODEL


def encode(pair: Pair, batch: TrainingBatch) -> tuple[list[Encoded], Tensor]:
    """One `Encoded` per round of captions, all with the same images; and the temperature."""
    # Padding is masked everywhere, so rounds of different lengths go through the text side one after the other.
    images = pair.encoder_p(batch.pixels).float()
    rounds = [
        Encoded(pair.encoder_q(texts).float(), images, texts.bag, named=batch.named, frequency=batch.frequency)
        for texts in batch.rounds
    ]
    return rounds, pair.log_temperature.exp()


def objective(recipe: Recipe, rounds: Sequence[Encoded], temperature: Tensor) -> Tensor:
    """The mean of the recipe's objective over the rounds, and the auxiliaries' by their weights.

    Raises:
        UsageError: options or data do not fit a function.
    """

    def mean(function: Callable[..., Tensor], what: str, options: Mapping[str, Any]) -> Tensor:
        try:
            return torch.stack([function(encoded, **options) for encoded in rounds]).mean()
        except (TypeError, ValueError) as error:
            raise UsageError(f"recipe {recipe.name}: {what}: {error}") from error

    main = recipe.objective
    function = OBJECTIVES[main.name]
    given = {"temperature": temperature, "topk": recipe.model.topk}
    taken = {key: value for key, value in given.items() if key in inspect.signature(function).parameters}
    total = mean(function, f"objective {main.name}", {**taken, **main.options})
    for also in recipe.auxiliaries:
        total = total + also.weight * mean(AUXILIARIES[also.name], f"auxiliary {also.name}", also.options)
    return total


def penalty(recipe: Recipe, rounds: list[Encoded], step: int) -> Tensor:
    """The weighted regularisers of a step."""
    total = torch.zeros((), device=rounds[0].query.device)
    for regulariser in recipe.regularisers:
        values = [REGULARISERS[regulariser.name](getattr(encoded, regulariser.side)) for encoded in rounds]
        total = total + regulariser.weight * ramp(step, regulariser.ramp_steps) * torch.stack(values).mean()
    return total


def parameter_groups(pair: Pair, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and the temperature do not."""
    trained = [parameter for parameter in pair.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def learning_rate_shape(plan: Optimisation) -> Callable[[int], float]:
    """Factor of the peak at a step: linear warm-up, then a cosine down to `last_learning_rate`."""

    def factor(step: int) -> float:
        if step < plan.warmup_steps:
            return (step + 1) / plan.warmup_steps
        progress = (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
        return plan.last_learning_rate + (1 - plan.last_learning_rate) * (1 + math.cos(math.pi * min(1, progress))) / 2

    return factor


def about(recipe: Recipe, output: Path, images: int, digests: Mapping[str, str]) -> dict[str, Any]:
    """What stands beside the shipped weights: recipe, data, last validation figures, versions."""
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
