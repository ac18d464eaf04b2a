"""Checkpoints: a folder, a weight file, a packaged model or a hub id -> files on disk and their digest."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.filenames import (
    CONFIGURATIONS,
    WEIGHT_SUFFIXES,
    inside,
    may_be_shards,
    model_files,
)
from lexvl_anserini.encoders.checkpoints.hub import (
    REVISION,
    cached,
    check_cached,
    content_sha256,
    download,
    names_in,
    read_listing,
)
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, LexvlError, MissingExtra, describe_error
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import expand_path, find_package
from lexvl_anserini.ground.manifest import PLACES
from lexvl_anserini.ground.typed import Entry, check

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    reference  as the user named it, but a hub id with its revision (`id@sha`) and a folder as an absolute path
    folder     where its files are
    weights    False if only the configuration or the tokenizer is used
    file       the weight file, if the user named one instead of a folder
    """

    reference: str
    folder: Path
    weights: bool = True
    file: Path | None = None

    @property
    def path(self) -> Path:
        """The path for `read_weights`: the weight file that the user named, else the folder."""
        return self.file or self.folder

    def digest(self) -> str:
        """SHA-256 (hex) of the names and contents of the files that the vectors of the model depend on."""
        if self.file is not None:
            configurations = (path for pattern in CONFIGURATIONS for path in sorted(self.folder.glob(pattern)))
            names = [*(path.name for path in configurations if path.is_file()), self.file.name]
        else:
            names = model_files(names_in(self.folder), self.weights)
        digest = sha256()
        for name in names:
            digest.update(f"{name}\0{content_sha256(self.folder / name)}\n".encode())
        return digest.hexdigest()

    def config(self) -> dict[str, Any]:
        """The folder's config.json, else its config.yaml."""
        yaml_file = self.folder / "config.yaml"
        if not (self.folder / "config.json").is_file() and yaml_file.is_file():
            return read_yaml(yaml_file)
        return read_json(self.folder / "config.json", "model configuration", CheckpointError)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a mapping, found {type(data).__name__}")
    return data


def find_checkpoint(reference: str, weights: bool = True) -> Checkpoint:
    """A packaged name (`minilm`), a local folder, a weight file, or a hub id with an optional `@revision`.

    Args:
        weights: False for only a configuration or a tokenizer, so that no weights are downloaded.

    Raises:
        MissingExtra: the package of a packaged checkpoint is not installed.
        CheckpointError: no such folder, a file that is not a checkpoint by itself, or a failed download; the message
            says how to name a local folder.
    """
    if reference in PACKAGED:
        packaged = PACKAGED[reference]
        folder = find_package(packaged.module)
        if folder is None:
            raise MissingExtra(f"the checkpoint {reference!r}", packaged.extra)
        return Checkpoint(reference, folder / packaged.folder, weights)
    path = expand_path(reference)
    if path.is_dir():
        return Checkpoint(str(path.resolve()), path, weights)
    if path.exists():
        return from_file(path, weights)
    name, at, revision = reference.partition("@")
    if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
        raise CheckpointError(f"{reference}: no such folder, and not a hub id either (owner/name, owner/name@revision)")
    # Only a few old models of the hub have no owner, and none has a name like these.
    if "/" not in name and (near := get_close_matches(name, PACKAGED, n=1, cutoff=0.75)):
        raise CheckpointError(
            f"{reference}: no such folder and no packaged checkpoint; did you mean {near[0]!r}? A model of the hub is "
            "owner/name"
        )
    return from_hub(name, revision or None, weights)


def from_file(path: Path, weights: bool = True) -> Checkpoint:
    """A weight file that is a checkpoint by itself, as of Lightning, LAVIS and FDT.

    Without `weights`, any file (a configuration, the merges of a tokenizer).
    """
    if not weights:
        return Checkpoint(str(path.resolve()), path.parent, weights, path)
    if path.suffix not in WEIGHT_SUFFIXES:
        known = ", ".join(f"*{suffix}" for suffix in WEIGHT_SUFFIXES)
        raise CheckpointError(f"{path}: not a weight file ({known}); name it, or the folder that holds it")
    if (path.parent / "config.json").is_file() and any(may_be_shards(file.name) for file in path.parent.iterdir()):
        raise CheckpointError(f"{path}: a file; name the folder that holds config.json and the weights")
    return Checkpoint(str(path.resolve()), path.parent, weights, path)


