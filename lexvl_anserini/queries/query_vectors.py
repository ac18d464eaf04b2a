"""Topics -> encoded queries: a topic's vector, quantised for the index; in memory, or as a file of encoded queries.

Pseudo-relevance feedback: a query moves towards its own best documents, by Rocchio over impacts, by RM3 with BM25.

Rocchio: q' = alpha q/|q| + beta mean(d/|d|), where the mean keeps only its largest terms; the weights of q' are then
rounded to integers, the largest to 255. This is Anserini's Rocchio without its term for non-relevant documents. RM3
(Abdul-Jaleel et al., TREC 2004): see `RM3`; Anserini computes it.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat, tee
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

import orjson

from lexvl_anserini.encoders.encoder import Encoder, Kind, OtherModality, Tower, as_dense, as_lexical, read_topic
from lexvl_anserini.ground.claims import claim, ensure
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import atomic_write, is_same_file, open_gzip, read_json
from lexvl_anserini.ground.manifest import (
    Counts,
    EncoderRef,
    Manifest,
    expect_lexical,
    name_manifest,
    read_manifest,
    write_beside,
)
from lexvl_anserini.ground.progress import make_batches
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import SCORE_LIMIT, DenseQuery, Document, ImpactQuery, Topic, mark_field
from lexvl_anserini.ground.typed import check_count, check_text
from lexvl_anserini.queries.clauses import Query

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder, Tower
    from lexvl_anserini.ground.quantise import Quantiser
    from lexvl_anserini.queries.query_source import TopicSource

log = logging.getLogger(__name__)

PIECE = 1024  # topics encoded at once: enough to sort by length, few enough for flat memory


def encode_queries(
    model: Encoder, topics: Iterable[Topic], manifest: Manifest, batch_size: int = 32
) -> Iterator[Query]:
    """Topics -> queries for an engine of the model's kind, in order, in flat memory, quantised as the manifest says."""
    quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else Quantiser()
    return quantise_queries(model, topics, quantiser, manifest.counts.max_impact, batch_size)


def quantise_queries(
    model: Encoder, topics: Iterable[Topic], quantiser: Quantiser, max_impact: int | None, batch_size: int = 32
) -> Iterator[Query]:
    """As `encode_queries`, with a given quantiser; topics for BM25 stay as they are."""
    for piece in make_batches(topics, PIECE):
        inputs = [model.query.read_topic(topic) for topic in piece]
        for topic, item in zip(piece, inputs, strict=True):
            check_text(f"topic {topic.query_id!r}", item)
        if model.kind == "text":
            yield from piece
        else:
            query_ids = [topic.query_id for topic in piece]
            yield from make_queries(model.query, query_ids, inputs, quantiser, max_impact, batch_size)


def make_queries(
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
        yield from map(ImpactQuery, query_ids, encode_fields(tower, inputs, max_impact, batch_size))
    else:
        yield from map(ImpactQuery, query_ids, encode_lexical(tower, inputs, quantiser, max_impact, batch_size))


def encode_lexical(
    tower: Tower, inputs: Sequence[Any], quantiser: Quantiser, max_impact: int | None, batch_size: int
) -> Sequence[Mapping[str, int]]:
    """Term -> weight of each input of a lexical tower."""
    side = as_lexical(tower)
    # Graphs have a form of weights that needs no scipy.
    weights = getattr(side, "csr_rows", side.weights)(inputs, batch_size)
    return quantiser.queries(weights, max_impact).in_vocabulary(side.vocabulary)


@dataclass(frozen=True)
class QueryField:
    """A field of the index, as its queries are encoded: by a tower, or for BM25 by `analyse`, the words of a text."""

    name: str
    weight: int
    tower: Tower | None = None
    quantiser: Quantiser = Quantiser()
    analyse: Callable[[str], Iterable[str]] | None = None

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this field."""
        text = read_topic(topic) if self.tower is None else self.tower.read_topic(topic)
        check_text(f"topic {topic.query_id!r}", text)
        return text


@dataclass(frozen=True)
class FieldsTower:
    """The fields of an index; its inputs are, by name, those of each field that reads the topic. It has no matrix."""

    fields: tuple[QueryField, ...]
    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    def read_topic(self, topic: Topic) -> Any:
        """The input of each field that reads texts, or images, as the topic is; a field of weight 0 reads nothing."""
        inputs, refusal = {}, None
        for field in self.fields:
            if field.weight:
                try:
                    inputs[field.name] = field.read_topic(topic)
                except OtherModality as error:
                    refusal = error
        if not inputs and refusal is not None:
            raise refusal
        return inputs

    def read(self, document: Document) -> str:
        """Refuses documents, which the encoders of the fields have encoded before they were joined."""
        raise OtherModality(f"document {document.doc_id!r}: an index of several fields encodes queries only")

    def weights(self, inputs: Any, *others: Any) -> Any:
        """Refuses to make a matrix."""
        raise UsageError("an index of several fields has no encoder of its own; load the encoder of one of its fields")

    dense_weights = weights

    @property
    def vocabulary(self) -> Any:
        """Refuses, as `weights`."""
        return self.weights(None)


def encode_fields(
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
            own = encode_lexical(field.tower, items, field.quantiser, max_impact, batch_size)
        for number, vector in zip(there, own, strict=True):
            vectors[number].update({mark_field(field.name, term): field.weight * w for term, w in vector.items()})
    return [halve_weights(vector, max_impact or 1) for vector in vectors]


def halve_weights(vector: dict[str, int], max_impact: int) -> dict[str, int]:
    """The weights of all fields, divided by the least power of two with which no score can reach 2^24, rounded."""
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

    Stock Pyserini finds the vector of a text by the text. Only the query side of the quantiser is used. With the
    manifest of an index, whose encoder the model is, the queries are those of a search of this index.
    """
    expect_lexical(f"encoder {model.name!r}", model.kind, "only lexical queries are written as terms")
    if index is None:
        quantiser, vocabulary = model.fit_quantiser(quantiser), model.vocabulary
        encoder = model.identity()
        terms = vocabulary.to_json()
        encode = partial(quantise_queries, quantiser=quantiser, max_impact=None)
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
        lambda: find_finished_queries(output, request, overwrite),
        lambda: _write_topics(topics, partial(encode, model, batch_size=batch_size), output, request),
    )
    return {"output": str(output), "encoder": model.name, "topics": count}


