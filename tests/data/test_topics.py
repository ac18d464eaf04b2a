import gzip
from functools import partial

import pytest
from corpus_folders import pack_text
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.data import lines
from lexvl_anserini.data.checks import check_id, escape_id, unescape_id
from lexvl_anserini.data.lines import read_placed_lines
from lexvl_anserini.data.topics import read_qrels, read_topics
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Qrel, Topic
from lexvl_anserini.runs.trec import read_run

TABBED = "\ufeffq1\tfirst query\r\n\nq2\tübung\tmit Tab\n"
JUDGED = '{"query-id": "q1", "corpus_id": "d1", "score": 2.0}\n{"query-id": "q1", "corpus-id": "d2", "score": 0}'
JSON_LINES = '{"_id": "q1", "text": "first query", "metadata": {}}\n{"_id": "q2", "text": "übung\\tmit Tab"}'


# The same of an old Macintosh, and with a header.
RETURNED, HEADED = "q1\tfirst query\rq2\tübung\tmit Tab\r", "Query_ID\ttext\nq1\tfirst query\nq2\tübung\tmit Tab"


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, TABBED) for name in ("t.tsv", "t.tsv.gz", "t.txt")]
    + [(name, JSON_LINES) for name in ("q.jsonl", "q.jsonl.gz", "Q.JSONL.GZ")]
    + [("r.tsv", RETURNED), ("h.tsv", HEADED), ("r.jsonl", JSON_LINES.replace("\n", "\r"))],
)
def test_topics_in_each_layout(tmp_path, name, content):
    path = pack_text(tmp_path / name, content)
    assert list(read_topics(path)) == [Topic("q1", "first query"), Topic("q2", "übung\tmit Tab")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "q1\ta\nq2 no tab\n", r"t\.tsv line 2: no tab; expected query_id, tab, text"),
        ("t.tsv", "q1\ta\nq1\tb\n", r"t\.tsv line 2: query id 'q1' is on line 1 already"),
        ("t.tsv", "q 1\ta\n", r"t\.tsv line 1: white space in id 'q 1'.*--escape-ids"),
        ("t.tsv", "\ta\n", r"t\.tsv line 1: empty id"),
        ("t.tsv", "\n\n", r"t\.tsv: no query in it"),
        ("t.tsv", b"q1\tcaf\xe9\n", r"t\.tsv line 1: not valid UTF-8 \(0xe9 at byte 7\)"),
        ("t.tsv", "q1\ta\rq2\tb\nq3\tc\n", r"t\.tsv line 1: a carriage return before a tab, expected a line feed"),
        ("t.jsonl", '{"_id": "a", "text": "b", "text": "c"}', r"t\.jsonl line 1: key 'text' is twice in an object"),
        ("t.jsonl", '{"_id": "a", "text": "", "m": [{"k": 1, "k" : 1}]}', r"t\.jsonl line 1: key 'k' is twice"),
        ("t.jsonl", r'{"_id": "a", "text": "b", "\ud83d": 1}', r"t\.jsonl line 1: lone surrogate in key '.ud83d'"),
        ("t.json", "{}", r"t\.json: unknown format of topics '\.json'; expected \.tsv"),
        ("t.jsonl", '{"text": "a"}', r"t\.jsonl line 1: no '_id'; keys found: text"),
        ("t.jsonl", '{"_id": "a"}', r"t\.jsonl line 1: no 'text'; keys found: _id"),
        ("t.jsonl", '{"_id": "a", "text": null}', r"t\.jsonl line 1: 'text' is null, expected a string"),
    ],
)
def test_bad_topics_are_told_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        list(read_topics(pack_text(tmp_path / name, content)))


@pytest.mark.parametrize("name", ["t.tsv.gz", "t.tsv.zst"])
def test_a_line_that_unpacks_without_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(lines, "MOST_LINE", 1000)
    path = pack_text(tmp_path / name, f"q1\t{'a' * 996}\nq2\tb\n")
    assert [topic.query_id for topic in read_topics(path)] == ["q1", "q2"]
    with pytest.raises(DataError, match=f"{name}: unpacks to a line of more than 1,000 bytes"):
        list(read_topics(pack_text(tmp_path / name, f"q1\ta\nq2\t{'a' * 1_000_000}")))


TREC = """<top>
<num> Number: 051
<title> Airbus
  subsidies &amp; law <desc> Description: <x>
</top>
<top><num>q2<title>two</top>"""
XML = """<?xml version="1.0"?><topics task="x"><!-- <topic -->
<topic number="51" type='a'><query>Airbus subsidies &amp; law</query><title>no</title></topic>
<topic number="q2"><title>two</title></topic></topics>"""


