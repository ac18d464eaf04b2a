"""Reads the shards of an encoded corpus for engines, and checks them against their manifest.

Stock Anserini drops what it cannot read and returns 0; here every document, posting and byte is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson

from lexvl_anserini.data.checks import MAX_ID_BYTES, SeenIds, fits_index, show_id
from lexvl_anserini.data.lines import DAMAGED_GZIP, open_packed
from lexvl_anserini.data.parquet import Failure, is_integers, is_numbers, is_text, read_batches
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256, parse_json
from lexvl_anserini.ground.manifest import Manifest, RunManifest, ShardRecord, read_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import SCORE_LIMIT, VOCABULARY, ImpactDocument, Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from scipy import sparse

# Lucene's float32 sums represent every integer up to this one: a larger impact has no exact score at all.
MAX_IMPACT = SCORE_LIMIT - 1

# Columns that every shard has, and the types that are read.
_TYPES = {"id": is_text, "term": is_integers, "impact": is_integers, "emb": is_numbers}

OPTIONAL = ("contents", "metadata")  # columns that shards may have besides ids and impacts
PIECE_BYTES = 4 << 20  # bytes of JSON lines that one call passes to Java


class TextDocument(NamedTuple):
    """A document for BM25."""

    doc_id: str
    contents: str


class DenseBatch(NamedTuple):
    """Ids and their vectors, float32 [B, D]."""

    doc_ids: list[str]
    vectors: np.ndarray


class Columns(NamedTuple):
    """Documents as columns of little-endian bytes, which one call passes to Java.

    A column of texts is followed by its ends (int32): text i is the bytes ends[i - 1] (or 0) to ends[i]. The postings
    of each document end at `ends`; dimensions and impacts are int32, metadata one JSON object a document.
    """

    ids: bytes
    id_ends: bytes
    ends: bytes
    dims: bytes
    impacts: bytes
    contents: bytes | None = None
    content_ends: bytes | None = None
    metadata: bytes | None = None
    metadata_ends: bytes | None = None


def check_distinct(seen: SeenIds, again: Callable[[], Iterator[str]]) -> None:
    """Refuses ids that occur twice; `again` streams the ids of all documents once more."""
    for doc_id in seen.find_repeated(again):
        raise ArtefactError(f"document id {doc_id!r} occurs twice in the shards; ids must be distinct")


def check_shards(shards: Path, manifest: Manifest) -> Iterator[tuple[Path, ShardRecord]]:
    """Yields each shard's file and its entry in the manifest, after comparing its checksum."""
    listed = {shards / entry["name"] for entry in manifest.shards}
    for stray in sorted(set((shards / "docs").glob("*")) - listed):
        raise ArtefactError(f"{stray}: not a shard of {shards / 'manifest.json'}; remove it or encode again")
    for entry in manifest.shards:
        path = shards / entry["name"]
        if not path.is_file():
            raise ArtefactError(f"{path}: shard is missing; run the encode command again")
        digest = compute_sha256(path)
        if digest != entry["sha256"]:
            raise ArtefactError(
                f"{path}: damaged or changed since it was encoded (sha256 {digest[:12]}, expected "
                f"{entry['sha256'][:12]}); remove it and run the encode command again"
            )
        yield path, entry


def expect_counts(where: str, counts: Mapping[str, int], expected: Mapping[str, Any]) -> None:
    """Refuses counts that differ from the expected ones of their names."""
    wrong = [f"{n} {name}, expected {expected[name]}" for name, n in counts.items() if expected.get(name, n) != n]
    if wrong:
        raise ArtefactError(f"{where}: {'; '.join(wrong)}; encode and index again")


def read_vocabulary(folder: Path, manifest: Manifest) -> Vocabulary:
    """The terms of the manifest's dimensions, from `vocab.txt` in `folder`."""
    path = folder / VOCABULARY
    if not path.is_file():
        raise ArtefactError(f"{path}: missing; it names the terms of the dimensions, run the encode command again")
    vocabulary = Vocabulary.read(path)
    expected = manifest.vocabulary.get("digest")
    if vocabulary.digest != expected:
        raise ArtefactError(
            f"{path}: vocabulary digest {vocabulary.digest[:12]} ({len(vocabulary)} terms), the manifest says "
            f"{str(expected)[:12]} ({manifest.vocabulary.get('size')} terms); it belongs to another encoder"
        )
    return vocabulary


