"""The Common Index File Format: what we write is what protobuf writes, and every impact comes back."""

import gzip
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoking import invoked
from lucene_indexes import DOCUMENTS, MANY_DOCUMENTS, MANY_QUERIES, TERMS, shards, stock_index
from shard_folders import Documents, read_all, write_dense_shards, write_shards

from lexvl_anserini import index as index_command
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.searching.building import build_index, delete_documents
from lexvl_anserini.searching.searcher import Searcher
from lexvl_plugins.exchange import ciff_reading, ciff_writing, import_shards
from lexvl_plugins.exchange.ciff_reading import CiffVectors
from lexvl_plugins.exchange.ciff_writing import encode_bytes, encode_message, encode_number, encode_varint, export_ciff
from lexvl_plugins.exchange.importing import import_file


def posting(gap: int, impact: int) -> bytes:
    return encode_bytes(4, encode_number(1, gap) + encode_number(2, impact))


def postings_list(term: str, postings: Iterable[bytes], df: int) -> bytes:
    return encode_bytes(1, term.encode()) + encode_number(2, df) + b"".join(postings)


def ciff(lists: Sequence[bytes], ids: Sequence[str], header: bytes | None = None) -> bytes:
    if header is None:
        header = b"".join(encode_number(field, n) for field, n in ((1, 1), (2, len(lists)), (3, len(ids))))
    records = [encode_number(1, number) + encode_bytes(2, doc_id.encode()) for number, doc_id in enumerate(ids)]
    return b"".join(map(encode_message, (header, *lists, *records)))


# Two terms in three documents.
SOUND = (postings_list("a", [posting(0, 3), posting(2, 300)], 2), postings_list("b", [posting(1, 1)], 1))
IDS = ("x", "y", "z")


def imported(content: bytes, folder: Path, name: str = "file.ciff") -> dict[str, dict[str, int]]:
    (folder / name).write_bytes(content)
    import_file(folder / name, folder / "out", overwrite=True)
    return read_all(folder / "out")


def indexed(folder: Path, documents: Documents, **options: Any) -> Path:
    write_shards(folder / "shards", documents)
    return build_index(folder / "shards", folder / "index", **options).path


def test_the_bytes_of_a_file(tmp_path: Path) -> None:
    """The example of the format: the distance 0 of the first document is left out, as protobuf does."""
    export_ciff(indexed(tmp_path, [("x", {"a": 3}), ("y", {}), ("z", {"a": 300})]), tmp_path / "file.ciff")
    content = (tmp_path / "file.ciff").read_bytes()
    expected = b"\x0a\x01a\x10\x02\x18\xaf\x02" + b"\x22\x02\x10\x03" + b"\x22\x05\x08\x02\x10\xac\x02"
    records = b"\x05\x12\x01x\x18\x03" + b"\x05\x08\x01\x12\x01y" + b"\x08\x08\x02\x12\x01z\x18\xac\x02"
    assert content.endswith(bytes([len(expected)]) + expected + records)
    header = b"\x08\x01\x10\x01\x18\x03\x20\x01\x28\x03\x30\xaf\x02\x39" + struct.pack("<d", 303 / 3) + b"\x42"
    assert content[1:].startswith(header)


@pytest.mark.parametrize("documents", [DOCUMENTS, MANY_DOCUMENTS], ids=["few", "many"])
def test_protobuf_reads_and_writes_the_same_bytes(tmp_path: Path, documents: Documents) -> None:
    reading = pytest.importorskip("ciff_toolkit.read", reason="ciff-toolkit is not installed: pip install --no-deps")
    export_ciff(indexed(tmp_path, documents), tmp_path / "file.ciff")
    with reading.CiffReader(str(tmp_path / "file.ciff")) as reader:
        header, lists, records = reader.header, list(reader.read_postings_lists()), list(reader.read_documents())
    vectors: dict[str, dict[str, int]] = {record.collection_docid: {} for record in records}
    for each in lists:
        numbers = np.cumsum([p.docid for p in each.postings])
        for number, p in zip(numbers, each.postings, strict=True):
            vectors[records[number].collection_docid][each.term] = p.tf
        assert (each.df, each.cf) == (len(each.postings), sum(p.tf for p in each.postings))
    assert vectors == dict(documents)
    assert [record.docid for record in records] == list(range(len(documents)))
    assert [record.doclength for record in records] == [sum(vector.values()) for _, vector in documents]
    terms = [each.term.encode() for each in lists]
    assert terms == sorted(terms)
    total = sum(record.doclength for record in records)
    assert (header.version, header.num_postings_lists, header.total_postings_lists) == (1, len(terms), len(terms))
    assert (header.num_docs, header.total_docs) == (len(documents), len(documents))
    assert (header.total_terms_in_collection, header.average_doclength) == (total, total / len(documents))
    again = b"".join(encode_message(message.SerializeToString()) for message in (header, *lists, *records))
    assert (tmp_path / "file.ciff").read_bytes() == again


