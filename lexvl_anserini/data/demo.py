"""The embedded demo data set: nothing to download, generated from fixed seeds.

A document is the first four captions of a scene, a topic the fifth; the scene's own document is the one relevant
answer. Exact words often miss it, because annotators differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lexvl_anserini.data.base import Dataset
from lexvl_anserini.data.grammar import captions
from lexvl_anserini.data.staging import make_scene
from lexvl_anserini.data.world import SPLITS, Scene
from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.records import Document, Qrel, Topic

__all__ = ["captions", "load_demo", "scenes"]


def load_demo(
    name: str = "demo", split: str | None = None, data_dir: str | None = None, escape_ids: bool = False
) -> Dataset:
    """Loads `demo` or `demo/<split>`: train (10,000 scenes), val (1,000) or test (1,000, the default).

    Raises:
        UnknownName: no such split.
        UsageError: two different splits.
    """
    split_in_name = name.removeprefix("demo").removeprefix("/") or None
    if split and split_in_name and split != split_in_name:
        raise UsageError(f"{name}: the name says split {split_in_name!r}, the split option {split!r}; give one of them")
    chosen = split or split_in_name or "test"
    if chosen not in SPLITS:
        raise UnknownName("split of demo", chosen, SPLITS)
    return Dataset(
        name="demo",
        split=chosen,
        documents=partial(_documents, chosen),
        topics=partial(_topics, chosen),
        qrels=partial(_qrels, chosen),
        data_dir=data_dir,
        escape_ids=escape_ids,
    )


def scenes(split: str) -> Iterator[Scene]:
    """The scenes of a split in order; `staging.make_scene` makes one alone.

    Raises:
        UnknownName: no such split.
    """
    if split not in SPLITS:
        raise UnknownName("split of demo", split, SPLITS)
    return (make_scene(split, number) for number in range(SPLITS[split]))


def _documents(split: str) -> Iterator[Document]:
    for scene in scenes(split):
        yield Document(scene.scene_id, text=" ".join(captions(scene)[:4]))


def _topics(split: str) -> Iterator[Topic]:
    for scene in scenes(split):
        yield Topic(_query_id(scene), captions(scene)[4])


def _qrels(split: str) -> Iterator[Qrel]:
    for scene in scenes(split):
        yield Qrel(_query_id(scene), scene.scene_id, 1)


def _query_id(scene: Scene) -> str:
    return f"{scene.scene_id}-5"
