"""Files of training pairs: DPR's JSON, pairs of texts, triples of ids, shards; hard negatives from a run; bad lines."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.records import Qrel, ScoredDoc, TeacherScore, Topic
from lexvl_plugins.train.corpora.webdataset import expand_pattern, find_shards
from lexvl_plugins.train.mine import Mining, command, draw_negatives, mine
from lexvl_plugins.train.texts.query_passages import read_query_passages
from tests.plugins.train.pair_shards import picture, write_shards, write_tar

PASSAGE = {"title": "Paris", "text": "the capital é", "passage_id": "7"}
ENTRIES: list[dict[str, Any]] = [
    {"question": "where?", "positive_ctxs": [PASSAGE], "hard_negative_ctxs": [{"text": "no\u2028thing"}]},
    {"question": "nowhere", "positive_ctxs": [], "hard_negative_ctxs": []},
    {"question": "who?", "query_id": "x", "positive_ctxs": [{"docid": 8, "text": "me"}], "negative_ctxs": [PASSAGE]},
]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.jsonl.gz"])
def test_a_dpr_file(name: str, tmp_path: Path) -> None:
    """Entries without a positive are left out; without hard negatives the other negatives count."""
    path = tmp_path / name
    text = json.dumps(ENTRIES) if name == "a.json" else "\n".join(map(json.dumps, ENTRIES))
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    dataset = load_dataset(f"dpr:{path}")
    documents = list(dataset.documents())
    texts = [("Paris", "the capital é"), (None, "no\u2028thing"), (None, "me")]
    assert [(document.title, document.text) for document in documents] == texts
    assert (documents[0].doc_id, documents[2].doc_id) == ("7", "8")
    assert [(topic.query_id, topic.text) for topic in dataset.topics()] == [("1", "where?"), ("x", "who?")]
    assert list(dataset.qrels())[0] == Qrel("1", "7", 1) and list(dataset.qrels())[-1] == Qrel("x", "7", 0)


def test_a_hard_negative_with_the_text_of_a_positive_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies of one passage have several ids in a corpus; another question may have the copy as a negative."""
    copy = {**PASSAGE, "passage_id": "70", "score": 3}
    entries = [
        {"question": "q", "positive_ctxs": [PASSAGE], "hard_negative_ctxs": [copy, {"text": "no"}]},
        {"question": "r", "positive_ctxs": [{"text": "me"}], "hard_negative_ctxs": [copy]},
    ]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    dataset = load_dataset(f"dpr:{tmp_path}/a.json")
    with caplog.at_level("INFO", "lexvl_anserini"):
        qrels = list(dataset.qrels())
    assert [(qrel.query_id, qrel.relevance) for qrel in qrels] == [("1", 1), ("1", 0), ("2", 1), ("2", 0)]
    assert qrels[0].doc_id == "7" and qrels[3].doc_id == "70" and qrels[1].doc_id not in ("7", "70")
    assert dataset.scores is not None and list(dataset.scores()) == [TeacherScore("2", "70", 3.0)]
    assert "1 hard negatives have the text of a positive of their question and are left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[", "a.json: malformed JSON"),
        ("a.json", "{}", "no JSON array"),
        ("a.json", "[]", "no entry in it"),
        ("a.json", "[3]", "entry 1: not an object"),
        ("a.json", '[{"positive_ctxs": []}]', "entry 1: no 'question'; keys found: positive_ctxs"),
        ("a.json", '[{"question": "q"}]', "entry 1: no 'positive_ctxs'; keys found: question"),
        ("a.json", '[{"question": "q", "positive_ctxs": {"a": 1}}]', "'positive_ctxs' is not a list"),
        ("a.json", '[{"question": "q", "positive_ctxs": ["p"]}]', "passage 1 of 'positive_ctxs' is 'p'"),
        ("a.json", '[{"question": "q", "positive_ctxs": [{"title": "", "text": " "}]}]', "passage 1 of .* has no text"),
        ("a.json", '[{"question": "q", "positive_ctxs": []}]', "none of 1 entries"),
        ("a.json", '[{"question": "q", "positive_ctxs": [{"text": "a", "score": "high"}]}]', "'score' is 'high'"),
        ("a.tsv", "", "a.tsv: no line in it; expected query, positive and optional negatives"),
        ("a.tsv", "q\n", "line 1: 1 columns, expected 2 or more"),
        ("a.tsv", "q\tp\nq\tp\tn\n", "line 2: 3 columns, expected 2 as in the first line"),
        ("a.tsv", "q\t \n", "line 1: column 2 is empty"),
    ],
)
def test_a_damaged_file_raises(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(LexvlError, match=message):
        list(load_dataset(f"{'dpr' if name == 'a.json' else 'pairs'}:{tmp_path}/{name}").topics())


def test_an_id_with_two_texts_raises(tmp_path: Path) -> None:
    entries = [{**ENTRIES[0], "positive_ctxs": [{**PASSAGE, "text": text}]} for text in ("a", "b")]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    with pytest.raises(LexvlError, match="a.json entry 2: passage '7' has another text than before"):
        list(load_dataset(f"dpr:{tmp_path}/a.json").documents())


def test_pairs_of_texts(tmp_path: Path) -> None:
    """The same query on two lines is one topic with two positives."""
    (tmp_path / "a.tsv").write_text("q\tone\tno\n\nq\ttwo\tno\r\n")
    dataset = load_dataset(f"pairs:{tmp_path}/a.tsv")
    assert [topic.text for topic in dataset.topics()] == ["q"]
    assert [document.text for document in dataset.documents()] == ["one", "no", "two"]
    assert [qrel.relevance for qrel in dataset.qrels()] == [1, 0, 1, 0]


def test_triples_of_ids(tmp_path: Path) -> None:
    """Texts from MS MARCO's files; a query without text, a file or a folder that is absent."""
    (tmp_path / "t.tsv").write_text("1\t10\t11\n2\t11\t10\n")
    (tmp_path / "collection.tsv").write_text("pid\tpassage\n10\tten\n11\televen\n12\ttwelve\n")
    (tmp_path / "queries.train.tsv").write_text("1\tone\n2\ttwo\n3\tthree\n")
    dataset = load_dataset(f"triples:{tmp_path}/t.tsv,{tmp_path}", "train")
    assert [topic.text for topic in dataset.topics()] == ["one", "two"]
    assert [document.doc_id for document in dataset.documents()] == ["10", "11", "12"]
    assert list(dataset.qrels())[1] == Qrel("1", "11", 0)
    with pytest.raises(LexvlError, match="has no split 'dev'; a file of training pairs has the split train alone"):
        load_dataset(f"triples:{tmp_path}/t.tsv,{tmp_path}", "dev")
    (tmp_path / "t.tsv").write_text("9\t10\n")
    with pytest.raises(LexvlError, match="t.tsv: 1 of its queries have no text, such as '9'"):
        list(dataset.topics())
    for name, message in (
        (f"triples:{tmp_path}/t.tsv", "expected triples:FILE,FOLDER"),
        (f"triples:{tmp_path}/u.tsv,{tmp_path}", "no such file of training pairs"),
        (f"triples:{tmp_path}/t.tsv,{tmp_path}/x", "expected corpus.jsonl and queries.jsonl"),
        (f"pairs:{tmp_path}", "a folder, expected a file of training pairs"),
    ):
        with pytest.raises(LexvlError, match=message):
            load_dataset(name)


def test_scores_of_a_dpr_file(tmp_path: Path) -> None:
    """A passage without a score has none."""
    entry = {"question": "q", "positive_ctxs": [{**PASSAGE, "score": 2}], "hard_negative_ctxs": [{"text": "x"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(entry))
    dataset = load_dataset(f"dpr:{tmp_path}/a.jsonl")
    assert dataset.scores is not None and list(dataset.scores()) == [TeacherScore("1", "7", 2.0)]


LONG = "The second sentence of this text has more than forty characters."
DOCUMENTS = [
    {"_id": "d1", "title": "Zinc and colds", "text": f"Short one. {LONG} Short."},
    {
        "_id": "d2",
        "title": "",
        "text": "No title here. p = 0.05 is no end of a sentence, nor is i.e. an abbreviation (it goes on).",
    },
    {"_id": "d3", "title": "A title without a text", "text": " "},
    {"_id": "d4", "title": " Ä title ", "text": "short"},
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    lines = "".join(json.dumps(document) + "\n" for document in DOCUMENTS)
    (tmp_path / "corpus.jsonl").write_text(lines, encoding="utf-8")
    return f"beir:{tmp_path}"


def test_titles_are_queries_of_their_documents(corpus):
    found = load_dataset(f"titles:{corpus}")
    assert list(found.topics()) == [Topic("d1", "Zinc and colds"), Topic("d4", "Ä title")]
    assert list(found.qrels()) == [Qrel("d1", "d1", 1), Qrel("d4", "d4", 1)]
    assert list(found.documents()) == list(load_dataset(corpus).documents())
    assert not found.remove_query and found.name == f"titles:{corpus}"


def test_last_sentences_of_some_length_are_queries(corpus):
    topics = list(load_dataset(f"sentences:{corpus}").topics())
    assert topics == [Topic("d1", LONG), Topic("d2", DOCUMENTS[1]["text"])]


def test_bad_names_are_one_line(corpus):
    with pytest.raises(UsageError, match="'titles:' names no corpus; expected titles:<corpus>"):
        load_dataset("titles:")
    with pytest.raises(UnknownName, match="unknown corpus 'bier'"):
        load_dataset("sentences:bier/x")
    with pytest.raises(UsageError, match="have no splits"):
        load_dataset(f"titles:{corpus}", split="train")


PNG, TEXT = picture(0)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}.tar", ["08.tar", "09.tar", "10.tar", "11.tar"]),
        ("{a,b}/{1..2}.tar", ["a/1.tar", "a/2.tar", "b/1.tar", "b/2.tar"]),
        ("{a,b{0..1}}.tar", ["a.tar", "b0.tar", "a.tar", "b1.tar"]),
        ("{2..1}.tar", ["2.tar", "1.tar"]),
        ("{10..08}.tar", ["10.tar", "09.tar", "08.tar"]),
        ("{0..02}.tar", ["00.tar", "01.tar", "02.tar"]),
        ("{9..10}.tar", ["9.tar", "10.tar"]),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    assert expand_pattern(pattern) == names


def test_pairs_are_documents_and_topics(tmp_path: Path) -> None:
    """A folder, a pattern and a tar name the same shards."""
    name = write_shards(tmp_path, 5, 3)
    data = load_dataset(name)
    ids = ["00000/000000000", "00000/000000001", "00000/000000002", "00001/000000003", "00001/000000004"]
    assert [document.doc_id for document in data.documents()] == ids
    assert [(topic.query_id, topic.text) for topic in data.topics()] == [(i, picture(n)[1]) for n, i in enumerate(ids)]
    assert [(qrel.query_id, qrel.doc_id) for qrel in data.qrels()] == [(i, i) for i in ids]
    assert [open_image(document.image or "").size for document in data.documents()] == [(16, 16)] * 5
    pattern = load_dataset(f"webdataset:{tmp_path}/{{00000..00001}}.tar", "train", direction="image-to-text")
    expected = [(i, picture(n)[1]) for n, i in enumerate(ids)]
    assert [(document.doc_id, document.text) for document in pattern.documents()] == expected
    assert [topic.image for topic in pattern.topics()] == [document.image for document in data.documents()]
    assert [d.doc_id for d in load_dataset(f"webdataset:{tmp_path}/00001.tar").documents()] == ids[3:]


def test_shards_of_several_folders_have_other_names(tmp_path: Path) -> None:
    for folder in "ab":
        write_shards(tmp_path / folder, 1, 1)
    (tmp_path / "b" / "00000.tar").rename(tmp_path / "b" / "00000.TAR")
    assert list(find_shards(f"webdataset:{tmp_path}")) == ["a/00000", "b/00000"]
    write_shards(tmp_path / "b", 1, 1)
    with pytest.raises(DataError, match=r"b/00000\.TAR: another shard has this name without its suffix; rename one"):
        find_shards(f"webdataset:{tmp_path}")


def test_what_is_no_pair_is_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = {
        "both.PNG": PNG,
        "both.txt": b"of the text file",
        "both.json": b'{"caption": "of the JSON file"}',
        "json.jpg": PNG,
        "json.json": '\ufeff{"caption": " Füße ", "width": NaN, "by": "\\ud83d"}'.encode(),
        "a.b.png": PNG,
        "a.b.txt": b"a name with a dot",
        "alone.png": PNG,
        "blank.png": PNG,
        "blank.txt": b" \n",
        "latin.png": PNG,
        "latin.txt": b"caf\xe9",
        "keyless.png": PNG,
        "keyless.json": b'{"text": "no caption"}',
        "number.png": PNG,
        "number.json": b'{"caption": 3}',
        "twice.png": PNG,
        "twice.json": b'{"caption": "one", "caption": "two"}',
        "lonely.txt": b"no image",
        "both.jpg": PNG,
        "both.cls": b"3",
        "x/._both.png": PNG,
    }
    write_tar(tmp_path / "s.tar", members)
    with caplog.at_level("INFO"):
        data = load_dataset(f"webdataset:{tmp_path}/s.tar")
        texts = {topic.query_id: topic.text for topic in data.topics()}
        documents = [document.doc_id for document in data.documents()]
    assert texts == {"s/both": "of the text file", "s/json": "Füße", "s/a.b": "a name with a dot"}
    stems = ("both", "json", "a.b", "alone", "blank", "latin", "keyless", "number", "twice")
    assert documents == [f"s/{stem}" for stem in stems]
    tar = tmp_path / "s.tar"
    for line in (
        f"an image without a text: 6 ({tar}::alone.png, {tar}::blank.png, {tar}::latin.png, {tar}::keyless.png, ",
        f"a text without an image: 1 ({tar}::lonely)",
        f"a text that is not UTF-8: 1 ({tar}::latin.txt)",
        f"JSON without a string 'caption': 2 ({tar}::keyless.json, {tar}::number.json)",
        f"JSON that cannot be read, or has a key twice: 1 ({tar}::twice.json)",
        f"a second one of its pair: 1 ({tar}::both.jpg)",
        f"neither image nor text: 1 ({tar}::both.cls)",
        f"hidden: 1 ({tar}::x/._both.png)",
    ):
        assert caplog.text.count(f"webdataset:{tar}: skipped, {line}") == 1, line


def test_errors_name_the_shard(tmp_path: Path) -> None:
    name = write_shards(tmp_path, 4, 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.tgz").write_bytes(b"")
    for corpus, split, message in (
        (f"{name}/{{00000..00002}}.tar", None, r"00002\.tar: no such shard \(1 of the 3 of .* are not there\)"),
        ("webdataset:", None, "names no shards; expected webdataset:<folder, tar or pattern such as"),
        (name, "val", "split 'val' of shards, whose pairs are all 'train'"),
        (f"{name}/empty", None, r"empty: no \.tar in it"),
        (f"{name}/a.tgz", None, r"a\.tgz: expected a shard, an uncompressed \.tar"),
    ):
        with pytest.raises((DataError, UsageError), match=message):
            load_dataset(corpus, split)


@pytest.fixture
def judged(tmp_path: Path) -> str:
    """Six documents; `q` has the positives d0 and d3, and d1 is judged and not relevant."""
    (tmp_path / "qrels").mkdir()
    documents = [{"_id": name, "title": "", "text": f"text {name}"} for name in ("d0", "d1", "d2", "d3", "d4", "q")]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n{"_id": "p", "text": "another"}')
    (tmp_path / "qrels/train.tsv").write_text("q d0 2\nq d1 0\nq d3 1\np d1 1\n")
    ranks = ["d0", "q", "d1", "d2", "d3", "d4"]
    lines = [f"q Q0 {doc_id} {rank} {10 - rank} t\n" for rank, doc_id in enumerate(ranks, start=1)]
    (tmp_path / "run.trec").write_text("".join(lines) + "z Q0 d1 1 1 t\n")
    return f"beir:{tmp_path}/train"


def test_positives_and_the_query_itself_are_no_negatives(judged: str, tmp_path: Path) -> None:
    """A document with the query's id is the query itself in BEIR's datasets alone."""
    [found] = mine(load_dataset(judged), tmp_path / "run.trec", Mining(number=9))
    assert found.negatives == ["q", "d1", "d2", "d4"]
    [found] = mine(replace(load_dataset(judged), remove_query=True), tmp_path / "run.trec", Mining(number=9))
    assert (found.query_id, found.positives, found.negatives) == ("q", ["d0", "d3"], ["d1", "d2", "d4"])
    [found] = mine(load_dataset(judged), tmp_path / "run.trec", Mining(first=4, depth=5))
    assert found.negatives == ["d2"]


def test_draws_depend_on_the_seed_and_the_query_alone() -> None:
    ranked = [ScoredDoc("q", f"d{rank:02}", rank, -rank) for rank in range(1, 41)]
    minings = [Mining(depth=20, number=5, seed=seed) for seed in (1, 1, 2, 3)]
    chosen = [tuple(draw_negatives("q", ranked, ["d05"], mining)) for mining in minings]
    assert chosen[0] == chosen[1] and len(set(chosen)) == 3
    assert all(list(ids) == sorted(ids) and "d05" not in ids and max(ids) <= "d20" for ids in chosen)


def test_the_file_trains(judged: str, tmp_path: Path) -> None:
    output = tmp_path / "mined.jsonl"
    options = ["--run", str(tmp_path / "run.trec"), "--corpus", judged, "--output", str(output), "--number", "2"]
    result = CliRunner().invoke(make_app(command), options)
    assert result.exit_code == 0, result.output
    data = read_query_passages(load_dataset(f"dpr:{output}"))
    names = [passage.doc_id for passage in data.passages]
    assert data.queries == ["a query"] and {names[place] for place in data.positives[0]} == {"d0", "d3"}
    assert len(data.negatives[0]) == 2 and {names[place] for place in data.negatives[0]} <= {"d1", "d2", "d4"}
    # The run gives d0 the score 9 and d3 the score 5.
    assert {names[place]: data.scores[0][place] for place in data.positives[0]} == {"d0": 9, "d3": 5}
    again = CliRunner().invoke(make_app(command), options)
    assert isinstance(again.exception, LexvlError) and "exists; --overwrite replaces it" in str(again.exception)


def test_errors_name_what_is_missing(judged: str, tmp_path: Path) -> None:
    (tmp_path / "other.trec").write_text("z Q0 d1 1 1 t\n")
    with pytest.raises(LexvlError, match="none of its 1 topics has a relevant document"):
        mine(load_dataset(judged), tmp_path / "other.trec", Mining())
    run, output = tmp_path / "run.trec", str(tmp_path / "x.jsonl")
    for options, message in (
        (["--run", str(run), "--output", output], "no manifest names the dataset of its topics"),
        (["--run", str(run), "--output", output, "--first-rank", "9", "--depth", "3"], "is after --depth 3"),
        (["--run", str(run), "--output", "x.txt"], "expected a name in .jsonl"),
    ):
        result = CliRunner().invoke(make_app(command), options)
        assert isinstance(result.exception, LexvlError) and message in str(result.exception)


def test_an_array_that_unpacks_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("lexvl_anserini.data.lines.MOST_LINE", 1000)
    monkeypatch.setattr("lexvl_plugins.train.corpora.text_pairs.lines.MOST_UNPACKED", 10)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(ENTRIES).encode()))
    assert list(load_dataset(f"dpr:{tmp_path}/a.json.gz").topics())
    (tmp_path / "a.json.gz").write_bytes(packed := gzip.compress(json.dumps(["a" * 1_000_000]).encode()))
    most = max(1000, 10 * len(packed))
    with pytest.raises(LexvlError, match=f"a.json.gz: unpacks to more than {most:,} bytes; unpack it"):
        list(load_dataset(f"dpr:{tmp_path}/a.json.gz").topics())
