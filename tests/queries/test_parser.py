"""Expressions as query trees; a fold visits a tree from its leaves upwards, and knows which clauses must match."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import (
    MAX_DEPTH,
    All,
    AnyOf,
    Boost,
    Clause,
    Equals,
    Ids,
    Not,
    Range,
    Term,
    Text,
    Unscored,
    fold,
)
from lexvl_anserini.queries.parser import parse

A, B, C, D = map(Term, "abcd")


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        ("a", A),
        ("a b", AnyOf((A, B))),
        ("+a b", All((A,), (B,))),
        ("+a -b c d", All((A, Not(B)), (C, D))),
        ("a -b", All((A, Not(B)))),
        ("a b -c", All((AnyOf((A, B)), Not(C)))),
        ("a NOT b", All((A, Not(B)))),
        ("-a", Not(A)),
        ("NOT NOT a", Not(Not(A))),
        # A sign in brackets is about the group, which itself is optional, required or forbidden.
        ("+a (-b)", All((A,), (Not(B),))),
        ("+a (-b)^1", All((A,), (Boost(Not(B), 1),))),
        ("+a (NOT b)", All((A,), (Not(B),))),
        ("+a ((-b) c)", All((A,), (AnyOf((Not(B), C)),))),
        ("a (-b)", AnyOf((A, Not(B)))),
        ("+a +(-b)", All((A, Not(B)))),
        ("+a -(-b)", All((A, Not(Not(B))))),
        ("a NOT (b)", All((A, Not(B)))),
        ("a NOT NOT b", All((A, Not(Not(B))))),
        ("(a^3)^2", Term("a", 6)),
        ('(text:"a b"^3)^2', Text("a b", 6)),
        ("a AND b OR c", AnyOf((All((A, B)), C))),
        ("a AND (b OR c)", All((A, AnyOf((B, C))))),
        ("a OR NOT b", AnyOf((A, Not(B)))),
        ("a b AND c", AnyOf((A, All((B, C))))),
        ("-(a b)", Not(AnyOf((A, B)))),
        ("a^3 (b c)^2 d^0.5", AnyOf((Term("a", 3), Boost(AnyOf((B, C)), 2), Boost(D, 0.5)))),
        ("  ( a )  ", A),
        ("##ing ^ a^b a- C++ 日本 😀", AnyOf(tuple(map(Term, ["##ing", "^", "a^b", "a-", "C++", "日本", "😀"])))),
        ('"-" "AND" "a \\" \\\\ b" "("^2', AnyOf((Term("-"), Term("AND"), Term('a " \\ b'), Term("(", 2)))),
        ("ANDROID NOTE and", AnyOf((Term("ANDROID"), Term("NOTE"), Term("and")))),
        ("a:b meta:x metal.x:y", AnyOf((Term("a:b"), Term("meta:x"), Term("metal.x:y")))),
        ("meta.source:web", Equals("meta.source", "web")),
        ('meta.source:"new york" id:d/1', AnyOf((Equals("meta.source", "new york"), Ids(("d/1",))))),
        ("meta.year:[2010 TO 2020]", Range("meta.year", "2010", "2020")),
        ("meta.year:{-1.5 TO *}", Range("meta.year", "-1.5", None, False, False)),
        ("+meta.day:[* TO 2020-01-31}", Range("meta.day", None, "2020-01-31", True, False)),
        ('meta.name:["a b" TO "c ]"]', Range("meta.name", "a b", "c ]")),
        ('text:dog text:"a dog"^2', AnyOf((Text("dog"), Text("a dog", 2)))),
    ],
)
def test_expressions(expression: str, tree: Clause) -> None:
    assert parse(expression) == tree


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "at its end: expected a term"),
        ("  ", "at its end: expected a term"),
        ("(a", "at its end: a bracket is not closed"),
        ("a)", r"at '\)': no bracket is open here"),
        ("()", r"at '\)': expected a term"),
        ("a AND", "at its end: expected a term"),
        ("OR a", "at 'OR a': expected a term"),
        ('a "b', "at '\"b': expected a term, .* or a closed quote"),
        ("text:[a TO b]", "only metadata fields have ranges"),
        ("^2", r"at '\^2': expected a term"),
        ("(" * 300 + "a" + ")" * 300, r"'\(+\.\.\.', at '\(+': brackets and NOTs nested more than 50 deep"),
        ("NOT " * 300 + "a", "brackets and NOTs nested more than 50 deep"),
        ("z^99999999999999999999", "weight 100000000000000000000 of term 'z': expected an integer from 1 to"),
        ("z^" + "9" * 5000, "weight inf of a boost: expected a number from 0 to 16,777,215"),
        ("a \ud800b", r"'\\ud800b': half a character \(a lone surrogate\), expected a text in UTF-8"),
        ("id:\ud800", "half a character"),
        ('text:"a \udfff"', "half a character"),
        ("meta.x:[a TO \ud800]", "half a character"),
        ("(a b)^16777216", "weight 16777216.0 of a boost: expected a number from 0 to 16,777,215"),
        ("((a b)^4096)^4096", "factors that multiply to 16,777,216: expected at most 16,777,215"),
    ],
)
def test_malformed_expressions(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(expression)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_terms_of_fields() -> None:
    boat = Term("text:boat")
    assert parse('text:boat image:boat "text:boat"', ("text", "image")) == AnyOf((boat, Term("image:boat"), boat))
    assert parse("+text:boat^3 -id:d1", ("text",)) == All((Term("text:boat", 3), Not(Ids(("d1",)))))
    # Without a field `text`, BM25 of the text.
    assert parse("text:boat image:boat", ("image",)) == AnyOf((Text("boat"), Term("image:boat")))


def test_the_deepest_expression() -> None:
    assert parse("(" * 50 + "a" + ")" * 50) == A
    with pytest.raises(UsageError, match="a query tree of clauses nested more than 100 deep"):
        parse("(a OR (b c AND " * 24 + "a" + ")^1)^1" * 24)


@given(st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=5))
def test_any_term_can_be_quoted(words: list[str]) -> None:
    quoted = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words]
    assert parse(" ".join(quoted)) == AnyOf(tuple(map(Term, words)))


@given(st.text(alphabet='ab()+-^2" ANDORT:[]{}*\\meta.x', max_size=25))
def test_any_text_is_a_tree_or_a_usage_error(expression: str) -> None:
    with suppress(UsageError):
        assert isinstance(parse(expression), Clause)


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


def test_a_fold_of_the_deepest_tree() -> None:
    tree: Clause = Term("a")
    for _ in range(MAX_DEPTH - 1):
        tree = Not(tree)
    assert shown(tree) == "not " * (MAX_DEPTH - 1) + "a"
