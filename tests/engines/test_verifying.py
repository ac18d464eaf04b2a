"""Damage: an answer counts only if every file has its checksum; what `index --check` finds, and nothing is invented."""

import gc
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from lucene_indexes import MANY_DOCUMENTS, MANY_QUERIES, MANY_TERMS, flip
from shard_folders import write_dense_shards, write_shards

from lexvl_anserini.data import digests
from lexvl_anserini.engines import verifying
from lexvl_anserini.engines.engine import open_index
from lexvl_anserini.engines.index_folder import (
    RESIDENT,
    read_commit_id,
    read_creator,
    read_report,
    report_digest,
    write_report,
)
from lexvl_anserini.engines.jvm import get_our_class
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import make_similarity
from lexvl_anserini.engines.resident.choosing import NEVER, VARIABLE
from lexvl_anserini.ground.errors import ArtefactError, LexvlError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery
from lexvl_anserini.queries.clauses import Not, Term
from lexvl_anserini.queries.query_source import check_terms
from lexvl_anserini.searching.building import build_index, check_index, delete_documents
from lexvl_anserini.searching.searcher import Searcher, search_index


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verified")
    write_shards(folder / "shards", MANY_DOCUMENTS, terms=MANY_TERMS)
    return build_index(folder / "shards", folder / "index", term_vectors=True).path


@pytest.fixture
def index(built, tmp_path, monkeypatch):
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv(VARIABLE, NEVER)  # Lucene's files are compared where Lucene opens them
    return Path(shutil.copytree(built, tmp_path / "index"))


@pytest.fixture
def large(index, monkeypatch):
    """An index that counts as one above 1 GiB."""
    monkeypatch.setattr(verifying, "VERIFIED_BYTES", 0)
    return index


def file_of(index, suffix):
    [path] = index.glob(f"*{suffix}")
    return path


def all_lists(index):
    return list(search_index(index, MANY_QUERIES, 1000))


def test_no_answer_of_a_large_damaged_index_counts(large):
    sound = all_lists(large)
    # Bytes of postings, which opening the index does not read.
    flip(file_of(large, ".doc"), 120)
    with pytest.raises(ArtefactError, match=r"\.doc: damaged, not the bytes that were written; build the index again"):
        all_lists(large)
    flip(file_of(large, ".doc"), 120)
    assert all_lists(large) == sound
    # A file that no query reads.
    flip(file_of(large, ".tvd"), 60)
    with pytest.raises(ArtefactError, match=r"\.tvd: damaged"):
        all_lists(large)
    with pytest.raises(ArtefactError, match=r"\.tvd: damaged"), Searcher(large) as searcher:
        searcher.explain(ImpactQuery("q", {"t1": 1}), hits=1)


def test_answers_of_resident_postings_need_no_file_of_lucene(index, monkeypatch):
    """Whoever needs one compares all of them."""
    monkeypatch.delenv(VARIABLE)
    sound = all_lists(index)
    flip(file_of(index, ".fdt"), 60)
    assert all_lists(index) == sound
    engine = LuceneEngine(index, read_manifest(index))
    for act in (engine.prepare, lambda: engine.search_tree("q", Not(Term("t1")), 10)):
        with pytest.raises(ArtefactError, match=r"\.fdt: damaged"):
            act()
    engine.close()


def test_a_known_damage_ends_the_search(large):
    flip(file_of(large, ".fdt"), 60)
    engine = LuceneEngine(large, read_manifest(large))
    engine.opened.verifications[0]._thread.join()
    for act in (
        lambda: next(engine.search(MANY_QUERIES[:1], 10)),
        lambda: engine.search_tree("q", Term("t1"), 10),
        lambda: engine.impacts("d1", ["t1"]),
        lambda: engine.vector("d1"),
        engine.verify,
    ):
        with pytest.raises(ArtefactError, match=r"\.fdt: damaged"):
            act()
    engine.close()


def test_what_cannot_be_compared_is_no_answer(large, monkeypatch):
    monkeypatch.setattr(verifying.zlib, "crc32", lambda *_: 1 / 0)
    with pytest.raises(ArtefactError, match="index: its files cannot be compared with their checksums"):
        all_lists(large)


