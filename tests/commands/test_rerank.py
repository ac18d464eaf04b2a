"""Runs whose first documents are scored anew: the order of lists by hand, the reference's SVDR, the command."""

import json
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
from corpus_folders import write_beir

from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import RunManifest, name_manifest, read_run_manifest
from lexvl_anserini.ground.records import Document, ScoredDoc, Topic
from lexvl_anserini.rerank import command
from lexvl_anserini.runs.fusion import Fusion, build_fused_manifest
from lexvl_anserini.runs.order import in_order
from lexvl_anserini.runs.trec import read_lists, read_run, write_run
from lexvl_anserini.searching.rescoring import load_run_documents, load_run_encoder, load_run_topics, rerank_lists
from lexvl_anserini.searching.shared_terms import select_encoder_options
from lexvl_anserini.shards.encoding import Covered, WholeCorpus
from tests.invoking import invoked

BERT, PUBLISHED = "splade/ckpt_bert", "vdr/text-tiny"

TEXTS = {"a": "dog", "b": "dog man beach", "c": "man", "d": ""}
DOCUMENTS = [Document(doc_id, text=text) for doc_id, text in TEXTS.items()]


def listed(*documents):
    return in_order("q", documents)


@pytest.fixture
def bag(load):
    return load("bag-of-tokens", BERT)


def reranked(model, topics, lists, **options):
    return list(rerank_lists(topics, lists, model, lambda: iter(DOCUMENTS), **options))


def test_the_first_are_scored_anew_and_the_rest_stays_below(bag, monkeypatch):
    """dog man: b has both words; c beyond the depth keeps its place, d its distance to c."""
    seen = []
    monkeypatch.setattr(bag.document, "read", lambda d: seen.append(d.doc_id) or d.contents)
    found = listed(("d", 9), ("a", 8), ("b", 7), ("c", 5), ("e", 3))
    (hits,) = reranked(bag, [Topic("q", "dog man")], {"q": found}, depth=3)
    assert [(d.doc_id, d.rank, d.score) for d in hits] == [
        ("b", 1, 2.0), ("a", 2, 1.0), ("d", 3, 0.0), ("c", 4, -1.0), ("e", 5, -3.0),
    ]  # fmt: skip
    assert sorted(seen) == ["a", "b", "d"]
    topics = [Topic("none", "dog"), Topic("q", "dog man"), Topic("empty", "")]
    lists = reranked(bag, topics, {"q": listed(("c", 2), ("a", 1))})
    assert [[(d.doc_id, d.score) for d in hits] for hits in lists] == [[], [("a", 1.0), ("c", 1.0)], []]
    assert reranked(bag, [], {}) == []


def test_what_cannot_be_scored(bag):
    with pytest.raises(DataError, match="document 'z' of a run"):
        reranked(bag, [Topic("q", "dog")], {"q": listed(("z", 1))})
    with pytest.raises(UsageError, match="bm25 has no vectors"):
        reranked(load_encoder("bm25"), [Topic("q", "dog")], {"q": listed(("a", 1))})


def test_svdr_beta_and_rerank_are_the_references(golden, load):
    """Bag-of-token index, the best three, re-scored; the longest text of a batch has 24 tokens, 48 for the passages."""
    about, arrays = json.loads((golden / "vdr/text-tiny.json").read_text()), np.load(golden / "vdr/text-tiny.npz")
    queries = [Topic(str(n), text) for n, text in enumerate(about["queries"])]
    passages = [Document(str(n), text=text) for n, text in enumerate(about["passages"])]
    beta = load("svdr", PUBLISHED, query_max_length=24, max_length=128, lexical_union=True)
    documents = beta.encode_document([p.text for p in passages])
    scores, lists = (beta.encode_query([q.text for q in queries]) @ documents.T).toarray(), {}
    first = zip(arrays["retrieve_bot_ids"], arrays["retrieve_bot_scores"], strict=True)
    for number, (ids, expected) in enumerate(first):
        np.testing.assert_allclose(np.sort(scores[number])[::-1][:3], expected, atol=2e-3, rtol=1e-5)
        hits = enumerate(zip(ids.tolist(), expected.tolist(), strict=True), start=1)
        lists[str(number)] = [ScoredDoc(str(number), str(doc), rank, score) for rank, (doc, score) in hits]
    full = load("svdr", PUBLISHED, mode="full", query_max_length=24, lexical_union=True)
    found = rerank_lists(queries, lists, full, lambda: iter(passages), depth=3)
    second = arrays["retrieve_bot_rerank_ids"], arrays["retrieve_bot_rerank_scores"]
    for hits, ids, expected in zip(found, *second, strict=True):
        assert [int(d.doc_id) for d in hits] == ids.tolist()
        np.testing.assert_allclose([d.score for d in hits], expected, atol=2e-3, rtol=1e-5)


@pytest.fixture
def corpus(tmp_path):
    return write_beir(tmp_path / "corpus", TEXTS, {"q": "dog man"}, [("q", "b")])


@pytest.fixture
def first(golden, corpus, tmp_path):
    """A run as `search` would have written it over an svdr index."""
    model = load_encoder("svdr", str(golden / PUBLISHED), device="cpu", max_length=40)
    name = f"beir:{corpus}"
    dataset = {"name": name, "split": "test", "data_dir": None, "escape_ids": False, "direction": "text-to-text"}
    manifest = RunManifest(name, name, "test", None, dataset, model.identity(), {}, "index", 3, remove_query=True)
    write_run(tmp_path / "first.trec", [listed(("a", 3), ("c", 2), ("b", 1))], manifest)
    return tmp_path / "first.trec"


