"""What the commands of a cluster share: the options of runners, and URLs in place of folders."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import TextIOBase
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import Command, expand_options
from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.cluster.storage import name_urls


@dataclass(frozen=True)
class RunnerOptions:
    """A runner, and what a user can choose about it; the one in this process has no choice."""

    runner: Annotated[str, typer.Option(help="Who does the parts of a corpus: local (this process) or ray.")] = "local"
    address: Annotated[str | None, typer.Option(help="For ray: address of a cluster; default a new one here.")] = None
    workers: Annotated[int | None, typer.Option(min=1, help="For ray: processes at a time; default all cores.")] = None
    gpus: Annotated[float, typer.Option(min=0, help="For ray: GPUs of each process that encodes.")] = 0.0
    retries: Annotated[int, typer.Option(min=0, help="For ray: further tries of a part whose process died.")] = 3
    insecure: Annotated[
        bool, typer.Option("--insecure", help="For ray: use a cluster on a network without token authentication.")
    ] = False


def extend(core: Command) -> Callable[[Command], Command]:
    """Gives a command the options of a core's command too, which it takes as `**options`; see `cli.expanded`."""

    def add(command: Command) -> Command:
        flat = expand_options(command)
        own = [each for name, each in inspect.signature(flat).parameters.items() if name != "options"]
        signature = inspect.signature(core)
        parameters = [*signature.parameters.values(), *own]
        flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return flat

    return add


class _NamingStream(TextIOBase):
    """A stream of text in which local copies are named by their URLs."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(name_urls(text)))

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def print_urls() -> Iterator[None]:
    """What a command prints within the block, and its error, name URLs in place of local copies."""
    try:
        with redirect_stdout(_NamingStream(sys.stdout)):
            yield
    except LexvlError as error:
        error.args = (name_urls(str(error)),)
        raise
