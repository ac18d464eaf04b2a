"""Encodes documents into a shard, and the sample of documents that calibrates the quantiser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import encode_inputs
from lexvl_anserini.ground.errors import DataError, LexvlError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, TooLargeImpact
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards.layout import Shard, SkippedDocument

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Number of documents that calibrate the quantiser: few, because they are encoded twice.
CALIBRATION_SAMPLE = 256
CALIBRATION_SEED = 20240307


def encode_shard(
    documents: Sequence[Document],
    model: Encoder,
    quantiser: Quantiser,
    batch_size: int,
    progress: Progress,
    on_error: OnError = FAIL,
) -> Shard:
    """Encodes and quantises one shard's documents; skips documents that cannot be read if the policy is "skip".

    Raises:
        LexvlError: an impact would reach 2^24; the message names document and term.
    """
    if model.kind == "text":
        read, skipped = without_problems(documents, on_error.fresh())
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
    documents, skipped = without_problems(documents, policy)
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


def without_problems(
    documents: Sequence[Document], policy: OnError
) -> tuple[Sequence[Document], list[SkippedDocument]]:
    """The documents that have no problem, and the others if the policy skips them; else the first one raises."""
    skipped = []
    for position, document in enumerate(documents):
        if document.problem is not None:
            image = document.image or ""
            policy.unreadable(position, image, DataError(document.problem))
            skipped.append(SkippedDocument(document.doc_id, image, document.problem))
    return [document for document in documents if document.problem is None] if skipped else documents, skipped


def drawn_sample(documents: Iterable[Document], count: int, size: int = CALIBRATION_SAMPLE) -> list[Document]:
    """At most `size` documents drawn without replacement from all `count`, in their order, the same every time."""
    positions = np.sort(np.random.default_rng(CALIBRATION_SEED).choice(count, min(count, size), replace=False)).tolist()
    drawn = set(positions)
    return [document for i, document in enumerate(islice(documents, positions[-1] + 1)) if i in drawn]


def sample_size(quantiser: Quantiser, model: Encoder, count: int) -> int:
    """Number of documents, of all `count`, that calibrate a quantiser for a model; 0 if its scheme needs none."""
    needed = model.kind == "impact" and model.fitted(quantiser).document.scheme == "calibrated"
    return min(CALIBRATION_SAMPLE, count) if needed else 0


def calibrated(
    quantiser: Quantiser,
    documents: Iterable[Document],
    count: int,
    model: Encoder,
    batch_size: int,
    on_error: OnError = FAIL,
    name: str = "the corpus",
) -> Quantiser:
    """The quantiser with its document scale set from a sample of all `count` documents, if its scheme needs one.

    The sample costs one more encoding of at most `CALIBRATION_SAMPLE` documents, whose vectors are thrown away, and
    reads the documents up to the last one of the sample.

    Raises:
        DataError: no image of the sample can be read; the message has the `name` of the corpus.
    """
    if model.kind != "impact":
        return quantiser
    quantiser = model.fitted(quantiser)
    if not sample_size(quantiser, model, count):
        return quantiser
    sample = drawn_sample(documents, count)
    read, weights, skipped = encode_readable(sample, model, batch_size, on_error=on_error)
    if not read:
        raise DataError(f"{name}: none of {len(sample)} images can be read; the first: {skipped[0].reason}")
    return quantiser.calibrate(weights)
