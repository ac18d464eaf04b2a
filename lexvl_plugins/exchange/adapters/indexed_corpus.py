"""A corpus that another project passes in memory: encoded, indexed and searched in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from weakref import finalize

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document, ImpactQuery, Topic
from lexvl_anserini.ground.typed import MOST, check_count
from lexvl_anserini.queries.clauses import All, Ids, Impacts, TreeQuery
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import Index, Searcher
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

Record = TypeVar("Record", Document, Topic)


class IndexedCorpus:
    """Documents with distinct ids in an index that `model` made, in `folder`, or in one that goes with this object."""

    def __init__(self, model: Encoder, documents: Iterable[Document], folder: Path | None = None, batch_size: int = 32):
        self.model, self.batch_size = model, batch_size
        self.index = index_documents(model, documents, folder, batch_size)
        self.searcher = Searcher(self.index, model)

    def search(self, topics: Iterable[Topic], hits: int) -> Iterator[RankedList]:
        """Yields a ranked list per topic, in their order."""
        return self.searcher.lists(check_texts(topics), check_hits(hits), Search(batch_size=self.batch_size))

    def rank_among(
        self, topics: Iterable[Topic], candidates: Mapping[str, Sequence[str]], hits: int
    ) -> Iterator[RankedList]:
        """Yields a list per topic of its own candidates (by id of the topic); those without a common term score 0."""
        hits = check_hits(hits)
        for topic in check_texts(topics):
            if topic.query_id not in candidates:
                raise UsageError(f"topic {topic.query_id!r}: no candidates among those of {len(candidates)} topics")
            scores = dict.fromkeys(candidates[topic.query_id], 0.0)
            scores |= {doc_id: score for doc_id, score in self._score(topic, list(scores)) if doc_id in scores}
            yield rank_hits(topic.query_id, scores.items(), hits)

    def _score(self, topic: Topic, candidates: Sequence[str]) -> Iterable[tuple[str, float]]:
        if not candidates:
            return ()
        if self.model.kind != "impact":
            return next(self.search([topic], self.index.documents)).pairs()
        [query] = encode_queries(self.model, [topic], self.index.manifest)
        assert isinstance(query, ImpactQuery)
        tree = All((Impacts(query.vector), Ids(tuple(candidates))))
        return next(self.searcher.lists([TreeQuery(topic.query_id, tree)], len(candidates))).pairs()


def index_documents(
    model: Encoder,
    documents: Iterable[Document],
    folder: Path | None = None,
    batch_size: int = 32,
    quantiser: Quantiser | None = None,
    layout: Layout | None = None,
) -> Index:
    """Encodes and indexes documents in a folder; without one, in a temporary folder that goes with the index."""
    home = Path(mkdtemp(prefix="lexvl-")) if folder is None else folder
    records = list(check_texts(documents))
    dataset = Dataset("adapted", "", lambda: iter(records), lambda: iter(()), lambda: iter(()))
    try:
        write_impacts(dataset, model, home / "shards", quantiser, layout, batch_size)
        index = build_index(home / "shards", home / "index")
    except BaseException:
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    if folder is None:
        finalize(index, shutil.rmtree, home, ignore_errors=True)
    return index


def check_texts(records: Iterable[Record]) -> Iterator[Record]:
    """Yields the documents or topics of another project; refuses an id, a title or a text of another type."""
    for record in records:
        for name in ("doc_id", "query_id", "title", "text"):
            if not isinstance(value := getattr(record, name, None), str | None):
                kind = type(value).__name__
                raise UsageError(f"{str(record[0])[:60]!r}: its {name} is of type {kind}, expected a str")
        yield record


def read_title(record: Mapping[str, Any]) -> Any:
    """Returns the title of a document of another project: None for an empty one; `check_texts` refuses another type."""
    title = record.get("title")
    return (title or None) if isinstance(title, str) else title


def check_hits(number: Any) -> int:
    """Returns a number of hits that another project passes, from 1 on; some pass the largest that there is."""
    hits = min(number, MOST) if isinstance(number, int) else number
    check_count("hits", hits)
    return int(hits)


def collect_scores(lists: Iterable[RankedList]) -> dict[str, dict[str, float]]:
    """Collects lists as {query id: {document id: score}}."""
    return {hits.query_id: dict(hits.pairs()) for hits in lists}
