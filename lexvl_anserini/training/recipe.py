"""Recipes: everything that decides a training run, in one YAML file; an unknown key is an error."""

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
from lexvl_anserini.training.objectives import AUXILIARIES, LEXICAL, OBJECTIVES, OF_TEXTS, REGULARISERS


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, lt=1)]


def _heads_fit(side: TextSettings | ImageSettings) -> None:
    if side.width % side.heads:
        raise ValueError(f"width {side.width} is no multiple of heads {side.heads}")


class DataSettings(_Settings):
    """The images and captions of a run.

    corpus, split  images with captions: any corpus that has the direction text-to-image
    validation     split of the same corpus for validation during the run; None for no validation
    images         largest number of images of the training split; None for all
    """

    corpus: str
    split: str = "train"
    validation: str | None = "val"
    images: PositiveInt | None = None


class TextSettings(_Settings):
    """The text side: a BERT with random weights, over a vocabulary learned from the training captions.

    words       largest number of tokens of the vocabulary
    max_length  tokens read of a text, special tokens included
    """

    words: PositiveInt = 2000
    max_length: PositiveInt = 32
    width: PositiveInt = 128
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    dropout: Share = 0.0

    @model_validator(mode="after")
    def _fits(self) -> TextSettings:
        _heads_fit(self)
        return self


class StemSettings(_Settings):
    """A convolutional stem: channels and residual blocks of each stage; each stage halves the grid."""

    widths: tuple[PositiveInt, ...] = Field(min_length=1)
    blocks: tuple[NonNegativeInt, ...]

    @model_validator(mode="after")
    def _fits(self) -> StemSettings:
        if len(self.widths) != len(self.blocks):
            raise ValueError(f"{len(self.widths)} widths and {len(self.blocks)} blocks; expected one of each per stage")
        return self


class ImageSettings(_Settings):
    """The image side: a patch transformer with random weights; `patch_size` is the total stride of a stem."""

    resolution: PositiveInt = 64
    patch_size: PositiveInt = 8
    width: PositiveInt = 128
    layers: int = Field(default=2, ge=0)
    heads: PositiveInt = 4
    stem: StemSettings | None = None

    @model_validator(mode="after")
    def _fits(self) -> ImageSettings:
        if self.resolution % self.patch_size:
            raise ValueError(f"resolution {self.resolution} is no multiple of patch_size {self.patch_size}")
        _heads_fit(self)
        if self.stem and (stride := 2 ** len(self.stem.widths)) != self.patch_size:
            raise ValueError(f"a stem of {len(self.stem.widths)} stages has stride {stride}, not {self.patch_size}")
        return self


# Kinds of models whose dimensions are terms.
LEXICAL_KINDS = frozenset({"vdr-crossmodal"})


class ModelSettings(_Settings):
    """A pair of towers.

    kind        vdr-crossmodal (lexical) or dense-crossmodal (its CLIP-style twin)
    topk        dimensions that a lexical checkpoint keeps of an image, and of a text besides its own tokens
    dimensions  of the vectors of the twin
    """

    kind: Literal["vdr-crossmodal", "dense-crossmodal"]
    text: TextSettings = TextSettings()
    image: ImageSettings = ImageSettings()
    topk: PositiveInt = 64
    dimensions: PositiveInt = 256

    @property
    def lexical(self) -> bool:
        """Whether dimensions are terms, so that vectors pass the sparsifier before search."""
        return self.kind in LEXICAL_KINDS


class Objective(_Settings):
    """The objective: a row of `objectives.OBJECTIVES` and its arguments.

    temperature        divides scores; the start value where the temperature is learned
    learn_temperature  learn the logarithm of the temperature
    options            further arguments of the function; `topk` defaults to the `topk` of the model
    """

    name: str
    temperature: PositiveFloat = 0.07
    learn_temperature: bool = False
    options: dict[str, Any] = {}


class Auxiliary(_Settings):
    """An additional objective: a row of `objectives.AUXILIARIES`, its weight, and its arguments."""

    name: str
    weight: PositiveFloat
    options: dict[str, Any] = {}


class Regulariser(_Settings):
    """A row of `objectives.REGULARISERS` on one side, its weight, and the steps until the weight is reached."""

    name: str
    side: Literal["query", "document"]
    weight: PositiveFloat
    ramp_steps: PositiveInt = 1


class Augmentation(_Settings):
    """Random views of a training image.

    shift  largest shift in each direction, in pixels
    zoom   smallest side of a crop, as a share of the side of the image
    flip   mirror half of the images (wrong where captions distinguish left and right)
    """

    shift: int = Field(default=0, ge=0)
    zoom: float = Field(default=1.0, gt=0, le=1)
    flip: bool = False


class Optimisation(_Settings):
    """AdamW with linear warm-up, then a cosine down to `last_learning_rate` times the peak.

    captions_per_image  captions drawn for each image of a batch; the loss is the mean over them
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


class Recipe(_Settings):
    """One training run.

    precision    of the forward pass: no (float32), bf16 or fp16
    weights      type of the saved weights: float32 or float16
    state_every  steps between states from which a run can resume
    validate_every, log_every  steps between validations, between log lines
    """

    name: str
    seed: int = 12345
    data: DataSettings
    model: ModelSettings
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
        UsageError: the file does not exist or is not YAML; or keys or values are wrong (the error lists all).
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
        UsageError: lists every key that does not fit.
    """
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'recipe'}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"{where}: {'; '.join(problems)}") from error
    _check_functions(recipe, where)
    if "temperature" in recipe.objective.options:
        raise UsageError(f"{where}: objective.options.temperature: the temperature is objective.temperature")
    return recipe


def _check_functions(recipe: Recipe, where: str) -> None:
    """Checks that objectives and regularisers exist, fit the model, and have the options of the recipe."""
    objective, kind = recipe.objective, recipe.model.kind
    chosen: list[tuple[str, str, Mapping[str, Callable[..., Any]], Mapping[str, Any]]] = [
        ("objective.name", objective.name, OBJECTIVES, objective.options),
        *(("auxiliary", auxiliary.name, AUXILIARIES, auxiliary.options) for auxiliary in recipe.auxiliaries),
        *(("regulariser", regulariser.name, REGULARISERS, {}) for regulariser in recipe.regularisers),
    ]
    for role, name, known, options in chosen:
        if name not in known:
            raise UsageError(f"{where}: {role} {name!r}, expected one of {', '.join(known)}")
        if name in OF_TEXTS:
            raise UsageError(f"{where}: {role} {name!r} needs texts on both sides; recipes train on images")
        if name in LEXICAL and not recipe.model.lexical:
            raise UsageError(f"{where}: {role} {name!r} needs terms as dimensions, which {kind} does not have")
        # The first argument is the batch.
        offered = list(inspect.signature(known[name]).parameters)[1:]
        if unknown := [option for option in options if option not in offered]:
            expected = f"expected some of {', '.join(offered)}" if offered else "it has none"
            raise UsageError(f"{where}: {role} {name!r} has no options {', '.join(map(repr, unknown))}; {expected}")


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
        if not isinstance(content, dict):
            raise UsageError(f"--set {key}: {parent} has no keys")
    content[last] = value