def read_impacts(shards: Path, manifest: Manifest, vocabulary: Vocabulary) -> Iterator[ImpactDocument]:
    """Streams all documents of impact shards, JSON lines or parquet; an empty document has an empty vector."""
    for path, entry in check_shards(shards, manifest):
        yield from read_counted_impacts(path, entry, vocabulary)


def read_counted_impacts(path: Path, entry: Mapping[str, Any], vocabulary: Vocabulary) -> Iterator[ImpactDocument]:
    """Streams the documents of one impact shard, and compares their counts with its entry in the manifest."""
    counts = {"documents": 0, "empty": 0, "postings": 0}
    for document in read_shard(path, vocabulary):
        counts["documents"] += 1
        counts["empty"] += not document.vector
        counts["postings"] += len(document.vector)
        yield document
    expect_counts(str(path), counts, entry)


def read_shard(path: Path, vocabulary: Vocabulary) -> Iterator[ImpactDocument]:
    """Streams the documents of one impact shard."""
    return (_read_parquet_impacts if path.suffix == ".parquet" else _read_json_impacts)(path, vocabulary)


def shard_pieces(path: Path) -> Iterator[bytes | Columns]:
    """The documents of one impact shard in pieces for Java: whole lines of JSON, or columns; checks no values."""
    if path.suffix == ".parquet":
        yield from _columns(path)
        return
    with _open_shard(path) as rows:
        while piece := rows.read(PIECE_BYTES):
            yield piece + rows.readline()


def read_metadata(path: Path) -> Iterator[Mapping[str, Any]]:
    """The metadata of each document of a shard; empty for one without."""
    for metadata, where in _read_optional(path, "metadata"):
        yield _parse_object(metadata, where)


def read_contents(path: Path) -> Iterator[str]:
    """The text of each document of a shard; empty for one that is stored without."""
    for contents, where in _read_optional(path, "contents"):
        yield _expect("" if contents is None else contents, str, "contents is ", where)


def _read_optional(path: Path, name: str) -> Iterator[tuple[Any, str]]:
    """The value of an optional column of each document, None where it is absent, and its place, for errors."""
    if path.suffix == ".parquet":
        batches = _read_parquet_batches(path, ["id"], [name])
        columns = (b.column(name).to_pylist() if name in b.schema.names else [None] * len(b) for b in batches)
        for number, value in enumerate(chain.from_iterable(columns)):
            yield value, f"{path} row {number}"
    else:
        for row, where in _read_json_rows(path):
            yield row.get(name), where


def read_texts(shards: Path, manifest: Manifest) -> Iterator[TextDocument]:
    """Streams all documents of text shards."""
    for path, entry in check_shards(shards, manifest):
        documents = 0
        for row, where in _read_json_rows(path):
            documents += 1
            contents = _expect(row.get("contents"), str, "contents is ", where)
            yield TextDocument(_check_id(row.get("id"), where), contents)
        expect_counts(str(path), {"documents": documents}, entry)


def read_vectors(shards: Path, manifest: Manifest) -> Iterator[DenseBatch]:
    """Streams all documents of dense shards in batches."""
    import numpy as np

    width: int | None = None
    for path, entry in check_shards(shards, manifest):
        documents = 0
        for batch in _read_parquet_batches(path, ["id", "emb"]):
            where = f"{path} rows from {documents}"
            lists = batch.column("emb")
            lengths = set(np.unique(lists.value_lengths().to_numpy(zero_copy_only=False)).tolist())
            width = min(lengths) if width is None else width
            if lengths != {width}:
                raise ArtefactError(f"{where}: vectors of {sorted(lengths)} dimensions, expected {width}; encode again")
            vectors = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, width)
            if not np.isfinite(vectors).all():
                raise ArtefactError(f"{where}: a vector is not finite; the model or its checkpoint is broken")
            documents += len(vectors)
            yield DenseBatch([_check_id(doc_id, where) for doc_id in batch.column("id").to_pylist()], vectors)
        expect_counts(str(path), {"documents": documents}, entry)


