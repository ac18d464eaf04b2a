"""The class words of a trained pair: which they are, and how heavy they are beside the terms of the captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexvl_anserini.encoders.parts.class_words import word_rows
from lexvl_anserini.training.pretrained_sides import VdrImageOver, VdrTextOver
from lexvl_anserini.training.stores import ImageStore

# Images of one forward pass.
BATCH = 64


class ClassWordWeights(NamedTuple):
    """What a checkpoint stores of class words, each [W] but for `rows`.

    scale       a_w of the images' logits
    image_bias  b_w
    rows        [W, width], of the texts' logits
    text_bias   of the texts' logits
    """

    scale: Tensor
    image_bias: Tensor
    rows: Tensor
    text_bias: Tensor


@torch.inference_mode()
def weigh(
    text: VdrTextOver,
    image: VdrImageOver,
    images: ImageStore,
    classifier: Tensor,
    words: Mapping[str, list[int]],
    ids: Sequence[int],
) -> ClassWordWeights:
    """The weights of class words beside those of a trained pair.

    Over the training images, the largest logit of a class word in an image gets the median mean and the median standard
    deviation of those of the terms of captions. A text's logits of class words are those of untrained terms: the
    words' input embeddings, as long as the trained rows are on average, with the mean bias.

    Args:
        text: the trained side of the texts.
        image: the trained side of the images, in eval mode.
        images: the training split.
        classifier: rows [C, D] of the classifier that the images' network was pretrained with.
        words: the classes of each class word.
        ids: the token of each class word.
    """
    device = image.proj.device
    last = classifier.shape[1]
    rows = word_rows(classifier.to(device) * image.standard.std[-last:], list(words.values()))
    of_terms, of_words = [], []
    for start in range(0, len(images), BATCH):
        states = image.states(images.plain(np.arange(start, min(start + BATCH, len(images)))))
        of_terms.append((image.head(states) @ image.proj.T).amax(dim=1) + image.bias)
        of_words.append((states[:, :, -last:] @ rows.T).amax(dim=1))
    terms, raw = torch.cat(of_terms), torch.cat(of_words)  # [n, V], [n, W]
    mean, spread = terms.mean(dim=0).median(), terms.std(dim=0).median()
    scale = spread / raw.std(dim=0)
    network: Any = text.network
    embeddings = network.get_input_embeddings().weight[torch.tensor(ids, device=device)]
    length = image.proj.norm(dim=1).mean()
    return ClassWordWeights(
        scale,
        mean - scale * raw.mean(dim=0),
        length * normalize(embeddings, dim=1),
        text.bias.mean().expand(len(words)),
    )
