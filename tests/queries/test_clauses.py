"""A fold visits a tree from its leaves upwards, and knows which clauses must match."""

from __future__ import annotations

from lexvl_anserini.queries.clauses import MAX_DEPTH, All, AnyOf, Boost, Clause, Ids, Not, Term, Unscored, fold


def shown(clause: Clause) -> str:
    return fold(
        clause,
        on_leaf=lambda node: node.term if isinstance(node, Term) else type(node).__name__,
        on_all=lambda required, optional: f"all({' '.join(required)}; {' '.join(optional)})",
        on_any=lambda clauses: f"any({' '.join(clauses)})",
        on_not=lambda below: f"not {below}",
        on_factor=lambda factor, below: f"{factor:g} {below}",
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
