from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import log

import numpy as np
import pytest
from shard_folders import write_text_shards

from lexvl_anserini.engines.bm25 import BM25Engine, BM25Options
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.stock import prepare
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.query_vectors import RM3
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import EncoderChanges, Search, parse_cut
from lexvl_anserini.searching.searcher import Searcher

DOCUMENTS = [
    ("d1", "a dog on the beach"),
    ("d2", "dogs, dogs and DOGS"),
    ("blank", " \n "),
    ("d4", "ein Schiff é 😀"),
    ("empty", ""),
]


# A term of RM3 is in a tenth of all documents at most.
OTHERS = [(f"o{number}", f"other{number}") for number in range(27)]
DOGS = [("d1", "dog dog dog leash"), ("d2", "dog bone bone bone ball ball"), ("d3", "bone"), ("empty", "")]


def built(folder, *shards, term_vectors=False, **options):
    manifest = write_text_shards(folder / "shards", *shards)
    manifest = replace(manifest, encoder=EncoderRef(name="bm25", options=options))
    BM25Engine.build(folder / "shards", folder / "index", manifest, options=BM25Options(term_vectors))
    return BM25Engine(folder / "index", manifest)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = built(tmp_path_factory.mktemp("bm25"), DOCUMENTS[:2], DOCUMENTS[2:])
    yield engine
    engine.close()


def test_scores_are_anserinis(engine, capfd):
    [documents] = engine.search([Topic("q", "a dog")], 10)
    # Stemmed and stopped: d1 = dog beach (2 terms), d2 = dog dog dog (3), d4 = ein schiff é 😀 (4); mean length 3.
    idf = log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * length / 3)) for tf, length in ((3, 3), (1, 2))]
    assert [d.doc_id for d in documents] == ["d2", "d1"]
    assert [d.score for d in documents] == pytest.approx(expected, abs=1e-4)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "query", "lengths", "frequencies"),
    [
        # d1 = dog beach, d2 = dog dog dog, d4 = ein schiff é 😀.
        ({"k1": 1.2, "b": 0.75}, "a dog", (2, 3, 4), {"d2": 3, "d1": 1}),
        ({"k1": 0, "b": 0}, "a dog", (2, 3, 4), {"d1": 1, "d2": 3}),
        # d1 = a dog on the beach, d2 = dogs dogs and dogs: no stems, all words.
        ({"stemmer": "none", "keep_stopwords": True}, "the dogs", (5, 4, 4), {"d2": 3}),
        # In German, "ein" is the only stop word, and "dogs" has the stem "dog" too.
        ({"language": "de"}, "ein dogs", (5, 4, 3), {"d2": 3, "d1": 1}),
    ],
)
def test_parameters_and_analysers_by_hand(tmp_path, options, query, lengths, frequencies):
    engine = built(tmp_path, DOCUMENTS, **options)
    [documents] = engine.search([Topic("q", query)], 10)
    engine.close()
    k1, b, number = options.get("k1", 0.9), options.get("b", 0.4), dict(zip(("d1", "d2", "d4"), lengths, strict=True))
    mean, holding = sum(lengths) / 3, len(frequencies)
    expected = {
        doc_id: log(1 + (3 - holding + 0.5) / (holding + 0.5)) * tf / (tf + k1 * (1 - b + b * number[doc_id] / mean))
        for doc_id, tf in frequencies.items()
    }
    if "the" in query.split():  # the word of d1 alone
        tf = 1 / (1 + k1 * (1 - b + b * number["d1"] / mean))
        expected = {"d2": expected["d2"], "d1": log(1 + 2.5 / 1.5) * tf}
    assert {d.doc_id: d.score for d in documents} == pytest.approx(expected, abs=1e-4)


def test_a_search_changes_the_parameters_but_not_the_analyser(tmp_path):
    built(tmp_path, DOCUMENTS).close()

    def scores(**options):
        with Searcher(tmp_path / "index", encoder=EncoderChanges(options=options)) as searcher:
            return [hit.score for hit in searcher.search("a dog")]

    assert scores() == scores(k1="0.9", b="0.4") == scores(stemmer="porter")
    assert scores(k1="0") == pytest.approx([log(1 + 1.5 / 2.5)] * 2, abs=1e-4)
    with pytest.raises(ArtefactError, match="analyser .'en', 'krovetz', False.*'porter'.*changes k1 and b alone"):
        scores(stemmer="krovetz")


def test_topics_without_words_and_twice_the_same_id(engine):
    topics = [Topic("q", ""), Topic("q", "the"), Topic("q", "schiff"), Topic("q", '\t?! (^~ "')]
    assert [[d.doc_id for d in documents] for documents in engine.search(topics, 5, threads=2)] == [[], [], ["d4"], []]
    with pytest.raises(UsageError, match="topic 'q' has no text"):
        list(engine.search([Topic("q", image="a.jpg")], 5))


def test_documents_without_text_are_counted_not_lost(tmp_path):
    built(tmp_path, DOCUMENTS).close()
    report = read_report(tmp_path / "index")
    assert (report["documents"], report["empty"]) == (5, 2)


