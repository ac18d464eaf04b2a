"""Vectors of other programs -> shards, which every engine indexes as those that `encode` writes.

What such a file does not say is in the manifest as the caller gives it: the encoder, the dataset, the quantiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.data.lines import choose_files, get_plain_suffix, read_entries, remove_packing
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256, new_folder, refuse_inside
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.manifest import (
    NO_ENCODER,
    Counts,
    EncodedCorpus,
    EncoderRef,
    LayoutEntry,
    Manifest,
    ShardRecord,
)
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.layout import Layout, Shard, ensure_shards, write_shard, write_shards
from lexvl_anserini.shards.reading import check_distinct, read_ids
from lexvl_plugins.exchange.ciff_reading import CiffVectors
from lexvl_plugins.exchange.vectors import JSON_LINES, JsonVectors, MatrixVectors

# Packages whose versions decide the bytes of imported shards.
VERSIONED = ("lexvl-anserini", "numpy")
# The document side of integers, which are impacts already, unless the caller says how they came about.
AS_THEY_ARE = SideQuantiser("fixed", None, 1.0)


class Vectors(Protocol):
    """The documents of a file of vectors, open and checked; made of file, temporary folder, `span` and `escape_ids`.

    `peaks`, float64 [documents], has the greatest weight of each; of no meaning for integers, which are impacts.
    """

    terms: Sequence[str]
    documents: int
    integers: bool
    peaks: np.ndarray

    def read_shards(self, progress: Progress) -> Iterator[Shard]:
        """Yields the documents in the order of the file, as many at a time as a shard has; CSR [n, terms]."""


MATRICES = (".npz", ".pt")
READERS: dict[str, Callable[..., Vectors]] = {
    ".ciff": CiffVectors,
    **dict.fromkeys(("", *JSON_LINES), JsonVectors),
    **dict.fromkeys(MATRICES, MatrixVectors),
}


@dataclass(frozen=True)
class ImportSettings:
    """What is imported, and what the file does not say: of a matrix also the files of ids and terms.

    `model` encodes queries and names the dimensions; the quantiser is of weights that are no integers, and of queries.
    """

    corpus: str | None = None
    model: Encoder | None = None
    quantiser: Quantiser = Quantiser()
    layout: Layout = Layout()
    escape_ids: bool = False
    ids: Path | None = None
    vocabulary: Path | None = None

    def make_request(self, name: str, digest: str) -> Manifest:
        """Makes the manifest of a source before it is read: without counts, vocabulary and scale."""
        model = self.model
        if model is not None and model.kind != "impact":
            raise UsageError(f"encoder {model.name!r} is {model.kind}; only vectors of terms are imported")
        quantiser = self.quantiser if model is None else model.fit_quantiser(self.quantiser)
        places = {"split": None, "data_dir": None, "escape_ids": self.escape_ids}
        files = {name: compute_digest(file) for name, file in (("ids", self.ids), ("terms", self.vocabulary)) if file}
        return Manifest(
            kind="impact",
            encoder=EncoderRef(name=NO_ENCODER) if model is None else model.identity(),
            quantiser=quantiser.to_json(),
            corpus=EncodedCorpus(name=self.corpus or name, **places, digest=digest),
            counts=Counts(),
            # Shards of integers do not note which quantiser was requested.
            layout=LayoutEntry(self.layout.to_json(), imported={**quantiser.to_json(), **files}),
            versions=list_versions(VERSIONED),
        )


def compute_digest(source: Path) -> str:
    """Computes SHA-256 (hex) of a file, or of the names and contents of the files in a folder."""
    if not source.exists():
        raise DataError(f"{source}: no such file")
    if not source.is_dir():
        return compute_sha256(source)
    names = (f"{path.relative_to(source)} {compute_sha256(path)}\n" for path in choose_files(source, "", "**/*"))
    return sha256("".join(names).encode()).hexdigest()


def name_shards(source: Path) -> Path:
    """Names the folder of a file: `downloads/robust04.ciff.gz` -> `impacts/robust04`."""
    return Path("impacts") / Path(remove_packing(source.resolve().name)).stem


def import_file(
    source: Path,
    output: Path,
    settings: ImportSettings = ImportSettings(),
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Writes the vectors of a file, or of a folder of JSON lines, as shards: all documents or none.

    A finished folder of the same request stays as it is; `overwrite` replaces one of another request.
    """
    suffix = "" if source.is_dir() else get_plain_suffix(source)
    if suffix not in READERS or not suffix and not source.is_dir():
        known = ", ".join(filter(None, READERS))
        raise UsageError(f"{source}: expected a file in {known}, plain or compressed, or a folder of JSON lines")
    if source.is_dir():
        refuse_inside(output, source, "its vectors")
    reader = partial(READERS[suffix], source, span=settings.layout.shard_size, escape_ids=settings.escape_ids)
    if settings.model and READERS[suffix] is not CiffVectors:
        reader = partial(reader, tokens=True)
    if suffix in MATRICES:
        file = settings.vocabulary
        stored = Vocabulary(read_entries(file, "term").values(), str(file)) if file else None
        reader = partial(reader, ids=settings.ids, terms=settings.model.vocabulary if settings.model else stored)
    elif settings.ids or settings.vocabulary:
        raise UsageError(f"{source}: --ids and --vocabulary are for matrices ({', '.join(MATRICES)})")
    request = settings.make_request(source.name, compute_digest(source))
    write = partial(_write_shards, output, request, reader, settings, progress)
    return ensure_shards(output, _select_compared(request), _select_compared, overwrite, write)


