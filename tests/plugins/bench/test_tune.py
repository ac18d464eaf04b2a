"""Tuning: grids by hand, the choice on one split and the report on another, and the command on runs and on an index."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_folders import jsonl, write_shards, write_text_shards

from eval.measures.metrics import parse_measure
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.fuse import command as fuse
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.index import command as index
from lexvl_anserini.runs.fusion import Fusion
from lexvl_anserini.search import command as search
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import Search
from lexvl_plugins.bench import tune as tuning
from lexvl_plugins.bench.tune import QuerySetting, Split, TuningSetting, command, draw_parts, halve
from tests.invoking import invoked

RR = parse_measure("RR@10")


def test_weights_that_sum_to_one():
    assert list(tuning.simplex(2, 4)) == [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (1.0, 0.0)]
    assert len(list(tuning.simplex(3, 10))) == 66
    assert all(sum(weights) == pytest.approx(1) for weights in tuning.simplex(3, 7))


def list_fusions(runs: int, **grid: Any) -> list[TuningSetting]:
    return tuning.FusionGrid(runs=[Path("a")] * runs, **grid).settings(True)


def test_the_grid_of_fusion_begins_with_the_untuned_one():
    settings = list_fusions(2, normalisation=["min-max"], steps=2, k=[60, 10])
    assert [setting.value for setting in settings] == [
        Fusion(),
        Fusion("rrf", k=10),
        *(Fusion("interpolation", weights) for weights in ((0, 1), (0.5, 0.5), (1, 0))),
    ]
    assert settings[0].arguments == ["--method", "rrf", "--k", "60"]
    expected = "--method interpolation --normalisation min-max --weight 0.5 --weight 0.5"
    assert settings[3].arguments == expected.split()
    with pytest.raises(UnknownName, match="unknown fusion 'rff'"):
        list_fusions(2, method=["rff"])
    with pytest.raises(UsageError, match="give --run twice or more"):
        list_fusions(1)


def list_searches(**grid: Any) -> list[TuningSetting]:
    return tuning.SearchGrid(dev="dev", **grid).settings(True)


def test_the_grid_of_search_has_every_combination():
    settings = list_searches(query_terms=[8], feedback=[3, 5], feedback_beta=[0.5, 1.0])
    assert len(settings) == 2 * (1 + 4)
    assert (settings[0].value, settings[0].arguments) == (QuerySetting(), [])
    last = Search(query_terms=8, feedback=5, feedback_terms=20, feedback_alpha=1.0, feedback_beta=1.0)
    assert settings[-1].value == QuerySetting({}, last)
    expected = "--query-terms 8 --feedback 5 --feedback-terms 20 --feedback-alpha 1.0 --feedback-beta 1.0"
    assert settings[-1].arguments == expected.split()
    with pytest.raises(UsageError, match="nothing to tune"):
        list_searches()
    settings = list_searches(options=["k1=1"], rm3=[5], rm3_terms=[20], rm3_weight=[0.75])
    expected = [[], ["5", "20", "0.75"], ["k1=1"], ["k1=1", "5", "20", "0.75"]]
    assert [setting.arguments[1::2] for setting in settings] == expected
    assert settings[1].value == QuerySetting({}, Search(rm3=5, rm3_terms=20, rm3_weight=0.75))
    settings = list_searches(options=["k1=1", "b=0", "k1=2"])
    expected = [[], ["b=0"], ["k1=1"], ["k1=1", "b=0"], ["k1=2"], ["k1=2", "b=0"]]
    assert [setting.arguments[1::2] for setting in settings] == expected
    assert settings[-1].value == QuerySetting({"k1": "2", "b": "0"})


def split(label: str, query_id: str, asked: list[Any]) -> Split:
    def rank(value: int) -> Iterator[ScoredDoc]:
        asked.append((label, value))
        return (ScoredDoc(query_id, "r" if n == value else f"d{n}", n, 9.0 - n) for n in range(1, 6))

    return Split(label, [Qrel(query_id, "r", 1)], rank)


def test_only_the_untuned_and_the_chosen_setting_see_the_test_topics():
    asked: list[Any] = []
    settings = [TuningSetting({"rank": n}, n) for n in (3, 2, 5, 2)]
    tuned = tuning.tune(settings, split("dev", "1", asked), split("test", "2", asked), RR)
    assert [value for _, value in tuned.grid] == [1 / 3, 1 / 2, 1 / 5, 1 / 2]
    # The first of two equal ones.
    assert (tuned.chosen, tuned.on_test) == (1, (1 / 3, 1 / 2))
    assert asked == [*(("dev", n) for n in (3, 2, 5, 2)), ("test", 3), ("test", 2)]
    assert tuned.to_json() == {
        "measure": "RR@10",
        "chosen": {"rank": 2},
        "arguments": ["--rank", "2"],
        "development": {"topics": "dev", "untuned": 1 / 3, "chosen": 1 / 2},
        "test": {"topics": "test", "untuned": 1 / 3, "chosen": 1 / 2},
        "grid": [{"rank": n, "value": 1 / n} for n in (3, 2, 5, 2)],
    }
    assert tuning.tabulate_grid(tuned).rows[:3] == (
        ("untuned", "3", "0.3333", "0.3333"),
        ("chosen", "2", "0.5000", "0.5000"),
        ("", "5", "0.2000", "–"),
    )
    assert tuning.tune(settings[:1], split("dev", "1", []), split("test", "2", []), RR).on_test == (1 / 3, 1 / 3)
    with pytest.raises(DataError, match=r"1 topics are in dev and in test \(1\).*--split-seed 1"):
        tuning.tune([TuningSetting({}, 1)], split("dev", "1", []), split("test", "1", []), RR)


def test_halves_are_drawn_by_the_seed_and_have_every_topic_once():
    # SHA-256 of "1:a" begins with 41, of "1:b" with 6f, of "1:c" with b8.
    assert draw_parts("cab", "x", 1, 3) == [["a"], ["b"], ["c"]]
    assert draw_parts("abcab", "x", 1) == [["a", "b"], ["c"]]
    assert draw_parts("abc", "x", 1, 2) == [["a", "c"], ["b"]]
    whole = Split("dev", [Qrel(q, d, 1) for q in "abcde" for d in ("r", "s")], lambda value: ())
    first, second = halve(whole, 1)
    parts = [{q.query_id for q in half.qrels} for half in (first, second)]
    assert (len(parts[0]), len(parts[1]), parts[0] | parts[1]) == (3, 2, set("abcde"))
    assert (first.label, second.label) == ("dev half 1 of seed 1", "dev half 2 of seed 1")
    assert len(first.qrels) == 6 and halve(whole, 1)[0].qrels == first.qrels
    assert len({tuple(q.query_id for q in halve(whole, seed)[0].qrels) for seed in range(20)}) > 1
    with pytest.raises(DataError, match="dev: 1 topics have judgements; 2 parts"):
        halve(split("dev", "1", []), 1)


def test_each_fold_is_reported_by_the_setting_that_is_best_on_the_others():
    """Five topics: setting 1 finds all but e, the untuned one only e."""

    def rank(value):
        found = set("abcd") if value else {"e"}
        for q in "abcde":
            yield from (ScoredDoc(q, doc_id, n, 3.0 - n) for n, doc_id in enumerate("rd" if q in found else "dr", 1))

    whole = Split("dev", [Qrel(q, "r", 1) for q in "abcde"], rank)
    settings = [TuningSetting({}, 0), TuningSetting({"k": 1}, 1)]
    tuned = tuning.cross_validate(settings, whole, 5, 1, parse_measure("RR@1"))
    assert [dict(fold.setting.options) for fold in tuned.folds] == [{"k": 1}] * 5
    assert sorted((fold.topics, fold.untuned, fold.chosen) for fold in tuned.folds) == [(1, 0, 1)] * 4 + [(1, 1, 0)]
    told = tuned.to_json()
    assert (told["untuned"], told["chosen"], len(told["folds"])) == (1 / 5, 4 / 5, 5)
    assert told["topics"] == "dev, 5 folds of seed 1"
    with pytest.raises(DataError, match="dev: 5 topics have judgements; 6 parts"):
        tuning.cross_validate(settings, whole, 6, 1, parse_measure("RR@1"))
    with pytest.raises(UsageError, match="--folds draws the folds by a seed: give --split-seed 1 too"):
        invoked(command, "--run", "a", "--test-run", "b", "--run", "a", "--test-run", "b", "--folds", "5")


def test_runs_are_fused_as_the_command_fuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first system is right about the development topic, the second about the test topic."""
    monkeypatch.chdir(tmp_path)
    for name, topic, first, second in (("dev", "1", "r", "d"), ("test", "2", "d", "r")):
        Path(f"{name}.qrels").write_text(f"{topic} 0 r 1\n")
        for system, best in (("a", first), ("b", second)):
            other = "d" if best == "r" else "r"
            Path(f"{name}.{system}").write_text(f"{topic} Q0 {best} 1 2 s\n{topic} Q0 {other} 2 1 s\n")
    runs = [part for n in "ab" for part in ("--run", f"dev.{n}")]
    tests = [part for n in "ab" for part in ("--test-run", f"test.{n}")]
    files = ["--qrels", "dev.qrels", "--test-qrels", "test.qrels", "--measure", "RR@10", "--steps", "2"]
    told = json.loads(invoked(command, *runs, *tests, *files, "--output", "tuned.json", "--format", "json"))
    assert json.loads(Path("tuned.json").read_text()) == told
    assert told["chosen"] == {"method": "interpolation", "normalisation": "min-max", "weight": [1.0, 0.0]}
    # Equal weights tie, and d comes before r.
    assert told["development"] == {"topics": "dev.qrels", "untuned": 1 / 2, "chosen": 1}
    assert told["test"] == {"topics": "test.qrels", "untuned": 1 / 2, "chosen": 1 / 2}
    text = invoked(command, *runs, *tests, *files, "--dataset-label", "Dev", "--dataset-label", "Test")
    assert text.split()[:2] == ["Dev", "Test"]
    invoked(fuse, *runs, *told["arguments"], "--output", "fused.trec")
    assert Path("fused.trec").read_text().split()[2] == "r"
    for options, kind, message in (
        ((*runs, *tests, *files, "--dataset-label", "Dev"), UsageError, "1 --dataset-label for 2 splits"),
        ((*runs, *tests, *files, "--measure", "RR(rel=2)@10"), DataError, "dev.qrels: no document has relevance 2"),
        ((*runs, *tests[:2], *files), UsageError, "2 development runs and 1 test runs"),
        ((), UsageError, "give runs to fuse"),
    ):
        with pytest.raises(kind, match=message):
            invoked(command, *options)