def test_rm3_by_hand(tmp_path):
    engine = built(tmp_path, [*DOGS, *OTHERS], term_vectors=True)
    [plain], [expanded] = (list(engine.search([Topic("q", "dog")], 10, rm3=rm3)) for rm3 in (None, RM3(2, 2, 0.25)))
    engine.close()

    def weight(tf, holding, length):  # 30 documents of 38 terms
        return log(1 + (30 - holding + 0.5) / (holding + 0.5)) * tf / (tf + 0.9 * (0.6 + 0.4 * length * 30 / 38))

    first, second = weight(3, 2, 4), weight(1, 2, 6)
    assert [(hit.doc_id, hit.score) for hit in plain] == [
        ("d1", pytest.approx(first, abs=1e-4)),
        ("d2", pytest.approx(second, abs=1e-4)),
    ]
    # The two most frequent terms of d1 = dog 3, leash 1, and of d2 = bone 3, ball 2.
    relevance = {"dog": first * 3 / 4, "leash": first / 4, "bone": second * 3 / 5, "ball": second * 2 / 5}
    (dog, dogs), (other, others) = sorted(relevance.items(), key=lambda item: -item[1])[:2]
    assert (dog, other) == ("dog", "bone")
    dogs, bones = 0.25 + 0.75 * dogs / (dogs + others), 0.75 * others / (dogs + others)
    expected = {"d1": dogs * first, "d2": dogs * second + bones * weight(3, 2, 6), "d3": bones * weight(1, 2, 1)}
    assert {hit.doc_id: hit.score for hit in expanded} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rm3", [RM3(), RM3(2, 3, 0.7), RM3(1, 1, 0)])
def test_rm3_is_pyserinis(tmp_path, rm3):
    engine = built(tmp_path, DOGS, OTHERS, term_vectors=True)
    queries = ["a dog", "dogs and other3", "the", "leash bone", ""]
    ours = list(engine.search([Topic(str(i), text) for i, text in enumerate(queries)], 10, threads=2, rm3=rm3))
    engine.close()
    prepare()
    from pyserini.search.lucene import LuceneSearcher

    stock = LuceneSearcher(str(tmp_path / "index"))
    stock.set_rm3(rm3.terms, rm3.documents, rm3.weight)
    for text, hits in zip(queries, ours, strict=True):
        expected = {hit.docid: hit.score for hit in stock.search(text, 10)}
        assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
    stock.close()
    assert [len(hits) for hits in ours][2::2] == [0, 0] and len(ours[0]) > 1


def test_rm3_of_another_language_expands_by_its_letters(tmp_path):
    engine = built(tmp_path, [("r1", "собака поводок"), ("r2", "поводок"), *OTHERS], term_vectors=True, language="ru")
    [hits] = engine.search([Topic("q", "собака")], 10, rm3=RM3())
    engine.close()
    assert hits.doc_ids == ["r1", "r2"]


def test_where_rm3_is_searched_and_where_it_is_refused(tmp_path):
    built(tmp_path / "plain", DOGS, OTHERS).close()
    built(tmp_path / "vectors", DOGS, OTHERS, term_vectors=True).close()
    expand = Search(rm3=2, rm3_terms=2)
    with Searcher(tmp_path / "vectors" / "index") as searcher:
        assert searcher.search("dog").doc_ids == ["d1", "d2"]
        assert sorted(searcher.search("dog", **vars(expand)).doc_ids) == ["d1", "d2", "d3"]
        assert searcher.search("dog").doc_ids == ["d1", "d2"], "the engine forgets the expansion"
        with pytest.raises(UsageError, match="is text; terms, filters, feedback"):
            searcher.search("dog", rm3=10, query_terms=2)
        with pytest.raises(UsageError, match="is text; .*shares of a bound"):
            searcher.search("dog", rm3=2, rm3_terms=2, min_score=parse_cut("20%"))
        assert searcher.search("dog", rm3=2, rm3_terms=2, min_score=parse_cut("99")).doc_ids == []
    with pytest.raises(UsageError, match="no term vectors, which RM3 reads; build it again.*--term-vectors"):
        Searcher(tmp_path / "plain" / "index").search("dog", **vars(expand))
    with pytest.raises(UsageError, match="documents in passages have none"):
        Search(rm3=2, rm3_terms=2, passages="max")
    for wrong in ((0, 10, 0.5), (51, 10, 0.5), (10, 0, 0.5), (10, 10, 1.5)):
        with pytest.raises(UsageError):
            RM3(*wrong)


def test_term_vectors_are_an_option_of_the_index(tmp_path):
    write_text_shards(tmp_path / "shards", DOGS, OTHERS)
    plain = build_index(tmp_path / "shards", tmp_path / "index")
    assert "options" not in read_report(plain.path), "as older versions wrote it"
    with pytest.raises(ArtefactError, match="term_vectors"):
        build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True)
    again = build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True, overwrite=True)
    assert read_report(again.path).options == {"term_vectors": True}
    before = (again.path / "index.json").stat().st_mtime_ns
    build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True)
    assert (again.path / "index.json").stat().st_mtime_ns == before


def test_threads_that_share_texts(tmp_path):
    draws = np.random.default_rng(2)
    words = np.array(["dog", "cat", "sea", "boat", "beach", "child", "red", "sand"])
    rows = [(f"d{number}", " ".join(draws.choice(words, 6))) for number in range(60)]
    engine = built(tmp_path, rows)
    topics = [Topic(f"q{number}", " ".join(draws.choice(words, 2))) for number in range(24)]
    expected = [next(engine.search([topic], 10)) for topic in topics]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda topic: next(engine.search([topic], 10)), topics * 3)) == expected * 3
    engine.close()
