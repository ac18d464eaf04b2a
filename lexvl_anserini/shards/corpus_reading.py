"""The documents of one call of encode, and whether they are still those that were checked.

`WholeCorpus` reads all documents, of a part too; `PlannedCorpus` reads those of a part alone, as a plan describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from lexvl_anserini.data.checks import CorpusSummary, check_corpus, document_bytes
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards.corpus_plan import CorpusBlock, CorpusPlan, PlannedPart, documents_from
from lexvl_anserini.shards.layout import Part

if TYPE_CHECKING:
    from hashlib import _Hash as Digest


class CorpusReading(Protocol):
    """The documents of one call of encode."""

    @property
    def part(self) -> Part | None:
        """The part that the call encodes; None for the whole corpus."""
        ...

    def summary(self) -> CorpusSummary:
        """Of the whole corpus."""
        ...

    def own(self, plan: Manifest) -> Iterator[Document]:
        """The documents that the call encodes; each call reads them again."""
        ...

    def is_unchanged(self) -> bool:
        """Reads the rest of the last `own`; whether the documents were those of the summary."""
        ...


@dataclass
class WholeCorpus:
    """All documents of a dataset are read, of a part too: they are counted and digested."""

    dataset: Dataset
    part: Part | None = None
    _texts: Digest = field(default_factory=sha256)
    _rest: Iterator[Document] = field(default_factory=lambda: iter(()))
    _summary: CorpusSummary | None = None

    def summary(self) -> CorpusSummary:
        """Reads the documents.

        Raises:
            DataError: a document cannot be read, there is none, or an id occurs twice.
        """
        self._summary = check_corpus(self.dataset.documents, self.dataset.name)
        return self._summary

    def own(self, plan: Manifest) -> Iterator[Document]:
        """The documents of the whole corpus that the plan encodes."""
        self._texts = sha256()
        self._rest = digested(self.dataset.documents(), self._texts)
        exhaust(islice(self._rest, plan.corpus.part.first if plan.corpus.part else 0))
        return islice(self._rest, plan.documents)

    def is_unchanged(self) -> bool:
        """The digest of texts covers the whole corpus, even if only a part of it is encoded."""
        exhaust(self._rest)
        return self._summary is not None and self._texts.hexdigest() == self._summary.digest


@dataclass
class PlannedCorpus:
    """A part of a planned corpus: only the blocks that have its documents are read."""

    dataset: Dataset
    plan: CorpusPlan
    part: Part
    _blocks: dict[int, Digest] = field(default_factory=dict)
    _rest: Iterator[Document] = field(default_factory=lambda: iter(()))

    def summary(self) -> CorpusSummary:
        """As the plan has it."""
        return self.plan.summary

    def own(self, plan: Manifest) -> Iterator[Document]:
        """The documents of the part, from the place of its first block on."""
        first, count = self.part.span(self.plan.summary.documents)
        size = self.plan.block_size
        begin, end = first // size, -(-(first + count) // size)
        self._blocks = {number: sha256() for number in range(begin, end)}
        block: CorpusBlock = self.plan.blocks[begin]
        dataset = self.plan.placed(self.dataset)
        documents = islice(documents_from(dataset, begin * size, block.place), (end - begin) * size)
        self._rest = self._digested(documents, begin * size)
        exhaust(islice(self._rest, first - begin * size))
        return islice(self._rest, count)

    def is_unchanged(self) -> bool:
        """Compares the blocks."""
        exhaust(self._rest)
        return all(digest.hexdigest() == self.plan.blocks[number].digest for number, digest in self._blocks.items())

    def _digested(self, documents: Iterator[Document], first: int) -> Iterator[Document]:
        for position, document in enumerate(documents, start=first):
            self._blocks[position // self.plan.block_size].update(document_bytes(document))
            yield document


def reading_of(dataset: Dataset, part: Part | PlannedPart | None) -> CorpusReading:
    """The documents of a part, or of the whole corpus."""
    if isinstance(part, PlannedPart):
        return PlannedCorpus(dataset, part.plan, part.part)
    return WholeCorpus(dataset, part)


def digested(documents: Iterable[Document], digest: Digest) -> Iterator[Document]:
    """Yields the documents and adds each to the digest, as `check_corpus` does."""
    for document in documents:
        digest.update(document_bytes(document))
        yield document


def exhaust(documents: Iterable[Document]) -> None:
    """Reads documents to the end, for example to complete their digest."""
    for _ in documents:
        pass