def test_a_search_is_tuned_as_the_command_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documents = [("r1", {"a": 9}), ("x1", {"b": 9, "c": 9}), ("r2", {"d": 9}), ("x2", {"b": 9, "c": 9, "e": 1})]
    write_shards(tmp_path / "shards", documents)
    build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True)
    # The heaviest term finds the relevant document, the other two outvote it.
    for name, topic, term in (("dev", "q1", "a"), ("test", "q2", "d")):
        Path(f"{name}.jsonl").write_bytes(jsonl([{"id": topic, "vector": {term: 3, "b": 2, "c": 2}}]))
        Path(f"{name}.qrels").write_text(f"{topic} 0 r{topic[1]} 1\n")
    topics = ["--index", "index", "--dev", "dev.jsonl", "--test", "test.jsonl"]
    files = ["--qrels", "dev.qrels", "--test-qrels", "test.qrels", "--measure", "RR@10"]
    told = json.loads(invoked(command, *topics, *files, "--query-terms", 1, "--feedback", 1, "--format", "json"))
    assert told["chosen"] == {"query_terms": 1} and len(told["grid"]) == 4
    assert told["development"] == told["test"] | {"topics": "dev.qrels"}
    assert told["test"] == {"topics": "test.qrels", "untuned": 1 / 3, "chosen": 1}
    invoked(search, "--index", "index", "--topics", "test.jsonl", *told["arguments"], "--output", "x.trec")
    assert Path("x.trec").read_text().split()[2] == "r2"
    lines = invoked(command, *topics, *files, "--query-terms", 1).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["untuned", "chosen"]
    with pytest.raises(UsageError, match="dev.jsonl: topics of a file have no judgements; give --qrels"):
        invoked(command, *topics, "--query-terms", 1)
    with pytest.raises(UsageError, match="name the topics of the index by --dev"):
        invoked(command, "--index", "index", "--query-terms", 1)