@pytest.mark.parametrize("name", ["file.ciff", "file.ciff.gz", "file.ciff.zst"])
def test_every_impact_comes_back(tmp_path: Path, name: str) -> None:
    """Of an index, its file, shards of the file, and their index: equal documents, and equal lists of equal scores."""
    documents = [*MANY_DOCUMENTS, ("largest", {"big": (1 << 24) - 1}), ("é😀", {"日本": 7})]
    index = indexed(tmp_path, documents)
    export_ciff(index, tmp_path / name)
    manifest = import_file(tmp_path / name, tmp_path / "back")
    assert read_all(tmp_path / "back") == dict(documents)
    before, counts = read_manifest(index).counts, manifest.counts
    assert all(counts[key] == before[key] for key in ("documents", "empty", "postings", "max_impact"))
    lists = []
    for folder in (index, build_index(tmp_path / "back", tmp_path / "again").path):
        with Searcher(folder) as searcher:
            lists.append(searcher.search([q._replace(vector=dict.fromkeys(q.vector, 1)) for q in MANY_QUERIES], k=200))
    assert lists[0] == lists[1]


def test_deleted_documents_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents after a deleted one have other numbers, and the file is that of an index of the others."""
    shards(tmp_path / "shards", [("d1", {"a": 1}), ("d2", {"a": 2, "b": 9}), ("d3", {"a": 3}), ("d4", {})])
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    delete_documents(index, ["d2"])
    rows = export_ciff(index, tmp_path / "file.ciff")
    assert (rows["documents"], rows["terms"], rows["postings"], rows["impacts"]) == (3, 1, 2, 4)
    import_file(tmp_path / "file.ciff", tmp_path / "back")
    assert read_all(tmp_path / "back") == {"d1": {"a": 1}, "d3": {"a": 3}, "d4": {}}
    monkeypatch.setattr(ciff_writing, "_description", lambda index: "")
    many = indexed(tmp_path / "all", MANY_DOCUMENTS)
    delete_documents(many, ["d3", "d11", "d7"])
    others = indexed(tmp_path / "others", [row for row in MANY_DOCUMENTS if row[0] not in ("d3", "d11", "d7")])
    for folder in (many, others):
        export_ciff(folder, folder / "x.ciff")
    assert (many / "x.ciff").read_bytes() == (others / "x.ciff").read_bytes()


def test_an_index_of_stock_is_exported_without_its_manifest(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    stock_index(tmp_path / "shards", tmp_path / "stock")
    export_ciff(tmp_path / "stock", tmp_path / "file.ciff")
    import_file(tmp_path / "file.ciff", tmp_path / "back")
    assert read_all(tmp_path / "back") == {doc_id: vector for doc_id, vector in DOCUMENTS if vector}


vectors = st.dictionaries(st.sampled_from(TERMS), st.integers(1, (1 << 24) - 1))


@given(documents=st.lists(vectors, min_size=1, max_size=20), span=st.integers(1, 7), chunk=st.integers(1, 9))
def test_any_postings_are_turned_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[dict[str, int]], span: int, chunk: int
) -> None:
    monkeypatch.setattr(ciff_reading, "CHUNK", chunk)
    lists = []
    for term in sorted({term for vector in documents for term in vector}):
        holders = [number for number, vector in enumerate(documents) if term in vector]
        gaps = np.diff(holders, prepend=0).tolist()
        postings = [posting(gap, documents[number][term]) for gap, number in zip(gaps, holders, strict=True)]
        lists.append(postings_list(term, postings, len(holders)))
    (tmp_path / "file.ciff").write_bytes(ciff(lists, [f"d{number}" for number in range(len(documents))]))
    opened = CiffVectors(tmp_path / "file.ciff", tmp_path, span)
    rows = [pair for shard in opened.read_shards(silent) for pair in zip(shard.ids, shard.vectors, strict=True)]
    back = [(d, dict(zip((opened.terms[dim] for dim in r.indices), r.data, strict=True))) for d, r in rows]
    assert back == [(f"d{number}", vector) for number, vector in enumerate(documents)]
    assert [path.name for path in tmp_path.iterdir()] == ["file.ciff"]


def test_fields_may_come_in_any_order_and_with_unknown_ones(tmp_path: Path) -> None:
    """As protobuf allows: postings before the term, the integer before the distance, fields of a later version."""
    unknown = encode_number(9, 5) + encode_bytes(10, b"later") + b"\x5d1234" + b"\x6112345678"
    first, second = encode_number(2, 3) + unknown, encode_number(2, 300) + encode_number(1, 2)
    backward = encode_bytes(4, first) + encode_bytes(4, second)
    lists = [unknown + backward + encode_number(2, 2) + encode_bytes(1, b"a")]
    y, x, z = (encode_bytes(2, name) for name in (b"y", b"x", b"z"))
    header = unknown + b"".join(encode_number(field, n) for field, n in ((3, 3), (2, 1), (1, 1)))
    messages = (header, *lists, encode_number(1, 1) + y, x + unknown, z + b"\x08\x02")
    assert imported(b"".join(map(encode_message, messages)), tmp_path) == {"x": {"a": 3}, "y": {}, "z": {"a": 300}}


def test_the_manifest_says_what_the_file_does_not(tmp_path: Path) -> None:
    imported(ciff(SOUND, IDS), tmp_path)
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.encoder.name, manifest.corpus.name, manifest.corpus.documents) == ("none", "file.ciff", 3)
    assert manifest.quantiser["document"] == {"scheme": "fixed", "bits": None, "scale": 1.0, "percentile": 100.0}
    index = build_index(tmp_path / "out", tmp_path / "index").path
    with Searcher(index) as searcher, pytest.raises(UsageError, match="without an encoder"):
        searcher.search("a text")


HEADER = encode_number(1, 1) + encode_number(2, 2) + encode_number(3, 3)
NEGATIVE = encode_bytes(4, b"\x10" + b"\xff" * 9 + b"\x01")
FLOAT = encode_bytes(4, b"\x15" + struct.pack("<f", 1.5))
TWICE = [encode_number(1, 2) + encode_bytes(2, name) for name in (b"x", b"y", b"z")]
# The postings of the only term, their number, and a word of the error.
POSTINGS = {
    "negative": ([NEGATIVE], 1, "list 1 of 1, term 'a': document 0 has the impact -1,"),
    "zero": ([posting(2, 0)], 1, "document 2 has the impact 0, expected an integer"),
    "too large": ([posting(1, 1 << 24)], 1, "impact 16,777,216, .* to 16,777,215"),
    "a float": ([FLOAT], 1, "no integer of protobuf"),
    "beyond": ([posting(3, 1)], 1, "a document 3 after .* the header says 3 documents"),
    "repeated": ([posting(1, 1), posting(0, 2)], 2, "a document 0 after document 1"),
    "frequency": ([posting(1, 1)], 2, "1 postings, its document frequency says 2"),
}
BROKEN = {name: (ciff([postings_list("a", *each)], IDS), message) for name, (*each, message) in POSTINGS.items()} | {
    "a term twice": (ciff([SOUND[0], SOUND[0]], IDS), "two dimensions have the term 'a'"),
    "a term with a blank": (ciff([postings_list("a b", [posting(0, 1)], 1)], IDS), "white space"),
    "no term": (ciff([postings_list("", [posting(0, 1)], 1)], IDS), "term '' is empty"),
    "more": (ciff(SOUND, IDS) + b"\x00", "more after document record 3"),
    "fewer lists": (ciff(SOUND[:1], IDS, HEADER), "field 2 of|cut off|wire type|list 2 of 2"),
    "fewer records": (ciff(SOUND, IDS[:2], HEADER), "cut off or damaged in document record 3 of 3"),
    "two records": (b"".join(map(encode_message, (HEADER, *SOUND, *TWICE))), "two records of document 2, .x. and .y."),
    "no documents": (ciff([], []), "header with version 1, num_postings_lists 0, num_docs 0; expected version 1"),
    "version": (ciff([], IDS, encode_number(1, 2) + encode_number(3, 3)), "header with version 2"),
    "empty": (b"", "cut off or damaged in the header"),
    "an id twice": (ciff(SOUND, ("x", "y", "x")), "document id 'x' occurs twice"),
    "an id with a blank": (ciff(SOUND, ("x", "y y", "z")), "record 2 of 3: white space in id 'y y'.*--escape-ids"),
    "text": (b'{"id": "d1", "contents": "", "vector": {"a": 1}}\n' * 9, "file.ciff: .*the header"),
    "a length beyond all": (encode_varint((1 << 31) - 1) + b"\x08\x01", "cut off or damaged in the header"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_and_writes_nothing(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    with pytest.raises(LexvlError, match=message) as error:
        imported(content, tmp_path)
    assert "\n" not in str(error.value) and "file.ciff" in str(error.value) or name == "an id twice"
    assert [path.name for path in tmp_path.iterdir()] == ["file.ciff"]


@pytest.mark.parametrize("packing", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path, packing: Any) -> None:
    content, name = packing(ciff(SOUND, IDS)), "file.ciff" if packing is bytes else "file.ciff.gz"
    assert imported(content, tmp_path, name) == {"x": {"a": 3}, "y": {"b": 1}, "z": {"a": 300}}
    for size in range(len(content)):
        (tmp_path / name).write_bytes(content[:size])
        with pytest.raises(DataError, match="cut off|damaged|num_docs|more after|frequency|no CIFF|impact|id"):
            CiffVectors(tmp_path / name, tmp_path, 64)
        (tmp_path / "postings.part").unlink(missing_ok=True)


def test_an_output_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """Repeated it is finished; another file needs --overwrite, and a broken one leaves what was there."""
    before = imported(ciff(SOUND, IDS), tmp_path)
    (tmp_path / "other.ciff").write_bytes(ciff(SOUND, ("p", "q", "r")))
    with pytest.raises(ArtefactError, match="another request.*--overwrite"):
        import_file(tmp_path / "other.ciff", tmp_path / "out")
    (tmp_path / "other.ciff").write_bytes(ciff(SOUND, IDS)[:-1])
    with pytest.raises(DataError, match="cut off"):
        import_file(tmp_path / "other.ciff", tmp_path / "out", overwrite=True)
    import_file(tmp_path / "file.ciff", tmp_path / "out")
    assert read_all(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.ciff", "other.ciff", "out"]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    index = indexed(tmp_path, DOCUMENTS)
    (tmp_path / "there.ciff").write_bytes(b"there")
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 0.5])])
    dense = build_index(tmp_path / "dense", tmp_path / "flat").path
    for source, name, kind, message in (
        (index, "there.ciff", ArtefactError, "there.ciff: exists; --overwrite"),
        (tmp_path / "absent", "file.ciff", ArtefactError, "no such index"),
        (tmp_path / "shards", "file.ciff", ArtefactError, "no Lucene index; build one"),
        (dense, "file.ciff", UsageError, "is dense; CIFF has postings of terms"),
    ):
        with pytest.raises(kind, match=message):
            export_ciff(source, tmp_path / name)
    assert (tmp_path / "there.ciff").read_bytes() == b"there" and not (tmp_path / "file.ciff").exists()


def test_a_file_is_imported_and_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.ciff").write_bytes(ciff(SOUND, IDS))
    for _ in range(2):
        invoked(import_shards.command, "file.ciff")
        assert "documents" in invoked(index_command.command, "impacts/file", "--index", "indexes/file")
    with Searcher("indexes/file") as searcher:
        assert searcher.engine.impacts("z", ["a", "b"]) == {"a": 300}
