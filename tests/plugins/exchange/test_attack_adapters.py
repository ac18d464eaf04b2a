"""Random input of every documented call of the adapters: the library's own answers over our scores, or one line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from damage import one_line
from hostile import VALUES
from rounds import Rounds
from scipy import sparse
from worlds import WORDS

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.records import Document, Qrel, ScoredDoc
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.exchange.adapters.sentence_transformers_search import semantic_search_lucene

pytestmark = [pytest.mark.heavy, pytest.mark.attack]
Lists = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def model(golden: Path) -> Encoder:
    return load_encoder("bag-of-tokens", str(golden / "splade/ckpt_bert"), device="cpu")


def texts_of(random: Random, prefix: str, most: int) -> dict[str, str]:
    names = [f"{prefix}{random.choice(['', 'é', '#', '😀', '/'])}{n}" for n in range(random.randint(1, most))]
    return {name: " ".join(random.choices([*WORDS, "Café", "日本"], k=random.randint(0, 9))) for name in names}


def exact(model: Encoder, documents: dict[str, str], queries: dict[str, str]) -> Lists:
    products = model.encode_query(list(queries.values())) @ model.encode_document(list(documents.values())).T
    rows = products.toarray().tolist()
    return {
        query: {doc: score for doc, score in zip(documents, row, strict=True) if score}
        for query, row in zip(queries, rows, strict=True)
    }


def best(lists: Lists, hits: int) -> Lists:
    ordered = {query: sorted(row.items(), key=lambda hit: (-hit[1], hit[0])) for query, row in lists.items()}
    return {query: dict(row[:hits]) for query, row in ordered.items()}


def refused(call: Callable[[], Any], rounds: Rounds) -> Any:
    try:
        return call()
    except LexvlError as error:
        one_line(error)
        rounds.count("calls of adapters refused")
        return None


def wrong(random: Random) -> Any:
    return random.choice([*VALUES, b"x", object(), torch.ones(2, 2, 2), np.ones(3), {"x": 1}, [["a"]], [("a", 1)]])


def test_beir(rounds: Rounds, model: Encoder) -> None:
    pytest.importorskip("beir", reason="BEIR (beir) is not installed")
    from beir.retrieval.evaluation import EvaluateRetrieval

    from lexvl_plugins.exchange.adapters.beir_search import BEIRSearch

    for _seed, random, _ in rounds:
        documents, queries = texts_of(random, "d", 12), texts_of(random, random.choice("qd"), 6)
        corpus: Any = {doc: {"text": text, **random.choice([{}, {"title": ""}])} for doc, text in documents.items()}
        lists = exact(model, documents, queries)
        others = {query: {doc: s for doc, s in row.items() if doc != query} for query, row in lists.items()}
        hits = random.choice([1, 3, 100])
        retriever = EvaluateRetrieval(BEIRSearch(model, random.choice([1, 32])), k_values=[1, hits])
        assert retriever.retrieve(corpus, queries) == best(others, hits)
        key = random.choice(list(corpus))
        corpus[key] = random.choice([{"text": wrong(random)}, {"text": "a", "title": wrong(random)}])
        plain = {"d": {"text": "a"}}
        refused(partial(BEIRSearch(model).search, corpus, queries, hits), rounds)
        refused(partial(BEIRSearch(model).search, plain, {**queries, "q": wrong(random)}, 3), rounds)
        refused(partial(BEIRSearch(model).search, plain, queries, wrong(random)), rounds)
        rounds.count("calls of adapters", 4)


def test_mteb(rounds: Rounds, model: Encoder) -> None:
    pytest.importorskip("mteb", reason="MTEB is not installed")
    from datasets import Dataset as Rows
    from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask

    from lexvl_plugins.exchange.adapters.mteb_search import MTEBSearch

    def rows(texts: dict[str, str]) -> Any:
        return Rows.from_dict({"id": list(texts), "text": list(texts.values())})

    task = {"task_metadata": MockRetrievalTask().metadata}
    for _seed, random, _ in rounds:
        documents, queries = texts_of(random, "d", 12), texts_of(random, "q", 6)
        search, hits, lists = MTEBSearch(model), random.choice([1, 3, 100]), exact(model, documents, queries)
        refused(partial(search.search, rows(queries), top_k=3, **task), rounds)
        search.index(rows(documents), encode_kwargs=random.choice([None, {}, {"batch_size": 2}]), **task)
        assert search.search(rows(queries), top_k=hits, **task) == best(lists, hits)
        among = {query: random.sample(sorted(documents), random.randint(0, len(documents))) for query in queries}
        ranked = {query: {doc: lists[query].get(doc, 0.0) for doc in some} for query, some in among.items()}
        assert search.search(rows(queries), top_k=hits, top_ranked=among, **task) == best(ranked, hits)
        short = {query: among[query] for query in list(among)[1:]}
        refused(partial(search.search, rows(queries), top_k=hits, top_ranked=short, **task), rounds)
        refused(partial(search.search, rows(queries), top_k=wrong(random), **task), rounds)
        rounds.count("calls of adapters", 5)


def test_retrievers_over_an_index(rounds: Rounds, model: Encoder) -> None:
    """PyTerrier and LangChain search an index; ir_measures measures our hits and judgements as its own."""
    pytest.importorskip("pyterrier", reason="PyTerrier (python-terrier) is not installed")
    measures = pytest.importorskip("ir_measures", reason="ir_measures is not installed")
    pytest.importorskip("langchain_core", reason="LangChain (langchain-core) is not installed")
    import pandas as pd

    from lexvl_plugins.exchange.adapters.langchain_retriever import LexVLRetriever
    from lexvl_plugins.exchange.adapters.pyterrier_search import PyTerrierIndexer, PyTerrierRetriever

    for _seed, random, folder in rounds:
        documents, queries = texts_of(random, "d", 12), texts_of(random, "q", 6)
        records = [Document(doc, text=text) for doc, text in documents.items()]
        dataset = Dataset("toy", "", lambda records=records: iter(records), lambda: iter(()), lambda: iter(()))
        if not any(documents.values()):
            continue
        write_impacts(dataset, model, folder / "s", layout=Layout(contents=True))
        index = build_index(folder / "s", folder / "i", store_text=True)
        hits, lists = random.choice([1, 3, 100]), exact(model, documents, queries)
        ranked = best(lists, hits)
        topics = pd.DataFrame({"qid": list(queries), "query": list(queries.values()), "note": 7})
        answers = PyTerrierRetriever(random.choice([index, index.path, str(index.path)]), hits=hits)(topics)
        frame = {query: list(rows["docno"]) for query, rows in answers.groupby("qid")}
        assert frame == {query: list(row) for query, row in ranked.items() if row}
        scores = [score for row in ranked.values() for score in row.values()]
        assert [round(score) for score in answers["score"]] == scores
        second = PyTerrierIndexer(model, folder / "made").index({"docno": d, "text": t} for d, t in documents.items())
        pd.testing.assert_frame_equal(PyTerrierRetriever(second, hits, model)(topics), answers)
        retriever, query = LexVLRetriever(index=index.path, k=hits), random.choice(list(queries))
        answer = [(hit.id, hit.metadata["score"], hit.page_content) for hit in retriever.invoke(queries[query])]
        assert answer == [(doc, score, documents[doc]) for doc, score in ranked[query].items()]
        judged = {query: {doc: random.randint(0, 3) for doc in documents} for query in queries}
        ours = [ScoredDoc(q, d, n, s) for q, row in ranked.items() for n, (d, s) in enumerate(row.items(), 1)]
        theirs = {query: row for query, row in ranked.items() if row}
        qrels = [Qrel(q, d, grade) for q, row in judged.items() for d, grade in row.items()]
        chosen = [measures.nDCG @ 3, measures.R @ 2, measures.AP]
        assert measures.calc_aggregate(chosen, qrels, ours) == measures.calc_aggregate(chosen, judged, theirs)
        value = wrong(random)
        open_one = PyTerrierRetriever(index, hits)
        # As objects: pandas itself refuses strings that are no text.
        refused(partial(open_one, topics.assign(query=pd.Series([value] * len(topics), dtype=object))), rounds)
        refused(partial(open_one, topics.drop(columns=random.choice(["qid", "query"]))), rounds)
        refused(lambda value=value, topics=topics, index=index: PyTerrierRetriever(index, value)(topics), rounds)
        refused(partial(LexVLRetriever(index=index, k=3).invoke, value), rounds)
        rounds.count("calls of adapters", 9)


def forms(rows: np.ndarray) -> list[Callable[[], Any]]:
    tensor = torch.from_numpy(rows)
    return [
        lambda: tensor,
        lambda: tensor.to_sparse(),
        lambda: tensor.to_sparse_csr(),
        lambda: list(tensor),
        lambda: [row.to_sparse() for row in tensor],
        lambda: sparse.coo_matrix(rows),
        lambda: [[(f"t{d:03}", float(w)) for d, w in enumerate(row) if w] for row in rows],
    ]


def test_sentence_transformers(rounds: Rounds) -> None:
    """Weights that quantise exactly: the score is the dot product, as that of `sentence_transformers.util`."""
    for _seed, random, _ in rounds:
        rng = np.random.default_rng(random.getrandbits(32))
        width, share = random.choice([1, 5, 200]), random.choice([0.1, 0.5, 1])
        drawn = [rng.integers(1, 255, (n, width), endpoint=True) for n in (random.randint(1, 30), random.randint(1, 6))]
        corpus, queries = (np.where(rng.random(rows.shape) < share, rows, 0).astype(np.float32) for rows in drawn)
        corpus[0, 0] = 255
        queries[:, 0] = np.where(queries.any(axis=1), 255, 0)
        which, hits = random.randrange(7), random.choice([1, 4, 100])
        forms_of_queries = forms(queries)[which : which + 1] if which == 6 else forms(queries)[:6]
        results = semantic_search_lucene(random.choice(forms_of_queries)(), forms(corpus)[which](), top_k=hits)[0]
        products = queries.astype(np.int64) @ corpus.T.astype(np.int64)
        for row, answer in zip(products.tolist(), results, strict=True):
            order = sorted((n for n, score in enumerate(row) if score), key=lambda n: (-row[n], n))[:hits]
            assert [hit["corpus_id"] for hit in answer] == order
            assert [hit["score"] for hit in answer] == pytest.approx([row[n] for n in order], rel=1e-6)
        value = wrong(random)
        for options in (
            {"query_embeddings": value, "corpus_embeddings": forms(corpus)[0]()},
            {"query_embeddings": forms(queries)[0](), "corpus_embeddings": value},
            {"query_embeddings": forms(queries)[0](), "corpus_embeddings": forms(corpus)[0](), "top_k": value},
            {"query_embeddings": forms(queries)[0](), "corpus_index": value},
        ):
            refused(partial(semantic_search_lucene, **options), rounds)
        rounds.count("calls of adapters", 5)
