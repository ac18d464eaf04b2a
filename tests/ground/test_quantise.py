"""Weights to impacts: by hand, by property, and what is refused; and the vocabularies that they are weights of."""

import json
import pickle

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser, TooLargeImpact
from lexvl_anserini.ground.records import SCORE_LIMIT, QuantiserEntry, TermWeights, Vocabulary

quickly = settings(derandomize=True)

WEIGHT = st.floats(2.0**-20, 2.0**20, width=32)
ROWS = st.lists(st.lists(WEIGHT, max_size=8), min_size=1, max_size=5)


def csr(*rows):
    """One row per list; zeros are not stored."""
    width = max(1, *map(len, rows))
    return sparse.csr_matrix(np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.float32))


def fixed(scale, bits=8):
    return Quantiser(document=SideQuantiser("fixed", bits, scale), query=SideQuantiser("fixed", bits, scale))


def test_round_clip_and_drop():
    found = fixed(100).documents(csr([0.004, 0.5, 2.55, 2.56, 9.0], [], [0.0049]))
    assert found.impacts.toarray().tolist() == [[0, 50, 255, 255, 255], [0] * 5, [0] * 5]
    assert (found.clipped, found.dropped) == (2, 2)
    assert found.impacts.dtype == np.int64 and found.impacts.nnz == 4


NAVER, BINARY = Quantiser.named("naver"), Quantiser().for_towers(True, True)


@pytest.mark.parametrize(
    "quantise,rows,impacts",
    [
        (fixed(1).documents, [[0.5, 1.5, 2.5, 3.5]], [[0, 2, 2, 4]]),  # halves go to the even neighbour
        (fixed(1e6).documents, [[1e6]], [[255]]),
        (NAVER.documents, [[0.004, 0.016, 30.0]], [[0, 2, 3000]]),  # hundredths, which are never clipped
        (NAVER.queries, [[0.004, 0.016, 30.0]], [[0, 2, 3000]]),
        (BINARY.documents, [[0.3, 7.0], []], [[1, 1], [0, 0]]),
        (BINARY.queries, [[0.3, 7.0], []], [[1, 1], [0, 0]]),
        (Quantiser().queries, [[0.1, 0.2], [50.0], []], [[128, 255], [255, 0], [0, 0]]),
    ],
)
def test_impacts_by_hand(quantise, rows, impacts):
    assert quantise(csr(*rows)).impacts.toarray().tolist() == impacts


def test_nothing_of_the_callers_changes():
    weights = csr([0.001, 1.0], [3.0])
    data, indices, indptr = weights.data.copy(), weights.indices.copy(), weights.indptr.copy()
    for quantiser in (fixed(100), Quantiser().calibrate(weights), Quantiser().for_towers(True, True)):
        quantiser.documents(weights)
        quantiser.queries(weights)
    assert (weights.data == data).all() and (weights.indices == indices).all() and (weights.indptr == indptr).all()


def test_calibrated_by_percentile_clips_what_lies_above():
    """Maxima 1, 2, 3, 4, 5 (empty vectors do not count): their median becomes 255."""
    sample = csr([1.0], [2.0], [3.0], [], [4.0], [5.0])
    quantiser = Quantiser.named(percentile=50).calibrate(sample)
    assert quantiser.document.scale == 85
    found = quantiser.documents(sample)
    assert found.clipped == 2 and found.impacts.max() == 255
    for sample in (csr([], []), sparse.csr_matrix((0, 5), dtype=np.float32)):
        assert Quantiser().calibrate(sample).document.scale == 1


@quickly
@given(rows=ROWS, bits=st.integers(1, 16), scale=st.floats(1e-3, 1e3))
def test_impacts_lie_between_one_and_the_largest(rows, bits, scale):
    weights = csr(*rows)
    found = fixed(scale, bits).documents(weights)
    assert found.impacts.shape == weights.shape
    assert all(1 <= impact <= 2**bits - 1 for impact in found.impacts.data)
    assert found.impacts.nnz + found.dropped == weights.nnz
    expected = np.rint(weights.toarray().astype(float) * scale)
    assert found.clipped == (expected > 2**bits - 1).sum()
    assert (found.impacts.toarray() == np.minimum(expected, 2**bits - 1)).all()


