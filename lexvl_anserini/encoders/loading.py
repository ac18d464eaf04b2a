"""`EncoderSpec`: an encoder with its settings, and how it becomes the encoder; `load_encoder`: the same by arguments.

`load_encoder_from` loads the encoder of an artefact. This module loads no model library; the encoder's own module does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.cards import CARDS, PACKAGED, Card
from lexvl_anserini.encoders.checkpoints.find import (
    Checkpoint,
    combine_digests,
    find_checkpoint,
    find_parts,
    has_tokenizer,
    resolve_inside,
)
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import (
    ArtefactError,
    CheckpointError,
    LexvlError,
    UnknownName,
    UsageError,
    describe_error,
)
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import check_model_libraries, expand_path
from lexvl_anserini.ground.manifest import NO_ENCODER, PLACES, EncoderRef
from lexvl_anserini.ground.progress import waiting
from lexvl_anserini.ground.registry import RUNTIMES, TORCH, WRAPPERS, import_home
from lexvl_anserini.ground.typed import check_type, plain, show_value

if TYPE_CHECKING:
    import torch

# Models load one at a time: transformers changes settings of the whole process meanwhile.
LOADING = RLock()

# The direction of an encoder that reads images where none is given.
DEFAULT_DIRECTION = "text-to-image"
# In the folder of an exported encoder, and of a saved one.
EXPORT, SAVED = "export.json", "lexvl.json"
SAVED_KEYS = (("encoder", str, "a text"), ("options", dict, "an object"), ("places", dict, "an object"))


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder before it is loaded: the arguments of `load_encoder`, with the runtime among the options."""

    name: str
    checkpoint: str | None = None
    tokenizer: str | None = None
    backbone_config: str | None = None
    device: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Encoder:
        """The encoder."""
        _ = CARDS[self.name]
        own = dict(self.options)
        runtime = own.pop("runtime", TORCH)
        check_type("runtime", runtime, str, "a name, such as 'torch'")
        load = import_home(RUNTIMES[runtime].home)
        wrapping = {option: own.pop(option) for option in self.options if option in WRAPPERS}
        with waiting(f"loads {self.name}"):
            encoder: Encoder = load(replace(self, options=own))
            for option, value in wrapping.items():
                encoder = import_home(WRAPPERS[option])(encoder, value)
        return encoder


@dataclass(frozen=True)
class Source:
    """The files that an encoder is loaded from; tokenizer and backbone_config replace the checkpoint's."""

    checkpoint: Checkpoint | None
    device: torch.device
    tokenizer: str | None = None
    backbone_config: str | None = None

    def required(self, encoder: str) -> Checkpoint:
        """The checkpoint."""
        if self.checkpoint is None:
            card = CARDS[encoder]
            known = " or ".join(card.packaged or card.checkpoints[:1])
            example = f", for example {known}" if known else ""
            raise UsageError(f"encoder {encoder!r} needs a checkpoint, a folder or a hub id{example}")
        return self.checkpoint

    def tokenizer_folder(self, *near: Path, default: str | None = None) -> Path:
        """The folder of the tokenizer: that of the user, else the first of `near` that has one, else `default`.

        `near` is the checkpoint's folder by default. Without `default` (a packaged name or hub id) the first of `near`
        is returned, and `load_tokenizer` says what it lacks.
        """
        if self.tokenizer is not None:
            return find_checkpoint(self.tokenizer, weights=False).folder
        if not near and self.checkpoint is not None:
            near = (self.checkpoint.folder,)
        if nearest := next((folder for folder in near if has_tokenizer(folder)), None):
            return nearest
        if default is None:
            return near[0]
        try:
            return find_checkpoint(default, weights=False).folder
        except CheckpointError as error:
            remedy = f"give a folder that has the tokenizer of {default} as tokenizer"
            raise CheckpointError(f"{error}; or {remedy}") from error


def load_encoder(
    name: str,
    checkpoint: str | Path | None = None,
    tokenizer: str | Path | None = None,
    backbone_config: str | Path | None = None,
    device: str = "auto",
    runtime: str = "torch",
    **options: Any,
) -> Encoder:
    """Loads a registered encoder.

    Args:
        name: a row of `cards.CARDS`.
        checkpoint: a folder, a hub id (`owner/name`, `owner/name@revision`) or a packaged name such as `minilm`.
        tokenizer: a folder or hub id of another tokenizer than the checkpoint's.
        backbone_config: a folder or hub id of another backbone configuration than the checkpoint's.
        device: auto, cpu, cuda, cuda:1, mps.
        runtime: what computes the networks, a row of `registry.RUNTIMES`; other rows than
            `torch` have checkpoints of their own.
        options: of the encoder; the parameters of its loader, and rows of `registry.WRAPPERS`.

    Raises:
        UsageError: no such encoder, option or value, or a checkpoint is needed and missing.
        CheckpointError: the checkpoint is not found, is incomplete, or is of another kind.
        InstallationError: a package is missing (`MissingExtra`), or in a version that does not work.
    """
    check_type("name", name, str, "the name of an encoder, such as 'splade'")
    named = {"checkpoint": checkpoint, "tokenizer": tokenizer, "backbone_config": backbone_config}
    places = {argument: _check_place(argument, value) for argument, value in named.items()}
    return EncoderSpec(name, **places, device=device, options={**options, "runtime": runtime}).load()


