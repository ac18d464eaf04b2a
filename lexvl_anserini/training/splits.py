"""Which images and captions train and which validate, and the digests of everything that a run reads."""

from __future__ import annotations

from dataclasses import replace

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import choose_device
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.training.data import CaptionedImages, digest, read_captioned
from lexvl_anserini.training.pretrained_sides import network_digests
from lexvl_anserini.training.recipe import Recipe

TRAINING, VALIDATION = "training", "validation"


def check(recipe: Recipe, data_dir: str | None, device: str) -> None:
    """Checks that the device, the data and the networks of a recipe exist; reads no image.

    Raises:
        LexvlError: one of them does not exist.
    """
    choose_device(device)
    for role, (dataset, limit) in datasets(recipe, data_dir).items():
        images = len({judgement.doc_id for judgement in dataset.qrels()})
        if not images:
            raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")
        if role == TRAINING:
            images = min(images, limit or images)
            held_out = -(-images // recipe.data.held_out) if recipe.data.held_out else 0
            check_batches(recipe, images - held_out)
    if recipe.model.pretrained:
        network_digests(recipe.model)


def check_batches(recipe: Recipe, images: int) -> None:
    """Checks that each stage can fill a batch, before anything is computed of the images.

    Raises:
        UsageError: there are fewer training images.
    """
    for stage in recipe.stages:
        if (size := stage.optimisation.batch_size) > images:
            raise UsageError(f"recipe {recipe.name}: batch_size {size} is more than the {images} training images")


def datasets(recipe: Recipe, data_dir: str | None) -> dict[str, tuple[Dataset, int | None]]:
    """By role, the dataset for training and, if there is one, for validation; with the largest number of images."""
    data = recipe.data
    wanted = {TRAINING: (data.split, data.images), VALIDATION: (None if data.held_out else data.validation, None)}
    return {
        role: (load_dataset(data.corpus, split, data_dir, direction="text-to-image"), images)
        for role, (split, images) in wanted.items()
        if split
    }


def read_splits(recipe: Recipe, data_dir: str | None) -> dict[str, CaptionedImages]:
    """By role, the images with their captions; held-out images validate instead of a split of their own.

    Raises:
        LexvlError: a dataset cannot be read, or has no captions.
    """
    data = {role: read_captioned(dataset, limit) for role, (dataset, limit) in datasets(recipe, data_dir).items()}
    if every := recipe.data.held_out:
        whole = data[TRAINING]
        held = set(range(0, len(whole.ids), every))
        data = {role: chosen(whole, held, role == VALIDATION) for role in (TRAINING, VALIDATION)}
    return data


def chosen(whole: CaptionedImages, positions: set[int], inside: bool) -> CaptionedImages:
    """The images at some positions, or at all others."""
    kept = [number for number in range(len(whole.ids)) if (number in positions) == inside]
    return replace(
        whole,
        ids=[whole.ids[number] for number in kept],
        images=[whole.images[number] for number in kept],
        captions=[whole.captions[number] for number in kept],
    )


def digests_of(recipe: Recipe, data: dict[str, CaptionedImages]) -> dict[str, str]:
    """Digests of all that decides a run besides its recipe: images and captions, networks, teachers.

    Raises:
        LexvlError: one of them cannot be read.
    """
    digests = {role: digest(captioned) for role, captioned in data.items()}
    if recipe.model.pretrained:
        digests |= network_digests(recipe.model)
    for number, stage in enumerate(recipe.stages):
        if stage.teacher:
            digests[f"the teacher of stage {number}"] = find_checkpoint(stage.teacher).digest()
    return digests
