"""Titles and last sentences as queries of their documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.records import Qrel, Topic

LONG = "The second sentence of this text has more than forty characters."
DOCUMENTS = [
    {"_id": "d1", "title": "Zinc and colds", "text": f"Short one. {LONG} Short."},
    {
        "_id": "d2",
        "title": "",
        "text": "No title here. p = 0.05 is no end of a sentence, nor is i.e. an abbreviation (it goes on).",
    },
    {"_id": "d3", "title": "A title without a text", "text": " "},
    {"_id": "d4", "title": " Ä title ", "text": "short"},
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    lines = "".join(json.dumps(document) + "\n" for document in DOCUMENTS)
    (tmp_path / "corpus.jsonl").write_text(lines, encoding="utf-8")
    return f"beir:{tmp_path}"


def test_titles_are_queries_of_their_documents(corpus):
    found = load_dataset(f"titles:{corpus}")
    assert list(found.topics()) == [Topic("d1", "Zinc and colds"), Topic("d4", "Ä title")]
    assert list(found.qrels()) == [Qrel("d1", "d1", 1), Qrel("d4", "d4", 1)]
    assert list(found.documents()) == list(load_dataset(corpus).documents())
    assert not found.remove_query and found.name == f"titles:{corpus}"


def test_last_sentences_of_some_length_are_queries(corpus):
    topics = list(load_dataset(f"sentences:{corpus}").topics())
    assert topics == [Topic("d1", LONG), Topic("d2", DOCUMENTS[1]["text"])]


def test_bad_names_are_one_line(corpus):
    with pytest.raises(UsageError, match="'titles:' names no corpus; expected titles:<corpus>"):
        load_dataset("titles:")
    with pytest.raises(UnknownName, match="unknown corpus 'bier'"):
        load_dataset("sentences:bier/x")
    with pytest.raises(UsageError, match="have no splits"):
        load_dataset(f"titles:{corpus}", split="train")
