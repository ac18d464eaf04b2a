"""The files of the demo dataset: per split a tar of PNG files, and their captions in Karpathy's format."""

from __future__ import annotations

import io
import logging
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import atomic_write, exclusive
from world.drawing import VERSION, draw
from world.grammar import captions
from world.scenes import SPLITS, Scene, make_scene, scenes

log = logging.getLogger(__name__)

SIZE = 64
SIZES = (16, 512)

# Level 3: more effort gains little.
ZLIB_LEVEL = 3

# Images that a process draws before it returns them, and the size of a split from which several processes pay.
SHARE = 100
MANY = 4_000


def draw_split(split: str, folder: Path, size: int = SIZE) -> Path:
    """Draws a split of the demo into a folder, unless it is there; returns its captions.

        images-v<version>-<size>px-<split>.tar   the images, `<scene_id>.png` each (some 2 ms an image)
        <split>.json   file names and captions in Karpathy's format; it appears last

    Of several processes that want it one draws, the others wait.

    Args:
        split: train (20,000), val (1,000) or test (1,000).
        size: of an image's side in pixels.

    Raises:
        UnknownName: no such split.
        UsageError: a size out of bounds.
        ArtefactError: the disk is full or the folder cannot be written.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    if not SIZES[0] <= size <= SIZES[1]:
        raise UsageError(f"demo images of {size} pixels; expected {SIZES[0]} to {SIZES[1]}")
    captioned = folder / f"{split}.json"
    pictures = folder / f"images-v{VERSION}-{size}px-{split}.tar"
    if captioned.is_file() and pictures.is_file():
        return captioned
    with exclusive(folder, wait=True):
        if not (captioned.is_file() and pictures.is_file()):
            log.info("drawing %d images into %s", SPLITS[split], folder)
            _write(pictures, split, size)
            with atomic_write(captioned) as out:
                out.write(orjson.dumps({"dataset": "demo", "images": [_entry(scene) for scene in scenes(split)]}))
    return captioned


def _entry(scene: Scene) -> dict[str, Any]:
    """A scene as an image of Karpathy's format."""
    texts = enumerate(captions(scene), start=1)
    return {
        "imgid": scene.scene_id,
        "split": scene.split,
        "filename": f"{scene.scene_id}.png",
        "sentences": [{"sentid": f"{scene.scene_id}-{number}", "raw": text} for number, text in texts],
    }


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
    parallel = Parallel(count_usable_cores() if total >= MANY else 1, return_as="generator", idle_worker_timeout=5)
    shares = (range(first, min(first + SHARE, total)) for first in range(0, total, SHARE))
    for share in parallel(delayed(_share)(split, numbers, size) for numbers in shares):
        yield from share


def _share(split: str, numbers: Iterable[int], size: int) -> list[tuple[str, bytes]]:
    scenes = (make_scene(split, number) for number in numbers)
    return [(f"{scene.scene_id}.png", png(draw(scene, size))) for scene in scenes]
