"""Captioned images in memory: read from a dataset, and drawn in batches with their terms and a teacher's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import orjson
import torch
from scipy import sparse
from torch import Tensor

from lexvl_anserini.data.corpora.embeddings import REFERENCE, read_embeddings
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import open_source
from lexvl_anserini.encoders.parts.features import Embedded
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.train.common.batches import TextStore, TrainingBatch
from lexvl_plugins.train.images.stores import ImageStore
from lexvl_plugins.train.objectives.joint_losses import compute_mask_probability
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.words import Texts


@dataclass(frozen=True)
class CaptionedImages:
    """Images with their captions.

    Attributes:
        ids: doc_id of each image.
        images: reference of each image.
        captions: texts of each image, at least one.
    """

    ids: Sequence[str]
    images: Sequence[str]
    captions: Sequence[Sequence[str]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def texts(self) -> list[str]:
        """All captions, image by image."""
        return [text for texts in self.captions for text in texts]

    @property
    def worded(self) -> Texts:
        """What a vocabulary is learned from."""
        return self.texts

    @property
    def first(self) -> np.ndarray:
        """Where the captions of each image begin among all: those of image i are first[i] to first[i + 1] - 1."""
        return np.cumsum([0, *map(len, self.captions)], dtype=np.int64)

    def select(self, positions: Sequence[int]) -> CaptionedImages:
        """The images at some positions."""
        ids, images = [self.ids[place] for place in positions], [self.images[place] for place in positions]
        return CaptionedImages(ids, images, [self.captions[place] for place in positions])

    def describe(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The images of a batch with the captions that were drawn, to look at."""
        texts = self.texts
        return [
            {"id": self.ids[item], "image": self.images[item], "captions": [texts[caption] for caption in captions]}
            for item, captions in zip(batch.items, batch.texts.T, strict=True)
        ]

    def digest(self) -> str:
        """SHA-256 (hex) of the ids, the captions and the bytes of the images (or the stored vectors), in order.

        Only the bytes of an image file count, not its name, folder or time: a copy elsewhere has the same digest, a
        replaced image has another.
        """
        whole = sha256()
        for doc_id, image, texts in zip(self.ids, self.images, self.captions, strict=True):
            if REFERENCE.fullmatch(image):
                vectors = [image, *(text.vector for text in texts if isinstance(text, Embedded))]
                content = read_embeddings(vectors).tobytes()  # type: ignore[arg-type]
            else:
                with open_source(image) as source:
                    content = source.read()
            whole.update(orjson.dumps([doc_id, [str(text) for text in texts], sha256(content).hexdigest()]))
        return whole.hexdigest()


def read_captioned(dataset: Dataset, limit: int | None = None) -> CaptionedImages:
    """The images of a dataset (direction text-to-image) that have captions, in the order of the dataset."""
    # A caption has the reference of its stored vector where there is one.
    texts = {
        topic.query_id: Embedded(topic.text or "", topic.image) if topic.image else topic.text or ""
        for topic in dataset.topics()
    }
    captions: dict[str, list[str]] = {}
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            captions.setdefault(qrel.doc_id, []).append(texts[qrel.query_id])
    ids, images, chosen = [], [], []
    for document in dataset.documents():
        if document.image is None:
            raise DataError(
                f"{dataset.name}: document {document.doc_id!r} has no image; training needs captioned images"
            )
        if document.doc_id in captions:
            ids.append(document.doc_id)
            images.append(document.image)
            chosen.append(captions[document.doc_id])
        if len(images) == limit:
            break
    if not images:
        raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")
    return CaptionedImages(ids, images, chosen)


