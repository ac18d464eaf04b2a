"""Damage: what `index --check` finds, and that searching a damaged index invents nothing."""

import shutil
from contextlib import closing

import pytest
from lucene_indexes import MANY_DOCUMENTS, MANY_QUERIES, MANY_TERMS
from shard_folders import write_shards

from lexvl_anserini.engines.index_files import read_commit_id, read_creator
from lexvl_anserini.engines.index_folder import RESIDENT, read_report, report_digest, write_report
from lexvl_anserini.engines.jvm import get_our_class
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import make_similarity
from lexvl_anserini.ground.errors import ArtefactError, LexvlError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.searching.building import build_index, check_index


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with `shards` and `index`; not to be changed."""
    folder = tmp_path_factory.mktemp("checked")
    write_shards(folder / "shards", MANY_DOCUMENTS[:100], MANY_DOCUMENTS[100:], terms=MANY_TERMS)
    build_index(folder / "shards", folder / "index", term_vectors=True)
    return folder


@pytest.fixture
def copied(built, tmp_path):
    for name in ("shards", "index"):
        shutil.copytree(built / name, tmp_path / name)
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


def test_a_sound_index(built):
    found = check_index(built / "index", built / "shards")
    postings = sum(len(vector) for _, vector in MANY_DOCUMENTS)
    assert found.pop("index") == str(built / "index")
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


def without(index, doc_id):
    """Takes a document out behind the back of manifest and report."""
    updater = get_our_class("IndexUpdater")(str(index), make_similarity(), read_creator([index]), False)
    updater.delete(f"{doc_id}\n".encode())
    updater.finish(True)


def test_a_missing_document(copied):
    without(copied / "index", "d77")
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
