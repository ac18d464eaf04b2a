"""Encodes documents into a shard, and the sample of documents that calibrates the quantiser.

A corpus is read twice: the first read is checked, digested and sampled, the second is encoded. They are compared, so
that a corpus that changes meanwhile gives no shards.

The digest of `data.checks` does not see that a picture was replaced by another of its name. `CoveredDigest` does: it
has what is encoded besides texts, a picture or vector, and the metadata that the shards store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from lexvl_anserini.data.checks import CorpusSummary, check_corpus, pack_document, pack_field
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.encoders.encoder import Encoder, InputReader, encode_inputs
from lexvl_anserini.ground.errors import FAIL, DataError, LexvlError, OnError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, TooLargeImpact
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards.layout import Part, Shard, SkippedDocument

if TYPE_CHECKING:
    from hashlib import _Hash as Digest


CALIBRATION_SAMPLE = 256  # number of documents that calibrate the quantiser: few, because they are encoded twice
CALIBRATION_SEED = 20240307


def encode_shard(
    documents: Sequence[Document],
    model: Encoder,
    quantiser: Quantiser,
    batch_size: int,
    progress: Progress,
    on_error: OnError = FAIL,
) -> Shard:
    """Encodes and quantises one shard's documents; skips documents that cannot be read if the policy is "skip"."""
    if model.kind == "text":
        read, skipped = filter_problems(documents, on_error.fresh())
        ids, metadata = [d.doc_id for d in read], [d.metadata for d in read]
        progress(len(documents))
        return Shard(ids, [model.document.read(d) for d in read], None, skipped=skipped, metadata=metadata)
    read, vectors, skipped = encode_readable(documents, model, batch_size, progress, on_error)
    clipped = dropped = 0
    if model.kind == "impact":
        try:
            vectors, clipped, dropped = quantiser.documents(vectors)
        except TooLargeImpact as error:
            term = model.vocabulary.terms[error.dimension]
            raise LexvlError(f"document {read[error.row].doc_id!r}, term {term!r}: {error}") from error
    ids, contents = [d.doc_id for d in read], [d.contents or d.image or "" for d in read]
    return Shard(ids, contents, vectors, clipped, dropped, skipped, [d.metadata for d in read])


