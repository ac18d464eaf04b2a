import gzip
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.data.lines import open_packed
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import RunManifest, name_manifest, read_run_manifest
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.trec import is_finished, read_run, sort_by_rank, strict_scores, write_run

FACTS = {"name": "beir/tiny"}, {"name": "splade"}, {"document": {"bits": 8}}
MANIFEST = RunManifest("beir/tiny/test", "beir/tiny", "test", None, *FACTS, "tiny", hits=10, remove_query=True)
LISTS = [
    [ScoredDoc("q1", "d1", 1, 12.0), ScoredDoc("q1", "d3", 2, 7.0), ScoredDoc("q1", "é😀", 3, 7.0)],
    [],
    [ScoredDoc("q3", "d1", 1, 0.1)],
]
TREC = "q1 Q0 d1 1 12 lexvl\nq1 Q0 d3 2 7 lexvl\nq1 Q0 é😀 3 7 lexvl\nq3 Q0 d1 1 0.1 lexvl\n"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x.trec"
    written = write_run(run, LISTS, MANIFEST)
    assert run.read_text(encoding="utf-8") == TREC
    assert list(read_run(run)) == [scored for documents in LISTS for scored in documents]
    assert written.counts == {"topics": 3, "topics_without_hits": 1, "lines": 4}
    assert read_run_manifest(run) == written
    assert written.request() == MANIFEST.request()


def test_msmarco_format(tmp_path: Path) -> None:
    run = tmp_path / "x.tsv"
    write_run(run, LISTS, RunManifest(**{**MANIFEST.to_json(), "output_format": "msmarco"}))
    assert run.read_text(encoding="utf-8") == "q1\td1\t1\nq1\td3\t2\nq1\té😀\t3\nq3\td1\t1\n"
    with pytest.raises(DataError, match="line 1: 3 columns, expected 6 .* an MS MARCO run holds no scores"):
        list(read_run(run))
    found = list(read_run(run, unscored=True))
    assert [hit[:3] for hit in found] == [hit[:3] for documents in LISTS for hit in documents]
    assert [hit.score for hit in found] == [1, 1 / 2, 1 / 3, 1]


@pytest.mark.parametrize("suffix", [".gz", ".GZ", ".zst"])
def test_a_compressed_run_reads_as_the_plain_one(tmp_path: Path, suffix: str) -> None:
    plain, packed = tmp_path / "x.trec", tmp_path / f"x.trec{suffix}"
    write_run(plain, LISTS, MANIFEST)
    written = write_run(packed, LISTS, MANIFEST)
    assert packed.read_bytes() != plain.read_bytes()
    with open_packed(packed) as source:
        assert source.read() == plain.read_bytes()
    assert list(read_run(packed)) == list(read_run(plain))
    assert written.sha256 == compute_sha256(packed)
    assert is_finished(packed, MANIFEST, overwrite=False)
    first = packed.read_bytes()
    write_run(packed, LISTS, MANIFEST)
    assert packed.read_bytes() == first
    for written in (plain, packed):
        before = written.read_bytes()
        with pytest.raises(ArtefactError):
            write_run(written, [LISTS[0], [ScoredDoc("q1", "d 1", 1, 1.0)]], MANIFEST)
        assert written.read_bytes() == before and name_manifest(written).is_file()


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    run = tmp_path / "x.trec"
    for bad in ([ScoredDoc("q1", "d 1", 1, 1.0)], [ScoredDoc("q1", "d1", 1, float("nan"))]):
        with pytest.raises(ArtefactError):
            write_run(run, [LISTS[0], bad], MANIFEST)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="unknown output format 'csv'; known: trec, msmarco"):
        write_run(run, LISTS, RunManifest(**{**MANIFEST.to_json(), "output_format": "csv"}))


