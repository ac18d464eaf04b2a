"""Topics -> encoded queries: a topic's vector, quantised for the index; in memory, or as a file of encoded queries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import orjson

from lexvl_anserini.encoders.encoder import as_dense, as_lexical
from lexvl_anserini.encoders.parts.fields import FieldsTower
from lexvl_anserini.ground.claims import claim, ensure
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import atomic_write, packed, read_json, same_file
from lexvl_anserini.ground.manifest import Counts, EncoderRef, Manifest, expect_lexical
from lexvl_anserini.ground.records import SCORE_LIMIT, DenseQuery, ImpactQuery, Topic
from lexvl_anserini.ground.run_manifest import manifest_path, write_beside
from lexvl_anserini.ground.typed import check_text
from lexvl_anserini.ground.vocabulary import in_field
from lexvl_anserini.queries.clauses import Query

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder, Tower
    from lexvl_anserini.ground.quantise import Quantiser
    from lexvl_anserini.queries.query_source import TopicSource

log = logging.getLogger(__name__)

# Topics encoded at once: enough to sort by length, few enough for flat memory.
PIECE = 1024


def encode_queries(
    model: Encoder, topics: Iterable[Topic], manifest: Manifest, batch_size: int = 32
) -> Iterator[Query]:
    """Topics -> queries for an engine of the model's kind, in order, with flat memory.

    Lexical queries are quantised by the manifest's quantiser, bounded by the largest impact in the manifest's counts.
    """
    from lexvl_anserini.ground.quantise import Quantiser

    quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else Quantiser()
    return quantised_queries(model, topics, quantiser, manifest.counts.max_impact, batch_size)


def quantised_queries(
    model: Encoder, topics: Iterable[Topic], quantiser: Quantiser, max_impact: int | None, batch_size: int = 32
) -> Iterator[Query]:
    """As `encode_queries`, with a given quantiser; topics for BM25 stay as they are."""
    stream = iter(topics)
    while piece := list(islice(stream, PIECE)):
        inputs = [model.query.read_topic(topic) for topic in piece]
        for topic, item in zip(piece, inputs, strict=True):
            check_text(f"topic {topic.query_id!r}", item)
        if model.kind == "text":
            yield from piece
        else:
            query_ids = [topic.query_id for topic in piece]
            yield from queries_of(model.query, query_ids, inputs, quantiser, max_impact, batch_size)


def queries_of(
    tower: Tower,
    query_ids: Sequence[str],
    inputs: Sequence[Any],
    quantiser: Quantiser,
    max_impact: int | None,
    batch_size: int = 32,
) -> Iterator[ImpactQuery | DenseQuery]:
    """The vectors of a tower's inputs as queries."""
    if tower.kind == "dense":
        yield from map(DenseQuery, query_ids, as_dense(tower).vectors(inputs, batch_size))
    elif isinstance(tower, FieldsTower):
        yield from map(ImpactQuery, query_ids, field_vectors(tower, inputs, max_impact, batch_size))
    else:
        yield from map(ImpactQuery, query_ids, lexical_vectors(tower, inputs, quantiser, max_impact, batch_size))


def lexical_vectors(
    tower: Tower, inputs: Sequence[Any], quantiser: Quantiser, max_impact: int | None, batch_size: int
) -> Sequence[Mapping[str, int]]:
    """Term -> weight of each input of a lexical tower."""
    side = as_lexical(tower)
    # Graphs have a form of weights that needs no scipy.
    weights = getattr(side, "csr_rows", side.weights)(inputs, batch_size)
    return quantiser.queries(weights, max_impact).in_vocabulary(side.vocabulary)


def field_vectors(
    tower: FieldsTower, inputs: Sequence[Mapping[str, Any]], max_impact: int | None, batch_size: int
) -> list[dict[str, int]]:
    """`field:term` -> weight of each input: the weights of all fields, each times that of its field."""
    vectors: list[dict[str, int]] = [{} for _ in inputs]
    for field in tower.fields:
        there = [number for number, item in enumerate(inputs) if field.name in item]
        items = [inputs[number][field.name] for number in there]
        if not items:
            continue
        if field.tower is None:
            assert field.analyse is not None
            own: Sequence[Mapping[str, int]] = [Counter(field.analyse(text)) for text in items]
        else:
            own = lexical_vectors(field.tower, items, field.quantiser, max_impact, batch_size)
        for number, vector in zip(there, own, strict=True):
            vectors[number].update({in_field(field.name, term): field.weight * w for term, w in vector.items()})
    return [halved(vector, max_impact or 1) for vector in vectors]


def halved(vector: dict[str, int], max_impact: int) -> dict[str, int]:
    """The weights divided by the least power of two with which no score can reach 2^24; rounded, without zeros.

    All fields are divided alike, so that their balance stays.
    """
    within, divisor = vector, 1
    while sum(within.values()) * max_impact >= SCORE_LIMIT:
        divisor *= 2
        within = {term: rounded for term, weight in vector.items() if (rounded := round(weight / divisor))}
    return within


