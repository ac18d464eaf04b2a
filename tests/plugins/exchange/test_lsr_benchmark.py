"""Our engine in lsr-benchmark: by its own runner, on its formats, and its evaluation of the result."""

import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

ENGINE = "lexvl_plugins.exchange.adapters.lsr_benchmark_engine"
COMMAND = (
    "python3 -m lexvl_plugins.exchange.adapters.lsr_benchmark_engine "
    "--dataset $inputDataset --embedding $embeddings --output $outputDir"
)
DOCUMENTS = {"d1": {"boat": 2.0, "moon": 1.0}, "d2": {"moon": 2.0}, "d3": {}, "d4": {"moon": 2.0}}
QUERIES = {"q1": {"boat": 1.0, "moon": 0.5}, "q2": {"moon": 3.0, "tree": 1.0}, "q3": {"boat": 1.0}, "q4": {"tree": 1.0}}
# 2 * 1 + 1 * 0.5; 2 * 0.5 twice, then 2 * 3 twice and 1 * 3; 2 * 1: as exact as 8 bits are.
EXPECTED = [("q1", "d1", 2.5), ("q1", "d2", 1.0), ("q1", "d4", 1.0), ("q2", "d2", 6.0), ("q2", "d4", 6.0)]
EXPECTED += [("q2", "d1", 3.0), ("q3", "d1", 2.0)]


def write_side(folder: Path, side: str, vectors: Mapping[str, Mapping[str, float]]) -> None:
    (folder / side).mkdir(parents=True)
    (folder / side / f"{side}-ids.txt").write_text("\n".join(vectors))
    ends = np.cumsum([0, *map(len, vectors.values())])
    terms = np.array([term for vector in vectors.values() for term in vector])
    weights = np.array([weight for vector in vectors.values() for weight in vector.values()], np.float32)
    np.savez(folder / side / f"{side}-embeddings.npz", data=weights, indices=terms, indptr=ends)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folders `tiny` and `words` in lsr-benchmark's formats."""
    pytest.importorskip("lsr_benchmark", reason="lsr-benchmark is not installed")
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    segments = [{"start": 1, "end": 1, "text": "x"}]
    with gzip.open(tiny / "corpus.jsonl.gz", "wt") as file:
        for doc_id in DOCUMENTS:
            file.write(json.dumps({"doc_id": doc_id, "default_text": "x", "segments": segments}) + "\n")
    (tiny / "queries.jsonl").write_text("".join(json.dumps({"qid": q, "query": q}) + "\n" for q in QUERIES))
    (tiny / "qrels.txt").write_text("q1 0 d2 1\nq2 0 d2 1\n")
    write_side(tmp_path / "words", "doc", DOCUMENTS)
    write_side(tmp_path / "words", "query", QUERIES)
    return tmp_path


def read_run(path: Path) -> list[Any]:
    with gzip.open(path, "rt") as file:
        lines = [line.split() for line in file]
    assert [line[1::4] for line in lines] == [["Q0", "lexvl"]] * len(lines)
    return [(query, doc_id, pytest.approx(float(score), abs=0.02)) for query, _, doc_id, _, score, _ in lines]


def test_its_runner_and_its_evaluation(data, monkeypatch):
    """Docker is the only part that is not there: the command of the image runs here."""
    runner = import_module("lsr_benchmark._commands._retrieval")
    main, lsr_benchmark = import_module(ENGINE).main, import_module("lsr_benchmark").main

    class Local:
        def run(self, *, command: str, input_dir: Path, output_dir: Any, input_run: Path, **others: Any) -> None:
            places = {"inputDataset": input_dir, "embeddings": input_run, "outputDir": output_dir}
            python, _, module, *arguments = shlex.split(Template(command).substitute(places))
            assert (python, module) == ("python3", main.callback.__module__)
            done = CliRunner().invoke(main, arguments, catch_exceptions=False)
            assert done.exit_code == 0 and "of 4 weights of documents 0.00% become 0" in done.output

    class Client:
        local_execution = Local()

    engines = {"lexvl": {"image": "lexvl", "command": COMMAND}}
    for name, value in (
        ("Client", Client),
        ("verify_docker_installation", lambda: (runner.FormatMsgType.OK, "")),
        ("docker_supported_target_platform", lambda: "linux/amd64"),
        ("EXAMPLE_RETRIEVAL_ENGINE", {"linux/amd64": engines}),
    ):
        monkeypatch.setattr(runner, name, value)

    def call(*arguments: Any) -> None:
        done = CliRunner().invoke(lsr_benchmark, [str(argument) for argument in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output

    call("retrieval", "lexvl", "--dataset", data / "tiny", "--embedding", data / "words", "--out", data / "runs")
    [made] = (data / "runs" / "tiny" / "words").iterdir()
    assert made.name == "lexvl" and read_run(made / "run.txt.gz") == EXPECTED
    files = sorted(path.name for path in made.rglob("*"))
    assert files == ["index-metadata.yml", "retrieval-metadata.yml", "run.txt.gz"]
    measures = ("-m", "RR", "-m", "runtime_wallclock")
    call("evaluate", made, *measures, "-o", data / "scores.json")
    scores = {name: next(iter(cell.values())) for name, cell in json.loads((data / "scores.json").read_text()).items()}
    # d2 is second for q1 and first for q2; d4, which ties with it, comes after it.
    assert scores["RR"] == 0.75 and scores["index.runtime_wallclock"] and scores["retrieval.runtime_wallclock"]


def test_depth_and_bits(data):
    folders: Sequence[Any] = ("--dataset", data / "tiny", "--embedding", data / "words", "--output", data / "out")
    done = CliRunner().invoke(
        import_module(ENGINE).main, [*map(str, folders), "--k", "1", "--bits", "1"], catch_exceptions=False
    )
    assert "of 4 weights of documents 25.00% become 0" in done.output  # 1 of 2 is half a step, which is rounded to even
    assert [line[:2] for line in read_run(data / "out" / "run.txt.gz")] == [("q1", "d1"), ("q2", "d2"), ("q3", "d1")]
