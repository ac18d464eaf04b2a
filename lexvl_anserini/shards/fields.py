"""Several encoded corpora as the fields of one: `text:boat` and `image:boat` are terms of the same document.

Documents of equal ids join. Each field has the impacts of its own shards; those of texts (`encode --encoder bm25`) are
computed here. What is written is a folder of shards like any other, whose manifest names each field's encoder.

BM25 as impacts: each word of a document gets the weight that Lucene's BM25 gives it, so that a dot product ranks.

    w(d, t) = ln(1 + (N - df + 0.5) / (df + 0.5)) x tf / (tf + k1 (1 - b + b |d| / avgdl))

The symbols are those of `encoders.families.bm25`; |d| is exact here. A query weighs each of its words by the
number of times that it has the word. N, df and avgdl are of the whole corpus, so that no encoder could compute the
vector of one document: the weights are computed of all texts that `encode --encoder bm25` wrote.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import new_folder
from lexvl_anserini.ground.manifest import (
    FIELDS,
    Counts,
    EncoderRef,
    FieldEntry,
    LayoutEntry,
    Manifest,
    ShardRecord,
    read_manifest,
)
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import NO_METADATA, ImpactDocument, QuantiserEntry, Vocabulary, mark_field
from lexvl_anserini.shards.layout import (
    Layout,
    Shard,
    ensure_shards,
    merge_corpora,
    source_digest,
    write_shard,
    write_shards,
)
from lexvl_anserini.shards.reading import (
    check_shards,
    read_contents,
    read_counted_impacts,
    read_ids,
    read_metadata,
    read_texts,
    read_vocabulary,
)

if TYPE_CHECKING:
    from scipy import sparse

log = logging.getLogger(__name__)

Analysis = Callable[[BM25Settings], Callable[[str], Iterable[str]]]  # the words of a text, for settings of BM25

# Expressions write a term as `name:term`; these names are of ids and metadata.
NAME = re.compile(r"(?!(?:id|meta)$)[A-Za-z][A-Za-z0-9_-]*")

LARGEST = 255  # the query weight to which each field's own is brought: the largest of 8 bits
PIECE = 4096  # documents of a field of texts that are quantised at once


class FieldDocument(NamedTuple):
    """A document as one field has it."""

    doc_id: str
    vector: Mapping[str, int]
    contents: str
    metadata: Mapping[str, Any]


class FieldSource(NamedTuple):
    """A field that is to be joined.

    Attributes:
        manifest: of its shards.
        quantiser: of its impacts and queries; None where the manifest has none.
        vocabulary: its terms, without the field's name.
        doc_ids: of its documents, each once, in the order of the shards.
        documents: streams them in this order, once.
    """

    name: str
    manifest: Manifest
    quantiser: Quantiser | None
    vocabulary: Vocabulary
    doc_ids: Mapping[str, None]
    documents: Iterator[FieldDocument]

    def entry(self) -> FieldEntry:
        """The field in the manifest of the whole."""
        encoded = {"kind": self.manifest.kind, "encoder": dict(self.manifest.encoder)}
        settled = self.quantiser.settle().to_json() if self.quantiser else {}
        return FieldEntry(name=self.name, **encoded, quantiser=settled, vocabulary=self.vocabulary.to_json())


def compute_own_weight(quantiser: Quantiser | None) -> int:
    """The weight with which a query weight of a field counts `LARGEST` at its largest; of a count, each word does."""
    side = (quantiser or Quantiser()).query
    largest = side.largest if side.scheme != "fixed" else side.scale
    return max(1, round(LARGEST / (largest or LARGEST)))


def join_fields(
    fields: Mapping[str, Path], output: Path, analysis: Analysis, overwrite: bool = False, progress: Progress = silent
) -> Manifest:
    """Writes the shards of several fields as one folder of shards, whole or not at all.

    Documents have the order of the first field; those that it lacks follow in the order of the next, and stay in memory
    until then, as do documents of another order than the first field's.

    `analysis` gives the function that splits texts into words, for fields of texts.
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
    noted, sides = [], {}
    for name, m in manifests.items():
        entry = {"name": name, "encoder": m.encoder.without_places(), "shards": source_digest(m)}
        noted.append({**entry, "documents": m.counts.documents})
        if m.kind == "impact":  # equal bytes of shards may be of other terms, or for queries of another scale
            settled = Quantiser.from_json(m.quantiser).settle().to_json() if m.quantiser else {}
            sides[name] = [settled, m.vocabulary_digest]

    def describe(there: Manifest) -> dict[str, Any]:
        impacts = [field for field in there.encoder.fields if field.kind == "impact"]
        earlier = {field.name: [dict(field.quantiser), field.vocabulary_digest] for field in impacts}
        return {FIELDS: there.layout.get(FIELDS), "sides": earlier}

    def write() -> Manifest:
        cut = Counts(clipped=0, dropped=0)
        sources = [open_field(name, fields[name], manifest, analysis, cut) for name, manifest in manifests.items()]
        return write_joined(sources, noted, output, cut, progress)

    return ensure_shards(output, {FIELDS: noted, "sides": sides}, describe, overwrite, write)


