"""Recipes: everything that decides a training run, as one YAML file in which an unknown key is an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.objectives import AUXILIARIES, LEXICAL, OBJECTIVES, OF_TEXTS
from lexvl_anserini.training.regularisers import REGULARISERS


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, lt=1)]


def _heads_fit(part: Text | Image) -> None:
    if part.width % part.heads:
        raise ValueError(f"width {part.width} is no multiple of heads {part.heads}")


class Data(_Part):
    """What is learned from.

    corpus, split  images with captions, any that has the direction text-to-image
    validation     split of the same corpus that is measured between
    images         of the training split at most; None for all
    """

    corpus: str
    split: str = "train"
    validation: str | None = "val"
    images: PositiveInt | None = None


class Text(_Part):
    """The text side: a BERT from nothing over words learned from the training captions.

    words       tokens of the vocabulary at most
    max_length  tokens read, special ones included
    """

    words: PositiveInt = 2000
    max_length: PositiveInt = 32
    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    dropout: Share = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Text:
        _heads_fit(self)
        return self


class Stem(_Part):
    """A convolutional stem: channels and residual blocks per stage, each of which halves the grid."""

    widths: tuple[PositiveInt, ...] = Field(min_length=1)
    blocks: tuple[NonNegativeInt, ...]

    @model_validator(mode="after")
    def _fits(self) -> Stem:
        if len(self.widths) != len(self.blocks):
            raise ValueError(f"{len(self.widths)} widths and {len(self.blocks)} blocks; expected one of each per stage")
        return self


class Image(_Part):
    """The image side: a patch transformer from nothing; `patch_size` is the total stride of a stem."""

    resolution: PositiveInt = 64
    patch_size: PositiveInt = 8
    width: PositiveInt = 128
    layers: int = Field(default=2, ge=0)
    heads: PositiveInt = 4
    stem: Stem | None = None

    @model_validator(mode="after")
    def _fits(self) -> Image:
        if self.resolution % self.patch_size:
            raise ValueError(f"resolution {self.resolution} is no multiple of patch_size {self.patch_size}")
        _heads_fit(self)
        if self.stem and (stride := 2 ** len(self.stem.widths)) != self.patch_size:
            raise ValueError(f"a stem of {len(self.stem.widths)} stages has stride {stride}, not {self.patch_size}")
        return self


class Model(_Part):
    """A pair of towers.

    kind        vdr-crossmodal (lexical) or dense-crossmodal (its CLIP-style twin)
    topk        dimensions that the lexical checkpoint keeps of an image, and of a text besides its own tokens
    dimensions  of the twin's vectors
    """

    kind: Literal["vdr-crossmodal", "dense-crossmodal"]
    text: Text = Text()
    image: Image = Image()
    topk: PositiveInt = 64
    dimensions: PositiveInt = 256


class Objective(_Part):
    """What is minimised: a row of `objectives.OBJECTIVES` and its arguments.

    temperature        divides scores; where it is learned, its start
    learn_temperature  learn its logarithm
    options            further arguments of the function; `topk`, where it has one, defaults to the model's
    """

    name: str
    temperature: PositiveFloat = 0.07
    learn_temperature: bool = False
    options: dict[str, Any] = {}


class Auxiliary(_Part):
    """What is minimised besides: a row of `objectives.AUXILIARIES`, its weight, and its arguments."""

    name: str
    weight: PositiveFloat
    options: dict[str, Any] = {}


class Regulariser(_Part):
    """A row of `regularisers.REGULARISERS` on one side, its weight, and the steps until that is reached."""

    name: str
    side: Literal["query", "document"]
    weight: PositiveFloat
    ramp_steps: PositiveInt = 1


class Augmentation(_Part):
    """Random views of a training picture.

    shift  pixels in each direction at most
    zoom   smallest share of the side that is cut out
    flip   mirror every other picture (wrong where captions tell left from right)
    """

    shift: int = Field(default=0, ge=0)
    zoom: float = Field(default=1.0, gt=0, le=1)
    flip: bool = False


class Optimisation(_Part):
    """AdamW with linear warm-up, then a cosine to `last_learning_rate` times the peak.

    captions_per_image  drawn for each image of a batch; the loss is their mean
    """

    steps: PositiveInt
    batch_size: PositiveInt = 256
    captions_per_image: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-3
    last_learning_rate: float = Field(default=0.0, ge=0)
    warmup_steps: PositiveInt = 100
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[Share, Share] = (0.9, 0.98)
    clip: PositiveFloat = 2.0


class Recipe(_Part):
    """One training run.

    precision    of the forward pass: no (float32), bf16 or fp16
    weights      of the shipped checkpoint: float32 or float16
    state_every  steps between resumable states
    validate_every, log_every  steps
    """

    name: str
    seed: int = 12345
    data: Data
    model: Model
    objective: Objective
    auxiliaries: tuple[Auxiliary, ...] = ()
    regularisers: tuple[Regulariser, ...] = ()
    augmentation: Augmentation = Augmentation()
    optimisation: Optimisation
    precision: Literal["no", "bf16", "fp16"] = "no"
    weights: Literal["float32", "float16"] = "float32"
    state_every: PositiveInt = 200
    validate_every: PositiveInt = 500
    log_every: PositiveInt = 20


def read_recipe(path: Path, changes: dict[str, Any] | None = None) -> Recipe:
    """Reads a recipe; `changes` maps dotted keys to values that replace the file's.

    Raises:
        UsageError: not there, not YAML, an unknown key or a value that does not fit; all of them are named.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such recipe; those of the project are runs/recipes/*.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected keys and values, found {type(content).__name__}")
    for key, value in (changes or {}).items():
        _put(content, key, value)
    return checked(content, str(path))


def checked(content: dict[str, Any], where: str) -> Recipe:
    """A recipe from its content.

    Raises:
        UsageError: names every key that does not fit.
    """
    # The sides are built by a `Model`, which is defined here.
    from lexvl_anserini.training.pairs import KINDS

    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'recipe'}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"{where}: {'; '.join(problems)}") from error
    objective, auxiliaries = recipe.objective, recipe.auxiliaries
    asked: list[tuple[str, str, Mapping[str, Callable[..., Any]], Mapping[str, Any]]] = [
        ("objective.name", objective.name, OBJECTIVES, objective.options),
        *(("auxiliary", auxiliary.name, AUXILIARIES, auxiliary.options) for auxiliary in auxiliaries),
        *(("regulariser", regulariser.name, REGULARISERS, {}) for regulariser in recipe.regularisers),
    ]
    for what, name, known, options in asked:
        if name not in known:
            raise UsageError(f"{where}: {what} {name!r}, expected one of {', '.join(known)}")
        if name in OF_TEXTS:
            raise UsageError(f"{where}: {what} {name!r} needs texts on both sides; recipes train on pictures")
        if name in LEXICAL and not KINDS[recipe.model.kind].lexical:
            raise UsageError(f"{where}: {what} {name!r} needs terms as dimensions, which {recipe.model.kind} has not")
        # The first argument is the batch.
        offered = list(inspect.signature(known[name]).parameters)[1:]
        if unknown := [option for option in options if option not in offered]:
            told = f"expected some of {', '.join(offered)}" if offered else "it has none"
            raise UsageError(f"{where}: {what} {name!r} has no options {', '.join(map(repr, unknown))}; {told}")
    if "temperature" in objective.options:
        raise UsageError(f"{where}: objective.options.temperature: the temperature is objective.temperature")
    return recipe


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise UsageError(f"--set {key}: {parent} has no keys")
    content[last] = value
