"""Doors into other projects, through the code of these projects."""

import json
from collections.abc import Callable
from dataclasses import replace
from gc import get_referents
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import islice
from math import log2
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from invoking import invoked

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Qrel, Topic
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.exchange.adapters.indexed_corpus import IndexedCorpus, collect_scores

TEXTS = {"d1": "a dog runs", "d2": "a man on a beach", "d3": "a dog and a man", "d4": "red"}
QUERIES = {"q1": "a dog", "q2": "man", "q3": "boat"}
DOCUMENTS = [Document(doc_id, text=text) for doc_id, text in TEXTS.items()]
TOPICS = [Topic(query_id, text) for query_id, text in QUERIES.items()]
# The packaged models that have a card.
TRAINED = ("lexvl-mini", "photos-vdr", "photos-dense")
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
    lists = collect_scores(corpus.search(TOPICS, 2))
    assert lists == {"q1": {"d1": 2.0, "d3": 2.0}, "q2": {"d2": 1.0, "d3": 1.0}, "q3": {}}
    among = collect_scores(corpus.rank_among(TOPICS[:2], {"q1": ["d4", "d3", "d2"], "q2": []}, 9))
    assert among == {"q1": {"d3": 2.0, "d2": 1.0, "d4": 0.0}, "q2": {}}
    with pytest.raises(UsageError, match="topic 'q3': no candidates among those of 1 topics"):
        next(corpus.rank_among(TOPICS[2:], {"q1": ["d1"]}, 3))
    folder = corpus.index.path.parent
    assert folder.is_dir()
    del corpus
    assert not folder.exists()
    with pytest.raises(DataError, match="occur more than once"):
        IndexedCorpus(model, [Document("d", text="a"), Document("d", text="b")])


