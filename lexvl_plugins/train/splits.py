"""Which items train and which validate, and the digests of everything that a run reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_plugins.train.common.learner import choose_examples
from lexvl_plugins.train.images.captioned import Cache, CaptionedImages, read_captioned
from lexvl_plugins.train.images.networks import compute_network_digests
from lexvl_plugins.train.images.stream import StreamedImages
from lexvl_plugins.train.model_settings import HeadSettings, TextPairSettings, TextSettings, TowerSettings
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.texts.query_passages import QueriesWithPassages, join, read_query_passages

# A stream without validation has examples, which a run shows.
TRAINING, VALIDATION, EXAMPLES = "training", "validation", "examples"

Items = TypeVar("Items", CaptionedImages, QueriesWithPassages)
# Images with captions, in memory or in shards.
Images = CaptionedImages | StreamedImages
# By role, images with captions or queries with passages.
Splits = Mapping[str, Images] | Mapping[str, CaptionedImages] | Mapping[str, QueriesWithPassages]


@dataclass(frozen=True)
class Sources:
    """What a run reads: items by role, the digests of these and of networks and teachers, and what is computed once."""

    data: Splits
    digests: Mapping[str, str]
    cache: Cache

    @classmethod
    def read(cls, recipe: Recipe, data_dir: str | None, cache: Path, shared: Path | None = None) -> Sources:
        """Reads the items and computes the digests; `shared` is the cache of the first of several processes."""
        if recipe.data.buffer:
            data: Splits = read_stream(recipe, (cache, shared or cache))
        else:
            data = read_splits(recipe, data_dir)
        check_batches(recipe, len(data[TRAINING]))
        return cls(data, compute_digests(recipe, data), Cache(cache))

    @property
    def images(self) -> dict[str, CaptionedImages]:
        """The images with captions in memory, by role."""
        return {role: items for role, items in self.data.items() if isinstance(items, CaptionedImages)}

    @property
    def queries(self) -> dict[str, QueriesWithPassages]:
        """The queries with passages, by role."""
        return {role: items for role, items in self.data.items() if isinstance(items, QueriesWithPassages)}


def check(recipe: Recipe, data_dir: str | None, device: str) -> None:
    """Checks that the device, the data and the networks of a recipe exist; reads no image."""
    choose_device(device)
    for role, parts in load_datasets(recipe, data_dir).items():
        items = 0
        for dataset in parts:
            judged = (qrel for qrel in dataset.qrels() if qrel.relevance > 0)
            own = len({qrel.query_id if recipe.model.of_texts else qrel.doc_id for qrel in judged})
            if not own:
                lacks = "no topic has a relevant document" if recipe.model.of_texts else "no image has a caption"
                raise DataError(f"{dataset.name}/{dataset.split}: {lacks}")
            items += own
        if role == TRAINING:
            items = min(items, recipe.data.images or items)
            held_out = -(-items // recipe.data.held_out) if recipe.data.held_out else 0
            check_batches(recipe, items - held_out)
    compute_model_digests(recipe)


def check_batches(recipe: Recipe, items: int) -> None:
    """Checks that each stage can fill a batch, before anything is computed of the items."""
    what = "queries" if recipe.model.of_texts else "images"
    for stage in recipe.stages:
        if (size := stage.optimisation.batch_size) > items:
            raise UsageError(f"recipe {recipe.name}: batch_size {size} is more than the {items} training {what}")


def load_datasets(recipe: Recipe, data_dir: str | None) -> dict[str, list[Dataset]]:
    """By role, the datasets for training and, if there are some, for validation."""
    data, direction = recipe.data, "text-to-text" if recipe.model.of_texts else "text-to-image"
    splits = {TRAINING: data.split, VALIDATION: None if data.held_out else data.validation}
    load = partial(load_dataset, data_dir=data_dir, direction=direction)
    return {role: [load(corpus, split) for corpus in data.corpora] for role, split in splits.items() if split}


def read_splits(recipe: Recipe, data_dir: str | None) -> Splits:
    """By role, the items; held-out items validate instead of a split of their own."""
    by_role = load_datasets(recipe, data_dir)
    if recipe.model.of_texts:
        validates = bool(recipe.data.held_out)
        others = {TRAINING: recipe.data.others * validates, VALIDATION: recipe.data.others}
        texts = {
            role: join([read_query_passages(dataset, others[role], recipe.data.titles) for dataset in parts])
            for role, parts in by_role.items()
        }
        return hold_apart(texts, recipe.data.held_out)
    limits = {TRAINING: recipe.data.images}
    images = {role: read_captioned(part, limits.get(role)) for role, [part] in by_role.items()}
    return hold_apart(images, recipe.data.held_out)


def read_stream(recipe: Recipe, folders: Iterable[Path]) -> dict[str, Images]:
    """The training pairs of shards, and in memory those that are held out, or else some examples."""
    [corpus], data = recipe.data.corpora, recipe.data
    load_dataset(corpus, data.validation or data.split, direction="text-to-image")  # shards have no split `val`
    stream = StreamedImages.read(corpus, data.images, folders)
    if not data.held_out:
        return {TRAINING: stream, EXAMPLES: stream.select(choose_examples(len(stream)))}
    trained, held = stream.split_off(data.held_out)
    return {TRAINING: trained, VALIDATION: held}


def hold_apart(data: dict[str, Items], every: int | None) -> dict[str, Items]:
    """The data, in which every n-th training item validates and does not train; None for no change."""
    if not every:
        return data
    whole = data[TRAINING]
    held = range(0, len(whole), every)
    rest = [number for number in range(len(whole)) if number not in held]
    return {TRAINING: whole.select(rest), VALIDATION: whole.select(held)}


def compute_digests(recipe: Recipe, data: Splits) -> dict[str, str]:
    """Digests of all that decides a run besides its recipe: its items, networks, teachers."""
    digests = {role: items.digest() for role, items in data.items()} | compute_model_digests(recipe)
    for number, stage in enumerate(recipe.stages):
        for teacher, checkpoint in enumerate(stage.teachers):
            which = f"teacher {teacher} of stage {number}" if teacher else f"the teacher of stage {number}"
            digests[which] = find_checkpoint(checkpoint).digest()
    return digests


def compute_model_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the networks that a recipe starts from."""
    model = recipe.model
    if isinstance(model, TextPairSettings):
        digests = {}
        for role, tower in zip(("query", "document"), model.towers, strict=False):
            if isinstance(tower, TowerSettings):
                digests[f"network of {role}"] = find_checkpoint(tower.checkpoint).digest()
            elif isinstance(tower, TextSettings) and tower.tokenizer is not None:
                digests[f"tokenizer of {role}"] = find_checkpoint(tower.tokenizer, weights=False).digest()
        return digests
    if isinstance(model, HeadSettings):
        what, name = ("dense pair", model.pair) if model.pair else ("words", str(model.words))
        return {what: find_checkpoint(name).digest()}
    return compute_network_digests(model)