TREC_LINE, MSMARCO_LINE = "q0 Q0 d0 1 3 tag", "q1\td1\t1"
MALFORMED = {
    TREC_LINE: [
        ("q1 Q0 d1 1 2.5", "line 2: 5 columns, expected 6"),
        *((f"q1 Q0 d1 {rank} 2.5 tag", f"line 2: rank '{rank}' and score '2.5'") for rank in ("one", "1.0", 10**30)),
        *((f"q1 Q0 d1 1 {score} tag", f"line 2: rank '1' and score '{score}'") for score in ("high", "2_5")),
        ("q1 Q0 d1 1 inf tag", "line 2: score 'inf' is not finite"),
        ("q0 Q0 d0 2 1 tag", "line 2: document 'd0' a second time for topic 'q0'"),
        ("q1 Q0 \udce9 1 1 tag", "line 2: not UTF-8"),
        ("1 7 1\r1 8 2", "line 2: a carriage return between columns, expected line feeds"),
    ],
    MSMARCO_LINE: [
        ("q1\td2\t1", "line 2: rank 1 a second time for topic 'q1'; without scores, ranks must be distinct"),
        ("q1\td1\t2", "line 2: document 'd1' a second time for topic 'q1'"),
        ("q1\td2\t0", "line 2: rank '0', expected a whole number from 1; a run has three columns"),
        ("q1\td2\t2.0", "line 2: rank '2.0', expected a whole number from 1"),
        ("q1\td2", "line 2: 2 columns, expected 3 as in the first line"),
        ("q1 Q0 d2 2 1 t", "line 2: 6 columns, expected 3 as in the first line"),
    ],
}


@pytest.mark.parametrize(("first", "line", "message"), [(f, *bad) for f, lines in MALFORMED.items() for bad in lines])
def test_malformed_lines_are_named(tmp_path: Path, first: str, line: str, message: str) -> None:
    run = tmp_path / "run"
    run.write_bytes(f"{first}\n{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message):
        list(read_run(run, unscored=first == MSMARCO_LINE))


def test_unreadable_runs(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TREC.encode())[:-9])
    (tmp_path / "plain.gz").write_bytes(b"not gzip")
    for name in ("absent.gz", "cut.gz", "plain.gz", "a\0b", "\ud800"):
        with pytest.raises(DataError, match=rf"{name}.*(cannot be read|damaged gzip file)"):
            list(read_run(tmp_path / name))


def test_runs_of_others_are_read_as_they_are(tmp_path: Path) -> None:
    run = tmp_path / "x.trec"
    run.write_text("\n30\tQ0\td1\t0\t1e-3\tSTANDARD\r\n\n10 Q0 d1 7 -2 x\n30 Q0 d2 0 5 STANDARD\n")
    first, *others = read_run(run)
    assert first == ("30", "d1", 0, 0.001) and others == [("10", "d1", 7, -2.0), ("30", "d2", 0, 5.0)]
    assert read_run_manifest(run) is None


def test_rank_order_where_the_ranks_say_one() -> None:
    # Ranks decide a tie; where they say nothing (all equal) or contradict the scores, the doc_id does.
    tie = [ScoredDoc("q", "b", 1, 3.0), ScoredDoc("q", "a", 2, 3.0)]
    assert sort_by_rank(reversed(tie)) == tie
    unranked = [ScoredDoc("q", "b", 0, 3.0), ScoredDoc("q", "a", 0, 3.0), ScoredDoc("q", "c", 0, 4.0)]
    assert [(d.doc_id, d.rank) for d in sort_by_rank(unranked)] == [("c", 1), ("a", 2), ("b", 3)]
    rescored = [ScoredDoc("q", "b", 1, 1.0), ScoredDoc("q", "a", 2, 3.0)]
    assert [d.doc_id for d in sort_by_rank(rescored)] == ["a", "b"]
    assert sort_by_rank([]) == []


@given(st.lists(st.one_of(st.integers(0, 2**24), st.floats(-10, 10, width=32)), max_size=30))
def test_strict_scores_fall_as_float32(scores: list[float]) -> None:
    strict = np.array(strict_scores(sorted(scores, reverse=True)), dtype=np.float32)
    assert (strict[1:] < strict[:-1]).all()
    assert strict_scores([5.0, 4.0]) == [5.0, 4.0]


def test_strict_scores_give_every_evaluator_our_order(tmp_path: Path) -> None:
    # Three tied documents, the relevant one at our rank 1: trec_eval puts it last (doc_id descending) unless strict.
    tied = [ScoredDoc("q", doc_id, rank, 25_500.0) for rank, doc_id in enumerate("abc", start=1)]
    values = {}
    for strict in (False, True):
        run = tmp_path / f"{strict}.trec"
        write_run(run, [tied], RunManifest(**{**MANIFEST.to_json(), "strict_scores": strict}))
        scores = {"q": {d.doc_id: d.score for d in read_run(run)}}
        values[strict] = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"}).evaluate(scores)["q"]
    assert values[False]["recip_rank"] == pytest.approx(1 / 3)
    assert values[True]["recip_rank"] == 1
