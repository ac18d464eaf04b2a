"""`Index`: a built index that answers queries, from any number of threads and also while it is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, overload

from lexvl_anserini.engines.index_folder import BuiltIndex, is_index, state_of_index
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.searching.searcher import EncoderChanges, Searcher

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.index_folder import IndexState
    from lexvl_anserini.queries.clauses import Query
    from lexvl_anserini.runs.order import RankedList


@dataclass(frozen=True)
class Index(BuiltIndex):
    """A built index: its folder, and the manifest of the shards it was built from.

    Threads may share it. The first search opens its engine, which stays open as long as the object lives; a search
    after the index was replaced or changed opens it anew.
    """

    # The newest searcher, by what it belongs to; one that it replaces closes after the last call that searches with it.
    _searchers: dict[Any, Searcher] = field(default_factory=dict, init=False, repr=False, compare=False)
    _opening: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, built: BuiltIndex) -> Index:
        """The index that an engine built."""
        return cls(built.path, built.manifest)

    def __repr__(self) -> str:
        """Folder, kind, number of documents, and the encoder."""
        encoder = self.manifest.encoder.get("name")
        facts = f"{self.manifest.kind}, {self.documents:,} documents, encoder {encoder!r}"
        return f"Index({str(self.path)!r}, {facts})"

    @overload
    def search(  # type: ignore[overload-overlap]  # a text and a Topic are iterables too; mypy takes the first that fits
        self, query: str | Query, k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> RankedList: ...

    @overload
    def search(
        self, query: Iterable[str | Query], k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[RankedList]: ...

    def search(
        self,
        query: str | Query | Iterable[str | Query],
        k: int = 10,
        model: Encoder | None = None,
        device: str = "auto",
    ) -> RankedList | list[RankedList]:
        """The `k` best documents of a text, a topic or an encoded query, as a `RankedList`.

        Args:
            query: one of them; of several, the result is a list of such lists. `search_index` explains both.
            k: the length of a list at most.
            model: encodes texts and topics; default the encoder in the index's manifest, which is loaded once.
            device: of the default model.
        """
        queries = list(query) if isinstance(query, Iterator) else query  # a second attempt reads them again
        while True:
            state = state_of_index(self.path)
            try:
                searcher = self._searcher(state, model, device)
                hits: RankedList | list[RankedList] = searcher.search(queries, k)
                searcher.verified()
                return hits
            except ArtefactError:
                if state_of_index(self.path) == state:
                    raise
                # The index was replaced while it was opened.

    def _searcher(self, state: IndexState | None, model: Encoder | None, device: str) -> Searcher:
        """The searcher of a state of the index, a model and its device."""
        key = (state, id(model), device)
        with self._opening:
            if key not in self._searchers:
                searcher = Searcher(self.path if is_index(self.path) else self, model, EncoderChanges(device=device))
                self._searchers.clear()
                self._searchers[key] = searcher
            return self._searchers[key]
