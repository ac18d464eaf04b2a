"""Changed inputs are never "finished already": what is encoded is digested, and the digests are remembered safely."""

import json
import os
import sqlite3
import tarfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from byte_towers import SMALL, Bytes, Stored, Texts, documents_of, encode, tree
from corpus_folders import write_table

from lexvl_anserini.data.digests import MEMORY, RACY_NS, FileDigests
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import EncodedCorpus, read_manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document
from lexvl_anserini.shards.encoding import UNREADABLE, Covered
from lexvl_anserini.shards.layout import Part, merge_corpora


@pytest.fixture(autouse=True)
def own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))


@pytest.fixture
def pictures(tmp_path):
    """Four files that differ in their first byte."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / f"in/{number}.png").write_bytes(bytes([number + 1, 9, 9]))
    return tmp_path / "in"


def aged(path, seconds=60):
    """A file whose last change is some time ago for whoever looks at its content's time."""
    when = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(when, when))


def test_replaced_pixels_are_another_request(tmp_path, pictures, caplog):
    caplog.set_level("INFO", "lexvl_anserini")
    encode(tmp_path / "out", documents_of(pictures))
    encode(tmp_path / "out", documents_of(pictures))
    assert caplog.messages[-1].endswith("finished already, nothing to do")
    before = tree(tmp_path / "out")
    state = (pictures / "2.png").stat()
    (pictures / "2.png").write_bytes(b"\x07\x09\x09")
    os.utime(pictures / "2.png", ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(ArtefactError, match=r'holds shards of another request \(pictures, vectors or metadata: "'):
        encode(tmp_path / "out", documents_of(pictures))
    assert tree(tmp_path / "out") == before
    encode(tmp_path / "out", documents_of(pictures), overwrite=True)
    encode(tmp_path / "fresh", documents_of(pictures))
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh") != before


def test_the_folder_of_pictures_and_their_times_do_not_matter(tmp_path, pictures):
    encode(tmp_path / "out", documents_of(pictures))
    before = tree(tmp_path / "out")
    pictures.rename(tmp_path / "moved")
    for path in (tmp_path / "moved").iterdir():
        aged(path)
    encode(tmp_path / "out", documents_of(tmp_path / "moved"))
    assert tree(tmp_path / "out") == before


def test_a_picture_in_a_tar_counts_by_its_bytes(tmp_path, pictures):
    def packed():
        with tarfile.open(tmp_path / "in.tar", "w") as archive:
            for path in sorted(pictures.iterdir()):
                archive.add(path, path.name)
        return [Document(path.name, image=f"{tmp_path}/in.tar::{path.name}") for path in sorted(pictures.iterdir())]

    encode(tmp_path / "out", packed())
    aged(pictures / "1.png")
    encode(tmp_path / "out", packed())  # another archive of the same pictures
    (pictures / "1.png").write_bytes(b"\x07\x09\x09")
    with pytest.raises(ArtefactError, match="another request"):
        encode(tmp_path / "out", packed())


def test_metadata_counts_where_it_is_stored(tmp_path, pictures):
    kept = replace(SMALL, metadata=True)
    one, two = (documents_of(pictures, metadata={"year": year}) for year in (1, 2))
    encode(tmp_path / "stored", one, layout=kept)
    encode(tmp_path / "stored", one, layout=kept)
    with pytest.raises(ArtefactError, match="another request"):
        encode(tmp_path / "stored", two, layout=kept)
    encode(tmp_path / "texts", one, Texts(), layout=kept)
    with pytest.raises(ArtefactError, match="another request"):
        encode(tmp_path / "texts", two, Texts(), layout=kept)
    encode(tmp_path / "without", one)
    encode(tmp_path / "without", two)


@pytest.mark.parametrize("change", [{"title": "t"}, {"text": "abd"}, {"doc_id": "9.png"}])
def test_titles_texts_and_ids_count(tmp_path, pictures, change):
    documents = documents_of(pictures)
    encode(tmp_path / "out", documents)
    with pytest.raises(ArtefactError, match="another request .texts: "):
        encode(tmp_path / "out", [*documents[:-1], documents[-1]._replace(**change)])


def test_vectors_count_by_their_table(tmp_path):
    table = tmp_path / "img_embs.parquet"
    documents = [Document(key, image=f"{table}::{key}") for key in "ab"]
    write_table(table, ["a", "b"], np.array([[1, 2, 3], [4, 5, 6]]))
    encode(tmp_path / "out", documents, Stored())
    encode(tmp_path / "out", documents, Stored())
    write_table(table, ["a", "b"], np.array([[1, 2, 3], [4, 5, 7]]))
    with pytest.raises(ArtefactError, match="another request"):
        encode(tmp_path / "out", documents, Stored())


def test_pictures_that_the_encoder_does_not_read_are_not_read(tmp_path, pictures):
    documents = documents_of(pictures)
    manifest = encode(tmp_path / "out", documents, Texts())
    assert "contents" not in manifest.corpus
    for path in pictures.iterdir():
        path.unlink()
    encode(tmp_path / "out", documents, Texts())
    assert not (tmp_path / "data").exists()


def test_a_resume_never_mixes_old_and_new_pictures(tmp_path, pictures):
    class Killed(Bytes):
        def weights(self, inputs, *others, **options):
            if any(reference.endswith("3.png") for reference in inputs) and len(inputs) < 4:
                raise KeyboardInterrupt
            return super().weights(inputs)

    documents = documents_of(pictures)
    with pytest.raises(KeyboardInterrupt):
        encode(tmp_path / "out", documents, Killed())
    assert (tmp_path / "out/docs/shard-00000.jsonl").is_file()
    before = (pictures / "0.png").read_bytes()
    (pictures / "0.png").write_bytes(b"\x63\x09\x09")
    with pytest.raises(ArtefactError, match="the sample that calibrates impacts changed"):
        encode(tmp_path / "out", documents)
    (tmp_path / "plan").mkdir()
    plan = json.loads((tmp_path / "out/unfinished.json").read_text())
    (tmp_path / "plan/unfinished.json").write_text(json.dumps({**plan, "shards": []}))
    encode(tmp_path / "plan", documents)  # a plan without a shard has cost no time
    (pictures / "0.png").write_bytes(before)
    encode(tmp_path / "out", documents)
    encode(tmp_path / "whole", documents)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("repaired,again", [("3.png", 2), ("0.png", 4)])
def test_after_a_repair_only_the_shards_of_changed_pictures_are_encoded_again(tmp_path, pictures, repaired, again):
    """A picture that stops a command is repaired; of two shards of two, that with other bytes is encoded."""
    plain = Quantiser.named("fixed", 8, 8, 1.0, 100.0)
    read = []

    class Strict(Bytes):
        def weights(self, inputs, *others, **options):
            if any(reference.endswith("3.png") and Path(reference).read_bytes() == b"" for reference in inputs):
                raise DataError("3.png: a damaged picture")
            read.extend(inputs)
            return super().weights(inputs)

    whole = (pictures / "3.png").read_bytes()
    (pictures / "3.png").write_bytes(b"")
    with pytest.raises(DataError, match="3.png"):
        encode(tmp_path / "out", documents_of(pictures), Strict(), quantiser=plain)
    (pictures / "3.png").write_bytes(whole)
    if repaired != "3.png":
        (pictures / repaired).write_bytes(b"\x07\x09\x09")
    read.clear()
    encode(tmp_path / "out", documents_of(pictures), Strict(), quantiser=plain)
    assert len(read) == again
    encode(tmp_path / "whole", documents_of(pictures), quantiser=plain)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("changed", ["0.png", "3.png"])
def test_a_picture_that_changes_while_it_is_encoded(tmp_path, pictures, changed):
    class Changing(Bytes):
        def weights(self, inputs, *others, **options):
            if len(inputs) < 4:  # not the sample that calibrates
                (pictures / changed).write_bytes(b"\x07\x09\x09")
            return super().weights(inputs)

    with pytest.raises(ArtefactError, match="the corpus changed while it was read; all shards are removed"):
        encode(tmp_path / "out", documents_of(pictures), Changing())
    assert tree(tmp_path / "out") == {}


def test_parts_cover_their_own_pictures(tmp_path, pictures):
    corpora = [encode(tmp_path / str(n), documents_of(pictures), part=Part(n, 2)).corpus for n in range(2)]
    (pictures / "3.png").write_bytes(b"\x07\x09\x09")
    encode(tmp_path / "0", documents_of(pictures), part=Part(0, 2))
    with pytest.raises(ArtefactError, match="another request"):
        encode(tmp_path / "1", documents_of(pictures), part=Part(1, 2))
    whole = merge_corpora(corpora, 4)
    assert "part" not in whole and whole.contents not in (None, corpora[0].contents, corpora[1].contents)
    older = EncodedCorpus({key: value for key, value in corpora[0].items() if key != "contents"})
    assert "contents" not in merge_corpora([older, corpora[1]], 4)


def test_missing_parts_are_named_beside_a_part_that_is_stored_twice(caplog):
    part = {"name": "c", "documents": 9, "digest": "d", "part": {"id": 1, "num": 3, "first": 3, "documents": 3}}
    whole = merge_corpora([EncodedCorpus(part), EncodedCorpus(part)], 6)
    assert (whole.documents, len(whole["parts"])) == (6, 2)
    assert "parts 0, 2 of 3 of c are not among these folders" in caplog.text


def test_an_older_manifest_is_finished_and_says_what_it_does_not_cover(tmp_path, pictures, caplog):
    encode(tmp_path / "out", documents_of(pictures))
    path = tmp_path / "out/manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["corpus"]["contents"]
    path.write_text(json.dumps(manifest))
    (pictures / "3.png").write_bytes(b"\x07\x09\x09")
    caplog.set_level("INFO", "lexvl_anserini")
    encode(tmp_path / "out", documents_of(pictures))
    said = "an older version wrote it, whose digest does not cover pixels, vectors and metadata"
    assert [message for message in caplog.messages if "older version" in message] == [f"{tmp_path / 'out'}: {said}"]
    (tmp_path / "out/docs/shard-00001.jsonl").unlink()
    encode(tmp_path / "out", documents_of(pictures))
    assert read_manifest(tmp_path / "out").corpus.contents is None


def test_a_picture_that_cannot_be_read_counts_as_such(tmp_path, pictures):
    data = (pictures / "3.png").read_bytes()
    (pictures / "3.png").unlink()
    document = Document("3.png", image=str(pictures / "3.png"))
    with FileDigests() as files:
        covered = Covered(Bytes(), False, files)
        assert covered.fields(document) == (UNREADABLE, None)
        os.mkfifo(pictures / "3.png")
        assert covered.fields(document) == (UNREADABLE, None)
        (pictures / "3.png").unlink()
        (pictures / "3.png").write_bytes(data)
        assert covered.fields(document) == (compute_sha256(pictures / "3.png"), None)


@pytest.mark.parametrize(
    "metadata", [{"deep": [None]}, {"big": 1 << 70}, {1: "key"}, {"odd": object()}], ids=["deep", "big", "key", "odd"]
)
def test_metadata_that_cannot_be_stored_is_refused_before_anything_is_encoded(tmp_path, pictures, metadata):
    for _ in range(300 if "deep" in metadata else 0):
        metadata = {"deep": metadata}
    documents = documents_of(pictures, metadata=metadata)
    with pytest.raises(DataError, match="document '0.png': its metadata cannot be stored as JSON .*--store-metadata"):
        encode(tmp_path / "out", documents, layout=replace(SMALL, metadata=True))
    assert tree(tmp_path / "out") == {}
    encode(tmp_path / "out", documents)


def remembered(memory, paths):
    """The digests, and how many bytes were read."""
    with FileDigests(memory) as files:
        found = [files.of(str(path)) for path in paths]
        return found, files.read_bytes


@pytest.fixture
def old(pictures, monkeypatch):
    """The pictures, seen by a clock that is late enough for their digests to be remembered."""
    from lexvl_anserini.data import digests

    now = digests.time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 2 * RACY_NS)
    return sorted(pictures.iterdir())


