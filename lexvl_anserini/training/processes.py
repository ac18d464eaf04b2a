"""The processes of a run, as torchrun or `accelerate launch` starts them: all compute, the first one writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.training.recipe import Recipe

# Objectives whose queue of keys, or whose masked texts, belong to the whole batch.
ALONE = ("lexlip_momentum", "masked_words")


@dataclass(frozen=True)
class Processes:
    """The processes that the environment names, or one; `cpu` where they compute on a CPU."""

    cpu: bool

    @classmethod
    def of(cls, device: torch.device) -> Processes:
        """The processes on this kind of device; all but the first one report errors only."""
        from accelerate.state import AcceleratorState

        # This state keeps the device for the whole process; an earlier training may have used another.
        AcceleratorState._reset_state(reset_partial_state=True)
        processes = cls(device.type == "cpu")
        if not processes.first:
            logging.getLogger("lexvl_anserini").setLevel(logging.ERROR)
        return processes

    @property
    def state(self) -> Any:
        """What accelerate knows of the processes."""
        from accelerate import PartialState

        return PartialState(cpu=self.cpu)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return bool(self.state.is_main_process)

    def wait(self) -> None:
        """Waits until all processes are here."""
        self.state.wait_for_everyone()

    def first_before_others(self) -> AbstractContextManager[None]:
        """A block that the first process ends before the others begin it."""
        block: AbstractContextManager[None] = self.state.main_process_first()
        return block

    def agree(self, value: bool) -> bool:
        """The value that the first process has."""
        from accelerate.utils import broadcast_object_list

        values = [value]
        if self.state.num_processes > 1:
            broadcast_object_list(values)
        return values[0]

    @contextmanager
    def folder(self, output: Path) -> Iterator[Path]:
        """Where this process writes: the first one into the folder of the run, which it locks; others into their own.

        Raises:
            ArtefactError: another run writes into the folder.
        """
        if self.first:
            with exclusive(output):
                yield output
        else:
            with TemporaryDirectory() as own:
                yield Path(own)

    def copy(self, folder: Path, own: Path) -> None:
        """Copies what the first process wrote: transformers saves fresh networks in that process alone."""
        if not self.first and folder.is_dir():
            copytree(folder, own)

    def check(self, recipe: Recipe) -> None:
        """Checks that all processes can have as many rows of each batch, and that all objectives can be shared out.

        Raises:
            UsageError: a batch size is no multiple of their number, or an objective sees the rows of one process alone.
        """
        count = self.state.num_processes
        for stage in recipe.stages:
            if count > 1 and (alone := [name for name in stage.names if name in ALONE]):
                raise UsageError(f"recipe {recipe.name}: {', '.join(alone)}: trains in one process, found {count}")
            if (size := stage.optimisation.batch_size) % count:
                raise UsageError(f"recipe {recipe.name}: batch_size {size} is no multiple of the {count} processes")