@quickly
@given(rows=ROWS, bits=st.integers(1, 16))
def test_order_within_a_vector_is_kept(rows, bits):
    weights = csr(*rows)
    quantiser = Quantiser.named(bits=bits, query_bits=min(bits, 12)).calibrate(weights)
    for impacts in (quantiser.documents(weights).impacts, quantiser.queries(weights, 1).impacts):
        for before, after in zip(weights.toarray(), impacts.toarray(), strict=True):
            order = np.argsort(before)
            assert (np.diff(after[order]) >= 0).all()


@quickly
@given(rows=ROWS)
def test_calibrated_sample_reaches_the_largest_and_is_not_clipped(rows):
    weights = csr(*rows)
    found = Quantiser().calibrate(weights).documents(weights)
    assert found.clipped == 0
    assert not weights.nnz or found.impacts.max() == 255


@quickly
@given(st.integers(1, 3000), st.integers(1, 16), st.integers(1, SCORE_LIMIT), st.floats(0.01, 1))
def test_queries_stay_below_the_limit_with_as_many_bits_as_fit(count, bits, max_impact, spread):
    weights = csr(np.linspace(spread, 1, count))
    quantiser = Quantiser.named(query_bits=bits)
    fits_with_one_bit = np.rint(weights.toarray()).sum() * max_impact < SCORE_LIMIT
    if not fits_with_one_bit:
        with pytest.raises(LexvlError, match=r"2\^24"):
            quantiser.queries(weights, max_impact)
        return
    impacts = quantiser.queries(weights, max_impact).impacts
    assert impacts.sum() * max_impact < SCORE_LIMIT
    used = int(impacts.max()).bit_length()
    assert impacts.max() == 2**used - 1 and used <= bits
    if used < bits:  # one bit more would have been too much
        finer = np.rint(weights.toarray().astype(float) / weights.max() * (2 ** (used + 1) - 1)).sum()
        assert finer * max_impact >= SCORE_LIMIT


def test_only_the_queries_that_need_it_lose_bits():
    weights = csr([1.0] * 600, [1.0])
    impacts = Quantiser().queries(weights, 255).impacts
    assert impacts[0].max() == 63 and impacts[1].max() == 255  # 600 x 127 x 255 > 2^24 > 600 x 63 x 255
    assert Quantiser().queries(csr([1.0] * 768)).impacts.max() == 63  # as many terms as VDR keeps


@pytest.mark.parametrize(
    "quantise,rows,most,message",
    [
        (fixed(1, 16).queries, [[1.0], [32768.0, 32768.0]], 256, "less on either"),
        (Quantiser().for_towers(True, False).queries, [[1.0] * 5], SCORE_LIMIT // 5 + 1, r"2\^24"),
        (NAVER.documents, [[167772.16]], None, r"reaches 2\^24; lower the scale or give bits"),
        (Quantiser().documents, [[1.0]], None, "not calibrated"),
    ],
)
def test_what_could_pass_the_limit_is_refused(quantise, rows, most, message):
    with pytest.raises(LexvlError, match=message):
        quantise(csr(*rows), *filter(None, [most]))


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_weights_that_are_none_are_refused(weight):
    weights = csr([1.0, 2.0], [3.0, weight])
    with pytest.raises(TooLargeImpact, match=r"an impact of .*(2\^24|expected 0 or more)") as caught:
        Quantiser.named("naver").documents(weights)
    assert (caught.value.row, caught.value.dimension) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"scheme": "fixed", "scale": scale} for scale in (None, 0, -1.0, float("nan"), float("inf"))),
        *({"scheme": scheme, "scale": 100.0} for scheme in ("calibrated", "naver", "linear")),
        *({"bits": 0}, {"bits": 17}, {"query_bits": 0}, {"percentile": 0}, {"percentile": 100.5}, {"scheme": "linear"}),
    ],
)
def test_values_that_do_not_fit(arguments):
    with pytest.raises(UsageError):
        Quantiser.named(**arguments)
    with pytest.raises(UsageError, match="needs bits"):
        SideQuantiser("peak", None)


