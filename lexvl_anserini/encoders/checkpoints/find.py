"""Checkpoints: a folder, a weight file, a packaged model or a hub id -> files on disk and their digest."""

from __future__ import annotations

import glob
import importlib.util
import logging
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.filenames import (
    CONFIGURATIONS,
    HIDDEN_FILES,
    SAFE_WEIGHTS,
    SMALL_FILES,
    WEIGHT_SUFFIXES,
    may_be_shards,
    model_files,
)
from lexvl_anserini.errors import CheckpointError, MissingExtra
from lexvl_anserini.files import file_sha256, read_json

log = logging.getLogger(__name__)

SHA256 = re.compile(r"[0-9a-f]{64}")
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
            found = (path for pattern in CONFIGURATIONS for path in sorted(self.folder.glob(pattern)))
            names = [*(path.name for path in found if path.is_file()), self.file.name]
        else:
            files = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
            names = model_files(files, self.weights)
        digest = sha256()
        for name in names:
            digest.update(f"{name}\0{file_sha256(self.folder / name)}\n".encode())
        return digest.hexdigest()

    def config(self) -> dict[str, Any]:
        """The folder's config.json, else its config.yaml.

        Raises:
            CheckpointError: there is neither, or it is not a mapping.
        """
        yaml_file = self.folder / "config.yaml"
        if not (self.folder / "config.json").is_file() and yaml_file.is_file():
            return read_yaml(yaml_file)
        return read_json(self.folder / "config.json", "model configuration", CheckpointError)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        CheckpointError: unreadable, or not a mapping.
    """
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
        spec = importlib.util.find_spec(packaged.module)
        if spec is None or spec.origin is None:
            raise MissingExtra(f"the checkpoint {reference!r}", packaged.extra)
        return Checkpoint(reference, Path(spec.origin).parent / packaged.folder, weights)
    path = Path(reference).expanduser()
    if path.is_dir():
        return Checkpoint(str(path.resolve()), path, weights)
    if path.exists():
        return from_file(path, weights)
    name, _, revision = reference.partition("@")
    if not HUB_ID.fullmatch(name):
        raise CheckpointError(f"{reference}: no such folder, and not a hub id either (owner/name)")
    return from_hub(name, revision or None, weights)


def from_file(path: Path, weights: bool = True) -> Checkpoint:
    """A weight file that is a checkpoint by itself, as of Lightning, LAVIS and FDT.

    Without `weights`, any file (a configuration, the merges of a tokenizer).

    Raises:
        CheckpointError: not a weight file, or part of a folder that is loaded as a whole.
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

    The next call continues an interrupted download. A file whose SHA-256 is not the hub's is removed.

    Raises:
        CheckpointError: not found, gated, unreachable, or an interrupted download.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{name}@{revision}" if revision else name
    remedy = f"download {name} where the hub can be reached and pass its folder"
    wanted: list[str] = []
    try:
        info = HfApi().model_info(name, revision=revision)
        wanted = model_files((sibling.rfilename for sibling in info.siblings or ()), weights)
        # By the name of the revision, so that the cache finds it by that name without the hub.
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=[glob.escape(f) for f in wanted]))
        return verified(Checkpoint(f"{name}@{folder.name}", folder, weights))
    except CheckpointError:
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
        log.debug("hub: %s", error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    try:
        # The same patterns: without them the cache reports a snapshot without the other files as incomplete.
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                local_files_only=True,
                allow_patterns=[*SMALL_FILES, *([SAFE_WEIGHTS] if weights else [])],
                ignore_patterns=list(HIDDEN_FILES),
            )
        )
    except Exception as error:
        if wanted:
            raise CheckpointError(
                f"{where}: the download broke off ({reason}); run again to continue it, or {remedy}"
            ) from error
        raise CheckpointError(f"{where}: cannot be had from the hub ({reason}) nor from its cache; {remedy}") from error
    if missing := [file for file in wanted if not (folder / file).is_file()]:
        raise CheckpointError(
            f"{where}: the download broke off before {missing[0]} was there ({reason}); run again to continue it, "
            f"or {remedy}"
        )
    log.info("%s: the hub cannot be reached (%s); using its cache", where, reason)
    return verified(Checkpoint(f"{name}@{folder.name}", folder, weights))


def verified(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, after checking the SHA-256 of its large files.

    The cache of the hub names the blob of a large file by the SHA-256 that the hub announces, but does not check it.

    Raises:
        CheckpointError: a file is damaged; it is removed, so that the next call downloads it.
    """
    for path in checkpoint.folder.rglob("*"):
        blob = path.resolve()
        if path.is_symlink() and SHA256.fullmatch(blob.name) and (found := file_sha256(blob)) != blob.name:
            path.unlink()
            blob.unlink()
            raise CheckpointError(
                f"{checkpoint.reference}: {path.name} arrived damaged (SHA-256 {found[:16]}, the hub says "
                f"{blob.name[:16]}) and was removed; run again to download it"
            )
    return checkpoint
