"""MTEB's models over an index of ours, beside MTEB's own search of sparse tensors."""

import json
from collections import Counter
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lexvl_eval.analyses.quantisation import measure_loss
from scipy import sparse

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser

mteb = pytest.importorskip("mteb", reason="MTEB is not installed")
from mteb.mocks.mock_tasks import reranking, retrieval  # noqa: E402
from mteb.models import ModelMeta, SearchEncoderWrapper  # noqa: E402
from mteb.models.sentence_transformer_wrapper import SparseEncoderWrapper  # noqa: E402

from lexvl_plugins.exchange.adapters.mteb_index import LuceneIndex  # noqa: E402
from lexvl_plugins.exchange.adapters.mteb_task import make_task  # noqa: E402
from lexvl_plugins.exchange.sharing.sparse_encoder import as_sparse_encoder  # noqa: E402


class Recorder(SearchEncoderWrapper):
    """MTEB's search, which keeps its lists."""

    def search(self, *arguments: Any, **others: Any) -> Any:
        self.found = super().search(*arguments, **others)
        return self.found


def evaluate(model: Any, task: Any, index: LuceneIndex | None = None) -> tuple[dict[str, Any], Any]:
    """All scores by MTEB, and the lists of the last subset without documents of score 0."""
    search = Recorder(model, index_backend=index)
    [result] = mteb.evaluate(search, [task], cache=None, show_progress_bar=False).task_results
    return result.scores, {name: {d: s for d, s in hits.items() if s > 0} for name, hits in search.found.items()}


@pytest.mark.parametrize("task", ["MockRetrievalTask", "MockMultilingualRetrievalTask", "MockRerankingTask"])
def test_bags_of_words_lose_nothing(load, task):
    """All weights are 1, so impacts are 255, and a score divided by 255 * 255 is the number of common tokens."""
    model = SparseEncoderWrapper(as_sparse_encoder(load("bag-of-tokens", "splade/ckpt_bert")))
    index = LuceneIndex(model)
    kind = getattr(retrieval, task, None) or getattr(reranking, task)
    (theirs, own), (ours, found) = evaluate(model, kind()), evaluate(model, kind(), index)
    assert ours["test"][0]["main_score"] == theirs["test"][0]["main_score"] > 0
    assert own == found and all(hits for hits in found.values())
    assert all(loss[1:] == (0, 0, 0, 0) and loss.weights for loss in index.losses) and index.index is None


@pytest.mark.parametrize("task", ["T2I", "I2T"])
def test_pictures_and_weights_that_are_rounded(task):
    model = mteb.get_model("mteb/baseline-random-sparse-encoder")
    kind, index = getattr(retrieval, f"MockAny2AnyRetrieval{task}Task"), LuceneIndex(model)
    (theirs, own), (ours, found) = evaluate(model, kind()), evaluate(model, kind(), index)
    assert ours["test"][0]["ndcg_at_10"] == pytest.approx(theirs["test"][0]["ndcg_at_10"])
    [loss] = index.losses
    for name, hits in own.items():
        best = max(hits.values())
        assert found[name] == pytest.approx(hits, abs=loss.most * best + 1e-6)
    assert 0 < loss.mean <= loss.most < 0.01


class Embeddings:
    """What the index reads of a model of MTEB."""

    def __init__(self, similarity: str):
        self.mteb_model_meta = ModelMeta.create_empty({"name": "a/b", "similarity_fn_name": similarity})


