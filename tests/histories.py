"""Random histories of an index that changes, and the index that is built anew of the documents that are left."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brute_force import Doc, Oracle
from shard_folders import counts_of, write_described_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.jvm import set_environment
from lexvl_anserini.engines.lucene.fields import load_texts
from lexvl_anserini.engines.resident.choosing import CHOICES, VARIABLE, read_resident_files
from lexvl_anserini.engines.resident.packing import read_vectors
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries import clauses
from lexvl_anserini.queries.query_vectors import write_queries
from lexvl_anserini.runs.trec import read_run
from lexvl_anserini.search import command
from lexvl_anserini.searching import building
from lexvl_anserini.searching.search import Cut, Search
from lexvl_anserini.searching.searcher import Searcher
from tests.invoking import invoked

TERMS = ["##c", "a", "b", "日本", "😀", "t5", "t6", "t7"]
HEADS = ["d", "é", "a/b", "z-", "😀"]
FORMS = ({}, {"term_vectors": True}, {"text": True, "store_text": True})

Contents = Mapping[str, Doc]


class History:
    """An index, what it must hold, and the shards that it knows, in the order in which it received them."""

    def __init__(self, random: Random, folder: Path):
        self.random, self.folder, self.numbers = random, folder, iter(range(10**6))
        self.largest, self.outlier = random.choice([1, 3, 255, 70_000]), random.choice([1, 255, 2**24 - 1])
        self.options: dict[str, Any] = random.choice(FORMS)
        self.terms = [*TERMS, *(f"t{n}" for n in range(8, random.choice([8, 8, 200])))]
        self.documents: dict[str, Doc] = {}
        self.sources: list[tuple[Path, Contents]] = []
        self.deleted: list[list[str]] = []
        self.index = self.build(self.receive(self.draw(random.choice([1, 6, 20, 45]))))
        write_queries([ImpactQuery(term, {term: 1}) for term in TERMS], folder / "queries.jsonl")
        self.search(self.index, "run")
        self.searched = {**self.documents}

    def draw(self, count: int, again: int = 0) -> dict[str, Doc]:
        """New documents, and new versions of some that are there; every key of metadata occurs."""
        ids = self.random.sample(sorted(self.documents), min(again, len(self.documents)))
        for _ in range(count):  # ids, and passages of few documents, so that one document has passages in many places
            ids.append(f"{self.random.choice(HEADS)}{self.random.choice(['', 1, 2])}#{next(self.numbers)}")
            ids.append(f"{self.random.choice(HEADS)}{next(self.numbers)}")
        return {doc_id: self.draw_document(doc_id) for doc_id in ids}

    def draw_document(self, doc_id: str) -> Doc:
        most = self.outlier if self.random.random() < 0.05 else self.largest
        terms = self.random.sample(self.terms, self.random.choice([0, 1, 3, 8]))
        text = " ".join(self.random.choices(["dog", "sea", "sky"], k=self.random.randrange(4)))
        metadata = {"year": self.random.randrange(2000, 2004), "place": self.random.choice(["Rome", "Oslo"])}
        return Doc(doc_id, {term: self.random.randint(1, most) for term in terms}, text, metadata)

    def write(self, documents: Contents) -> Path:
        return write_described_shards(self.folder / f"shards{next(self.numbers)}", [*documents.values()], self.terms)

    def receive(self, documents: Contents) -> Path:
        """Shards that the index is going to know."""
        self.sources.append((self.write(documents), documents))
        self.documents |= documents
        return self.sources[-1][0]

    def build(self, *sources: Path) -> Path:
        target = self.folder / f"index{next(self.numbers)}"
        return building.build_index(sources, target, self.random.choice([1, 2]), **self.options).path

    def step(self) -> None:
        """One change, by chance."""
        name = self.random.choice(["append", "join", "replace", "again", "delete", "delete", "merge", "prepare"])
        getattr(self, name)()
        if self.random.random() < 0.2:
            self.repair()

    def append(self) -> None:
        building.append_index(self.index, self.receive(self.draw(self.random.choice([1, 3, 15]))))

    def other(self) -> Path:
        """Another index, in which a document was deleted, whose others this one is going to have."""
        new = self.draw(self.random.choice([1, 5]))
        other, gone = self.build(self.receive(new)), self.random.choice(sorted(new))
        building.delete_documents(other, [gone])
        self.deleted.append([gone])
        del self.documents[gone]
        return other

    def join(self) -> None:
        building.append_index(self.index, self.other(), replace=self.random.random() < 0.5)

    def merge(self) -> None:
        before = self.index
        self.index = self.build(before, *([self.other()] if self.random.random() < 0.5 else []))

    def replace(self) -> None:
        new = self.draw(self.random.choice([0, 1, 5]), again=self.random.choice([1, 3, 20]))
        building.append_index(self.index, self.receive(new), replace=True)

    def again(self) -> None:
        """Shards that it knows bring back their documents, and the same request again changes nothing."""
        source = self.random.choice(self.sources)
        if read_report(self.index).changed:
            self.sources.remove(source)
            self.sources.append(source)
            self.documents |= source[1]
        for _ in range(2):
            building.append_index(self.index, source[0], replace=True)

    def delete(self) -> None:
        """Some documents, those of the greatest impacts, or those of an earlier deletion that are there again."""
        count, ids = min(self.random.choice([1, 1, 4, 20, 60]), len(self.documents) - 1), sorted(self.documents)
        greatest = sorted(ids, key=lambda doc_id: -max(self.documents[doc_id].vector.values(), default=0))
        gone = self.random.choice([self.random.sample(ids, count), greatest[:count], *self.deleted[-1:]])
        if gone and not self.documents.keys() <= set(gone):
            self.deleted.append(gone)
            for _ in range(2):
                building.delete_documents(self.index, gone)
            self.documents = {doc_id: d for doc_id, d in self.documents.items() if doc_id not in gone}

    def prepare(self) -> None:
        if any(document.vector for document in self.documents.values()):
            building.approximate_index(self.index)
            assert read_report(self.index).approximate_bytes

    def repair(self) -> None:
        """A file of resident postings is lost, and written again."""
        (self.index / self.random.choice(sorted(read_resident_files(self.index)))).unlink()
        assert building.repair_index(self.index) and not building.repair_index(self.index)

    def compare(self) -> int:
        """Compares all that the index says with that of the one that is built anew; returns how many searches."""
        anew = self.build(self.write(self.documents))
        compare_indexes(self.index, anew)
        counts = counts_of([document.vector for document in self.documents.values()])
        assert {name: read_manifest(self.index).counts[name] for name in counts} == counts
        if self.documents != self.searched:  # then the run of the older state is not finished
            with pytest.raises(ArtefactError, match="a run of another request"):
                self.search(self.index, "run")
        assert self.search(self.index, "run", "--overwrite") == self.search(anew, "anew", "--overwrite")
        self.searched = {**self.documents}
        assert building.check_index(self.index, [folder for folder, _ in self.sources])["problems"] == 0
        oracle, drawn = Oracle([*self.documents.values()]), [self.draw_search() for _ in range(25)]
        for form in CHOICES:
            with set_environment(**{VARIABLE: form}), Searcher(self.index) as changed, Searcher(anew) as expected:
                for query, hits, settings in drawn:
                    found, wanted = (answer(s, query, hits, settings) for s in (changed, expected))
                    assert found == wanted, (form, query, hits, settings)
                    if not settings and isinstance(found, list) and "Text(" not in repr(query):
                        clause = query.clause if isinstance(query, clauses.TreeQuery) else clauses.Impacts(query.vector)
                        assert found == oracle.ranked(clause, hits), (form, query, hits)
                self.compare_documents(changed, expected)
                self.compare_approximate(changed, oracle)
        return len(CHOICES) * len(drawn)

    def search(self, index: Path, run: str, *options: str) -> Sequence[Any]:
        """Writes a run as the command does, unless it is finished; returns its lines."""
        topics, output = self.folder / "queries.jsonl", self.folder / run
        invoked(command, "--index", index, "--topics", topics, "--output", output, "--hits", 99, *options)
        return [*read_run(output)]

    def compare_documents(self, changed: Searcher, expected: Searcher) -> None:
        """Bounds, and of some documents the impacts, vectors and texts."""
        ids = self.random.sample(sorted(self.documents), min(4, len(self.documents)))
        for term in TERMS:
            assert changed.engine.bound({term: 2.0**48}) == expected.engine.bound({term: 2.0**48})
        for doc_id in ids:
            document = self.documents[doc_id]
            assert changed.engine.impacts(doc_id, self.terms) == document.vector
            if self.options.get("term_vectors"):
                assert changed.engine.vector(doc_id) == document.vector
        for doc_id in [doc_id for gone in self.deleted[-3:] for doc_id in gone if doc_id not in self.documents]:
            with pytest.raises(DataError, match="no document"):
                changed.engine.impacts(doc_id, self.terms)
        if self.options.get("store_text"):
            assert load_texts(self.index, ids) == {doc_id: self.documents[doc_id].text for doc_id in ids}

    def compare_approximate(self, changed: Searcher, oracle: Oracle) -> None:
        """Scores are dot products; of so few documents that they are one group, all are found."""
        prepared = read_report(self.index).approximate_bytes
        query, hits = ImpactQuery("q", self.draw_vector(5)), self.random.choice([1, 5, 50])
        found = answer(changed, query, hits, {"approximate": 0.5})
        assert isinstance(found, list) or not prepared or "could reach" in found
        if isinstance(found, list):
            every = oracle.ranked(clauses.Impacts(query.vector), len(self.documents))
            assert set(found) <= set(every) and len(set(found)) == len(found)
            assert len(self.documents) > 32 or found == every[:hits]

    def draw_vector(self, most: int) -> dict[str, int]:
        terms = self.random.sample([*self.terms, "nowhere"], self.random.randint(0, most))
        return {term: self.random.choice([1, 2, 9, 255, 2**15]) for term in terms}

    def draw_tree(self, depth: int = 2) -> Any:
        last = self.random.choice([None, 2002])
        conditions = clauses.Equals("meta.place", "Rome"), clauses.Range("meta.year", 2001, last)
        return draw_tree(self.random, self.terms, sorted(self.documents), depth, conditions)

    def draw_search(self) -> tuple[Any, int, dict[str, Any]]:
        """A query or a tree, the number of hits, and settings of `Search`."""
        hits, name = self.random.choice([1, 3, 10, 200]), self.random.choice(["q", *sorted(self.documents)])
        if self.random.random() < 0.7:
            return ImpactQuery(name, self.draw_vector(8)), hits, self.random.choice([*self.draw_settings()])
        tree = self.draw_tree()
        if self.options.get("text"):
            tree = clauses.AnyOf((tree, clauses.Text("dog sea")))
        return clauses.TreeQuery(name, tree), hits, {}

    def draw_settings(self) -> Iterator[dict[str, Any]]:
        """Settings of each kind."""
        yield {}
        yield {"where": self.draw_tree(), "threads": 2}
        yield {"passages": (best := self.random.choice(["max", "sum:2", "sum"]))}
        yield {"passages": best, "where": self.draw_tree(1)}
        yield {"min_score": Cut(self.random.choice([1, 300, 10**6]))}
        yield {"min_score": Cut(self.random.choice([1.1, 20, 50, 99, 100]), relative=True)}
        yield {"min_score": Cut(50, relative=True), "where": self.draw_tree(1), "remove_query": True}
        yield {"query_terms": 2, "threshold": 0.5}
        yield {"without_terms": frozenset(TERMS[:3]), "only_terms": frozenset(TERMS[1:])}
        yield {"first_terms": 1, "candidates": self.random.choice([1, 5, 50])}
        if self.options.get("term_vectors"):
            yield {"feedback": 2, "feedback_terms": 3, "remove_query": True}


def compare_indexes(index: Path, anew: Path) -> None:
    """Compares counts, bounds and vectors of an index that changed with those of the one that is built anew."""
    now, wanted = read_report(index), read_report(anew)
    for name in ("documents", "empty", "postings", "max_impact", "impacts", "longest_lists", "fields"):
        assert now[name] == wanted[name], name
    ours, theirs = map(read_vectors, (index, anew))
    assert (ours.ids, ours.terms, (ours.impacts != theirs.impacts).nnz) == (theirs.ids, theirs.terms, 0)


def answer(searcher: Searcher, query: Any, hits: int, settings: Mapping[str, Any]) -> Any:
    """The hits, or the refusal without the folder's name."""
    try:
        with closing(searcher.lists([query], hits, Search(**settings))) as lists:
            [found] = lists
    except LexvlError as error:
        return str(error).replace(str(searcher.index.path), "INDEX")
    return [(hit.doc_id, hit.score) for hit in found]