def read_ids(shards: Path, manifest: Manifest) -> Iterator[str]:
    """Streams the document ids of shards of any kind."""
    for entry in manifest.shards:
        path = shards / entry["name"]
        if path.suffix == ".parquet":
            for batch in _read_parquet_batches(path, ["id"]):
                yield from batch.column("id").to_pylist()
        else:
            for row, where in _read_json_rows(path):
                yield _check_id(row.get("id"), where)


def _expect(value: Any, kind: type, what: str, where: str) -> Any:
    """The value, which is to be a text or an object."""
    if not isinstance(value, kind):
        wrong = "missing" if value is None else f"a {type(value).__name__}"
        raise ArtefactError(f"{where}: {what}{wrong}, expected {'a text' if kind is str else 'an object'}")
    return value


def _check_id(doc_id: Any, where: str) -> str:
    if not isinstance(doc_id, str) or not doc_id or doc_id.split() != [doc_id] or not fits_index(doc_id):
        raise ArtefactError(
            f"{where}: document id {show_id(doc_id)}, expected a text without white space, of at most "
            f"{MAX_ID_BYTES:,} bytes"
        )
    return doc_id


def _read_json_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    with _open_shard(path) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path} line {number}"
            yield _expect(parse_json(line, where, ArtefactError), dict, "", where), where


