"""Writes the Common Index File Format (see `ciff_reading`) from the postings of a Lucene index, as protobuf would.

Terms are in the order of their bytes, documents in the order of the index; a document's length is its impacts' sum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.compiling import kernel
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.jvm import Exclusive, raise_java_errors
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, get_reader, open_whole_index
from lexvl_anserini.engines.resident.packing import Lists, exported, read_names
from lexvl_anserini.ground.claims import refuse_existing
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import atomic_write, open_gzip
from lexvl_anserini.ground.machine import OURS, find_version
from lexvl_anserini.ground.manifest import MANIFEST, expect_lexical, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import QuantiserEntry
from lexvl_plugins.exchange.ciff_reading import VERSION

# A posting takes at most its tag and length, and two fields of a tag and a varint of 5 bytes.
LONGEST_POSTING = 14
# A document's length is an int32 of protobuf.
LONGEST_DOCUMENT = (1 << 31) - 1
ENGINES = ("lucene", "pyserini")


class Census(NamedTuple):
    """What the postings of an index say; `numbers`, int32, counts for each document those before it that are there.

    Terms (in the order of their bytes) and ids are UTF-8; `lengths`, int64, has the sum of impacts of each document.
    """

    terms: list[bytes]
    postings: int
    most: int
    numbers: np.ndarray
    deleted: int
    lengths: np.ndarray
    ids: list[bytes]


@kernel
def write_varint(number: int, octets: Any, at: int) -> int:
    """Writes a number in 7 bits a byte, the lowest first, all but the last with the highest bit set."""
    while number > 127:
        octets[at] = number & 127 | 128
        number >>= 7
        at += 1
    octets[at] = number
    return at + 1


def encode_varint(number: int) -> bytes:
    """Returns the bytes of `write_varint`."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + encode_varint(number >> 7)


@kernel
def write_postings(documents: Any, impacts: Any, start: int, end: int, octets: Any) -> int:
    """Writes the postings of a list as fields of a PostingsList; returns the number of bytes."""
    size, before = 0, 0
    for at in range(start, end):
        octets[size] = 34  # field 4, of bytes
        body = size + 2
        here = body
        if documents[at] > before:  # protobuf leaves out a 0
            octets[here] = 8
            here = write_varint(documents[at] - before, octets, here + 1)
        octets[here] = 16
        here = write_varint(impacts[at], octets, here + 1)
        octets[size + 1] = here - body
        size, before = here, documents[at]
    return size


