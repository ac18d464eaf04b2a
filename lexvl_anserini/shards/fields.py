"""Several encoded corpora as the fields of one: `text:boat` and `image:boat` are terms of the same document.

Documents of equal ids join. Each field has the impacts of its own shards; those of texts (`encode --encoder bm25`) are
computed here. What is written is a folder of shards like any other, whose manifest names each field's encoder.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.ground.claims import Claim, claim, ensure
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import clear_remains, new_folder, write_json
from lexvl_anserini.ground.manifest import FIELDS, MANIFEST, Counts, EncoderRef, FieldEntry, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import NO_METADATA, ImpactDocument
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary, in_field
from lexvl_anserini.shards.bm25 import BM25_QUANTISER, bm25_weights
from lexvl_anserini.shards.collection import combined_corpus, source_digest
from lexvl_anserini.shards.layout import Layout, Shard, write_shard
from lexvl_anserini.shards.reading import (
    checked_shards,
    counted_impacts,
    read_contents,
    read_ids,
    read_metadata,
    read_texts,
    read_vocabulary,
)

if TYPE_CHECKING:
    from scipy import sparse

log = logging.getLogger(__name__)

# The words of a text, for settings of BM25.
Analysis = Callable[[BM25Settings], Callable[[str], Iterable[str]]]

# Expressions write a term as `name:term`; these names are of ids and metadata.
NAME = re.compile(r"(?!(?:id|meta)$)[A-Za-z][A-Za-z0-9_-]*")

# The query weight to which each field's own is brought: the largest of 8 bits.
LARGEST = 255

# Documents of a field of texts that are quantised at once.
PIECE = 4096


class FieldDocument(NamedTuple):
    """A document as one field has it."""

    doc_id: str
    vector: Mapping[str, int]
    contents: str = ""
    metadata: Mapping[str, Any] = NO_METADATA


class FieldSource(NamedTuple):
    """A field that is to be joined.

    manifest    of its shards
    quantiser   of its impacts and queries; None where the manifest has none
    vocabulary  its terms, without the field's name
    doc_ids     of its documents, each once, in the order of the shards
    documents   streams them in this order, once
    cut         numbers of weights that quantising clipped and dropped
    """

    name: str
    manifest: Manifest
    quantiser: Quantiser | None
    vocabulary: Vocabulary
    doc_ids: Mapping[str, None]
    documents: Iterator[FieldDocument]
    cut: Counts

    def entry(self) -> FieldEntry:
        """The field in the manifest of the whole."""
        return FieldEntry(
            name=self.name,
            kind=self.manifest.kind,
            encoder=dict(self.manifest.encoder),
            quantiser=self.quantiser.settled().to_json() if self.quantiser else {},
            vocabulary={"size": len(self.vocabulary), "digest": self.vocabulary.digest},
        )


def own_weight(quantiser: Quantiser | None) -> int:
    """The weight with which a query weight of a field counts `LARGEST` at its largest; of a count, each word does."""
    side = (quantiser or Quantiser()).query
    largest = side.largest if side.scheme != "fixed" else side.scale
    return max(1, round(LARGEST / (largest or LARGEST)))


def join_fields(
    fields: Mapping[str, Path],
    output: Path,
    analysis: Analysis,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Manifest:
    """Writes the shards of several fields as one folder of shards, whole or not at all.

    Documents have the order of the first field; those that it lacks follow in the order of the next, and stay in memory
    until then, as do documents of another order than the first field's.

    Args:
        fields: folders of shards by the names of their fields, impacts or texts.
        output: a new folder, or a finished one of the same fields, which stays as it is.
        analysis: gives the function that splits texts into words, for fields of texts.
        progress: called with the number of documents just written.

    Returns:
        The manifest; `layout.fields` has the number of documents of each field.

    Raises:
        UsageError: a name that no field can have, no field, or shards of vectors or of several fields already.
        ArtefactError: the output holds something else, an id occurs twice in a field, or two fields have other values
            of the same metadata for a document.
    """
    if not fields:
        raise UsageError("no field; name one with its shards, for example text=impacts/pages.bm25")
    manifests = {}
    for name, folder in fields.items():
        if not NAME.fullmatch(name):
            raise UsageError(f"field {name!r}: expected letters, digits, - and _, from a letter on, and not id or meta")
        manifest = manifests[name] = read_manifest(folder)
        if manifest.kind == "dense" or manifest.fields:
            what = "shards of several fields" if manifest.fields else "dense vectors"
            raise UsageError(f"{folder}: {what}; a field is of impacts, or of texts that BM25 weighs")
    noted = [
        {
            "name": name,
            "encoder": m.encoder.without_places(),
            "shards": source_digest(m),
            "documents": m.counts.documents,
        }
        for name, m in manifests.items()
    ]

    def finished() -> Manifest | None:
        clear_remains(output)
        there = read_manifest(output) if output.exists() else None
        earlier = None if there is None else {FIELDS: there.layout.get(FIELDS)}
        return there if claim(output, "shards", {FIELDS: noted}, earlier, overwrite) is Claim.DONE else None

    def write() -> Manifest:
        sources = [opened_field(name, fields[name], manifest, analysis) for name, manifest in manifests.items()]
        return write_joined(sources, noted, output, progress)

    return ensure(output, finished, write, folder=True)


def opened_field(name: str, folder: Path, manifest: Manifest, analysis: Analysis) -> FieldSource:
    """A field, ready to be read; that of texts is computed."""
    doc_ids = dict.fromkeys(read_ids(folder, manifest))
    if len(doc_ids) != manifest.counts.documents:
        raise ArtefactError(
            f"{folder}: {len(doc_ids)} different ids of {manifest.counts.documents} documents; ids must be distinct, "
            "encode again"
        )
    if manifest.kind == "impact":
        vocabulary = read_vocabulary(folder, manifest)
        quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else None
        vectors = partial(counted_impacts, vocabulary=vocabulary)
        documents = _documents(folder, manifest, lambda path, entry: vectors(path, entry))
        cut = Counts(clipped=manifest.counts.clipped, dropped=manifest.counts.dropped)
        return FieldSource(name, manifest, quantiser, vocabulary, doc_ids, documents, cut)
    settings = BM25Settings.of(manifest.encoder.options)
    texts = (document.contents for document in read_texts(folder, manifest))
    weights, vocabulary = bm25_weights(texts, analysis(settings), settings.k1, settings.b)
    quantiser, cut = BM25_QUANTISER.calibrate(weights), Counts(clipped=0, dropped=0)
    vectors_of = _impacts(weights, vocabulary, quantiser, doc_ids, cut)
    documents = _documents(folder, manifest, lambda path, entry: islice(vectors_of, entry["documents"]))
    return FieldSource(name, manifest, quantiser, vocabulary, doc_ids, documents, cut)


def _impacts(
    weights: sparse.csr_matrix, vocabulary: Vocabulary, quantiser: Quantiser, doc_ids: Iterable[str], cut: Counts
) -> Iterator[ImpactDocument]:
    """The documents of CSR [n, V]; counts what quantising clips and drops."""
    ids = iter(doc_ids)
    for start in range(0, weights.shape[0], PIECE):
        piece = quantiser.documents(weights[start : start + PIECE])
        cut.update(clipped=cut.clipped + piece.clipped, dropped=cut.dropped + piece.dropped)
        for vector in piece.by_term(vocabulary.terms):
            yield ImpactDocument(next(ids), vector)


def _documents(
    folder: Path, manifest: Manifest, vectors: Callable[[Path, Mapping[str, Any]], Iterable[ImpactDocument]]
) -> Iterator[FieldDocument]:
    """The documents of a folder of shards with what is stored beside their vectors."""
    for path, entry in checked_shards(folder, manifest):
        contents = read_contents(path) if manifest.layout.get("contents") else repeat("")
        metadata = read_metadata(path) if manifest.may_have_metadata else repeat(NO_METADATA)
        for document, text, values in zip(vectors(path, entry), contents, metadata, strict=False):
            yield FieldDocument(document.doc_id, document.vector, text, values)


def aligned(
    streams: Sequence[Iterator[FieldDocument]], doc_ids: Sequence[Mapping[str, None]]
) -> Iterator[list[FieldDocument | None]]:
    """Each document once, as all fields have it; None where a field lacks it."""
    waiting: list[dict[str, FieldDocument]] = [{} for _ in streams]

    def taken(place: int, doc_id: str) -> FieldDocument | None:
        if doc_id not in doc_ids[place]:
            return None
        while doc_id not in waiting[place]:
            document = next(streams[place])
            waiting[place][document.doc_id] = document
        return waiting[place].pop(doc_id)

    for place, ids in enumerate(doc_ids):
        for doc_id in ids:
            if not any(doc_id in before for before in doc_ids[:place]):
                yield [taken(other, doc_id) for other in range(len(streams))]
    for stream in streams:
        assert next(stream, None) is None, "documents without an id of theirs"  # and the counts of its last shard


def joined(rows: Sequence[Sequence[FieldDocument | None]], sources: Sequence[FieldSource], size: int) -> Shard:
    """A shard of documents as all fields have them; the vocabulary of the whole has `size` terms."""
    from scipy import sparse

    ids, texts, metadata = list[str](), list[str](), list[Mapping[str, Any]]()
    dims, impacts, ends = list[int](), list[int](), [0]
    for row in rows:
        start = 0
        for source, document in zip(sources, row, strict=True):
            if document is not None:
                dims += [start + source.vocabulary.dimension[term] for term in document.vector]
                impacts += document.vector.values()
            start += len(source.vocabulary)
        ends.append(len(dims))
        there = {source.name: document for source, document in zip(sources, row, strict=True) if document is not None}
        ids.append(next(document.doc_id for document in there.values()))
        texts.append(next((document.contents for document in there.values() if document.contents), ""))
        metadata.append(agreeing(there))
    vectors = sparse.csr_matrix((np.array(impacts, np.int64), np.array(dims, np.int64), ends), (len(ids), size))
    vectors.sort_indices()
    return Shard(ids, texts, vectors, metadata=metadata)


def agreeing(there: Mapping[str, FieldDocument]) -> dict[str, Any]:
    """The metadata of a document, of all fields."""
    values: dict[str, Any] = {}
    for name, document in there.items():
        for key, value in document.metadata.items():
            if values.setdefault(key, value) != value:
                raise ArtefactError(
                    f"document {document.doc_id!r}: metadata {key!r} is {value!r:.60} in the field {name}, and "
                    f"{values[key]!r:.60} in another; encode one of them without --store-metadata"
                )
    return values


def layout_of(manifests: Sequence[Manifest]) -> Layout:
    """How the whole is stored: in the compact format if a field is, with the texts and metadata that a field has."""
    layouts = [manifest.layout for manifest in manifests]
    parquet = any(layout.get("shard_format") == "parquet" for layout in layouts)
    return Layout(
        "parquet" if parquet else "jsonl",
        layouts[0].get("shard_size") or Layout().shard_size,
        not parquet and any(layout.get("compress", False) for layout in layouts),
        any(layout.get("contents", False) for layout in layouts),
        any(manifest.may_have_metadata for manifest in manifests),
    )


def write_joined(sources: Sequence[FieldSource], noted: Any, output: Path, progress: Progress) -> Manifest:
    """Writes the shards of fields, and their manifest."""
    layout = layout_of([source.manifest for source in sources])
    vocabulary = Vocabulary(in_field(source.name, term) for source in sources for term in source.vocabulary.terms)
    rows = aligned([source.documents for source in sources], [source.doc_ids for source in sources])
    entries: list[dict[str, Any]] = []
    with new_folder(output) as part:
        (part / "docs").mkdir()
        while batch := list(islice(rows, layout.shard_size)):
            shard, name = joined(batch, sources, len(vocabulary)), layout.name(len(entries))
            entries.append(write_shard(part, name, shard, vocabulary, layout))
            progress(len(batch))
        vocabulary.write(part / VOCABULARY)
        manifest = manifest_of(sources, vocabulary, {**layout.to_json(), FIELDS: noted}, entries)
        write_json(part / MANIFEST, manifest.to_json())
    for source in sources:
        if lacking := manifest.counts.documents - len(source.doc_ids):
            log.warning("%d of %d documents have no field %s", lacking, manifest.counts.documents, source.name)
    return manifest


def manifest_of(
    sources: Sequence[FieldSource], vocabulary: Vocabulary, layout: Mapping[str, Any], entries: Sequence[dict[str, Any]]
) -> Manifest:
    """The manifest of the whole."""
    counts = Counts({key: sum(entry[key] for entry in entries) for key in ("documents", "empty", "postings")})
    counts.update({key: sum(source.cut[key] for source in sources) for key in ("clipped", "dropped")})
    counts["max_impact"] = max((entry["max_impact"] for entry in entries), default=0)
    corpora = [source.manifest.corpus for source in sources]
    same = len({(corpus.digest, str(corpus.part)) for corpus in corpora}) == 1
    encoder = EncoderRef(
        name=FIELDS,
        checkpoint=None,
        checkpoint_digest=None,
        options={
            f"{entry['name']}.weight": own_weight(source.quantiser)
            for source, entry in zip(sources, layout[FIELDS], strict=True)
        },
        fields=[source.entry() for source in sources],
    )
    return replace(
        sources[0].manifest,
        kind="impact",
        encoder=encoder,
        quantiser={},
        vocabulary={"size": len(vocabulary), "digest": vocabulary.digest},
        corpus=corpora[0] if same else combined_corpus(corpora, counts.documents),
        counts=counts,
        layout=layout,
        shards=tuple(entries),
    )
