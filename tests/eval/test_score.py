"""The commands: what they print, where judgements come from, and their errors for bad input."""

import csv
import gzip
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from corpus_folders import write_beir

from eval import beir, compare, demo, flickr8k, msmarco, score, table
from eval.measures import averages
from eval.measures.inputs import JudgementSource, describe_run
from eval.measures.measure_runs import measure_runs
from lexvl_anserini.cli import run as run_command
from lexvl_anserini.ground.manifest import RunManifest, name_manifest
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.trec import write_run

# Topic 1 finds its document at rank 2 behind itself; topic 2 finds its document at rank 1.
RUN = "1 Q0 1 1 9 toy\n1 Q0 a 2 8 toy\n1 Q0 b 3 7 toy\n2 Q0 b 1 5 toy\n"
QRELS = "query-id\tcorpus-id\tscore\n1\ta\t1\n2\tb\t1\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs and a BEIR data set `beir/toy`."""
    write_beir(tmp_path / "beir/toy", {"a": "x", "b": "y"}, {"1": "x", "2": "y"}, [("1", "a"), ("2", "b")])
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
    name_manifest(run).write_text(json.dumps(manifest.to_json()))


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


def test_rows_of_json_and_csv_are_measurements(toy: Path, call: Callable):
    arguments = "--run a.trec --qrels qrels.tsv --measure MRR@10 --per-topic --format"
    row = {"run": "a.trec", "dataset": "qrels.tsv", "measure": "RR@10", "ties": "trec_eval"}
    rows = [{**row, "query_id": topic, "value": value} for topic, value in (("1", 0.5), ("2", 1.0), ("all", 0.75))]
    code, out, _ = call(score.command, *arguments.split(), "json")
    assert (code, json.loads(out)) == (0, rows)
    _, out, _ = call(score.command, *arguments.split(), "csv")
    assert [*csv.DictReader(io.StringIO(out))] == [{**row, "value": str(row["value"])} for row in rows]


THREE_TOPICS = "1 Q0 a 1 2 s\n1 Q0 b 2 1 s\n2 Q0 a 1 2 s\n2 Q0 b 2 1 s\n3 Q0 a 1 1 s\n"


@pytest.mark.parametrize(
    ("run", "qrels", "expected"),
    [
        # Topics 1 and 2 of 3: of the 4 documents that they have, none is judged, or one (as not relevant).
        (THREE_TOPICS, "1 0 z 1\n2 0 z 1\n", "2 of its 3 topics and only 0.0 %"),
        (THREE_TOPICS, "1 0 b 0\n1 0 z 1\n2 0 z 1\n", ""),
        # All topics, no document.
        ("1 Q0 a 1 2 s\n1 Q0 b 2 1 s\n", "1 0 z 1\n", "1 of its 1 topics and only 0.0 %"),
        ("1 Q0 a 1 2 s\n1 Q0 b 2 1 s\n", "1 0 b 1\n", ""),
    ],
)
def test_the_share_of_topics_and_documents_that_are_judged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, run: str, qrels: str, expected: str
) -> None:
    (tmp_path / "run.trec").write_text(run)
    (tmp_path / "qrels").write_text(qrels)
    with caplog.at_level("INFO"):
        measure_runs([describe_run(tmp_path / "run.trec")], JudgementSource(tmp_path / "qrels"), ["AP"])
    lines = [record.getMessage() for record in caplog.records if " are judged by " in record.getMessage()]
    assert len(lines) == bool(expected)
    assert not expected or re.search(f"run.trec: {expected}", lines[0])


def test_headings_say_which_relevance_counts(toy: Path, call: Callable):
    (toy / "graded.txt").write_text("1 0 a 1\n2 0 b 2\n")
    graded = ["--qrels", "graded.txt", "--relevance-level", "2", "--measure", "RR@10", "--measure", "nDCG@10"]
    for module in (score, table, compare):
        code, out, err = call(module.command, "--run", "a.trec", "--run", "b.trec", *graded)
        assert code == 0 and "RR(rel=2)@10" in out and "nDCG@10" in out, err


def test_every_command_takes_names_of_systems_and_datasets(toy: Path, call: Callable):
    runs = ["--run", "a.trec", "--run", "b.trec", "--qrels", "qrels.tsv", "--dataset-label", "Toy"]
    named = [*runs, "--label", "my vdr", "--label", "theirs"]
    for module in (score, beir, msmarco, table, demo):
        code, out, _ = call(module.command, *named)
        assert code == 0 and "my vdr" in out and "Toy" in out and "a.trec" not in out and "qrels.tsv" not in out, out
    _, out, _ = call(compare.command, *named, "--measure", "RR@10")
    assert out.splitlines()[1].startswith("theirs  RR@10")
    assert "b.trec" in call(compare.command, *runs, "--measure", "RR@10")[1]
    assert call(score.command, *named, "--dataset-label", "Two")[0] == 2
    assert call(compare.command, *named[:-2])[0] == 2


