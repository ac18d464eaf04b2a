"""Runs as columns: pyarrow's way and the way line by line give the same values, or the same error."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs import columns
from lexvl_anserini.runs.columns import (
    Hits,
    Irregular,
    build_text_array,
    fingerprints,
    map_run,
    parse_regular_hits,
    read_hits,
)
from lexvl_anserini.runs.trec import read_run

TREC = "q1 Q0 a 1 9 t\nq1 Q0 b 2 8.5 t\nq2 Q0 é😀 0 -1e3 t\nq3 Q0 a 7 .5 t\n"
MSMARCO = "q1\ta\t1\nq1\tb\t2\nq2\ta\t1\n"


def lines_of(hits: Hits) -> list[ScoredDoc]:
    """The hits as records."""
    rows = zip(hits.topics().tolist(), hits.doc_ids.to_pylist(), hits.ranks.tolist(), hits.scores.tolist(), strict=True)
    return [ScoredDoc(hits.query_ids[topic], *rest) for topic, *rest in rows]


def read(path: Path) -> list[ScoredDoc]:
    """All lines of a run, read as columns."""
    return map_run(path, lambda parts: [line for hits in parts for line in lines_of(hits)])


@pytest.mark.parametrize("text", [TREC, MSMARCO, TREC.removesuffix("\n"), TREC.replace(" ", "\t"), "\ufeff" + TREC])
@pytest.mark.parametrize("block", [1, 20, 1 << 20])
def test_regular_files(text: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "BLOCK_BYTES", block)
    run = tmp_path / "run"
    run.write_text(text)
    parts = list(parse_regular_hits(run))
    assert [line for hits in parts for line in lines_of(hits)] == list(read_run(run, unscored=True))
    assert len(parts) >= 2


def test_compressed_files(tmp_path: Path):
    run = tmp_path / "run.gz"
    run.write_bytes(gzip.compress(TREC.encode()))
    assert read(run) == list(read_run(run)) and list(parse_regular_hits(run))
    run.write_bytes(gzip.compress(TREC.encode())[:-10])
    with pytest.raises(DataError, match="damaged gzip file"):
        read(run)


@pytest.mark.parametrize(
    "text",
    [
        "q1 Q0 a  1 9 t\n", " q1 Q0 a 1 9 t\n", "q1 Q0 a 1 9 t \n", "q1 Q0 a 1 9 t\n\nq2 Q0 a 1 9 t\n",
        "q1 Q0 a 1 9 t\r\n", "q1 Q0 a\tb 1 9 t\n", "q1 Q0  1 9 t\n", "q1 Q0 a 1 9\n", "q1 Q0 a 1 9 t u\n",
        "q1 Q0 a 0x1 9 t\n", "q1 Q0 a 1.0 9 t\n", "q1 Q0 a 1 nan t\n", "q1 Q0 a 1 1e400 t\n", "q1 Q0 a 1 1_0 t\n",
        "q1 Q0 a 2147483648 9 t\n", "q1 Q0 a 1 9 \x0bt\n", "q1 Q0 a 1 9 t\nq1 Q0 a 2 8 t\n",
        "q1 Q0 a 1 9 t\nq2 Q0 a 1 9 t\nq1 Q0 b 2 8 t\n", "q1\ta\t0\n", "q1\ta\t1\nq1\tb\t1\n", "\n", "q1\n",
        "q1 Q0 a 1 9 t\rq2 Q0 a 1 9 t\r", "q1 Q0 a 1 9 t\rq2 Q0 a 1 9 t\nq3 Q0 a 1 9 t\n",
    ],
)  # fmt: skip
def test_irregular_files_are_read_line_by_line(text: str, tmp_path: Path):
    run = tmp_path / "run"
    run.write_text(text, newline="")
    with pytest.raises(Irregular):
        list(parse_regular_hits(run))
    try:
        expected = sorted(read_run(run, unscored=True), key=lambda line: line.query_id)
    except DataError as error:
        with pytest.raises(DataError) as found:
            read(run)
        assert str(found.value) == str(error)
    else:
        assert read(run) == expected


def test_all_lines_have_the_form_of_the_first_and_are_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "BLOCK_BYTES", 1)
    (tmp_path / "run").write_text("q1 Q0 a 1 9 t\nq2\ta\t1\n")
    with pytest.raises(DataError, match="run line 2: 3 columns, expected 6"):
        read(tmp_path / "run")
    for bad in (b"q1 Q0 \xff 1 9 t\n", b"q1 \xff a 1 9 t\n"):
        (tmp_path / "run").write_bytes(b"q1 Q0 b 2 9 t\n" + bad)
        with pytest.raises(DataError, match="run line 2: not UTF-8"):
            read(tmp_path / "run")


words = st.sampled_from(
    ["q1", "q2", "q3", "a", "b", "é", "1", "2", "3", "0x1", "9.5", "1e3", "-4", "+4", "nan", "\u00a0"]
)
blanks = st.sampled_from([" "] * 9 + ["\t", "  ", "\x0c", ""])
regular_line = st.tuples(
    st.sampled_from(["q1", "q2", "q3"]), st.just("Q0"), st.sampled_from("abcdefé"), st.integers(-1, 9), st.floats(-9, 9)
).map(lambda parts: " ".join(map(str, (*parts, "t"))))
noisy_line = st.lists(st.tuples(words, blanks), min_size=1, max_size=7).map(lambda parts: "".join(map("".join, parts)))
files = st.lists(st.one_of(regular_line, regular_line, regular_line, noisy_line), max_size=6)


@settings(max_examples=300)
@given(files, st.sampled_from(["\n", "\n", "\r\n"]), st.booleans(), st.integers(1, 80))
def test_both_ways_agree(lines: list[str], end: str, ended: bool, block: int):
    def outcome(reading) -> object:
        try:
            by_topic: dict[str, list[ScoredDoc]] = {}
            for line in reading():
                by_topic.setdefault(line.query_id, []).append(line)
            return by_topic
        except DataError as error:
            return str(error)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK_BYTES", block)
        run = Path(folder) / "run"
        run.write_text(end.join([*lines, ""] if ended else lines), newline="")
        assert outcome(lambda: read(run)) == outcome(lambda: read_run(run, unscored=True))


def test_fingerprints_tell_documents_of_a_topic_apart():
    texts = ["", "a", "b", "ab", "ba", "12345678", "123456789", "1234567812345678"]
    texts += ["é", "a\0", "\0", "x" * 100, "x" * 101]
    topics = np.zeros(len(texts), int)
    prints = fingerprints(build_text_array(texts), topics)
    assert len(set(prints.tolist())) == len(texts)
    assert not set(prints.tolist()) & set(fingerprints(build_text_array(texts), topics + 1).tolist())
    assert fingerprints(build_text_array(texts[::-1]), topics).tolist() == prints[::-1].tolist()
    assert fingerprints(build_text_array(texts)[3:5], topics[3:5]).tolist() == prints[3:5].tolist()
    assert len(fingerprints(build_text_array([]), topics[:0])) == 0


def test_lines_of_queries():
    hits = read_hits([ScoredDoc("1", "2", 1, 3), ScoredDoc("2", "2", 1, 3), ScoredDoc("1", "1", 2, 2)])
    assert lines_of(hits) == [ScoredDoc("1", "2", 1, 3), ScoredDoc("1", "1", 2, 2), ScoredDoc("2", "2", 1, 3)]
    assert hits.select_queries().tolist() == [1, 2]
