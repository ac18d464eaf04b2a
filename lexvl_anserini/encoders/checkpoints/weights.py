"""Weights on disk: reads all formats in which models are published, without running their code; strict loading.

    *.safetensors                      one file, or shards with an index
    pytorch_model*.bin                 one file, or shards
    *.bin *.pt *.pth *.ckpt *.cp *.tar  one file, written by `torch.save`

A file of `torch.save` has the tensors themselves, or has them under a name (`WRAPPERS`) beside epochs, optimiser states
and options. A pickle is read with `weights_only`, which builds only tensors and plain values. Harmless classes of known
frameworks are replaced by a stand-in without behaviour; any other class is an error. What a file or a configuration
says about its sizes is compared with the bytes before memory and time are spent on it.
"""

from __future__ import annotations

import pickle
import re
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registration

from lexvl_anserini.encoders.checkpoints.find import WEIGHT_SUFFIXES, choose_weights, is_shard_name, resolve_inside
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, describe_error
from lexvl_anserini.ground.files import read_json

Module = TypeVar("Module", bound=nn.Module)

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

# `torch.save` does not compress, and compression saves little of weights: a file that unpacks to more is no model.
MOST_UNPACKED = 8

# A network may have more numbers than its file: tied matrices are stored once, heads are dropped. These factors and
# constants permit every real model and keep the memory of any other near the size of its file.
MOST_NUMBERS, FREE_NUMBERS = 4, 1 << 24
MOST_MODULES, FREE_MODULES = 20, 2000

# Entries of a configuration that libraries make a list of, or repeat a computation by, before weights are compared.
MOST_LAYERS, MOST_LABELS = 1000, 1_000_000
REPEATED = {re.compile(r"layer|depth|block"): MOST_LAYERS, re.compile(r"label"): MOST_LABELS}


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
    """The tensors of a weight file by name, and the plain values beside them (epoch, hyper-parameters, `last_iter`)."""

    weights: dict[str, Tensor]
    extra: dict[str, Any]


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a weight file or of a folder of them (see the module), by name, on the CPU."""
    return read_contents(path).weights


def read_contents(path: Path) -> Contents:
    """As `read_weights`, with the plain values beside the tensors of a torch file."""
    if path.is_file():
        return _read_file(path)
    names = choose_weights(file.name for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    if not names:
        raise CheckpointError(f"{path}: no weights ({', '.join('*' + suffix for suffix in WEIGHT_SUFFIXES)})")
    names = _choose_shards(path, names)
    whole = Contents({}, {})
    for name in names:
        part = _read_file(path / name)
        if twice := sorted(whole.weights.keys() & part.weights.keys()):
            raise CheckpointError(f"{path}: {twice[0]} is in several of {', '.join(names)}; name one file")
        whole.weights.update(part.weights)
        whole.extra.update(part.extra)
    return whole


def _choose_shards(folder: Path, names: list[str]) -> list[str]:
    """The weight files of one model: those in its index, else all of `names`."""
    kind = "model.safetensors" if names[0].endswith(".safetensors") else "pytorch_model.bin"
    index = folder / f"{kind}.index.json"
    if index.is_file():
        shards = read_json(index, "index of shards", CheckpointError).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index}: weight_map is not a mapping of tensors to files; download the file again")
        listed = sorted(set(shards.values()))
        if missing := [name for name in listed if not resolve_inside(folder, name, str(index)).is_file()]:
            raise CheckpointError(f"{index}: lists {', '.join(missing)}, not there; download the checkpoint again")
        return listed or names
    if len(names) > 1 and not is_shard_name(names[0]):
        raise CheckpointError(f"{folder}: several weight files ({', '.join(names)}); name the one to load")
    return names


def _read_file(path: Path) -> Contents:
    """Tensors and plain values of one file."""
    if path.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            weights = load_file(path)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(_say_unreadable(path, error)) from error
        _check_tensors(path, weights)
        return Contents(_drop_prefixes(weights), {})
    data = _read_pickle(path)
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors, found {type(data).__name__}")
    inner: Mapping[str, Any] = data  # the tensors, which may be under a name
    for name in WRAPPERS:
        candidate = data.get(name)
        if isinstance(candidate, Mapping) and any(isinstance(value, Tensor) for value in candidate.values()):
            inner = candidate
            break
    weights = {str(key): value.detach() for key, value in inner.items() if isinstance(value, Tensor)}
    if not weights:  # lists of tensors
        lists = {str(key): value for key, value in inner.items() if isinstance(value, list)}
        weights = {f"{key}.{n}": w for key, rows in lists.items() for n, w in enumerate(rows) if isinstance(w, Tensor)}
    beside = [*data.items(), *inner.items()] if inner is not data else [*data.items()]
    _check_tensors(path, weights)
    if not weights:
        keys = ", ".join(map(str, list(data)[:10])) or "nothing"
        expected = f"a mapping of names to tensors, or one under {', '.join(WRAPPERS)}"
        raise CheckpointError(f"{path}: expected {expected}; found {keys}")
    return Contents(_drop_prefixes(weights), {str(key): value for key, value in beside if _is_plain(value)})


def _read_pickle(path: Path) -> Any:
    """The object of a file that `torch.save` wrote, tensors on the CPU; calls no code of the file."""
    try:
        _check_unpacked(path)
        foreign: list[str] = []  # classes and functions besides those of tensors; of no format before torch 1.6
        with suppress(ValueError):
            foreign = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        harmless = [name for name in foreign if HARMLESS.fullmatch(name)]
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
        refusal = f"refused, the file has more than tensors and could run code{what}"
        raise CheckpointError(f"{path}: {refusal}; use a safetensors file") from error
    except Exception as error:  # a damaged file may raise any error
        raise CheckpointError(_say_unreadable(path, error)) from error


def _check_unpacked(path: Path) -> None:
    """Checks how large the parts of a zip file become in memory; files of the format before torch 1.6 pass."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked > MOST_UNPACKED * (size := path.stat().st_size):
        refusal = f"refused, its {size} bytes unpack to {unpacked}"
        raise CheckpointError(f"{path}: {refusal}; torch.save writes files that are not compressed")


