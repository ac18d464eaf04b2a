"""Layouts of FAISS against exact search: figures by hand, every layout on one small corpus, the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eval.analyses.ann import DenseCorpus, compare_layouts, grid, parameter_lists
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import UnknownName, UsageError


def vectors(count: int = 300, width: int = 16, queries: int = 5) -> DenseCorpus:
    found = np.random.default_rng(0).normal(size=(count + queries, width)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return DenseCorpus([f"d{i}" for i in range(count)], found[:count], found[count:])


def test_parameters() -> None:
    assert parameter_lists(["hnsw.ef_search=16,64", "hnsw.m=8"]) == {"hnsw": {"ef_search": ["16", "64"], "m": ["8"]}}
    assert list(grid({"a": ["1", "2"], "b": ["3"]})) == [{"a": "1", "b": "3"}, {"a": "2", "b": "3"}]
    assert list(grid({})) == [{}]
    for setting in ("ef_search=16", "hnsw.=16", "hnsw.m", "hnsw.m="):
        with pytest.raises(UsageError, match="expected LAYOUT.PARAMETER=VALUE"):
            parameter_lists([setting])


def test_layouts_are_compared_with_the_exact_ranking() -> None:
    settings = {"ivfpq": {"nprobe": ["1", "7"], "nbits": ["6"], "m": ["8"]}}
    names = ["flat", "sq8", "ivfpq", "binary", "hnsw"]
    rows = list(compare_layouts(vectors(), names, settings, [16, 8], [1, 10]))
    assert [(row.dimensions, row.layout) for row in rows] == [
        (d, name) for d in (16, 8) for name in ("flat", "sq8", "ivfpq", "ivfpq", "binary", "hnsw")
    ]
    whole = {row.layout: row for row in rows[:6]}
    assert whole["flat"].recall == {1: 1.0, 10: 1.0} and whole["hnsw"].recall[10] >= 0.95
    assert whole["sq8"].recall[10] >= 0.9 and whole["sq8"].bytes < whole["flat"].bytes / 3
    few, more = rows[2:4]
    assert few.parameters["nprobe"] == 1 and more.parameters["nprobe"] == 7 and few.recall[10] < more.recall[10]
    assert rows[6].recall[10] < 1 and rows[6].bytes < whole["flat"].bytes


def test_what_does_not_fit() -> None:
    for arguments, error, message in (
        ((["flat"], {"hnsw": {"m": ["8"]}}, [16], [1]), UsageError, "not compared; compared: flat"),
        ((["hsnw"], {}, [16], [1]), UnknownName, "did you mean 'hnsw'"),
        ((["flat"], {}, [17], [1]), UsageError, "dimensions 17: expected 1 to 16"),
        ((["hnsw"], {"hnsw": {"x": ["8"]}}, [16], [1]), UnknownName, "no|unknown parameter of FAISS layout 'hnsw' 'x'"),
    ):
        with pytest.raises(error, match=message):
            list(compare_layouts(vectors(), *arguments))


@pytest.mark.shared
def test_the_command(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLIP's vectors of a few texts, written by encode, compared on topics of a file."""
    from eval.analyses.ann import command
    from lexvl_anserini import load_dataset, load_encoder, write_impacts

    (tmp_path / "texts").mkdir()
    for number in range(12):
        (tmp_path / "texts" / f"t{number}.txt").write_text(f"a picture with {number} dogs")
    corpus = load_dataset(f"folder:{tmp_path / 'texts'}")
    model = load_encoder("clip", str(shared / "golden/clip/ckpt_eos_v4"), device="cpu", direction="text-to-text")
    write_impacts(corpus, model, tmp_path / "impacts")
    (tmp_path / "topics.tsv").write_text("q1\tfour dogs\nq2\ta picture\n")
    arguments = [str(tmp_path / "impacts"), "--topics", str(tmp_path / "topics.tsv"), "--hits", "3"]
    app = make_app(command)
    app([*arguments, "--layout", "flat", "--layout", "sq8", "--format", "json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    assert [row["layout"] for row in rows] == ["flat", "sq8"] and rows[0]["recall@3"] == 1.0
    assert rows[0]["dimensions"] == 24 and rows[0]["parameters"] == {}
    app([*arguments, "--layout", "flat", "--dimensions", "8"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "dims", "layout", "parameters", "bytes", "build", "s", "ms/query", "recall@3",
    ]  # fmt: skip
