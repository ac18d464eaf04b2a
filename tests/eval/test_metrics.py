"""Measures: values a person can check, then the same numbers from an independent implementation."""

import inspect
import logging
import math
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.measures.inputs import collect_relevant, sort_strictly
from eval.measures.metrics import (
    ALIASES,
    MEASURES,
    Definition,
    Measure,
    check_levels,
    evaluate,
    judgements,
    load_ranx_metrics,
    mean,
    means,
    parse_measure,
    parse_measures,
    report_compilation,
    select_topics,
)
from lexvl_anserini.ground.errors import DataError, LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.records import Measurement, Qrel, ScoredDoc


def run_of(text: str) -> list[ScoredDoc]:
    """`query_id doc_id rank score` a line."""
    return [
        ScoredDoc(query_id, doc_id, int(rank), float(score))
        for query_id, doc_id, rank, score in (line.split() for line in text.strip().splitlines())
    ]


def qrels_of(text: str) -> list[Qrel]:
    """`query_id doc_id relevance` a line."""
    return [Qrel(q, d, int(r)) for q, d, r in (line.split() for line in text.strip().splitlines())]


QRELS = qrels_of("1 a 2\n1 b 1\n1 c 0\n1 z 1\n2 a 1\n3 a 0\n4 x 1")
RUN = run_of("1 c 1 9\n1 a 2 8\n1 q 3 8\n1 b 4 1\n2 b 1 5\n2 c 2 4\n3 a 1 3\n9 a 1 3")
# Topic 1 ranks c(0) a(2) q(unjudged) b(1) and misses z; 2 finds nothing; 3 has nothing relevant; 4 is not in the run.
DCG_1 = 2 / math.log2(3) + 1 / math.log2(5)
IDEAL_1 = 2 + 1 / math.log2(3) + 1 / 2
BY_HAND = {
    "nDCG": DCG_1 / IDEAL_1, "nDCG@10": DCG_1 / IDEAL_1, "nDCG@2": 2 / math.log2(3) / (2 + 1 / math.log2(3)),
    "RR": 1 / 2, "RR@1": 0, "RR@2": 1 / 2, "AP": (1 / 2 + 2 / 4) / 3, "AP@3": (1 / 2) / 3, "Recall@2": 1 / 3,
    "Recall@100": 2 / 3, "HitRate@1": 0, "HitRate@2": 1, "P@2": 1 / 2, "P@10": 2 / 10,
}  # fmt: skip


@pytest.mark.parametrize("measure", BY_HAND)
def test_values_by_hand(measure: str):
    rows = evaluate(RUN, QRELS, [measure], name="toy", dataset="hand")
    assert [(row.run, row.dataset, row.measure, row.query_id) for row in rows] == [
        ("toy", "hand", measure, query_id) for query_id in ["1", "2", "3", "4", "all"]
    ]
    assert select_topics(rows, measure) == pytest.approx({"1": BY_HAND[measure], "2": 0, "3": 0, "4": 0}, abs=1e-12)
    # Every topic of the qrels counts: 4 of them.
    assert means(rows)[measure] == pytest.approx(BY_HAND[measure] / 4, abs=1e-12)


def test_negative_relevance_is_not_relevant_and_costs_nothing():
    qrels = qrels_of("1 spam -2\n1 a 1")
    run = run_of("1 spam 1 2\n1 a 2 1")
    assert means(evaluate(run, qrels, ["nDCG@10", "RR"])) == pytest.approx({"nDCG@10": 1 / math.log2(3), "RR": 1 / 2})
    # A topic of negative judgements only counts 0.
    rows = means(evaluate(run_of("1 a 1 2\n2 a 1 2"), qrels_of("1 a -1\n2 a 1"), ["nDCG@10", "AP", "Recall@5"]))
    assert rows == {"nDCG@10": 1 / 2, "AP": 1 / 2, "Recall@5": 1 / 2}


def test_topics_of_one_side_are_reported(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "lexvl_eval"):
        evaluate(RUN, QRELS, ["AP"], name="toy")
    assert "toy: 1 topics without judgements are ignored ('9')" in caplog.text
    assert "toy: 1 of 4 topics are not in the run and count 0 ('4')" in caplog.text


