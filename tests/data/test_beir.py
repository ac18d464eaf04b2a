import errno
import gzip
import json
import threading
import zipfile
from contextlib import nullcontext
from hashlib import md5
from pathlib import Path
from unittest.mock import Mock

import pyarrow
import pytest
from corpus_folders import CORPUS, HEADER, beir_folder, gallery_of, pack_text
from hypothesis import given
from hypothesis import strategies as st
from invoking import Quiet, answering, serving_files
from pyarrow import parquet

from lexvl_anserini.data.checks import check_corpus, pack_document
from lexvl_anserini.data.corpora import beir as fetch
from lexvl_anserini.data.corpora.beir import read_corpus
from lexvl_anserini.data.dataset import data_root, load_dataset
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import Document, Qrel, Topic


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A local server in place of BEIR's; `served(name, corrupt=...)` puts an archive on it."""
    folder = tmp_path / "www"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def put(name, checksum=None, inside=None, members=()):
        source = beir_folder(tmp_path / "source" / (inside or name))
        archive = folder / f"{name}.zip"
        with zipfile.ZipFile(archive, "w") as out:
            for path in source.rglob("*.*"):
                out.write(path, path.relative_to(tmp_path / "source"))
            for member, content in members:
                out.writestr(member, content, zipfile.ZIP_DEFLATED)
        right = md5(archive.read_bytes()).hexdigest()
        monkeypatch.setattr(fetch, "find_archive", lambda _: (f"{address}/{name}.zip", checksum or right))

    with serving_files(folder, []) as address:
        yield put


def test_folders_of_the_data_root_by_name(tmp_path, monkeypatch):
    beir_folder(tmp_path / "beir" / "tiny")
    data = load_dataset("beir/tiny", data_dir=str(tmp_path))
    assert (data.name, data.split, data.remove_query) == ("beir/tiny", "test", True)
    expected = [Document("d1", "A", "one"), Document("d2", None, "two", metadata={"year": 3, "url": "u"})]
    assert list(data.documents()) == list(data.documents()) == expected, "each call starts afresh"
    # Topics of the split only, in the order of queries.jsonl.
    assert list(data.topics()) == [Topic("q2", "second"), Topic("q1", "first")]
    assert list(data.qrels()) == [Qrel("q1", "d1", 1), Qrel("q2", "d2", 0)]
    for name, split in (("beir/tiny/train", None), ("beir/tiny", "train"), ("beir/tiny/train", "train")):
        data = load_dataset(name, split, str(tmp_path))
        assert (data.name, data.split, *(topic.query_id for topic in data.topics())) == ("beir/tiny", "train", "q3")
    folder = beir_folder(tmp_path / "msmarco")
    (folder / "qrels/dev.tsv").write_text(HEADER + "q2\td1\t1\n")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path))
    assert [topic.query_id for topic in load_dataset("beir/msmarco").topics()] == ["q2"], "it is judged on dev"
    assert data_root("elsewhere") == Path("elsewhere")


def test_any_path(tmp_path):
    folder = beir_folder(tmp_path / "some where")
    data = load_dataset(f"beir:{folder}", "train")
    assert (data.name, data.split, data.remove_query) == (f"beir:{folder}", "train", False)
    for family in ("beir", "folder"):
        named = load_dataset(f"{family}:{folder}/train")
        assert (named.name, named.split, named.remove_query) == (f"{family}:{folder}", "train", False)
        assert [topic.query_id for topic in named.topics()] == ["q3"]
        with pytest.raises(UsageError, match="the name says split 'train', the split option 'test'"):
            load_dataset(f"{family}:{folder}/train", "test")
        with pytest.raises(DataError, match=r"no judgements of split 'dev'; splits there: test, train"):
            load_dataset(f"{family}:{folder}/dev")


