"""Weights on disk: reads all formats in which models are published, without running their code; strict loading.

    *.safetensors                      one file, or shards with an index
    pytorch_model*.bin                 one file, or shards
    *.bin *.pt *.pth *.ckpt *.cp *.tar  one file, written by `torch.save`

A file of `torch.save` has the tensors themselves, or has them under a name (`WRAPPERS`) beside epochs, optimiser states
and options. A pickle is read with `weights_only`, which builds only tensors and plain values. Harmless classes of known
frameworks are replaced by a stand-in without behaviour; any other class is an error. What a file says about its sizes
is compared with its bytes before memory is allocated.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.bounds import check_tensors, check_unpacked
from lexvl_anserini.encoders.checkpoints.filenames import WEIGHT_SUFFIXES, inside, may_be_shards, weight_files
from lexvl_anserini.ground.errors import CheckpointError, describe_error
from lexvl_anserini.ground.files import read_json

# The names of the tensors in files of training frameworks: Lightning, open_clip; naver; DPR; LAVIS, BLIP, FDT.
WRAPPERS = ("state_dict", "model_state_dict", "model_dict", "model")

# Prefixes that DistributedDataParallel and torch.compile add to every name.
PREFIXES = ("module.", "_orig_mod.")

# Buffers in old checkpoints, which the model computes itself.
IGNORED_KEYS = (r".*\.position_ids",)

# Classes of training frameworks in checkpoints. They become `StandIn`s; none of their code is imported.
HARMLESS = re.compile(
    r"(pytorch_lightning|lightning|lightning_fabric|omegaconf|yacs|easydict|splade|transformers\.tokenization_utils.*)\..+"
    r"|argparse\.Namespace|collections\.defaultdict|typing\.Any|pathlib\.(_local\.)?(Posix|Windows|PurePosix)?Path"
    r"|numpy\.(_core|core)\.multiarray\.(scalar|_reconstruct)|numpy\.(dtype|ndarray)|numpy\.dtypes\.\w+"
    r"|_codecs\.encode|datetime\.(datetime|date|timedelta)"
    r"|(builtins\.|__builtin__\.)?(int|float|bool|str|list|dict|tuple|set|bytes|complex)"
)
# Those of them that are filled like a dictionary.
MAPPINGS = re.compile(r"collections\.defaultdict|.*\.AttributeDict")
# The usual classes, for files in the format before torch 1.6, whose classes cannot be listed without reading them.
USUAL = (
    "argparse.Namespace",
    "collections.defaultdict",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",  # written by Python 3.13
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "_codecs.encode",
)


class StandIn:
    """Replaces an object of a harmless class; stores nothing."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class MappingStandIn:
    """Replaces a mapping of a harmless class by a plain dictionary."""

    def __new__(cls, *_: Any) -> Any:
        """An empty dictionary, for the unpickler to fill."""
        return {}


class Contents(NamedTuple):
    """The contents of a weight file.

    weights  its tensors by name, without the prefixes of wrappers
    extra    the plain values beside them (epoch, hyper-parameters, `last_iter`), without optimiser states
    """

    weights: dict[str, Tensor]
    extra: dict[str, Any]


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a weight file or of a folder of them (see the module), by name, on the CPU."""
    return read_contents(path).weights


def read_contents(path: Path) -> Contents:
    """As `read_weights`, with the plain values beside the tensors of a torch file."""
    if path.is_file():
        return read_weight_file(path)
    names = weight_files(file.name for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    if not names:
        raise CheckpointError(f"{path}: no weights ({', '.join('*' + suffix for suffix in WEIGHT_SUFFIXES)})")
    names = sharded_names(path, names)
    whole = Contents({}, {})
    for name in names:
        part = read_weight_file(path / name)
        if twice := sorted(whole.weights.keys() & part.weights.keys()):
            raise CheckpointError(f"{path}: {twice[0]} is in several of {', '.join(names)}; name one file")
        whole.weights.update(part.weights)
        whole.extra.update(part.extra)
    return whole


def sharded_names(folder: Path, names: list[str]) -> list[str]:
    """The weight files of one model: those in its index, else all of `names`."""
    index = folder / (
        "model.safetensors.index.json" if names[0].endswith(".safetensors") else "pytorch_model.bin.index.json"
    )
    if index.is_file():
        shards = read_json(index, "index of shards", CheckpointError).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index}: weight_map is not a mapping of tensors to files; download the file again")
        listed = sorted(set(shards.values()))
        if missing := [name for name in listed if not inside(folder, name, str(index)).is_file()]:
            raise CheckpointError(f"{index}: lists {', '.join(missing)}, not there; download the checkpoint again")
        return listed or names
    if len(names) > 1 and not may_be_shards(names[0]):
        raise CheckpointError(f"{folder}: several weight files ({', '.join(names)}); name the one to load")
    return names


def read_weight_file(path: Path) -> Contents:
    """Tensors and plain values of one file."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return Contents(without_prefixes(load_file(path)), {})
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(unreadable(path, error)) from error
    data = read_pickle(path)
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors, found {type(data).__name__}")
    weights, extra = unwrapped(data)
    check_tensors(path, weights)
    if not weights:
        keys = ", ".join(map(str, list(data)[:10])) or "nothing"
        raise CheckpointError(
            f"{path}: expected a mapping of names to tensors, or one under {', '.join(WRAPPERS)}; found {keys}"
        )
    return Contents(without_prefixes(weights), extra)


