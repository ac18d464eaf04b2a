"""One model and one index as a server shares them among threads, and the questions that its threads ask."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from corpus_folders import write_beir

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.engines.engine import open_impact_index
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.clauses import All, Impacts, Not, Term
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index, Searcher, search_index
from lexvl_anserini.searching.shared_terms import explain_documents
from lexvl_anserini.shards.writing import write_impacts

WORDS = ["a", "dog", "runs", "on", "the", "sandy", "beach", "and", "two", "children", "watch", "it", "red", "boat"]


class Question(NamedTuple):
    kind: str
    text: str


class Service:
    """A model and an open index; every method is one kind of question, and its answers compare by `==`."""

    def __init__(self, model: Encoder, index: Index):
        self.model, self.index = model, index
        self.engine = open_impact_index(index.path, index.manifest)

    def answer(self, question: Question) -> Any:
        return getattr(self, question.kind)(question.text)

    def encode(self, text: str) -> Any:
        return self.model.decode(self.model.encode_query([text]))

    def document(self, text: str) -> Any:
        return self.model.decode(self.model.encode_document([text]))

    def search(self, text: str) -> Any:
        [query] = encode_queries(self.model, [Topic("q", text)], self.index.manifest)
        return next(self.engine.search([query], 10))

    def search_index(self, text: str) -> Any:
        return list(search_index(self.index, [Topic("q", text)], hits=10, model=self.model))

    def feedback(self, text: str) -> Any:
        """Two searches, with vectors from the index between them."""
        return list(search_index(self.index, [Topic("q", text)], 10, model=self.model, feedback=3, feedback_terms=5))

    def tree(self, text: str) -> Any:
        [query] = encode_queries(self.model, [Topic("q", text)], self.index.manifest)
        words = sorted(query.vector, key=lambda term: (-query.vector[term], term))
        clause = All((Impacts(query.vector), Not(Term(words[-1]))))
        return self.engine.search_tree("q", clause, 10)

    def explained(self, text: str) -> Any:
        [query] = encode_queries(self.model, [Topic("q", text)], self.index.manifest)
        return explain_documents(self.engine, query, ["d0", f"d{len(text)}"])

    def explain(self, text: str) -> Any:
        with Searcher(self.index, self.model) as searcher:
            return searcher.explain(text, hits=2)

    def vector(self, text: str) -> Any:
        return self.engine.vector(f"d{len(text)}")


KINDS = ("encode", "document", "search", "search_index", "feedback", "tree", "explained", "explain", "vector")


def make_service(model: Encoder, folder: Path, documents: int = 200) -> Service:
    draws, shards = random.Random(5), folder / "shards"
    texts = {f"d{number}": text(draws) for number in range(documents)}
    corpus = write_beir(folder / "corpus", texts, {"q": "a dog"}, [("q", "d1")])
    write_impacts(load_dataset(f"beir:{corpus}"), model, shards)
    return Service(model, build_index(shards, folder / "index", term_vectors=True))


def text(draws: random.Random) -> str:
    return " ".join(draws.choices(WORDS, k=draws.randint(1, 30)))


def questions(number: int, draws: random.Random, kinds: tuple[str, ...] = KINDS) -> list[Question]:
    return [Question(draws.choice(kinds), text(draws)) for _ in range(number)]


def wrong_answers(
    answer: Callable[[Question], Any], asked: list[Question], expected: list[Any], threads: int
) -> list[str]:
    """What threads answer otherwise than expected, or with an error."""

    def one(question: Question, right: Any) -> str | None:
        try:
            return None if answer(question) == right else f"{question.kind}: another answer"
        except Exception as error:
            return f"{question.kind}: {type(error).__name__}: {error}"

    with ThreadPoolExecutor(threads) as pool:
        return [problem for problem in pool.map(one, asked, expected) if problem]