def test_remove_query_frees_its_rank_and_is_idempotent():
    qrels = qrels_of("7 a 1")
    with_self = run_of("7 7 1 9\n7 a 2 8")
    without = run_of("7 a 2 8")
    assert means(evaluate(with_self, qrels, ["RR@1"])) == {"RR@1": 0}
    assert means(evaluate(with_self, qrels, ["RR@1"], remove_query=True)) == {"RR@1": 1}
    assert means(evaluate(without, qrels, ["RR@1"], remove_query=True)) == {"RR@1": 1}
    assert means(evaluate(with_self[:1], qrels, ["nDCG@10", "P@5"], remove_query=True)) == {"nDCG@10": 0, "P@5": 0}


@pytest.mark.parametrize(
    "text", ["1 b 1 5\n1 a 2 5\n1 c 3 6", "1 b 0 5\n1 a 0 5\n1 c 0 6"], ids=["score rises with the rank", "all ranks 0"]
)
def test_contradicting_ranks_fall_back_to_scores_and_say_so(text: str, caplog: pytest.LogCaptureFixture):
    assert sort_strictly(run_of(text), name="foreign") == {"1": ["c", "a", "b"]}
    assert "foreign: ranks contradict scores in 1 of 1 topics ('1')" in caplog.text


def test_trec_eval_reads_scores_as_float32_and_breaks_ties_by_doc_id_descending():
    # 2^24 + 1 has no float32.
    run = run_of("1 a 1 16777217\n1 b 2 16777216\n1 c 3 1")
    assert sort_strictly(run) == sort_strictly(run[::-1]) == {"1": ["a", "b", "c"]}
    assert sort_strictly(run, ties="trec_eval") == {"1": ["b", "a", "c"]}
    run = run_of("1 \U0001f600 1 5\n1 \uff5e 1 5\n1 é 1 5\n1 z 1 5")  # ids are ordered by code point
    assert sort_strictly(run) == {"1": ["z", "é", "\uff5e", "\U0001f600"]}


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        ("", "1 a 1", "toy: the run is empty"),
        ("1 a 1 1", "", "no judgements"),
        ("1 a 1 1", "PLAIN-2 a 1", "share no topic"),
        ("1 a 1 2\n1 a 2 1", "1 a 1", "more than once"),
        ("1 a 1 nan", "1 a 1", "not a number"),
        ("1 a 1 1", "1 a 1\n1 a 0", "twice"),
    ],
)
def test_bad_input_is_refused_in_one_line(run: str, qrels: str, message: str):
    with pytest.raises(DataError, match=f"^.*{message}.*$"):
        evaluate(run_of(run), qrels_of(qrels), ["AP"], name="toy", dataset="hand")


ONE, JUDGED = [ScoredDoc("q", "d", 1, 2.0)], [Qrel("q", "d", 1)]


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        ({"abcd": {"d": 2.0}}, JUDGED, r"toy: dict .*expected .* ScoredDoc\(query_id, doc_id, rank, score\)"),
        (ONE, {"abc": {"d": 1}}, r"hand: dict .*, expected an iterable of Qrel\(query_id, doc_id, relevance\)"),
        (pandas.DataFrame(ONE), JUDGED, "toy: DataFrame"),
        (ONE, pandas.DataFrame([("q", "d", 1)], columns=["qid", "doc", "rel"]), "hand: DataFrame"),
        ([ScoredDoc(1, 5, 1, 2.0)], JUDGED, "toy: list .*'int' object"),
        ([ScoredDoc(1, "5", 1, 2.0)], JUDGED, "toy: list .*the id 1 is no text"),
        (ONE, [Qrel("q", 5, 1)], "hand: list .*the id 5 is no text"),
        (ONE, [Qrel("q", "d", 0.5)], "hand: topic 'q', document 'd': relevance 0.5 is not an integer"),
    ],
)
def test_objects_of_other_forms(run, qrels, message: str):
    with pytest.raises(LexvlError, match=f"^{message}.*$"):
        evaluate(run, qrels, ["AP"], name="toy", dataset="hand")
    for relevance in (1.0, "1", np.int64(1)):
        assert means(evaluate(ONE, [Qrel("q", "d", relevance)], ["AP"])) == {"AP": 1}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *(("nDCG@10", "ndcg_cut_10 ndcg_cut.10 ndcg_at_10 nDCG@10 NDCG@10"), ("nDCG", "ndcg"), ("AP", "map AP")),
        ("AP@100", "map_cut_100 map_cut.100 MAP@100 map_at_100 AP@100"),
        *(("AP(rel=2)@100", "AP(rel=2)@100 map(rel=2)@100"), ("RR", "recip_rank MRR"), ("RR@10", "RR@10 mrr_at_10")),
        ("Recall@100", "recall_100 recall.100 Recall@100 recall_at_100"),
        ("Recall(rel=2)@100", "R(rel=2)@100 recall(rel=2)_100"),
        ("P@5", "P@5 P_5 P.5 precision_at_5"),
        ("HitRate@1", "success_1 success.1 Success@1 hit_rate@1"),
    ],
)
def test_names_of_trec_eval_and_ir_measures(ours: str, theirs: str):
    assert {str(parse_measure(name)) for name in theirs.split()} == {ours}
    assert parse_measure(ours) == parse_measure(str(parse_measure(ours)))