def _check_place(argument: str, value: str | Path | None) -> str | None:
    """A place as a text; a path must exist, so that no hub is searched for it."""
    check_type(argument, value, str | Path | None, "a folder, a hub id or a packaged name")
    if isinstance(value, Path) and not expand_path(value).exists():
        raise CheckpointError(f"{argument} {value}: no such file or folder; a hub id is a text, not a Path")
    return None if value is None else str(value)


def load_by_torch(spec: EncoderSpec) -> Encoder:
    """The runtime `torch`; errors as those of `load_encoder`."""
    card = CARDS[spec.name]
    check_model_libraries()
    loader = import_home(card.loader)
    named = check_options(spec.name, loader, spec.options)
    checkpoint = _find_or_default(card, spec.checkpoint)
    if checkpoint and (checkpoint.folder / EXPORT).is_file():
        remedy = "load it with the runtime of its export, or name the checkpoint that it was exported from"
        raise CheckpointError(f"{checkpoint.reference}: an exported encoder; {remedy}")
    saved = read_saved(checkpoint) if checkpoint else None
    stored, weights = saved if saved and saved[0].name == spec.name else (EncoderSpec(spec.name), checkpoint)
    # The default direction is noted too, so that naming it gives the same request.
    direction = {"direction": DEFAULT_DIRECTION} if card.reads_images else {}
    places = {key: value for key, value in stored.options.items() if key in PLACES}
    others = {key: value for key, value in stored.options.items() if key not in PLACES}
    options = {**check_options(spec.name, loader, {**direction, **others}), **named}
    device = choose_device(spec.device)
    source = Source(weights, device, spec.tokenizer or stored.tokenizer, spec.backbone_config or stored.backbone_config)
    import torch

    try:
        # Networks draw weights before they get those of the checkpoint; the user's random numbers go on as before.
        with LOADING, torch.random.fork_rng(devices=()):
            encoder: Encoder = loader(source, **{**places, **options})
    except LexvlError:
        raise
    except Exception as error:  # a value of another type than its reader expects raises any error
        reason = f"cannot be loaded as {spec.name} ({describe_error(error)})"
        raise CheckpointError(
            f"{spec.checkpoint or card.default_checkpoint}: {reason}; a configuration, tokenizer or weight file has "
            "another content than this encoder reads (--verbose shows where)"
        ) from error
    parts = find_parts({"tokenizer": spec.tokenizer, "backbone_config": spec.backbone_config, **options})
    return replace(
        encoder,
        checkpoint=checkpoint.reference if checkpoint else None,
        checkpoint_digest=combine_digests(checkpoint, parts),
        options={**options, **{key: part.reference for key, part in parts.items()}},
        device=str(device),
    )


def _find_or_default(card: Card, reference: str | None) -> Checkpoint | None:
    """The checkpoint that the user names, or the default of the encoder; None if there is none."""
    try:
        return find_checkpoint(place) if (place := reference or card.default_checkpoint) else None
    except CheckpointError as error:
        if reference is None and card.without_hub:
            raise CheckpointError(f"{error} as checkpoint; the checkpoint {card.without_hub}, needs no hub") from error
        raise


def read_saved(checkpoint: Checkpoint) -> tuple[EncoderSpec, Checkpoint] | None:
    """The encoder of a saved folder, and the checkpoint of its weights; None if `save_pretrained` did not write it.

    `lexvl.json` has `encoder`, `options`, `places` of its other parts, and `folder` and `file` of the weights.
    """
    path = checkpoint.folder / SAVED
    if checkpoint.file is not None or not path.is_file():
        return None
    where, data = str(path), read_json(path, "saved encoder", CheckpointError)
    for key, kind, expected in SAVED_KEYS:
        if not isinstance(data.setdefault(key, {} if kind is dict else None), kind):
            raise CheckpointError(f"{where}: {key} is {show_value(data[key])}, expected {expected}; save it again")
    options, places = data["options"], data["places"]
    if named := sorted(set(options) & {"source", *PLACES}):
        raise CheckpointError(f"{where}: {named[0]!r} among the options; save the encoder again")
    if strange := sorted(set(places) - set(PLACES)):
        raise CheckpointError(f"{where}: {strange[0]!r:.80} is no part of an encoder; known: {', '.join(PLACES)}")
    for key, name in places.items():
        places[key] = name if name in PACKAGED else str(resolve_inside(checkpoint.folder, name, where))
    folder = resolve_inside(checkpoint.folder, data.get("folder") or "", where)
    file = resolve_inside(folder, data["file"], where) if data.get("file") else None
    if file is not None and not file.is_file():
        raise CheckpointError(f"{where}: names the weight file {data['file']!r}, which is not there")
    tokenizer, config = (places.pop(key, None) for key in ("tokenizer", "backbone_config"))
    spec = EncoderSpec(data["encoder"], checkpoint.reference, tokenizer, config, options={**options, **places})
    return spec, replace(checkpoint, folder=folder, file=file)


