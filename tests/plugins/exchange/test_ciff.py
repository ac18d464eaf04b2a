"""The Common Index File Format: what we write is what protobuf writes, and every impact comes back."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoking import invoked
from lucene_indexes import DOCUMENTS, MANY_DOCUMENTS, MANY_QUERIES, TERMS, shards, stock_index
from shard_folders import Documents, write_dense_shards, write_shards

from lexvl_anserini import index as index_command
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.searching.building import build_index, delete_documents
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary
from lexvl_plugins.exchange import ciff_reading, ciff_writing
from lexvl_plugins.exchange.ciff_reading import CiffVectors
from lexvl_plugins.exchange.ciff_writing import bytes_field, delimited, export_ciff, number_field, varying
from lexvl_plugins.exchange.formats import import_file

Lists = Mapping[str, Sequence[tuple[int, int]]]


def posting(gap: int, impact: int) -> bytes:
    return bytes_field(4, number_field(1, gap) + number_field(2, impact))


def postings_list(term: str, postings: Iterable[bytes], df: int) -> bytes:
    return bytes_field(1, term.encode()) + number_field(2, df) + b"".join(postings)


def ciff(lists: Sequence[bytes], ids: Sequence[str], header: bytes | None = None) -> bytes:
    """A file of these messages; its header counts them unless another is given."""
    if header is None:
        header = b"".join(number_field(field, n) for field, n in ((1, 1), (2, len(lists)), (3, len(ids))))
    records = [number_field(1, number) + bytes_field(2, doc_id.encode()) for number, doc_id in enumerate(ids)]
    return b"".join(map(delimited, (header, *lists, *records)))


# Two terms in three documents.
SOUND = (
    postings_list("a", [posting(0, 3), posting(2, 300)], 2),
    postings_list("b", [posting(1, 1)], 1),
)
IDS = ("x", "y", "z")


def imported(content: bytes, folder: Path, name: str = "file.ciff") -> dict[str, dict[str, int]]:
    (folder / name).write_bytes(content)
    return held(folder / "out", import_file(folder / name, folder / "out", overwrite=True))


def held(folder: Path, manifest: Any) -> dict[str, dict[str, int]]:
    documents = read_impacts(folder, manifest, read_vocabulary(folder, manifest))
    return {document.doc_id: dict(document.vector) for document in documents}


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
    again = b"".join(delimited(message.SerializeToString()) for message in (header, *lists, *records))
    assert (tmp_path / "file.ciff").read_bytes() == again


@pytest.mark.parametrize("name", ["file.ciff", "file.ciff.gz", "file.ciff.zst"])
def test_every_impact_comes_back(tmp_path: Path, name: str) -> None:
    """Of an index, its file, shards of the file, and their index: equal documents, and equal lists of equal scores."""
    documents = [*MANY_DOCUMENTS, ("largest", {"big": (1 << 24) - 1}), ("é😀", {"日本": 7})]
    index = indexed(tmp_path, documents)
    export_ciff(index, tmp_path / name)
    manifest = import_file(tmp_path / name, tmp_path / "back")
    assert held(tmp_path / "back", manifest) == dict(documents)
    before, counts = read_manifest(index).counts, manifest.counts
    assert all(counts[key] == before[key] for key in ("documents", "empty", "postings", "max_impact"))
    again = build_index(tmp_path / "back", tmp_path / "again").path
    lists = []
    for folder in (index, again):
        with Searcher(folder) as searcher:
            lists.append(searcher.search([q._replace(vector=dict.fromkeys(q.vector, 1)) for q in MANY_QUERIES], k=200))
    assert lists[0] == lists[1]


def test_deleted_documents_are_left_out(tmp_path: Path) -> None:
    """The documents after a deleted one have other numbers in the file."""
    shards(tmp_path / "shards", [("d1", {"a": 1}), ("d2", {"a": 2, "b": 9}), ("d3", {"a": 3}), ("d4", {})])
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    delete_documents(index, ["d2"])
    rows = export_ciff(index, tmp_path / "file.ciff")
    assert (rows["documents"], rows["terms"], rows["postings"], rows["impacts"]) == (3, 1, 2, 4)
    manifest = import_file(tmp_path / "file.ciff", tmp_path / "back")
    assert held(tmp_path / "back", manifest) == {"d1": {"a": 1}, "d3": {"a": 3}, "d4": {}}


def test_an_index_with_marked_documents_is_exported_as_that_of_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    """Few deleted documents stay in the files, and have no place in an export."""
    monkeypatch.setattr(ciff_writing, "_description", lambda index: "")
    index = indexed(tmp_path / "all", MANY_DOCUMENTS)
    delete_documents(index, ["d3", "d11", "d7"])
    others = indexed(tmp_path / "others", [row for row in MANY_DOCUMENTS if row[0] not in ("d3", "d11", "d7")])
    for folder in (index, others):
        export_ciff(folder, folder / "x.ciff")
    assert (index / "x.ciff").read_bytes() == (others / "x.ciff").read_bytes()


def test_an_index_of_stock_is_exported_without_its_manifest(tmp_path: Path) -> None:
    """Stock leaves out documents without terms."""
    write_shards(tmp_path / "shards", DOCUMENTS)
    stock_index(tmp_path / "shards", tmp_path / "stock")
    export_ciff(tmp_path / "stock", tmp_path / "file.ciff")
    manifest = import_file(tmp_path / "file.ciff", tmp_path / "back")
    assert held(tmp_path / "back", manifest) == {doc_id: vector for doc_id, vector in DOCUMENTS if vector}


vectors = st.dictionaries(st.sampled_from(TERMS), st.integers(1, (1 << 24) - 1))


@given(documents=st.lists(vectors, min_size=1, max_size=20), span=st.integers(1, 7), chunk=st.integers(1, 9))
def test_any_postings_are_turned_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[dict[str, int]], span: int, chunk: int
) -> None:
    """In whatever spans documents are read, and however few postings are sorted at once."""
    monkeypatch.setattr(ciff_reading, "CHUNK", chunk)
    lists = []
    for term in sorted({term for vector in documents for term in vector}):
        holders = [number for number, vector in enumerate(documents) if term in vector]
        gaps = np.diff(holders, prepend=0).tolist()
        postings = [posting(gap, documents[number][term]) for gap, number in zip(gaps, holders, strict=True)]
        lists.append(postings_list(term, postings, len(holders)))
    (tmp_path / "file.ciff").write_bytes(ciff(lists, [f"d{number}" for number in range(len(documents))]))
    opened = CiffVectors(tmp_path / "file.ciff", tmp_path, span)
    back = []
    for shard in opened.shards(silent):
        for row in range(len(shard.ids)):
            vector = shard.vectors[row]
            back.append(
                (shard.ids[row], dict(zip((opened.terms[d] for d in vector.indices), vector.data, strict=True)))
            )
    assert back == [(f"d{number}", vector) for number, vector in enumerate(documents)]
    assert [path.name for path in tmp_path.iterdir()] == ["file.ciff"]


def test_fields_may_come_in_any_order_and_with_unknown_ones(tmp_path: Path) -> None:
    """As protobuf allows: postings before the term, the integer before the distance, fields of a later version."""
    unknown = number_field(9, 5) + bytes_field(10, b"later") + b"\x5d1234" + b"\x6112345678"
    backward = bytes_field(4, number_field(2, 3) + unknown) + bytes_field(4, number_field(2, 300) + number_field(1, 2))
    lists = [unknown + backward + number_field(2, 2) + bytes_field(1, b"a")]
    ids = number_field(1, 1) + bytes_field(2, b"y"), bytes_field(2, b"x") + unknown, bytes_field(2, b"z") + b"\x08\x02"
    header = unknown + b"".join(number_field(field, n) for field, n in ((3, 3), (2, 1), (1, 1)))
    content = b"".join(map(delimited, (header, *lists, *ids)))
    assert imported(content, tmp_path) == {"x": {"a": 3}, "y": {}, "z": {"a": 300}}


def test_the_manifest_says_what_the_file_does_not(tmp_path: Path) -> None:
    imported(ciff(SOUND, IDS), tmp_path)
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.encoder.name, manifest.corpus.name, manifest.corpus.documents) == ("none", "file.ciff", 3)
    assert manifest.quantiser["document"] == {"scheme": "fixed", "bits": None, "scale": 1.0, "percentile": 100.0}
    index = build_index(tmp_path / "out", tmp_path / "index").path
    with (
        Searcher(index) as searcher,
        pytest.raises(UsageError, match="without an encoder.*name their encoder"),
    ):
        searcher.search("a text")


HEADER = number_field(1, 1) + number_field(2, 2) + number_field(3, 3)
NEGATIVE = bytes_field(4, b"\x10" + b"\xff" * 9 + b"\x01")
FLOAT = bytes_field(4, b"\x15" + struct.pack("<f", 1.5))
BROKEN = {
    "negative": (
        ciff([postings_list("a", [NEGATIVE], 1)], IDS),
        "list 1 of 1, term 'a': document 0 has the impact -1,",
    ),
    "zero": (ciff([postings_list("a", [posting(2, 0)], 1)], IDS), "document 2 has the impact 0, expected an integer"),
    "too large": (ciff([postings_list("a", [posting(1, 1 << 24)], 1)], IDS), "impact 16,777,216, .* to 16,777,215"),
    "a float": (ciff([postings_list("a", [FLOAT], 1)], IDS), "no integer of protobuf; CIFF has integers, quantise"),
    "beyond": (
        ciff([postings_list("a", [posting(3, 1)], 1)], IDS),
        "a document 3 after .* the header says 3 documents",
    ),
    "repeated": (ciff([postings_list("a", [posting(1, 1), posting(0, 2)], 2)], IDS), "a document 0 after document 1"),
    "frequency": (ciff([postings_list("a", [posting(1, 1)], 2)], IDS), "1 postings, its document frequency says 2"),
    "a term twice": (ciff([SOUND[0], SOUND[0]], IDS), "two dimensions have the term 'a'"),
    "a term with a blank": (ciff([postings_list("a b", [posting(0, 1)], 1)], IDS), "white space"),
    "no term": (ciff([postings_list("", [posting(0, 1)], 1)], IDS), "term '' is empty"),
    "more": (ciff(SOUND, IDS) + b"\x00", "more after document record 3"),
    "fewer lists": (ciff(SOUND[:1], IDS, HEADER), "field 2 of|cut off|wire type|list 2 of 2"),
    "fewer records": (ciff(SOUND, IDS[:2], HEADER), "cut off or damaged in document record 3 of 3"),
    "no documents": (ciff([], []), "header with version 1, num_postings_lists 0, num_docs 0; expected version 1"),
    "version": (ciff([], IDS, number_field(1, 2) + number_field(3, 3)), "header with version 2"),
    "empty": (b"", "cut off or damaged in the header"),
    "an id twice": (ciff(SOUND, ("x", "y", "x")), "document id 'x' occurs twice"),
    "an id with a blank": (ciff(SOUND, ("x", "y y", "z")), "record 2 of 3: white space in id 'y y'.*--escape-ids"),
    "text": (b'{"id": "d1", "contents": "", "vector": {"a": 1}}\n' * 9, "file.ciff: .*the header"),
    "a length beyond all": (varying((1 << 31) - 1) + b"\x08\x01", "cut off or damaged in the header"),
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


def test_two_records_of_a_document_are_refused(tmp_path: Path) -> None:
    records = [number_field(1, number) + bytes_field(2, name) for number, name in ((0, b"x"), (2, b"y"), (2, b"z"))]
    content = b"".join(map(delimited, (HEADER, *SOUND, *records)))
    with pytest.raises(DataError, match="two records of document 2, 'y' and 'z'"):
        imported(content, tmp_path)


def test_an_output_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """Repeated it is finished; another file needs --overwrite, and a broken one leaves what was there."""
    before = imported(ciff(SOUND, IDS), tmp_path)
    (tmp_path / "other.ciff").write_bytes(ciff(SOUND, ("p", "q", "r")))
    with pytest.raises(ArtefactError, match="another request.*--overwrite"):
        import_file(tmp_path / "other.ciff", tmp_path / "out")
    (tmp_path / "other.ciff").write_bytes(ciff(SOUND, IDS)[:-1])
    with pytest.raises(DataError, match="cut off"):
        import_file(tmp_path / "other.ciff", tmp_path / "out", overwrite=True)
    assert held(tmp_path / "out", import_file(tmp_path / "file.ciff", tmp_path / "out")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.ciff", "other.ciff", "out"]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    index = indexed(tmp_path, DOCUMENTS)
    (tmp_path / "there.ciff").write_bytes(b"there")
    with pytest.raises(ArtefactError, match="there.ciff: exists; --overwrite"):
        export_ciff(index, tmp_path / "there.ciff")
    assert (tmp_path / "there.ciff").read_bytes() == b"there"
    with pytest.raises(ArtefactError, match="no such index"):
        export_ciff(tmp_path / "absent", tmp_path / "file.ciff")
    with pytest.raises(ArtefactError, match="no Lucene index; build one"):
        export_ciff(tmp_path / "shards", tmp_path / "file.ciff")
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 0.5])])
    dense = build_index(tmp_path / "dense", tmp_path / "flat").path
    with pytest.raises(UsageError, match="is dense; CIFF has postings of terms"):
        export_ciff(dense, tmp_path / "file.ciff")
    assert not (tmp_path / "file.ciff").exists()


def test_index_from_ciff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards go to SHARDS or to impacts/; a second call finds both finished."""
    monkeypatch.chdir(tmp_path)
    Path("file.ciff").write_bytes(ciff(SOUND, IDS))
    for _ in range(2):
        assert "documents" in invoked(index_command.command, "--from-ciff", "file.ciff")
    with Searcher("indexes/file") as searcher:
        assert searcher.engine.impacts("z", ["a", "b"]) == {"a": 300}
    invoked(index_command.command, "impacts/mine", "--from-ciff", "file.ciff", "--index", "indexes/mine")
    assert read_manifest(Path("indexes/mine")) == read_manifest(Path("impacts/mine"))
    with pytest.raises(UsageError, match="writes one folder"):
        invoked(index_command.command, "a", "b", "--from-ciff", "file.ciff")
