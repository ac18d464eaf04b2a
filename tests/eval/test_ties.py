"""Equal scores: which rule a table has, that it is printed and stored, and the line where the rules differ."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoking import call_command
from typer.testing import Result

from eval import beir, compare, demo, msmarco, score, table
from eval.measures.inputs import RunCard, collect_relevant, describe_run, find
from eval.measures.measure_runs import choose_ties
from eval.measures.metrics import evaluate
from eval.measures.significance import compare_runs
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.manifest import RunManifest, name_manifest, read_run_manifest
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.runs.columns import read_hits
from lexvl_anserini.runs.trec import write_run

# Topic 1 ties a and b, and only a, our first, is relevant: RR is 1 by rank and 1/2 by trec_eval. Topic 2 has no tie.
LISTS = [
    [ScoredDoc("1", "a", 1, 7.0), ScoredDoc("1", "b", 2, 7.0)],
    [ScoredDoc("2", "a", 1, 9.0), ScoredDoc("2", "b", 2, 8.0)],
]
MANIFEST = RunManifest("", "", "", None, {}, {"name": "toy"}, {}, "i", 10, False)  # type: ignore[arg-type]
BY_RANK = "ties: rank (equal scores in the order of the run's ranks)"
BY_TREC_EVAL = "ties: trec_eval (equal scores by doc id, descending)"
LINE = "the order of equal scores decides"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`ours.trec` with its manifest, the same lines in `theirs.trec` without one, and `qrels.tsv`."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("ours.trec"), LISTS, MANIFEST)
    Path("theirs.trec").write_bytes(Path("ours.trec").read_bytes())
    Path("qrels.tsv").write_text("1\ta\t1\n2\ta\t1\n")
    yield


def scored(*arguments: str, run: str = "theirs.trec") -> Result:
    return call_command(score.command, "--run", run, "--qrels", "qrels.tsv", "--measure", "RR", *arguments)


@pytest.mark.parametrize(("run", "own"), [("ours.trec", BY_RANK), ("theirs.trec", BY_TREC_EVAL)])
def test_where_a_run_comes_from_decides_or_the_user(run: str, own: str):
    value = {BY_RANK: "1.0000", BY_TREC_EVAL: "0.7500"}
    for options, rule in ((), own), (("--ties", "rank"), BY_RANK), (("--ties", "trec_eval"), BY_TREC_EVAL):
        assert scored(*options, run=run).stdout.splitlines()[1:] == [f"{run}  qrels.tsv  {value[rule]}", rule]


def test_the_manifest_has_the_digest_of_the_run(caplog: pytest.LogCaptureFixture):
    """That of an older version has none, and is believed."""
    write_run(Path("ours.trec.gz"), LISTS, MANIFEST)
    assert describe_run(Path("ours.trec")).ties == describe_run(Path("ours.trec.gz")).ties == "rank"
    with Path("ours.trec").open("a") as out:
        out.write("2 Q0 c 3 7 lexvl\n")
    assert describe_run(Path("ours.trec")).ties == "trec_eval"
    assert "ours.trec: changed since ours.trec.manifest.json was written" in caplog.text
    about = json.loads(name_manifest(Path("ours.trec")).read_text())
    assert len(about.pop("sha256")) == 64
    name_manifest(Path("ours.trec")).write_text(json.dumps(about))
    found = read_run_manifest(Path("ours.trec"))
    assert found and found.sha256 == "" and found.request() == MANIFEST.request()
    assert describe_run(Path("ours.trec")).ties == "rank"


def test_one_table_has_one_rule(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    both = ["--run", "ours.trec", "--run", "theirs.trec", "--qrels", "qrels.tsv"]
    for module in (score, table, compare, beir, msmarco, demo):
        caplog.clear()
        shown = call_command(module.command, *both)
        assert shown.exit_code == 0 and shown.stdout.endswith(f"\n{BY_TREC_EVAL}\n"), module
        assert "theirs.trec has no manifest that fits, so every run has trec_eval's order of equal" in caplog.text


def test_the_rule_of_some_runs():
    ours, theirs = RunCard(Path("a"), "a", ties="rank"), RunCard(Path("b"), "b")
    assert (choose_ties([ours, ours]), choose_ties([theirs])) == ("rank", "trec_eval")
    assert choose_ties([ours, theirs], "rank") == "rank"
    assert choose_ties([ours, theirs]) == choose_ties([theirs, ours]) == "trec_eval"
    with pytest.raises(UnknownName, match="did you mean 'trec_eval'"):
        choose_ties([ours], "trec-eval")


def test_every_format_names_the_rule():
    Path("other.trec").write_text(Path("theirs.trec").read_text())
    one, two = (["--qrels", "qrels.tsv", "--run", "theirs.trec", *more] for more in ([], ["--run", "other.trec"]))
    for module, arguments in ((score, one), (beir, one), (msmarco, one), (table, one), (demo, one), (compare, two)):
        shown = {
            name: call_command(module.command, *arguments, "--format", name).stdout for name in ("text", "csv", "json")
        }
        assert shown["text"].endswith(f"\n{BY_TREC_EVAL}\n"), module
        assert {row["ties"] for row in csv.DictReader(io.StringIO(shown["csv"]))} in ({"trec_eval"}, set()), module
        assert "ties" in shown["csv"].splitlines()[0].split(",")
        assert {row["ties"] for row in json.loads(shown["json"])} == {"trec_eval"}, module
    assert call_command(table.command, *one, "--format", "markdown").stdout.endswith(f" |\n\n{BY_TREC_EVAL}\n")
    assert call_command(table.command, *one, "--format", "latex").stdout.endswith(
        f"\\end{{tabular}}\n% {BY_TREC_EVAL}\n"
    )


def test_a_line_says_what_the_other_rule_gives(caplog: pytest.LogCaptureFixture):
    scored("--measure", "HitRate@1")
    assert f"theirs.trec: {LINE}; RR is 0.7500 by trec_eval and 1.0000 by rank; other values that differ" in caplog.text
    caplog.clear()
    scored("--measure", "HitRate@2", "--measure", "Recall@2", "--ties", "trec_eval", run="ours.trec")
    assert caplog.text.count(LINE) == 1  # of RR; both documents are among the first two
    assert "other values" not in caplog.text


def test_no_line_where_no_printed_value_changes(caplog: pytest.LogCaptureFixture):
    call_command(score.command, "--run", "ours.trec", "--qrels", "qrels.tsv", "--measure", "HitRate@2")
    assert LINE not in caplog.text
    # Of two topics with a tie, one gains what the other loses: only values of topics differ.
    write_run(Path("even.trec"), [LISTS[0], [d._replace(query_id="2") for d in LISTS[0]]], MANIFEST)
    Path("even.tsv").write_text("1\ta\t1\n2\tb\t1\n")
    even = ["--run", "even.trec", "--qrels", "even.tsv", "--measure", "RR"]
    call_command(score.command, *even)
    assert LINE not in caplog.text
    call_command(score.command, *even, "--per-topic")
    assert (
        f"even.trec, topic '1': {LINE}; RR is 1.0000 by rank and 0.5000 by trec_eval; other values that differ: 1"
        in caplog.text
    )


def test_a_relevant_document_with_an_equal_score_is_what_matters():
    """Equal as float32; document 1 is relevant, 2 is not, 3 has no judgement."""

    def differs(*scores: float) -> bool:
        hits = read_hits(ScoredDoc("q", str(n), n, score) for n, score in enumerate(scores, 1))
        places = find([hits], collect_relevant({"q": {"1": 1, "2": 0}})).places
        return places["rank"].tolist() != places["trec_eval"].tolist()

    assert differs(2.0, 2.0) and differs(16777217.0, 16777216.0) and differs(2e39, 1e39) and differs(2.0, 1.0, 2.0)
    assert not differs(2.0, 1.0) and not differs(2.0) and not differs(2.0, 1.0, 1.0)


def test_compared_systems_have_one_rule():
    hits, qrels = [hit for hits in LISTS for hit in hits], [Qrel("1", "a", 1)]
    measured = [evaluate(hits, qrels, ["RR"], name=ties, ties=ties) for ties in ("rank", "trec_eval")]
    with pytest.raises(UsageError, match="different orders of equal scores"):
        compare_runs(measured)
    [row] = compare_runs([measured[1], [hit._replace(run="other") for hit in measured[1]]])
    assert row.ties == "trec_eval"
