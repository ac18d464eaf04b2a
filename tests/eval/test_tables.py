"""Tables and averages over datasets: alignment, groups, what is missing, what stands out, what must be escaped."""

import shutil
import subprocess
from math import nan
from pathlib import Path

import pytest
from invoking import call_command

import eval.demo
import eval.table
from eval.measures.averages import AVERAGES, compute_average, compute_averages, list_datasets
from eval.measures.inputs import RunCard, format_system
from eval.measures.significance import SystemComparison, find_differing
from eval.report.tables import (
    Column,
    SystemRow,
    Table,
    build_comparison_table,
    build_score_table,
    build_system_table,
    make_system_row,
    shorten_datasets,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.ground.records import Measurement, ScoredDoc
from lexvl_anserini.runs.trec import write_run
from lexvl_plugins.papers.sources import MEANS

ROWS = [
    SystemRow("vdr", "scifact", "a.trec", {"nDCG@10": 0.569}, {"index_bytes": 12_345_678, "ms_per_query": 3.14}),
    SystemRow("bm25_flat", "scifact", "b.trec", {"nDCG@10": 0.6789}, {}),
    SystemRow("vdr", "nfcorpus", "c.trec", {"nDCG@10": 0.3}, {"index_bytes": 1e9}),
]


def test_text():
    assert to_text(build_system_table(ROWS)).splitlines() == [
        "                     scifact                      nfcorpus",
        "system     nDCG@10  index MB  ms/query  nDCG@10  index MB  ms/query",
        "vdr         0.5690      12.3       3.1   0.3000   1,000.0         –",
        "bm25_flat   0.6789         –         –        –         –         –",
    ]


def test_markdown_marks_the_best_measure_only():
    assert to_markdown(build_system_table(ROWS)).splitlines() == [
        "| system | scifact nDCG@10 | scifact index MB | scifact ms/query "
        "| nfcorpus nDCG@10 | nfcorpus index MB | nfcorpus ms/query |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| vdr | 0.5690 | 12.3 | 3.1 | **0.3000** | 1,000.0 | – |",
        "| bm25_flat | **0.6789** | – | – | – | – | – |",
    ]


def test_latex_escapes_and_groups():
    rows = [row._replace(efficiency={}) for row in ROWS]
    assert to_latex(build_system_table(rows)).splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"\multicolumn{1}{c}{} & \multicolumn{1}{c}{scifact} & \multicolumn{1}{c}{nfcorpus} \\",
        r"\cmidrule(lr){2-2}",
        r"\cmidrule(lr){3-3}",
        r"system & nDCG@10 & nDCG@10 \\",
        r"\midrule",
        r"vdr & 0.5690 & \textbf{0.3000} \\",
        r"bm25\_flat & \textbf{0.6789} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_dataset_has_the_measures_that_it_was_measured_by():
    table = build_system_table([ROWS[0]._replace(efficiency={}), ROWS[2]._replace(measures={"RR": 0.5}, efficiency={})])
    assert [column[:2][::-1] for column in table.columns[1:]] == [("scifact", "nDCG@10"), ("nfcorpus", "RR")]
    assert table.rows == (("vdr", "0.5690", "0.5000"),)
    # Equal values are both the best, and a single row is none.
    equal = [ROWS[0], ROWS[1]._replace(measures={"nDCG@10": 0.569})]
    assert build_system_table(equal).best == {(0, 1), (1, 1)}
    assert build_system_table(ROWS[:1]).best == frozenset()


def test_separators_and_equal_names():
    table = Table((Column("system", number=False), Column("AP")), (("vdr (a=1, b|2)", "0.1000"),))
    assert to_csv(table) == 'system,AP\n"vdr (a=1, b|2)",0.1000\n'
    assert to_markdown(table).splitlines()[-1] == r"| vdr (a=1, b\|2) | 0.1000 |"
    twice = build_system_table([ROWS[0], ROWS[0]._replace(run="d.trec")])
    assert [row[0] for row in twice.rows] == ["vdr [a.trec]", "vdr [d.trec]"]
    assert format_system({"name": "vdr", "options": {"k": 8, "head": None}}) == "vdr (k=8)"
    # Wide names of groups keep the columns aligned.
    table = Table((Column("s", number=False), Column("AP", "a long data set")), (("x", "0.1000"),))
    assert to_text(table).splitlines() == ["   a long data set", "s               AP", "x           0.1000"]


def topics(run: str, dataset: str, values: list[float]) -> list[Measurement]:
    """One value per topic, and their mean."""
    rows = [Measurement(run, dataset, "AP", str(topic), value, "rank") for topic, value in enumerate(values)]
    return [*rows, Measurement(run, dataset, "AP", "all", sum(values) / len(values), "rank")]


CARDS = [RunCard(Path(name), system=system) for name, system in (("a1", "A"), ("b1", "B"), ("c1", "C"), ("b2", "B"))]
# B is better than A in each of 10 topics, C in half of them; the second dataset has no run of A.
VALUES = {"a1": [0.1] * 10, "b1": [0.9] * 10, "c1": [0.2] * 5 + [0.0] * 5, "b2": [0.5] * 10}
MEASURED = [topics(run, "two" if run == "b2" else "one", values) for run, values in VALUES.items()]


def marked_table() -> Table:
    marks = find_differing(CARDS, MEASURED, "student")
    assert marks == {("b1", "one"): ("AP",)}
    rows = [make_system_row(*pair, marks) for pair in zip(CARDS, MEASURED, strict=True)]
    return build_system_table(rows, "student")


def test_significant_differences_are_marked():
    about = "* differs from A: p < 0.05, student test, Holm's correction"
    table = marked_table()
    assert to_text(table).splitlines() == [
        "          one     two",
        "system       AP      AP",
        "A       0.1000        –",
        "B       0.9000*  0.5000",
        "C       0.1000        –",
        about,
        "ties: rank (equal scores in the order of the run's ranks)",
    ]
    assert r"| B | **0.9000**\* | **0.5000** |" in to_markdown(table)
    assert to_markdown(table).splitlines()[-3] == about.replace("*", r"\*")
    assert r"B & \textbf{0.9000}$^{*}$ & \textbf{0.5000} \\" in to_latex(table)
    assert "B,0.9000,0.5000,rank" in to_csv(table).splitlines()


def test_a_comparison_has_the_best_of_each_measure_its_baseline_and_what_the_star_means():
    facts = (0.5, 0.5, 0, 0, 1, nan, nan)
    values = (("a", "AP", 0.75), ("b", "AP", 0.25), ("a", "RR", 0.25))
    rows = [SystemComparison(*names, 0.5, value, value - 0.5, *facts) for *names, value in values]
    assert build_comparison_table(rows).best == {(0, 3), (2, 2)}
    rows = [row._replace(baseline_system="first", test="student", significant=row.system == "b") for row in rows]
    table = build_comparison_table(rows)
    assert table.marked == {(1, [column.heading for column in table.columns].index("p (Holm)"))}
    assert table.notes == [
        "baseline: first; better, equal and worse topics than its; * p < 0.05, paired student test, Holm's correction"
    ]


# What default encodings of LaTeX print as something else, or what LaTeX reads as a command.
DIFFICULT = 'a_b & 50 % #1 {x} $y ~ ^ \\ <0.0001 >2 a|b -0.5 (-1) x-y [z] * – − "q" é a→b λ ≤ ∪ — ×'


def test_latex_has_no_letter_that_it_prints_otherwise():
    table = Table((Column("s", number=False), Column("p", "a_b <c>")), (("[x]", "-0.0100 to +0.02"), (DIFFICULT, "1")))
    lines = to_latex(table).splitlines()
    assert r"{[}x{]} & $-$0.0100 to +0.02 \\" in lines
    assert (
        r"a\_b \& 50 \% \#1 \{x\} \$y \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}0.0001 "
        r"\textgreater{}2 a\textbar{}b $-$0.5 ($-$1) x-y {[}z{]} $^{*}$ -- $-$ ''q'' é "
        r"a$\rightarrow$b $\lambda$ $\leq$ $\cup$ --- $\times$ & 1 \\" in lines
    )
    assert r"\multicolumn{1}{c}{} & \multicolumn{1}{c}{a\_b \textless{}c\textgreater{}} \\" in lines


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed (texlive-latex-recommended)")
def test_latex_compiles(tmp_path: Path):
    difficult = Table((Column(DIFFICULT, number=False), Column("p", DIFFICULT)), (("[x]", "-1"), ("*", DIFFICULT)))
    body = "\n\n".join(map(to_latex, (marked_table(), difficult, build_system_table(ROWS))))
    (tmp_path / "t.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}", encoding="utf-8"
    )
    # As a draft: a small installation lacks fonts that others make when they are needed.
    command = ["pdflatex", "-draftmode", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "t.log").read_text(errors="replace")


@pytest.mark.parametrize(
    "names,shown",
    [
        (["beir:of/my/beir/scifact/test"], ["beir:scifact/test"]),
        (["of/my/qrels/dev.tsv", "beir/scifact/test"], ["qrels/dev.tsv", "beir/scifact/test"]),
        (["irds:msmarco-passage/trec-dl-2019/judged"], ["irds:msmarco-passage/trec-dl-2019/judged"]),
        (["beir:/a/b/scifact/test", "beir:/a/c/scifact/test"], ["beir:/a/b/scifact/test", "beir:/a/c/scifact/test"]),
    ],
)
def test_tables_show_the_end_of_a_path_where_it_is_distinct(names, shown) -> None:
    assert list(shorten_datasets([*names, *names]).values()) == shown
    rows = [Measurement("r", name, "RR@10", "all", 0.5) for name in names]
    assert [row[1] for row in build_score_table(rows).rows] == shown


@pytest.mark.parametrize(
    ("options", "shown"),
    [("text", True), ("latex", False), ("latex --efficiency", True), ("text --no-efficiency", False)],
)
def test_figures_of_searches_are_in_latex_on_request(tmp_path: Path, options: str, shown: bool):
    manifest = RunManifest("", "", "", None, {}, {"name": "toy"}, {}, "i", 10, False)  # type: ignore[arg-type]
    lists = [[ScoredDoc("q1", "a", 1, 7.0)]]
    write_run(tmp_path / "a.trec", lists, manifest, measured=lambda: {"efficiency": {"ms_per_query": 3.25}})
    (tmp_path / "qrels").write_text("q1 0 a 1\n")
    for command in (eval.table.command, eval.demo.command):
        call = ["--run", tmp_path / "a.trec", "--qrels", tmp_path / "qrels", "--format"]
        result = call_command(command, *call, *options.split())
        assert result.exit_code == 0 and ("ms/query" in result.stdout) == shown


def test_what_averages_have():
    sizes = {name: (len(AVERAGES[name]), len(list_datasets(name))) for name in AVERAGES}
    assert sizes["beir-12"] == (12, 12) and sizes["beir-18"] == (18, 29) and sizes["cqadupstack"] == (12, 12)
    assert {*list_datasets("beir-13")} - {*list_datasets("beir-12")} == {"beir/quora/test"}
    archived = {f"beir/{name}/test" for name in BEIR_ARCHIVES}
    closed = {f"beir/{name}/test" for name in ("bioasq", "robust04", "signal1m", "trec-news")}
    assert {*list_datasets("beir-18")} - archived == closed
    assert MEANS["beir-12"] == AVERAGES["beir-12"]


def test_cqadupstack_counts_once():
    values = dict.fromkeys(list_datasets("beir-18"), 0.5)
    for part in AVERAGES["cqadupstack"]:
        values[part] = 0.0
    values[AVERAGES["cqadupstack"][0]] = 0.6
    assert compute_average("cqadupstack", values) == pytest.approx(0.05)
    assert compute_average("beir-18", values) == pytest.approx((17 * 0.5 + 0.05) / 18)
    assert compute_average("beir-12", {**values, "beir/msmarco/dev": 1.0}) == 0.5
    # An incomplete average is refused.
    del values["beir/nq/test"], values["beir/fever/test"]
    with pytest.raises(DataError, match="2 have no value: beir/fever/test, beir/nq/test"):
        compute_average("beir-12", values)
    with pytest.raises(UnknownName, match="did you mean 'beir-12'"):
        compute_average("beir12", values)


def test_averages_of_systems():
    means = [
        Measurement(system, dataset, "nDCG@10", "all", value, "rank")
        for system, value in (("a", 0.25), ("b", 0.75))
        for dataset in list_datasets("beir-12")
    ]
    assert compute_averages("beir-12", means) == [
        Measurement("a", "beir-12", "nDCG@10", "all", 0.25, "rank"),
        Measurement("b", "beir-12", "nDCG@10", "all", 0.75, "rank"),
    ]
    with pytest.raises(DataError, match="^b: nDCG@10: beir-12 is the mean of 12 datasets, and 1 have no value"):
        compute_averages("beir-12", means[:-1])
