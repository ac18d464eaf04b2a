"""`load_encoder`: a registered name, a checkpoint and options -> an encoder; `load_encoder_of`: the one of an artefact.

This module loads no model library; the encoder's own module does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from lexvl_anserini.encoders.cards import CARDS, Card
from lexvl_anserini.encoders.checkpoints.filenames import has_tokenizer
from lexvl_anserini.encoders.checkpoints.find import (
    SAVED,
    Checkpoint,
    SavedEncoder,
    digest_of,
    find_checkpoint,
    other_parts,
    read_saved,
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
from lexvl_anserini.ground.machine import check_model_libraries, expand_path
from lexvl_anserini.ground.manifest import NO_ENCODER, PLACES, EncoderRef
from lexvl_anserini.ground.progress import waiting
from lexvl_anserini.ground.registry import RUNTIMES, TORCH, WRAPPERS, import_home
from lexvl_anserini.ground.typed import check_type, plain

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Models load one at a time: transformers changes settings of the whole process meanwhile.
_LOADING = RLock()

# The direction of an encoder that reads images where none is given.
DEFAULT_DIRECTION = "text-to-image"
# In the folder of an exported encoder.
EXPORT = "export.json"


@dataclass(frozen=True)
class Source:
    """The files that an encoder is loaded from.

    checkpoint       weights and, unless given below, tokenizer and configuration
    device           that the model computes on
    tokenizer        a folder or hub id of another tokenizer
    backbone_config  a folder or hub id of another configuration of the backbone
    """

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
        """The folder of the tokenizer.

        Args:
            near: folders that may hold it, best first; default the checkpoint's.
            default: packaged name or hub id of the tokenizer where none of `near` holds one. Without a default the
                first of `near` is returned, and `load_tokenizer` says what it lacks.

        Returns:
            The folder that the user named, else the first of `near` with a tokenizer, else that of `default`.

        Raises:
            CheckpointError: the hub does not give the default; the message says how to name a folder.
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
            raise CheckpointError(
                f"{error}; or give a folder that has the tokenizer of {default} as tokenizer"
            ) from error


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
        UnknownName: no such encoder or runtime, or it has no such option.
        UsageError: an option's value does not fit, or a checkpoint is needed and missing.
        CheckpointError: the checkpoint is not found, is incomplete, or is of another kind.
        InstallationError: torch or transformers is missing, or in a version that does not work.
        MissingExtra: the package of the runtime is not installed.
    """
    check_type("name", name, str, "the name of an encoder, such as 'splade'")
    places = [
        _place("checkpoint", checkpoint),
        _place("tokenizer", tokenizer),
        _place("backbone_config", backbone_config),
    ]
    check_type("runtime", runtime, str, "a name, such as 'torch'")
    CARDS[name]
    load = import_home(RUNTIMES[runtime].home)
    wrapping = {option: value for option, value in options.items() if option in WRAPPERS}
    with waiting(f"loads {name}"):
        encoder: Encoder = load(name, *places, device, {k: v for k, v in options.items() if k not in wrapping})
        for option, value in wrapping.items():
            encoder = import_home(WRAPPERS[option])(encoder, value)
    return encoder


def _place(argument: str, value: str | Path | None) -> str | None:
    """A place as a text; a path must exist, so that no hub is searched for it."""
    check_type(argument, value, str | Path | None, "a folder, a hub id or a packaged name")
    if isinstance(value, Path) and not expand_path(value).exists():
        raise CheckpointError(
            f"{argument} {value}: no such file or folder; a hub id or a packaged name is a text, not a Path"
        )
    return None if value is None else str(value)


def load_by_torch(
    name: str,
    checkpoint: str | None,
    tokenizer: str | None,
    backbone_config: str | None,
    device: str,
    options: Mapping[str, Any],
) -> Encoder:
    """The runtime `torch`; arguments and errors as those of `load_encoder`."""
    card = CARDS[name]
    check_model_libraries()
    loader = import_home(card.loader)
    named = checked_options(name, loader, options)
    known = found_or_default(card, checkpoint)
    if known and (known.folder / EXPORT).is_file():
        raise CheckpointError(
            f"{known.reference}: an exported encoder; load it with the runtime of its export, or "
            "name the checkpoint that it was exported from"
        )
    saved, places = saved_settings(name, known)
    # The default direction is noted too, so that naming it gives the same request.
    direction = {"direction": DEFAULT_DIRECTION} if card.reads_images else {}
    options = {**checked_options(name, loader, {**direction, **saved.options}), **named}
    chosen = choose_device(device)
    saved_tokenizer, saved_config = (places.pop(key, None) for key in ("tokenizer", "backbone_config"))
    weights = saved.weights_of(known) if known else None
    source = Source(weights, chosen, tokenizer or saved_tokenizer, backbone_config or saved_config)
    import torch

    try:
        # Networks draw weights before they get those of the checkpoint; the user's random numbers go on as before.
        with _LOADING, torch.random.fork_rng(devices=()):
            encoder: Encoder = loader(source, **{**places, **options})
    except LexvlError:
        raise
    except Exception as error:  # a value of another type than its reader expects raises any error
        reference = checkpoint or card.default_checkpoint
        raise CheckpointError(
            f"{reference}: cannot be loaded as {name} ({describe_error(error)}); a configuration, "
            "tokenizer or weight file has another content than this encoder reads (--verbose shows where)"
        ) from error
    others = other_parts({"tokenizer": tokenizer, "backbone_config": backbone_config, **options})
    return replace(
        encoder,
        checkpoint=known.reference if known else None,
        checkpoint_digest=digest_of(known, others),
        options={**options, **{key: other.reference for key, other in others.items()}},
        device=str(chosen),
    )


def when_used(load: Callable[[], T]) -> Callable[[], T]:
    """The same load, once and under the lock, for a tower whose network is loaded when it is first used.

    What `load` holds, such as the mapped weights of a file, is let go of then.
    """
    import torch

    pending, loaded = [load], list[T]()

    def get() -> T:
        # Weights outlive the call that first needs them, which computes without gradients.
        with _LOADING, torch.random.fork_rng(devices=()), torch.inference_mode(False):
            if not loaded:
                loaded.append(pending[0]())
                pending.clear()
        return loaded[0]

    return get


def found_or_default(card: Card, checkpoint: str | None) -> Checkpoint | None:
    """The checkpoint that the user names, or the default of the encoder; None if there is none."""
    reference = checkpoint or card.default_checkpoint
    try:
        return find_checkpoint(reference) if reference else None
    except CheckpointError as error:
        if checkpoint is None and card.without_hub:
            raise CheckpointError(f"{error} as checkpoint; the checkpoint {card.without_hub}, needs no hub") from error
        raise


def load_saved(folder: str, device: str = "auto") -> Encoder:
    """Loads what `Encoder.save_pretrained` or `push_to_hub` wrote; the folder, or model of the hub, names its encoder.

    Raises:
        CheckpointError: another folder; also as `load_encoder`.
    """
    saved = read_saved(find_checkpoint(folder))
    if saved is None:
        raise CheckpointError(f"{folder}: no {SAVED}, so save_pretrained did not write it; load it with load_encoder")
    return load_encoder(saved.encoder, folder, device=device)


def saved_settings(name: str, checkpoint: Checkpoint | None) -> tuple[SavedEncoder, dict[str, str]]:
    """What a checkpoint was saved with, and the places of its parts; nothing for another encoder than was saved."""
    saved = read_saved(checkpoint) if checkpoint else None
    if checkpoint is None or saved is None or saved.encoder != name:
        return SavedEncoder(encoder=name), {}
    return saved, saved.places_in(checkpoint)


def load_encoder_of(
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

    Raises:
        ArtefactError: the checkpoint or its vocabulary is not the one that made the artefact.
        UsageError: the artefact's vectors were imported without an encoder.
    """
    if ref.name == NO_ENCODER:
        raise UsageError(
            "these vectors were imported without an encoder, which texts need: search encoded queries or an "
            "expression, or import them again and name their encoder"
        )
    if ref.fields:
        raise UsageError(
            f"an index of the fields {', '.join(field.name for field in ref.fields)}: documents have vectors of "
            "several encoders, which search and explain load; do this with the shards of one field"
        )
    options = {**ref.options, **(settings or {})}
    if options.get("runtime", TORCH) != TORCH:
        options = {key: value for key, value in options.items() if key not in PLACES}
    tokenizer = tokenizer or options.pop("tokenizer", None)
    options.pop("tokenizer", None)
    backbone_config = options.pop("backbone_config", None)
    model = load_encoder(ref.name, checkpoint or ref.checkpoint, tokenizer, backbone_config, device, **options)
    further = sorted(model.options.keys() - {"runtime", *PLACES, *options})
    if further and options.get("runtime", TORCH) != TORCH:
        raise ArtefactError(
            f"{model.checkpoint}: was exported with {further[0]}={model.options[further[0]]}, which the index was not "
            "made with; export again without it"
        )
    _refuse_other(model, ref, options, tokenizer, backbone_config)
    return _of_vocabulary(model, vocabulary)


