"""Requests compared: what a line says about two that differ."""

from __future__ import annotations

from lexvl_anserini.ground.claims import compare_requests


def test_the_keys_that_differ_are_named_at_any_depth_with_both_values() -> None:
    digest, corpus = "d" * 200, {"name": "beir:x", "split": None}
    found = {"encoder": {"name": "vdr", "digest": digest, "options": {}}, "corpus": corpus, "hits": 10}
    request = {**found, "encoder": {**found["encoder"], "options": {"m": 64}}, "corpus": {**corpus, "split": "dev"}}
    same = compare_requests(request, found)
    assert str(same) == 'encoder.options.m: null found, 64 requested; corpus.split: null found, "dev" requested'
    assert list(same.differing) == ["encoder", "corpus"]
    assert str(compare_requests({"hits": 5, "encoder": None}, {"hits": 10, "encoder": {"name": "vdr"}})) == (
        'hits: 10 found, 5 requested; encoder: {"name":"vdr"} found, null requested'
    )


def test_long_values_are_cut_where_they_begin_to_differ() -> None:
    same = compare_requests({"query": "a" * 500 + "b" + "c" * 500}, {"query": "a" * 500})
    found, requested = str(same).removeprefix("query: ").split(" found, ")
    assert found == "..." + "a" * 20 + '"' and requested.startswith("..." + "a" * 20 + "bccc")
    assert requested.endswith("c... requested") and len(requested) < 200


def test_no_more_than_four_have_values() -> None:
    same = compare_requests({"a": dict.fromkeys("vwxyz", 1), "b": 1}, {"a": dict.fromkeys("vwxyz", 2), "b": 2})
    assert str(same).endswith("a.y: 2 found, 1 requested; also a.z, b")