def test_weights_of_fields_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is relevant has the word in a long title, whose impact the other field outvotes where both count alike."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "title": {"r1": "cat a b c d e", "r2": "dog a b c d e", "x": "fish"},
        "body": {"r1": "", "r2": "", "x": "cat cat dog dog"},
    }
    for name, of_field in texts.items():
        write_text_shards(tmp_path / name, list(of_field.items()))
    fields = ("--field", "title=title", "--field", "body=body")
    printed = invoked(index, "both", *fields, "--index", "index")
    assert "fields" in printed and "title 3, body 3" in printed
    for name, query_id, text in (("dev", "q1", "cat"), ("test", "q2", "dog")):
        Path(f"{name}.tsv").write_text(f"{query_id}\t{text}\n")
        Path(f"{name}.qrels").write_text(f"{query_id} 0 r{query_id[1]} 1\n")
    topics = ["--index", "index", "--dev", "dev.tsv", "--test", "test.tsv", "--measure", "RR@10"]
    files = ["--qrels", "dev.qrels", "--test-qrels", "test.qrels", "--format", "json"]
    tuned = json.loads(invoked(command, *topics, *files, "--field-steps", 4))
    # Each step is of a field's own weight, 255; the untuned one comes first.
    steps = [{"title.weight": str(255 * n), "body.weight": str(255 * (4 - n))} for n in range(5)]
    assert tuning.weigh_fields(index_manifest(Path("index")).encoder, 4) == steps
    assert [row.get("set") for row in tuned["grid"]] == [
        None,
        *([f"{key}={value}" for key, value in weights.items()] for weights in steps),
    ]
    assert [row["value"] for row in tuned["grid"]] == [1 / 2, 0, 1 / 2, 1 / 2, 1, 1]
    assert tuned["arguments"] == ["--set", "title.weight=765", "--set", "body.weight=255"]
    assert tuned["test"] == {"topics": "test.qrels", "untuned": 1 / 2, "chosen": 1}
    invoked(search, "--index", "index", "--topics", "test.tsv", *tuned["arguments"], "--output", "x.trec")
    assert Path("x.trec").read_text().split()[2] == "r2"
    write_text_shards(tmp_path / "one", [("d", "cat")])
    invoked(index, "single", "--field", "text=one", "--index", "of-one")
    with pytest.raises(UsageError, match="--field-steps is for an index of two fields or more, this one has 1"):
        invoked(command, *topics, *files, "--index", "of-one", "--field-steps", 4)