@dataclass(frozen=True)
class Expansion:
    """D2S' probabilistic expansion control: whether the texts of a batch are expanded, drawn once per batch.

    Attributes:
        rule: always, never, or controlled: rarely in the first epochs of a stage, always in its last.
        first: steps before the stage.
        per_epoch: steps of an epoch.
    """

    rule: Literal["always", "never", "controlled"] = "always"
    seed: int = 0
    first: int = 0
    per_epoch: int = 1
    epochs: int = 1

    @classmethod
    def plan(cls, recipe: Recipe, number: int, items: int) -> Expansion:
        """That of a stage with so many training items."""
        plan = recipe.stages[number].optimisation
        first, per_epoch = sum(stage.optimisation.steps for stage in recipe.stages[:number]), items // plan.batch_size
        epochs = -(-plan.steps // per_epoch)
        return cls(recipe.stages[number].expansion, recipe.seed, first, per_epoch, epochs)

    def __call__(self, step: int) -> bool:
        """Whether the batch of a step, counted from 0 over all stages, is expanded."""
        if self.rule != "controlled":
            return self.rule == "always"
        epoch = 1 + (step - self.first) // self.per_epoch
        draw = np.random.default_rng((self.seed, 5, step)).random()
        return bool(draw >= compute_mask_probability(epoch, self.epochs))


@dataclass(frozen=True)
class CaptionTerms:
    """Which terms the captions of the training images contain.

    Attributes:
        shares: CSR [n images, V] float32: the share of an image's captions that contain a term.
        frequency: float32 [V], the mean of `shares` over all images, on the device of the batches.
    """

    shares: sparse.csr_matrix
    frequency: Tensor

    @classmethod
    def count(cls, texts: TextStore, first: np.ndarray) -> CaptionTerms:
        """The terms of all captions of a split; image i has the captions first[i] to first[i + 1] - 1."""
        counts, terms = np.diff(first), texts.columns.of_token[texts.ids]
        caption = np.repeat(np.arange(len(texts)), texts.lengths)[terms >= 0]
        held = np.unique(np.stack([caption, terms[terms >= 0]]), axis=1)  # a term that a caption repeats counts once
        images = np.repeat(np.arange(len(counts)), counts)[held[0]]
        parts = (1 / counts[images]).astype(np.float32)
        shares = sparse.csr_matrix((parts, (images, held[1])), shape=(len(counts), len(texts.columns.vocabulary)))
        mean = np.asarray(shares.mean(axis=0), dtype=np.float32)[0]
        return cls(shares, torch.from_numpy(mean).to(texts.device))

    def get_shares(self, images: np.ndarray) -> Tensor:
        """The shares of the images at some positions [B], float32 [B, V]."""
        return torch.from_numpy(self.shares[images].toarray()).to(self.frequency.device)


@dataclass(frozen=True)
class Taught:
    """The vectors of the teachers for the training split: images [n, D], captions [m, D]."""

    images: Tensor
    captions: Tensor

    @classmethod
    def join(cls, teachers: Sequence[tuple[Tensor, Tensor]]) -> Taught:
        """The vectors of some teachers, images and captions of unit length; a score is the mean of theirs."""
        # Rows beside each other add the teachers' products; both sides, divided by the root of n, divide the sum by n.
        images, captions = (torch.cat(side, dim=1) / len(teachers) ** 0.5 for side in zip(*teachers, strict=True))
        return cls(images, captions)

    def score(self, captions: np.ndarray, images: np.ndarray) -> Tensor:
        """The scores of some captions [N] and images [M], float32 [N, M]."""
        return self.captions[torch.from_numpy(captions)] @ self.images[torch.from_numpy(images)].T


class Batches:
    """Draws batches of images with captions.

    Image i has the captions first[i] to first[i + 1] - 1, of which a batch draws `rounds`. `size` is the images per
    batch; the remainder of an epoch is skipped.
    """

    def __init__(
        self,
        images: ImageStore,
        captions: TextStore,
        first: np.ndarray,
        size: int,
        rounds: int,
        seed: int,
        expansion: Expansion = Expansion(),  # noqa: B008 (frozen)
        terms: CaptionTerms | None = None,
        taught: Taught | None = None,
    ):
        self.images, self.captions, self.first, self.size, self.rounds = images, captions, first, size, rounds
        self.seed, self.expansion, self.terms, self.taught = seed, expansion, terms, taught
        self.per_epoch = len(images) // size
        # Steps run through few epochs at a time, so the orders of two epochs are enough to keep.
        draws = np.random.default_rng
        self._order = lru_cache(2)(lambda epoch: draws((seed, 0, epoch)).permutation(len(images)))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages."""
        epoch, number = divmod(step, self.per_epoch)
        chosen = np.sort(self._order(epoch)[number * self.size : (number + 1) * self.size])
        draws = np.random.default_rng((self.seed, 1, step))
        inputs = self.images.draw_views(chosen, draws)
        first, counts = self.first[chosen], self.first[chosen + 1] - self.first[chosen]
        # Distinct captions of an image where it has enough of them.
        offsets = [draws.permutation(count)[np.arange(self.rounds) % count] for count in counts]
        captions = (first[:, None] + np.stack(offsets)).T  # [rounds, B]
        return TrainingBatch(
            items=chosen,
            documents=inputs,
            texts=captions,
            rounds=tuple(self.captions.read_batch(row) for row in captions),
            taught=tuple(self.taught.score(row, chosen) for row in captions) if self.taught else None,
            named=self.terms.get_shares(chosen) if self.terms else None,
            frequency=self.terms.frequency if self.terms else None,
            expanded=self.expansion(step),
        )