def read_pickle(path: Path) -> Any:
    """The object of a file that `torch.save` wrote, tensors on the CPU; calls no code of the file.

    Raises:
        CheckpointError: damaged, or with a class or function that is neither of tensors nor harmless.
    """
    try:
        check_unpacked(path)
        harmless = [name for name in foreign_names(path) if HARMLESS.fullmatch(name)]
        stand_ins: list[Any] = [
            (MappingStandIn if MAPPINGS.fullmatch(name) else StandIn, name) for name in (*USUAL, *harmless)
        ]
        with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle's protocols; what cannot be read raises
            return torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        match = re.search(r"(?:GLOBAL|global:?|reduce for unrecognized function) +(?:GLOBAL +)?(\S+)", str(error))
        what = f" (it has {match[1]})" if match else ""
        raise CheckpointError(
            f"{path}: refused, the file has more than tensors and could run code{what}; use a safetensors file"
        ) from error
    except Exception as error:  # a damaged file may raise any error
        raise CheckpointError(unreadable(path, error)) from error


def foreign_names(path: Path) -> list[str]:
    """Classes and functions in a file besides those of tensors; empty for the format before torch 1.6."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except ValueError:
        return []


def unreadable(path: Path, error: Exception) -> str:
    """The message for a file that cannot be read."""
    return f"{path}: cannot be read as weights ({describe_error(error).partition('. ')[0]})"


def unwrapped(data: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the plain values beside them, whether the tensors are under a name or not."""
    inner: Mapping[str, Any] = data
    for name in WRAPPERS:
        candidate = data.get(name)
        if isinstance(candidate, Mapping) and any(isinstance(value, Tensor) for value in candidate.values()):
            inner = candidate
            break
    weights = {str(key): value.detach() for key, value in inner.items() if isinstance(value, Tensor)}
    beside = [*data.items(), *inner.items()] if inner is not data else [*data.items()]
    return weights, {str(key): value for key, value in beside if plain(value)}


def plain(value: Any) -> bool:
    """True for numbers, strings, None, and lists and mappings of them."""
    done: set[int] = set()  # a list may be in itself, or twice in each of many others
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple, Mapping)):
            if id(value) not in done:
                done.add(id(value))
                waiting += value.values() if isinstance(value, Mapping) else value
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            return False
    return True


def without_prefixes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, without `PREFIXES` in their names."""
    while prefix := next((p for p in PREFIXES if weights and all(key.startswith(p) for key in weights)), None):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}


def load_strictly(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    where: str,
    ignored: Iterable[str] = (),
    name_in_file: Callable[[str], str] = str,
) -> None:
    """Loads `weights` into `module`; all keys must fit.

    Args:
        ignored: patterns of keys (full match) that may be present and that the model does not use.
        name_in_file: the name in the file of a key of the model, if `weights` were renamed.
    """
    pattern = re.compile("|".join((*IGNORED_KEYS, *ignored)))
    expected = module.state_dict()
    used = {key: value for key, value in weights.items() if key in expected or not pattern.fullmatch(key)}
    complain(
        where,
        missing={name_in_file(key) for key in expected if key not in used},
        unexpected={name_in_file(key) for key in used if key not in expected},
        misshaped=[
            f"{name_in_file(key)} {list(used[key].shape)}, expected {list(expected[key].shape)}"
            for key in expected
            if key in used and used[key].shape != expected[key].shape
        ],
    )
    module.load_state_dict(used)


def complain(where: str, missing: Iterable[str], unexpected: Iterable[str], misshaped: Iterable[str]) -> None:
    """Raises CheckpointError if a list is not empty: its line has ten keys of each list, its notes have all."""
    problems, notes = [], []
    for what, keys in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped)):
        keys = sorted(keys)
        if keys:
            more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
            problems.append(f"{what}: {', '.join(keys[:10])}{more}")
            notes.append(f"{what}: {', '.join(keys)}")
    if problems:
        shortened = " (--verbose names all)" if any(" more" in problem for problem in problems) else ""
        error = CheckpointError(f"{where}: the weights do not fit the model; {'; '.join(problems)}{shortened}")
        for note in notes:
            error.add_note(note)
        raise error
