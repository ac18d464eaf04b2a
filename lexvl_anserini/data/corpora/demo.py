"""The demo dataset: drawn scenes with five captions each, in the directions of `karpathy`.

The test split, 1,000 scenes, is in the package. `python tools/world draw train val` draws the other splits into the
data folder (20,000 and 1,000 scenes). The default direction is text to image: a document is an image, a topic is one of
its captions. Text to text, a document is the first four captions of a scene, a topic is the fifth; exact words often
miss it, because annotators differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from lexvl_anserini.data.corpora.karpathy import read_karpathy, viewed
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, checked_direction, checked_split, data_root
from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.manifest import CorpusRef

FOLDER = Path(__file__).parents[2] / "assets" / "demo"
SPLITS = ("train", "val", "test")
# The version of the drawings and their size; the digest of the corpus covers this name.
PICTURES = "images-v3-64px-{split}.tar"


def load_demo(ref: CorpusRef) -> Dataset:
    """Loads `demo` or `demo/<split>`: test (the default), train or val."""
    split = checked_split(ref, ref.name.removeprefix("demo").removeprefix("/")) or "test"
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    direction = checked_direction(ref, DIRECTIONS, "text-to-image")
    captions, pictures = demo_files(split, ref.data_dir)
    ref = replace(ref, name="demo", split=split, direction=direction)
    return viewed(ref, partial(read_karpathy, captions), lambda: lambda file: f"{pictures}::{file}")


def demo_files(split: str = "test", data_dir: str | None = None) -> tuple[Path, Path]:
    """The captions of a split in Karpathy's format, and the tar of its images, `<image_id>.png` of 64 x 64 pixels."""
    folder = FOLDER if split == "test" else data_root(data_dir) / "demo"
    captions = folder / f"{split}.json"
    if not captions.is_file():
        raise DataError(f"{captions}: not there; python tools/world draw {split}, in a checkout, draws the split")
    return captions, folder / PICTURES.format(split=split)
