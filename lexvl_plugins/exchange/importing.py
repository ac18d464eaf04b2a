"""Vectors of other programs -> shards, which every engine indexes as those that `encode` writes.

What such a file does not say is in the manifest as the caller gives it: the encoder, the dataset, the quantiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.ground.claims import Claim, claim, ensure
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import clear_remains, file_sha256, new_folder
from lexvl_anserini.ground.machine import versions_of
from lexvl_anserini.ground.manifest import (
    NO_ENCODER,
    Counts,
    EncodedCorpus,
    EncoderRef,
    LayoutEntry,
    Manifest,
    ShardRecord,
    read_manifest,
)
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.layout import Layout, Shard, write_shard, write_shards
from lexvl_anserini.shards.reading import check_distinct, read_ids

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Packages whose versions decide the bytes of imported shards.
VERSIONED = ("lexvl-anserini", "numpy")

# The document side of integers, which are impacts already, unless the caller says how they came about.
AS_THEY_ARE = SideQuantiser("fixed", None, 1.0)


class Vectors(Protocol):
    """The documents of a file of vectors, which is open and checked.

    terms      of its columns
    documents  their number
    integers   True if all weights are impacts already
    """

    terms: Sequence[str]
    documents: int
    integers: bool

    def peaks(self) -> np.ndarray:
        """The greatest weight of each document, float64 [documents]; called where weights are no integers."""

    def shards(self, progress: Progress) -> Iterator[Shard]:
        """The documents in the order of the file, as many at a time as a shard has; CSR [n, terms]."""


@dataclass(frozen=True)
class ImportSettings:
    """What is imported, and what the file does not say.

    corpus      name of the dataset that the documents belong to; default the name of the file
    model       encodes queries, and names the dimensions; None for terms of the file alone
    quantiser   of weights that are no integers, and of queries; integers stay, and were made by it
    layout      of the shards
    escape_ids  percent-encode white space and control characters in ids
    ids         of a matrix: the file with the ids of its rows
    vocabulary  of a matrix: the file with the terms of its columns; default the model's
    """

    corpus: str | None = None
    model: Encoder | None = None
    quantiser: Quantiser = Quantiser()
    layout: Layout = Layout()
    escape_ids: bool = False
    ids: Path | None = None
    vocabulary: Path | None = None

    def request(self, name: str, digest: str) -> Manifest:
        """The manifest of a source before it is read: without counts, vocabulary and scale."""
        model = self.model
        if model is not None and model.kind != "impact":
            raise UsageError(f"encoder {model.name!r} is {model.kind}; only vectors of terms are imported")
        quantiser = self.quantiser if model is None else model.fitted(self.quantiser)
        corpus = EncodedCorpus(
            name=self.corpus or name, split=None, data_dir=None, escape_ids=self.escape_ids, digest=digest
        )
        files = {name: digest_of(file) for name, file in (("ids", self.ids), ("terms", self.vocabulary)) if file}
        return Manifest(
            kind="impact",
            encoder=EncoderRef(name=NO_ENCODER) if model is None else model.identity(),
            quantiser=quantiser.to_json(),
            corpus=corpus,
            counts=Counts(),
            # Shards of integers do not note which quantiser was requested.
            layout=LayoutEntry(self.layout.to_json(), imported={**quantiser.to_json(), **files}),
            versions=versions_of(VERSIONED),
        )


def digest_of(source: Path) -> str:
    """SHA-256 (hex) of a file, or of the names and contents of the files in a folder."""
    if not source.exists():
        raise DataError(f"{source}: no such file")
    if not source.is_dir():
        return file_sha256(source)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    names = (f"{path.relative_to(source)} {file_sha256(path)}\n" for path in files)
    return sha256("".join(names).encode()).hexdigest()


def import_vectors(
    source: Path,
    output: Path,
    opened: Callable[[Path], Vectors],
    settings: ImportSettings = ImportSettings(),
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Writes the shards of a file of vectors: all documents or none.

    Args:
        source: the file, or a folder of files.
        output: a new folder; a finished one of the same request stays as it is.
        opened: opens and checks the file; its argument is a folder for temporary files.
        overwrite: replace a folder of another request.
        progress: called with the number of documents just written.

    Raises:
        DataError: the file is missing, damaged or malformed.
        ArtefactError: the output holds something else, or the disk is full.
    """
    request = settings.request(source.name, digest_of(source))
    return ensure(
        output,
        lambda: _finished(output, request, overwrite),
        lambda: _written(output, request, opened, settings, progress),
        folder=True,
    )