def test_json_round_trip():
    fixed_bits = Quantiser.named("fixed", scale=31.5, bits=6, query_bits=4)
    calibrated = Quantiser.named(percentile=99.5).calibrate(csr([1 / 3]))
    for quantiser in (Quantiser(), NAVER, fixed_bits, calibrated, Quantiser().for_towers(True, False)):
        assert Quantiser.from_json(json.loads(json.dumps(quantiser.to_json()))) == quantiser


SIDE = {"scheme": "fixed", "bits": 8, "scale": 1.0, "percentile": 100.0}
OTHERS = [("new", 1), ("scheme", "other"), ("bits", "8"), ("bits", 99), ("scale", "1"), ("scale", None)]


@pytest.mark.parametrize(
    "data",
    [
        *({}, {"document": SIDE}, {"document": SIDE, "query": None}, [], "naver"),
        *({"document": SIDE, "query": {**SIDE, key: value}} for key, value in OTHERS),
    ],
)
def test_json_that_is_no_quantiser(data):
    with pytest.raises(ArtefactError, match="not a quantiser"):
        Quantiser.from_json(data)


def test_a_request_does_not_hold_what_calibration_found():
    asked, ready = Quantiser(), Quantiser().calibrate(csr([3.0]))
    entries = [QuantiserEntry(quantiser.to_json()) for quantiser in (asked, ready, fixed(2))]
    requested = [entry.sides()["document"].requested() for entry in entries]
    assert asked != ready and requested[0] == requested[1]
    assert requested[2]["scale"] == 2


def test_vectors_in_a_vocabulary_are_those_by_term():
    quantised = Quantiser().queries(sparse.csr_matrix([[0, 1.0, 3.0], [0, 0, 0], [2.0, 0, 0]]))
    vocabulary = Vocabulary(["a", "b", "c"])
    expected = [{"b": 85, "c": 255}, {}, {"a": 255}]
    assert quantised.in_vocabulary(vocabulary) == quantised.by_term(vocabulary.terms) == expected


def test_round_trip_and_digest_of_a_vocabulary(tmp_path):
    vocabulary = Vocabulary(["a", "##b", "é", "犬", '"', "\\", "\U0001f436"])
    vocabulary.write(tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes().startswith(b"a\n##b\n")
    again = Vocabulary.read(tmp_path / "vocab.txt")
    assert again.terms == vocabulary.terms and again.digest == vocabulary.digest
    assert Vocabulary(["a", "b"]).digest == Vocabulary(["a", "b"]).digest
    assert len({Vocabulary(terms).digest for terms in (["a", "b"], ["b", "a"], ["ab"], ["a"])}) == 4


ODD_TERMS = ("", " ", "a b", "a\tb", "a\nb", "a\x00", "\x7f", "a\u00a0b", "\u3000", "x" * 32_767)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        *((["fine", term], "model: term .* rename the term") for term in ODD_TERMS),
        (["é" * 16_384], "32766 UTF-8 bytes"),
        ("aba", "two dimensions .* 'a'"),
    ],
)
def test_terms_an_index_cannot_hold(terms, message):
    assert len(Vocabulary(["x" * 32_766])) == 1
    with pytest.raises(ArtefactError, match=message):
        Vocabulary(terms, "model")


def test_weights_of_dimensions_read_like_a_dictionary():
    weights = TermWeights(Vocabulary(["a", "b", "犬"]), np.array([2, 0], np.int32), np.array([7, 3]))
    assert len(weights) == 2 and weights == {"犬": 7, "a": 3} == dict(weights) and weights != {"犬": 7}
    assert list(weights) == list(weights.keys()) == ["犬", "a"] and list(weights.items()) == [("犬", 7), ("a", 3)]
    assert "a" in weights and "b" not in weights and weights["a"] == 3 and weights.get("b") is None
    assert {type(weight) for weight in weights.values()} == {int} and repr(weights) == "{'犬': 7, 'a': 3}"
    assert pickle.loads(pickle.dumps(weights)) == weights and orjson.loads(orjson.dumps({**weights})) == weights
    with pytest.raises(KeyError):
        weights["b"]
