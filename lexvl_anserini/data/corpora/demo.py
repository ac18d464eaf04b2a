"""The embedded demo dataset: generated from fixed seeds, without a download.

Five captions and an image for each scene, in the directions of `views`. The default is text to image: a document is
the image of a scene, drawn on first use, a topic is one of its captions. Text to text, a document is the first four
captions of a scene, a topic is the fifth; exact words often miss it, because annotators differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from lexvl_anserini.data.corpora.karpathy import Caption
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, checked_direction, checked_split
from lexvl_anserini.data.views import viewed
from lexvl_anserini.data.world.grammar import captions
from lexvl_anserini.data.world.scenes import SPLITS, Scene, make_scene, scene_id
from lexvl_anserini.ground.errors import UnknownName
from lexvl_anserini.ground.manifest import CorpusRef

__all__ = ["captioned_images", "captions", "load_demo", "scenes"]


def load_demo(ref: CorpusRef) -> Dataset:
    """Loads `demo` or `demo/<split>`: train (20,000 scenes), val (1,000) or test (1,000, the default).

    Raises:
        UnknownName: no such split or direction.
        UsageError: two different splits.
    """
    split = checked_split(ref, ref.name.removeprefix("demo").removeprefix("/")) or "test"
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    direction = checked_direction(ref, DIRECTIONS, "text-to-image")
    ref = replace(ref, name="demo", split=split, direction=direction)
    return viewed(ref, partial(captioned_images, split), partial(_opened, split, ref.data_dir))


def scenes(split: str) -> Iterator[Scene]:
    """The scenes of a split in order; `make_scene` makes one alone.

    Raises:
        UnknownName: no such split.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    return (make_scene(split, number) for number in range(SPLITS[split]))


class CaptionedScene(NamedTuple):
    """A scene as a captioned image: `test-00012`, its image file, its captions `test-00012-1` to `-5`.

    The scene and its captions are made on access only: a list of images needs neither.
    """

    split: str
    number: int

    @property
    def image_id(self) -> str:
        return scene_id(self.split, self.number)

    @property
    def file(self) -> str:
        return f"{self.image_id}.png"

    @property
    def captions(self) -> tuple[Caption, ...]:
        return _captions(self.split, self.number)


def captioned_images(split: str) -> Iterator[CaptionedScene]:
    """The scenes of a split in order, as captioned images.

    Raises:
        UnknownName: no such split.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    return (CaptionedScene(split, number) for number in range(SPLITS[split]))


@lru_cache(maxsize=sum(SPLITS.values()))
def _captions(split: str, number: int) -> tuple[Caption, ...]:
    """Written once for documents, topics and qrels together (some 2 kB a scene)."""
    scene = make_scene(split, number)
    return tuple(Caption(f"{scene.scene_id}-{place}", text) for place, text in enumerate(captions(scene), start=1))


def _opened(split: str, data_dir: str | None) -> Callable[[str], str]:
    from lexvl_anserini.data.pictures.demo_images import demo_images

    archive = demo_images(split, data_dir)
    return lambda file: f"{archive}::{file}"
