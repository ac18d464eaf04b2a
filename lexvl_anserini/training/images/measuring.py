"""Validation during training: hit rates over a split, with the vectors that search would use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.batches import CaptionStore, TrainingBatch
from lexvl_anserini.training.common.examples import Examples, named, spread
from lexvl_anserini.training.common.stores import ImageStore
from lexvl_anserini.training.common.tower_pair import TowerPair, as_encoded
from lexvl_anserini.training.images.captioned import CaptionedImages
from lexvl_anserini.training.model_settings import ImagePairSettings
from lexvl_anserini.training.objectives.contrastive import bag_of, masked

BATCH = 256
CUTS = (1, 5, 10)


@dataclass(frozen=True)
class Validation:
    """A validation split: its images and their captions."""

    images: ImageStore
    captions: CaptionStore

    @torch.inference_mode()
    def measure(self, pair: TowerPair, model: ImagePairSettings) -> dict[str, float]:
        """Hit rates in percent, text-to-image and image-to-text; of a lexical pair also those of the alpha mode."""
        pair.eval()
        images = self._images(pair, model)
        owner = torch.from_numpy(np.repeat(np.arange(len(self.images)), np.diff(self.captions.tokens.first))).to(
            images.device
        )
        texts, bags = self._texts(pair, model, len(owner))
        pair.train()
        figures = {f"t2i_R@{k}": rate for k, rate in hit_rates(texts @ images.T, owner).items()}
        figures |= {f"i2t_R@{k}": rate for k, rate in backward_rates(images @ texts.T, owner).items()}
        if bags is not None:
            alpha = hit_rates(bags @ images.T, owner)
            figures |= {f"alpha_t2i_R@{k}": rate for k, rate in alpha.items()}
            figures["mean_text_terms"] = round(float((texts > 0).sum(dim=1).float().mean()), 1)
        return figures

    def score(self, figures: Mapping[str, float]) -> float:
        """The sum of R@1, R@5 and R@10 in both directions."""
        return round(sum(figures[f"{direction}_R@{k}"] for direction in ("t2i", "i2t") for k in CUTS), 2)

    def _images(self, pair: TowerPair, model: ImagePairSettings) -> Tensor:
        """Vectors of all images for search, [n, words] or [n, D]."""
        vectors = []
        for start in range(0, len(self.images), BATCH):
            chosen = np.arange(start, min(start + BATCH, len(self.images)))
            encoded = as_encoded(pair.encoder_p(self.images.plain(chosen)), model)
            vectors.append(masked(encoded, None, model.topk) if model.family.cut else encoded)
        return torch.cat(vectors)

    def _texts(self, pair: TowerPair, model: ImagePairSettings, count: int) -> tuple[Tensor, Tensor | None]:
        """Vectors of all captions for search, [count, words] or [count, D]; of a lexical pair also the bags."""
        vectors, bags = [], []
        for start in range(0, count, BATCH):
            chosen = np.arange(start, min(start + BATCH, count))
            batch = self.captions.batch(chosen)
            encoded, own = as_encoded(pair.encoder_q(batch), model), batch.bag[:, model.registers :]
            vectors.append(masked(encoded, own, model.kept_of_texts) if model.family.cut else encoded)
            if model.lexical:
                bags.append(bag_of(own, normalised=False))
        return torch.cat(vectors), torch.cat(bags) if bags else None


def hit_rates(scores: Tensor, owner: Tensor) -> dict[int, float]:
    """Share in percent of queries [N] whose document `owner` [N] is among the first k by scores [N, M].

    Raises:
        UsageError: a score is not finite.
    """
    return _shares(ranks(scores, owner))


def backward_rates(scores: Tensor, owner: Tensor) -> dict[int, float]:
    """Share in percent of images [M] that have one of their captions among the first k by scores [M, N].

    Raises:
        UsageError: a score is not finite.
    """
    own = owner[None, :] == torch.arange(len(scores), device=scores.device)[:, None]
    best = scores.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    first = places.masked_fill(~own | (scores != best), scores.shape[1] - 1).amin(dim=1)
    return _shares(ranks(scores, first))


def ranks(scores: Tensor, place: Tensor) -> Tensor:
    """The number of columns before column `place` [N] in each row of scores [N, M]; equal scores keep their order.

    Raises:
        UsageError: a score is not finite.
    """
    if not torch.isfinite(scores).all():
        raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
    own = scores.gather(1, place[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < place[:, None]
    return ((scores > own) | ((scores == own) & before)).sum(dim=1)


def _shares(rank: Tensor) -> dict[int, float]:
    return {k: round(100 * float((rank < k).float().mean()), 2) for k in CUTS}


def listed_images(data: CaptionedImages, batch: TrainingBatch) -> list[dict[str, Any]]:
    """The images of a batch with the captions that were drawn."""
    texts = data.texts
    return [
        {"id": data.ids[item], "image": data.images[item], "captions": [texts[caption] for caption in captions]}
        for item, captions in zip(batch.items, batch.texts.T, strict=True)
    ]


def examples_of(data: CaptionedImages, images: ImageStore, captions: CaptionStore) -> Examples:
    """Some images, each with its first caption as query."""
    chosen = spread(len(data))
    texts = [named(data.captions[place][0]) for place in chosen]
    queries = captions.batch(captions.tokens.first[chosen])
    return Examples(queries, images.plain(chosen), texts, [data.ids[place] for place in chosen])