def encode_topics(
    model: Encoder,
    topics: TopicSource,
    quantiser: Quantiser,
    output: Path,
    batch_size: int = 32,
    overwrite: bool = False,
    index: Manifest | None = None,
) -> dict[str, Any]:
    """Writes encoded topics with their texts to one file, and beside it a manifest with their encoder and origin.

    Stock Pyserini finds the vector of a text by the text.

    Only the query side of the quantiser is used. A name in .gz or .zst is compressed. With the manifest of an index,
    whose encoder the model is, the queries are those of a search of this index.
    """
    expect_lexical(f"encoder {model.name!r}", model.kind, "only lexical queries are written as terms")
    if index is None:
        quantiser, vocabulary = model.fitted(quantiser), model.vocabulary
        encoder = model.identity()
        terms: Mapping[str, Any] = {"size": len(vocabulary), "digest": vocabulary.digest}
        encode = partial(quantised_queries, quantiser=quantiser, max_impact=None)
    else:
        encoder, terms = EncoderRef({**index.encoder, "options": dict(model.options)}), index.vocabulary
        encode = partial(encode_queries, manifest=index)
    request = {
        "encoder": encoder,
        "quantiser": quantiser.to_json() if index is None else index.quantiser,
        "vocabulary": terms,
        "topics": topics.to_json(),
        "topics_sha256": topics.digest(),
        "contents": True,
        # It decides how many bits a query has.
        **({} if index is None else {"max_impact": index.counts.max_impact}),
    }
    count = ensure(
        output,
        lambda: finished_queries(output, request, overwrite),
        lambda: _write_topics(topics, partial(encode, model, batch_size=batch_size), output, request),
    )
    return {"output": str(output), "encoder": model.name, "topics": count}


def finished_queries(output: Path, request: Mapping[str, Any], overwrite: bool) -> int | None:
    """The number of encoded topics in a file that is finished as wanted; None if it is to be written."""
    if not output.exists() or overwrite:
        return None
    beside = manifest_path(output)
    with same_file(output):
        if not beside.exists():
            raise ArtefactError(f"{output}: exists without {beside.name}; --overwrite replaces it")
        content = read_json(beside, "manifest of the queries")
    expected, stored = queries_request(request), queries_request(content)
    if stored["topics"] and "topics_sha256" not in stored:
        del expected["topics_sha256"]  # an older file of a dataset's topics, which the entry `topics` names
    if "contents" not in stored:
        del expected["contents"]  # an older file without texts, which only stock Pyserini needs
    if "max_impact" not in stored:
        expected.pop("max_impact", None)  # an older file
    claim(output, "encoded topics", expected, stored, overwrite)
    return Counts(content.get("counts", {})).topics


def queries_request(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the bytes of encoded topics, from their manifest; the folders of checkpoint and dataset do not.

    Nor does the dataset's rule, which is about their lists: until 0.2.0 all folders `beir:PATH` had BEIR's.
    """
    entries = {key: value for key, value in manifest.items() if key != "counts"}
    topics = {
        key: value for key, value in manifest.get("topics", {}).items() if key not in ("data_dir", "remove_query")
    }
    return {**entries, "encoder": EncoderRef(manifest.get("encoder", {})).without_places(), "topics": topics}


def _write_topics(
    topics: TopicSource,
    encode: Callable[[Iterable[Topic]], Iterable[Query]],
    output: Path,
    request: Mapping[str, Any],
) -> int:
    """Encodes and writes the topics and their manifest; returns their number."""
    stream, again = tee(cast(Iterator[Topic], topics.stream()))
    queries = encode(stream)
    texts = (topic.text or "" for topic in again)
    with atomic_write(output) as out:
        count = query_lines(cast(Iterable[ImpactQuery], queries), texts, out, output.suffix)
        write_beside(output, out, {**request, "counts": {"topics": count}})
    return count


def write_queries(queries: Iterable[ImpactQuery], output: Path, texts: Iterable[str] | None = None) -> int:
    """Writes queries as JSON lines `{"id","contents","vector"}`, gzip if the name ends in .gz; returns their number."""
    with atomic_write(output) as out:
        return query_lines(queries, repeat("") if texts is None else texts, out, output.suffix)


def query_lines(queries: Iterable[ImpactQuery], texts: Iterable[str], out: BinaryIO, suffix: str) -> int:
    """The lines of `write_queries` into an open file whose name has that suffix; returns their number."""
    count = 0
    with packed(out, suffix) as lines:
        for query, text in zip(queries, texts, strict=not isinstance(texts, repeat)):
            lines.write(orjson.dumps({"id": query.query_id, "contents": text, "vector": {**query.vector}}) + b"\n")
            count += 1
    return count
