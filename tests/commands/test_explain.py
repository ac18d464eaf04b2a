import json
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import jsonl, write_shards, write_text_shards

import lexvl_anserini.searching.shared_terms
from lexvl_anserini.encoders.encoder import read_topic_image
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.explain import command
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc, Topic
from lexvl_anserini.runs.order import in_order
from lexvl_anserini.runs.trec import write_run
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm, explain_documents
from tests.commands.test_search import Toy, encode
from tests.invoking import invoked

DOCUMENTS = [("d1", {"dog": 9, "cat": 1, "😀": 3}), ("d2", {"dog": 3, "boat": 250}), ("d3", {}), ("é/1", {"cat": 7})]
QUERY = ImpactQuery("q", {"dog": 2, "cat": 18, "zebra": 5, "😀": 6})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    terms = ["boat", "cat", "dog", "zebra", "😀"]
    write_shards(folder / "shards", DOCUMENTS[:2], DOCUMENTS[2:], terms=terms)
    build_index(folder / "shards", folder / "index")
    return folder / "index"


def toy_of_digest(*arguments: Any) -> Toy:
    toy = Toy()
    toy.vocabulary = SimpleNamespace(digest=arguments[-1])  # type: ignore[assignment]
    return toy


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexvl_anserini.searching.search.load_encoder_from", toy_of_digest)
    monkeypatch.setattr(lexvl_anserini.searching.shared_terms, "encode_queries", encode)


invoke = partial(invoked, command)


def test_products_sum_to_the_score_of_the_best_and_of_documents_without_shared_terms(index: Path) -> None:
    [found] = Searcher(index).explain(QUERY, ["d1"])
    # dog, cat and 😀 have 18 each: by term.
    terms = (SharedTerm("cat", 18, 1, 18), SharedTerm("dog", 2, 9, 18), SharedTerm("😀", 6, 3, 18))
    assert found == Explanation("q", "d1", 54, terms, 4)
    assert [(e.doc_id, e.score) for e in Searcher(index).explain(QUERY, hits=2)] == [("é/1", 126), ("d1", 54)]
    explanations = Searcher(index).explain(QUERY, ["d3", "d2", "d3"])
    assert [(e.doc_id, e.score, len(e.terms)) for e in explanations] == [("d3", 0, 0), ("d2", 6, 1), ("d3", 0, 0)]
    assert Searcher(index).explain(ImpactQuery("q", {})) == []
    assert Searcher(index).explain(ImpactQuery("q", {}), ["d1"])[0].score == 0