def _select_compared(manifest: Manifest) -> dict[str, Any]:
    """Selects what two imports are compared by; the rest follows from it."""
    whole = manifest.request()
    corpus = {key: value for key, value in whole["corpus"].items() if key != "documents"}
    return {"corpus": corpus, "encoder": whole["encoder"], "layout": whole["layout"]}


def _write_shards(
    output: Path, request: Manifest, reader: Callable[[Path], Vectors], settings: ImportSettings, progress: Progress
) -> Manifest:
    with new_folder(output) as part:
        vectors = reader(part)
        vocabulary = Vocabulary(vectors.terms) if settings.model is None else settings.model.vocabulary
        columns = find_columns(vectors.terms, vocabulary)
        quantiser = keep_integers(Quantiser.from_json(request.quantiser), vectors.integers)
        if quantiser.document.scheme == "calibrated":
            quantiser = quantiser.calibrate(sparse.csr_matrix(vectors.peaks[:, None]))
        seen = SeenIds()

        def quantise() -> Iterator[ShardRecord]:
            for number, shard in enumerate(vectors.read_shards(progress)):
                for doc_id in shard.ids:
                    seen.add(doc_id)
                rows, shape = shard.vectors, (len(shard.ids), len(vocabulary))
                rows = sparse.csr_matrix((rows.data, columns[rows.indices], rows.indptr), shape=shape)
                rows.sort_indices()
                shard = shard._replace(vectors=rows)
                if not vectors.integers:
                    impacts, clipped, dropped = quantiser.documents(rows)
                    shard = shard._replace(vectors=impacts, clipped=clipped, dropped=dropped)
                yield write_shard(part, settings.layout.name(number), shard, vocabulary, settings.layout)

        corpus = EncodedCorpus({**request.corpus, "documents": vectors.documents})
        request = replace(request, corpus=corpus, quantiser=quantiser.to_json())
        manifest = write_shards(part, request, vocabulary, quantise())
        assert manifest.counts.documents == vectors.documents, "documents out are not documents in"
        check_distinct(seen, lambda: read_ids(part, manifest))
    return manifest


def find_columns(terms: Sequence[str], vocabulary: Vocabulary) -> np.ndarray:
    """Finds the dimension of each term of the file, int32."""
    if strange := [term for term in terms if term not in vocabulary.dimension]:
        which = f"{len(strange):,} of {len(terms):,} terms, the first is {strange[0]!r}"
        raise DataError(f"{which}, are not in the encoder's vocabulary; name the encoder of these vectors, or none")
    return np.array([vocabulary.dimension[term] for term in terms], np.int32)


def keep_integers(quantiser: Quantiser, integers: bool = True) -> Quantiser:
    """Returns the quantiser that integers came about by: the caller's, or one that leaves them as they are."""
    calibrated = integers and quantiser.document.scheme == "calibrated"
    return replace(quantiser, document=AS_THEY_ARE) if calibrated else quantiser
