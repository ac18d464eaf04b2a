"""`Index`: a built index that answers queries, from any number of threads and also while it is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, overload

from lexvl_anserini.engines.index_folder import BuiltIndex, IndexState, is_index, state_of_index
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.searching.searcher import EncoderChanges, Searcher

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.records import ScoredDoc
    from lexvl_anserini.queries.clauses import Query


class SearcherKey(NamedTuple):
    """What an open searcher belongs to: the state of the index's files, the model (its identity), and the device."""

    state: IndexState | None
    model: int
    device: str


class Lease:
    """An open searcher and the number of calls that search with it."""

    def __init__(self, key: SearcherKey, searcher: Searcher):
        self.key, self.searcher, self.calls = key, searcher, 0


class SharedSearcher:
    """The newest searcher of an index; one that another replaces closes after the last call that searches with it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: Lease | None = None

    @contextmanager
    def lease(self, key: SearcherKey, opened: Callable[[], Searcher]) -> Iterator[Searcher]:
        """Yields the searcher of `key`, which `opened` makes where the newest has another key."""
        with self._lock:
            older = self._newest
            if older is None or older.key != key:
                self._newest = Lease(key, opened())
                if older is not None and not older.calls:
                    older.searcher.close()
            lease = self._newest
            assert lease is not None
            lease.calls += 1
        try:
            yield lease.searcher
        finally:
            with self._lock:
                lease.calls -= 1
                if lease is not self._newest and not lease.calls:
                    lease.searcher.close()

    def close(self) -> None:
        """Closes the newest searcher, now or after the calls that search with it; the next call opens another."""
        with self._lock:
            lease, self._newest = self._newest, None
            if lease is not None and not lease.calls:
                lease.searcher.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class Index(BuiltIndex):
    """A built index: its folder, the manifest of the shards it was built from, and its number of documents.

    Threads may share it. The first search opens its engine, which stays open as long as the object lives; a search
    after the index was replaced or changed opens it anew.
    """

    _shared: SharedSearcher = field(default_factory=SharedSearcher, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, built: BuiltIndex) -> Index:
        """The index that an engine built."""
        return cls(built.path, built.manifest, built.documents)

    def __repr__(self) -> str:
        """Folder, kind, number of documents, and the encoder."""
        encoder = self.manifest.encoder.get("name")
        facts = f"{self.manifest.kind}, {self.documents:,} documents, encoder {encoder!r}"
        return f"Index({str(self.path)!r}, {facts})"

    @overload
    def search(  # type: ignore[overload-overlap]  # a text and a Topic are iterables too; mypy takes the first that fits
        self, query: str | Query, k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[ScoredDoc]: ...

    @overload
    def search(
        self, query: Iterable[str | Query], k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[list[ScoredDoc]]: ...

    def search(
        self,
        query: str | Query | Iterable[str | Query],
        k: int = 10,
        model: Encoder | None = None,
        device: str = "auto",
    ) -> list[ScoredDoc] | list[list[ScoredDoc]]:
        """The `k` best documents of a text, a topic or an encoded query: a list of `ScoredDoc`.

        Args:
            query: one of them; of several, the result is a list of such lists. `search_index` explains both.
            k: the length of a list at most.
            model: encodes texts and topics; default the encoder in the index's manifest, which is loaded once.
            device: of the default model.
        """
        queries = list(query) if isinstance(query, Iterator) else query  # a second attempt reads them again
        while True:
            key = SearcherKey(state_of_index(self.path), id(model), device)
            try:
                with self._shared.lease(key, lambda: self._searcher(model, device)) as searcher:
                    hits: list[ScoredDoc] | list[list[ScoredDoc]] = searcher.search(queries, k)
                    searcher.verified()
                    return hits
            except ArtefactError:
                if state_of_index(self.path) == key.state:
                    raise
                # The index was replaced while it was opened.

    def _searcher(self, model: Encoder | None, device: str) -> Searcher:
        built = self if not is_index(self.path) else self.path
        return Searcher(built, model, EncoderChanges(device=device))
