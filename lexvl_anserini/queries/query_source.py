"""The queries of a search: topics of a dataset or a file, or queries that are encoded already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from lexvl_anserini.data.checks import parse_weights
from lexvl_anserini.data.dataset import Dataset, get_family, load_reference
from lexvl_anserini.data.lines import Line, get_plain_suffix, log_once, parse_object, read_lines
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.files import compute_sha256, read_json
from lexvl_anserini.ground.manifest import Manifest, name_manifest
from lexvl_anserini.ground.quantise import CsrRows, Quantiser
from lexvl_anserini.ground.records import (
    SCORE_LIMIT,
    VOCABULARY,
    CorpusRef,
    ImpactQuery,
    QuantiserEntry,
    Topic,
    VocabularyEntry,
)
from lexvl_anserini.ground.registry import CORPORA
from lexvl_anserini.ground.typed import Entry, check
from lexvl_anserini.queries.clauses import Clause, Query, list_terms

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

log = logging.getLogger(__name__)

MOST_COMPARED = 2000  # terms with which an unknown one is compared: those that begin alike and are about as long

TYPED = "query"  # the id of a query that the user types


class Origin(Entry):
    """Where encoded topics came from; `TopicSource.to_json` in their manifest."""

    dataset: str = ""
    split: str = ""
    data_dir: str | None = None
    remove_query: bool = False


class QueriesManifest(Entry):
    """The manifest beside encoded topics."""

    topics: Origin = Origin()
    vocabulary: VocabularyEntry = VocabularyEntry()
    quantiser: QuantiserEntry = QuantiserEntry()


@dataclass(frozen=True)
class TopicSource:
    """Where topics come from.

    Attributes:
        stream: starts a stream of topics that are to be encoded, or of encoded queries.
        label: as the user named them.
        judged: the dataset of their judgements; None for a file of no known dataset.
        sha256: of a file.
    """

    stream: Callable[[], Iterator[Query]]
    label: str
    judged: CorpusRef | None = None
    remove_query: bool = False
    sha256: str = ""
    encoded: bool = False

    @classmethod
    def take_dataset(cls, dataset: Dataset) -> TopicSource:
        """The topics of a dataset."""
        return cls(dataset.topics, f"{dataset.name}/{dataset.split}", dataset.ref, dataset.remove_query)

    def digest(self) -> str:
        """SHA-256 (hex) of the ids, texts and pictures (or tables of vectors) of topics that are to be encoded."""
        from lexvl_anserini.data.digests import FileDigests

        whole = sha256()
        with FileDigests() as files:
            for topic in self.stream():
                assert isinstance(topic, Topic), "encoded queries have the digest of their file"
                picture = None if topic.image is None else files.of(topic.image) or "unreadable"
                whole.update(orjson.dumps([topic.query_id, topic.text, picture]))
        return whole.hexdigest()

    def noted(self) -> str:
        """What a run notes: SHA-256 of the file, and of its topics too where some are pictures; else `digest`."""
        if not self.sha256 or self.encoded:
            return self.sha256 or self.digest()
        pictures = any(isinstance(topic, Topic) and topic.image is not None for topic in self.stream())
        return f"{self.sha256}+{self.digest()}" if pictures else self.sha256

    def count(self) -> int:
        """The number of topics, by reading them once."""
        return sum(1 for _ in self.stream())

    def to_json(self) -> dict[str, Any]:
        """For the manifest of encoded queries: the dataset and its rule; empty for a file."""
        if self.judged is None:
            return {}
        judged = {"dataset": self.judged.name, "split": self.judged.split or "", "data_dir": self.judged.data_dir}
        return {**judged, "remove_query": self.remove_query}


def read_queries(path: Path, index: Path, manifest: Manifest, vocabulary: Path | None = None) -> Iterator[ImpactQuery]:
    """Streams encoded queries `{"id", "contents", "vector": {term: weight}}`, as `encode --topics` writes them.

    The manifest beside them is compared with the index's; without `vocab.txt` of the index, terms are not checked.
    One weight with a fraction makes all weights of a file floats, which are quantised.
    """
    if manifest.kind != "impact":
        raise UsageError(f"{path}: encoded lexical queries, but {index} is {manifest.kind}")
    theirs = _read_manifest(path)
    # Only the query side of the quantiser decides what a query looks like; the document side may not be calibrated.
    for part, key in (("vocabulary", "digest"), ("quantiser", "query")):
        value, expected = (getattr(entry, part).get(key) for entry in (theirs, manifest))
        if value and value != expected:
            what = f"encoded with {part} {str(value)[:60]}, {index} was built with {str(expected)[:60]}"
            raise ArtefactError(f"{path}: {what}; encode the topics again")
    known = set(read_known_terms(vocabulary, manifest)) if vocabulary else None
    # Those with a quantiser are integers, and not read twice.
    floats = FloatQueries(manifest) if not theirs.quantiser and has_fraction(path) else None
    seen: set[str] = set()
    for line in read_lines(path):
        query = _parse_query(line, floats)
        if query.query_id in seen:
            raise DataError(f"{line.where}: query id {query.query_id!r} a second time; ids must be distinct")
        seen.add(query.query_id)
        if known is not None and not query.vector.keys() <= known:
            strange = next(term for term in query.vector if term not in known)
            problem = f"term {strange!r} is not in the vocabulary of {index}; another encoder's query?"
            raise ArtefactError(f"{line.where}: {problem}")
        yield query
    if not seen:
        raise DataError(f"{path}: no query in it")
    if floats:
        floats.log(path)


def has_fraction(path: Path) -> bool:
    """Whether a weight in a file of encoded queries is no whole number; 13.0 is one."""
    vectors = (parse_weights(parse_object(line).get("vector"), line.where, tokens=True) for line in read_lines(path))
    return any(float in map(type, vector.values()) for vector in vectors)


class FloatQueries:
    """Quantises queries of another encoder as the index quantises its own, and sums up what that loses."""

    def __init__(self, manifest: Manifest):
        self.quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else Quantiser()
        self.max_impact = manifest.counts.max_impact
        self.queries, self.weights, self.dropped, self.clipped, self.loss = 0, 0, 0, 0, 0.0

    def quantise(self, vector: Mapping[str, float], where: str) -> Mapping[str, int]:
        """The integer weights of one query, which is not empty."""
        import numpy as np

        size, floats = len(vector), np.array([*vector.values()], np.float64)
        rows = CsrRows(floats, np.arange(size), np.array([0, size]), (1, size))
        try:
            quantised = self.quantiser.queries(rows, self.max_impact)
        except LexvlError as error:
            raise DataError(f"{where}: {error}") from error
        whole, unit = np.zeros(size), floats / floats.max()  # the squares of tiny weights would be 0
        whole[quantised.impacts.indices] = quantised.impacts.data
        lengths = np.linalg.norm(unit) * np.linalg.norm(whole)
        self.loss = max(self.loss, 1 - float(unit @ whole / lengths) if lengths else 1.0)
        self.queries, self.weights = self.queries + 1, self.weights + size
        self.clipped, self.dropped = self.clipped + quantised.clipped, self.dropped + quantised.dropped
        return quantised.by_term([*vector])[0]

    def log(self, path: Path) -> None:
        """Says once what quantising lost; the loss of a query is 1 - the cosine of its floats and its integers."""
        how = f"{self.queries:,} queries are quantised as the index's are ({self.quantiser.query.scheme})"
        lost = f"of {self.weights:,} weights {self.dropped:,} became 0 and {self.clipped:,} were cut"
        log_once(f"{path}: weights have fractions; {how}; {lost}; greatest loss of a query {self.loss:.2g}")


def find_topic_source(
    topics: str | None,
    index: Path,
    manifest: Manifest,
    data_dir: str | None,
    vocabulary: Path | None,
    split: str | None = None,
) -> TopicSource:
    """Finds the topics: a file of topics or of encoded queries, a dataset's split, or those of the corpus."""
    from lexvl_anserini.data.topics import is_topics_file, read_topics

    if topics and is_topics_file(topics):
        if split:
            raise UsageError(f"{topics}: a file of topics has no splits; leave out --split {split}")
        path = Path(topics)
        escape_ids, direction = manifest.corpus.escape_ids, manifest.corpus.direction
        stream: Callable[[], Iterator[Query]] = partial(read_topics, path, escape_ids)
        judged: CorpusRef | None = None
        origin = Origin()
        first = next(read_lines(path), None) if get_plain_suffix(path) == ".jsonl" else None
        encoded = first is not None and "vector" in parse_object(first)
        if encoded:
            stream = partial(read_queries, path, index, manifest, vocabulary)
            origin = _read_manifest(path).topics
        if origin.dataset:
            judged = CorpusRef(origin.dataset, origin.split or None, data_dir or origin.data_dir, escape_ids, direction)
        return TopicSource(stream, path.name, judged, origin.remove_query, compute_sha256(path), encoded)
    ref = manifest.corpus.ref.at(data_dir)
    if not topics and get_family(ref.name) not in CORPORA:
        raise UsageError(
            f"{index}: its corpus {ref.name!r} is no dataset, so it has no topics; name a file of topics, or "
            "a dataset, with --topics"
        )
    ref = replace(ref, name=topics, split=split) if topics else replace(ref, split=split or ref.split)
    return TopicSource.take_dataset(load_reference(ref))