def test_a_closed_index_is_not_compared_further(large, monkeypatch):
    engine = LuceneEngine(large, read_manifest(large))
    engine.close()
    assert not engine.opened.verifications[0]._thread.is_alive()
    # One list of many: nothing is waited for.
    assert next(search_index(large, MANY_QUERIES, 3))


def open_files():
    """What the descriptors of this process, and its mapped files, are of."""
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()) + mapped


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the descriptors of a process are listed by Linux")
def test_no_file_of_a_damaged_or_forgotten_index_stays_open(index, tmp_path, monkeypatch):
    """Neither the garbage collector runs, nor ends what a log holds: the errors with all their frames."""
    monkeypatch.delenv(VARIABLE)
    manifest, errors, whole = read_manifest(index), [], tmp_path / "whole"
    shutil.copytree(index, whole)
    gc.disable()
    try:
        forgotten = LuceneEngine(index, manifest)
        assert list(forgotten.search(MANY_QUERIES[:1], 3))
        del forgotten
        for name in ("index.json", "manifest.json", "resident.bin", file_of(index, ".fdt").name):
            shutil.rmtree(index)
            shutil.copytree(whole, index)
            flip(index / name, 60)
            with pytest.raises(ArtefactError) as error, closing(LuceneEngine(index, manifest)) as engine:
                list(engine.search(MANY_QUERIES[:1], 3))
                engine.prepare()
            errors.append(error.value)
        assert not [name for name in open_files() if name.startswith(str(tmp_path))]
    finally:
        gc.enable()


def test_files_that_do_not_change_are_read_once(large, monkeypatch):
    monkeypatch.setattr(digests, "RACY_NS", 0)
    read = []
    crc32 = verifying.zlib.crc32
    monkeypatch.setattr(verifying.zlib, "crc32", lambda block, value: read.append(len(block)) or crc32(block, value))
    all_lists(large)
    first = len(read)
    assert first > 10
    all_lists(large)
    assert len(read) == first
    flip(file_of(large, ".doc"), 120)
    with pytest.raises(ArtefactError, match=r"\.doc: damaged"):
        all_lists(large)
    # A damaged file is never remembered.
    with pytest.raises(ArtefactError, match=r"\.doc: damaged"):
        all_lists(large)


def test_a_change_of_an_index_has_no_other_file_compared_again(large, monkeypatch):
    """A change links the files that it leaves as they are, and a link changes one of their times."""
    monkeypatch.setattr(digests, "RACY_NS", 0)
    compared = []
    compare = verifying.compare_checksum

    def counted(file, stopped):
        compared.append(Path(file.name).name)
        return compare(file, stopped)

    monkeypatch.setattr(verifying, "compare_checksum", counted)
    all_lists(large)
    before = file_of(large, ".doc").stat()
    compared.clear()
    delete_documents(large, ["d7"])
    after = file_of(large, ".doc").stat()
    assert after.st_ino == before.st_ino and after.st_ctime_ns > before.st_ctime_ns
    all_lists(large)
    assert sorted(compared) == [file_of(large, ".liv").name, "segments_2"]
    # What changed with its link is.
    flip(file_of(large, ".doc"), 120)
    with pytest.raises(ArtefactError, match=r"\.doc: damaged"):
        all_lists(large)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        *((".tvd", content) for content in (b"", b"x", bytes(15), bytes(16), bytes(4096))),
        *((suffix, None) for suffix in ("segments_1", ".doc", ".si", ".fdt", "index.json", "manifest.json")),
    ],
)
def test_files_without_a_footer_and_folders_in_place_of_files(large, suffix, content):
    path = file_of(large, suffix)
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ArtefactError, match=f"{large}"):
        all_lists(large)


@pytest.mark.parametrize("layout", ["flat", "hnsw", "sq8", "binary"])
def test_a_flipped_bit_in_a_faiss_index(tmp_path, layout):
    vectors = np.random.default_rng(7).normal(size=(40, 8)).astype(np.float32)
    write_dense_shards(tmp_path / "shards", [(f"d{n}", vector.tolist()) for n, vector in enumerate(vectors)])
    index = build_index(tmp_path / "shards", tmp_path / "index", options={"faiss": layout}).path

    def answers():
        engine = open_index(index, read_manifest(index))
        return list(engine.search([DenseQuery("q", vectors[3])], 5))

    sound = answers()
    for path in sorted(index.iterdir()):
        for _ in flips(path):
            try:
                assert answers() == sound, f"another answer after a flip in {path.name}"
                assert path.name not in ("index.faiss", "ids.txt")
            except LexvlError as error:
                assert "\n" not in str(error), error
    assert answers() == sound
    (index / "ids.txt").write_text("".join(f"e{n}\n" for n in range(40)))
    with pytest.raises(ArtefactError, match="ids.txt: damaged"):
        answers()