def test_documents_are_added_and_forgotten():
    index = LuceneIndex(Embeddings("dot"), Quantiser.named("fixed", scale=1))
    index.add_documents(np.array([[0, 2], [1, 0]]), ["a", "b"])
    index.add_documents(sparse.csr_matrix([[0.4, 3.0]]), ["c"])
    scores, places = index.search(np.array([[0.0, 1.0], [0.0, 0.0]]), 9, None)
    assert (scores, places) == ([[3.0, 2.0], []], [[2, 0], []])
    # 0.4 of 5 - 1 weights is rounded to 0; the scores of the first query are exact.
    assert index.losses == [(4, 1, 0, 0, 0)]
    assert str(index.losses[0]).startswith("of 4 weights of documents 25.00% become 0, 0.00% are clipped; first scores")
    top_ranked = {"q": ["b", "c"], "r": []}
    among = index.search(np.array([[0.0, 1.0], [1.0, 0.0]]), 9, None, top_ranked, {0: "q", 1: "r"})
    assert among == ([[3.0, 0.0], []], [[1, 0], []])
    index.clear()
    with pytest.raises(UsageError, match="MTEB searches before it indexes"):
        index.search(np.ones((1, 2)), 9, None)


def test_cosines_and_what_is_refused():
    index = LuceneIndex(Embeddings("cosine"))
    index.add_documents(np.array([[3.0, 4.0], [0.0, 7.0], [0.0, 0.0]]), ["a", "b", "c"])
    scores, places = index.search(np.array([[0.0, 5.0]]), 3, None)
    assert places == [[1, 0]] and scores == [[1.0, pytest.approx(0.8, abs=0.002)]]
    with pytest.raises(UsageError, match="row 1 has the weight -0.5; .* a dense model has others"):
        index.add_documents(np.array([[0.1, 1.0], [0.2, -0.5]]), ["d", "e"])
    with pytest.raises(UsageError, match="1 embeddings of documents for 2 ids"):
        index.add_documents(np.ones((1, 2)), ["d", "e"])
    with pytest.raises(UsageError, match="query_embeddings: sparse-embeddings of 3 dimensions; the index has .* of 2"):
        index.search(np.ones((1, 3)), 3, None)
    with pytest.raises(UsageError, match="a/b: similarity 'euclidean', expected dot or cosine"):
        LuceneIndex(Embeddings("euclidean"))


@pytest.mark.shared
@pytest.mark.extended
def test_scifact_differs_by_the_stated_loss(shared: Path):
    """A table of idf on both sides: MTEB's value is that of float weights, ours that of impacts."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
    from transformers import AutoTokenizer

    import lexvl_anserini

    tokenizer = AutoTokenizer.from_pretrained(Path(lexvl_anserini.__file__).parent / "assets/lexvl-mini/text")
    dataset = load_dataset("beir/scifact", data_dir=str(shared / "data"))
    documents, topics = list(dataset.documents()), list(dataset.topics())
    texts = [f"{document.title} {document.text}".strip() for document in documents]
    tokens = [set(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    counts = Counter(token for ids in tokens for token in ids)
    idf = [log(1 + len(texts) / (1 + counts[token])) for token in range(len(tokenizer))]
    import torch

    module = SparseStaticEmbedding(tokenizer, weight=torch.tensor(idf))
    model = SparseEncoderWrapper(SparseEncoder(modules=[module], similarity_fn_name="dot", device="cpu"))
    index = LuceneIndex(model)
    results = []
    for backend in (None, index):
        task = make_task(dataset)
        task._top_k = 100  # of any index, MTEB looks up the id of each hit by itself, which takes longer than searching
        results.append(evaluate(model, task, backend)[0]["test"][0]["ndcg_at_10"])
    weights, queries = (
        sparse.csr_matrix(model.model.encode(some, convert_to_sparse_tensor=False).numpy().astype(np.float32))
        for some in (texts, [topic.text for topic in topics])
    )
    ids = [document.doc_id for document in documents], [topic.query_id for topic in topics]
    loss = measure_loss(weights, queries, *ids, dataset.qrels(), Quantiser().calibrate(weights))
    print(json.dumps({"MTEB": results, **loss.figures()}), index.losses[0])
    # MTEB rounds to 5 digits. Both of its values were .0018 above those of `measure_loss`; the loss is the same.
    assert results[1] - results[0] == pytest.approx(loss.value_integer - loss.value_float, abs=2e-5)
    assert 0 < index.losses[0].most < 0.01
