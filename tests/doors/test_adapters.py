"""Doors into other projects, through the code of these projects."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import log2
from pathlib import Path
from typing import Any

import pytest

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.doors.adapters.indexed_corpus import IndexedCorpus, by_query
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.index import Index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

TEXTS = {"d1": "a dog runs", "d2": "a man on a beach", "d3": "a dog and a man", "d4": "red"}
QUERIES = {"q1": "a dog", "q2": "man", "q3": "boat"}
DOCUMENTS = [Document(doc_id, text=text) for doc_id, text in TEXTS.items()]
TOPICS = [Topic(query_id, text) for query_id, text in QUERIES.items()]
DATASET = Dataset("toy", "", lambda: iter(DOCUMENTS), lambda: iter(()), lambda: iter(()))


@pytest.fixture
def model(load: Callable[..., Encoder]) -> Encoder:
    """Bags of tokens: a score is the number of common tokens."""
    return load("bag-of-tokens", "splade/ckpt_bert")


@pytest.fixture
def index(model: Encoder, tmp_path: Path) -> Index:
    write_impacts(DATASET, model, tmp_path / "shards")
    return build_index(tmp_path / "shards", tmp_path / "index", store_text=False)


def test_a_corpus_in_memory_is_searched(model):
    corpus = IndexedCorpus(model, iter(DOCUMENTS))
    found = by_query(corpus.lists(TOPICS, 2))
    assert found == {"q1": {"d1": 2.0, "d3": 2.0}, "q2": {"d2": 1.0, "d3": 1.0}, "q3": {}}
    among = by_query(corpus.lists_among(TOPICS[:2], {"q1": ["d4", "d3", "d2"], "q2": []}, 9))
    assert among == {"q1": {"d3": 2.0, "d2": 1.0, "d4": 0.0}, "q2": {}}
    with pytest.raises(UsageError, match="topic 'q3': no candidates among those of 1 topics"):
        next(corpus.lists_among(TOPICS[2:], {"q1": ["d1"]}, 3))
    folder = corpus.index.path.parent
    assert folder.is_dir()
    del corpus
    assert not folder.exists()
    with pytest.raises(DataError, match="occur more than once"):
        IndexedCorpus(model, [Document("d", text="a"), Document("d", text="b")])


def test_wrong_types_are_one_line(model, index, tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyterrier", reason="PyTerrier (python-terrier) is not installed")
    from lexvl_anserini.doors.adapters.beir_search import BEIRSearch
    from lexvl_anserini.doors.adapters.pyterrier_search import PyTerrierRetriever

    search, plain = BEIRSearch(model), {"d": {"text": "a dog"}}
    topics = pd.DataFrame({"qid": ["q"], "query": [7]})
    for call, message in (
        (lambda: search.search({"d": {"text": b"a"}}, QUERIES, 3), "'d': its text is of type bytes, expected a str"),
        (lambda: search.search({"d": {"text": "a", "title": [1]}}, QUERIES, 3), "'d': its title is of type list"),
        (lambda: search.search(plain, {"q": 3}, 3), "'q': its text is of type int, expected a str"),
        (lambda: search.search(plain, QUERIES, "3"), "hits is '3', expected an integer from 1"),
        (lambda: next(IndexedCorpus(model, DOCUMENTS).lists(TOPICS, [3])), r"hits is \[3\], expected an integer"),
        (lambda: PyTerrierRetriever(index)(topics), "'q': its query is of type int|'q': its text is of type int"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_beir_retrieves_and_evaluates(model):
    from beir.retrieval.evaluation import EvaluateRetrieval

    from lexvl_anserini.doors.adapters.beir_search import BEIRSearch

    corpus = {doc_id: {"title": "", "text": text} for doc_id, text in TEXTS.items()} | {"q1": {"text": "a dog"}}
    retriever = EvaluateRetrieval(BEIRSearch(model), k_values=[1, 3], score_function="dot")
    results = retriever.retrieve(corpus, QUERIES)
    assert results == {"q1": {"d1": 2.0, "d3": 2.0, "d2": 1.0}, "q2": {"d2": 1.0, "d3": 1.0}, "q3": {}}
    ndcg, _, recall, _ = retriever.evaluate({"q1": {"d3": 1}, "q2": {"d2": 1}}, results, [1, 3])
    assert recall["Recall@3"] == 1.0 and 0 < ndcg["NDCG@3"] <= 1
    for method in (BEIRSearch(model).encode, BEIRSearch(model).search_from_files):
        with pytest.raises(UsageError, match="search the corpus itself"):
            method("x")


def test_pyterrier_experiments(index, model, tmp_path):
    pt = pytest.importorskip("pyterrier", reason="PyTerrier (python-terrier) is not installed")
    import pandas as pd

    from lexvl_anserini.doors.adapters.pyterrier_search import PyTerrierIndexer, PyTerrierRetriever

    topics = pd.DataFrame({"qid": [1, 2, 3], "query": list(QUERIES.values()), "note": ["x", "y", "z"]})
    found = PyTerrierRetriever(index, hits=2)(topics)
    assert found[["qid", "docno", "rank", "note"]].values.tolist() == [
        ["1", "d1", 0, "x"],
        ["1", "d3", 1, "x"],
        ["2", "d2", 0, "y"],
        ["2", "d3", 1, "y"],
    ]
    assert found["score"].tolist()[0] == 2.0 > found["score"].tolist()[1] > 1.999
    qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d3", "d3"], "label": [1, 1]})
    table = pt.Experiment([PyTerrierRetriever(index.path)], topics.astype({"qid": str}), qrels, ["recip_rank"])
    assert table["recip_rank"].tolist() == [0.5]
    made = PyTerrierIndexer(model, tmp_path / "made").index(
        {"docno": doc_id, "text": text} for doc_id, text in TEXTS.items()
    )
    pipeline = PyTerrierRetriever(made, model=model) % 1
    assert pipeline(topics)["docno"].tolist() == ["d1", "d2"]
    with pytest.raises(UsageError, match="topics without the column 'query'"):
        PyTerrierRetriever(index)(topics[["qid"]])


def test_langchain_retrieves(model, tmp_path):
    pytest.importorskip("langchain_core", reason="LangChain (langchain-core) is not installed")
    from lexvl_anserini.doors.adapters.langchain_retriever import LexVLRetriever

    write_impacts(DATASET, model, tmp_path / "s", layout=Layout(contents=True))
    index = build_index(tmp_path / "s", tmp_path / "i", store_text=True)
    for one in (index, index.path, str(index.path)):
        found = LexVLRetriever(index=one, k=2).invoke("a dog")
        assert [(d.id, d.page_content, d.metadata["score"]) for d in found] == [
            ("d1", "a dog runs", 2.0),
            ("d3", "a dog and a man", 2.0),
        ]


def test_ir_measures_reads_our_hits_and_judgements(index, model):
    measures = pytest.importorskip("ir_measures", reason="ir_measures is not installed")
    from lexvl_anserini import Searcher
    from lexvl_anserini.ground.records import Qrel

    with Searcher(index, model) as searcher:
        hits = [hit for ranking in searcher.lists(TOPICS, 2) for hit in ranking]
    # q1 finds d1 and d3, q2 finds d2 and d3
    qrels = [Qrel("q1", "d3", 1), Qrel("q2", "d2", 1)]
    found = measures.calc_aggregate([measures.RR, measures.R @ 2], qrels, hits)
    assert found == {measures.RR: 0.75, measures.R @ 2: 1.0}


class TestMTEB:
    """MTEB's own mock tasks, through `mteb.evaluate`."""

    @staticmethod
    def evaluated(model: Any, task: Any) -> Any:
        import mteb

        from lexvl_anserini.doors.adapters.mteb_search import MTEBSearch

        search = MTEBSearch(model, "lexvl/test")
        results = mteb.evaluate(search, [task], cache=None)
        [result] = results.task_results
        return result.scores

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("mteb", reason="MTEB is not installed")

    def test_its_private_function_is_where_it_was(self):
        module = import_module("mteb._create_dataloaders") if find_spec("mteb._create_dataloaders") else None
        assert hasattr(module, "create_dataloader"), (
            "MTEB has no mteb._create_dataloaders.create_dataloader any more: look where its wrappers get the "
            "text and the image of a row now, and adapt MTEBSearch._rows"
        )

    def test_texts(self, model):
        from mteb.mocks.mock_tasks.retrieval import MockMultilingualRetrievalTask, MockRetrievalTask

        scores = self.evaluated(model, MockRetrievalTask())
        # "a test sentence" shares more words with the other of the two documents, so the relevant one is second.
        assert scores["test"][0]["ndcg_at_10"] == pytest.approx(1 / log2(3), abs=1e-5)
        scores = self.evaluated(model, MockMultilingualRetrievalTask())
        assert {row["hf_subset"] for row in scores["test"]} == {"eng", "fra"}

    def test_candidates(self, model):
        from mteb.mocks.mock_tasks.reranking import MockRerankingTask

        scores = self.evaluated(model, MockRerankingTask())
        assert 0 < scores["test"][0]["ndcg_at_10"] <= 1

    @pytest.mark.parametrize("direction", ["text-to-image", "image-to-text"])
    def test_pictures(self, direction):
        from mteb.mocks.mock_tasks import retrieval

        from lexvl_anserini.encoders.loading import load_encoder

        name = "MockAny2AnyRetrievalT2ITask" if direction == "text-to-image" else "MockAny2AnyRetrievalI2TTask"
        model = load_encoder("vdr-crossmodal", "demo-vdr", direction=direction)
        scores = self.evaluated(model, getattr(retrieval, name)())
        assert 0 <= scores["test"][0]["ndcg_at_10"] <= 1

    def test_a_task_of_pages_measures_what_we_measure(self, tmp_path, monkeypatch):
        """MTEB's task of ViDoRe over three pages in the tables of `vidore:FOLDER`, and our own run over them."""
        import datasets
        from mteb.tasks.retrieval.multilingual import vidore2_bench_retrieval as tasks
        from page_tables import page, write_tables

        from eval.vidore import command
        from lexvl_anserini import load_dataset, load_encoder
        from tests.invoking import invoked

        write_tables(
            tmp_path / "pages",
            corpus={"corpus-id": [0, 1, 2], "image": [page(shade) for shade in (0, 60, 120)]},
            queries={"query-id": [0, 1], "query": ["a red boat", "two dogs"], "language": ["english", "english"]},
            qrels={"query-id": [0, 1], "corpus-id": [1, 2], "score": [1, 2]},
        )

        def read(path, name, split, **options):
            table = datasets.load_dataset(
                "parquet", data_files=str(tmp_path / "pages" / name / f"{split}-*.parquet"), split="train"
            )
            return table.cast_column("image", datasets.Image()) if name == "corpus" else table

        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(tasks, "load_dataset", read)
        model = load_encoder("vdr-crossmodal", "demo-vdr", direction="text-to-image")
        task = tasks.Vidore2ESGReportsRetrieval().filter_languages(["eng"])
        theirs = self.evaluated(model, task)["test"][0]["ndcg_at_5"]

        dataset = load_dataset(f"vidore:{tmp_path / 'pages'},english")
        write_impacts(dataset, model, tmp_path / "shards")
        hits = build_index(tmp_path / "shards", tmp_path / "index").search(list(dataset.topics()), 10, model=model)
        run = [f"{hit.query_id} Q0 {hit.doc_id} {hit.rank} {hit.score} x\n" for ranking in hits for hit in ranking]
        (tmp_path / "run.trec").write_text("".join(run))
        arguments = ("--run", tmp_path / "run.trec", "--dataset", dataset.name, "--format", "json")
        rows = json.loads(invoked(command, *arguments))
        [ours] = [row["value"] for row in rows if row["measure"] == "nDCG@5"]
        assert theirs == pytest.approx(ours, abs=1e-5) and theirs > 0