def test_a_table_has_averages_or_refuses_them(toy: Path, call: Callable, monkeypatch: pytest.MonkeyPatch):
    write_manifest(toy / "a.trec")
    code, _, err = call(table.command, "--run", "a.trec", "--average", "beir-12")
    assert code == 1 and "beir-12 is the mean of 12 datasets, and 12 have no value" in err
    assert call(table.command, "--run", "a.trec", "--average", "beir-21")[0] == 2
    monkeypatch.setitem(averages.AVERAGES, "two", ("one", "other"))
    runs = "--run a.trec --run b.trec --qrels qrels.tsv --measure RR@1 --keep-query --average two --format json"
    assert "two is the mean of 2 datasets" in call(table.command, *runs.split())[2]
    shutil.copytree(toy / "beir/toy", toy / "beir/other")
    write_manifest(toy / "b.trec", dataset="beir/other")
    labelled = "--run a.trec --run b.trec --measure RR@1 --dataset-label one --dataset-label other --average two"
    [*_, last] = json.loads(call(table.command, *labelled.split(), "--format", "json")[1])
    assert (last["dataset"], last["measures"]) == ("two", {"RR@1": 0.75})


def test_the_manifest_knows_the_data_set_and_its_rule(toy: Path, call: Callable, caplog):
    write_manifest(toy / "a.trec")
    code, out, _ = call(score.command, "--run", "a.trec", "--measure", "RR@1", "--format", "json")
    [row] = json.loads(out)
    assert (code, row["dataset"], row["value"]) == (0, "beir/toy/test", 1)
    assert call(score.command, "--run", "a.trec", "--measure", "Recall@100")[0] == 0
    assert "a.trec: holds 10 hits per topic; Recall@100 cannot see more" in caplog.text
    name_manifest(toy / "b.trec").write_text("{}")
    assert "not a run's manifest" in call(score.command, "--run", "b.trec", "--qrels", "qrels.tsv")[2]
    _, out, _ = call(score.command, "--run", "a.trec", "--measure", "RR@1", "--format", "json", "--keep-query")
    assert json.loads(out)[0]["value"] == 1 / 2
    # The name of a dataset overrides the manifest.
    write_manifest(toy / "a.trec", dataset="beir/other")
    named = "--run a.trec --dataset beir/toy --data-dir . --measure RR@1 --format json"
    assert json.loads(call(score.command, *named.split())[1])[0]["dataset"] == "beir/toy/test"


def test_beir_drops_the_query_before_the_cut_and_msmarco_keeps_it(toy: Path, call: Callable):
    (toy / "filtered.trec").write_text("".join(line for line in RUN.splitlines(True) if "1 Q0 1 " not in line))
    for run in ("a.trec", "filtered.trec"):
        _, out, _ = call(beir.command, "--run", run, "--qrels", "qrels.tsv", "--format", "json")
        assert {row["measure"]: row["value"] for row in json.loads(out)} == {
            "nDCG@10": 1, "Recall@100": 1, "Recall@1000": 1, "RR@10": 1,
        }  # fmt: skip
    [row] = json.loads(call(msmarco.command, "--run", "a.trec", "--qrels", "qrels.tsv", "--format", "json")[1])
    assert (row["measure"], row["value"]) == ("RR@10", 3 / 4)


def test_table_puts_data_sets_side_by_side(toy: Path, call: Callable):
    write_manifest(toy / "a.trec")
    write_manifest(toy / "b.trec", encoder={"name": "bm25"})
    shutil.copytree(toy / "beir/toy", toy / "beir/other")
    (toy / "c.trec").write_text(RUN)
    write_manifest(toy / "c.trec", dataset="beir/other")
    runs = ["--run", "a.trec", "--run", "b.trec", "--run", "c.trec"]
    code, out, err = call(table.command, *runs, "--measure", "RR@10")
    assert (code, err) == (0, "") and out.splitlines()[2].split() == ["vdr", "(top_k=64)", "1.0000", "1.0000"]
    labelled = "--measure RR@10 --format json --label x --label y --label x"
    rows = json.loads(call(table.command, *runs, *labelled.split())[1])
    assert [(row["system"], row["dataset"], row["measures"]["RR@10"]) for row in rows] == [
        *(("x", "beir/toy/test", 1), ("y", "beir/toy/test", 1 / 2), ("x", "beir/other/test", 1))
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--run none.trec --qrels qrels.tsv", 1, "no such run"),
        ("--run a.trec --qrels none.tsv", 1, "cannot be read"),
        ("--run a.trec", 2, "give --qrels FILE or --dataset"),
        ("--run qrels.tsv --qrels qrels.tsv", 1, "line 1: rank 'score', expected a whole number"),
        ("--run a.trec --qrels empty.tsv", 1, "no judgement"),
        ("--run empty.trec --qrels qrels.tsv", 1, "the run is empty"),
        ("--run cut.trec.gz --qrels qrels.tsv", 1, "damaged gzip file"),
        ("--run a.trec --qrels cut.tsv.zst", 1, "cannot be read"),
        ("--run a.trec --qrels qrels.tsv --measure nDGC@10", 2, "did you mean 'nDCG@k'"),
        ("--run a.trec --qrels qrels.tsv --relevance-level 0", 2, "below 1"),
        ("--run a.trec --qrels qrels.tsv --relevance-level 2 --results found", 1, "scores 0 by RR(rel=2)@10"),
        ("--run a.trec --qrels qrels.tsv --label x --label y", 2, "2 labels for 1 runs"),
        ("--run qrels.tsv --qrels a.trec", 1, "swapped?"),
        ("--run spam.txt --qrels ms.tsv", 1, "swapped?"),
        ("--run a.trec --dataset bier/toy", 2, "did you mean 'beir'"),
    ],
)
def test_bad_input_is_one_line(toy: Path, call: Callable, arguments: str, code: int, message: str):
    files = {"empty.tsv": "", "empty.trec": "", "spam.txt": "1 0 a 1\n", "ms.tsv": "1\ta\t1\n"}
    for name, text in files.items():
        (toy / name).write_text(text)
    (toy / "cut.trec.gz").write_bytes(gzip.compress(RUN.encode())[:-9])
    (toy / "cut.tsv.zst").write_bytes(zstd(QRELS.encode())[:-2])
    found, out, err = call(score.command, *arguments.split())
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def zstd(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="zstd", asbytes=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\n" + text.replace("\n", " \n\n"),
        lambda text: text.replace(" ", "\t", 2),
        lambda text: text.replace(" ", " \t "),
    ],
    ids=["CRLF", "byte order mark", "blank lines", "tabs and blanks", "both between two columns"],
)
def test_the_same_numbers_from_other_white_space(toy: Path, call: Callable, change: Callable[[str], str]):
    (toy / "other.trec").write_text(change(RUN), newline="")
    (toy / "qrels.txt").write_text(change("1 0 a 1\n2 0 b 1\n"), newline="")
    arguments = ["--measure", "RR", "--measure", "P@2", "--format", "json"]
    code, out, _ = call(score.command, "--run", "other.trec", "--qrels", "qrels.txt", *arguments)
    assert (code, [row["value"] for row in json.loads(out)]) == (0, [3 / 4, 1 / 2])


