"""Topics -> encoded queries: a topic's vector, quantised for the index; in memory, or as a file of encoded queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lexvl_anserini.encoders.encoder import as_dense, as_lexical
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.files import write_json
from lexvl_anserini.manifest import Manifest, manifest_path
from lexvl_anserini.queries.clauses import Query
from lexvl_anserini.records import DenseQuery, ImpactQuery, Topic

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.quantise import Quantiser
    from lexvl_anserini.queries.query_source import TopicSource

# Topics encoded at once: enough to sort by length, few enough for flat memory.
PIECE = 1024


def encode_queries(
    model: Encoder, topics: Iterable[Topic], manifest: Manifest, batch_size: int = 32
) -> Iterator[Query]:
    """Topics -> queries for an engine of the model's kind, in order, with flat memory.

    Lexical queries are quantised by the manifest's quantiser, bounded by the largest impact in the manifest's counts.

    Raises:
        UsageError: a topic has no text.
        LexvlError: a query's score could reach 2^24 whatever its bits.
    """
    from lexvl_anserini.quantise import Quantiser

    quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else Quantiser()
    return quantised_queries(model, topics, quantiser, manifest.counts.max_impact, batch_size)


def quantised_queries(
    model: Encoder, topics: Iterable[Topic], quantiser: Quantiser, max_impact: int | None, batch_size: int = 32
) -> Iterator[Query]:
    """As `encode_queries`, with a given quantiser; topics for BM25 stay as they are."""
    stream = iter(topics)
    while piece := list(islice(stream, PIECE)):
        inputs = [model.query.read_topic(topic) for topic in piece]
        if model.kind == "text":
            yield from piece
        elif model.kind == "dense":
            for topic, vector in zip(piece, as_dense(model.query).vectors(inputs, batch_size), strict=True):
                yield DenseQuery(topic.query_id, vector)
        else:
            tower = as_lexical(model.query)
            impacts = quantiser.queries(tower.weights(inputs, batch_size), max_impact)
            for topic, terms in zip(piece, impacts.by_term(tower.vocabulary.terms), strict=True):
                yield ImpactQuery(topic.query_id, terms)


def encode_topics(
    model: Encoder,
    topics: TopicSource,
    quantiser: Quantiser,
    output: Path,
    batch_size: int = 32,
    overwrite: bool = False,
    store_contents: bool = False,
) -> dict[str, Any]:
    """Writes encoded topics to one file, and beside it a manifest with their encoder and origin.

    Args:
        quantiser: of both sides; only its query side is used.
        output: JSON lines, gzipped if the name ends in .gz.
        overwrite: replace the file.
        store_contents: keep each topic's text beside its vector; stock Pyserini finds the vector of a text by it.

    Raises:
        UsageError: the model is not lexical.
        ArtefactError: the file exists, and `overwrite` is false.
    """
    from lexvl_anserini.shards.writing import write_queries

    if model.kind != "impact":
        raise UsageError(f"encoder {model.name!r} is {model.kind}; only lexical queries are written as terms")
    if output.exists() and not overwrite:
        raise ArtefactError(f"{output}: exists; --overwrite replaces it")
    query_tower = as_lexical(model.query)
    quantiser = quantiser.for_towers(query_tower.binary, as_lexical(model.document).binary)
    stream, again = tee(cast(Iterator[Topic], topics.stream()))
    queries = quantised_queries(model, stream, quantiser, None, batch_size)
    texts = ((topic.text or "") if store_contents else "" for topic in again)
    count = write_queries(cast(Iterator[ImpactQuery], queries), output, texts)
    vocabulary = query_tower.vocabulary
    about = {
        "encoder": model.identity(),
        "quantiser": quantiser.to_json(),
        "vocabulary": {"size": len(vocabulary), "digest": vocabulary.digest},
        "topics": topics.to_json(),
        "counts": {"topics": count},
    }
    write_json(manifest_path(output), about)
    return {"output": str(output), "encoder": model.name, "topics": count}
