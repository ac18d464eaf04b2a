r"""Query trees as text: `+dog -cat (sea OR "##side")^3 meta.year:[2010 TO 2020]`.

    dog  "-"  dog^3          a term of the vocabulary, quoted if it has white space, quotes or signs; its weight
    +a  -a  NOT a            required, forbidden
    a b                      side by side: optional; if nothing is required, one must match
    a AND b   a OR b         bind tighter than side by side, AND tighter than OR
    ( ... )^2                a group, and a factor for its score
    (-a)                     the documents without a, score 0: signs in brackets are about the group, so that the group
                             itself is optional in `b (-a)` and required in `b +(-a)`
    meta.key:value           a metadata field equals; values with white space are quoted
    meta.key:[a TO b]        between; {a TO b} excludes the ends, * leaves a side open
    meta.key:2019..2021      between two numbers or dates; 2019.. and ..2021 leave a side open
    text:"two words"         BM25 on the ordinary text field; in an index with a field `text`, a term of it
    id:doc17                 the document of that id

In quotes, \" is a quote and \\ a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import mark_field
from lexvl_anserini.queries.clauses import All, AnyOf, Boost, Clause, Equals, Ids, Not, Range, Term, Text, check_tree

QUOTED = r'"(?:[^"\\]|\\.)*"'
# A word ends at white space and brackets; a ^ and a number at its end are its weight.
WORD = r"(?:(?!\^\d+(?:\.\d+)?(?=[\s)]|$))[^\s()\"])+"
TOKEN = re.compile(
    rf"""
    (?P<open>\() | (?P<close>\)) | \^(?P<boost>\d+(?:\.\d+)?)(?=[\s)]|$) | (?P<sign>[+-])(?=\S)
    | (?P<operator>(?:AND|OR|NOT)(?=[\s()]|$))
    | (?P<field>meta\.[^\s:()"]+|text|id):
      (?: (?P<left>[\[{{])\s*(?P<low>{QUOTED}|[^\s"]+)\s+TO\s+(?P<high>{QUOTED}|[^\s"\]}}]+)\s*(?P<right>[\]}}])
        | (?P<value>{QUOTED}|{WORD}) )
    | (?P<term>{QUOTED}|{WORD})
    """,
    re.VERBOSE | re.DOTALL,
)

# `2019..2021`, with an end at least; ends are numbers or dates.
SPAN = re.compile(r"(?=.*\d)(?P<low>-?\d+(?:[.-]\d+)*)?\.\.(?P<high>-?\d+(?:[.-]\d+)*)?")

MAX_NESTING = 50  # brackets and NOTs within each other: each takes the parser some calls of functions
SHOWN_CHARACTERS = 120  # the length of an expression in errors


class Token(NamedTuple):
    """A piece of the expression: its kind, its match, and where it starts."""

    kind: str
    match: re.Match[str]
    start: int


def parse(expression: str, fields: Collection[str] = ()) -> Clause:
    """The tree of an expression, for an index of these fields, whose terms are `field:term`."""
    parser = _Parser(expression, fields)
    clause = parser.parse_side_by_side()
    if parser.place < len(parser.tokens):
        raise parser.describe_malformed("no bracket is open here")
    check_tree(clause)
    return clause


def read_tokens(expression: str) -> list[Token]:
    """The expression in pieces."""
    tokens, start = [], 0
    while start < len(expression):
        if expression[start].isspace():
            start += 1
            continue
        match = TOKEN.match(expression, start)
        if match is None:
            raise _describe_malformed(expression, start, "expected a term, +, -, a bracket or a closed quote")
        kind = next(k for k in ("open", "close", "boost", "sign", "operator", "field", "term") if match[k] is not None)
        tokens.append(Token(kind, match, start))
        start = match.end()
    return tokens


def remove_quotes(text: str) -> str:
    """`"a \\" b"` -> `a " b`; a bare word is itself."""
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text.startswith('"') else text


class _Parser:
    """Recursive descent; each method reads one level of the grammar."""

    def __init__(self, expression: str, fields: Collection[str]):
        self.expression, self.tokens, self.place = expression, read_tokens(expression), 0
        self.fields = fields
        self.nesting = 0

    def parse_side_by_side(self) -> Clause:
        required, forbidden, optional = [], [], []
        while (kind := self.get_kind()) is not None and kind != "close":
            sign = self.take().match["sign"] if kind == "sign" else ""
            # A NOT of this list forbids; one inside brackets has made a clause of its own.
            negated = self.find_ahead("NOT")
            clause = self.parse_either()
            if sign == "-":
                forbidden.append(Not(clause))
            elif sign == "+":
                required.append(clause)
            elif negated and isinstance(clause, Not):
                forbidden.append(clause)
            else:
                optional.append(clause)
        if not (required or forbidden or optional):
            raise self.describe_malformed("expected a term, a field or a bracket")
        if not required and optional:
            required, optional = [optional[0] if len(optional) == 1 else AnyOf(tuple(optional))], []
        clauses = (*required, *forbidden)
        return clauses[0] if len(clauses) == 1 and not optional else All(clauses, tuple(optional))

    def parse_either(self) -> Clause:
        clauses = [self.parse_both()]
        while self.take_operator("OR"):
            clauses.append(self.parse_both())
        return clauses[0] if len(clauses) == 1 else AnyOf(tuple(clauses))

    def parse_both(self) -> Clause:
        clauses = [self.parse_negated()]
        while self.take_operator("AND"):
            clauses.append(self.parse_negated())
        return clauses[0] if len(clauses) == 1 else All(tuple(clauses))

    def parse_negated(self) -> Clause:
        return Not(self.parse_nested(self.parse_negated)) if self.take_operator("NOT") else self.parse_boosted()

    def parse_boosted(self) -> Clause:
        clause = self.parse_primary()
        if self.get_kind() != "boost":
            return clause
        weight = float(self.take().match["boost"])
        if isinstance(clause, Term) and weight >= 1 and weight.is_integer():
            return Term(clause.term, clause.weight * int(weight))
        return Text(clause.string, clause.weight * weight) if isinstance(clause, Text) else Boost(clause, weight)

    def parse_primary(self) -> Clause:
        kind = self.get_kind()
        if kind == "term":
            return Term(remove_quotes(self.take().match["term"]))
        if kind == "field":
            return _field(self.take().match, self.fields)
        if kind != "open":
            raise self.describe_malformed("expected a term, a field or a bracket")
        self.take()
        clause = self.parse_nested(self.parse_side_by_side)
        if self.get_kind() != "close":
            raise self.describe_malformed("a bracket is not closed")
        self.take()
        return clause

    def parse_nested(self, read: Callable[[], Clause]) -> Clause:
        """What `read` reads, one level deeper."""
        if self.nesting == MAX_NESTING:
            raise self.describe_malformed(f"brackets and NOTs nested more than {MAX_NESTING} deep")
        self.nesting += 1
        clause = read()
        self.nesting -= 1
        return clause

    def get_kind(self) -> str | None:
        return self.tokens[self.place].kind if self.place < len(self.tokens) else None

    def take(self) -> Token:
        self.place += 1
        return self.tokens[self.place - 1]

    def find_ahead(self, word: str) -> bool:
        """True if the operator is the next token."""
        return self.get_kind() == "operator" and self.tokens[self.place].match["operator"] == word

    def take_operator(self, word: str) -> bool:
        """Consumes the operator if it is the next token."""
        here = self.find_ahead(word)
        self.place += here
        return here

    def describe_malformed(self, problem: str) -> UsageError:
        start = self.tokens[self.place].start if self.place < len(self.tokens) else len(self.expression)
        return _describe_malformed(self.expression, start, problem)


def _field(match: re.Match[str], fields: Collection[str]) -> Clause:
    """The clause of `field:value` or `field:[low TO high]`."""
    field = match["field"]
    if match["left"] is None:
        value = remove_quotes(match["value"])
        if field in fields:
            return Term(mark_field(field, value))
        if field.startswith("meta.") and (span := SPAN.fullmatch(match["value"])):
            return Range(field, span["low"], span["high"])
        return Text(value) if field == "text" else Ids((value,)) if field == "id" else Equals(field, value)
    if not field.startswith("meta."):
        raise UsageError(f"{match[0]!r}: only metadata fields have ranges, meta.key:[low TO high]")
    low, high = (None if end == "*" else remove_quotes(end) for end in (match["low"], match["high"]))
    return Range(field, low, high, match["left"] == "[", match["right"] == "]")


def _describe_malformed(expression: str, start: int, problem: str) -> UsageError:
    rest = repr(expression[start : start + 20]) if start < len(expression) else "its end"
    shown = expression if len(expression) <= SHOWN_CHARACTERS else expression[: SHOWN_CHARACTERS - 3] + "..."
    return UsageError(f"expression {shown!r}, at {rest}: {problem}")
