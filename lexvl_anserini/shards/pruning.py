"""Static pruning: shards with fewer postings. Pruned postings are missing from every score.

Lists of terms and the least impact come first, then each document's largest impacts, then each term's; among equal
impacts a document's first terms and a term's first documents, in the order of the shards.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.lines import log_unknown, parse_object, read_lines
from lexvl_anserini.data.parquet import Failure, read_batches, read_schema
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import compute_sha256, new_folder
from lexvl_anserini.ground.manifest import LayoutEntry, Manifest, ShardRecord, expect_lexical, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Vocabulary, heaviest
from lexvl_anserini.shards.layout import ensure_shards, shard_stream, source_digest, write_shards
from lexvl_anserini.shards.reading import check_shards, read_counted_impacts, read_impacts, read_vocabulary

log = logging.getLogger(__name__)

Vector = Mapping[str, int]
PRUNED = ("documents", "empty", "postings", "max_impact")  # counts that pruning changes


@dataclass(frozen=True)
class Pruning:
    """What is kept; the default keeps all.

    Attributes:
        only_terms: terms that documents may have; None allows all.
        without_terms: terms that they may not have.
        document_terms, term_documents: that many largest impacts per document, and per term.
    """

    only_terms: frozenset[str] | None = None
    without_terms: frozenset[str] = frozenset()
    least_impact: int = 1
    document_terms: int | None = None
    term_documents: int | None = None

    def __post_init__(self) -> None:
        if any(n is not None and n < 1 for n in (self.least_impact, self.document_terms, self.term_documents)):
            raise UsageError("least impact, document terms and term documents: expected at least 1")

    def document(self, vector: Vector) -> dict[str, int]:
        """What is kept of one document, before `term_documents`, which takes all of them."""
        only, without, least = self.only_terms, self.without_terms, self.least_impact
        allowed = {t: i for t, i in vector.items() if i >= least and t not in without and (only is None or t in only)}
        return heaviest(allowed, self.document_terms)

    def to_json(self) -> dict[str, Any]:
        """For the manifest: numbers, and lists of terms by their digests."""
        values: dict[str, Any] = {
            "only_terms": _digest_terms(self.only_terms),
            "without_terms": _digest_terms(self.without_terms),
            "least_impact": self.least_impact if self.least_impact > 1 else None,
            "document_terms": self.document_terms,
            "term_documents": self.term_documents,
        }
        return {name: value for name, value in values.items() if value is not None}


def _digest_terms(terms: frozenset[str] | None) -> str | None:
    return sha256("\n".join(sorted(terms)).encode()).hexdigest() if terms else None


@dataclass(frozen=True)
class TermCuts:
    """Per term that loses postings, the least impact that is kept, and how many of that impact are."""

    cuts: dict[str, tuple[int, int]]

    def keep(self, vector: Vector) -> dict[str, int]:
        """What is kept of a document; the documents come in the order in which they were counted."""
        impacts = {}
        for term, impact in vector.items():
            cut, left = self.cuts.get(term, (0, 0))
            if impact > cut:
                impacts[term] = impact
            elif impact == cut and left:
                impacts[term] = impact
                self.cuts[term] = (cut, left - 1)
        return impacts


def compute_cuts(vectors: Iterable[Vector], pruning: Pruning) -> TermCuts:
    """The cuts per term, from all documents' vectors, which are read only if there are to be cuts."""
    cuts: dict[str, tuple[int, int]] = {}
    if pruning.term_documents is not None:
        documents_of = Counter(posting for vector in vectors for posting in pruning.document(vector).items())
        larger = Counter[str]()  # documents of the impacts before
        for (term, impact), documents in sorted(documents_of.items(), key=lambda row: -row[0][1]):
            if 0 < (left := pruning.term_documents - larger[term]) <= documents:
                cuts[term] = (impact, left)
            larger[term] += documents
    return TermCuts(cuts)


def prune_shards(
    shards: Path, output: Path, pruning: Pruning, overwrite: bool = False, progress: Progress = silent
) -> Manifest:
    """Writes shards with fewer postings: the same documents, formats, texts and metadata; all of them or none."""
    manifest = read_manifest(shards)
    expect_lexical(shards, manifest.kind, "only impacts are pruned")
    done = [*manifest.layout.get("pruning", ()), {**pruning.to_json(), "shards": source_digest(manifest)}]
    request = replace(manifest, layout=LayoutEntry({**manifest.layout, "pruning": done}))
    write = partial(write_pruned, shards, output, request, pruning, progress)
    return ensure_shards(output, request.request(), Manifest.request, overwrite, write)


def write_pruned(shards: Path, output: Path, request: Manifest, pruning: Pruning, progress: Progress) -> Manifest:
    """Writes the pruned shards and their manifest, which is the request with counts."""
    vocabulary = read_vocabulary(shards, request)
    log_unknown((pruning.only_terms or frozenset()) | pruning.without_terms, vocabulary.terms, str(shards))
    cuts = compute_cuts((d.vector for d in read_impacts(shards, request, vocabulary)), pruning)
    with new_folder(output) as part:

        def prune() -> Iterator[ShardRecord]:
            for path, shard in check_shards(shards, request):
                yield prune_shard(path, part / shard.name, shard, pruning, cuts, vocabulary)
                progress(shard.documents)

        untouched = {key: n for key, n in request.counts.items() if key not in PRUNED}
        return write_shards(part, request, vocabulary, prune(), untouched)


def prune_shard(
    path: Path, target: Path, entry: ShardRecord, pruning: Pruning, cuts: TermCuts, vocabulary: Vocabulary
) -> ShardRecord:
    """Writes one shard anew and returns its entry for the manifest."""
    vectors = [cuts.keep(pruning.document(read.vector)) for read in read_counted_impacts(path, entry, vocabulary)]
    with shard_stream(target, target.suffix == ".gz") as out:
        if path.suffix == ".parquet":
            write_pruned_parquet(path, out, vectors, vocabulary)
        else:
            for row, vector in zip(map(parse_object, read_lines(path)), vectors, strict=True):
                out.write(orjson.dumps({**row, "vector": vector}) + b"\n")
    after = {
        "empty": sum(not vector for vector in vectors),
        "postings": sum(map(len, vectors)),
        "max_impact": max((i for vector in vectors for i in vector.values()), default=0),
    }
    return ShardRecord({**entry, **after, "bytes": target.stat().st_size, "sha256": compute_sha256(target)})


def write_pruned_parquet(path: Path, out: Any, vectors: Sequence[Mapping[str, int]], vocabulary: Vocabulary) -> None:
    """A parquet shard with other vectors, its other columns as they are; one batch after the other, texts included."""
    import pyarrow as pa
    from pyarrow import parquet

    schema, left, kind = read_schema(path), iter(vectors), pa.list_(pa.uint32())
    for name in ("term", "impact"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in read_batches(path, {}, schema.names, Failure(ArtefactError, "encode again")):
            rows = list(islice(left, len(batch)))
            columns = {name: batch.column(name) for name in schema.names}
            columns["term"] = pa.array([[vocabulary.dimension[t] for t in vector] for vector in rows], kind)
            columns["impact"] = pa.array([list(vector.values()) for vector in rows], kind)
            writer.write_batch(pa.record_batch([*columns.values()], schema))
