"""The two reads of a corpus: the first checks, digests and samples it, the second is encoded.

The second read is compared with the first, so that a corpus that changes meanwhile gives no shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lexvl_anserini.data.checks import CorpusSummary, check_corpus, document_bytes
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import OnError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards.covered import Covered, CoveredDigest
from lexvl_anserini.shards.encoding import calibrated
from lexvl_anserini.shards.layout import Part

if TYPE_CHECKING:
    from hashlib import _Hash as Digest

    from lexvl_anserini.encoders.encoder import Encoder

# Documents of the first read that stay in memory for the sample and for a part's digest: about 20 MB of passages.
HELD = 16_384


class CheckedCorpus(NamedTuple):
    """What the first read says.

    summary   of the whole corpus
    contents  digest of the pictures, vectors and stored metadata that will be encoded; None if there are none
    """

    summary: CorpusSummary
    contents: str | None = None


class CorpusReading(Protocol):
    """The documents of one call of encode, read twice."""

    @property
    def part(self) -> Part | None:
        """The part that the call encodes; None for the whole corpus."""
        ...

    def check(self, covered: Covered) -> CheckedCorpus:
        """The first read."""
        ...

    def settled(self, request: Manifest, output: Path) -> Manifest:
        """The request with what is known of its scale without reading."""
        ...

    def calibrated(self, quantiser: Quantiser, model: Encoder, batch_size: int, on_error: OnError) -> Quantiser:
        """The quantiser with the scale of the whole corpus."""
        ...

    def documents(self) -> Iterator[Document]:
        """The second read: the documents that the call encodes."""
        ...

    def is_unchanged(self) -> bool:
        """Reads the rest of the second read; whether its documents were those of the first."""
        ...


class PartOfPlan(Protocol):
    """A part of a corpus that was read before, by a plan: it reads its own documents alone."""

    def reading(self, dataset: Dataset) -> CorpusReading:
        """The documents of the part."""
        ...


@dataclass
class WholeCorpus:
    """All documents of a dataset are read, of a part too: they are counted and digested.

    A corpus of more than `HELD` documents is read a third time, up to the last document of the sample, where impacts
    are calibrated; and up to the last of its pictures, where a part of it is encoded.
    """

    dataset: Dataset
    part: Part | None = None
    _held: list[Document] = field(default_factory=list)
    _texts: Digest = field(default_factory=sha256)
    _rest: Iterator[Document] = field(default_factory=lambda: iter(()))
    _summary: CorpusSummary = CorpusSummary(0, "")

    def check(self, covered: Covered) -> CheckedCorpus:
        """Reads all documents."""
        contents = CoveredDigest(covered)

        def note(document: Document) -> None:
            if len(self._held) < HELD:
                self._held.append(document)
            if self.part is None:
                contents.add([document])

        self._summary = check_corpus(self.dataset.documents, self.dataset.name, note)
        if len(self._held) < self._summary.documents:
            self._held.clear()
        if self.part is not None and (covered.metadata or self._summary.images):
            first, count = self._span()
            contents.add(islice(self._again(), first, first + count))
        return CheckedCorpus(self._summary, contents.hexdigest())

    def settled(self, request: Manifest, output: Path) -> Manifest:
        """The request: nothing is known before calibration."""
        return request

    def calibrated(self, quantiser: Quantiser, model: Encoder, batch_size: int, on_error: OnError) -> Quantiser:
        """From a sample of all documents, which are in memory, or read again up to the last one of the sample."""
        return calibrated(
            quantiser, self._again(), self._summary.documents, model, batch_size, on_error, self.dataset.name
        )

    def documents(self) -> Iterator[Document]:
        """The documents of the whole corpus, or of its part."""
        self._held.clear()
        first, count = self._span()
        self._texts = sha256()
        self._rest = digested(self.dataset.documents(), self._texts)
        exhaust(islice(self._rest, first))
        return islice(self._rest, count)

    def is_unchanged(self) -> bool:
        """The digest of texts covers the whole corpus, even if only a part of it is encoded."""
        exhaust(self._rest)
        return self._texts.hexdigest() == self._summary.digest

    def _span(self) -> tuple[int, int]:
        return (self.part or Part()).span(self._summary.documents)

    def _again(self) -> Iterator[Document]:
        return iter(self._held) if self._held else self.dataset.documents()


def reading_of(dataset: Dataset, part: Part | PartOfPlan | None) -> CorpusReading:
    """The documents of a part, or of the whole corpus."""
    return WholeCorpus(dataset, part) if part is None or isinstance(part, Part) else part.reading(dataset)


def digested(documents: Iterable[Document], digest: Digest) -> Iterator[Document]:
    """Yields the documents and adds each to the digest, as `check_corpus` does."""
    for document in documents:
        digest.update(document_bytes(document))
        yield document


def exhaust(documents: Iterable[Document]) -> None:
    """Reads documents to the end, for example to complete their digest."""
    for _ in documents:
        pass