def test_each_measure_has_its_own_level_of_relevance():
    asked = ["AP(rel=2)", "AP", "RR(rel=2)@10", "recall_10", "R(rel=3)@10", "ndcg_cut_10"]
    rows = means(evaluate(RUN, QRELS, asked))
    assert rows == pytest.approx(
        {
            # Topic 1 of four: a (2) at rank 2, b (1) at rank 4, z (1) missing; none has 3.
            "AP(rel=2)": 1 / 2 / 4, "AP": (1 / 2 + 2 / 4) / 3 / 4, "RR(rel=2)@10": 1 / 2 / 4, "Recall@10": 2 / 3 / 4,
            "Recall(rel=3)@10": 0, "nDCG@10": DCG_1 / IDEAL_1 / 4,
        },
        abs=1e-12,
    )  # fmt: skip
    # A level of all measures is for those without their own, and part of the names of binary ones.
    names = ["Recall@10", "P@2", "HitRate@1", "nDCG@10"]
    found = means(evaluate(RUN, QRELS, names, relevance_level=2))
    assert [*found] == ["Recall(rel=2)@10", "P(rel=2)@2", "HitRate(rel=2)@1", "nDCG@10"]
    assert [*found.values()] == pytest.approx([1 / 4, 1 / 2 / 4, 0, DCG_1 / IDEAL_1 / 4], abs=1e-12)
    with pytest.raises(UsageError, match="relevance level 0"):
        evaluate(RUN, QRELS, ["AP"], relevance_level=0)
    both = means(evaluate(RUN, QRELS, ["AP(rel=1)", "AP"], relevance_level=2))
    assert both == {"AP(rel=1)": rows["AP"], "AP(rel=2)": rows["AP(rel=2)"]}
    assert parse_measures(["AP", "AP(rel=2)", "nDCG"], 2) == (Measure("AP", None, 2), Measure("nDCG"))


