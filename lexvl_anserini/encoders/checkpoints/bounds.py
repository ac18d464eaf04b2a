"""What a checkpoint says about its sizes, compared with the bytes it has before memory and time are spent on it."""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registration

from lexvl_anserini.ground.errors import CheckpointError, LexvlError, describe_error

Module = TypeVar("Module", bound=nn.Module)

# `torch.save` does not compress, and compression saves little of weights: a file that unpacks to more is no model.
MOST_UNPACKED = 8

# A network may have more numbers than its file: tied matrices are stored once, heads are dropped. These factors and
# constants permit every real model and keep the memory of any other near the size of its file.
MOST_NUMBERS, FREE_NUMBERS = 4, 1 << 24
MOST_MODULES, FREE_MODULES = 20, 2000

# Entries of a configuration that libraries make a list of, or repeat a computation by, before weights are compared.
MOST_LAYERS, MOST_LABELS = 1000, 1_000_000
REPEATED = {re.compile(r"layer|depth|block"): MOST_LAYERS, re.compile(r"label"): MOST_LABELS}


def check_unpacked(path: Path) -> None:
    """Checks how large the parts of a zip file become in memory; files of the format before torch 1.6 pass."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked > MOST_UNPACKED * (size := path.stat().st_size):
        raise CheckpointError(
            f"{path}: refused, its {size} bytes unpack to {unpacked}; torch.save writes files that are not compressed"
        )


def check_tensors(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Checks that the numbers of all tensors are in the file.

    Raises:
        CheckpointError: a tensor repeats a few numbers, so that its copy would be larger than the file, or is sparse,
            quantised or without numbers.
    """
    for key, value in weights.items():
        dense = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not dense or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise CheckpointError(
                f"{path}: {key:.80} {list(value.shape)} repeats numbers or is not dense; save plain tensors"
            )


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
    """The network that a configuration describes, after checking without memory that it is about as large as `weights`.

    Args:
        make: makes the network; it is called twice.
        weights: that the network will have, maybe with others.
        where: names the configuration in errors.
    """
    outline(make, weights, where)
    return make()


def outline(make: Callable[[], Module], weights: Mapping[str, Tensor], where: str) -> Module:
    """The network on torch's device `meta`, which has shapes and no numbers; checked as by `build`."""
    try:
        with counted(weights, where), torch.device("meta"):
            return make()
    except LexvlError:
        raise
    except Exception as error:  # a wrong value in a configuration raises any error
        raise CheckpointError(f"{where}: describes no model that can be built ({describe_error(error)})") from error


@contextmanager
def counted(weights: Mapping[str, Tensor], where: str) -> Iterator[None]:
    """Counts the numbers and modules of the networks that this thread makes, until they are too many."""
    held = sum(value.numel() for value in weights.values())
    left = {"numbers": MOST_NUMBERS * held + FREE_NUMBERS, "modules": MOST_MODULES * len(weights) + FREE_MODULES}
    thread = threading.get_ident()

    def take(what: str, number: int) -> None:
        if threading.get_ident() == thread:
            left[what] -= number
            if left[what] < 0:
                raise CheckpointError(
                    f"{where}: describes a far larger model than that of its weights ({len(weights)} tensors, "
                    f"{held} numbers); one of the two is damaged or of another model"
                )

    def of_tensor(module: nn.Module, name: str, value: Tensor | None) -> None:
        take("numbers", 0 if value is None else value.numel())

    hooks = [
        registration.register_module_parameter_registration_hook(of_tensor),
        registration.register_module_buffer_registration_hook(of_tensor),
        registration.register_module_module_registration_hook(lambda *_: take("modules", 1)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
