"""`load_encoder`: a registered name, a checkpoint and options -> an encoder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from lexvl_anserini.encoders import PLACES
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.encoder import Encoder, choose_device
from lexvl_anserini.errors import CheckpointError, UnknownName, UsageError
from lexvl_anserini.registry import ENCODERS, resolve


@dataclass(frozen=True)
class Source:
    """Where an encoder's parts come from.

    checkpoint       weights and, unless given below, tokenizer and configuration
    tokenizer        a folder or hub id to take the tokenizer from instead
    backbone_config  a folder or hub id to take the backbone's configuration from instead
    """

    checkpoint: Checkpoint | None
    device: torch.device
    tokenizer: str | None = None
    backbone_config: str | None = None

    def required(self, encoder: str) -> Checkpoint:
        """The checkpoint.

        Raises:
            UsageError: none was named.
        """
        if self.checkpoint is None:
            raise UsageError(f"encoder {encoder!r} needs a checkpoint: --checkpoint FOLDER, HUB-ID or minilm")
        return self.checkpoint

    def tokenizer_folder(self, default: str | None = None) -> Path:
        """The folder to read the tokenizer from: the one named, else the checkpoint's, else `default`."""
        if self.tokenizer is not None:
            return find_checkpoint(self.tokenizer, weights=False).folder
        if self.checkpoint is not None:
            return self.checkpoint.folder
        assert default is not None, "an encoder without checkpoint names a default tokenizer"
        return find_checkpoint(default, weights=False).folder


# What an encoder loads when no checkpoint is named.
DEFAULT_CHECKPOINTS: Mapping[str, str] = {
    "vdr": "vsearch/svdr-msmarco",
    "svdr": "vsearch/svdr-msmarco",
    "vdr-crossmodal": "vsearch/vdr-cross-modal",
    "dense-crossmodal": "demo-dense",
}


# What may be loaded instead, and what it is.
NEEDING_NO_HUB: Mapping[str, str] = {
    "vdr": "minilm, untrained",
    "svdr": "minilm, untrained",
    "vdr-crossmodal": "demo-vdr, trained on small drawings",
}


def load_encoder(
    name: str,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    backbone_config: str | None = None,
    device: str = "auto",
    **options: Any,
) -> Encoder:
    """Loads a registered encoder.

    Args:
        name: a row of `registry.ENCODERS`.
        checkpoint: a folder, a hub id (`owner/name`, `owner/name@revision`) or the packaged `minilm`.
        tokenizer: a folder or hub id to take the tokenizer from instead of the checkpoint.
        backbone_config: a folder or hub id to take the backbone's configuration from instead of the checkpoint.
        device: auto, cpu, cuda, cuda:1, mps.
        options: of the encoder, as its loader's signature says.

    Raises:
        UnknownName: no such encoder, or it has no such option.
        UsageError: an option's value does not fit, or a checkpoint is needed and missing.
        CheckpointError: the checkpoint cannot be had, is incomplete, or is of another kind.
    """
    load = resolve("encoder", name, ENCODERS)
    # The direction is noted even where it is the default, so that asking for it makes no other encoder.
    default = inspect.signature(load).parameters.get("direction")
    options = checked_options(name, load, {"direction": default.default, **options} if default else options)
    reference = checkpoint or DEFAULT_CHECKPOINTS.get(name)
    try:
        found = find_checkpoint(reference) if reference else None
    except CheckpointError as error:
        if checkpoint is None and name in NEEDING_NO_HUB:
            raise CheckpointError(
                f"{error} with --checkpoint; --checkpoint {NEEDING_NO_HUB[name]}, needs no hub"
            ) from error
        raise
    chosen = choose_device(device)
    encoder: Encoder = load(Source(found, chosen, tokenizer, backbone_config), **options)
    others = other_parts({"tokenizer": tokenizer, "backbone_config": backbone_config, **options})
    return replace(
        encoder,
        checkpoint=found.reference if found else None,
        checkpoint_digest=digest_of(found, others),
        options={**options, **{key: other.reference for key, other in others.items()}},
        device=str(chosen),
    )


def other_parts(options: Mapping[str, Any]) -> dict[str, Checkpoint]:
    """What an encoder is loaded from beside its checkpoint, by the options that name it."""
    return {key: find_checkpoint(options[key], key.endswith("_checkpoint")) for key in PLACES if options.get(key)}


def digest_of(checkpoint: Checkpoint | None, others: Mapping[str, Checkpoint]) -> str | None:
    """The digest of everything an encoder was loaded from; None if nothing was named."""
    digests = [part.digest() for part in (checkpoint, *others.values()) if part is not None]
    return digests[0] if len(digests) == 1 else sha256("\n".join(digests).encode()).hexdigest() if digests else None


def checked_options(name: str, load: Callable[..., Encoder], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options converted to the types of the loader's signature ("64" becomes 64).

    Raises:
        UnknownName: the loader has no such option.
        UsageError: a value does not fit its type.
    """
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
            raise UsageError(f"encoder {name!r}: option {key}={value!r}: {error.errors()[0]['msg']}") from error
    return checked
