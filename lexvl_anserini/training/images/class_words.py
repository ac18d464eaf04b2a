"""The class words of a trained pair: which they are, and how heavy they are beside the terms of the captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.vdr_crossmodal import word_rows
from lexvl_anserini.training.common.batches import TextStore
from lexvl_anserini.training.common.tower_pair import project_max
from lexvl_anserini.training.images.checkpoints import ClassWordWeights
from lexvl_anserini.training.images.sides import VdrImageOver, VdrTextOver
from lexvl_anserini.training.images.stores import ImageStore

# Images, or texts, of one forward pass, and the largest number of texts.
BATCH, TEXTS = 64, 6000

# Standard deviations by which a class word is lighter in images than a term of captions with the same logit. Captions
# rarely name what a class word says of such photos, and most class words that are heavy without this are wrong.
LIGHTER = 4.0


@torch.inference_mode()
def weigh(
    text: VdrTextOver,
    image: VdrImageOver,
    texts: TextStore,
    images: ImageStore,
    classifier: Tensor,
    words: Mapping[str, list[int]],
    ids: Sequence[int],
) -> ClassWordWeights:
    """The weights of class words beside those of a trained pair.

    Over the training images, the largest logit of a class word in an image gets the median standard deviation of those
    of the terms of captions, and a mean `LIGHTER` such deviations below theirs; over the training texts, the same mean.
    A text's row of a class word is its input embedding, which is not trained: its logits as they are would have another
    size than those of trained rows.

    Args:
        text: the trained side of the texts, in eval mode.
        image: the trained side of the images, in eval mode.
        texts: the training split; of many captions, some at equal distances.
        images: the training split.
        classifier: rows [C, D] of the classifier that the images' network was pretrained with.
        words: the classes of each class word.
        ids: the token of each class word.
    """
    device, proj = image.proj.device, image.proj
    last = classifier.shape[1]
    rows = word_rows(classifier.to(device) * image.standard.std[-last:], list(words.values()))
    of_terms, of_words = [], []
    for chosen in pieces(np.arange(len(images))):
        states = image.states(images.plain(chosen))
        of_terms.append(project_max(image.head(states), proj))
        of_words.append(project_max(states[:, :, -last:], rows))
    scale, image_bias, spread = beside(torch.cat(of_terms) + image.bias, torch.cat(of_words))
    image_bias = image_bias - LIGHTER * spread

    network: Any = text.network
    embeddings = normalize(network.get_input_embeddings().weight[torch.tensor(ids, device=device)], dim=1)
    of_terms, of_words = [], []
    for chosen in pieces(np.arange(0, len(texts), -(-len(texts) // TEXTS))):
        batch = texts.batch(chosen)
        features, padding = text.head(text.states(batch)), batch.attention == 0
        of_terms.append(project_max(features, proj, padding))
        of_words.append(project_max(features, embeddings, padding))
    text_scale, text_bias, _ = beside(torch.cat(of_terms) + text.bias, torch.cat(of_words))
    return ClassWordWeights(scale, image_bias, text_scale[:, None] * embeddings, text_bias)


def beside(terms: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scale and the bias, [W], that give the columns of [n, W] the median mean and spread of those of [n, V].

    The third value is that spread, a standard deviation.
    """
    spread = terms.std(dim=0).median()
    scale = spread / words.std(dim=0).clamp(min=1e-6)
    return scale, terms.mean(dim=0).median() - scale * words.mean(dim=0), spread


def pieces(positions: np.ndarray) -> Sequence[np.ndarray]:
    """Positions in parts of at most `BATCH`."""
    return np.array_split(positions, -(-len(positions) // BATCH))
