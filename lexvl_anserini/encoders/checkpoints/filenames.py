"""Which files of a folder belong to a model: weights, configuration, tokenizer, by their names; which lie inside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from lexvl_anserini.ground.errors import CheckpointError

SAFE_WEIGHTS = "*.safetensors"
TORCH_WEIGHTS = "pytorch_model*.bin"
# The weights that naver's SPLADE trainer writes into the folder `model/` of a run.
NAVER_WEIGHTS = "model.tar"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".cp", ".tar")
WEIGHT_SUFFIXES = (".safetensors", *TORCH_SUFFIXES)

# Files of trainers beside the weights of a model.
LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*|random_states.*)\.\w+")

# Configurations and tokenizers; hidden files do not belong to a model.
SMALL_FILES = ("*.json", "*.yaml", "*.txt", "*.model")
HIDDEN_FILES = (".*",)
# LAVIS' description of the text encoder, which its package has, and maybe the folder of the weights.
TEXT_DESCRIPTIONS = "*med_config*.json"
# The prompt of a model that reads images and texts together. It counts only beside such a model's processor: other
# encoders do not read it.
CHAT_TEMPLATE, PROCESSOR = "chat_template.jinja", "processor_config.json"
# Files that count beside a weight file that the user names.
CONFIGURATIONS = ("config.json", "config.yaml", TEXT_DESCRIPTIONS)

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def has_tokenizer(folder: Path) -> bool:
    """True if a folder holds the files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def may_be_shards(name: str) -> bool:
    """True for the names of weights that transformers saves, in one file or in several."""
    return any(PurePosixPath(name).match(pattern) for pattern in (SAFE_WEIGHTS, TORCH_WEIGHTS))


def usual_name(name: str) -> bool:
    """True for the names of weights in subfolders of a checkpoint: those of transformers, and `model/model.tar`."""
    return may_be_shards(name) or PurePosixPath(name).name == NAVER_WEIGHTS


def weight_files(names: Iterable[str]) -> list[str]:
    """The names of one folder's files that have its model's weights, sorted.

    Safetensors if there are any, else `pytorch_model*.bin`, else other torch files except those of trainers.
    """
    paths = sorted(map(PurePosixPath, names), key=str)
    for is_of_kind in (
        lambda path: path.match(SAFE_WEIGHTS),
        lambda path: path.match(TORCH_WEIGHTS),
        lambda path: path.suffix in TORCH_SUFFIXES and not LEFTOVERS.fullmatch(path.name),
    ):
        if names_of_kind := [str(path) for path in paths if is_of_kind(path)]:
            return names_of_kind
    return []


def model_files(names: Iterable[str], weights: bool = True) -> list[str]:
    """The names of a folder's files that a model is loaded from, sorted: the same on the hub and in any copy of it.

    `weight_files` chooses the weights of each folder; in subfolders only the usual names count.
    """
    paths = [path for path in map(PurePosixPath, sorted(set(names))) if not str(path).startswith(".")]
    small = {str(path) for path in paths if any(path.match(pattern) for pattern in SMALL_FILES)}
    small |= {CHAT_TEMPLATE} & {str(path) for path in paths if PROCESSOR in small}
    large: set[str] = set()
    for folder in {path.parent for path in paths} if weights else ():
        weights_there = weight_files(str(path) for path in paths if path.parent == folder)
        large |= {name for name in weights_there if folder == PurePosixPath() or usual_name(name)}
    return sorted(small | large)


def inside(folder: Path, name: str, where: str) -> Path:
    """The path of a file or folder of a checkpoint that another of its files, `where`, names."""
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise CheckpointError(f"{where}: names {name!r:.80}, expected a name inside {folder}")
    return folder / name