def test_wrong_types_are_one_line(model, index):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyterrier", reason="PyTerrier (python-terrier) is not installed")
    from lexvl_plugins.exchange.adapters.beir_search import BEIRSearch
    from lexvl_plugins.exchange.adapters.pyterrier_search import PyTerrierRetriever

    search, plain = BEIRSearch(model), {"d": {"text": "a dog"}}
    topics = pd.DataFrame({"qid": ["q"], "query": [7]})
    for call, message in (
        (lambda: search.search({"d": {"text": b"a"}}, QUERIES, 3), "'d': its text is of type bytes, expected a str"),
        (lambda: search.search({"d": {"text": "a", "title": [1]}}, QUERIES, 3), "'d': its title is of type list"),
        (lambda: search.search({"d": {"text": "a", "title": np.ones(2)}}, QUERIES, 3), "'d': its title is of type nda"),
        (lambda: search.search(plain, {"q": 3}, 3), "'q': its text is of type int"),
        (lambda: search.search(plain, QUERIES, "3"), "hits is '3'"),
        (lambda: next(IndexedCorpus(model, DOCUMENTS).search(TOPICS, [3])), r"hits is \[3\]"),
        (lambda: PyTerrierRetriever(index)(topics), "'q': its query is of type int|'q': its text is of type int"),
        (lambda: PyTerrierRetriever(index)(topics[["qid"]]), "without the column 'query'"),
        (lambda: search.encode("x"), "search the corpus itself"),
        (lambda: search.search_from_files("x"), "search the corpus itself"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_beir_retrieves_and_evaluates(model):
    from beir.retrieval.evaluation import EvaluateRetrieval

    from lexvl_plugins.exchange.adapters.beir_search import BEIRSearch

    corpus = {doc_id: {"title": "", "text": text} for doc_id, text in TEXTS.items()} | {"q1": {"text": "a dog"}}
    retriever = EvaluateRetrieval(BEIRSearch(model), k_values=[1, 3], score_function="dot")
    results = retriever.retrieve(corpus, QUERIES)
    assert results == {"q1": {"d1": 2.0, "d3": 2.0, "d2": 1.0}, "q2": {"d2": 1.0, "d3": 1.0}, "q3": {}}
    ndcg, _, recall, _ = retriever.evaluate({"q1": {"d3": 1}, "q2": {"d2": 1}}, results, [1, 3])
    assert recall["Recall@3"] == 1.0 and 0 < ndcg["NDCG@3"] <= 1


def test_pyterrier_experiments(index, model, tmp_path):
    pt = pytest.importorskip("pyterrier", reason="PyTerrier (python-terrier) is not installed")
    import pandas as pd

    from lexvl_plugins.exchange.adapters.pyterrier_search import PyTerrierIndexer, PyTerrierRetriever

    topics = pd.DataFrame({"qid": [1, 2, 3], "query": list(QUERIES.values()), "note": ["x", "y", "z"]})
    ranking = PyTerrierRetriever(index, hits=2)(topics)
    rows = [tuple(row) for row in ranking[["qid", "docno", "rank", "note"]].values]
    assert rows == [("1", "d1", 0, "x"), ("1", "d3", 1, "x"), ("2", "d2", 0, "y"), ("2", "d3", 1, "y")]
    assert ranking["score"].tolist()[0] == 2.0 > ranking["score"].tolist()[1] > 1.999
    qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d3", "d3"], "label": [1, 1]})
    table = pt.Experiment([PyTerrierRetriever(index.path)], topics.astype({"qid": str}), qrels, ["recip_rank"])
    assert table["recip_rank"].tolist() == [0.5]
    record = {"docno": 7, "text": "runs", "title": "a dog", "url": "a blank", "empty": ""}
    fields = PyTerrierIndexer(model, tmp_path / "made", ("title", "text", "url", "empty", "none"))
    assert fields.convert_document(record)[:3] == ("7", "a dog", "runs a blank")
    records = ({"docno": doc_id, "text": text} for doc_id, text in TEXTS.items())
    pipeline = PyTerrierRetriever(PyTerrierIndexer(model, tmp_path / "made").index(records), model=model) % 1
    assert pipeline(topics)["docno"].tolist() == ["d1", "d2"]


def test_langchain_retrieves(model, tmp_path):
    pytest.importorskip("langchain_core", reason="LangChain (langchain-core) is not installed")
    from lexvl_plugins.exchange.adapters.langchain_retriever import LexVLRetriever

    write_impacts(DATASET, model, tmp_path / "s", layout=Layout(contents=True))
    index = build_index(tmp_path / "s", tmp_path / "i", store_text=True)
    expected = [("d1", "a dog runs", 2.0), ("d3", "a dog and a man", 2.0)]
    for place in (index, index.path, str(index.path)):
        documents = LexVLRetriever(index=place, k=2).invoke("a dog")
        assert [(d.id, d.page_content, d.metadata["score"]) for d in documents] == expected
    for several in ([], ["a dog"]):
        with pytest.raises(UsageError, match=r"query is .*, expected a text"):
            LexVLRetriever(index=index).invoke(several)


def test_ir_measures_reads_our_hits_and_judgements(index, model):
    measures = pytest.importorskip("ir_measures", reason="ir_measures is not installed")
    from lexvl_anserini.searching.searcher import Searcher

    with Searcher(index, model) as searcher:
        hits = [hit for ranking in searcher.lists(TOPICS, 2) for hit in ranking]
    # q1 finds d1 and d3, q2 finds d2 and d3
    qrels = [Qrel("q1", "d3", 1), Qrel("q2", "d2", 1)]
    values = measures.calc_aggregate([measures.RR, measures.R @ 2], qrels, hits)
    assert values == {measures.RR: 0.75, measures.R @ 2: 1.0}


def count_weights(encoder: Encoder) -> dict[int, int]:
    """The number of weights of each tensor of all networks that an encoder refers to, by the tensor's address."""
    import torch

    weights: dict[int, int] = {}
    seen: set[int] = set()
    rest: list[Any] = [encoder]
    while rest:
        part = rest.pop()
        if id(part) in seen or isinstance(part, type | ModuleType):
            continue
        seen.add(id(part))
        if isinstance(part, torch.nn.Module):
            weights |= {tensor.data_ptr(): tensor.numel() for tensor in (*part.parameters(), *part.buffers())}
        elif isinstance(part, FunctionType):
            rest += [cell.cell_contents for cell in part.__closure__ or ()]
        else:
            rest += get_referents(part)
    return weights


class TestMTEB:
    @staticmethod
    def evaluated(model: Any, task: Any) -> Any:
        import mteb

        from lexvl_plugins.exchange.adapters.mteb_search import MTEBSearch

        [result] = mteb.evaluate(MTEBSearch(model, "lexvl/test"), [task], cache=None).task_results
        return result.scores

    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("mteb", reason="MTEB is not installed")

    def test_its_private_function_is_where_it_was(self):
        module = import_module("mteb._create_dataloaders") if find_spec("mteb._create_dataloaders") else None
        remedy = "look where MTEB's wrappers get the text and the image of a row now; adapt MTEBSearch._read_rows"
        assert hasattr(module, "create_dataloader"), remedy

    def test_texts(self, model):
        from mteb.mocks.mock_tasks import reranking, retrieval

        scores = self.evaluated(model, retrieval.MockRetrievalTask())
        # "a test sentence" shares more words with the other of the two documents, so the relevant one is second.
        assert scores["test"][0]["ndcg_at_10"] == pytest.approx(1 / log2(3), abs=1e-5)
        scores = self.evaluated(model, retrieval.MockMultilingualRetrievalTask())
        assert {row["hf_subset"] for row in scores["test"]} == {"eng", "fra"}
        scores = self.evaluated(model, reranking.MockRerankingTask())
        assert 0 < scores["test"][0]["ndcg_at_10"] <= 1

    @pytest.mark.parametrize(("direction", "name"), [("text-to-image", "T2I"), ("image-to-text", "I2T")])
    def test_pictures(self, direction, name):
        from mteb.mocks.mock_tasks import retrieval

        model = load_encoder("vdr-crossmodal", "demo-vdr", direction=direction)
        scores = self.evaluated(model, getattr(retrieval, f"MockAny2AnyRetrieval{name}Task")())
        assert 0 <= scores["test"][0]["ndcg_at_10"] <= 1

    def test_a_task_of_pages_measures_what_we_measure(self, tmp_path, monkeypatch):
        """MTEB's task of ViDoRe over three pages in the tables of `vidore:FOLDER`, and our own run over them."""
        import datasets
        from mteb.tasks.retrieval.multilingual import vidore2_bench_retrieval as tasks

        from lexvl_plugins.pages.vidore import command
        from tests.plugins.pages.page_tables import page, write_tables

        write_tables(
            tmp_path / "pages",
            corpus={"corpus-id": [0, 1, 2], "image": [page(shade) for shade in (0, 60, 120)]},
            queries={"query-id": [0, 1], "query": ["a red boat", "two dogs"], "language": ["english", "english"]},
            qrels={"query-id": [0, 1], "corpus-id": [1, 2], "score": [1, 2]},
        )

        def read(path, name, split, **options):
            pattern = str(tmp_path / "pages" / name / f"{split}-*.parquet")
            table = datasets.load_dataset("parquet", data_files=pattern, split="train")
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

    def test_our_datasets_are_tasks(self, model, monkeypatch):
        """Relevant are d3 for q1, which d1 ties with, and d2 for q2; MTEB orders equal scores by the greater id."""
        from lexvl_plugins.exchange.adapters.mteb_task import make_task

        topics = [Qrel("q1", "d3", 1), Qrel("q2", "d2", 1), Qrel("q3", "d1", 0)]
        judged = replace(DATASET, name="beir:my-toys", topics=lambda: iter(TOPICS), qrels=lambda: iter(topics))
        task = make_task(judged)
        assert (task.metadata.name, task.metadata.category) == ("BeirMyToys", "t2t")
        [row] = self.evaluated(model, task)["test"]
        assert row["ndcg_at_10"] == pytest.approx((1 + 1 / log2(3)) / 2, abs=1e-5)
        for qrel, message in (
            (Qrel("q1", "d3", 0), "beir:my-toys: no judgement has a relevant document"),
            (Qrel("q9", "d3", 1), "judgements name topic 'q9', which the dataset lacks"),
        ):
            with pytest.raises(DataError, match=message):
                make_task(replace(judged, qrels=lambda qrel=qrel: iter([qrel]))).load_data()
        with pytest.raises(UsageError, match="give the task a name"):
            make_task(replace(judged, name="--"))
        # MTEB joins title and text for encoders that read one text; ours get what `encode` gives them.
        documents = [Document("d1", "a dog", "runs"), Document("d2", None, "a cat"), Document("d3", "a boat", None)]
        indexed = []

        def index(model, documents, batch_size):
            indexed.extend(documents)
            return IndexedCorpus(model, indexed, batch_size=batch_size)

        monkeypatch.setattr("lexvl_plugins.exchange.adapters.mteb_search.IndexedCorpus", index)
        self.evaluated(model, make_task(replace(judged, documents=lambda: iter(documents))))
        rows = [document[:3] for document in indexed]
        assert rows == [("d1", "a dog", "runs"), ("d2", None, "a cat"), ("d3", "a boat", "")]

    def test_our_datasets_of_pictures_are_tasks(self):
        from lexvl_plugins.exchange.adapters.mteb_task import make_task

        demo = load_dataset("demo", direction="text-to-image")
        few = list(islice(demo.documents(), 12))
        ids = {document.doc_id for document in few}
        topics = list(demo.topics())
        qrels = [qrel for qrel in demo.qrels() if qrel.doc_id in ids]
        small = replace(demo, documents=lambda: iter(few), topics=lambda: iter(topics), qrels=lambda: iter(qrels))
        task = make_task(small, "Few")
        assert (task.metadata.name, task.metadata.category) == ("Few", "t2i")
        model = load_encoder("vdr-crossmodal", "demo-vdr", direction="text-to-image")
        [row] = self.evaluated(model, task)[demo.split]
        corpus = IndexedCorpus(model, few)
        lists = collect_scores(corpus.search(topics, 10))
        relevant = {qrel.query_id: qrel.doc_id for qrel in qrels}
        ten = [doc_id in lists[query_id] for query_id, doc_id in relevant.items()]
        assert row["recall_at_10"] == pytest.approx(sum(ten) / len(ten), abs=1e-5) and sum(ten) > len(ten) / 2
        with pytest.raises(DataError, match="has no picture; the direction of the dataset needs one"):
            make_task(replace(small, documents=lambda: iter(DOCUMENTS))).load_data()

    def test_the_packaged_models_have_entries_in_its_registry(self, monkeypatch):
        import mteb
        from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
        from mteb.models import ModelMeta, SearchProtocol, model_implementations

        from lexvl_plugins.exchange.adapters import mteb_models
        from lexvl_plugins.exchange.adapters.mteb_registry import register_models

        spec = spec_from_file_location(f"{model_implementations.__name__}.lexvl_models", mteb_models.__file__)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        metas = {meta.name: meta for meta in vars(module).values() if isinstance(meta, ModelMeta)}
        monkeypatch.setattr(model_implementations, "MODEL_REGISTRY", model_implementations.MODEL_REGISTRY)
        for name in metas:
            monkeypatch.setitem(model_implementations.MODEL_REGISTRY, name, None)
        assert set(register_models()) == set(metas) == {f"lexvl/{name}" for name in TRAINED}
        model = mteb.get_model("lexvl/lexvl-mini")
        assert isinstance(model, SearchProtocol) and model.mteb_model_meta.name == "lexvl/lexvl-mini"
        results = mteb.evaluate(model, [MockRetrievalTask()], cache=None)
        assert 0 < results.task_results[0].scores["test"][0]["ndcg_at_10"] <= 1

    @pytest.mark.parametrize("name", TRAINED)
    def test_entries_say_what_the_models_are(self, name):
        from lexvl_plugins.exchange.adapters.mteb_models import lexvl_mini, load_packaged, photos_dense, photos_vdr

        [meta] = [meta for meta in (lexvl_mini, photos_vdr, photos_dense) if meta.name == f"lexvl/{name}"]
        search = load_packaged(meta.name, revision=meta.revision, **meta.loader_kwargs)
        assert meta.n_parameters == sum(count_weights(search.model).values())
        assert meta.memory_usage_mb == round(4 * meta.n_parameters / 2**20)
        vector = search.model.encode_query("two dogs")
        assert meta.embed_dim == vector.shape[-1]
        with pytest.raises(UsageError, match=f"MTEB's entry has revision 0, the installed package has {meta.revision}"):
            load_packaged(meta.name, revision="0", **meta.loader_kwargs)

    def test_packaged_models_take_the_direction_of_a_task(self):
        from mteb.mocks.mock_tasks import retrieval

        from lexvl_plugins.exchange.adapters.mteb_search import PackagedSearch

        search = PackagedSearch("lexvl/demo-vdr", encoder="vdr-crossmodal")
        tasks = retrieval.MockAny2AnyRetrievalI2TTask(), retrieval.MockAny2AnyRetrievalT2ITask()
        for task, direction in zip(tasks, ("image-to-text", "text-to-image"), strict=True):
            task.load_data()
            [corpora] = task.dataset.values()
            search.index(corpora["test"]["corpus"], task_metadata=task.metadata)
            assert search.model.options["direction"] == direction
        texts = PackagedSearch("lexvl/lexvl-mini", encoder="vdr")
        of_two = retrieval.MockRetrievalTask.metadata.model_copy(update={"category": "i2i"})
        for model, metadata, message in (
            (search, of_two, "has the categories t2i, i2t"),
            (texts, retrieval.MockAny2AnyRetrievalT2ITask.metadata, "'t2i'; lexvl/lexvl-mini reads texts"),
        ):
            with pytest.raises(UsageError, match=message):
                model.index(None, task_metadata=metadata)
        with pytest.raises(UsageError, match="'other/photos-vdr' is no packaged model"):
            PackagedSearch("other/photos-vdr", encoder="vdr-crossmodal")