@pytest.mark.parametrize("name", ["t.txt", "t.xml", "topics.robust04", "t.txt.gz"])
@pytest.mark.parametrize("text", [TREC, XML])
def test_topics_of_trec(tmp_path, name, text):
    expected = [Topic("51", "Airbus subsidies & law"), Topic("q2", "two")]
    assert list(read_topics(pack_text(tmp_path / name, text))) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TREC.removesuffix("</top>"), r"t\.txt topic 2: no end \(</top>\)"),
        (TREC.replace("<title>two", ""), r"topic 2: no title and no query"),
        (XML.replace('number="q2"', ""), r"topic 2: no number in '><title>two"),
        (TREC + TREC, r"topic 3: query id '51' is on topic 1 already"),
        ("<DOC></DOC>", r"t\.txt: begins with <, without <top> or <topic> in it"),
        ("\ufeff\n<!DOCTYPE HTML><body>404", r"t\.txt: a page of HTML; fetch the file again"),
    ],
)
def test_topics_of_trec_that_are_cut_off(tmp_path, text, problem):
    with pytest.raises(DataError, match=problem):
        list(read_topics(pack_text(tmp_path / "t.txt", text)))


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zst", "Zstandard")])
def test_packed_bytes_under_a_plain_name_and_cut_off(tmp_path, suffix, kind):
    packed = pack_text(tmp_path / f"x{suffix}", '{"_id": "q1", "text": "a"}')
    plain = packed.rename(tmp_path / "t.jsonl")
    for read in (read_topics, read_run, read_placed_lines, partial(read_json, what="list", error=DataError)):
        with pytest.raises(DataError, match=f"t.jsonl: packed by {kind}, which its name does not say; unpack it"):
            list(read(plain))
    (cut := tmp_path / "t.tsv.gz").write_bytes(gzip.compress(b"q1\ta\n" * 1000)[:30])
    with pytest.raises(DataError, match=r"t\.tsv\.gz after line \d+: damaged gzip file"):
        list(read_topics(cut))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.tsv", "query-id\tcorpus-id\tscore\r\nq1\td1\t2\r\nq1\td2\t0\r\n"),
        ("n.tsv", "q1\td1\t2\nq1\td2\t0\n"),
        ("t.txt", "q1 0 d1 2.0\nq1 Q0 d2 0\n"),
        ("q.jsonl", JUDGED),
        ("t.tsv", "q1\t0\td1\t2\nq1\t0\td2\t0\n"),
        ("h.tsv.gz", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n"),
        ("t.txt.zst", "q1 0 d1 2\nq1 0 d2 0\n"),
        ("m.txt", "\ufeffq1 0\td1  2 \r\nq1\t0 d2 0\n"),
        ("sample.txt", "q1 0 d1 3 2\nq1 0 d2 1 0\n"),
        ("prels.txt", "q1 d1 2 1 0.25\nq1 d2 0 4 1.0\n"),
    ],
)
def test_qrels_in_each_layout(tmp_path, name, content):
    assert list(read_qrels(pack_text(tmp_path / name, content))) == [Qrel("q1", "d1", 2), Qrel("q1", "d2", 0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\td1\t1\nq1\td2\n", r"q\.tsv line 2: 2 columns, expected 3 as in line 1"),
        ("q1\td1\t1\nq1\td2\tyes\n", r"q\.tsv line 2: relevance 'yes' is not an integer"),
        ("q1\td1\t0.5\n", r"q\.tsv line 1: relevance '0\.5' is not an integer"),
        ("query_id doc_id rel\n", r"q\.tsv line 1: relevance 'rel', .*the only header that is read is query-id, c"),
        (f"q1\td1\t{'9' * 5000}\n", r"q\.tsv line 1: relevance '9+\.\.\. is not an integer of at most 9 digits"),
        ("q1\ta b\t1\n", r"q\.tsv line 1: white space in id 'a b'"),
        ("query-id\tcorpus-id\tscore\n", r"q\.tsv: no judgement in it"),
        ("q1 0 7 1\nq1 0 8\n", r"q\.tsv line 2: 3 columns, expected 4 as in line 1"),
        ("q1 0 d1 1 0.5\n", r"q\.tsv line 1: 5 columns, .* only judgements of a sample .* and prels are known"),
        ("q1 0 d1 1 x\n", r"q\.tsv line 1: 5 columns, "),
        ("q1 0 d1 3 1\nq1 0 d2 3 x\n", r"q\.tsv line 2: relevance 'x' is not an integer"),
        ("", r"q\.tsv: no judgement in it"),
    ],
)
def test_bad_qrels_are_told_with_file_and_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(read_qrels(pack_text(tmp_path / "q.tsv", content)))


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_escaped_ids_fit_a_run_and_can_be_undone(raw):
    escaped = escape_id(raw)
    assert unescape_id(escaped) == raw
    assert len(escaped.split()) == 1
    if raw.strip():
        assert check_id(raw, "here", escape=True) == escaped
        assert check_id(escaped, "here") == escaped


NO_IDS = {"  ": "empty id", "a\x00b": r"control character U\+0000", "a\x85b": "white space"}


@pytest.mark.parametrize("raw", [1.5, True, None, ["a"], *NO_IDS])
def test_ids_no_run_can_hold(raw):
    with pytest.raises(DataError, match=NO_IDS.get(str(raw), "is not a string")):
        check_id(raw, "here")


def test_ids_that_no_index_holds():
    """Lucene's limit is 32,766 bytes of UTF-8, also after escaping."""
    assert len(check_id("é" * 16_383, "here")) == 16_383
    for raw, escape in (("x" * 32_767, False), ("é" * 16_384, False), (" " + "%" * 11_000, True)):
        with pytest.raises(DataError, match=r"here: id .{82,85} has [\d,]+ bytes, an index holds 32,766; shorten it"):
            check_id(raw, "here", escape)
    with pytest.raises(DataError, match="here: id of many digits is not a string"):
        check_id(10**5000, "here")
