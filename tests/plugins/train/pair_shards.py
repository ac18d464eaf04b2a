"""Shards of images with texts, for tests and for measurements of trainings over many pairs.

python tests/plugins/train/pair_shards.py FOLDER --pairs 200000 --per-shard 2000
"""

import argparse
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

GREYS = {"white": (250, 250, 250), "black": (10, 10, 10), "grey": (128, 128, 128)}
MIXED = {"yellow": (240, 230, 40), "purple": (140, 30, 160)}
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), **GREYS, **MIXED}
PLACES = ("top", "middle", "bottom")
SIDE = 16


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    """A tar of members by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def picture(number: int) -> tuple[bytes, str]:
    """The PNG of a coloured square with a bar in another colour, and its text; 168 different ones."""
    names = list(COLOURS)
    ground, bar = names[number % 8], names[(number + 1 + number // 24 % 7) % 8]
    place = number // 8 % 3
    pixels = np.full((SIDE, SIDE, 3), COLOURS[ground], dtype=np.uint8)
    pixels[5 * place + 1 : 5 * place + 4, 2:14] = COLOURS[bar]
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue(), f"a {ground} square with a {bar} bar at the {PLACES[place]}"


def pairs(numbers: Iterable[int]) -> dict[str, bytes]:
    """The members of some pairs."""
    members: dict[str, bytes] = {}
    for number in numbers:
        image, text = picture(number)
        members |= {f"{number:09d}.png": image, f"{number:09d}.txt": text.encode()}
    return members


def write_shards(folder: Path, count: int, per_shard: int) -> str:
    """Writes shards 00000.tar, 00001.tar, ... of so many pairs; returns the name of the corpus."""
    for shard, first in enumerate(range(0, count, per_shard)):
        write_tar(folder / f"{shard:05d}.tar", pairs(range(first, min(first + per_shard, count))))
    return f"webdataset:{folder}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--per-shard", type=int, default=2000)
    chosen = parser.parse_args()
    print(write_shards(chosen.folder, chosen.pairs, chosen.per_shard))