def test_unknown_documents_and_other_kinds(index: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no document 'd9' in the index"):
        Searcher(index).explain(QUERY, ["d9"])
    write_text_shards(tmp_path / "shards", [("d1", "a dog")])
    build_index(tmp_path / "shards", tmp_path / "index")
    with pytest.raises(UsageError, match="is text; only the score of an impact index is a sum over terms"):
        Searcher(tmp_path / "index").explain(Topic("q", "dog"), ["d1"])
    model: Any = SimpleNamespace(name="toy", kind="impact", query=SimpleNamespace(read_topic=read_topic_image))
    model.vocabulary = SimpleNamespace(digest=index_manifest(index).vocabulary_digest)
    with pytest.raises(UsageError, match="encoder 'toy' reads images, and the query is a text"):
        Searcher(index, model).explain("dog")


@pytest.fixture(scope="module")
def engine(index: Path) -> Any:
    engine = LuceneEngine(index, index_manifest(index))
    yield engine
    engine.close()


def test_another_sum_than_the_indexs_raises(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    top = engine.top
    monkeypatch.setattr(engine, "top", lambda *args: in_order("q", [(d, s + 1) for d, s in top(*args).pairs()]))
    with pytest.raises(ArtefactError, match="its products sum to 54, the index's score is 55"):
        explain_documents(engine, QUERY, ["d1"])


@given(vector=st.dictionaries(st.sampled_from(["boat", "cat", "dog", "zebra", "😀"]), st.integers(1, 255)))
def test_every_document_is_its_dot_product(engine: Any, vector: dict[str, int]) -> None:
    explanations = explain_documents(engine, ImpactQuery("q", vector), [doc_id for doc_id, _ in DOCUMENTS])
    for found, (doc_id, impacts) in zip(explanations, DOCUMENTS, strict=True):
        assert (found.doc_id, found.score) == (doc_id, sum(w * impacts.get(t, 0) for t, w in vector.items()))
        assert {t.term for t in found.terms} == vector.keys() & impacts.keys()


def test_the_command(index: Path, toy: None) -> None:
    told = invoke("--index", index, "--query", "dog cat cat", "--doc-id", "d1", "--doc-id", "d3", "--terms", 1)
    assert told.splitlines() == [
        "document d1: score 11, 2 of 2 query terms",
        "  term  weight  impact   product   share",
        "  dog        1       9         9   81.8%",
        "  1 more, together 2",
        "",
        "document d3: score 0, 0 of 2 query terms",
    ]
    [found] = json.loads(invoke("--index", index, "--query", "dog", "--hits", 1, "--format", "json"))
    terms = [{"term": "dog", "weight": 1, "impact": 9, "product": 9}]
    assert found == {"query_id": "query", "doc_id": "d1", "score": 9, "terms": terms, "query_terms": 1}


def test_documents_by_their_passages(tmp_path: Path, toy: None) -> None:
    passages = [("d1#0", {"dog": 3}), ("d1#1", {"dog": 1, "cat": 2}), ("d2", {"cat": 1}), ("d3#0", {})]
    write_shards(tmp_path / "shards", passages, terms=["cat", "dog"])
    index = build_index(tmp_path / "shards", tmp_path / "index").path
    told = invoke("--index", index, "--query", "dog cat cat", "--passages", "sum:2", "--hits", 2)
    assert told.splitlines() == [
        "document d1: score 8, the sum of 2 passages",
        "passage d1#1: score 5, 2 of 2 query terms",
        "  term  weight  impact   product   share",
        "  cat        2       2         4   80.0%",
        "  dog        1       1         1  100.0%",
        "passage d1#0: score 3, 1 of 2 query terms",
        "  term  weight  impact   product   share",
        "  dog        1       3         3  100.0%",
        "",
        "document d2: score 2, of its best passage",
        "passage d2: score 2, 1 of 2 query terms",
        "  term  weight  impact   product   share",
        "  cat        2       1         2  100.0%",
    ]
    query = ImpactQuery("q", {"dog": 1, "cat": 2})
    [found] = Searcher(index).explain(query, ["d1"], passages="max")
    part = Explanation("q", "d1#1", 5, (SharedTerm("cat", 2, 2, 4), SharedTerm("dog", 1, 1, 1)), 2)
    assert found == Explanation("q", "d1", 5, (), 2, (part,))
    assert found.to_json()["passages"] == [part.to_json()] and "passages" not in part.to_json()
    for unknown in ("d3", "d9"):
        with pytest.raises(DataError, match=f"document '{unknown}': no passage {unknown}#... in the index that has a"):
            Searcher(index).explain(query, [unknown], passages="max")
    # A run says how its documents were scored.
    encoder: Any = {"name": "toy", "checkpoint": None, "checkpoint_digest": None, "options": {"passages": "max"}}
    manifest = RunManifest("t.tsv", "", "", None, {}, encoder, {}, "index", 10, False)  # type: ignore[arg-type]
    write_run(tmp_path / "r.trec", [[ScoredDoc("b", "d1", 1, 5.0)]], manifest)
    (tmp_path / "t.tsv").write_text("b\tdog cat cat\n")
    of_run = ["--run", tmp_path / "r.trec", "--topics", tmp_path / "t.tsv", "--query-id", "b", "--format", "json"]
    [explained_hit] = json.loads(invoke("--index", index, *of_run))
    assert [passage["doc_id"] for passage in explained_hit["passages"]] == ["d1#1"]


def test_topics_encoded_or_not(index: Path, tmp_path: Path, toy: None) -> None:
    (tmp_path / "q.jsonl").write_bytes(jsonl([{"id": "a", "vector": {"dog": 2}}, {"id": "b", "vector": {"cat": 3}}]))
    (tmp_path / "t.tsv").write_text("b\tcat cat cat\n")
    for topics in ("q.jsonl", "t.tsv"):
        arguments = ["--index", index, "--topics", tmp_path / topics, "--format", "json"]
        assert [e["score"] for e in json.loads(invoke(*arguments, "--query-id", "b"))] == [21, 3]
        with pytest.raises(DataError, match=f"{topics}: no topic 'c'"):
            invoke(*arguments, "--query-id", "c")
    for wrong in ([], ["--query", "dog", "--query-id", "b"], ["--query", "dog", "--topics", "demo"]):
        with pytest.raises(UsageError, match="give --query TEXT"):
            invoke("--index", index, *wrong)


def test_the_best_hits_of_a_run(index: Path, tmp_path: Path, toy: None, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.tsv").write_text("b\tdog dog cat\n")
    hits = [ScoredDoc("b", "d1", 1, 18.0), ScoredDoc("b", "d2", 2, 6.0)]
    encoder: Any = {"name": "toy", "options": {"query_terms": 1}}
    about = RunManifest("t.tsv", "", "", None, {}, encoder, {}, "index", 10, False)  # type: ignore[arg-type]
    write_run(tmp_path / "x.trec", [hits], about)
    arguments = ["--index", index, "--topics", tmp_path / "t.tsv", "--query-id", "b", "--format", "json"]
    with caplog.at_level(logging.WARNING, "lexvl_anserini"):
        found = json.loads(invoke(*arguments, "--run", tmp_path / "x.trec", "--hits", 1))
        # The run cut its queries to one term, and so does the explanation.
        assert [(e["doc_id"], e["score"]) for e in found] == [("d1", 18)]
        assert not caplog.messages
        write_run(tmp_path / "y.trec", [[hits[1]._replace(rank=1, score=5.0)]], about)
        invoke(*arguments, "--run", tmp_path / "y.trec")
    assert "1 of 1 documents have another score there (d2: 5, here 6)" in caplog.text
    with pytest.raises(DataError, match="x.trec: no line for topic 'c'"):
        (tmp_path / "t.tsv").write_text("b\tdog\nc\tcat\n")
        invoke(*arguments[:5], "c", "--run", tmp_path / "x.trec")
