"""Recipes: everything that decides a training run, in one YAML file; an unknown key is an error."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from lexvl_anserini.data.yaml_files import parse_yaml, read_mapping
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.machine import find_shipped
from lexvl_anserini.ground.typed import plain
from lexvl_plugins.train import model_settings
from lexvl_plugins.train.corpora.webdataset import FAMILY
from lexvl_plugins.train.objectives import AUXILIARIES, OBJECTIVES, REGULARISERS, LossRow
from lexvl_plugins.train.objectives.family_losses import EXPANDED_AFTER


class DataSettings(model_settings.Settings):
    """The items of a run: images with captions, or queries with passages.

    Attributes:
        corpus, split: images with captions: any corpus that has the direction text-to-image; queries with passages: any
            corpus of texts with judgements, where relevance 0 makes a hard negative, or a list of such corpora.
        validation: split of the same corpus for validation during the run; None for no validation (default for texts).
        images: largest number of images of the training split; None for all.
        held_out: instead of a validation split: every n-th training item validates and does not train, so that choices
            leave the validation split unseen (of a stream as many pairs, the first ones); None for none.
        buffer: of shards (webdataset:), which are streamed: the pairs that are shuffled together, at least a batch;
            None reads all pairs before the training, as those of other corpora.
        others: passages without judgement that validation of texts ranks beside those of its queries.
        titles: passages are read with their titles.
    """

    corpus: str | Annotated[tuple[str, ...], Field(min_length=1)]
    split: str = "train"
    validation: str | None = "val"
    images: PositiveInt | None = None
    held_out: Annotated[int, Field(ge=2)] | None = None
    buffer: PositiveInt | None = None
    others: NonNegativeInt = 1000
    titles: bool = True

    @property
    def corpora(self) -> tuple[str, ...]:
        """The names of all corpora."""
        return (self.corpus,) if isinstance(self.corpus, str) else self.corpus


class Objective(model_settings.Settings):
    """The objective: a row of `objectives.OBJECTIVES` and its arguments.

    Attributes:
        temperature: divides scores; the start value where the temperature is learned.
        learn_temperature: learn the logarithm of the temperature.
        limits: lowest and highest temperature, into which a learned one returns before and after each step.
        learn_bag_temperature: learn another temperature, from the same start, for the scores of bags of words.
        options: further arguments of the function; `topk` defaults to the `topk` of the model.
    """

    name: str
    temperature: PositiveFloat = 0.07
    learn_temperature: bool = False
    limits: tuple[PositiveFloat, PositiveFloat] | None = None
    learn_bag_temperature: bool = False
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_limits(self) -> Objective:
        if self.limits is not None and not self.limits[0] <= self.limits[1]:
            raise ValueError(f"limits {list(self.limits)}: expected the lowest temperature, then the highest")
        return self


class Auxiliary(model_settings.Settings):
    """An additional objective: a row of `objectives.AUXILIARIES`, its weight, and its arguments."""

    name: str
    weight: PositiveFloat
    options: dict[str, Any] = {}


class Regulariser(model_settings.Settings):
    """A row of `objectives.REGULARISERS` on one side, its weight, and the steps until the weight is reached.

    SPLADE's regulariser of documents is the mean of those of positives and of negatives. A ramp is a row of `RAMPS`.
    """

    name: str
    side: Literal["query", "document", "positives", "negatives"]
    weight: PositiveFloat
    ramp_steps: PositiveInt = 1
    ramp: Literal["n-1", "n", "n/(T+1)", "callback"] = "n-1"
    options: dict[str, Any] = {}


class RandAugment(model_settings.Settings):
    """Operations drawn for each image, and their magnitude; LexLIP's (`images/rand_augment.py` has the table)."""

    operations: PositiveInt = 2
    magnitude: float = Field(default=9.0, ge=0, le=30)


class Augmentation(model_settings.Settings):
    """Random views of a training image: the largest shift in pixels, the smallest side of a crop as a share; mirrored.

    Mirrored images are wrong where captions distinguish left and right.

    Attributes:
        rand_augment: operations on the colours and the place of each image, before the crop; None for none.
        half: the share of batches whose images are shrunk to half their side, as in LexLIP's phase 2.
    """

    shift: int = Field(default=0, ge=0)
    zoom: float = Field(default=1.0, gt=0, le=1)
    flip: bool = False
    rand_augment: RandAugment | None = None
    half: float = Field(default=0.0, ge=0, le=1)

    @property
    def moves(self) -> bool:
        """Whether views are crops, shifted or mirrored."""
        return bool(self.shift or self.zoom < 1 or self.flip)