@pytest.mark.parametrize(
    "name,removes", [("scifact", True), ("cqadupstack/gis", True), ("gis", False), ("mine", False)]
)
def test_a_folder_with_the_name_of_a_dataset_of_beir_has_its_rule(tmp_path, monkeypatch, name, removes):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    folder = beir_folder(tmp_path / name)
    assert load_dataset(f"beir:{folder}").remove_query == load_dataset(f"beir:{folder}/train").remove_query == removes
    assert not load_dataset(f"folder:{folder}").remove_query
    monkeypatch.chdir(folder)
    assert load_dataset("beir:.").remove_query == removes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"queries": None, "test": None, "train": None}, "no judgements of split 'test'; no split is there"),
        ({"queries": None}, r"queries\.jsonl: no queries"),
        ({"test": "q1\td1\t1\nq8\td1\t1\nq9\td1\t1\n"}, "of the queries judged in"),
    ],
)
def test_missing_files_and_topics_without_text(tmp_path, files, message):
    data = load_dataset(f"beir:{beir_folder(tmp_path / 'tiny', **files)}")
    assert len(list(data.documents())) == 2
    with pytest.raises(DataError, match=message):
        list(data.topics())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "d3", "text": "cut', "malformed JSON"),
        ("[1]", "a JSON array, expected an object"),
        ('{"_id": "a b", "text": "a"}', "white space in id 'a b', which a run file cannot hold; --escape-ids"),
        ('{"_id": "d3", "text": 5}', "'text' is number, expected a string"),
        ('{"_id": "d3", "title": ["a"], "text": "a"}', "'title' is array, expected a string"),
        (b'{"_id": "d3", "text": "caf\xe9"}', "not valid UTF-8"),
    ],
)
def test_bad_lines_are_told_after_the_good_ones_before(tmp_path, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    folder = beir_folder(tmp_path / "tiny", corpus=CORPUS.encode() + b"\n" + line + b"\n")
    stream = load_dataset(f"beir:{folder}").documents()
    assert [next(stream).doc_id, next(stream).doc_id] == ["d1", "d2"]
    with pytest.raises(DataError, match=rf"corpus\.jsonl line 4: {message}"):
        next(stream)


def test_texts_are_kept_as_they_are(tmp_path):
    texts = ["", "tab\tand \x01 control", "line\u2028separator", "日本語 العربية"]
    texts += ["half \ud83d emoji", "whole \U0001f600"]
    lines = [json.dumps({"_id": number, "text": text}) for number, text in enumerate(texts)]
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    documents = list(read_corpus([path]))
    assert [doc.doc_id for doc in documents] == ["0", "1", "2", "3", "4", "5"]
    assert [doc.text for doc in documents] == [*texts[:4], "half \ufffd emoji", texts[5]]


def test_escaped_ids_agree(tmp_path):
    texts = (f'{{"_id": "{raw}", "text": "a"}}' for raw in ("Ann Lee", "q 1"))
    folder = beir_folder(tmp_path / "tiny", *texts, test="q 1\tAnn Lee\t1\n")
    data = load_dataset(f"beir:{folder}", escape_ids=True)
    assert data.escape_ids
    assert [doc.doc_id for doc in data.documents()] == ["Ann%20Lee"]
    assert [topic.query_id for topic in data.topics()] == ["q%201"]
    assert list(data.qrels()) == [Qrel("q%201", "Ann%20Lee", 1)]


def test_the_loader_of_beir_reads_the_same(tmp_path):
    from beir.datasets.data_loader import GenericDataLoader

    folder = beir_folder(tmp_path / "tiny")
    for split in ("test", "train"):
        corpus, queries, qrels = GenericDataLoader(str(folder)).load(split)
        ours = load_dataset(f"beir:{folder}", split)
        assert {d.doc_id: {"title": d.title, "text": d.text} for d in ours.documents()} == corpus
        assert {topic.query_id: topic.text for topic in ours.topics()} == queries
        assert {(q, d, r) for q, d, r in ours.qrels()} == {(q, d, r) for q, of in qrels.items() for d, r in of.items()}


@pytest.mark.parametrize(("name", "split"), [("scifact", "test"), ("cqadupstack/android", "train")])
def test_fetched_once_and_whole(tmp_path, served, name, split):
    """The forums of CQADupStack are in one archive."""
    served(inside := name.partition("/")[0], inside=name)
    data = load_dataset(f"beir/{name}", split, str(tmp_path / "root"))
    assert (data.name, data.split) == (f"beir/{name}", split)
    assert [doc.doc_id for doc in data.documents()] == ["d1", "d2"]
    assert [path.name for path in (tmp_path / "root/beir").iterdir()] == [inside]


@pytest.mark.parametrize(
    "settings,expected",
    [
        ({"members": [("../outside.txt", "x")]}, "the member '../outside.txt', which leads out of its folder"),
        ({"members": [("/tmp/lexvl-outside.txt", "x")]}, "which leads out of its folder"),
        ({"members": [("scifact/zeros", bytes(10_000_000))]}, r"the archive's \d+ bytes unpack to 100\d+"),
        ({"checksum": "0" * 32}, r"could not be fetched \(what the server sent .* expected 0{32}\)"),
    ],
)
def test_an_archive_that_unpacks_to_more_or_elsewhere(tmp_path, served, settings, expected):
    served("scifact", **settings)
    with pytest.raises(DataError, match=expected) as told:
        load_dataset("beir/scifact", data_dir=str(tmp_path / "root"))
    assert "\n" not in str(told.value)
    assert list((tmp_path / "root" / "beir").iterdir()) == [] and not list(tmp_path.rglob("outside.txt"))


@pytest.mark.parametrize("port", [9, None], ids=["refusing", "silent"])
def test_a_server_that_refuses_or_falls_silent(tmp_path, monkeypatch, port):
    """It refuses the connection, or keeps it and announces more bytes than it sends; one line says what to do."""
    over = threading.Event()

    class Silent(Quiet):
        def do_GET(self):
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nPK")
            over.wait(900)

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "SILENCE_S", 0.2)
    problem = r"could not be fetched \((ConnectionError|ReadTimeout): the network or the server refused\)"
    with answering(Silent) as address:
        source = (f"{f'http://127.0.0.1:{port}' if port else address}/scifact.zip", "0" * 32)
        monkeypatch.setattr(fetch, "find_archive", lambda _: source)
        with pytest.raises(DataError, match=rf"^[^\n]*{problem}[^\n]*$") as told:
            load_dataset("beir/scifact/train", data_dir=str(tmp_path))
        over.set()
    for part in ("corpus.jsonl", "scifact.zip", f"{tmp_path}/beir/scifact", "--data-dir", "$LEXVL_DATA"):
        assert part in str(told.value)
    assert list((tmp_path / "beir").iterdir()) == []