def _refuse_other(
    model: Encoder,
    ref: EncoderRef,
    options: Mapping[str, Any],
    tokenizer: str | None,
    backbone_config: str | None,
) -> None:
    """Refuses an encoder that did not make the artefact: its checkpoint is another one."""
    digest = model.checkpoint_digest
    if "backbone_checkpoint" in options and "backbone_checkpoint" not in ref.options:
        # The corpus provided vectors; now a backbone that the index does not name encodes texts and images.
        named = {"tokenizer": tokenizer, "backbone_config": backbone_config, **options, "backbone_checkpoint": None}
        digest = digest_of(find_checkpoint(model.checkpoint) if model.checkpoint else None, other_parts(named))
    if digest != ref.checkpoint_digest:
        raise ArtefactError(
            f"checkpoint {model.checkpoint} has digest {str(digest)[:16]}, the index was made with "
            f"{str(ref.checkpoint_digest)[:16]}; give that checkpoint or encode again"
        )


def _of_vocabulary(model: Encoder, vocabulary: str | None) -> Encoder:
    """The encoder, if its vocabulary has this digest; None for no check."""
    vocabulary_digest = model.vocabulary.digest if model.kind == "impact" else None
    if vocabulary_digest and vocabulary and vocabulary_digest != vocabulary:
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {vocabulary_digest[:16]}, the index was made with "
            f"{vocabulary[:16]}; encode again or name the right checkpoint and tokenizer"
        )
    return model


def checked_options(name: str, load: Callable[..., Encoder], options: Mapping[str, Any]) -> dict[str, Any]:
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
        raise UsageError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); try the device cpu"
        ) from error
    return chosen


@dataclass(frozen=True)
class EncoderRequest:
    """The arguments of `load_encoder`, so that each process loads the encoder for itself."""

    name: str
    checkpoint: str | None = None
    tokenizer: str | None = None
    backbone_config: str | None = None
    device: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Encoder:
        """The encoder."""
        return load_encoder(
            self.name, self.checkpoint, self.tokenizer, self.backbone_config, self.device, **self.options
        )