def encode_readable(
    documents: Sequence[Document],
    model: Encoder,
    batch_size: int,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> tuple[list[Document], Any, list[SkippedDocument]]:
    """Documents, the vector of each, and the documents that the policy skipped because they cannot be read."""
    policy = on_error.fresh()
    documents, skipped = filter_problems(documents, policy)
    inputs = [model.document.read(document) for document in documents]
    vectors = encode_inputs(model.document, inputs, batch_size, progress, policy)
    unread = policy.skipped[len(skipped) :]
    skipped += [SkippedDocument(documents[image.position].doc_id, image.reference, image.reason) for image in unread]
    if not skipped:
        return list(documents), vectors, []
    progress(len(skipped))
    readable = np.ones(len(documents), dtype=bool)
    readable[[image.position for image in unread]] = False
    return list(compress(documents, readable)), vectors[readable], skipped


def filter_problems(documents: Sequence[Document], policy: OnError) -> tuple[Sequence[Document], list[SkippedDocument]]:
    """The documents that have no problem, and the others if the policy skips them; else the first one raises."""
    skipped = []
    for position, document in enumerate(documents):
        if document.problem is not None:
            image = document.image or ""
            policy.unreadable(position, image, DataError(document.problem))
            skipped.append(SkippedDocument(document.doc_id, image, document.problem))
    return [document for document in documents if document.problem is None] if skipped else documents, skipped


def draw_sample(documents: Iterable[Document], count: int, size: int = CALIBRATION_SAMPLE) -> list[Document]:
    """At most `size` documents drawn without replacement from all `count`, in their order, the same every time."""
    positions = np.sort(np.random.default_rng(CALIBRATION_SEED).choice(count, min(count, size), replace=False)).tolist()
    drawn = set(positions)
    return [document for i, document in enumerate(islice(documents, positions[-1] + 1)) if i in drawn]


def sample_size(quantiser: Quantiser, model: Encoder, count: int) -> int:
    """Number of documents, of all `count`, that calibrate a quantiser for a model; 0 if its scheme needs none."""
    needed = model.kind == "impact" and model.fit_quantiser(quantiser).document.scheme == "calibrated"
    return min(CALIBRATION_SAMPLE, count) if needed else 0


def calibrate(
    quantiser: Quantiser,
    documents: Iterable[Document],
    count: int,
    model: Encoder,
    batch_size: int,
    on_error: OnError = FAIL,
    name: str = "the corpus",
) -> Quantiser:
    """The quantiser with its document scale set from a sample of all `count` documents, if its scheme needs one.

    At most `CALIBRATION_SAMPLE` documents are encoded once more; they are read up to the last one of the sample.
    """
    if model.kind != "impact":
        return quantiser
    quantiser = model.fit_quantiser(quantiser)
    if not sample_size(quantiser, model, count):
        return quantiser
    sample = draw_sample(documents, count)
    read, weights, skipped = encode_readable(sample, model, batch_size, on_error=on_error)
    if not read:
        raise DataError(f"{name}: none of {len(sample)} images can be read; the first: {skipped[0].reason}")
    return quantiser.calibrate(weights)


# Documents of the first read that stay in memory for the sample and for a part's digest: about 20 MB of passages.
HELD = 16_384

UNREADABLE = "unreadable"  # in the place of the digest of a picture that cannot be read


@dataclass(frozen=True)
class Covered:
    """What is encoded of the documents besides their texts.

    The tower reads the documents; `files` has the digests of pictures and of tables of vectors.
    """

    tower: InputReader
    metadata: bool
    files: FileDigests

    def fields(self, document: Document) -> tuple[str | None, str | None]:
        """SHA-256 (hex) of the picture or of the vector's table, and the metadata as JSON; None for what is absent."""
        picture = None
        if document.image is not None and document.problem is None:
            read = self.tower.read(document)  # the picture or the vector
            if getattr(read, "vector", read) == document.image:
                picture = self.files.of(document.image) or UNREADABLE
        try:
            return picture, orjson.dumps(dict(document.metadata)).decode() if self.metadata else None
        except (TypeError, ValueError, RecursionError) as problem:
            what = f"document {document.doc_id!r}: its metadata cannot be stored as JSON ({problem})"
            raise DataError(f"{what}; change it, or encode without --store-metadata") from problem


class CoveredDigest:
    """SHA-256 of what is encoded of some documents besides their texts, in order."""

    def __init__(self, covered: Covered):
        self._covered = covered
        self._whole = sha256()
        self._any = False

    def add(self, documents: Iterable[Document]) -> str:
        """Adds the next documents; returns the SHA-256 (hex) of these alone."""
        these = sha256()
        for document in documents:
            fields = self._covered.fields(document)
            self._any |= fields != (None, None)
            data = b"".join(map(pack_field, fields))
            these.update(data)
            self._whole.update(data)
        return these.hexdigest()

    def hexdigest(self) -> str | None:
        """The digest; None if nothing but texts was encoded."""
        return self._whole.hexdigest() if self._any else None


class CorpusReading(Protocol):
    """The documents of one call of encode, read twice."""

    @property
    def part(self) -> Part | None:
        """The part that the call encodes; None for the whole corpus."""

    def check(self, covered: Covered) -> CorpusSummary:
        """The first read."""

    def settle(self, request: Manifest, output: Path) -> Manifest:
        """The request with what is known of its scale without reading."""

    def calibrate(self, quantiser: Quantiser, model: Encoder, batch_size: int, on_error: OnError) -> Quantiser:
        """The quantiser with the scale of the whole corpus."""

    def documents(self) -> Iterator[Document]:
        """The second read: the documents that the call encodes."""

    def is_unchanged(self) -> bool:
        """Reads the rest of the second read; whether its documents were those of the first."""


# Reads a part of a corpus that was read before, by a plan: its own documents alone.
PartOfPlan = Callable[[Dataset], CorpusReading]


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

    def check(self, covered: Covered) -> CorpusSummary:
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
            contents.add(islice(self._start_again(), first, first + count))
        return self._summary._replace(contents=contents.hexdigest())

    def settle(self, request: Manifest, output: Path) -> Manifest:
        """The request: nothing is known before calibration."""
        return request

    def calibrate(self, quantiser: Quantiser, model: Encoder, batch_size: int, on_error: OnError) -> Quantiser:
        """From a sample of all documents, which are in memory, or read again up to the last one of the sample."""
        return calibrate(
            quantiser, self._start_again(), self._summary.documents, model, batch_size, on_error, self.dataset.name
        )

    def documents(self) -> Iterator[Document]:
        """The documents of the whole corpus, or of its part."""
        self._held.clear()
        first, count = self._span()
        self._texts = sha256()
        self._rest = digest_documents(self.dataset.documents(), self._texts)
        exhaust(islice(self._rest, first))
        return islice(self._rest, count)

    def is_unchanged(self) -> bool:
        """The digest of texts covers the whole corpus, even if only a part of it is encoded."""
        exhaust(self._rest)
        return self._texts.hexdigest() == self._summary.digest

    def _span(self) -> tuple[int, int]:
        return (self.part or Part()).span(self._summary.documents)

    def _start_again(self) -> Iterator[Document]:
        return iter(self._held) if self._held else self.dataset.documents()


def digest_documents(documents: Iterable[Document], digest: Digest) -> Iterator[Document]:
    """Yields the documents and adds each to the digest, as `check_corpus` does."""
    for document in documents:
        digest.update(pack_document(document))
        yield document


def exhaust(documents: Iterable[Document]) -> None:
    """Reads documents to the end, to complete their digest."""
    deque(documents, maxlen=0)
