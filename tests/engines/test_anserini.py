"""The facts of Anserini's own end-to-end test of impact vectors (JsonVectorEndToEndTest), through our index."""

import pytest
from shard_folders import write_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.jvm import get_java_class
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, as_reader, open_reader, read_vector
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.searching.building import build_index

DOCUMENTS = [
    ("doc1", {"f1": 1, "f2": 2, "f3": 1, "f4": 4, "f5": 1}),
    ("doc2", {"f4": 3, "f5": 1, "f9": 2, "f22": 6, "f35": 8}),
]
TOPICS = {"1": "f35", "2": "f3", "3": "f4"}

# Its reference run: the order that both BM25 and impacts give, and BM25's scores.
RUN = {"1": [("doc2", 0.6136)], "2": [("doc1", 0.3931)], "3": [("doc1", 0.1531), ("doc2", 0.1355)]}
IMPACTS = {"1": [("doc2", 8.0)], "2": [("doc1", 1.0)], "3": [("doc1", 4.0), ("doc2", 3.0)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anserini")
    write_shards(folder / "shards", DOCUMENTS)
    build_index(folder / "shards", folder / "index", term_vectors=True)
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    engine = LuceneEngine(folder / "index", read_manifest(folder / "index"))
    yield engine
    engine.close()


def test_statistics(folder):
    """2 documents; 10 terms, 12 postings and 31 tokens; an id counts as a term, a posting and a token."""
    reader = open_reader(folder / "index")
    totals = [0, 0, 0]
    for field in (CONTENTS, ID):
        terms = get_java_class("org.apache.lucene.index.MultiTerms").getTerms(as_reader(reader), field)
        # Frequencies are not kept of ids: as many as postings.
        tokens = terms.getSumTotalTermFreq() if field == CONTENTS else terms.getSumDocFreq()
        for place, count in enumerate((terms.size(), terms.getSumDocFreq(), tokens)):
            totals[place] += int(count)
    assert (int(reader.numDocs()), *totals) == (2, 10, 12, 31)
    reader.close()
    report = read_report(folder / "index")
    assert (report["documents"], report["postings"], report["impacts"]) == (2, 10, 29)


def test_vectors_come_back(engine):
    assert {doc_id: read_vector(engine.reader, doc_id) for doc_id, _ in DOCUMENTS} == dict(DOCUMENTS)


def test_the_run_by_impacts(engine):
    lists = engine.search([ImpactQuery(query_id, {term: 1}) for query_id, term in TOPICS.items()], 10)
    found = {hits[0].query_id: [(hit.doc_id, hit.score) for hit in hits] for hits in lists}
    assert found == IMPACTS
    assert {q: [d for d, _ in hits] for q, hits in found.items()} == {
        q: [d for d, _ in hits] for q, hits in RUN.items()
    }