def test_a_flipped_bit_in_the_vocabulary(index):
    manifest = read_manifest(index)
    check_terms(Term("t7"), index / "vocab.txt", manifest)
    for content in (b"t7\n", b"\xff\xfe", b""):
        (index / "vocab.txt").write_bytes(content)
        with pytest.raises(ArtefactError, match="vocab.txt: "):
            check_terms(Term("t7"), index / "vocab.txt", manifest)


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A folder with `shards` and `index`; not to be changed."""
    folder = tmp_path_factory.mktemp("checked")
    write_shards(folder / "shards", MANY_DOCUMENTS[:100], MANY_DOCUMENTS[100:], terms=MANY_TERMS)
    build_index(folder / "shards", folder / "index", term_vectors=True)
    return folder


@pytest.fixture
def copied(checked, tmp_path):
    for name in ("shards", "index"):
        shutil.copytree(checked / name, tmp_path / name)
    return tmp_path


def answers(index):
    with closing(LuceneEngine(index, read_manifest(index))) as engine:
        return [[(d.doc_id, d.score) for d in documents] for documents in engine.search(MANY_QUERIES, 1000)]


def flips(path):
    """The file with one bit of one byte turned, at its ends, in its middle and at some places between."""
    whole = path.read_bytes()
    last = len(whole) - 1
    places = {0, last // 7, last // 3, last // 2, last - last // 5, last - 9, last}
    for place in sorted(places & set(range(len(whole)))):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        yield
    path.write_bytes(whole)


def test_a_sound_index(checked):
    found = check_index(checked / "index", checked / "shards")
    postings = sum(len(vector) for _, vector in MANY_DOCUMENTS)
    assert found.pop("index") == str(checked / "index")
    compared = {"documents": 151, "postings": postings, "ids": 151, "sampled_documents": 151, "sampled_queries": 20}
    assert found == {**compared, "problems": 0}


def test_a_flipped_bit_in_any_file_of_the_index_or_the_shards(copied):
    for path in sorted(p for p in copied.rglob("*") if p.is_file()):
        for _ in flips(path):
            with pytest.raises(LexvlError):
                print(path.name, check_index(copied / "index", copied / "shards"))
    assert check_index(copied / "index", copied / "shards")["problems"] == 0


def of_lucene(index):
    """Lucene's files of an index."""
    return [path for path in sorted(index.iterdir()) if path.name.startswith(("_", "segments"))]


@pytest.mark.parametrize("postings", ["lucene", "resident"])
def test_searching_a_damaged_index_invents_nothing(copied, postings, monkeypatch):
    """Either one clear line, or the very answers of the sound index."""
    monkeypatch.setenv("LEXVL_POSTINGS", postings)
    sound, refused = answers(copied / "index"), 0
    files = of_lucene(copied / "index") if postings == "lucene" else [copied / "index" / RESIDENT]
    for path in files:
        for _ in flips(path):
            try:
                assert answers(copied / "index") == sound, f"another answer after a flip in {path.name}"
            except ArtefactError as error:
                assert "\n" not in str(error) and str(copied / "index") in str(error)
                refused += 1
    # Checksums are of the whole of each file.
    assert refused >= 7 * len(files) - 7


@pytest.mark.parametrize("damage", ["cut", "gone", "zero", "empty"])
def test_files_cut_gone_or_emptied(copied, damage, monkeypatch):
    sound = answers(copied / "index")
    monkeypatch.setenv("LEXVL_POSTINGS", "lucene")
    for path in of_lucene(copied / "index"):
        whole = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes({"cut": whole[:-5], "zero": bytes(len(whole)), "empty": b""}[damage])
        for act in (answers, lambda index: check_index(index, copied / "shards")):
            with pytest.raises(ArtefactError, match="index: (cannot be opened as a Lucene index|damaged)"):
                act(copied / "index")
        # The resident postings are a file of their own, with the same answers.
        with monkeypatch.context() as context:
            context.delenv("LEXVL_POSTINGS")
            try:
                assert answers(copied / "index") == sound
            except ArtefactError:
                assert path.name.startswith("segments")
        path.write_bytes(whole)
    assert check_index(copied / "index", copied / "shards")["problems"] == 0