def from_hub(name: str, revision: str | None = None, weights: bool = True) -> Checkpoint:
    """Downloads a model from the Hugging Face hub, or takes it from the local cache, and notes the revision.

    The next call continues an interrupted download. Every file is compared with its digest in the hub's listing, or
    without the hub with the one that its blob in the cache is named by; a damaged file is removed.

    Raises:
        CheckpointError: not found, gated, unreachable, damaged, or an interrupted download.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{name}@{revision}" if revision else name
    remedy = f"download {name} where the hub can be reached and pass its folder"
    listing, folder = None, None
    try:
        listing = read_listing(name, revision, weights)
        folder = download(name, revision, listing, weights)
    except LexvlError:
        raise
    except GatedRepoError as error:
        raise CheckpointError(
            f"{where}: gated on the hub; accept its terms there and set HF_TOKEN, or {remedy}"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise CheckpointError(
            f"{where}: not on the hub (private models need HF_TOKEN), and no such folder here"
        ) from error
    except Exception as error:  # any error of the HTTP stack
        reason = describe_error(error)
        log.debug("hub: %s", error)
        folder = cached(name, revision)
        if listing is not None and not (folder and all((folder / file.name).is_file() for file in listing.files)):
            raise CheckpointError(
                f"{where}: the download broke off ({reason}); run again to continue it, or {remedy}"
            ) from error
        if folder is None or not model_files(names_in(folder), weights):
            raise CheckpointError(
                f"{where}: cannot be had from the hub ({reason}) nor from its cache; {remedy}"
            ) from error
        log.info("%s: the hub cannot be reached (%s); using its cache", where, reason)
    check_cached(f"{name}@{folder.name}", folder, weights)
    return Checkpoint(f"{name}@{folder.name}", folder, weights)


def other_parts(options: Mapping[str, Any]) -> dict[str, Checkpoint]:
    """The checkpoints that an encoder is loaded from besides its own, by the options that name them."""
    return {key: find_checkpoint(options[key], key.endswith("_checkpoint")) for key in PLACES if options.get(key)}


def digest_of(checkpoint: Checkpoint | None, others: Mapping[str, Checkpoint]) -> str | None:
    """The digest of everything that an encoder was loaded from; None if it was loaded from no file."""
    digests = [part.digest() for part in (checkpoint, *others.values()) if part is not None]
    return digests[0] if len(digests) == 1 else sha256("\n".join(digests).encode()).hexdigest() if digests else None


SAVED = "lexvl.json"


class SavedEncoder(Entry):
    """What `lexvl.json` holds, in a folder that `Encoder.save_pretrained` wrote.

    `load_encoder` of that encoder takes the options and places that the caller does not give. A folder from the hub
    names nothing outside of it.

    encoder  the name of its card
    options  that it was saved with, but those that name places
    places   folders of its other parts in the checkpoint (`manifest.PLACES`), or packaged names
    folder   of the weights in the checkpoint, "" for the checkpoint itself
    file     the weight file, of an encoder that is loaded from a file
    """

    encoder: str
    options: Mapping[str, Any] = {}
    places: Mapping[str, Any] = {}
    folder: str = ""
    file: str | None = None

    def weights_of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with the folder and the file of its weights."""
        where = str(checkpoint.folder / SAVED)
        folder = inside(checkpoint.folder, self.folder, where) if self.folder else checkpoint.folder
        file = inside(folder, self.file, where) if self.file else checkpoint.file
        if file is not None and not file.is_file():
            raise CheckpointError(f"{where}: names the weight file {self.file!r}, which is not there")
        return replace(checkpoint, folder=folder, file=file)

    def places_in(self, checkpoint: Checkpoint) -> dict[str, str]:
        """The paths of its other parts, or their packaged names."""
        where = str(checkpoint.folder / SAVED)
        if strange := sorted(set(self.places) - set(PLACES)):
            raise CheckpointError(f"{where}: {strange[0]!r:.80} is no part of an encoder; known: {', '.join(PLACES)}")
        return {
            key: name if name in PACKAGED else str(inside(checkpoint.folder, name, where))
            for key, name in self.places.items()
        }


def read_saved(checkpoint: Checkpoint) -> SavedEncoder | None:
    """What `lexvl.json` of a checkpoint holds; None if it has none."""
    path = checkpoint.folder / SAVED
    if checkpoint.file is not None or not path.is_file():
        return None
    data = read_json(path, "saved encoder", CheckpointError)
    try:
        check(data, SavedEncoder, str(path), "save the encoder again")
    except ArtefactError as error:
        raise CheckpointError(str(error)) from error
    saved = SavedEncoder(data)
    if named := sorted(set(saved.options) & {"source", *PLACES}):
        raise CheckpointError(f"{path}: {named[0]!r} among the options; save the encoder again")
    return saved