def test_a_level_that_no_document_has():
    relevant = collect_relevant(judgements(QRELS))
    check_levels(relevant, parse_measures(["AP(rel=2)", "nDCG@10"]), "toy")
    with pytest.raises(DataError, match="relevance 3 .the largest is 2.*AP.rel=3."):
        check_levels(relevant, parse_measures(["nDCG@10", "AP"], 3), "toy")
    with pytest.raises(DataError, match="none above 0"):
        check_levels(collect_relevant({"1": {"a": 0, "b": -1}}), parse_measures(["nDCG@10"]), "toy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(("nDGC@10", "did you mean 'nDCG@k'?"), ("nDCG@ten", "unknown measure"), ("", "unknown measure")),
        *(("AP(rel=0)", "expected the least"), ("AP(judged_only=True)@100", "expected the least")),
        *(("nDCG(rel=2)@10", "leave out (rel=2)"), ("nDCG@0", "at least 1"), ("Recall(rel=2)", "such as Recall@10")),
        *(("R@10", "means two things"), ("r_100", "means two things")),
    ],
)
def test_unreadable_measures(name: str, message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_measure(name)
    with pytest.raises(UsageError, match="no measure given"):
        evaluate(RUN, QRELS, [])
    with pytest.raises(UnknownName, match="did you mean 'trec_eval'"):
        evaluate(RUN, QRELS, ["AP"], ties="trec-eval")


# Each of our measures and what pytrec_eval calls it; where it has no cut, the run is cut instead.
ORACLE = {
    "nDCG@3": "ndcg_cut.3", "nDCG@10": "ndcg_cut.10", "nDCG": "ndcg", "AP": "map", "AP@3": "map_cut.3",
    "RR": "recip_rank", "RR@2": "recip_rank", "Recall@3": "recall.3", "HitRate@2": "success.2", "P@3": "P.3",
}  # fmt: skip
CUTS = {"RR@2": 2}

ids = st.sampled_from(["1", "2", "3", "4", "5", "é", "q 1".replace(" ", "_")])
doc_ids = st.sampled_from(["1", "2", "3", "a", "b", "c", "d", "B", "é", "\uff5e", "\U0001f600", "10"])
runs = st.dictionaries(
    ids,
    st.dictionaries(doc_ids, st.sampled_from([-1.5, 0.0, 1.0, 2.0, 16777216.0, 16777217.0]), min_size=1),
    min_size=1,
)
# pytrec_eval reads outside its arrays (and may never return) where all of a topic's judgements are negative.
relevances = st.dictionaries(doc_ids, st.integers(-1, 3), min_size=1).filter(lambda docs: max(docs.values()) >= 0)
judged = st.dictionaries(ids, relevances, min_size=1)


def trec_eval(run: dict, qrels: dict, measure: str, relevance_level: int) -> dict[str, float]:
    """Values per topic of the qrels; a topic that the run lacks counts 0, as `trec_eval -c`."""
    asked, told = ORACLE[measure], ORACLE[measure].replace(".", "_")
    if cut := CUTS.get(measure):
        run = {q: dict(sorted(docs.items(), key=lambda item: -item[1])[:cut]) for q, docs in run.items()}
    found = pytrec_eval.RelevanceEvaluator(qrels, {asked}, relevance_level=relevance_level).evaluate(run)
    return {query_id: found[query_id][told] if query_id in found else 0.0 for query_id in qrels}


def scored(run: dict) -> list[ScoredDoc]:
    """Ranks are the order of the dictionary, so they mostly contradict the scores."""
    return [ScoredDoc(q, d, i, s) for q, docs in run.items() for i, (d, s) in enumerate(docs.items(), 1)]


def rows_of(qrels: dict) -> list[Qrel]:
    return [Qrel(q, d, r) for q, docs in qrels.items() for d, r in docs.items()]


def check(measurements: list[Measurement], run: dict, qrels: dict, relevance_level: int, measures: list[str]) -> None:
    for measure in measures:
        expected = trec_eval(run, qrels, measure, relevance_level)
        [named] = map(str, parse_measures([measure], relevance_level))
        assert select_topics(measurements, named) == pytest.approx(expected, abs=1e-9)
        assert means(measurements)[named] == pytest.approx(mean(expected.values()), abs=1e-9)


@settings(max_examples=150)
@given(runs, judged, st.integers(1, 3))
def test_strict_order_agrees_with_pytrec_eval(run: dict, qrels: dict, relevance_level: int):
    if not run.keys() & qrels.keys():
        with pytest.raises(DataError, match="share no topic"):
            evaluate(scored(run), rows_of(qrels), ["AP"])
        return
    order = sort_strictly(scored(run))
    strict = {q: {doc_id: float(len(docs) - i) for i, doc_id in enumerate(docs)} for q, docs in order.items()}
    rows = evaluate(scored(run), rows_of(qrels), list(ORACLE), relevance_level=relevance_level)
    check(rows, strict, qrels, relevance_level, list(ORACLE))


@settings(max_examples=150)
@given(runs, judged)
def test_ties_as_trec_eval_agree_with_pytrec_eval_on_raw_scores(run: dict, qrels: dict):
    if not run.keys() & qrels.keys():
        return
    uncut = [measure for measure in ORACLE if measure not in CUTS]
    rows = evaluate(scored(run), rows_of(qrels), uncut, ties="trec_eval")
    check(rows, run, qrels, 1, uncut)


@given(runs, judged)
def test_beir_measures_the_same_over_the_topics_that_it_counts(run: dict, qrels: dict):
    from beir.retrieval.evaluation import EvaluateRetrieval

    counted = run.keys() & qrels.keys()
    if not counted:
        return
    named = {"nDCG@3": "NDCG@3", "AP@3": "MAP@3", "Recall@3": "Recall@3", "P@3": "P@3"}
    copied = {query_id: dict(documents) for query_id, documents in run.items()}  # `evaluate` removes from it
    theirs = {name: value for part in EvaluateRetrieval.evaluate(qrels, copied, [3]) for name, value in part.items()}
    rows = evaluate(scored(run), rows_of(qrels), list(named), ties="trec_eval", remove_query=True)
    for ours, name in named.items():
        # beir divides by the topics of both; a topic that the run lacks counts 0 here.
        assert means(rows)[ours] * len(qrels) / len(counted) == pytest.approx(theirs[name], abs=1e-5)


def test_more_topics_than_a_block():
    topics = [str(i) for i in range(2345)]
    run = [ScoredDoc(q, d, r, 3.0 - r) for q in topics for r, d in enumerate("abc", 1)]
    qrels = [Qrel(q, "abc"[int(q) % 3], 1) for q in topics]
    values = select_topics(evaluate(run, qrels, ["RR"]), "RR")
    assert all(values[q] == 1 / (int(q) % 3 + 1) for q in topics)


def test_a_measure_may_be_a_function_of_ours(monkeypatch):
    """Of all relevant documents of a topic, the share of relevance that the first k have."""

    def gain(relevant, ranked, k, level):
        values = []
        for judged, ranking in zip(relevant, ranked, strict=True):
            value = {number: r for number, r in judged.tolist() if number >= 0 and r >= level}
            found = sum(value.get(number, 0) for number in ranking[: k or None, 0].tolist())
            values.append(found / sum(value.values()) if value else 0.0)
        return np.array(values)

    monkeypatch.setitem(MEASURES, "Gain", Definition(gain, True, True, "share of the relevance found"))
    monkeypatch.setitem(ALIASES, "gain", "Gain")
    assert select_topics(evaluate(RUN, QRELS, ["Gain@3"]), "Gain@3") == {"1": 2 / 4, "2": 0, "3": 0, "4": 0}
    assert select_topics(evaluate(RUN, QRELS, ["Gain@4"]), "Gain@4")["1"] == 3 / 4
    assert select_topics(evaluate(RUN, QRELS, ["Gain@4"], relevance_level=2), "Gain(rel=2)@4")["1"] == 1


def test_compiling_is_logged_and_loading_from_the_cache_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    source = tmp_path / "kernels.py"
    source.write_text("from numba import njit\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n")

    def lines_of_a_new_process() -> int:
        spec = spec_from_file_location("kernels", source)
        kernels = module_from_spec(spec)
        spec.loader.exec_module(kernels)
        caplog.clear()
        with caplog.at_level(logging.INFO, "lexvl_eval"), report_compilation():
            assert (kernels.double(2), kernels.double(2.5)) == (4, 5.0)  # two types, each compiled
        return caplog.text.count("ranx compiles its measures")

    assert lines_of_a_new_process() == 1
    assert lines_of_a_new_process() == 0
    evaluate(RUN, QRELS, ["P@2"])
    with caplog.at_level(logging.INFO, "lexvl_eval"):
        evaluate(RUN, QRELS, ["P@2"])
    assert "ranx compiles" not in caplog.text


def test_ranx_has_the_functions_that_are_loaded_past_its_package():
    """A version of ranx without `ranx.metrics`, or with other parameters there, is named here."""
    kernels = load_ranx_metrics()
    for name in (row.function for row in MEASURES.values() if isinstance(row.function, str)):
        function = getattr(kernels, name, None)
        assert function, f"this version of ranx has no ranx.metrics.{name}; MEASURES needs another function"
        parameters = list(inspect.signature(getattr(function, "py_func", function)).parameters)
        assert parameters[:3] == ["qrels", "run", "k"], f"ranx.metrics.{name} has other parameters: {parameters}"
