"""Hard negatives from a run, by hand: ranks, judged positives, seeds; the file trains; errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_plugins.train.mine import Mining, command, draw_negatives, mine
from lexvl_plugins.train.texts.query_passages import read_query_passages


@pytest.fixture
def corpus(tmp_path: Path) -> str:
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


def test_positives_and_the_query_itself_are_no_negatives(corpus: str, tmp_path: Path) -> None:
    """A document with the query's id is the query itself in BEIR's datasets alone."""
    [found] = mine(load_dataset(corpus), tmp_path / "run.trec", Mining(number=9))
    assert found.negatives == ["q", "d1", "d2", "d4"]
    [found] = mine(replace(load_dataset(corpus), remove_query=True), tmp_path / "run.trec", Mining(number=9))
    assert (found.query_id, found.positives, found.negatives) == ("q", ["d0", "d3"], ["d1", "d2", "d4"])
    [found] = mine(load_dataset(corpus), tmp_path / "run.trec", Mining(first=4, depth=5))
    assert found.negatives == ["d2"]


def test_draws_depend_on_the_seed_and_the_query_alone() -> None:
    ranked = [ScoredDoc("q", f"d{rank:02}", rank, -rank) for rank in range(1, 41)]
    minings = [Mining(depth=20, number=5, seed=seed) for seed in (1, 1, 2, 3)]
    chosen = [tuple(draw_negatives("q", ranked, ["d05"], mining)) for mining in minings]
    assert chosen[0] == chosen[1] and len(set(chosen)) == 3
    assert all(list(ids) == sorted(ids) and "d05" not in ids and max(ids) <= "d20" for ids in chosen)


def test_the_file_trains(corpus: str, tmp_path: Path) -> None:
    output = tmp_path / "mined.jsonl"
    options = ["--run", str(tmp_path / "run.trec"), "--corpus", corpus, "--output", str(output), "--number", "2"]
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


def test_errors_name_what_is_missing(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "other.trec").write_text("z Q0 d1 1 1 t\n")
    with pytest.raises(LexvlError, match="none of its 1 topics has a relevant document"):
        mine(load_dataset(corpus), tmp_path / "other.trec", Mining())
    run, output = tmp_path / "run.trec", str(tmp_path / "x.jsonl")
    for options, message in (
        (["--run", str(run), "--output", output], "no manifest names the dataset of its topics"),
        (["--run", str(run), "--output", output, "--first-rank", "9", "--depth", "3"], "is after --depth 3"),
        (["--run", str(run), "--output", "x.txt"], "expected a name in .jsonl"),
    ):
        result = CliRunner().invoke(make_app(command), options)
        assert isinstance(result.exception, LexvlError) and message in str(result.exception)
