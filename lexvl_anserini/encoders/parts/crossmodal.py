"""What cross-modal encoders share: which tower asks and which is searched."""

from __future__ import annotations

from typing import Any, Literal

Direction = Literal["text-to-image", "image-to-text", "text-to-text"]


def in_direction(direction: Direction, text: Any, image: Any) -> tuple[Any, Any]:
    """Query and document part of a direction, of whatever stands for texts and for images.

    >>> in_direction("image-to-text", "captions", "pictures")
    ('pictures', 'captions')
    """
    parts = {"text": text, "image": image}
    query, _, document = direction.partition("-to-")
    return parts[query], parts[document]
