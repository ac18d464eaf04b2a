"""Activations, poolings, sparsifiers, the projector and the readers against naive formulas."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lexvl_anserini.encoders.parts import towers
from lexvl_anserini.encoders.parts.batches import ENOUGH_TOKENS, MOST_PADDING, BagTower, sort_by_length
from lexvl_anserini.encoders.parts.sparsify import Sparsifier, keep_own, keep_positive, mark_kept, mark_top
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    find_first_word_id,
    load_tokenizer,
    make_columns_from,
    make_columns_without,
)
from lexvl_anserini.encoders.parts.towers import (
    Composition,
    Head,
    Projector,
    TextTower,
    elu1p,
    log1p_log1p_relu,
    log1p_relu,
    pool_max,
    pool_sum,
    pool_top_mean,
)
from lexvl_anserini.ground.errors import CheckpointError, LexvlError

quickly = settings(derandomize=True)


# ---- activations


def test_activations_at_known_points():
    x = torch.tensor([-1000.0, -1.0, 0.0, 1.0, np.e - 1])
    assert log1p_relu(x).tolist() == pytest.approx([0, 0, 0, np.log(2), 1], abs=1e-6)
    assert log1p_log1p_relu(x).tolist() == pytest.approx([0, 0, 0, np.log1p(np.log(2)), np.log(2)], abs=1e-6)
    assert elu1p(x).tolist() == pytest.approx([0, np.exp(-1), 1, 2, np.e], abs=1e-6)
    assert elu1p(torch.tensor([-20.0])).item() == 0  # as the reference: ELU(x) + 1 in float32


# ---- sparsifiers


def top_mask_by_sorting(weights: np.ndarray, k: int) -> np.ndarray:
    mask = np.zeros(weights.shape, dtype=bool)
    for row, values in enumerate(weights):
        mask[row, sorted(range(len(values)), key=lambda d: (-values[d], d))[:k]] = True
    return mask


SHAPES, FEW = st.tuples(st.integers(1, 4), st.integers(1, 12)), st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0])


@quickly
@given(weights=arrays.arrays(np.float32, SHAPES, elements=FEW), k=st.integers(0, 15))
def test_top_mask_prefers_the_lowest_dimension_among_equals(weights, k):
    found = mark_top(torch.from_numpy(weights), k).numpy()
    assert (found == top_mask_by_sorting(weights, k)).all()


def test_sparsifiers():
    weights = torch.tensor([[3.0, 1.0, 0.0, 2.0, 2.0]])
    own = torch.tensor([[False, True, True, False, False]])

    def dims(sparsifier, own=own):
        return mark_kept(weights, own if sparsifier.needs_own else None, sparsifier).nonzero()[:, 1].tolist()

    assert dims(keep_positive()) == [0, 1, 3, 4]
    assert dims(Sparsifier(2)) == [0, 3]
    assert dims(Sparsifier(99)) == [0, 1, 3, 4]  # a weight of 0 is never kept
    assert dims(Sparsifier(1, own=True)) == [0, 1]
    assert dims(keep_own()) == [1]


# ---- poolings


def by_definition(features, masked, matrix, bias, activation, pool):
    """Full logits [B, L, V], then activation, then pooling over the unmasked positions of each text."""
    logits = features @ matrix.T + (0 if bias is None else bias)
    rows = []
    for row, mask in zip(activation(logits), masked, strict=True):
        rows.append(pool(row[~mask]) if (~mask).any() else torch.zeros(matrix.shape[0]))
    return torch.stack(rows)


POOLED = {
    "max": (pool_max, lambda rows: rows.amax(dim=0)),
    "sum": (pool_sum, lambda rows: rows.sum(dim=0)),
    "mean of 2": (partial(pool_top_mean, n=2), lambda rows: rows.topk(min(2, len(rows)), dim=0).values.mean(dim=0)),
}


@pytest.mark.parametrize("buffer_floats", [8 << 20, 64, 1])
@pytest.mark.parametrize("activation", [log1p_relu, log1p_log1p_relu, elu1p])
@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("biased", [True, False])
def test_projector_equals_the_definition(monkeypatch, buffer_floats, activation, name, biased):
    """Whatever the number of slices: 8M floats hold all, 64 need several, 1 takes a column at a time."""
    monkeypatch.setattr(towers, "BUFFER_FLOATS", buffer_floats)
    numbers = torch.Generator().manual_seed(5)
    features = torch.randn(3, 4, 8, generator=numbers)
    matrix = torch.randn(11, 8, generator=numbers)
    bias = torch.randn(11, generator=numbers) if biased else None
    masked = torch.tensor([[False] * 4, [False, False, True, True], [False, True, True, True]])
    pool, definition = POOLED[name]
    project = Projector()
    expected = by_definition(features, masked, matrix, bias, activation, definition)
    for _ in range(2):  # the buffer is used again
        found = project(features.clone(), masked, matrix, bias, pool, activation)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", [log1p_relu, elu1p])
@pytest.mark.parametrize("name", POOLED)
def test_a_text_without_any_position_has_no_weight(activation, name):
    states, masked = torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool)
    found = Projector()(states, masked, torch.ones(5, 2), None, POOLED[name][0], activation)
    assert found.tolist() == [[0.0] * 5]


# ---- towers


def toy_tower(tokenizer, weight=1.0):
    """Eight dimensions; every token's hidden state is (1, its id)."""

    def backbone(input_ids, attention_mask):
        return torch.stack([torch.ones_like(input_ids), input_ids], dim=2).float()

    matrix = torch.zeros(len(tokenizer), 2)
    matrix[:, 0] = weight
    composition = Composition(backbone, Head(torch.nn.Identity(), matrix), log1p_relu, pool_max, Sparsifier(3))
    return TextTower(composition, TextReader(tokenizer, 8), make_columns_without(tokenizer, []))