@contextmanager
def _open_shard(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_packed(path) as source:
            yield source
    except DAMAGED_GZIP as error:
        remedy = "remove it and run the encode command again"
        raise ArtefactError(f"{path}: damaged gzip file ({error}); {remedy}") from error
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read_parquet_batches(path: Path, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Any]:
    """Record batches of the named columns, and of the optional columns that exist."""
    types = {name: _TYPES[name] for name in columns}
    for batch in read_batches(path, types, optional, Failure(ArtefactError, "encode again")):
        for name in columns:
            column = batch.column(name)
            if column.null_count or (name != "id" and column.flatten().null_count):
                raise ArtefactError(f"{path}: a row lacks its {name}; encode again")
        yield batch


def _read_json_impacts(path: Path, vocabulary: Vocabulary) -> Iterator[ImpactDocument]:
    known = vocabulary.dimension.keys()
    for row, where in _read_json_rows(path):
        vector = _expect(row.get("vector"), dict, "vector is ", where)
        if not vector.keys() <= known:
            strange = next(term for term in vector if term not in known)
            raise ArtefactError(f"{where}: term {strange!r} is not in the vocabulary of {len(vocabulary)} terms")
        impacts = vector.values()
        if vector and (set(map(type, impacts)) != {int} or min(impacts) < 1 or max(impacts) > MAX_IMPACT):
            term, impact = next((t, i) for t, i in vector.items() if type(i) is not int or not 1 <= i <= MAX_IMPACT)
            raise _describe_no_impact(where, row.get("id"), term, impact)
        yield ImpactDocument(_check_id(row.get("id"), where), vector)


def _read_parquet_impacts(path: Path, vocabulary: Vocabulary) -> Iterator[ImpactDocument]:
    import numpy as np

    documents = 0
    for batch in _read_parquet_batches(path, ["id", "term", "impact"]):
        where = f"{path} rows from {documents}"
        lengths, dims, impacts = _read_postings(batch, where)
        if len(dims) and not 0 <= dims.min() <= dims.max() < len(vocabulary):
            wrong = dims.min() if dims.min() < 0 else dims.max()
            raise ArtefactError(f"{where}: dimension {wrong}, the vocabulary has {len(vocabulary)} terms")
        if (strange := np.flatnonzero((impacts < 1) | (impacts > MAX_IMPACT))).size:
            place = int(strange[0])
            row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
            doc_id, term = batch.column("id")[row].as_py(), vocabulary.terms[dims[place]]
            raise _describe_no_impact(f"{path} row {documents + row}", doc_id, term, impacts[place].item())
        terms = [vocabulary.terms[dim] for dim in dims.tolist()]
        values = impacts.tolist()
        end = 0
        for doc_id, length in zip(batch.column("id").to_pylist(), lengths.tolist(), strict=True):
            start, end = end, end + length
            vector = dict(zip(terms[start:end], values[start:end], strict=True))
            if len(vector) != length:
                raise ArtefactError(f"{where}: document {doc_id!r} names a dimension twice; encode again")
            yield ImpactDocument(_check_id(doc_id, where), vector)
        documents += len(lengths)


def _read_postings(batch: Any, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import numpy as np

    columns = [batch.column(name) for name in ("term", "impact")]
    lengths, others = (np.diff(_convert_numbers(column.offsets)) for column in columns)
    if not np.array_equal(lengths, others):
        raise ArtefactError(f"{where}: term and impact lists differ in length, or are missing; encode again")
    dims, impacts = (_convert_numbers(column.flatten()) for column in columns)
    return lengths, dims, impacts


def _convert_numbers(array: Any) -> np.ndarray:
    """An array of Arrow without nulls as one of numpy; Arrow's own way to it imports pandas."""
    import numpy as np

    end = array.offset + len(array)
    return np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype(), end)[array.offset :]


def _describe_no_impact(where: str, doc_id: Any, term: str, impact: Any) -> ArtefactError:
    remedy = "encode with fewer bits" if isinstance(impact, int) and impact > MAX_IMPACT else "encode again"
    return ArtefactError(
        f"{where}: document {doc_id!r}, impact {impact} of term {term!r}, expected an integer from 1 to "
        f"{MAX_IMPACT:,}, up to which Lucene's scores are exact; {remedy}"
    )


def _parse_object(metadata: Any, where: str) -> Mapping[str, Any]:
    if isinstance(metadata, str):
        metadata = parse_json(metadata.encode(), where, ArtefactError)
    if isinstance(metadata, list) and all(isinstance(pair, tuple) for pair in metadata):
        metadata = dict(metadata)  # a map of parquet arrives as pairs
    return _expect({} if metadata is None else metadata, dict, "metadata is ", where)


def _columns(path: Path) -> Iterator[Columns]:
    import numpy as np

    documents = 0
    for batch in _read_parquet_batches(path, ["id", "term", "impact"], OPTIONAL):
        where = f"{path} rows from {documents}"
        lengths, *numbers = _read_postings(batch, where)
        # Numbers beyond 32 bits become others beyond every limit, which Java refuses; so do those above 2^31.
        numbers = [n if n.dtype.itemsize <= 4 else np.clip(n.astype(np.int64), -1, 2**31 - 1) for n in numbers]
        dims, impacts = (n.astype("<i4", copy=False).tobytes() for n in numbers)
        ids = [_check_id(doc_id, where) for doc_id in batch.column("id").to_pylist()]
        # Concatenated texts, and their ends.
        names = batch.schema.names
        texts = [_decode_utf8(batch.column(name).to_pylist(), where) if name in names else () for name in OPTIONAL]
        contents, metadata = (pair or (None, None) for pair in texts)
        ends = np.cumsum(lengths, dtype="<i4").tobytes()
        yield Columns(*_decode_utf8(ids, where), ends, dims, impacts, *contents, *metadata)
        documents += len(ids)


def _decode_utf8(values: list[Any], where: str) -> tuple[bytes, bytes]:
    """Concatenated texts and the end of each; a value that is not a text becomes JSON."""
    import numpy as np

    def encode(value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        pairs = _parse_object(value, where)
        try:
            return orjson.dumps({key: item for key, item in pairs.items() if item is not None})
        except TypeError as error:
            raise ArtefactError(f"{where}: metadata that cannot be stored as JSON ({error}); encode again") from error

    encoded = [*map(encode, values)]
    return b"".join(encoded), np.cumsum([len(value) for value in encoded], dtype="<i4").tobytes()


def read_stored_vectors(shards: Path, rows: Mapping[str, int]) -> Any:
    """The vectors of some documents: float32 [n, D] of dense shards, CSR [n, V] float64 of impacts.

    A dense vector is the encoder's own. An impact is divided by the scale of the shards: it differs from the encoder's
    weight by half a step of the quantiser at most, or by what was clipped. `rows` has the row of each document's id.
    """
    manifest = read_manifest(shards)
    if manifest.kind == "text":
        raise UsageError(f"{shards}: texts have no vectors to score with; mix runs with python -m lexvl_anserini.fuse")
    return (_read_dense if manifest.kind == "dense" else _read_lexical)(shards, manifest, rows)


def _read_dense(shards: Path, manifest: Manifest, rows: Mapping[str, int]) -> np.ndarray:
    import numpy as np

    places, parts = array("q"), []
    for batch in read_vectors(shards, manifest):
        matches = [(rows[doc_id], place) for place, doc_id in enumerate(batch.doc_ids) if doc_id in rows]
        places.extend(row for row, _ in matches)
        parts.append(batch.vectors[[place for _, place in matches]])
    _check_all(shards, rows, places)
    vectors: np.ndarray = np.concatenate(parts)[np.argsort(places)]
    return vectors


def _read_lexical(shards: Path, manifest: Manifest, rows: Mapping[str, int]) -> sparse.csr_matrix:
    import numpy as np
    from scipy import sparse

    side = Quantiser.from_json(manifest.quantiser).document if manifest.quantiser else Quantiser().document
    if side.scheme != "binary" and side.scale is None:
        raise UsageError(f"{shards}: impacts with a scale of their own per document; encode again, or leave it out")
    vocabulary = read_vocabulary(shards, manifest)
    places, lengths, dims, impacts = array("q"), array("q"), array("i"), array("i")
    for document in read_impacts(shards, manifest, vocabulary):
        if document.doc_id in rows:
            places.append(rows[document.doc_id])
            lengths.append(len(document.vector))
            dims.extend(vocabulary.dimension[term] for term in document.vector)
            impacts.extend(document.vector.values())
    _check_all(shards, rows, places)
    weights = np.frombuffer(impacts, dtype=np.intc) / (side.scale or 1.0)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    shape = (len(rows), len(vocabulary))
    matrix = sparse.csr_matrix((weights, np.frombuffer(dims, dtype=np.intc), ends), shape=shape)
    return matrix[np.argsort(places)]


def _check_all(shards: Path, rows: Mapping[str, int], places: Sequence[int]) -> None:
    if len(places) < len(rows):
        present = set(places)
        missing = [doc_id for doc_id, row in rows.items() if row not in present]
        raise DataError(f"{shards}: document {missing[0]!r} of a run ({len(missing)} such) is not in these shards")


def match_shards(runs: Sequence[tuple[Path, RunManifest]], folders: Sequence[Path]) -> list[Path | None]:
    """For each run the folder that its index was built from, among some folders; None where there is none."""
    manifests = {folder: read_manifest(folder) for folder in folders}
    chosen = [
        [folder for folder, manifest in manifests.items() if _is_source(manifest, run_manifest)]
        for _, run_manifest in runs
    ]
    for (run, _), fitting in zip(runs, chosen, strict=True):
        if len(fitting) > 1:
            raise UsageError(f"{run}: both {fitting[0]} and {fitting[1]} may be the shards of its index; give one")
    if strangers := [folder for folder in folders if not any(folder in fitting for fitting in chosen)]:
        manifest = manifests[strangers[0]]
        known = "; ".join(
            f"{run} of {run_manifest.encoder.name} over {run_manifest.corpus.name}" for run, run_manifest in runs
        )
        raise UsageError(
            f"{strangers[0]}: vectors of {manifest.encoder.name} over {manifest.corpus.name}; no run's index was built "
            f"from them ({known}; encoder, options, corpus and quantiser must be the same)"
        )
    return [fitting[0] if fitting else None for fitting in chosen]


def _is_source(shards: Manifest, run: RunManifest) -> bool:
    """True if an index of the shards may have answered a run; the search may have changed options of the query side."""
    same = (shards.corpus, shards.quantiser, shards.encoder.name, shards.encoder.checkpoint_digest)
    if same != (run.corpus, run.quantiser, run.encoder.name, run.encoder.checkpoint_digest):
        return False
    options = shards.encoder.without_places()["options"]
    return all(name.startswith("query") or run.encoder.options.get(name) == value for name, value in options.items())
