"""Runs whose first documents are scored anew: the order of lists by hand, the reference's SVDR, the command."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from lexvl_anserini import cli
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import Document, ScoredDoc, Topic
from lexvl_anserini.ground.run_manifest import RunManifest, manifest_path, read_run_manifest
from lexvl_anserini.rerank import command
from lexvl_anserini.runs.trec import lists_of, read_run, write_run
from lexvl_anserini.searching.rescoring import below, rerank_lists, reranking_encoder

BERT, PUBLISHED = "splade/ckpt_bert", "vdr/text-tiny"

DOCUMENTS = [
    Document("a", text="dog"),
    Document("b", text="dog man beach"),
    Document("c", text="man"),
    Document("d", text=""),
]


def listed(*documents):
    return [ScoredDoc("q", doc_id, rank, score) for rank, (doc_id, score) in enumerate(documents, start=1)]


@pytest.fixture
def bag(load):
    return load("bag-of-tokens", BERT)


def test_the_first_are_scored_anew_and_the_rest_stays_below(bag):
    """dog man: b has both words; c beyond the depth keeps its place, d its distance to c."""
    found = listed(("d", 9), ("a", 8), ("b", 7), ("c", 5), ("e", 3))
    (reranked,) = rerank_lists([Topic("q", "dog man")], {"q": found}, bag, lambda: iter(DOCUMENTS), depth=3)
    assert [(d.doc_id, d.rank, d.score) for d in reranked] == [
        ("b", 1, 2.0), ("a", 2, 1.0), ("d", 3, 0.0), ("c", 4, -1.0), ("e", 5, -3.0),
    ]  # fmt: skip


def test_ties_are_ordered_by_id(bag):
    found = listed(("c", 2), ("a", 1))
    (reranked,) = rerank_lists([Topic("q", "dog man")], {"q": found}, bag, lambda: iter(DOCUMENTS))
    assert [(d.doc_id, d.score) for d in reranked] == [("a", 1.0), ("c", 1.0)]


def test_topics_without_hits_have_an_empty_list(bag):
    topics = [Topic("none", "dog"), Topic("q", "dog"), Topic("empty", "")]
    lists = list(rerank_lists(topics, {"q": listed(("a", 1))}, bag, lambda: iter(DOCUMENTS)))
    assert [len(found) for found in lists] == [0, 1, 0]
    assert list(rerank_lists([], {}, bag, lambda: iter(DOCUMENTS))) == []


def test_only_the_first_are_encoded(bag, monkeypatch):
    seen = []
    monkeypatch.setattr(bag.document, "read", lambda d: seen.append(d.doc_id) or d.contents)
    list(rerank_lists([Topic("q", "dog")], {"q": listed(("a", 2), ("b", 1))}, bag, lambda: iter(DOCUMENTS), depth=1))
    assert seen == ["a"]


def test_what_cannot_be_scored(bag, load, golden):
    with pytest.raises(DataError, match="document 'z' of a run"):
        list(rerank_lists([Topic("q", "dog")], {"q": listed(("z", 1))}, bag, lambda: iter(DOCUMENTS)))
    from lexvl_anserini.encoders.loading import load_encoder

    with pytest.raises(UsageError, match="bm25 has no vectors"):
        list(rerank_lists([Topic("q", "dog")], {"q": listed(("a", 1))}, load_encoder("bm25"), lambda: iter(DOCUMENTS)))


def test_below_keeps_distances():
    assert below([], listed(("a", 1))) == []
    (only,) = below([ScoredDoc("q", "x", 9, 100.0)], listed(("a", 1), ("b", 0.5)))
    assert only == ScoredDoc("q", "x", 3, -0.5)


# ---- the reference


def test_svdr_beta_and_rerank_are_the_references(golden, load):
    """Bag-of-token index (128 tokens), the best three, re-scored by both towers.

    The reference pads to the longest text of a batch, 24 tokens for these queries and 48 for the passages.
    """
    about, arrays = json.loads((golden / "vdr/text-tiny.json").read_text()), np.load(golden / "vdr/text-tiny.npz")
    queries = [Topic(str(n), text) for n, text in enumerate(about["queries"])]
    passages = [Document(str(n), text=text) for n, text in enumerate(about["passages"])]
    beta = load("svdr", PUBLISHED, query_max_length=24, max_length=128, lexical_union=True)
    scores = (
        beta.encode_query([q.text for q in queries]) @ beta.encode_document([p.text for p in passages]).T
    ).toarray()
    lists = {}
    for number, (ids, expected) in enumerate(
        zip(arrays["retrieve_bot_ids"], arrays["retrieve_bot_scores"], strict=True)
    ):
        np.testing.assert_allclose(np.sort(scores[number])[::-1][:3], expected, atol=2e-3, rtol=1e-5)
        hits = enumerate(zip(ids.tolist(), expected.tolist(), strict=True), start=1)
        lists[str(number)] = [ScoredDoc(str(number), str(doc), rank, score) for rank, (doc, score) in hits]
    full = load("svdr", PUBLISHED, mode="full", query_max_length=24, lexical_union=True)
    found = rerank_lists(queries, lists, full, lambda: iter(passages), depth=3)
    for reranked, ids, expected in zip(
        found, arrays["retrieve_bot_rerank_ids"], arrays["retrieve_bot_rerank_scores"], strict=True
    ):
        assert [int(d.doc_id) for d in reranked] == ids.tolist()
        np.testing.assert_allclose([d.score for d in reranked], expected, atol=2e-3, rtol=1e-5)


# ---- the command


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": d.doc_id, "title": "", "text": d.text} for d in DOCUMENTS]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "dog man"}) + "\n")
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    return folder


@pytest.fixture
def first(golden, corpus, tmp_path):
    """A run as `search` would have written it over an svdr index."""
    from lexvl_anserini.encoders.loading import load_encoder

    model = load_encoder("svdr", str(golden / PUBLISHED), device="cpu", max_length=40)
    about = {
        "name": f"beir:{corpus}",
        "split": "test",
        "data_dir": None,
        "escape_ids": False,
        "direction": "text-to-text",
    }
    manifest = RunManifest(
        f"beir:{corpus}", f"beir:{corpus}", "test", None, about, model.identity(), {}, "index", 3, remove_query=True
    )
    write_run(tmp_path / "first.trec", [listed(("a", 3), ("c", 2), ("b", 1))], manifest)
    return tmp_path / "first.trec"


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["rerank", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.run(command)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_the_command(monkeypatch, capsys, first, tmp_path):
    output = tmp_path / "second.trec"
    arguments = ("--run", first, "--output", output, "--depth", 2, "--device", "cpu", "--format", "json")
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert json.loads(out) == {"run": str(output), "topics": 1, "topics_without_hits": 0, "lines": 3}
    assert [d.doc_id for d in read_run(output)][2] == "b"
    about = read_run_manifest(output)
    assert about.encoder["options"] == {"mode": "full", "lexical_union": True, "max_length": 40}
    assert about.encoder["reranks"]["depth"] == 2 and about.encoder["reranks"]["encoder"]["name"] == "svdr"
    assert about.dataset == read_run_manifest(first).dataset and about.remove_query
    before = output.read_bytes()
    assert run(monkeypatch, capsys, *arguments)[0] == 0 and output.read_bytes() == before
    code, _, err = run(monkeypatch, capsys, *arguments, "--set", "lexical_union=false")
    assert code == 1 and "a run of another request" in err


def test_a_run_of_unknown_making(monkeypatch, capsys, first, tmp_path):
    manifest_path(first).unlink()
    code, _, err = run(monkeypatch, capsys, "--run", first, "--output", tmp_path / "x.trec")
    assert code == 1 and "no manifest beside it" in err
    assert list(lists_of(first)) == ["q"]


def test_another_checkpoint_is_refused(first, golden):
    with pytest.raises(ArtefactError, match="has digest"):
        reranking_encoder(read_run_manifest(first), str(golden / "vdr/text-tiny-norm"), None, "cpu", {})
