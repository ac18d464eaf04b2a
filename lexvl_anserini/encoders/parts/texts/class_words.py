"""Words of a classifier's classes as terms of images, so that things which captions rarely name are found too.

The network of the images was pretrained as a classifier, whose row f_c says where class c is. Of a word w in the names
of the classes C(w), the logit in a cell with state s is

    a_w mean_{c in C(w)} <f_c, s> + b_w,   s of the network's last layer

The rows come from the network's own weights and are not trained, so nothing is forgotten; a_w and b_w give a word the
mean and the spread that a term of the captions has over the training images. The terms of the captions have unit length
without the class words. So their weights are the same whether a thing in an image has a class word or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.parts.pooling import Head
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import read_json


class WithStates(nn.Module):
    """Features and, after them, the states that they were made of."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, states: Tensor) -> Tensor:  # [B, P, D]
        """[B, P, width + D]."""
        return torch.cat([self.head(states), states], dim=2)


def word_rows(classifier: Tensor, classes: Sequence[Sequence[int]]) -> Tensor:
    """The mean of a classifier's rows [C, D] over the classes of each word, [W, D]."""
    return torch.stack([classifier[list(numbers)].mean(dim=0) for numbers in classes])


def read_class_words(path: Path, size: int) -> dict[str, list[int]]:
    """The classes, below `size`, of each class word of a checkpoint, in the order of its terms."""
    content = read_json(path, "class words", CheckpointError)
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: expected a mapping of words to classes")
    for word, numbers in content.items():
        if not isinstance(numbers, list) or not numbers or not all(type(n) is int and 0 <= n < size for n in numbers):
            raise CheckpointError(f"{path}: {word!r:.80} has classes {numbers!r:.80}, expected some of 0 to {size - 1}")
    return {str(word): list(numbers) for word, numbers in content.items()}


def with_class_words(head: Head, rows: Tensor, width: int) -> Head:
    """A head whose last terms are class words.

    Args:
        head: rows [V, F] and biases [V] of all terms; the rows of class words are not used.
        rows: of the class words, [W, C], for the last C numbers of a state.
        width: of the states.
    """
    assert isinstance(head.transform, nn.Module)
    of_captions, features = len(head.matrix) - len(rows), head.matrix.shape[1]
    matrix = head.matrix.new_zeros(len(head.matrix), features + width)
    matrix[:of_captions, :features] = head.matrix[:of_captions]
    matrix[of_captions:, -rows.shape[1] :] = rows.to(matrix.device)
    return Head(WithStates(head.transform), matrix, head.bias)