def test_a_full_disk_is_no_error_of_the_network_and_a_half_filled_folder_stays(tmp_path, monkeypatch, served):
    served("scifact")
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "beir"))
    monkeypatch.setattr("pooch.retrieve", Mock(side_effect=full))
    with pytest.raises(ArtefactError, match="the disk is full"):
        load_dataset("beir/scifact", data_dir=str(tmp_path))
    gallery_of(tmp_path, "beir/scifact/notes.txt")
    with pytest.raises(DataError, match="scifact: no corpus.jsonl in it; complete the folder"):
        load_dataset("beir/scifact", data_dir=str(tmp_path))


@pytest.mark.parametrize("at", [0, 30, -30, -10])
def test_a_damaged_zip_is_not_unpacked(tmp_path, at):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/corpus.jsonl", "x" * 2000, zipfile.ZIP_DEFLATED)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[at] ^= 0xFF
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(fetch._NotFetchedError, match="not a zip archive that can be unpacked"):
        fetch._unpack(tmp_path / "a.zip", tmp_path / "out")


def test_of_a_plain_and_a_packed_file_the_packed_one_is_named(tmp_path, caplog):
    folder = beir_folder(tmp_path / "x")
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress(b'{"_id": "other", "text": ""}'))
    data = load_dataset(f"beir:{folder}")
    assert [d.doc_id for d in data.documents()] == ["d1", "d2"] and len(list(data.topics())) == 2
    assert caplog.messages == [
        f"{folder}/{name}.gz: skipped, {name} beside it is read" for name in ("corpus.jsonl", "queries.jsonl")
    ]
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").rename(folder / "corpus.jsonl.GZ")
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "test.TSV")
    data = load_dataset(f"beir:{folder}")
    assert [d.doc_id for d in data.documents()] == ["other"] and list(data.qrels())


