"""The commands: what they print, where judgements come from, and their errors for bad input."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eval import beir, compare, msmarco, score, table
from lexvl_anserini.cli import run as run_command
from lexvl_anserini.manifest import RunManifest, manifest_path

# Topic 1 finds its document at rank 2 behind itself; topic 2 finds its document at rank 1.
RUN = """\
1 Q0 1 1 9 toy
1 Q0 a 2 8 toy
1 Q0 b 3 7 toy
2 Q0 b 1 5 toy
"""
QRELS = "query-id\tcorpus-id\tscore\n1\ta\t1\n2\tb\t1\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs and a BEIR data set `beir/toy`."""
    data = tmp_path / "beir" / "toy"
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text(
        '{"_id": "a", "title": "", "text": "x"}\n{"_id": "b", "title": "", "text": "y"}\n'
    )
    (data / "queries.jsonl").write_text('{"_id": "1", "text": "x"}\n{"_id": "2", "text": "y"}\n')
    (data / "qrels" / "test.tsv").write_text(QRELS)
    (tmp_path / "a.trec").write_text(RUN)
    (tmp_path / "b.trec").write_text(RUN.replace("b 1 5", "a 1 5"))
    (tmp_path / "qrels.tsv").write_text(QRELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_manifest(run: Path, **changes: object) -> None:
    fields = {
        "topics": "beir/toy/test", "dataset": "beir/toy", "split": "test", "data_dir": str(run.parent), "corpus": {},
        "encoder": {"name": "vdr", "options": {"top_k": 64}}, "quantiser": {}, "index": "toy", "hits": 10,
        "remove_query": True,
    }  # fmt: skip
    manifest = RunManifest(**{**fields, **changes})  # type: ignore[arg-type]
    manifest_path(run).write_text(json.dumps(manifest.to_json()))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs a command as the command line would: exit code, stdout, stderr."""

    def run(command: Callable[..., None], *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        with pytest.raises(SystemExit) as end:
            run_command(command)
            sys.exit(0)
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return run


def test_json_rows_are_measurements(toy: Path, call: Callable):
    code, out, _ = call(
        score.command,
        "--run",
        "a.trec",
        "--qrels",
        "qrels.tsv",
        "--measure",
        "MRR@10",
        "--format",
        "json",
        "--per-topic",
    )
    row = {"run": "a.trec", "dataset": "qrels.tsv", "measure": "RR@10"}
    assert code == 0
    assert json.loads(out) == [
        {**row, "query_id": "1", "value": 1 / 2, "ties": "trec_eval"},
        {**row, "query_id": "2", "value": 1, "ties": "trec_eval"},
        {**row, "query_id": "all", "value": 3 / 4, "ties": "trec_eval"},
    ]


def test_csv_rows_are_measurements(toy: Path, call: Callable):
    _, out, _ = call(
        score.command,
        "--run",
        "a.trec",
        "--qrels",
        "qrels.tsv",
        "--measure",
        "P@1",
        "--measure",
        "AP",
        "--format",
        "csv",
    )
    row = {"run": "a.trec", "dataset": "qrels.tsv", "query_id": "all", "ties": "trec_eval"}
    assert list(csv.DictReader(io.StringIO(out))) == [
        {**row, "measure": "P@1", "value": "0.5"},
        {**row, "measure": "AP", "value": "0.75"},
    ]


def test_text_has_a_row_per_run(toy: Path, call: Callable):
    _, out, _ = call(score.command, "--run", "a.trec", "--run", "b.trec", "--qrels", "qrels.tsv", "--measure", "RR@10")
    assert out.splitlines() == [
        "run     dataset     RR@10",
        "a.trec  qrels.tsv  0.7500",
        "b.trec  qrels.tsv  0.2500",
        "ties: trec_eval (equal scores by doc id, descending)",
    ]


def test_the_manifest_knows_the_data_set_and_its_rule(toy: Path, call: Callable):
    write_manifest(toy / "a.trec")
    code, out, _ = call(score.command, "--run", "a.trec", "--measure", "RR@1", "--format", "json")
    [row] = json.loads(out)
    assert (code, row["dataset"], row["value"]) == (0, "beir/toy/test", 1)
    _, out, _ = call(score.command, "--run", "a.trec", "--measure", "RR@1", "--format", "json", "--keep-query")
    assert json.loads(out)[0]["value"] == 1 / 2


def test_a_cut_deeper_than_the_lists_is_told(toy: Path, call: Callable, caplog: pytest.LogCaptureFixture):
    write_manifest(toy / "a.trec", hits=10)
    assert call(score.command, "--run", "a.trec", "--measure", "Recall@100", "--measure", "RR@10")[0] == 0
    assert "a.trec: holds 10 hits per topic; Recall@100 cannot see more" in caplog.text


def test_a_data_set_by_name_overrides_the_manifest(toy: Path, call: Callable):
    write_manifest(toy / "a.trec", dataset="beir/other")
    _, out, _ = call(
        score.command, "--run", "a.trec", "--dataset", "beir/toy", "--data-dir", str(toy), "--measure", "RR@1",
        "--format", "json",
    )  # fmt: skip
    assert json.loads(out)[0]["dataset"] == "beir/toy/test"


def test_beir_drops_the_query_before_the_cut_and_twice_is_once(toy: Path, call: Callable):
    (toy / "filtered.trec").write_text("".join(line for line in RUN.splitlines(True) if "1 Q0 1 " not in line))
    for run in ("a.trec", "filtered.trec"):
        _, out, _ = call(beir.command, "--run", run, "--qrels", "qrels.tsv", "--format", "json")
        assert {row["measure"]: row["value"] for row in json.loads(out)} == {
            "nDCG@10": 1, "Recall@100": 1, "Recall@1000": 1, "RR@10": 1,
        }  # fmt: skip


def test_msmarco_is_the_reciprocal_rank_and_keeps_the_query(toy: Path, call: Callable):
    _, out, _ = call(msmarco.command, "--run", "a.trec", "--qrels", "qrels.tsv", "--format", "json")
    [row] = json.loads(out)
    assert (row["measure"], row["value"]) == ("RR@10", 3 / 4)


def test_table_puts_data_sets_side_by_side(toy: Path, call: Callable):
    write_manifest(toy / "a.trec")
    write_manifest(toy / "b.trec", encoder={"name": "bm25"})
    other = toy / "beir" / "other"
    (toy / "beir" / "toy").rename(other)
    (toy / "beir" / "toy").mkdir()
    for path in other.iterdir():
        (toy / "beir" / "toy" / path.name).symlink_to(path)
    (toy / "c.trec").write_text(RUN)
    write_manifest(toy / "c.trec", dataset="beir/other")
    runs = ["--run", "a.trec", "--run", "b.trec", "--run", "c.trec"]
    code, out, err = call(table.command, *runs, "--measure", "RR@10")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "                beir/toy/test  beir/other/test",
        "system                  RR@10            RR@10",
        "vdr (top_k=64)         1.0000           1.0000",
        "bm25                   0.5000                –",
        "ties: rank (equal scores in the order of the run's ranks)",
    ]
    _, out, _ = call(table.command, *runs, "--measure", "RR@10", "--format", "json", "--label", "x", "--label", "y", "--label", "x")  # fmt: skip # noqa: E501
    assert [(row["system"], row["dataset"], row["measures"]) for row in json.loads(out)] == [
        ("x", "beir/toy/test", {"RR@10": 1}),
        ("y", "beir/toy/test", {"RR@10": 1 / 2}),
        ("x", "beir/other/test", {"RR@10": 1}),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--run", "none.trec", "--qrels", "qrels.tsv"], 1, "none.trec: no such run"),
        (["--run", "a.trec", "--qrels", "none.tsv"], 1, "none.tsv: cannot be read"),
        (
            ["--run", "a.trec"],
            2,
            "a.trec: no manifest beside the run names its dataset; give --qrels FILE or --dataset",
        ),
        (["--run", "qrels.tsv", "--qrels", "qrels.tsv"], 1, "qrels.tsv line 1: 3 columns, expected 6"),
        (["--run", "a.trec", "--qrels", "empty.tsv"], 1, "empty.tsv: no judgement"),
        (["--run", "empty.trec", "--qrels", "qrels.tsv"], 1, "empty.trec: the run is empty"),
        (["--run", "a.trec", "--qrels", "foreign.tsv"], 1, "share no topic; e.g. run has '1', qrels have 'PLAIN-2'"),
        (
            ["--run", "twice.trec", "--qrels", "qrels.tsv"],
            1,
            "twice.trec line 2: document 'a' a second time for topic '1'",
        ),
        (["--run", "a.trec", "--qrels", "qrels.tsv", "--measure", "nDGC@10"], 2, "did you mean 'nDCG@k'"),
        (
            ["--run", "a.trec", "--qrels", "qrels.tsv", "--format", "jsn"],
            2,
            "unknown format 'jsn'; did you mean 'json'",
        ),
        (["--run", "a.trec", "--qrels", "qrels.tsv", "--ties", "ranks"], 2, "did you mean 'rank'"),
        (["--run", "a.trec", "--qrels", "qrels.tsv", "--relevance-level", "0"], 2, "relevance level 0 is below 1"),
        (["--run", "a.trec", "--dataset", "bier/toy"], 2, "did you mean 'beir'"),
    ],
)
def test_bad_input_is_one_line(toy: Path, call: Callable, arguments: list[str], code: int, message: str):
    (toy / "empty.tsv").write_text("")
    (toy / "empty.trec").write_text("")
    (toy / "foreign.tsv").write_text("PLAIN-2\ta\t1\n")
    (toy / "twice.trec").write_text("1 Q0 a 1 2 t\n1 Q0 a 2 1 t\n")
    found, out, err = call(score.command, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_compare_prints_a_row_per_system_and_measure(toy: Path, call: Callable):
    runs = ["--run", "a.trec", "--run", "b.trec", "--qrels", "qrels.tsv", "--measure", "RR@10"]
    code, out, _ = call(compare.command, *runs, "--test", "student", "--format", "json")
    [row] = json.loads(out)
    assert (code, row["system"], row["baseline"], row["value"], row["difference"]) == (0, "b.trec", 0.75, 0.25, -0.5)
    _, out, _ = call(compare.command, *runs)
    # One of two topics differs: +- of it are equally far from 0, so every way to sign is as extreme.
    assert out.splitlines()[1].split() == [
        "b.trec",
        "RR@10",
        "0.7500",
        "0.2500",
        "-0.5000",
        "1.0000",
        "1.0000",
        "0/1/1",
    ]


def test_compare_needs_two_runs_of_one_data_set(toy: Path, call: Callable):
    for runs in (["a.trec"], ["a.trec", "a.trec"]):
        code, _, err = call(compare.command, *(part for run in runs for part in ("--run", run)), "--qrels", "qrels.tsv")
        assert (code, "give --run twice or more" in err) == (2, True)


def test_labels_must_be_as_many_as_runs(toy: Path, call: Callable):
    code, _, err = call(table.command, "--run", "a.trec", "--qrels", "qrels.tsv", "--label", "x", "--label", "y")
    assert code == 2
    assert "2 labels for 1 runs" in err


def test_a_damaged_manifest_is_told(toy: Path, call: Callable):
    manifest_path(toy / "a.trec").write_text("{}")
    code, _, err = call(score.command, "--run", "a.trec", "--qrels", "qrels.tsv")
    assert code == 1
    assert "not a run's manifest" in err


@pytest.mark.parametrize("module", ["score", "beir", "msmarco", "table", "compare", "quantisation"])
def test_help_ends_with_an_example_and_loads_nothing_heavy(module: str):
    code = (
        f"import sys\nfrom eval.{module} import command\nfrom lexvl_anserini.cli import make_app\n"
        "try:\n    make_app(command)(['--help'])\nexcept SystemExit: pass\n"
        "found = {'ranx', 'numba', 'pandas', 'torch', 'scipy'} & set(sys.modules)\n"
        "assert not found, found"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert f"Example: python -m eval.{module} --" in told.stdout
