"""The training loop, read top to bottom: make ready, resume, step, measure, keep, ship.

OUT/
  recipe.yaml   as it was run
  log.jsonl     one line per report: step, loss, learning rate, seconds; validation figures
  pixels-*.npy  decoded images, deleted at the end
  state/        the newest resumable state
  model/        the trained checkpoint, as the encoder of its kind loads it; there when all is done
"""

from __future__ import annotations

import logging
import math
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch
import yaml
from torch import Tensor

from lexvl_anserini.data.base import load_dataset
from lexvl_anserini.encoders.tokens import TextReader, columns_ascii
from lexvl_anserini.encoders.vision import Pixels
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.files import exclusive, read_json, write_json
from lexvl_anserini.training.batches import Batches, TrainingBatch
from lexvl_anserini.training.data import read_captioned, read_pixels, tokenise
from lexvl_anserini.training.measuring import Validation
from lexvl_anserini.training.objectives import AUXILIARIES, OBJECTIVES, Encoded
from lexvl_anserini.training.pairs import Pair, make_pair, save_pair
from lexvl_anserini.training.recipe import Optimisation, Recipe, checked
from lexvl_anserini.training.regularisers import REGULARISERS, ramp
from lexvl_anserini.training.words import FIRST_WORD_ID, learn_words, save_tokenizer

log = logging.getLogger(__name__)

RECIPE, LOG, STATE, MODEL, WORDS = "recipe.yaml", "log.jsonl", "state", "model", "words"


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
        device: auto, cpu, cuda.
        overwrite: start again where another recipe's run lies.
        stop_after: stop at this step, with a state to resume from.

    Raises:
        ArtefactError: `output` holds the run of another recipe.
        UsageError: the recipe and its data do not fit.
    """
    output.mkdir(parents=True, exist_ok=True)
    with exclusive(output):
        if finished(recipe, output, overwrite):
            log.info("%s: trained already, nothing to do", output)
            return output / MODEL
        return _train(recipe, output, data_dir, device, stop_after)


def _train(recipe: Recipe, output: Path, data_dir: str | None, device: str, stop_after: int | None) -> Path:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu" or None, mixed_precision=recipe.precision)
    if accelerator.num_processes > 1:
        raise UsageError(f"{accelerator.num_processes} processes: the contrastive batch is one process's; start one")

    # Data.
    training = read_captioned(_split(recipe, recipe.data.split, data_dir), recipe.data.images)
    tokenizer = save_tokenizer(
        learn_words(training.texts, recipe.model.text.words), output / WORDS, recipe.model.text.max_length
    )
    columns = columns_ascii(tokenizer, FIRST_WORD_ID)
    reader = TextReader(tokenizer, recipe.model.text.max_length)
    prepare = Pixels(recipe.model.image.resolution)
    pixels = read_pixels(training.images, prepare, output / "pixels-train.npy")
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
    if recipe.data.validation:
        held_out = read_captioned(_split(recipe, recipe.data.validation, data_dir))
        seen = read_pixels(held_out.images, prepare, output / "pixels-validation.npy")
        validation = Validation(seen, tokenise(held_out.captions, reader), columns, prepare)

    # Model.
    torch.manual_seed(recipe.seed)
    pair = make_pair(recipe.model, columns, recipe.objective.temperature, recipe.objective.learn_temperature)
    optimiser = torch.optim.AdamW(
        parameter_groups(pair, plan.weight_decay), lr=plan.learning_rate, betas=plan.betas, eps=1e-8
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, learning_rate_shape(plan))
    model, optimiser, scheduler = accelerator.prepare(pair, optimiser, scheduler)
    start = resume(accelerator, output)
    log.info(
        "%s: %s, %d images, %d terms, %.2f M parameters, step %d of %d",
        output,
        recipe.model.kind,
        len(training.images),
        len(columns.vocabulary),
        sum(p.numel() for p in pair.parameters()) / 1e6,
        start,
        plan.steps,
    )

    # Steps.
    model.train()
    began, running = time.monotonic(), Running()
    with open(output / LOG, "ab") as lines:

        def report(row: Mapping[str, Any]) -> None:
            lines.write(orjson.dumps(row) + b"\n")
            lines.flush()
            log.info("%s", "  ".join(f"{key} {value}" for key, value in row.items()))

        for step in range(start, plan.steps):
            torch.manual_seed(recipe.seed * 1_000_003 + step)  # dropout, a function of the step alone
            batch = batches[step]
            with accelerator.autocast():
                encoded, temperature = encode(model, batch)
            loss = objective(recipe, encoded, temperature) + penalty(recipe, encoded, step)
            if not torch.isfinite(loss):
                raise UsageError(f"step {step}: the loss is {loss.item()}; lower the learning rate or the clip")
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), plan.clip)
            optimiser.step()
            scheduler.step()
            optimiser.zero_grad()

            done = step + 1
            running.add(loss.item())
            if done % recipe.log_every == 0 or done == plan.steps:
                rate = scheduler.get_last_lr()[0]
                seconds = round(time.monotonic() - began, 1)
                report({"step": done, "loss": running.mean(), "learning_rate": rate, "seconds": seconds})
            if validation and (done % recipe.validate_every == 0 or done == plan.steps):
                report(
                    {
                        "step": done,
                        "temperature": round(temperature.item(), 4),
                        **validation.measure(pair, recipe.model),
                    }
                )
            if done % recipe.state_every == 0 or done in (plan.steps, stop_after):
                keep(accelerator, output, done)
            if done == stop_after:
                return output

    # Ship.
    part = output / f"{MODEL}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    save_pair(pair, recipe.model, tokenizer, part, getattr(torch, recipe.weights))
    write_json(part / "training.json", about(recipe, output, len(training.images)))
    part.replace(output / MODEL)
    for leftover in output.glob("pixels-*.npy"):
        leftover.unlink()
    return output / MODEL


def encode(model: Any, batch: TrainingBatch) -> tuple[list[Encoded], Tensor]:
    """One `Encoded` per round of captions, all with the same images; and the temperature."""
    # Padding is masked everywhere, so rounds of different lengths go through the text side one after the other.
    unwrapped: Pair = model.module if hasattr(model, "module") else model
    images = unwrapped.encoder_p(batch.pixels).float()
    rounds = [
        Encoded(unwrapped.encoder_q(texts).float(), images, texts.bag, named=batch.named, frequency=batch.frequency)
        for texts in batch.rounds
    ]
    return rounds, unwrapped.log_temperature.exp()


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
    total = mean(OBJECTIVES[main.name], f"objective {main.name}", {"temperature": temperature, **main.options})
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


class Running:
    """The mean loss since it was last asked for."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, value: float) -> None:
        """One step's loss."""
        self.values.append(value)

    def mean(self) -> float:
        """The mean, after which it starts anew."""
        mean = sum(self.values) / len(self.values)
        self.values.clear()
        return round(mean, 4)


