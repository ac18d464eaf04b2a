"""A fold visits a tree from its leaves upwards, and knows which clauses must match."""

from __future__ import annotations

from lexvl_anserini.queries.clauses import MAX_DEPTH, All, AnyOf, Boost, Clause, Ids, Not, Term, Unscored, fold


def shown(clause: Clause) -> str:
    return fold(
        clause,
        leaf=lambda node: node.term if isinstance(node, Term) else type(node).__name__,
        all_of=lambda required, optional: f"all({' '.join(required)}; {' '.join(optional)})",
        any_of=lambda clauses: f"any({' '.join(clauses)})",
        negated=lambda node, below: f"not {below}",
        scaled=lambda node, below: f"{node.weight if isinstance(node, Boost) else 0:g} {below}",
    )


def test_each_kind_of_clause() -> None:
    a, b = Term("a"), Term("b")
    tree = All((a, Not(b), Unscored(Ids(("1",)))), (AnyOf((a, Boost(b, 2.5))), AnyOf(())))
    assert shown(tree) == "all(a not b 0 Ids; any(a 2.5 b) any())"
    assert shown(All(())) == "all(; )"


def test_the_deepest_tree() -> None:
    tree: Clause = Term("a")
    for _ in range(MAX_DEPTH - 1):
        tree = Not(tree)
    assert shown(tree) == "not " * (MAX_DEPTH - 1) + "a"