@pytest.mark.parametrize("module", [score, beir, msmarco, table, demo, flickr8k, compare])
def test_every_command_reads_what_search_writes_for_ms_marco(toy: Path, call: Callable, module):
    run = [ScoredDoc("1", "b", 1, 8.0), ScoredDoc("1", "a", 2, 8.0)], [ScoredDoc("2", "b", 1, 5.0)]
    for name, output_format in (("six", "trec"), ("three", "msmarco")):
        about = RunManifest("", "", "", None, {}, {"name": "x"}, {}, "i", 9, False, output_format=output_format)
        write_run(Path(name), run, about)
    (toy / "foreign").write_bytes((toy / "three").read_bytes())
    found = {}
    for name in ("six", "three", "foreign"):
        runs = ["--run", name, *(("--run", "b.trec") if module is compare else ())]
        code, out, _ = call(module.command, *runs, "--qrels", "qrels.tsv", "--format", "json")
        assert code == 0, name
        found[name] = [[row.get(field) for field in ("value", "measures", "baseline")] for row in json.loads(out)]
    # Ranks are distinct, so the origin of a run decides nothing.
    assert found["six"] == found["three"] == found["foreign"]


def test_compare_prints_a_row_per_system_and_measure(toy: Path, call: Callable):
    for several in ([], ["--run", "a.trec"]):
        _, _, err = call(compare.command, "--run", "a.trec", *several, "--qrels", "qrels.tsv")
        assert "give --run twice or more" in err
    runs = ["--run", "a.trec", "--run", "b.trec", "--qrels", "qrels.tsv", "--measure", "RR@10"]
    code, out, _ = call(compare.command, *runs, "--test", "student", "--format", "json")
    [row] = json.loads(out)
    assert (code, row["system"], row["baseline"], row["value"], row["difference"]) == (0, "b.trec", 0.75, 0.25, -0.5)
    _, out, _ = call(compare.command, *runs)
    # One of two topics differs: +- of it are equally far from 0, so every way to sign is as extreme.
    row = "b.trec RR@10 0.7500 0.2500 -0.5000 -1.0000 to +0.0000 1.0000 1.0000 -1.000 -1.000 0/1/1"
    assert out.splitlines()[1].split() == row.split()


def test_a_comparison_as_csv_has_all_numbers(toy: Path, call: Callable):
    (toy / "c.trec").write_text("1 Q0 b 1 9 toy\n")
    runs = ["--run", "a.trec", "--run", "b.trec", "--run", "c.trec", "--qrels", "qrels.tsv", "--measure", "RR@10"]
    _, out, _ = call(compare.command, *runs, "--test", "student", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    records = json.loads(call(compare.command, *runs, "--test", "student", "--format", "json")[1])
    assert [[*row] for row in rows] == [[*record] for record in records]
    assert [row["system"] for row in rows] == ["b.trec", "c.trec"]
    for row, record in zip(rows, records, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in record.items()}
        assert (row["baseline_system"], row["test"], row["ties"]) == ("a.trec", "student", "trec_eval")
    # All values of c are 0: it correlates with nothing.
    assert (rows[1]["kendall"], records[1]["kendall"]) == ("", None)