class Optimisation(model_settings.Settings):
    """An optimiser with linear warm-up, then a decay down to `last_learning_rate` times the peak.

    Attributes:
        optimiser: adamw; or lamb (arXiv 1904.00962), for very large batches.
        captions_per_image: captions drawn for each image of a batch; the loss is the mean over them.
        negatives: hard negatives drawn for each query of a batch of texts.
        bucket: batches whose queries are drawn together and sorted by the tokens of their positives, so that texts of a
            batch have similar lengths; 1 for random batches.
        learning_rates: the peak for weights whose names match a pattern (`encoder_p.network.*`: 1.0e-4); of several
            patterns the first counts.
        warmup: the learning rate of step n of W warm-up steps: n/W of the peak, or (n-1)/W as in the schedules of
            transformers, whose first step changes nothing.
        decayed: what `weight_decay` acts on: matrices alone (biases, norms and the temperature do not decay), or all
            weights.
        average: decay of an exponential average of the weights, which validates and is saved; 0 for none.
        piece: largest number of queries, and of documents, that pass a side together; the gradients are those of the
            whole batch, for a second pass of each piece and the memory of one; 0 for all.
        checkpointing: networks of transformers compute the states of their layers again for gradients: less memory.
        patience: validations in a row without a better score after which the stage ends early; 0 for all steps.
    """

    steps: PositiveInt
    optimiser: Literal["adamw", "lamb"] = "adamw"
    batch_size: PositiveInt = 256
    captions_per_image: PositiveInt = 1
    negatives: NonNegativeInt = 0
    bucket: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-3
    learning_rates: dict[str, PositiveFloat] = {}
    last_learning_rate: float = Field(default=0.0, ge=0)
    decay: Literal["cosine", "linear"] = "cosine"
    warmup_steps: PositiveInt = 100
    warmup: Literal["n", "n-1"] = "n"
    weight_decay: float = Field(default=0.0, ge=0)
    decayed: Literal["matrices", "all"] = "matrices"
    betas: tuple[model_settings.Share, model_settings.Share] = (0.9, 0.98)
    clip: PositiveFloat = 2.0
    average: model_settings.Share = 0.0
    piece: NonNegativeInt = 0
    checkpointing: bool = False
    patience: NonNegativeInt = 0


class Momentum(model_settings.Settings):
    """The momentum encoders of LexLIP: the keys that a queue keeps per side, and the decay of their weights."""

    queue: PositiveInt = 11_520
    decay: model_settings.Share = 0.99