def _finished(output: Path, request: Manifest, overwrite: bool) -> Manifest | None:
    """The manifest of shards that are finished as requested; None if they are to be written."""
    clear_remains(output)
    if not output.exists():
        return None
    manifest = read_manifest(output)
    decision = claim(output, "shards", _compared(request), _compared(manifest), overwrite)
    return manifest if decision is Claim.DONE else None


def _compared(manifest: Manifest) -> dict[str, Any]:
    """What two imports are compared by; the rest follows from it."""
    whole = manifest.request()
    corpus = {key: value for key, value in whole["corpus"].items() if key != "documents"}
    return {"corpus": corpus, "encoder": whole["encoder"], "layout": whole["layout"]}


def _written(
    output: Path,
    request: Manifest,
    opened: Callable[[Path], Vectors],
    settings: ImportSettings,
    progress: Progress,
) -> Manifest:
    with new_folder(output) as part:
        vectors = opened(part)
        vocabulary = Vocabulary(vectors.terms) if settings.model is None else settings.model.vocabulary
        columns = columns_of(vectors.terms, vocabulary)
        quantiser = _quantiser(vectors, request)
        seen = SeenIds()

        def quantise() -> Iterator[ShardRecord]:
            for number, shard in enumerate(vectors.shards(progress)):
                for doc_id in shard.ids:
                    seen.add(doc_id)
                shard = _of_vocabulary(shard, columns, vocabulary)
                if not vectors.integers:
                    impacts, clipped, dropped = quantiser.documents(shard.vectors)
                    shard = shard._replace(vectors=impacts, clipped=clipped, dropped=dropped)
                yield write_shard(part, settings.layout.name(number), shard, vocabulary, settings.layout)

        corpus = EncodedCorpus({**request.corpus, "documents": vectors.documents})
        request = replace(request, corpus=corpus, quantiser=quantiser.to_json())
        manifest = write_shards(part, request, vocabulary, quantise())
        assert manifest.counts.documents == vectors.documents, "documents out are not documents in"
        check_distinct(seen, lambda: read_ids(part, manifest))
    return manifest


def columns_of(terms: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    """The dimension of each term of the file, int32."""
    if strange := [term for term in terms if term not in vocabulary.dimension]:
        raise DataError(
            f"{len(strange):,} of {len(terms):,} terms, the first is {strange[0]!r}, are not in the encoder's "
            f"vocabulary of {len(vocabulary):,}; name the encoder that made these vectors, or none"
        )
    return np.array([vocabulary.dimension[term] for term in terms], np.int32)


def _quantiser(vectors: Vectors, request: Manifest) -> Quantiser:
    """The quantiser of the request with its scale: what turns the weights into impacts, or turned them before."""
    quantiser = Quantiser.from_json(request.quantiser)
    if vectors.integers:
        return of_integers(quantiser)
    if quantiser.document.scheme != "calibrated":
        return quantiser
    return quantiser.calibrate(sparse.csr_matrix(vectors.peaks()[:, None]))


def of_integers(quantiser: Quantiser) -> Quantiser:
    """The quantiser that integers came about by: the caller's, or one that leaves them as they are."""
    return replace(quantiser, document=AS_THEY_ARE) if quantiser.document.scheme == "calibrated" else quantiser


def _of_vocabulary(shard: Shard, columns: np.ndarray, vocabulary: Vocabulary) -> Shard:
    """The shard with the dimensions of a vocabulary, in their order."""
    rows = shard.vectors
    shape = (rows.shape[0], len(vocabulary))
    vectors = sparse.csr_matrix((rows.data, columns[rows.indices], rows.indptr), shape=shape)
    vectors.sort_indices()
    return shard._replace(vectors=vectors)