def open_field(name: str, folder: Path, manifest: Manifest, analysis: Analysis, cut: Counts) -> FieldSource:
    """A field, ready to be read; that of texts is computed. `cut` counts what quantising clips and drops."""
    doc_ids = dict.fromkeys(read_ids(folder, manifest))
    if len(doc_ids) != manifest.counts.documents:
        what = f"{len(doc_ids)} different ids of {manifest.counts.documents} documents"
        raise ArtefactError(f"{folder}: {what}; ids must be distinct, encode again")
    if manifest.kind == "impact":
        vocabulary = read_vocabulary(folder, manifest)
        quantiser = Quantiser.from_json(manifest.quantiser) if manifest.quantiser else None
        documents = _read_documents(folder, manifest, partial(read_counted_impacts, vocabulary=vocabulary))
        add_cut(cut, manifest.counts.clipped, manifest.counts.dropped)
        return FieldSource(name, manifest, quantiser, vocabulary, doc_ids, documents)
    settings = BM25Settings.of(manifest.encoder.options)
    texts = (document.contents for document in read_texts(folder, manifest))
    weights, vocabulary = compute_bm25(texts, analysis(settings), settings.k1, settings.b)
    quantiser = BM25_QUANTISER.calibrate(weights)
    vectors_of = _quantise_texts(weights, vocabulary, quantiser, doc_ids, cut)
    documents = _read_documents(folder, manifest, lambda path, entry: islice(vectors_of, entry.documents))
    return FieldSource(name, manifest, quantiser, vocabulary, doc_ids, documents)


def add_cut(cut: Counts, clipped: int, dropped: int) -> None:
    """Adds numbers of postings that quantising clipped and dropped."""
    cut.update(clipped=cut.clipped + clipped, dropped=cut.dropped + dropped)


def _quantise_texts(
    weights: sparse.csr_matrix, vocabulary: Vocabulary, quantiser: Quantiser, doc_ids: Iterable[str], cut: Counts
) -> Iterator[ImpactDocument]:
    """The documents of CSR [n, V]; counts what quantising clips and drops."""
    ids = iter(doc_ids)
    for start in range(0, weights.shape[0], PIECE):
        piece = quantiser.documents(weights[start : start + PIECE])
        add_cut(cut, piece.clipped, piece.dropped)
        for vector in piece.by_term(vocabulary.terms):
            yield ImpactDocument(next(ids), vector)


def _read_documents(
    folder: Path, manifest: Manifest, vectors: Callable[[Path, ShardRecord], Iterable[ImpactDocument]]
) -> Iterator[FieldDocument]:
    for path, entry in check_shards(folder, manifest):
        contents = read_contents(path) if manifest.layout.get("contents") else repeat("")
        metadata = read_metadata(path) if manifest.may_have_metadata else repeat(NO_METADATA)
        for document, text, values in zip(vectors(path, entry), contents, metadata, strict=False):
            yield FieldDocument(document.doc_id, document.vector, text, values)


def join_streams(
    streams: Sequence[Iterator[FieldDocument]], doc_ids: Sequence[Mapping[str, None]]
) -> Iterator[list[FieldDocument | None]]:
    """Each document once, as all fields have it; None where a field lacks it."""
    waiting: list[dict[str, FieldDocument]] = [{} for _ in streams]

    def take(place: int, doc_id: str) -> FieldDocument | None:
        if doc_id not in doc_ids[place]:
            return None
        while doc_id not in waiting[place]:
            document = next(streams[place])
            waiting[place][document.doc_id] = document
        return waiting[place].pop(doc_id)

    for place, ids in enumerate(doc_ids):
        for doc_id in ids:
            if not any(doc_id in before for before in doc_ids[:place]):
                yield [take(other, doc_id) for other in range(len(streams))]
    for stream in streams:
        assert next(stream, None) is None, "documents without an id of theirs"  # and the counts of its last shard


def build_shard(rows: Sequence[Sequence[FieldDocument | None]], sources: Sequence[FieldSource], size: int) -> Shard:
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
        values: dict[str, Any] = {}
        for name, document in there.items():
            for key, value in document.metadata.items():
                if values.setdefault(key, value) != value:
                    what = f"{value!r:.60} in the field {name}, and {values[key]!r:.60} in another"
                    remedy = "encode one of them without --store-metadata"
                    raise ArtefactError(f"document {document.doc_id!r}: metadata {key!r} is {what}; {remedy}")
        metadata.append(values)
    vectors = sparse.csr_matrix((np.array(impacts, np.int64), np.array(dims, np.int64), ends), (len(ids), size))
    vectors.sort_indices()
    return Shard(ids, texts, vectors, metadata=metadata)


