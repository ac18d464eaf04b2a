"""The command `serve`: what it checks, prints and refuses; an index of two fields."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from shard_folders import write_text_shards

from lexvl_anserini.engines.engine import resolve_target
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.searching import query_encoder
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.fields import join_fields
from lexvl_plugins.serve.answering import Service
from lexvl_plugins.serve.indexes import Shelf, name_indexes
from lexvl_plugins.serve.messages import ProductsQuestion, Question
from lexvl_plugins.serve.serve import command
from tests.invoking import invoked
from tests.plugins.serve.served_colours import DENSE, index_pictures, index_texts, load, running

invoke = partial(invoked, command)


@pytest.fixture
def toy(monkeypatch) -> None:
    monkeypatch.setattr(query_encoder, "load_encoder_from", load)


def test_check_answers_one_query_and_ends(toy, tmp_path) -> None:
    lexical = index_pictures(tmp_path / "pictures", tmp_path / "colours")
    twin = index_pictures(tmp_path / "pictures", tmp_path / "twin", DENSE)
    arguments = ("--index", lexical, "--index", twin, "--example", "blue", "--check", "--format", "json")
    rows = json.loads(invoke(*arguments))
    assert rows["query"] == "blue"
    assert rows["colours"].startswith("4 documents, first hit ")
    assert rows["twin"].startswith("4 documents, first hit ")


def test_what_cannot_be_served_is_refused(toy, tmp_path) -> None:
    with pytest.raises(ArtefactError, match="no such index"):
        invoke("--index", tmp_path / "nowhere", "--check")
    with pytest.raises(UsageError, match="at most 4"):
        invoke(*("--index", tmp_path) * 5, "--check")
    with pytest.raises(UsageError, match="one for each"):
        invoke("--index", tmp_path, "--index", tmp_path, "--checkpoint", "x", "--check")


def test_equal_folder_names_get_numbers(tmp_path) -> None:
    paths = [tmp_path / "a" / "demo", tmp_path / "b" / "demo", tmp_path / "other"]
    assert [one.name for one in name_indexes(paths, [], "cpu", None)] == ["demo", "demo-2", "other"]


def test_an_index_in_a_store_is_served_beside_a_folder(toy, tmp_path, monkeypatch) -> None:
    pytest.importorskip("qdrant_client", reason="the client of Qdrant")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    folder = index_pictures(tmp_path / "pictures", tmp_path / "colours")
    url = f"qdrant+file:{tmp_path}/stores/colours"
    target = resolve_target(url, None, {})
    build_index(tmp_path / "colours-shards", target.folder, engine=target.engine, options=target.options)
    with running(folder, url) as client:

        def answered(index: str, text: str) -> list[tuple[str, float]]:
            return [(hit["doc_id"], hit["score"]) for hit in client.ask(index=index, text=text)["hits"]]

        texts = ["red", "blue", "red blue", "+red -blue", "green"] * 8
        expected = [answered("colours", text) for text in texts[:5]]
        assert expected[0] and expected[2]
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda text: answered("colours-2", text), texts))
        assert found == expected * 8
        question = {"index": "colours-2", "text": "red blue"}
        _, [found] = client.post("/api/products", {"question": question, "doc_ids": ["half.png"]})
        assert sum(one["product"] for one in found["products"]) == found["score"] > 0


@pytest.mark.heavy
def test_the_command_serves_until_it_is_interrupted(tmp_path) -> None:
    environ = index_texts(tmp_path)
    serve = ("lexvl_plugins.serve.serve", "--index", "index", "--port", "0", "--format", "json")
    running = subprocess.Popen(
        [sys.executable, "-m", *serve], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        page = json.loads(running.stdout.readline())["page"]
        with urlopen(page) as answer:
            assert b"LexVL" in answer.read()
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(900)
    assert code == 0


def test_each_product_names_its_field(tmp_path: Path) -> None:
    write_text_shards(tmp_path / "text", [("d1", "red boat"), ("d2", "sea")])
    write_text_shards(tmp_path / "title", [("d1", "boat"), ("d2", "boats and seas")])
    join_fields({name: tmp_path / name for name in ("text", "title")}, tmp_path / "both", load_word_analysis)
    build_index(tmp_path / "both", tmp_path / "served")
    shelf = Shelf(name_indexes([tmp_path / "served"], [], "cpu", None))
    try:
        service = Service(shelf)
        for text, expected in (
            ("a boat", {"text:boat": "text", "title:boat": "title"}),
            ("+text:boat title:boat^2", {"text:boat": "text", "title:boat": "title"}),
        ):
            question = Question(index="served", text=text)
            answer = service.answer(question)
            assert answer.hits[0].doc_id == "d1" and {chip.term for chip in answer.chips} == set(expected)
            [found] = service.explain(ProductsQuestion(question=question, doc_ids=["d1"]))
            assert {product.term: product.field for product in found.products} == expected
            assert sum(product.product for product in found.products) == found.score == answer.hits[0].score
        assert service.suggest("served", "bo") == ["text:boat", "title:boat"]
        assert service.suggest("served", "title:s") == ["title:sea"]
    finally:
        shelf.close()
