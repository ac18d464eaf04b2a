import gzip

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.data import lines
from lexvl_anserini.data.checks import check_id, escape_id, unescape_id
from lexvl_anserini.data.topics import read_qrels, read_topics
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Qrel, Topic


def written(tmp_path, name, content):
    path = tmp_path / name
    data = content if isinstance(content, bytes) else content.encode()
    pack = {".gz": gzip.compress, ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True)}
    path.write_bytes(pack.get(path.suffix, bytes)(data))
    return path


TABBED = "\ufeffq1\tfirst query\r\n\nq2\tübung\tmit Tab\n"
JSON_LINES = '{"_id": "q1", "text": "first query", "metadata": {}}\n{"_id": "q2", "text": "übung\\tmit Tab"}'


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz", "t.txt", "q.jsonl", "q.jsonl.gz"])
def test_topics_in_each_layout(tmp_path, name):
    path = written(tmp_path, name, JSON_LINES if "jsonl" in name else TABBED)
    assert list(read_topics(path)) == [Topic("q1", "first query"), Topic("q2", "übung\tmit Tab")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "q1\ta\nq2 no tab\n", r"t\.tsv line 2: no tab; expected query_id, tab, text"),
        ("t.tsv", "q1\ta\nq1\tb\n", r"t\.tsv line 2: query id 'q1' is on line 1 already"),
        ("t.tsv", "q 1\ta\n", r"t\.tsv line 1: white space in id 'q 1'.*--escape-ids"),
        ("t.tsv", "\ta\n", r"t\.tsv line 1: empty id"),
        ("t.tsv", "\n\n", r"t\.tsv: no query in it"),
        ("t.tsv", b"q1\tcaf\xe9\n", r"t\.tsv line 1: not valid UTF-8 \(0xe9 at byte 7 of the line\)"),
        ("t.json", "{}", r"t\.json: unknown format of topics '\.json'; expected \.tsv"),
        ("t.jsonl", '{"text": "a"}', r"t\.jsonl line 1: no '_id'; keys found: text"),
        ("t.jsonl", '{"_id": "a"}', r"t\.jsonl line 1: no 'text'; keys found: _id"),
        ("t.jsonl", '{"_id": "a", "text": null}', r"t\.jsonl line 1: 'text' is null, expected a string"),
    ],
)
def test_bad_topics_are_told_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        list(read_topics(written(tmp_path, name, content)))


@pytest.mark.parametrize("name", ["t.tsv.gz", "t.tsv.zst"])
def test_a_line_that_unpacks_without_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(lines, "MOST_LINE", 1000)
    path = written(tmp_path, name, f"q1\t{'a' * 996}\nq2\tb\n")
    assert [topic.query_id for topic in read_topics(path)] == ["q1", "q2"]
    with pytest.raises(DataError, match=f"{name}: unpacks to a line of more than 1,000 bytes"):
        list(read_topics(written(tmp_path, name, f"q1\ta\nq2\t{'a' * 1_000_000}")))


def test_truncated_gzip(tmp_path):
    path = tmp_path / "t.tsv.gz"
    path.write_bytes(gzip.compress(b"q1\ta\n" * 1000)[:30])
    with pytest.raises(DataError, match=r"t\.tsv\.gz after line \d+: damaged gzip file"):
        list(read_topics(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.tsv", "query-id\tcorpus-id\tscore\r\nq1\td1\t2\r\nq1\td2\t0\r\n"),
        ("n.tsv", "q1\td1\t2\nq1\td2\t0\n"),
        ("t.txt", "q1 0 d1 2\nq1 Q0 d2 0\n"),
        ("t.tsv", "q1\t0\td1\t2\nq1\t0\td2\t0\n"),
        ("h.tsv.gz", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n"),
        ("t.txt.zst", "q1 0 d1 2\nq1 0 d2 0\n"),
        ("m.txt", "\ufeffq1 0\td1  2 \r\nq1\t0 d2 0\n"),
        ("sample.txt", "q1 0 d1 3 2\nq1 0 d2 1 0\n"),
        ("prels.txt", "q1 d1 2 1 0.25\nq1 d2 0 4 1.0\n"),
    ],
)
def test_qrels_in_each_layout(tmp_path, name, content):
    assert list(read_qrels(written(tmp_path, name, content))) == [Qrel("q1", "d1", 2), Qrel("q1", "d2", 0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\td1\t1\nq1\td2\n", r"q\.tsv line 2: 2 columns, expected 3 \(query-id, corpus-id, score\) or TREC's 4"),
        ("q1\td1\t1\nq1\td2\tyes\n", r"q\.tsv line 2: relevance 'yes' is not an integer"),
        ("q1\td1\t0.5\n", r"q\.tsv line 1: relevance '0\.5' is not an integer"),
        (f"q1\td1\t{'9' * 5000}\n", r"q\.tsv line 1: relevance '9+\.\.\. is not an integer of at most 9 digits"),
        ("q1\ta b\t1\n", r"q\.tsv line 1: white space in id 'a b'"),
        ("query-id\tcorpus-id\tscore\n", r"q\.tsv: no judgement in it"),
        ("q1 0 7 1\nq1 0 8\n", r"q\.tsv line 2: 3 columns, expected .* as many in every line"),
        ("q1 0 d1 1 0.5\n", r"q\.tsv line 1: 5 columns, .* only judgements of a sample .* and prels are known"),
        ("q1 0 d1 1 x\n", r"q\.tsv line 1: 5 columns, "),
        ("q1 0 d1 3 1\nq1 0 d2 3 x\n", r"q\.tsv line 2: relevance 'x' is not an integer"),
        ("", r"q\.tsv: no judgement in it"),
    ],
)
def test_bad_qrels_are_told_with_file_and_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        list(read_qrels(written(tmp_path, "q.tsv", content)))


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_escaped_ids_fit_a_run_and_can_be_undone(raw):
    escaped = escape_id(raw)
    assert unescape_id(escaped) == raw
    assert len(escaped.split()) == 1
    if raw.strip():
        assert check_id(raw, "here", escape=True) == escaped
        assert check_id(escaped, "here") == escaped


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        *((raw, "is not a string") for raw in (1.5, True, None, ["a"])),
        ("  ", "empty id"),
        ("a\x00b", r"control character U\+0000"),
        ("a\x85b", "white space"),
    ],
)
def test_ids_no_run_can_hold(raw, message):
    with pytest.raises(DataError, match=message):
        check_id(raw, "here")


def test_ids_that_no_index_holds():
    """Lucene's limit is 32,766 bytes of UTF-8, also after escaping."""
    assert len(check_id("é" * 16_383, "here")) == 16_383
    for raw, escape in (("x" * 32_767, False), ("é" * 16_384, False), (" " + "%" * 11_000, True)):
        with pytest.raises(DataError, match=r"here: id .{82,85} has [\d,]+ bytes, an index holds 32,766; shorten it"):
            check_id(raw, "here", escape)
    with pytest.raises(DataError, match="here: id of many digits is not a string"):
        check_id(10**5000, "here")