def _check_tensors(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Checks that the numbers of all tensors are in the file, since a copy of repeated ones would be larger.

    Matrices hold floats: integers are weights without scales, but for positions and masks.
    """
    for key, value in weights.items():
        dense = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not dense or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            what = f"{key:.80} {list(value.shape)} repeats numbers or is not dense"
            raise CheckpointError(f"{path}: {what}; save plain tensors")
        buffer = not key.endswith("weight") and value.dtype in (torch.bool, torch.uint8, torch.int64)
        if value.ndim > 1 and not (value.is_floating_point() or buffer):
            what = f"{key:.80} has numbers of type {str(value.dtype).removeprefix('torch.')}, expected floats"
            raise CheckpointError(f"{path}: {what}; name the checkpoint that was quantised to this one")


def _say_unreadable(path: Path, error: Exception) -> str:
    """The message for a file that cannot be read."""
    return f"{path}: cannot be read as weights ({describe_error(error).partition('. ')[0]})"


def _is_plain(value: Any) -> bool:
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


def _drop_prefixes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, without `PREFIXES` in their names."""
    while prefix := next((p for p in PREFIXES if weights and all(key.startswith(p) for key in weights)), None):
        weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    return weights


def take_below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}


def load_strictly(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    where: str,
    ignored: Iterable[str] = (),
    name_in_file: Callable[[str], str] = str,
) -> None:
    """Loads `weights` into `module`; all keys must fit but those that match `ignored` patterns in full."""
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
    for what, listed in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped)):
        if keys := sorted(listed):
            more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
            problems.append(f"{what}: {', '.join(keys[:10])}{more}")
            notes.append(f"{what}: {', '.join(keys)}")
    if problems:
        shortened = " (--verbose names all)" if any(" more" in problem for problem in problems) else ""
        error = CheckpointError(f"{where}: the weights do not fit the model; {'; '.join(problems)}{shortened}")
        for note in notes:
            error.add_note(note)
        raise error


def check_repeated(config: Mapping[str, Any], where: str) -> None:
    """Checks the numbers of layers and labels in a configuration and in the mappings inside it."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_repeated(value, where)
            continue
        most = next((most for pattern, most in REPEATED.items() if pattern.search(str(key))), None)
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if most is not None and isinstance(number, int) and number > most:
                raise CheckpointError(f"{where}: {key:.80} is {number}, expected at most {most}; is the file damaged?")


def build(make: Callable[[], Module], weights: Mapping[str, Tensor], where: str) -> Module:
    """The network that `make` (called twice) makes of a configuration, if it is about as large as `weights`."""
    build_outline(make, weights, where)
    return make()


def build_outline(make: Callable[[], Module], weights: Mapping[str, Tensor], where: str) -> Module:
    """The network on torch's device `meta`, which has shapes and no numbers; checked as by `build`."""
    try:
        with _count(weights, where), torch.device("meta"):
            return make()
    except LexvlError:
        raise
    except Exception as error:  # a wrong value in a configuration raises any error
        raise CheckpointError(f"{where}: describes no model that can be built ({describe_error(error)})") from error


@contextmanager
def _count(weights: Mapping[str, Tensor], where: str) -> Iterator[None]:
    """Counts the numbers and modules of the networks that this thread makes, until they are too many."""
    held = sum(value.numel() for value in weights.values())
    left = {"numbers": MOST_NUMBERS * held + FREE_NUMBERS, "modules": MOST_MODULES * len(weights) + FREE_MODULES}
    thread = threading.get_ident()

    def take(what: str, number: int) -> None:
        if threading.get_ident() == thread:
            left[what] -= number
            if left[what] < 0:
                sizes = f"{len(weights)} tensors, {held} numbers"
                raise CheckpointError(f"{where}: describes a far larger model than that of its weights ({sizes})")

    def count_tensor(module: nn.Module, name: str, value: Tensor | None) -> None:
        take("numbers", 0 if value is None else value.numel())

    hooks = [
        registration.register_module_parameter_registration_hook(count_tensor),
        registration.register_module_buffer_registration_hook(count_tensor),
        registration.register_module_module_registration_hook(lambda *_: take("modules", 1)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