def test_a_second_call_reads_nothing(tmp_path, old):
    expected = [compute_sha256(path) for path in old]
    memory = tmp_path / "new/folder" / MEMORY
    assert remembered(memory, old) == (expected, 12)
    assert remembered(memory, old) == (expected, 0)
    aged(old[0])
    assert remembered(memory, old) == (expected, 3)
    old[1].unlink()
    assert remembered(memory, old)[0] == [expected[0], None, *expected[2:]]


def test_what_has_just_changed_is_not_remembered(tmp_path, pictures):
    paths = sorted(pictures.iterdir())
    aged(paths[0])  # its last change is of its times
    assert remembered(tmp_path / MEMORY, paths)[1] == remembered(tmp_path / MEMORY, paths)[1] == 12


def test_a_memory_that_fails_costs_time_only(tmp_path, old):
    expected = [compute_sha256(path) for path in old]
    memory = tmp_path / MEMORY
    memory.write_bytes(b"no database" * 100)
    assert remembered(memory, old) == (expected, 12) and not memory.exists()
    remembered(memory, old)
    data = bytearray(memory.read_bytes())
    at = data.index(bytes.fromhex(expected[1]))
    data[at] ^= 1  # one digest of four
    memory.write_bytes(data)
    assert remembered(memory, old) == (expected, 3)
    assert remembered(memory, old) == (expected, 0)
    for damage in (memory.read_bytes()[:3000], bytes(5000), b""):
        memory.write_bytes(damage)
        assert remembered(memory, old)[0] == expected
    (tmp_path / "file").write_bytes(b"-")
    assert remembered(tmp_path / "file" / MEMORY, old) == (expected, 12)
    (tmp_path / "folder").mkdir()
    assert remembered(tmp_path / "folder", old) == (expected, 12)


def test_a_memory_that_another_process_locks_is_not_waited_for(tmp_path, old, monkeypatch):
    monkeypatch.setattr("lexvl_anserini.data.digests.PATIENCE_S", 0.01)
    memory = tmp_path / MEMORY
    remembered(memory, old[:1])
    with sqlite3.connect(memory) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert remembered(memory, old)[1] == 12
    assert remembered(memory, old)[1] == 9


def fill_memory(memory, paths):
    import time

    late = time.time_ns() + 2 * RACY_NS
    time.time_ns = lambda: late
    return remembered(memory, paths)[0]


def test_several_processes_share_a_memory(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(300)]
    for path in paths:
        path.write_bytes(path.name.encode())
    expected = [compute_sha256(path) for path in paths]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(fill_memory, tmp_path / MEMORY, paths[150 * part :]) for part in range(2)]
        assert [job.result() for job in jobs] == [expected[150 * part :] for part in range(2)]
    assert remembered(tmp_path / MEMORY, paths) == (expected, 0)