def test_a_missing_document(copied):
    """It is taken out behind the back of manifest and report."""
    updater = get_our_class("IndexUpdater")(
        str(copied / "index"), make_similarity(), read_creator([copied / "index"]), False
    )
    updater.delete(b"d77\n")
    updater.finish(True)
    with pytest.raises(ArtefactError, match="150 documents in the index, index.json says 151; .*manifest.json"):
        check_index(copied / "index", copied / "shards")
    with pytest.raises(ArtefactError, match="Lucene's files are not those"):
        answers(copied / "index")
    with pytest.raises(ArtefactError, match="150 documents, the manifest says 151"):
        answers(owned(copied / "index"))


def swapped(folder, documents):
    """The index with Lucene's files of other documents."""
    write_shards(folder / "others", documents[:100], documents[100:], terms=MANY_TERMS)
    build_index(folder / "others", folder / "other", term_vectors=True)
    for path in (folder / "other").iterdir():
        if path.suffix not in (".json", ".txt"):
            shutil.copyfile(path, folder / "index" / path.name)
    return folder / "index"


def owned(index):
    """The index with an index.json that names the commit that is there."""
    report, manifest = read_report(index), read_manifest(index)
    about = {**report, "commit": read_commit_id(index)}
    write_report(index, {**about, "digest": report_digest(about, manifest)})
    return index


def test_lucenes_files_of_another_index(copied):
    """Even if all counts are the same."""
    index = swapped(copied, [(doc_id, dict(MANY_DOCUMENTS)[doc_id]) for doc_id, _ in MANY_DOCUMENTS])
    for act in (answers, lambda index: check_index(index, copied / "shards")):
        with pytest.raises(ArtefactError, match="index: Lucene's files are not those that index.json was written for"):
            act(index)


def test_an_edited_manifest(copied):
    path = copied / "index/manifest.json"
    path.write_text(path.read_text().replace('"max_impact": 25', '"max_impact": 24'))
    with pytest.raises(ArtefactError, match="index: index.json and manifest.json are not as they were written"):
        answers(copied / "index")


def test_another_document_in_its_place(copied):
    index = swapped(copied, [("d077" if doc_id == "d77" else doc_id, vector) for doc_id, vector in MANY_DOCUMENTS])
    owned(index)
    with pytest.raises(ArtefactError, match="1 documents of the shards are not in the index, the first is 'd77'"):
        check_index(index, copied / "shards")


def test_other_impacts_with_the_same_counts(copied):
    """Two documents exchange their vectors: every sum stays."""
    vectors = dict(MANY_DOCUMENTS)
    exchanged = {**vectors, "d6": vectors["d13"], "d13": vectors["d6"]}
    index = owned(swapped(copied, list(exchanged.items())))
    with pytest.raises(ArtefactError, match=r"document 'd(6|13)': impact None of term 't\d+', its shard says \d+"):
        check_index(index, copied / "shards")


def test_foreign_shards(copied):
    write_shards(copied / "foreign", MANY_DOCUMENTS[:100], [*MANY_DOCUMENTS[100:], ("d999", {})], terms=MANY_TERMS)
    for folders in ([copied / "foreign"], [copied / "shards", copied / "foreign"]):
        with pytest.raises(ArtefactError, match="foreign holds other shards than the index was built from"):
            check_index(copied / "index", folders)
    write_shards(copied / "words", [("d1", {"zebra": 1})])
    with pytest.raises(ArtefactError, match="words is of another vocabulary"):
        check_index(copied / "index", copied / "words")


def test_a_foreign_shard_in_the_folder_and_a_missing_vocabulary(copied):
    foreign = copied / "shards/docs/shard-00002.jsonl"
    shutil.copyfile(copied / "shards/docs/shard-00000.jsonl", foreign)
    with pytest.raises(ArtefactError, match="shard-00002.jsonl: not a shard of .*manifest.json; remove it"):
        check_index(copied / "index", copied / "shards")
    foreign.unlink()
    (copied / "index/vocab.txt").unlink()
    with pytest.raises(ArtefactError, match="index/vocab.txt: missing"):
        check_index(copied / "index", copied / "shards")