class StageSettings(model_settings.Settings):
    """One stage of a training: what it minimises, on which views, and which weights it changes.

    Attributes:
        trained: patterns of the names of weights that change (`encoder_p.head.*`); all weights where there is no
            pattern.
        views: views per image that a frozen network of images computes once and that are stored, the first of them the
            image itself; 0 computes a new view at each step.
        teacher: checkpoint of a dense-crossmodal pair for the auxiliary objective `distil`, or a list of checkpoints,
            whose mean scores teach; texts have the teacher's scores in their data.
        expansion: of texts in a batch of `d2s` or `joint`: always; never, so that texts keep only their own tokens; or
            controlled, so that a draw per batch decides: its probability of `never` begins at 1 and falls to 0.
        expanded_after: the share of the stage's epochs at which the probability of `controlled` is 0; D2S' authors have
            0.95.
        running_penalty: add the sum of the regularisers so far after each of them, as SPLADE's published trainer does:
            of two names (FLOPS on all sides, then L1), the first counts twice.
    """

    objective: Objective
    auxiliaries: tuple[Auxiliary, ...] = ()
    regularisers: tuple[Regulariser, ...] = ()
    augmentation: Augmentation = Augmentation()
    optimisation: Optimisation
    trained: tuple[str, ...] = ()
    views: NonNegativeInt = 0
    teacher: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    expansion: Literal["always", "never", "controlled"] = "always"
    expanded_after: Annotated[float, Field(gt=0, le=1)] = EXPANDED_AFTER
    momentum: Momentum = Momentum()
    running_penalty: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the objective and of the auxiliary objectives."""
        return (self.objective.name, *(auxiliary.name for auxiliary in self.auxiliaries))

    @property
    def whole_batch_losses(self) -> list[str]:
        """Those of them that read a whole batch at once."""
        rows = {**OBJECTIVES, **AUXILIARIES}
        return [name for name in self.names if name in rows and rows[name].whole]

    @property
    def teachers(self) -> tuple[str, ...]:
        """The checkpoints of the teachers; none without `teacher`."""
        return (self.teacher,) if isinstance(self.teacher, str) else self.teacher or ()


STAGE_KEYS = tuple(StageSettings.model_fields)


class Recipe(model_settings.Settings):
    """One training run: stages on one model and its data, one after the other.

    Attributes:
        stages: a recipe of one stage may have the keys of the stage instead.
        precision: of the forward pass: no (float32), bf16 or fp16.
        weights: type of the saved weights: float32 or float16.
        state_every: steps between states from which a run can resume; steps count over all stages.
        validate_every, log_every: steps between validations, between log lines.
    """

    name: str
    seed: int = 12345
    data: DataSettings
    model: model_settings.AnyModel
    stages: tuple[StageSettings, ...] = Field(min_length=1)
    # YAML reads a bare `no` as false.
    precision: Annotated[Literal["no", "bf16", "fp16"], BeforeValidator(lambda v: "no" if v is False else v)] = "no"
    weights: Literal["float32", "float16"] = "float32"
    state_every: PositiveInt = 200
    validate_every: PositiveInt = 500
    log_every: PositiveInt = 20

    @model_validator(mode="before")
    @classmethod
    def _set_validation(cls, content: Any) -> Any:
        """Corpora of images have a split `val`; those of texts, and shards, validate where the recipe says on what."""
        model, data = (content.get(key) if isinstance(content, dict) else None for key in ("model", "data"))
        if not (isinstance(model, dict) and isinstance(data, dict)):
            return content
        without = model.get("kind") in model_settings.TEXT_KINDS or str(data.get("corpus")).startswith(f"{FAMILY}:")
        return {**content, "data": {"validation": None, **data}} if without else content

    @property
    def steps(self) -> int:
        """The steps of all stages."""
        return self.starts[-1]

    @property
    def starts(self) -> list[int]:
        """The steps before each stage, and those of all."""
        return list(accumulate((stage.optimisation.steps for stage in self.stages), initial=0))

    def find_stage(self, step: int) -> int:
        """The stage whose state has so many steps: at the end of a stage, this stage and not the next."""
        return max(bisect_left(self.starts, step) - 1, 0)

    def cut_at(self, step: int) -> Recipe:
        """The recipe of the stages that began before a step, as they decide how a checkpoint of this step is saved."""
        return self.model_copy(update={"stages": self.stages[: self.find_stage(step) + 1]})


def read_recipe(path: Path, changes: dict[str, Any] | None = None) -> Recipe:
    """Reads a YAML file or a recipe of the package by its name; `changes` are values by dotted keys."""
    if not path.is_file():
        known = {shipped.stem: shipped for shipped in sorted(find_shipped("recipes").glob("*.yaml"))}
        if str(path) not in known:
            near = get_close_matches(path.stem, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            names = ", ".join(known)
            raise UsageError(f"{path}: no such recipe; {hint}name a YAML file or one of the package: {names}")
        path = known[str(path)]
    content = read_mapping(path, UsageError)
    for key, value in (changes or {}).items():
        _put(content, key, value)
    return check_recipe(content, str(path))


def parse_changes(settings: Mapping[str, str]) -> dict[str, Any]:
    """`{"optimisation.steps": "100"}` -> `{"optimisation.steps": 100}`: values as YAML, as `read_recipe` takes them."""
    return {key: parse_yaml(value, f"--set {key}", UsageError) for key, value in settings.items()}


def check_recipe(content: dict[str, Any], where: str) -> Recipe:
    """A recipe from its content."""
    one_stage = "stages" not in content
    if one_stage:
        only = {key: content[key] for key in STAGE_KEYS if key in content}
        content = {**{key: value for key, value in content.items() if key not in only}, "stages": [only]}
    elif content["stages"] and (key := next((key for key in STAGE_KEYS if key in content), None)):
        raise UsageError(f"{where}: {key}: a key of a stage, and this recipe has several; set stages.0.{key}")
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        errors = error.errors()
        # A list whose entry is refused counts as too short as well.
        refused = {e["loc"][:size] for e in errors for size in range(len(e["loc"]))}
        problems = []
        for e in errors:
            if e["type"] != "too_short" or e["loc"] not in refused:
                parts = [str(part) for part in e["loc"] if part not in (*model_settings.FORMS, *model_settings.KINDS)]
                key = ".".join(parts[2:] if one_stage and parts[:1] == ["stages"] else parts) or "recipe"
                problems.append(f"{key}: {plain(e, _list_keys(model_settings.Settings))}")
        raise UsageError(f"{where}: {'; '.join(problems)}") from error
    try:
        _check_data(recipe)
        for stage in recipe.stages:
            _check_stage(stage, recipe.model)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return recipe


def _list_keys(settings: type[model_settings.Settings]) -> set[str]:
    """The keys of all settings of recipes."""
    return set(settings.model_fields).union(*map(_list_keys, settings.__subclasses__()))


def _check_data(recipe: Recipe) -> None:
    """Checks that a recipe has no keys of the other kind of items, and validates where a stage may stop early."""
    data, model, stages = recipe.data, recipe.model, recipe.stages
    plans, corpora = [stage.optimisation for stage in stages], ", ".join(data.corpora)
    if any(plan.patience for plan in plans) and not (data.held_out or data.validation):
        raise UsageError("optimisation.patience: nothing validates; set data.held_out or data.validation")
    stored = any(corpus.startswith("embeddings:") for corpus in data.corpora)
    if stored != (isinstance(model, model_settings.HeadSettings) and model.words is not None):
        raise UsageError(f"data.corpus {corpora}: stored vectors alone train d2s and joint with model.words")
    of_images = {
        "data.images": data.images,
        "captions_per_image": any(plan.captions_per_image > 1 for plan in plans),
        "augmentation": any(stage.augmentation != Augmentation() for stage in stages),
        "views": any(stage.views for stage in stages),
        "teacher": any(stage.teacher for stage in stages),
    }
    of_texts = {
        "negatives": any(plan.negatives for plan in plans),
        "data.titles": not data.titles,
        "bucket": any(plan.bucket > 1 for plan in plans),
        "data.corpus as a list": not isinstance(data.corpus, str),
    }
    reads, other, keys = ("texts", "images", of_images) if model.of_texts else ("images", "texts", of_texts)
    if data.buffer is not None:
        if not all(corpus.startswith(f"{FAMILY}:") for corpus in data.corpora):
            raise UsageError(f"data.buffer: only shards are streamed, {FAMILY}:<shards>, found {corpora}")
        if not isinstance(model, model_settings.ModelSettings):
            raise UsageError(f"data.buffer: kind {model.kind} does not train on a stream; leave data.buffer out")
        if (size := max(plan.batch_size for plan in plans)) > data.buffer:
            raise UsageError(f"data.buffer {data.buffer}: has no room for the {size} pairs of a batch")
        computed = {key: of_images[key] for key in ("views", "teacher")} | {
            "the auxiliary 'naming'": any("naming" in stage.names for stage in stages),
            "model.image.class_names": isinstance(model.image, model_settings.PretrainedImage)
            and model.image.class_names,
        }
        if wrong := [key for key, value in computed.items() if value]:
            raise UsageError(f"{', '.join(wrong)}: computed once of all pairs; leave data.buffer out")
    if wrong := [key for key, value in keys.items() if value]:
        raise UsageError(f"{', '.join(wrong)}: for {other} only; kind {model.kind} trains on {reads}")


def _check_stage(stage: StageSettings, model: model_settings.AnyModel) -> None:
    """Checks that the keys of a stage fit each other and the model."""
    objective, kind = stage.objective, model.kind
    if "temperature" in objective.options:
        raise UsageError("objective.options.temperature: the temperature is objective.temperature")
    pretrained = isinstance(getattr(model, "image", None), model_settings.PretrainedImage)
    if stage.views and isinstance(model, model_settings.ModelSettings) and not pretrained:
        raise UsageError(f"views {stage.views}: only the views of a pretrained image side are stored")
    changes = stage.augmentation
    if stage.views and (changes.rand_augment or changes.half):
        raise UsageError(f"augmentation: views {stage.views} are stored, without rand_augment and half; set views: 0")
    if changes.half and not pretrained:
        raise UsageError("augmentation.half: a new image side reads one resolution; only a pretrained one reads half")
    if ("distil" in stage.names) != (stage.teacher is not None) and not model.of_texts:
        raise UsageError("the auxiliary 'distil' and a teacher need each other")
    masking = [name for name, row in OBJECTIVES.items() if row.masks]
    if stage.expansion != "always" and objective.name not in masking:
        masks = " and ".join(masking)
        raise UsageError(f"expansion {stage.expansion}: only {masks} mask texts by batch, not {objective.name}")
    if stage.expanded_after != EXPANDED_AFTER and stage.expansion != "controlled":
        raise UsageError(f"expanded_after: only expansion controlled reads it, found {stage.expansion}")
    if stage.optimisation.piece and (whole := sorted(stage.whole_batch_losses)):
        raise UsageError(f"optimisation.piece: {', '.join(whole)} reads a whole batch at once; leave piece out")
    if objective.name == "lexlip_momentum" and (size := stage.optimisation.batch_size) > stage.momentum.queue:
        raise UsageError(f"momentum.queue {stage.momentum.queue}: has no room for the {size} keys of a batch")
    drawn = stage.views or stage.teacher or stage.augmentation != Augmentation()
    if isinstance(model, model_settings.HeadSettings) and drawn:
        raise UsageError(f"views, teacher, augmentation: kind {kind} reads the vectors of its dense pair")
    _check_loss("objective.name", objective, OBJECTIVES, model)
    for auxiliary in stage.auxiliaries:
        _check_loss("auxiliary", auxiliary, AUXILIARIES, model)
    for regulariser in stage.regularisers:
        _check_loss("regulariser", regulariser, REGULARISERS, model)


def _check_loss(
    role: str, loss: Objective | Auxiliary | Regulariser, known: Mapping[str, LossRow], model: model_settings.AnyModel
) -> None:
    """Checks that a table has an objective or regulariser, that it fits the model, and that it has its options."""
    name, kind = loss.name, model.kind
    if name not in known:
        raise UsageError(f"{role} {name!r}, expected one of {', '.join(known)}")
    row = known[name]
    if row.documents == "texts" and not model.of_texts:
        raise UsageError(f"{role} {name!r} needs texts on both sides; kind {kind} reads images")
    if row.documents == "images" and model.of_texts:
        raise UsageError(f"{role} {name!r} needs images with captions; kind {kind} reads texts")
    if row.needs and name not in model.computes:
        raise UsageError(f"{role} {name!r} needs {row.needs}, which {kind} does not compute")
    if row.lexical and not model.lexical:
        raise UsageError(f"{role} {name!r} needs terms as dimensions, which {kind} does not have")
    # The first argument is the batch.
    offered = list(inspect.signature(row.function).parameters)[1:]
    if unknown := [option for option in loss.options if option not in offered]:
        expected = f"expected some of {', '.join(offered)}" if offered else "it has none"
        raise UsageError(f"{role} {name!r} has no options {', '.join(map(repr, unknown))}; {expected}")
    types = get_type_hints(row.function)
    for option, value in loss.options.items():
        try:
            config = ConfigDict(arbitrary_types_allowed=True)  # options may be tensors where code calls an objective
            TypeAdapter(types[option], config=config).validate_python(value, strict=True)
        except ValidationError as error:
            raise UsageError(f"{role} {name!r}: option {option}: {plain(error.errors()[0])}") from error


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key; a number in it counts the entries of a list from 0 (`stages.1.optimisation.steps`)."""
    *parents, last = key.split(".")
    inner: Any = content
    for parent in parents:
        if isinstance(inner, list):
            if not parent.isdigit() or int(parent) >= len(inner):
                raise UsageError(f"--set {key}: {parent} is no entry of a list of {len(inner)}, counted from 0")
            inner = inner[int(parent)]
        else:
            inner = inner.setdefault(parent, {})
        if not isinstance(inner, (dict, list)):
            raise UsageError(f"--set {key}: {parent} has no keys")
    if isinstance(inner, list):
        raise UsageError(f"--set {key}: a whole entry of a list cannot be set; set the keys in it")
    inner[last] = value