def draw_tree(
    random: Random, terms: Sequence[str], ids: Sequence[str], depth: int = 4, conditions: Sequence[clauses.Clause] = ()
) -> clauses.Clause:
    kind = random.choice(["term", "impacts", "ids", *conditions, *(["a", "o", "n", "b", "u"] * 2 if depth else ())])
    if isinstance(kind, clauses.Clause):
        return kind
    count = random.randint(0, 3) if kind in "ao" else 0
    below = [draw_tree(random, terms, ids, depth - 1, conditions) for _ in range(count)]
    if kind == "term":
        return clauses.Term(random.choice([*terms, "nowhere"]), random.choice([1, 1, 2, 200]))
    if kind == "impacts":
        some = random.sample(terms, random.randint(0, min(5, len(terms))))
        return clauses.Impacts({term: random.choice([1, 3, 255]) for term in some})
    if kind == "ids":
        return clauses.Ids(tuple(random.sample([*ids, "nobody"], random.randint(0, min(4, len(ids))))))
    if kind == "a":
        required = random.randint(0, len(below))
        return clauses.All(tuple(below[:required]), tuple(below[required:]))
    if kind == "o":
        return clauses.AnyOf(tuple(below))
    inner = draw_tree(random, terms, ids, depth - 1, conditions)
    if kind == "b":
        return clauses.Boost(inner, random.choice([0, 1, 2, 7]))
    return clauses.Not(inner) if kind == "n" else clauses.Unscored(inner)
