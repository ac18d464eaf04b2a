"""The two sides of an encoder: which tower encodes queries and which documents, and how many dimensions each keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from lexvl_anserini.encoders.encoder import Tower

T = TypeVar("T")

# The tower of one side, from the number of dimensions that it keeps per vector; None leaves the choice to the tower.
TowerOf = Callable[[int | None], Tower]

Direction = Literal["text-to-image", "image-to-text", "text-to-text"]


def in_direction(direction: Direction, text: T, image: T) -> tuple[T, T]:
    """The query side and the document side of a direction, from what encodes texts and what encodes images.

    >>> in_direction("image-to-text", "caption tower", "image tower")
    ('image tower', 'caption tower')
    """
    sides = {"text": text, "image": image}
    query, _, document = direction.partition("-to-")
    return sides[query], sides[document]


def with_topk(sides: tuple[TowerOf, TowerOf], topk: int | None, query_topk: int | None) -> tuple[Tower, Tower]:
    """Query and document tower.

    Args:
        sides: of queries and of documents.
        topk: dimensions kept per document.
        query_topk: dimensions kept per query; None means `topk`.
    """
    query, document = sides
    return query(topk if query_topk is None else query_topk), document(topk)
