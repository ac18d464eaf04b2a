"""The images of the demo dataset: one tar of PNG files per split, drawn on first use."""

from __future__ import annotations

import io
import logging
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.pictures.images import usable_cores
from lexvl_anserini.data.world.drawing import VERSION, draw
from lexvl_anserini.data.world.scenes import SPLITS, make_scene
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import atomic_write, disk_errors, exclusive, make_folder

log = logging.getLogger(__name__)

SIZE = 64
SIZES = (16, 512)

# Level 3: more effort gains little.
ZLIB_LEVEL = 3

# Images that a process draws before it returns them, and the size of a split from which several processes pay.
SHARE = 100
MANY = 4_000


def demo_images(split: str = "test", data_dir: str | None = None, size: int = SIZE) -> Path:
    """The tar of a split's images, `<scene_id>.png` each; draws them first if it does not exist (some 2 ms an image).

    The tar is `demo/images-v<version>-<size>px-<split>.tar` in the data folder, complete or absent. Of several
    processes that need it one draws, the others wait.

    Args:
        split: train (20,000), val (1,000) or test (1,000).
        data_dir: folder of the datasets; default $LEXVL_DATA, else ~/.cache/lexvl.
        size: of an image's side in pixels.

    Raises:
        UnknownName: no such split.
        UsageError: a size out of bounds.
        ArtefactError: the disk is full or the data folder cannot be written.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    if not SIZES[0] <= size <= SIZES[1]:
        raise UsageError(f"demo images of {size} pixels; expected {SIZES[0]} to {SIZES[1]}")
    path = data_root(data_dir) / "demo" / f"images-v{VERSION}-{size}px-{split}.tar"
    if path.is_file():
        return path
    with disk_errors(path):
        make_folder(path.parent)
    with exclusive(path.parent, wait=True):
        if not path.is_file():
            log.info("drawing %d images into %s", SPLITS[split], path)
            _write(path, split, size)
    return path


def png(image: NDArray[np.uint8]) -> bytes:
    """An image, uint8 [H, W, 3], as a PNG file without row filters.

    Pillow always filters the rows of RGB images: on these flat drawings its files are a quarter larger and take three
    times as long to write.
    """
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = image.reshape(height, 3 * width)
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
    """Names and files of a split's images in order; large splits are drawn on all cores."""
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
