"""The search page over an index of two fields."""

from __future__ import annotations

from pathlib import Path

from shard_folders import write_text_shards

from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.fields import join_fields
from lexvl_plugins.serve.answering import Service
from lexvl_plugins.serve.indexes import Shelf, name_indexes
from lexvl_plugins.serve.messages import ProductsQuestion, Question


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
