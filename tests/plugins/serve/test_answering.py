from __future__ import annotations

import pytest
from brute_force import Doc, Oracle
from hypothesis import assume, given
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import All, AnyOf, Boost, Equals, Impacts, Not, Term, Unscored
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.searching.shared_terms import find_shared_terms
from lexvl_plugins.serve.queries import change_weights, reweigh

IMPACTS = {"boat": 7, "red": 2, "sea": 5}


@pytest.mark.parametrize(
    "expression,expected",
    [
        ("boat", [("boat", 7)]),
        ("+boat -night red^3", [("boat", 7), ("red", 6)]),
        ("+boat (night AND red)", [("boat", 7)]),  # the optional bracket does not match
        ("boat OR (sea NOT red)", [("boat", 7)]),
        ("(boat red)^2 sea", [("boat", 14), ("sea", 5), ("red", 4)]),
        ("boat boat^2", [("boat", 21)]),
        ("boat meta.year:2020", [("boat", 7)]),
    ],
)
def test_products_of_expressions(expression: str, expected: list[tuple[str, float]]) -> None:
    assert [(one.term, one.product) for one in find_shared_terms(parse(expression), IMPACTS)] == expected


def test_equal_products_are_in_the_order_of_terms_and_an_absent_term_has_none() -> None:
    found = find_shared_terms(Impacts({"sea": 2, "boat": 3, "red": 5, "moon": 9}), {**IMPACTS, "boat": 4, "red": 2})
    assert [(one.term, one.weight, one.impact, one.product) for one in found] == [
        ("boat", 3, 4, 12),
        ("red", 5, 2, 10),
        ("sea", 2, 5, 10),
    ]


TERMS = st.sampled_from(["a", "b", "c", "日本", "nowhere"])
LEAVES = st.builds(Impacts, st.dictionaries(TERMS, st.integers(1, 9), max_size=4)) | st.builds(
    Term, TERMS, st.integers(1, 9)
)


def above(below: st.SearchStrategy) -> st.SearchStrategy:
    some = st.lists(below, max_size=3).map(tuple)
    one = st.builds(Not, below) | st.builds(Unscored, below) | st.builds(Boost, below, st.integers(0, 3))
    return st.builds(All, some, some) | st.builds(AnyOf, some) | one


TREES = st.recursive(LEAVES, above, max_leaves=10)


@given(clause=TREES, impacts=st.dictionaries(TERMS, st.integers(1, 9)))
def test_products_sum_to_the_score_of_every_tree(clause, impacts) -> None:
    score = Oracle([document := Doc("d", impacts)]).score(clause, document)
    assume(score is not None)
    assert sum(one.product for one in find_shared_terms(clause, impacts)) == score


@given(clause=TREES, impacts=st.dictionaries(TERMS, st.integers(1, 9)), weight=st.integers(1, 9))
def test_a_tree_with_another_weight_has_that_products(clause, impacts, weight) -> None:
    other = reweigh(clause, {"a": weight})
    oracle = Oracle([document := Doc("d", impacts)])
    score = oracle.score(other, document)
    assume(score is not None and "a" in impacts)
    assert sum(one.product for one in find_shared_terms(other, impacts)) == score


def test_a_weight_of_zero_leaves_a_term_out_of_a_vector_and_keeps_its_condition_in_an_expression() -> None:
    assert change_weights({"boat": 3, "sea": 2}, {"boat": 0, "moon": 4}) == {"sea": 2, "moon": 4}
    assert reweigh(parse("+boat -night red^3"), {"boat": 0, "red": 5}) == All(
        (Unscored(Term("boat")), Not(Term("night"))), (Term("red", 5),)
    )
    assert reweigh(Impacts({"boat": 3}), {"boat": 9}) == Impacts({"boat": 9})
    assert reweigh(Equals("meta.year", 1), {"boat": 1}) == Equals("meta.year", 1)
    with pytest.raises(UsageError, match="below 0"):
        change_weights({}, {"boat": -1})