def write_joined(sources: Sequence[FieldSource], noted: Any, output: Path, cut: Counts, progress: Progress) -> Manifest:
    """Writes the shards of fields, and their manifest."""
    # In the compact format if a field is, with the texts and metadata that a field has.
    layouts = [source.manifest.layout for source in sources]
    parquet = any(layout.get("shard_format") == "parquet" for layout in layouts)
    layout = Layout(
        "parquet" if parquet else "jsonl",
        layouts[0].get("shard_size") or Layout().shard_size,
        not parquet and any(layout.get("compress", False) for layout in layouts),
        any(layout.get("contents", False) for layout in layouts),
        any(source.manifest.may_have_metadata for source in sources),
    )
    vocabulary = Vocabulary(mark_field(source.name, term) for source in sources for term in source.vocabulary.terms)
    rows = join_streams([source.documents for source in sources], [source.doc_ids for source in sources])
    with new_folder(output) as part:

        def join() -> Iterator[ShardRecord]:
            for number, batch in enumerate(make_batches(rows, layout.shard_size)):
                shard = build_shard(batch, sources, len(vocabulary))
                yield write_shard(part, layout.name(number), shard, vocabulary, layout)
                progress(len(batch))

        request = build_request(sources, LayoutEntry({**layout.to_json(), FIELDS: noted}))
        manifest = write_shards(part, request, vocabulary, join(), cut)
    for source in sources:
        if lacking := manifest.counts.documents - len(source.doc_ids):
            log.warning("%d of %d documents have no field %s", lacking, manifest.counts.documents, source.name)
    return manifest


def build_request(sources: Sequence[FieldSource], layout: LayoutEntry) -> Manifest:
    """The manifest of the whole, without shards and counts."""
    corpora = [source.manifest.corpus for source in sources]
    same = len({(corpus.digest, str(corpus.part)) for corpus in corpora}) == 1
    documents = len(set().union(*(source.doc_ids for source in sources)))
    weights = {f"{source.name}.weight": compute_own_weight(source.quantiser) for source in sources}
    entries = [source.entry() for source in sources]
    encoder = EncoderRef(name=FIELDS, checkpoint=None, checkpoint_digest=None, options=weights, fields=entries)
    corpus = corpora[0] if same else merge_corpora(corpora, documents)
    whole = replace(sources[0].manifest, kind="impact", encoder=encoder, quantiser=QuantiserEntry())
    return replace(whole, corpus=corpus, layout=layout)


# Documents: the greatest weight of the corpus becomes 255. Queries: their weights are counts already.
BM25_QUANTISER = Quantiser(SideQuantiser("calibrated", 8), SideQuantiser("fixed", None, 1.0))


def compute_bm25(
    texts: Iterable[str], analyse: Callable[[str], Iterable[str]], k1: float, b: float
) -> tuple[sparse.csr_matrix, Vocabulary]:
    """The weights of all texts, CSR [n, V] float32, and their words, the most frequent first; 8 bytes a posting."""
    from scipy import sparse

    numbers: dict[str, int] = {}
    dims, frequencies, ends = array("i"), array("f"), array("q", [0])
    for text in texts:
        counts = Counter(analyse(text))
        dims.extend([numbers.setdefault(word, len(numbers)) for word in counts])
        frequencies.extend(counts.values())
        ends.append(len(dims))
    indices, tf = np.frombuffer(dims, np.int32), np.frombuffer(frequencies, np.float32)
    indptr, words = np.frombuffer(ends, np.int64), np.array(list(numbers), object)
    documents_of = np.bincount(indices, minlength=len(words))
    order = np.lexsort((words, -documents_of))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    postings = np.diff(indptr)
    rows = np.repeat(np.arange(len(postings)), postings)
    lengths = np.bincount(rows, tf, len(postings))
    with_text = int(np.count_nonzero(lengths))
    idf = np.log1p((with_text - documents_of + 0.5) / (documents_of + 0.5)).astype(np.float32)
    norms = (k1 * (1 - b + b * lengths / (lengths.sum() / max(with_text, 1) or 1))).astype(np.float32)
    weights = idf[indices] * tf / (tf + norms[rows])
    matrix = sparse.csr_matrix((weights, place[indices], indptr), shape=(len(postings), len(words)))
    matrix.sort_indices()
    return matrix, Vocabulary(words[order], "words of BM25")
