"""Our encoders as stock Pyserini's query encoders."""

from __future__ import annotations

import pytest

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.query_vectors import encode_queries

BERT, PUBLISHED = "splade/ckpt_bert", "vdr/text-tiny"
TEXTS = ("a man riding a horse on a beach", "", "PIZZA!")


@pytest.mark.parametrize("name,checkpoint", [("splade", BERT), ("vdr", PUBLISHED), ("bag-of-tokens", BERT)])
def test_stock_and_our_search_get_the_same_queries(load, name, checkpoint):
    model = load(name, checkpoint)
    quantiser = Quantiser.named(query_bits=6).for_towers(model.query.binary, model.document.binary).to_json()
    counts = {"documents": 1, "max_impact": 255}
    manifest = Manifest("impact", model.identity(), {"name": "x"}, counts, quantiser)
    encoder = model.as_pyserini(manifest)
    ours = [query.vector for query in encode_queries(model, [Topic("q", text) for text in TEXTS], manifest)]
    assert [encoder.encode(text) for text in TEXTS] == ours == encoder.encode_all(TEXTS)
    assert all(type(weight) is int and weight >= 1 for vector in ours for weight in vector.values())
    assert encoder.encode("a dog", max_length=5) == encoder.encode("a dog"), "stock's options mean nothing here"


def test_without_a_manifest_queries_have_eight_bits(load):
    vector = load("splade", BERT).as_pyserini().encode(TEXTS[0])
    assert max(vector.values()) == 255
    assert set(load("bag-of-tokens", BERT).as_pyserini().encode(TEXTS[0]).values()) == {1}


def test_a_model_without_terms():
    from lexvl_anserini.encoders.loading import load_encoder

    with pytest.raises(UsageError, match="encoder 'bm25' is text; an impact index answers lexical queries"):
        load_encoder("bm25").as_pyserini()
