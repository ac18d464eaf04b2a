"""The class words of a trained pair: which they are, and how heavy they are beside the terms of the captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.families.vdr_crossmodal import ClassLogits
from lexvl_anserini.encoders.parts.images.image_backbones import Classifier
from lexvl_plugins.train.common.batches import TextStore
from lexvl_plugins.train.common.tower_pair import project_max
from lexvl_plugins.train.images.checkpoints import ClassWordWeights
from lexvl_plugins.train.images.sides import VdrImageOver, VdrTextOver
from lexvl_plugins.train.images.stores import ImageStore

# Images, or texts, of one forward pass, and the largest number of texts.
BATCH, TEXTS = 64, 6000

# A class word of probability 1 is as heavy as the heaviest term of a photo, one of this probability as the term of this
# rank. Terms of captions change by this share of that with the probability. Chosen on held-out photos
# (docs/photo-models.md).
LIKELY, RANK, SHARE = 1 / 3, 5, 0.2


@torch.inference_mode()
def weigh(
    text: VdrTextOver,
    image: VdrImageOver,
    texts: TextStore,
    images: ImageStore,
    classifier: Classifier,
    words: Mapping[str, list[int]],
    terms: Mapping[str, int],
) -> ClassWordWeights:
    """The weights of class words beside those of a trained pair, from means over the training split.

    A term of the captions keeps its mean logit. A text has a class word as heavy as the mean term that it contains.

    Args:
        text: the trained side of the texts, in eval mode.
        image: the trained side of the images, in eval mode.
        texts: the training split; of many captions, some at equal distances.
        images: the training split.
        classifier: that the images' network was pretrained with.
        words: the classes of each class word.
        terms: the dimensions of the terms of the captions.
    """
    known = torch.tensor([word in terms for word in words])
    classes = ClassLogits(classifier, image.standard, list(words.values()), known).to(image.proj.device)
    heaviest, logs = [], []
    for chosen in pieces(np.arange(len(images))):
        states = image.states(images.plain(chosen))
        logits = project_max(image.head(states), image.proj) + image.bias
        heaviest.append(logits.topk(min(RANK, logits.shape[1]), dim=1).values)
        logs.append(classes(states).amax(dim=1)[:, known])
    levels = torch.cat(heaviest).mean(dim=0)
    slope = (levels[0] - levels[-1]) / -log(LIKELY)
    scale = slope * torch.where(known, SHARE, 1.0).to(slope)
    moved = torch.zeros_like(image.bias)
    dims = [terms[word] for word in words if word in terms]
    moved[dims] = -SHARE * slope * torch.cat(logs).mean(dim=0)
    count = int((~known).sum())
    own = own_logit(text, texts, image.proj)
    return ClassWordWeights(scale, moved, levels[0].repeat(count), own.repeat(count))


def own_logit(text: VdrTextOver, texts: TextStore, rows: Tensor) -> Tensor:
    """The mean logit of the terms that texts contain, a scalar."""
    total, count = rows.new_zeros(()), 0
    for chosen in pieces(np.arange(0, len(texts), -(-len(texts) // TEXTS))):
        batch = texts.read_batch(chosen)
        logits = project_max(text.head(text.states(batch)), rows, batch.attention == 0) + text.bias
        total, count = total + logits[batch.bag].sum(), count + int(batch.bag.sum())
    return total / max(count, 1)


def pieces(positions: np.ndarray) -> Sequence[np.ndarray]:
    """Positions in parts of at most `BATCH`."""
    return np.array_split(positions, -(-len(positions) // BATCH))