def keep(accelerator: Any, output: Path, step: int) -> None:
    """Writes the state after `step` steps; it replaces the last one whole."""
    part, state = output / f"{STATE}.part", output / STATE
    shutil.rmtree(part, ignore_errors=True)
    accelerator.save_state(str(part), safe_serialization=True)
    write_json(part / "step.json", {"step": step})
    old = output / f"{STATE}.old"
    shutil.rmtree(old, ignore_errors=True)
    if state.exists():
        state.replace(old)
    part.replace(state)
    shutil.rmtree(old, ignore_errors=True)


def resume(accelerator: Any, output: Path) -> int:
    """Loads the newest state, drops the log's lines after it, and returns how many steps it has seen."""
    state, old = output / STATE, output / f"{STATE}.old"
    if not state.exists() and old.exists():  # killed between the two renames of `keep`
        old.replace(state)
    if not state.exists():
        (output / LOG).unlink(missing_ok=True)
        return 0
    step = int(read_json(state / "step.json", "training state")["step"])
    accelerator.load_state(str(state))
    if (output / LOG).is_file():
        lines = (output / LOG).read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n") and orjson.loads(line)["step"] <= step]
        (output / LOG).write_bytes(b"".join(whole))
    return step


def finished(recipe: Recipe, output: Path, overwrite: bool) -> bool:
    """True if this recipe was trained here; notes the recipe otherwise.

    Raises:
        ArtefactError: another recipe's run lies there.
    """
    noted, content = output / RECIPE, recipe.model_dump(mode="json")
    if overwrite:
        for entry in output.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    if noted.is_file():
        found = checked(yaml.safe_load(noted.read_text(encoding="utf-8")), str(noted)).model_dump(mode="json")
        if differing := [key for key in content if content[key] != found[key]]:
            raise ArtefactError(
                f"{output}: the run of another recipe (they differ in {', '.join(differing)}); "
                "--overwrite starts again, --output names another folder"
            )
    noted.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return (output / MODEL).is_dir()


def about(recipe: Recipe, output: Path, images: int) -> dict[str, Any]:
    """What stands beside the shipped weights: recipe, last validation figures, versions."""
    from importlib.metadata import version

    rows = [orjson.loads(line) for line in (output / LOG).read_bytes().splitlines()]
    measured = [row for row in rows if "t2i_R@1" in row]
    return {
        "recipe": recipe.model_dump(mode="json"),
        "images": images,
        "validation": measured[-1] if measured else None,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate", "lexvl-anserini")},
    }


def _split(recipe: Recipe, split: str, data_dir: str | None) -> Any:
    return load_dataset(recipe.data.corpus, split, data_dir, direction="text-to-image")