@pytest.mark.parametrize("suffix", [".tsv.gz", ".tsv.zst", ".jsonl", ".jsonl.gz"])
def test_judgements_however_they_are_packed(tmp_path, suffix):
    folder = beir_folder(tmp_path / "x", test=None, train=None)
    lines = '{"query-id": "q1", "corpus-id": "d1", "score": 2}\n' if "jsonl" in suffix else f"{HEADER}q1\td1\t2\n"
    pack_text(folder / f"qrels/test{suffix}", lines)
    pack_text(folder / "queries.jsonl.zst", (folder / "queries.jsonl").read_text())
    (folder / "queries.jsonl").unlink()
    data = load_dataset(f"beir:{folder}")
    assert (list(data.qrels()), list(data.topics())) == ([Qrel("q1", "d1", 2)], [Topic("q1", "first")])
    with pytest.raises(DataError, match="no judgements of split 'dev'; splits there: test$"):
        load_dataset(f"beir:{folder}", "dev")


TABLES = {
    "corpus/corpus-00000-of-00002": [{"_id": "d1", "title": None, "text": "one", "year": 3, "x": [1]}],
    "corpus/corpus-00001-of-00002": [{"_id": "d2", "title": "t", "text": "two", "year": None, "x": [2]}],
    "queries/test-00000-of-00001": [{"id": 7, "text": "first"}, {"id": 8, "text": "second"}],
    "data/test-00000-of-00001": [{"query-id": "7", "corpus-id": "d2", "score": 1.0}],
}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"queries/train-00000-of-00001": [{"id": 9, "text": "other"}], "corpus/._x": []}, ""),
        ({"corpus/corpus-00001-of-00002": []}, "corpus: 1 of the 2 parts of 'corpus'; fetch the folder again"),
        ({"data/test-00000-of-00001": [{"query-id": "7", "corpus-id": "d2", "score": 0.5}]}, "row 0: relevance 0.5 is"),
    ],
)
def test_tables_of_the_hub(tmp_path, changed, problem):
    for name, rows in (TABLES | changed).items():
        path = tmp_path / f"{name}.{'PARQUET' if name.startswith('queries') else 'parquet'}"
        path.parent.mkdir(exist_ok=True)
        if rows:
            parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        elif name.endswith("._x"):
            path.write_text("what macOS writes")
    with pytest.raises(DataError, match=problem) if problem else nullcontext():
        data = load_dataset(f"beir:{tmp_path}")
        assert (list(data.topics()), list(data.qrels())) == ([Topic("7", "first")], [Qrel("7", "d2", 1)])
        found = [Document("d1", None, "one", metadata={"year": 3}), Document("d2", "t", "two")]
        assert list(data.documents()) == found


