"""Texts drawn as scanned pages: what is drawn, which documents are chosen, and what is written beside them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from beir_folders import write_beir
from PIL import Image

from eval.analyses.pages.draw_pages import LEAST_SIZE, Look, chosen_pages, command, draw_page, page_id, set_text
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.records import Document
from tests.invoking import invoked

PLAIN = Look(("DejaVuSans", "DejaVuSans-Bold"), 24, 1, 250, 20, 0.0, 0.3, 0.0, 80)
TOPICS = {"q1": "one", "q2": "two", "q3": "three"}


@pytest.fixture
def texts(tmp_path):
    """Thirty documents; of three topics one has two relevant documents and one none."""
    documents = {f"d/{number}": f"word{number} and more" for number in range(30)}
    return write_beir(tmp_path / "texts", documents, TOPICS, [("q1", "d/3"), ("q1", "d/28"), ("q2", "d/9")])


def test_a_page_is_a_page(texts):
    document = Document("a", "A title", "some words " * 40)
    page, drawn, look = draw_page(document, seed=1)
    assert page.size == (1240, 1754) and page.mode == "RGB" and drawn == document
    grey = np.asarray(page.convert("L"), float)
    assert abs(np.median(grey) - look.paper) < 3 and grey.min() < look.ink + 90
    assert 0.005 < (grey < 128).mean() < 0.2


def test_the_seed_decides_the_page():
    pages = [np.asarray(draw_page(Document("a", text="x y z"), seed)[0]) for seed in (1, 1, 2)]
    assert np.array_equal(pages[0], pages[1]) and not np.array_equal(pages[0], pages[2])


@pytest.mark.parametrize("columns", [1, 2])
def test_all_words_are_set_in_order(columns):
    words = [f"w{number}" for number in range(600)]
    lines, drawn = set_text(Document("a", "A title", " ".join(words)), PLAIN._replace(columns=columns))
    assert lines[0].text == "A title" and drawn.text == " ".join(words)
    assert " ".join(line.text for line in lines[1:]).split() == words
    assert all(line.left > 0 and line.left + line.font.getlength(line.text) < 1240 for line in lines)
    assert len({line.left for line in lines[1:]}) == columns and max(line.top for line in lines) < 1754 - 100


def test_a_text_that_is_too_long_becomes_smaller_and_is_then_cut():
    lines, drawn = set_text(Document("a", text="several words " * 600), PLAIN)
    assert drawn.text == "several words " * 600 and LEAST_SIZE < lines[0].font.size < PLAIN.size
    lines, drawn = set_text(Document("a", text="several words " * 5000), PLAIN)
    assert lines[0].font.size == LEAST_SIZE and max(line.top for line in lines) < 1754 - 100
    assert drawn.text == " ".join(line.text for line in lines) and len(drawn.text) < 70000
    assert set_text(Document("a"), PLAIN) == ([], Document("a"))


def test_relevant_documents_come_first(texts):
    source = load_dataset(f"beir:{texts}")
    topics, qrels, pages = chosen_pages(source, 5, None, seed=0)
    assert [topic.query_id for topic in topics] == ["q1", "q2"] and len(qrels) == 3
    ids = [page.doc_id for page in pages]
    assert len(ids) == 5 and {"d/3", "d/28", "d/9"} <= {*ids}
    assert ids == [d.doc_id for d in source.documents() if d.doc_id in ids]
    assert ids != [page.doc_id for page in chosen_pages(source, 5, None, seed=1)[2]]
    reads = []
    counted = replace(source, documents=lambda: reads.append(1) or source.documents())
    assert len(chosen_pages(counted, 100, 1, seed=0)[2]) == 30 and len(reads) == 1


def test_the_folder(texts, tmp_path):
    out = tmp_path / "out"
    arguments = ("--dataset", f"beir:{texts}", "--output", out, "--documents", 4, "--format", "json")
    rows = json.loads(invoked(command, *arguments))
    assert rows == {"output": str(out), "pages": 4, "cut": 0, "topics": 2, "judgements": 3}
    drawn = load_dataset(f"beir:{out}")
    ids = [document.doc_id for document in drawn.documents()]
    assert {f"{path.name}#1" for path in (out / "pages").iterdir()} == {*ids} and page_id("d/3") == "d%2F3.jpg#1" in ids
    assert {qrel.doc_id for qrel in drawn.qrels()} < {*ids}
    assert Image.open(out / "pages" / "d%2F3.jpg").size == (1240, 1754)
    with pytest.raises(Exception, match="exists; --overwrite replaces it"):
        invoked(command, *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topics", 3], "has 2 topics with a relevant document"),
        (["--documents", 2], "2 topics have 3 relevant documents, more than --documents 2"),
    ],
)
def test_what_cannot_be_chosen(texts, tmp_path, options, message):
    with pytest.raises(Exception, match=message):
        invoked(command, "--dataset", f"beir:{texts}", "--output", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()