def load_encoder_from(
    ref: EncoderRef,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    vocabulary: str | None = None,
) -> Encoder:
    """Loads the encoder that made an artefact.

    Args:
        ref: the encoder of a manifest: `manifest.encoder`.
        checkpoint: the folder of the same checkpoint now, if it moved.
        tokenizer: the folder of its tokenizer now, if it moved.
        device: auto, cpu, cuda, ...
        settings: options of the query side that replace those of the manifest, for example `query_topk`.
        vocabulary: digest that the encoder's vocabulary must have (`manifest.vocabulary_digest`); None for no check.
    """
    if ref.name == NO_ENCODER:
        remedy = "search encoded queries or an expression, or import them again and name their encoder"
        raise UsageError(f"these vectors were imported without an encoder, which texts need: {remedy}")
    if ref.fields:
        names = ", ".join(field.name for field in ref.fields)
        remedy = "search and explain load its encoders; do this with the shards of one field"
        raise UsageError(f"an index of the fields {names}: documents have vectors of several encoders; {remedy}")
    options = {**ref.options, **(settings or {})}
    if options.get("runtime", TORCH) != TORCH:  # it has all parts in one folder
        options = {key: value for key, value in options.items() if key not in PLACES}
    own_tokenizer, config = (options.pop(key, None) for key in ("tokenizer", "backbone_config"))
    places = (checkpoint or ref.checkpoint, tokenizer or own_tokenizer, config)
    spec = EncoderSpec(ref.name, *places, device=device, options=options)
    model = spec.load()
    _refuse_other(model, spec, ref)
    digest = model.vocabulary.digest if model.kind == "impact" else None
    if digest and vocabulary and digest != vocabulary:
        digests = f"has vocabulary {digest[:16]}, the index was made with {vocabulary[:16]}"
        remedy = "encode again or name the right checkpoint and tokenizer"
        raise ArtefactError(f"encoder {model.name!r} {digests}; {remedy}")
    return model


def _refuse_other(model: Encoder, spec: EncoderSpec, ref: EncoderRef) -> None:
    """Refuses an encoder that did not make the artefact: its checkpoint, or what was exported, is another one."""
    further = sorted(model.options.keys() - {"runtime", *PLACES, *spec.options})
    if further and "runtime" in model.options:
        option = f"{further[0]}={model.options[further[0]]}"
        raise ArtefactError(f"{model.checkpoint}: was exported with {option}, the index made without; export again")
    digest, named = model.checkpoint_digest, dict(model.options)
    if "backbone_checkpoint" in spec.options and "backbone_checkpoint" not in ref.options:
        # The corpus provided vectors; now a backbone that the index does not name encodes texts and images.
        named = {"tokenizer": spec.tokenizer, "backbone_config": spec.backbone_config, **spec.options}
        named.pop("backbone_checkpoint")
        digest = combine_digests(find_checkpoint(model.checkpoint) if model.checkpoint else None, find_parts(named))
    if digest != ref.checkpoint_digest and "runtime" not in model.options and model.checkpoint:
        older = combine_digests(find_checkpoint(model.checkpoint), find_parts(named), older=True)
        digest = older if older == ref.checkpoint_digest else digest
    if digest != ref.checkpoint_digest:
        digests = f"has digest {str(digest)[:16]}, the index was made with {str(ref.checkpoint_digest)[:16]}"
        raise ArtefactError(f"checkpoint {model.checkpoint} {digests}; give that checkpoint or encode again")


def check_options(name: str, load: Callable[..., Encoder], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options converted to the types of the loader's signature ("64" becomes 64)."""
    from pydantic import TypeAdapter, ValidationError

    parameters = inspect.signature(load, eval_str=True).parameters
    known = [parameter for parameter in parameters if parameter != "source"]
    checked = {}
    for key, value in options.items():
        if key not in known:
            raise UnknownName(f"option of encoder {name!r}", key, known or ["(none)"])
        try:
            checked[key] = TypeAdapter(parameters[key].annotation).validate_python(value)
        except ValidationError as error:
            raise UsageError(f"encoder {name!r}: option {key}={plain(error.errors()[0])}") from error
    return checked


def choose_device(device: str) -> torch.device:
    """The device of a name; `auto` is the first CUDA device, or the CPU if there is none."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()  # also raises for `meta`, which computes nothing
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {device!r} cannot be used here ({reason}); try the device cpu") from error
    return chosen