def test_tables_that_the_hub_converts(tmp_path):
    """The branch `refs/convert/parquet`: a folder a table, where judgements are those of `default`."""
    for name, rows in TABLES.items():
        table, number, *_ = name.replace("data", "default").split("-")  # default/test, 00000
        path = tmp_path / table / f"{number[1:]}.parquet"
        path.parent.mkdir(exist_ok=True, parents=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = load_dataset(f"beir:{tmp_path}")
    assert [document.doc_id for document in data.documents()] == ["d1", "d2"]
    assert (list(data.topics()), list(data.qrels())) == ([Topic("7", "first")], [Qrel("7", "d2", 1)])


def test_null_is_absent_and_two_values_of_a_key_are_kept(tmp_path):
    path = tmp_path / "corpus.jsonl"
    record = {"_id": "a", "title": None, "text": "x", "image": None, "year": 3, "of": 2}
    record |= {"metadata": {"year": 1, "of": 2}}
    path.write_text(json.dumps(record))
    assert list(read_corpus([path])) == [Document("a", text="x", metadata={"year": 3, "of": 2, "metadata.year": 1})]
    path.write_text(json.dumps(record | {"metadata.year": 5}))
    with pytest.raises(DataError, match="line 1: 'year' has two values, and 'metadata.year' a third"):
        list(read_corpus([path]))


def test_an_error_is_one_line_whatever_it_quotes(tmp_path):
    path = tmp_path / "a\nfolder" / "corpus.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"_id": "a", "k" * 40_000: 1, "last\u2028key": 2}))
    with pytest.raises(DataError) as caught:
        list(read_corpus([path]))
    text = str(caught.value)
    assert len(text) < 2000 and len(text.splitlines()) == 1
    assert text.startswith(f"{tmp_path}/a folder/corpus.jsonl line 1: no 'text'") and text.endswith("last key")


def test_numbers_that_json_does_not_have(tmp_path):
    """NaN, which some tools write, is null; an integer of any size is kept where Python reads it."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "", "x": NaN, "y": [-Infinity], "z": 1}\n')
    assert [d.metadata for d in read_corpus([path])] == [{"x": None, "y": [None], "z": 1}]
    for value, problem in (("[" * 5000, r"\(.*\)"), ("9" * 5000 + "}", ".*4300 digits")):
        path.write_text('{"_id": "a", "text": "\\ud83d", "x": ' + value)
        with pytest.raises(DataError, match=f"corpus.jsonl line 1: malformed JSON {problem}"):
            list(read_corpus([path]))


def test_check_refuses_no_document_and_duplicates_but_no_equal_hashes():
    eights = [str(n % 8) for n in range(16)]
    cases = [([], "here: no document in it"), ("abacab", "here: ids that occur more"), (eights, "and 3 more")]
    for ids, message in (*cases, ("\ud800", "document '.ud800': character 1 of '.ud800' is no valid Unicode")):
        with pytest.raises(DataError, match=message):
            check_corpus(lambda ids=ids: iter([Document(doc_id, text="x") for doc_id in ids]), "here")

    class Colliding(str):
        def __hash__(self):
            return 1

    assert check_corpus(lambda: iter([Document(Colliding(name)) for name in "ab"]), "here").documents == 2


# No slash: of an image's path only the last part counts. A problem does not count: its document is never encoded.
texts = st.none() | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/"), max_size=4)
documents = st.builds(Document, st.text("ab+-", min_size=1, max_size=3), texts, texts, texts, st.just({}), st.none())
few = st.lists(documents, max_size=3)


@given(few, few)
def test_the_digest_is_unambiguous(left, right):
    equal_bytes = b"".join(map(pack_document, left)) == b"".join(map(pack_document, right))
    assert equal_bytes == (left == right)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "documents", "topics", "qrels"),
    [("beir/scifact", 5183, 300, 339), ("beir/nfcorpus", 3633, 323, 12334), ("beir/nfcorpus/dev", 3633, 324, 11385)],
)
def test_real_data_sets_are_read_whole(shared, name, documents, topics, qrels):
    data = load_dataset(name, data_dir=str(shared / "data"))
    assert check_corpus(data.documents, name).documents == documents
    assert (len(list(data.topics())), len(list(data.qrels()))) == (topics, qrels)