@pytest.fixture(scope="module")
def tokenizer(golden):
    return load_tokenizer(golden / "common/tokenizer_bert_tiny")


def test_towers(tokenizer):
    """Of equal weights the lowest dimensions are kept; others must be finite, and as many as terms."""
    tower = toy_tower(tokenizer)
    assert tower.weights(["a dog", "a"]).indices.tolist() == [0, 1, 2] * 2
    with pytest.raises(LexvlError, match="not finite.*a dog"):
        toy_tower(tokenizer, weight=np.nan).weights(["a dog"])
    with pytest.raises(CheckpointError, match="2000 dimensions, the vocabulary 1999"):
        TextTower(tower.composition, tower.reader, make_columns_from(tokenizer, 1))


def test_terms_beside_those_of_unit_length(tokenizer):
    """Weights 3, 4 and 12: the first two get length 1, and the third is divided by the same 5."""
    tower, hidden = toy_tower(tokenizer), torch.tensor([[[3.0, 4.0, 12.0]]])
    head = Head(torch.nn.Identity(), torch.eye(3))
    parts = (lambda states: states, head, torch.relu, pool_max, keep_positive())
    tower.composition = Composition(*parts, normalise=True, unit_terms=2)
    torch.testing.assert_close(tower.pool_batch((hidden,), None), torch.tensor([[0.6, 0.8, 2.4]]))
    tower.composition = replace(tower.composition, unit_terms=None)
    torch.testing.assert_close(tower.pool_batch((hidden,), None), hidden[:, 0] / 13)


@pytest.mark.parametrize("adds", [False, True])
def test_a_repeated_token_counts_once_or_adds_up(tokenizer, adds):
    """Weights 2 of "a", 3 of "dog", and less than 0, which is none, of others; special tokens have no dimension."""
    a, dog, cls, sep = tokenizer.convert_tokens_to_ids(["a", "dog", "[CLS]", "[SEP]"])
    weight = np.full(len(tokenizer), -1.0)
    weight[[a, dog, cls]] = 2, 3, 5
    tower = BagTower(TextReader(tokenizer, 8), make_columns_without(tokenizer, [cls, sep]), weight, adds=adds)
    found = tower.weights(["a dog a", "", "dog"])
    expected = np.zeros((3, len(tokenizer)))
    expected[0, a], expected[:, dog] = (4 if adds else 2), (3, 0, 3)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert not tower.binary
    ones = BagTower(tower.reader, tower.columns, adds=adds)
    assert ones.weights(["a dog a"])[0, [a, dog]].toarray().tolist() == [[2 if adds else 1, 1]]
    assert ones.binary is not adds


@quickly
@given(lengths=st.lists(st.integers(0, 300), max_size=80), batch_size=st.integers(1, 40), accelerator=st.booleans())
def test_batches_by_length(lengths, batch_size, accelerator):
    """Every text once, the longest first; a batch on a CPU that could have ended earlier has little padding."""
    batches = [rows.tolist() for rows in sort_by_length(lengths, batch_size, not accelerator)]
    order = [position for rows in batches for position in rows]
    assert order == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    assert all(1 <= len(rows) <= batch_size for rows in batches)
    if accelerator:
        assert [len(rows) for rows in batches[:-1]] == [batch_size] * (len(batches) - 1)
        return
    for rows in batches:
        longest, shortest = lengths[rows[0]], lengths[rows[-1]]
        assert shortest >= (1 - MOST_PADDING) * longest or (len(rows) - 1) * longest < ENOUGH_TOKENS


# ---- readers and columns


def test_first_word_id_only_in_the_layout_of_bert_uncased(golden, tokenizer, tmp_path):
    assert find_first_word_id(tokenizer) == 999
    other = tmp_path / "other"
    shutil.copytree(golden / "common/tokenizer_bert_tiny", other)
    about = json.loads((other / "tokenizer.json").read_text())
    words = about["model"]["vocab"]
    words["[unused993]"], words["dog"] = words["dog"], words["[unused993]"]
    (other / "tokenizer.json").write_text(json.dumps(about))
    (other / "vocab.txt").unlink()
    assert find_first_word_id(load_tokenizer(other)) == 0
