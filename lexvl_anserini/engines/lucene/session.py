"""An index that stays open, for interactive use: the JVM, Lucene's files and the encoder are loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.errors import UsageError
from lexvl_anserini.manifest import Manifest
from lexvl_anserini.records import ImpactQuery, Index, ScoredDoc, Topic

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

Asked = str | Topic | ImpactQuery | Mapping[str, int]


class SearchSession:
    """A warm impact index.

        with SearchSession("indexes/demo") as session:
            for hit in session.search("a ship in the moonlight"):
                print(hit.rank, hit.doc_id, hit.score)

    Args:
        index: an index, or its folder.
        model: encodes texts and topics; default the encoder in the index's manifest, loaded when it is first needed.
        device: of the default model.

    Raises:
        ArtefactError: no such index.
        UsageError: it is no impact index.
    """

    def __init__(self, index: Index | Path | str, model: Encoder | None = None, device: str = "auto"):
        self.path = index.path if isinstance(index, Index) else Path(index)
        self.model, self.device = model, device
        self._open()

    @property
    def documents(self) -> int:
        """How many the index has."""
        return self.engine.documents

    def search(self, query: Asked, hits: int = 10) -> list[ScoredDoc]:
        """The ranked list of one query: a text, a topic, an encoded query, or a mapping of term to weight."""
        return next(self.search_many([query], hits))

    def search_many(
        self, queries: Iterable[Asked], hits: int = 10, threads: int = 1, batch_size: int = 32
    ) -> Iterator[list[ScoredDoc]]:
        """One ranked list per query, in their order; the queries are all to be encoded, or none.

        Raises:
            UsageError, ArtefactError: as `LuceneEngine.search`, or some are encoded and some are not.
        """
        return self.engine.search(self._encoded(queries, batch_size), hits, threads)

    def refresh(self) -> bool:
        """Opens the index again if it has been changed since; True if so."""
        if self.path.is_dir() and self.path.stat().st_ino == self.folder:
            return False
        old = self.engine
        self._open()
        old.close()
        return True

    def close(self) -> None:
        """Lets go of Lucene's files."""
        self.engine.close()

    def __enter__(self) -> SearchSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        from lexvl_anserini.manifest import read_manifest

        self.manifest: Manifest = read_manifest(self.path)
        if self.manifest.kind != "impact":
            raise UsageError(f"{self.path}: a {self.manifest.kind} index; a session is for impact indexes")
        # Of the folder, not of its name: a changed index is another folder of the same name.
        self.folder = self.path.stat().st_ino
        self.engine = LuceneEngine(self.path, self.manifest)

    def _encoded(self, queries: Iterable[Asked], batch_size: int) -> Iterator[ImpactQuery]:
        from lexvl_anserini.encoders.loading import load_encoder_of
        from lexvl_anserini.queries.query_vectors import encode_queries

        stream = map(_named, queries)
        first = next(stream, None)
        while first is not None:
            if isinstance(first, ImpactQuery):
                yield first
            else:
                if self.model is None:
                    self.model = load_encoder_of(
                        self.manifest.encoder, device=self.device, vocabulary=self.manifest.vocabulary_digest
                    )
                for query in encode_queries(self.model, _topics(first, stream), self.manifest, batch_size):
                    assert isinstance(query, ImpactQuery)
                    yield query
            first = next(stream, None)


def _named(query: Asked) -> Topic | ImpactQuery:
    """A query with an id."""
    if isinstance(query, str):
        return Topic("query", query)
    return query if isinstance(query, Topic | ImpactQuery) else ImpactQuery("query", query)


def _topics(first: Topic, rest: Iterator[Topic | ImpactQuery]) -> Iterator[Topic]:
    """The first and all others.

    Raises:
        UsageError: one is encoded already.
    """
    yield first
    for query in rest:
        if isinstance(query, ImpactQuery):
            raise UsageError(f"topic {query.query_id!r} is encoded, those before it are not; ask them apart")
        yield query
