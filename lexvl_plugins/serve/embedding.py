"""Texts and pictures -> the vectors with which an index is searched, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, Topic
from lexvl_anserini.queries.query_source import TYPED, check_readable
from lexvl_anserini.queries.query_vectors import encode_queries, queries_of
from lexvl_plugins.serve.messages import Embeddings, EmbedQuestion

if TYPE_CHECKING:
    from lexvl_plugins.serve.answering import Service
    from lexvl_plugins.serve.opened import LiveIndex


def embedded(service: Service, request: EmbedQuestion) -> Embeddings:
    """The vectors of texts and pictures, in their order, as a search of the index encodes them.

    Raises:
        UsageError: the encoder of the index reads no such queries, or an index for BM25 has no encoder.
        DataError: a picture is not on the server any more.
    """
    with service.shelf.borrowed(request.index) as index:
        kind = index.manifest.kind
        if kind == "text":
            raise UsageError(f"index {index.served.name!r} is for BM25: its queries are words, without vectors")
        pictures = [service.sent.picture(picture_id) for picture_id in request.pictures]
        return Embeddings(
            index=request.index,
            kind=kind,
            texts=[vector_of(query) for query in text_queries(index, request.texts)],
            pictures=[vector_of(query) for query in picture_queries(index, pictures)],
        )


def text_queries(index: LiveIndex, texts: list[str]) -> list[Any]:
    """Texts as queries of an index."""
    topics = [Topic(TYPED, text) for text in texts]
    for topic in topics:
        check_readable(topic, index.model)
    return list(encode_queries(index.model, topics, index.manifest))


def picture_queries(index: LiveIndex, pictures: Sequence[Any]) -> list[ImpactQuery | DenseQuery]:
    """Pictures as queries: encoded as queries are, or as documents are where queries are texts."""
    from lexvl_anserini.ground.quantise import Quantiser

    if not pictures:
        return []
    if index.picture_tower is None:
        raise UsageError(f"the encoder of index {index.served.name!r} reads no pictures")
    quantiser = Quantiser.from_json(index.manifest.quantiser) if index.manifest.quantiser else Quantiser()
    ids = [TYPED] * len(pictures)
    return list(queries_of(index.picture_tower, ids, pictures, quantiser, index.manifest.counts.max_impact))


def vector_of(query: Any) -> dict[str, int] | list[float]:
    """Term -> weight, the heaviest first, or the numbers of a dense vector."""
    if isinstance(query, ImpactQuery):
        return dict(sorted(query.vector.items(), key=lambda pair: (-pair[1], pair[0])))
    numbers: list[float] = query.vector.tolist()
    return numbers