def export_ciff(index: Path, output: Path, overwrite: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Writes the impacts of an index, ours or stock Anserini's, as one file, packed by its name; returns its counts."""
    if not index.is_dir():
        raise ArtefactError(f"{index}: no such index; build it with python -m lexvl_anserini.index")
    if (index / MANIFEST).is_file():
        expect_lexical(index, read_manifest(index).kind, "CIFF has postings of terms")
    if (engine := read_report(index).engine) not in ENGINES:
        raise UsageError(f"{index}: an index of the engine {engine}; expected one of {' or '.join(ENGINES)}")
    if not any(index.glob("segments_*")):
        raise ArtefactError(f"{index}: no Lucene index; build one with python -m lexvl_anserini.index {index}")
    refuse_existing(output, overwrite)
    jvm.start()
    with raise_java_errors(f"{index}: cannot be read as a Lucene index"), open_whole_index(index) as whole:
        whole.check_integrity()
    with get_reader(index) as reader:
        facts = take_census(index, reader)
        if (longest := int(facts.lengths.max())) > LONGEST_DOCUMENT:
            what = f"document {facts.ids[int(facts.lengths.argmax())].decode()!r} has impacts that sum to {longest:,}"
            raise ArtefactError(f"{index}: {what}; CIFF counts to {LONGEST_DOCUMENT:,}, quantise with fewer bits")
        with atomic_write(output) as raw, open_gzip(raw, output.suffix) as out:
            _write_messages(out, reader, facts, _description(index), progress)
    counts = {"documents": len(facts.ids), "terms": len(facts.terms), "postings": facts.postings}
    impacts, size = int(facts.lengths.sum()), output.stat().st_size
    return {"output": str(output), **counts, "impacts": impacts, "bytes": size}


def take_census(index: Path, reader: Any) -> Census:
    """Reads all ids and postings once."""
    documents = int(Exclusive(reader).maxDoc())
    ids: list[bytes | None] = [None] * documents
    for chunk in exported(reader, ID):
        names = np.array(read_names(chunk), object).repeat(np.diff(chunk.ends, prepend=0)).tolist()
        for document, name in zip(chunk.documents.tolist(), names, strict=True):
            ids[document] = name
    lengths, terms, postings, most = np.zeros(documents, np.int64), [], 0, 0
    for chunk in exported(reader, CONTENTS):
        lengths += np.bincount(chunk.documents, chunk.impacts, documents).astype(np.int64)
        terms += read_names(chunk)
        postings, most = postings + len(chunk.documents), max(most, int(chunk.impacts.max()))
    live = np.array([doc_id is not None for doc_id in ids])
    if not live.any() or lengths[~live].any():
        raise ArtefactError(f"{index}: documents without an id; expected the field {ID!r} as Anserini writes it")
    numbers = np.cumsum(live, dtype=np.int32) - 1
    whole = [doc_id for doc_id in ids if doc_id is not None]
    return Census(terms, postings, most, numbers, int((~live).sum()), lengths[live], whole)


def _write_messages(out: BinaryIO, reader: Any, facts: Census, description: str, progress: Progress) -> None:
    """Writes the header, the postings lists and the document records."""
    documents, impacts = len(facts.ids), int(facts.lengths.sum())
    numbers = (VERSION, len(facts.terms), documents, len(facts.terms), documents, impacts)
    header = b"".join(encode_number(field, value) for field, value in enumerate(numbers, start=1))
    header += b"\x39" + struct.pack("<d", impacts / documents) if impacts else b""
    header += encode_bytes(8, description.encode())
    out.write(encode_message(header))
    for chunk in exported(reader, CONTENTS):
        for message in encode_lists(chunk, facts.numbers):
            out.write(message)
        progress(len(chunk.documents))
    for number, (doc_id, length) in enumerate(zip(facts.ids, facts.lengths.tolist(), strict=True)):
        out.write(encode_message(encode_number(1, number) + encode_bytes(2, doc_id) + encode_number(3, length)))


def encode_lists(chunk: Lists, numbers: np.ndarray) -> Iterator[bytes]:
    """Yields the messages of some terms; `numbers` are the documents' numbers in the file."""
    documents, start = numbers[chunk.documents], 0
    octets = np.empty(LONGEST_POSTING * int(np.diff(chunk.ends, prepend=0).max(initial=0)), np.uint8)
    for term, end in zip(read_names(chunk), chunk.ends.tolist(), strict=True):
        size = write_postings(documents, chunk.impacts, start, end, octets)
        head = encode_bytes(1, term) + encode_number(2, end - start)
        head += encode_number(3, int(chunk.impacts[start:end].sum(dtype=np.int64)))
        yield encode_varint(len(head) + size) + head + octets[:size].tobytes()
        start = end


def encode_number(field: int, value: int) -> bytes:
    """Encodes a field with a number from 0 on; protobuf leaves out a 0."""
    return encode_varint(field << 3) + encode_varint(value) if value else b""


def encode_bytes(field: int, value: bytes) -> bytes:
    """Encodes a field with bytes; protobuf leaves out an empty one."""
    return encode_varint(field << 3 | 2) + encode_varint(len(value)) + value if value else b""


def encode_message(message: bytes) -> bytes:
    """Encodes a message behind its length."""
    return encode_varint(len(message)) + message


def _description(index: Path) -> str:
    """Says for people how the impacts came about, as far as the index knows."""
    words = [f"impacts of {index.resolve().name}, exported by lexvl-anserini {find_version(OURS) or ''}".rstrip()]
    if (index / MANIFEST).is_file():
        manifest = read_manifest(index)
        words.append(f"encoder {manifest.encoder.name}, checkpoint {manifest.encoder.checkpoint}")
        words += [f"{name} {dict(side.effect())}" for name, side in QuantiserEntry(manifest.quantiser).sides().items()]
    return "; ".join(words)