def load_topics(ref: CorpusRef) -> TopicSource:
    """The topics of a dataset's split, or of a file if there is one of that name."""
    from lexvl_anserini.data.topics import is_topics_file, read_topics

    if is_topics_file(ref.name):
        return TopicSource(partial(read_topics, Path(ref.name)), ref.name)
    return TopicSource.take_dataset(load_reference(ref))


def build_typed_topic(text: str | None, image: str | None) -> Topic:
    """The topic that the user types: a text or the path of an image."""
    if (text is None) == (image is None) or (text is not None and not text.strip()):
        raise UsageError("give a text that is not empty with --query, or an image with --query-image")
    if image is not None and not Path(image.partition("::")[0]).is_file():
        raise DataError(f"{image}: no such image")
    return Topic(TYPED, text, image)


def check_readable(topic: Topic, model: Encoder) -> None:
    """Refuses a typed topic that the model's query side cannot read."""
    from lexvl_anserini.encoders.cards import CARDS
    from lexvl_anserini.encoders.encoder import OtherModality

    try:
        model.query.read_topic(topic)
    except OtherModality as error:
        if model.name in CARDS and "image" not in CARDS[model.name].modalities:
            raise UsageError(f"encoder {model.name!r} reads texts only, and the query is an image") from error
        modality, other = ("an image", "texts") if topic.image else ("a text", "images")
        direction = "image-to-text" if topic.image else "text-to-image"
        raise UsageError(
            f"the query side of encoder {model.name!r} reads {other}, and the query is {modality}; documents that can "
            f"be searched with {modality} are encoded with --direction {direction}"
        ) from error


