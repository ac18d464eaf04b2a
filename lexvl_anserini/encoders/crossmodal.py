"""What cross-modal encoders share: which tower asks and which is searched, and how many dimensions each keeps."""

from __future__ import annotations

from typing import Any, Literal

from lexvl_anserini.encoders.sparsify import Sparsifier, positive, top_k
from lexvl_anserini.errors import UsageError

Direction = Literal["text-to-image", "image-to-text", "text-to-text"]


def in_direction(direction: Direction, text: Any, image: Any) -> tuple[Any, Any]:
    """Query and document part of a direction, of whatever stands for texts and for images.

    >>> in_direction("image-to-text", "captions", "pictures")
    ('pictures', 'captions')
    """
    parts = {"text": text, "image": image}
    query, _, document = direction.partition("-to-")
    return parts[query], parts[document]


def positive_or_top(k: int | None) -> Sparsifier:
    """Every positive weight, or the k largest of them.

    Raises:
        UsageError: k is below 1.
    """
    if k is None:
        return positive()
    if k < 1:
        raise UsageError(f"topk {k}: expected at least 1")
    return top_k(k)
