"""Dimensions and terms."""

from __future__ import annotations

import pickle

import numpy as np
import orjson
import pytest

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import TermWeights, Vocabulary


def test_round_trip(tmp_path):
    vocabulary = Vocabulary(["a", "##b", "é", "犬", '"', "\\", "\U0001f436"])
    vocabulary.write(tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes().startswith(b"a\n##b\n")
    again = Vocabulary.read(tmp_path / "vocab.txt")
    assert again.terms == vocabulary.terms and again.digest == vocabulary.digest


def test_digest_is_of_order_and_terms():
    assert Vocabulary(["a", "b"]).digest == Vocabulary(["a", "b"]).digest
    assert len({Vocabulary(terms).digest for terms in (["a", "b"], ["b", "a"], ["ab"], ["a"])}) == 4


@pytest.mark.parametrize("term", ["", " ", "a b", "a\tb", "a\nb", "a\x00", "\x7f", "a\u00a0b", "\u3000", "x" * 32_767])
def test_terms_an_index_cannot_hold(term):
    with pytest.raises(ArtefactError, match="model: term .* rename the term"):
        Vocabulary(["fine", term], "model")


@pytest.mark.parametrize("terms,told", [(["é" * 16_384], "32766 UTF-8 bytes"), ("aba", "two dimensions .* 'a'")])
def test_the_longest_term_and_one_that_is_there_twice(terms, told):
    assert len(Vocabulary(["x" * 32_766])) == 1
    with pytest.raises(ArtefactError, match=told):
        Vocabulary(terms)


def test_weights_of_dimensions_read_like_a_dictionary():
    weights = TermWeights(Vocabulary(["a", "b", "犬"]), np.array([2, 0], np.int32), np.array([7, 3]))
    assert len(weights) == 2 and weights == {"犬": 7, "a": 3} == dict(weights) and weights != {"犬": 7}
    assert list(weights) == list(weights.keys()) == ["犬", "a"] and list(weights.items()) == [("犬", 7), ("a", 3)]
    assert "a" in weights and "b" not in weights and weights["a"] == 3 and weights.get("b") is None
    assert {type(weight) for weight in weights.values()} == {int} and repr(weights) == "{'犬': 7, 'a': 3}"
    assert pickle.loads(pickle.dumps(weights)) == weights and orjson.loads(orjson.dumps({**weights})) == weights
    with pytest.raises(KeyError):
        weights["b"]