@pytest.fixture
def invoke(first):
    return partial(invoked, command, "--run", first, "--device", "cpu", "--output")


def test_the_command(invoke, first, tmp_path):
    output = tmp_path / "second.trec"
    arguments = (output, "--depth", 2, "--format", "json")
    assert json.loads(invoke(*arguments)) == {"run": str(output), "topics": 1, "topics_without_hits": 0, "lines": 3}
    assert [d.doc_id for d in read_run(output)][2] == "b"
    manifest = read_run_manifest(output)
    assert manifest.encoder["options"] == {"mode": "full", "lexical_union": True, "max_length": 40}
    assert manifest.encoder["reranks"]["depth"] == 2 and manifest.encoder["reranks"]["encoder"]["name"] == "svdr"
    assert manifest.dataset == read_run_manifest(first).dataset and manifest.remove_query
    before = output.read_bytes()
    invoke(*arguments)
    assert output.read_bytes() == before
    with pytest.raises(ArtefactError, match="a run of another request"):
        invoke(*arguments, "--set", "lexical_union=false")
    # One that an older version wrote, which does not say of which run it was.
    shown = json.loads(name_manifest(output).read_text())
    assert shown["index"] == f"index+{compute_sha256(first)[:12]}"
    name_manifest(output).write_text(json.dumps({**shown, "index": "index"}))
    invoke(*arguments)
    assert output.read_bytes() == before and json.loads(name_manifest(output).read_text())["index"] == shown["index"]


def test_a_run_and_topics_of_the_same_names_that_changed(invoke, first, corpus, tmp_path):
    arguments = (tmp_path / "second.trec", "--depth", 2)
    manifest, queries = read_run_manifest(first), (corpus / "queries.jsonl").read_text()
    digest = load_run_topics(manifest, None, None).noted()
    name_manifest(first).write_text(json.dumps({**manifest.to_json(), "topics_sha256": digest}))
    invoke(*arguments)
    assert "topics" not in read_run_manifest(tmp_path / "second.trec").encoder["reranks"]
    (corpus / "queries.jsonl").write_text(queries.replace("dog", "cat"))
    with pytest.raises(ArtefactError, match=r"a run of another request \(encoder.reranks.topics: "):
        invoke(*arguments)
    (corpus / "queries.jsonl").write_text(queries)
    invoke(*arguments)
    first.write_text("\n".join(first.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(ArtefactError, match=r"a run of another request \(index: "):
        invoke(*arguments)


def test_documents_that_changed_since_they_were_encoded(invoke, first, corpus, tmp_path):
    manifest, texts = json.loads(name_manifest(first).read_text()), (corpus / "corpus.jsonl").read_text()
    digest = check_corpus(load_dataset(manifest["corpus"]["name"]).documents, "x").digest
    name_manifest(first).write_text(json.dumps({**manifest, "corpus": {**manifest["corpus"], "digest": digest}}))
    invoke(tmp_path / "x.trec")
    (corpus / "corpus.jsonl").write_text(texts.replace("beach", "beech"))
    changed = rf"its documents changed since they were encoded \(digest .*{digest[:12]}"
    with pytest.raises(ArtefactError, match=changed):
        invoke(tmp_path / "y.trec")
    assert not (tmp_path / "y.trec").exists()


def test_pictures_that_changed_since_they_were_encoded(tmp_path, caplog):
    """One line: their digest is another where a corpus was encoded in parts. It covers pictures or metadata."""
    picture = tmp_path / "a.png"
    picture.write_bytes(b"1")
    dataset = load_dataset(f"pictures:{tmp_path}")
    for metadata, reads in ((True, "title"), (False, "image"), (True, "image")):
        with FileDigests() as files:
            summary = WholeCorpus(dataset).check(Covered(SimpleNamespace(read=attrgetter(reads)), metadata, files))
        about = {"name": dataset.name, "digest": summary.digest, "contents": summary.contents}
        ran = RunManifest("t", "", "", None, about, {"name": "x"}, {}, "index", 3, remove_query=False)
        caplog.clear()
        assert [d.doc_id for d in load_run_documents(ran, None)] == ["a.png"] and not caplog.messages
    picture.write_bytes(b"2")
    assert len(list(load_run_documents(ran, None))) == 1
    assert "pictures or vectors changed since they were encoded, or were encoded in parts" in caplog.text


def test_a_mixture_of_runs_has_no_encoder(first, tmp_path):
    fused = tmp_path / "fused.trec"
    write_run(fused, read_lists(first).values(), build_fused_manifest([first, first], Fusion(), 10), tag="fusion")
    with pytest.raises(UsageError, match="fused.trec: a mixture of 2 runs, which has no encoder to score with"):
        invoked(command, "--run", fused, "--output", tmp_path / "x.trec")
    with pytest.raises(UsageError, match="fused.trec: a mixture of 2 runs"):
        load_run_encoder(fused, 1.0, None, "cpu")
    # `sheet` and `explain` show it by the options of the index.
    assert select_encoder_options(read_run_manifest(fused)) == {}
