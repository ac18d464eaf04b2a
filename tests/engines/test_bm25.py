from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from shard_folders import Documents, write_text_shards

from lexvl_anserini.engines.bm25 import BM25Engine
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.searching.searcher import EncoderChanges, Searcher

DOCUMENTS: Documents = [
    ("d1", "a dog on the beach"),
    ("d2", "dogs, dogs and DOGS"),
    ("blank", " \n "),
    ("d4", "ein Schiff é 😀"),
    ("empty", ""),
]


def built(folder: Path, *shards: Documents, **options: Any) -> BM25Engine:
    manifest = write_text_shards(folder / "shards", *shards)
    manifest = replace(manifest, encoder=EncoderRef(name="bm25", options=options))
    BM25Engine.build(folder / "shards", folder / "index", manifest)
    return BM25Engine(folder / "index", manifest)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    engine = built(tmp_path_factory.mktemp("bm25"), DOCUMENTS[:2], DOCUMENTS[2:])
    yield engine
    engine.close()


def test_scores_are_anserinis(engine: BM25Engine, capfd: pytest.CaptureFixture[str]) -> None:
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
def test_parameters_and_analysers_by_hand(
    tmp_path: Path, options: Any, query: str, lengths: Any, frequencies: dict[str, int]
) -> None:
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


def test_a_search_changes_the_parameters_but_not_the_analyser(tmp_path: Path) -> None:
    built(tmp_path, DOCUMENTS).close()

    def scores(**options: Any) -> list[float]:
        with Searcher(tmp_path / "index", encoder=EncoderChanges(options=options)) as searcher:
            return [hit.score for hit in searcher.search("a dog")]

    assert scores() == scores(k1="0.9", b="0.4") == scores(stemmer="porter")
    assert scores(k1="0") == pytest.approx([log(1 + 1.5 / 2.5)] * 2, abs=1e-4)
    with pytest.raises(ArtefactError, match="analyser .'en', 'krovetz', False.*'porter'.*changes k1 and b alone"):
        scores(stemmer="krovetz")


def test_topics_without_words_and_twice_the_same_id(engine: BM25Engine) -> None:
    topics = [Topic("q", ""), Topic("q", "the"), Topic("q", "schiff"), Topic("q", '\t?! (^~ "')]
    assert [[d.doc_id for d in documents] for documents in engine.search(topics, 5, threads=2)] == [[], [], ["d4"], []]
    with pytest.raises(UsageError, match="topic 'q' has no text"):
        list(engine.search([Topic("q", image="a.jpg")], 5))


def test_documents_without_text_are_counted_not_lost(tmp_path: Path) -> None:
    built(tmp_path, DOCUMENTS).close()
    report = read_report(tmp_path / "index")
    assert (report["documents"], report["empty"]) == (5, 2)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([("a", "x y"), ("a", "z")], "'a' occurs twice"),
        ([("a", ""), ("b", " ")], "no document with text"),
        ([("a" * 40_000, "x"), ("b", "y")], "line 1: document id 'a+.* of at most 32,766 bytes"),
    ],
)
def test_bad_shards_leave_nothing(tmp_path: Path, documents: Documents, message: str) -> None:
    manifest = write_text_shards(tmp_path / "shards", documents)
    with pytest.raises(ArtefactError, match=message):
        BM25Engine.build(tmp_path / "shards", tmp_path / "index", manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
