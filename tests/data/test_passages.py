"""Texts split into passages: no word is lost, ids lead back to their documents."""

import logging
from pathlib import Path

import pytest
from corpus_folders import write_beir
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.data.dataset import PassageRule, load_dataset, load_reference, split_documents
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, get_document_id


def test_rules_by_hand() -> None:
    named = {"d1#0": "d1", "d1": "d1", "d#2#3": "d", "#4": "#4", "#4#5": "#4", "é#": "é", "#": "#"}
    assert {passage_id: get_document_id(passage_id) for passage_id in named} == named
    assert PassageRule.parse("150") == (150, 150) and PassageRule.parse("150:75") == (150, 75)
    for wrong in ("", "0", "a", "150:", ":75", "75:150", "150:0", "-1", "1.5", "150:75:1", "²", "99999999999"):
        with pytest.raises(UsageError, match=f"passages '{wrong}': expected WORDS or WORDS:STRIDE"):
            PassageRule.parse(wrong)
    text = " a b\n c  d e "
    assert list(PassageRule(2, 2).texts(text)) == ["a b", "c  d", "e"]
    assert list(PassageRule(3, 2).texts(text)) == ["a b\n c", "c  d e"]
    assert list(PassageRule(3, 1).texts(text)) == ["a b\n c", "b\n c  d", "c  d e"]
    assert list(PassageRule(5, 1).texts(text)) == [text] and list(PassageRule(1, 1).texts("")) == [""]


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 9))
def test_every_word_is_in_a_passage(count: int, words: int, stride: int) -> None:
    texts = list(PassageRule(words, min(stride, words)).texts(" ".join(map(str, range(count)))))
    parts = [[int(word) for word in text.split()] for text in texts]
    assert sorted({word for part in parts for word in part}) == list(range(count))
    assert all(len(part) <= words for part in parts)
    assert all(not set(before) >= set(part) for before, part in zip(parts, parts[1:], strict=False))


def test_documents_of_every_form(caplog: pytest.LogCaptureFixture) -> None:
    documents = [
        Document("d1", "T", "a b c", metadata={"year": 1}),
        Document("d2", None, "a"),
        Document("d3", "T", None),
        Document("d4", None, "a b c", "x.png"),
        Document("#5", None, ""),
    ]
    caplog.set_level(logging.INFO, "lexvl_anserini")
    passages = list(split_documents(lambda: iter(documents), PassageRule(2, 2), "mine"))
    assert [(p.doc_id, p.title, p.text) for p in passages] == [
        ("d1#0", "T", "a b"),
        ("d1#1", "T", "c"),
        ("d2#0", None, "a"),
        ("d3#0", "T", None),
        ("d4#0", None, "a b c"),
        ("#5#0", None, ""),
    ]
    assert passages[1].metadata == {"year": 1} and [get_document_id(p.doc_id) for p in passages[1:3]] == ["d1", "d2"]
    assert "mine: 5 documents in 6 passages" in caplog.messages
    with pytest.raises(DataError, match="mine: id 'd#1' of document 2 has a '#', which ends"):
        list(split_documents(lambda: iter([documents[0], Document("d#1")]), PassageRule(2, 2), "mine"))


def test_a_dataset_in_passages(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", {"d1": "a b c", "d2": "a"}, {"q": "a"}, [("q", "d1")])
    dataset = load_dataset(f"beir:{folder}", passages="2")
    assert [document.doc_id for document in dataset.documents()] == ["d1#0", "d1#1", "d2#0"]
    assert dataset.placed is None and dataset.ref.passages == "2"
    assert list(load_reference(dataset.ref).documents()) == list(dataset.documents())
    assert [qrel.doc_id for qrel in dataset.qrels()] == ["d1"]
