"""Tables: alignment, groups, what is missing, what stands out, what must be escaped."""

from __future__ import annotations

from eval.measures.inputs import system_name
from eval.report.render import Column, Table, to_csv, to_latex, to_markdown, to_text
from eval.report.tables import SystemRow, system_table

ROWS = [
    SystemRow("vdr", "scifact", "a.trec", {"nDCG@10": 0.569}, {"index_bytes": 12_345_678, "ms_per_query": 3.14}),
    SystemRow("bm25_flat", "scifact", "b.trec", {"nDCG@10": 0.6789}, {}),
    SystemRow("vdr", "nfcorpus", "c.trec", {"nDCG@10": 0.3}, {"index_bytes": 1e9}),
]


def test_text():
    assert to_text(system_table(ROWS)).splitlines() == [
        "                     scifact                      nfcorpus",
        "system     nDCG@10  index MB  ms/query  nDCG@10  index MB  ms/query",
        "vdr         0.5690      12.3       3.1   0.3000   1,000.0         –",
        "bm25_flat   0.6789         –         –        –         –         –",
    ]


def test_markdown_marks_the_best_measure_only():
    assert to_markdown(system_table(ROWS)).splitlines() == [
        "| system | scifact nDCG@10 | scifact index MB | scifact ms/query "
        "| nfcorpus nDCG@10 | nfcorpus index MB | nfcorpus ms/query |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| vdr | 0.5690 | 12.3 | 3.1 | **0.3000** | 1,000.0 | – |",
        "| bm25_flat | **0.6789** | – | – | – | – | – |",
    ]


def test_latex_escapes_and_groups():
    rows = [row._replace(efficiency={}) for row in ROWS]
    assert to_latex(system_table(rows)).splitlines() == [
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


def test_csv_quotes():
    table = Table((Column("system", number=False), Column("AP")), (("vdr (a=1, b=2)", "0.1000"),))
    assert to_csv(table) == 'system,AP\n"vdr (a=1, b=2)",0.1000\n'


def test_a_pipe_does_not_break_markdown():
    table = Table((Column("system", number=False),), (("a|b",),))
    assert to_markdown(table).splitlines()[-1] == r"| a\|b |"


def test_equal_values_are_both_best_and_a_single_row_is_none():
    equal = [ROWS[0], ROWS[1]._replace(measures={"nDCG@10": 0.569})]
    assert system_table(equal).best == {(0, 1), (1, 1)}
    assert system_table(ROWS[:1]).best == frozenset()


def test_systems_of_one_name_are_told_apart_by_their_runs():
    table = system_table([ROWS[0], ROWS[0]._replace(run="d.trec")])
    assert [row[0] for row in table.rows] == ["vdr [a.trec]", "vdr [d.trec]"]


def test_wide_group_names_keep_the_columns_aligned():
    table = Table((Column("s", number=False), Column("AP", "a long data set")), (("x", "0.1000"),))
    assert to_text(table).splitlines() == ["   a long data set", "s               AP", "x           0.1000"]


def test_system_names():
    assert system_name({"name": "bm25"}) == "bm25"
    assert system_name({"name": "vdr", "options": {"k": 8, "head": None}}) == "vdr (k=8)"
