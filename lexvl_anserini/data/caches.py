"""What commands keep outside of the folders that they are given: the command `lexvl caches` lists and clears it.

python -m lexvl_anserini.data.caches --clear exports
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from lexvl_anserini.cli import Style, Verbose, print_rows, run
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.places import storage_root
from lexvl_anserini.ground.user_folders import expanded_path, kernels_folder


class KeptPlace(NamedTuple):
    """A file or folder that commands keep.

    holds  what is in it
    ours   no other program uses it, and what it holds is made again, so that it may be cleared
    """

    path: Path
    holds: str
    ours: bool = True


def places() -> Mapping[str, KeptPlace]:
    """All places by name."""
    data, cache = data_root(None), expanded_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    hub = Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub"
    others = {
        "hub": (os.environ.get("HF_HUB_CACHE") or hub, "models of the hub"),
        "ir_datasets": (os.environ.get("IR_DATASETS_HOME") or "~/.ir_datasets", "datasets of irds:"),
        "datasets": (data / "beir", "datasets of beir/"),
    }
    return {
        "digests": KeptPlace(data / "digests.sqlite3", "SHA-256 of pictures"),
        "pages": KeptPlace(data / "pages.sqlite3", "words of pages"),
        "languages": KeptPlace(data / "languages", "vectors of terms"),
        "exports": KeptPlace(data / "exports", "ONNX graphs of encoders"),
        "storage": KeptPlace(storage_root(), "copies of indexes in storage"),
        "kernels": KeptPlace(kernels_folder(), "compiled functions"),
        **{name: KeptPlace(expanded_path(path), holds, ours=False) for name, (path, holds) in others.items()},
    }


def size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder; 0 where there is none, or none that this user can see."""
    files = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    return sum(status.st_size for file in files if (status := _status(file)) and stat.S_ISREG(status.st_mode))


def _status(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return path.lstat()
    return None


def clear(name: str) -> None:
    """Removes a cache.

    Raises:
        UnknownName: no such place.
        UsageError: a place that other programs share, or that has what users put there.
    """
    known = places()
    if name not in known:
        raise UnknownName("cache", name, known)
    place = known[name]
    if not place.ours:
        raise UsageError(f"{place.path}: other programs share it, or users put files there; remove it yourself")
    if place.path.is_dir():
        shutil.rmtree(place.path)
    else:
        place.path.unlink(missing_ok=True)


def command(
    cleared: Annotated[list[str] | None, typer.Option("--clear", help="Remove this cache; repeatable.")] = None,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """List what commands keep outside of the folders that they are given. Clear nothing while another command runs.

    Example: python -m lexvl_anserini.data.caches --format json
    """
    for name in cleared or ():
        clear(name)
    rows: dict[str, object] = {}
    for name, place in places().items():
        held = size(place.path)
        entry = {"path": str(place.path), "bytes": held, "ours": place.ours}
        rows[name] = entry if style == "json" else f"{held / 1e6:10,.1f} MB  {place.path} ({place.holds})"
    print_rows(rows, style)


if __name__ == "__main__":
    run(command)
