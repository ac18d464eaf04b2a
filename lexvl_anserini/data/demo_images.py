"""The pictures of the demo data set: one tar of PNG per split, drawn on first use."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.images import usable_cores
from lexvl_anserini.data.world.drawing import VERSION, draw
from lexvl_anserini.data.world.scenes import SPLITS, make_scene
from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.files import atomic_write, told_about_disk

log = logging.getLogger(__name__)

SIZE = 64
SIZES = (16, 512)

# Filtering makes flat drawings larger, not smaller, and level 3 is where more effort stops to pay.
ZLIB_LEVEL = 3

# Pictures that a process draws before it hands them over, and from how many on more than one process is worth starting.
SHARE = 100
MANY = 4_000


def demo_images(split: str = "test", data_dir: str | None = None, size: int = SIZE) -> Path:
    """The tar of a split's pictures, `<scene_id>.png` each; drawn first if it is not there (some 2 ms a picture).

    It stands in the data folder as `demo/images-v<version>-<size>px-<split>.tar`, whole or not at all; of several
    processes that want it one draws, the others wait.

    Args:
        split: train (20,000), val (1,000) or test (1,000).
        data_dir: folder of the data sets; default $LEXVL_DATA, else ~/.cache/lexvl.
        size: of a picture's side in pixels.

    Raises:
        UnknownName: no such split.
        UsageError: a size out of bounds.
        ArtefactError: the disk is full or the data folder cannot be written.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    if not SIZES[0] <= size <= SIZES[1]:
        raise UsageError(f"demo pictures of {size} pixels; expected {SIZES[0]} to {SIZES[1]}")
    path = data_root(data_dir) / "demo" / f"images-v{VERSION}-{size}px-{split}.tar"
    if path.is_file():
        return path
    with told_about_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        if not path.is_file():
            log.info("drawing %d pictures into %s", SPLITS[split], path)
            _write(path, split, size)
    return path


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture, uint8 [H, W, 3], as a PNG file without row filters."""
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = picture.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), ZLIB_LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def _write(path: Path, split: str, size: int) -> None:
    with atomic_write(path) as out, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in _drawn(split, size):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _drawn(split: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Names and files of a split's pictures in order; large splits are drawn on all cores."""
    from joblib import Parallel, delayed

    total = SPLITS[split]
    # Its processes do not import the caller's main module again, as multiprocessing's do.
    parallel = Parallel(usable_cores() if total >= MANY else 1, return_as="generator", idle_worker_timeout=5)
    shares = (range(first, min(first + SHARE, total)) for first in range(0, total, SHARE))
    for share in parallel(delayed(_share)(split, numbers, size) for numbers in shares):
        yield from share


def _share(split: str, numbers: Iterable[int], size: int) -> list[tuple[str, bytes]]:
    scenes = (make_scene(split, number) for number in numbers)
    return [(f"{scene.scene_id}.png", png(draw(scene, size))) for scene in scenes]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process holds the folder; the lock goes with the process, even a killed one."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
