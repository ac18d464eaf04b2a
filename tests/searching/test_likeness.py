"""The similarity join of an index with itself, against all pairs one by one."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from shard_folders import write_shards

from lexvl_anserini.engines.lucene.vectors import IndexVectors, read_vectors
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.searching import likeness as joining
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.duplicates import command
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.likeness import Alike, Likeness, Pair

Rows = list[list[int]]


def likeness(rows: Rows, threshold: float) -> Likeness:
    """Documents 00, 01, ... of these impacts."""
    impacts = sparse.csr_matrix(np.array(rows, np.int64))
    impacts.eliminate_zeros()
    return Likeness(IndexVectors([f"{row:02}" for row in range(len(rows))], list("abcdef"), impacts), threshold)


def all_pairs(rows: Rows, threshold: float) -> set[tuple[str, str]]:
    """The pairs of cosine `threshold` or more, in integers."""
    least, fitting = Fraction(str(threshold)) ** 2, set()
    for (x, first), (y, second) in combinations(enumerate(rows), 2):
        dot, ones, others = (
            sum(a * b for a, b in zip(*two, strict=True)) for two in ((first, second), (first, first), (second, second))
        )
        if ones and others and dot * dot >= least * ones * others:
            fitting.add((f"{x:02}", f"{y:02}"))
    return fitting


ROWS = st.lists(st.lists(st.sampled_from([0, 0, 1, 2, 3, 4, 255]), min_size=6, max_size=6), min_size=1, max_size=12)


@settings(max_examples=300)
@given(rows=ROWS, threshold=st.sampled_from([0.05, 0.5, 0.6, 0.8, 0.95, 0.999, 1.0]), chunk=st.sampled_from([1, 40]))
def test_the_join_finds_what_all_pairs_find(rows: Rows, threshold: float, chunk: int) -> None:
    like = likeness(rows, threshold)
    before, joining.CHUNK = joining.CHUNK, chunk
    try:
        joined = list(like.pairs())
    finally:
        joining.CHUNK = before
    expected = all_pairs(rows, threshold)
    assert len(joined) == len(expected) and {pair[:2] for pair in joined} == expected
    assert [pair[:2] for pair in joined] == sorted(expected)
    for doc_id in like.vectors.ids:
        others = {x if y == doc_id else y for x, y in expected if doc_id in (x, y)}
        assert set(like.like(doc_id)) == others
    assert {doc_id for group in like.groups() for doc_id in group} == {doc_id for pair in expected for doc_id in pair}


def test_cosines_groups_and_lists_by_hand() -> None:
    # (3, 4) and (4, 3) have the cosine 24/25, exactly at the threshold; the third has it with neither.
    like = likeness([[3, 4, 0], [4, 3, 0], [0, 0, 5], [0, 0, 0], [0, 0, 9]], 0.96)
    assert list(like.pairs()) == [Pair("00", "01", 0.96), Pair("02", "04", 1.0)]
    assert like.groups() == [["00", "01"], ["02", "04"]]
    assert like.collapsed(["04", "01", "03", "02", "00"]) == [
        Alike("04", ("02",)),
        Alike("01", ("00",)),
        Alike("03", ()),
    ]
    assert like.collapsed(["04", "01", "03"], most=1) == [Alike("04", ("02",))]
    assert like.like("nowhere") == () and list(likeness([[3, 4], [4, 3]], 0.9600001).pairs()) == []


def test_an_index_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"b": {"x": 3, "y": 4}, "a": {"x": 4, "y": 3}, "é1": {"z": 7}, "none": {}}
    write_shards(tmp_path / "shards", list(rows.items()))
    index = build_index(tmp_path / "shards", tmp_path / "index")
    vectors = read_vectors(tmp_path / "index")
    assert vectors.ids == ["a", "b", "none", "é1"] and vectors.terms == ["x", "y", "z"]
    assert vectors.impacts.toarray().tolist() == [[4, 3, 0], [3, 4, 0], [0, 0, 0], [0, 0, 7]]
    assert list(Likeness.of(index, 0.9).pairs()) == [Pair("a", "b", 0.96)]
    (tmp_path / "index").rename(tmp_path / "album-index")
    (tmp_path / "album").mkdir()
    (tmp_path / "album-index").rename(tmp_path / "album" / "index")
    index = Index(tmp_path / "album" / "index", index.manifest)
    command(index=tmp_path / "album", threshold=0.9)
    assert capsys.readouterr().out == "a  b\n1 groups; 1 of 4 documents are near-duplicates of another\n"
    command(index=tmp_path / "album", threshold=0.97, style="json")
    assert orjson.loads(capsys.readouterr().out) == {
        "index": str(tmp_path / "album" / "index"),
        "threshold": 0.97,
        "groups": [],
        "pairs": [],
    }
    with pytest.raises(UsageError, match=r"threshold 95: expected a cosine above 0 and at most 1, such as 0\.93"):
        Likeness.of(index, 95)
    with pytest.raises(ArtefactError, match="no Lucene index"):
        read_vectors(tmp_path / "shards")