def read_known_terms(vocabulary: Path, manifest: Manifest) -> Sequence[str]:
    """The terms in `vocab.txt` of an index."""
    from lexvl_anserini.shards.reading import read_vocabulary

    return read_vocabulary(vocabulary.parent, manifest).terms


def check_terms(clause: Clause, vocabulary: Path | None, manifest: Manifest) -> None:
    """Refuses terms that no document can have."""
    if vocabulary is not None and any(True for _ in list_terms(clause)):
        check_known(clause, read_known_terms(vocabulary, manifest))


def check_known(clause: Clause, known: Sequence[str]) -> None:
    """Refuses terms that are not among those of a vocabulary."""
    for term in sorted(set(list_terms(clause)).difference(known)):
        # The term with a field, in an index of several; without one, in an index of one.
        bare, low = term.partition(":")[2], term.lower()
        near = [name for name in known if name.partition(":")[2] == term or name == bare]
        alike = (name for name in known if name[:1] == low[:1] and abs(len(name) - len(low)) <= 2)
        near = near or get_close_matches(low, islice(alike, MOST_COMPARED), n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UsageError(f"term {term!r} is not in the vocabulary of the index{hint}")


def find_vocabulary_file(index: Path, manifest: Path | None) -> Path | None:
    """`vocab.txt` of the index, or of the shards of `manifest`."""
    folder = index if manifest is None else manifest if manifest.is_dir() else manifest.parent
    path = folder / VOCABULARY
    return path if path.is_file() else None


def _parse_query(line: Line, floats: FloatQueries | None) -> ImpactQuery:
    row, where = parse_object(line), line.where
    weights = parse_weights(row.get("vector"), where, tokens=True)
    vector: Mapping[str, float] = {term: weight for term, weight in weights.items() if weight}
    query_id = str(key) if type(key := row.get("id")) in (str, int) else ""
    if query_id.split() != [query_id]:
        raise DataError(f"{where}: id {key!r}, expected a text without white space")
    vector = floats.quantise(vector, where) if floats and vector else vector
    for term, weight in vector.items():
        if not 1 <= weight < SCORE_LIMIT:
            expected = f"expected an integer from 1 to {SCORE_LIMIT - 1:,}"
            raise DataError(f"{where}: weight {str(weight)[:40]} of term {term!r}, {expected}")
    return ImpactQuery(query_id, cast("Mapping[str, int]", vector))


def _read_manifest(path: Path) -> QueriesManifest:
    """The manifest that `encode --topics` writes beside encoded queries; empty where there is none."""
    beside = name_manifest(path)
    if not beside.is_file():
        return QueriesManifest()
    content = read_json(beside, "manifest of the queries")
    check(content, QueriesManifest, str(beside), "encode the topics again")
    return QueriesManifest(content)