def find_finished_queries(output: Path, request: Mapping[str, Any], overwrite: bool) -> int | None:
    """The number of encoded topics in a file that is finished as wanted; None if it is to be written."""
    if not output.exists() or overwrite:
        return None
    beside = name_manifest(output)
    with is_same_file(output):
        if not beside.exists():
            raise ArtefactError(f"{output}: exists without {beside.name}; --overwrite replaces it")
        content = read_json(beside, "manifest of the queries")
    expected, stored = describe_request(request), describe_request(content)
    if stored["topics"] and "topics_sha256" not in stored:
        del expected["topics_sha256"]  # an older file of a dataset's topics, which the entry `topics` names
    if "contents" not in stored:
        del expected["contents"]  # an older file without texts, which only stock Pyserini needs
    if "max_impact" not in stored:
        expected.pop("max_impact", None)  # an older file
    claim(output, "encoded topics", expected, stored, overwrite)
    return Counts(content.get("counts", {})).topics


def describe_request(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the bytes of encoded topics, from their manifest; the folders of checkpoint and dataset do not.

    Nor does the dataset's rule, which is about their lists: until 0.2.0 all folders `beir:PATH` had BEIR's.
    """
    entries = {key: value for key, value in manifest.items() if key != "counts"}
    places = ("data_dir", "remove_query")
    topics = {key: value for key, value in manifest.get("topics", {}).items() if key not in places}
    return {**entries, "encoder": EncoderRef(manifest.get("encoder", {})).without_places(), "topics": topics}


def _write_topics(
    topics: TopicSource, encode: Callable[[Iterable[Topic]], Iterable[Query]], output: Path, request: Mapping[str, Any]
) -> int:
    stream, again = tee(cast(Iterator[Topic], topics.stream()))
    queries = encode(stream)
    texts = (topic.text or "" for topic in again)
    with atomic_write(output) as out:
        count = format_queries(cast(Iterable[ImpactQuery], queries), texts, out, output.suffix)
        write_beside(output, out, {**request, "counts": {"topics": count}})
    return count


def write_queries(queries: Iterable[ImpactQuery], output: Path, texts: Iterable[str] | None = None) -> int:
    """Writes queries as JSON lines `{"id","contents","vector"}`, gzip if the name ends in .gz; returns their number."""
    with atomic_write(output) as out:
        return format_queries(queries, repeat("") if texts is None else texts, out, output.suffix)


def format_queries(queries: Iterable[ImpactQuery], texts: Iterable[str], out: BinaryIO, suffix: str) -> int:
    """The lines of `write_queries` into an open file whose name has that suffix; returns their number."""
    count = 0
    with open_gzip(out, suffix) as lines:
        for query, text in zip(queries, texts, strict=not isinstance(texts, repeat)):
            lines.write(orjson.dumps({"id": query.query_id, "contents": text, "vector": {**query.vector}}) + b"\n")
            count += 1
    return count


# The largest weight of an expanded query: 8 bits, whatever the query bits of the index are; 8 is their default.
LARGEST = 255

VectorOf = Callable[[str], Mapping[str, int]]


@dataclass(frozen=True)
class Feedback:
    """How a query is expanded: by the best documents, of whose mean so many terms are kept.

    Alpha is the share of the query, beta that of the mean, each of length 1.
    """

    documents: int = 10
    terms: int = 20
    alpha: float = 1.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        check_count("documents of feedback", self.documents)
        check_count("terms of feedback", self.terms)
        if not (0 <= self.alpha < inf and 0 <= self.beta < inf and self.alpha + self.beta > 0):
            raise UsageError(f"feedback with alpha {self.alpha} and beta {self.beta}: expected >= 0, one of them above")


MOST_RM3_DOCUMENTS = 50  # Anserini's RM3 reads no further document of the first list


@dataclass(frozen=True)
class RM3:
    """How BM25 expands a query, with Anserini's defaults.

        q' = weight q/|q|_1 + (1 - weight) r/|r|_1,   r(t) = sum over documents d of score(d) tf(t, d)/|d|_1

    d has its `terms` most frequent terms of 2 to 20 characters, each in at most a tenth of all documents (of English
    letters and digits, if the analyser is English), and r its `terms` largest.
    """

    documents: int = 10
    terms: int = 10
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_count("documents of RM3", self.documents, most=MOST_RM3_DOCUMENTS)
        check_count("terms of RM3", self.terms)
        if not 0 <= self.weight <= 1:
            raise UsageError(f"RM3 with weight {self.weight}: expected a share of the query from 0 to 1")


def rocchio(query: Mapping[str, int], documents: Sequence[Mapping[str, int]], feedback: Feedback) -> dict[str, float]:
    """The expanded query, term -> weight > 0; without documents the scaled query alone."""
    documents = [vector for vector in documents if vector]
    moved: dict[str, float] = defaultdict(float)
    for term, weight in unit(query).items():
        moved[term] += feedback.alpha * weight
    mean: dict[str, float] = defaultdict(float)
    for vector in documents:
        for term, weight in unit(vector).items():
            mean[term] += weight / len(documents)
    for term in sorted(mean, key=lambda term: (-mean[term], term))[: feedback.terms]:
        moved[term] += feedback.beta * mean[term]
    return {term: weight for term, weight in moved.items() if weight > 0}


def unit(vector: Mapping[str, int]) -> dict[str, float]:
    """The vector scaled to length 1."""
    length = sqrt(sum(weight * weight for weight in vector.values()))
    return {term: weight / length for term, weight in vector.items()}


def integers(weights: Mapping[str, float], bound: Callable[[Mapping[str, float]], float]) -> dict[str, int]:
    """Weights as integers, the largest 255, or half of that until no score can reach 2^24."""
    largest = LARGEST
    while True:
        scale = largest / max(weights.values(), default=1.0)
        vector = {term: round(weight * scale) for term, weight in weights.items()}
        vector = {term: weight for term, weight in vector.items() if weight}
        if largest == 1 or bound(vector) < SCORE_LIMIT:
            return vector
        largest //= 2


class ShardVectors:
    """The vectors of all documents of shards, or of parts: a function from id to vector; 8 bytes a posting."""

    def __init__(self, shards: Path, index: Manifest):
        from lexvl_anserini.shards.layout import combine_manifests, list_part_folders
        from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

        folders = list_part_folders(shards)
        manifests = [read_manifest(folder) for folder in folders]
        if combine_manifests(manifests, folders) != index:
            raise ArtefactError(f"{shards}: not the shards that the index was built from; feedback needs their vectors")
        self.vocabulary = read_vocabulary(folders[0], manifests[0])
        self.dims, self.impacts, self.spans = array("i"), array("i"), {}
        for folder, manifest in zip(folders, manifests, strict=True):
            for document in read_impacts(folder, manifest, self.vocabulary):
                start = len(self.dims)
                self.dims.extend(self.vocabulary.dimension[term] for term in document.vector)
                self.impacts.extend(document.vector.values())
                self.spans[document.doc_id] = slice(start, len(self.dims))

    def __call__(self, doc_id: str) -> dict[str, int]:
        """The document's vector."""
        if doc_id not in self.spans:
            raise DataError(f"no document {doc_id!r} in the shards")
        span = self.spans[doc_id]
        terms = (self.vocabulary.terms[dim] for dim in self.dims[span])
        return dict(zip(terms, self.impacts[span], strict=True))
