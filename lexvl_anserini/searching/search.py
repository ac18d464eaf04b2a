"""`Search`: how queries are searched, in one record, which the command line expands; and the least score of a hit."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini.engines.approximation import check_recall
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import NAMED
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.clauses import Clause, Text, bound, walk
from lexvl_anserini.queries.query_vectors import MOST_RM3_DOCUMENTS, RM3, Feedback
from lexvl_anserini.runs.order import read_best

if TYPE_CHECKING:
    from lexvl_anserini.engines.engine import ImpactEngine

# An engine's bound is its tightest from 2^24 on. A power of two scales weights exactly.
SCALE = float(1 << 48)

# The names of settings in a run's manifest, among the options of the encoder.
NOTED_SETTINGS = (
    *("only_terms", "without_terms", "query_terms", "threshold", "two_phase", "text_weight"),
    *("feedback", "rm3", "approximate", "passages", "min_score"),
)
NOTED = frozenset(("where", "require", "forbid", *NOTED_SETTINGS))

# The settings that need the vectors of an impact index.
REFINING = (
    *("where", "only_terms", "without_terms", "query_terms", "threshold"),
    *("first_terms", "text_weight", "feedback", "approximate"),
)


@dataclass(frozen=True)
class Cut:
    """The least score of a hit.

    A score by itself says little: a query of more or heavier terms has higher ones. A share of the query's bound, the
    greatest score that a document could have, can be compared between queries.

    Attributes:
        value: a score; or a share of the query's bound, in percent.
        relative: whether it is a share, which needs an impact index.
    """

    value: float
    relative: bool = False

    def __post_init__(self) -> None:
        if not isfinite(self.value) or self.relative and not 0 <= self.value <= 100:
            raise UsageError(f"least score {self}: expected a score (300), or a share of the bound from 0% to 100%")

    def __str__(self) -> str:
        """The text that `parse_cut` reads."""
        return f"{self.value:.15g}{'%' * self.relative}"


def parse_cut(text: str) -> Cut:
    """Reads a least score, `300` or `20%`.

    >>> parse_cut("12.5%")
    Cut(value=12.5, relative=True)
    """
    number = text.strip()
    try:
        # Python reads 1_0 as 10.
        value = float("nan" if "_" in number else number.removesuffix("%"))
    except ValueError:
        value = float("nan")
    if value != value:
        raise UsageError(f"least score {text!r}: expected a score (300), or a share of the query's bound (20%)")
    return Cut(value, number.endswith("%"))


class TermFile(frozenset[str]):
    """The terms of a file; `source` is its name and digest, `terms.txt@0123456789ab`."""

    source = ""


def read_terms(path: str) -> TermFile:
    """Reads a list of terms, one a line."""
    try:
        raw = Path(path).read_bytes()
        lines = raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of terms ({error})") from error
    if not (terms := TermFile(filter(None, map(str.strip, lines)))):
        raise DataError(f"{path}: no term in it; expected one a line")
    terms.source = f"{Path(path).name}@{sha256(raw).hexdigest()[:NAMED]}"
    return terms


@dataclass(frozen=True)
class Search:
    """How queries are searched; the default changes nothing. All but the first three are options of `search`.

    The order: keep or drop listed terms, cut weights, expand the query by feedback (and apply the lists again), then
    search the vector: with BM25 of the topic's text, among the documents that match a tree, in two phases.

    Attributes:
        where: documents must match this tree, which does not change scores.
        remove_query: leave out a document whose id is the topic's (BEIR's rule), before the cut.
        batch_size: topics per forward pass.
        only_terms: terms that a query keeps; None keeps all.
        without_terms: terms that a query loses.
        query_terms: keep that many heaviest terms.
        threshold: keep weights of at least this share (0 to 1) of the query's largest.
        first_terms: search in two phases: that many heaviest terms find documents, then the whole query ranks them.
        candidates: the number of documents that the first phase finds.
        text_weight: times BM25 of the topic's text on the field `text`, added to the score.
        feedback: expand the query by that many of its best documents, see `Feedback`.
        feedback_shards: the index's shards, for feedback where the index holds no term vectors.
        rm3: as feedback, for an index of texts, where it is the only refinement, see `RM3`.
        approximate: find this share of the hits at least, as the index measured it, with exact scores; None finds all.
        min_score: the least score of a hit; the cut at a number of hits comes first.
        passages: of an index of passages `doc#n`: hits are documents, scored by the best passage (`max`), by the sum of
            the best N (`sum:N`) or of all (`sum`).
        threads: of the engine, where it can use more than one.
    """

    where: Clause | None = None
    remove_query: bool = False
    batch_size: int = 32
    only_terms: Annotated[
        frozenset[str] | None,
        typer.Option(parser=read_terms, metavar="FILE", help="File of terms; queries keep no others."),
    ] = None
    without_terms: Annotated[
        frozenset[str] | None, typer.Option(parser=read_terms, metavar="FILE", help="File of terms that queries lose.")
    ] = None
    query_terms: Annotated[int | None, typer.Option(min=1, help="Keep that many heaviest terms of a query.")] = None
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Keep query weights of at least this share of the largest.")
    ] = 0.0
    first_terms: Annotated[
        int | None, typer.Option(min=1, help="Two phases: that many heaviest terms find, the whole query ranks.")
    ] = None
    candidates: Annotated[int, typer.Option(min=1, help="Documents that the first of two phases finds.")] = 1000
    text_weight: Annotated[
        float, typer.Option(min=0, help="Add BM25 of the topic's text on the index's text field, times this.")
    ] = 0.0
    feedback: Annotated[
        int | None, typer.Option(min=1, help="Expand each query by that many of its best documents (Rocchio).")
    ] = None
    feedback_terms: Annotated[int, typer.Option(min=1, help="Terms that feedback adds.")] = Feedback.terms
    feedback_alpha: Annotated[float, typer.Option(min=0, help="Share of the query.")] = Feedback.alpha
    feedback_beta: Annotated[float, typer.Option(min=0, help="Share of its best documents.")] = Feedback.beta
    feedback_shards: Annotated[
        Path | None, typer.Option(help="The index's shards; default its term vectors, if it was built with them.")
    ] = None
    rm3: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_RM3_DOCUMENTS, help="BM25: expand each query by that many of its best documents (RM3)."
        ),
    ] = None
    rm3_terms: Annotated[int, typer.Option(min=1, help="Terms of RM3.")] = RM3.terms
    rm3_weight: Annotated[float, typer.Option(min=0, max=1, help="Share of the query in RM3.")] = RM3.weight
    approximate: Annotated[
        float | None,
        typer.Option(help="Find this share of the hits (0.99), as index --approximate measured it; exact scores."),
    ] = None
    min_score: Annotated[
        Cut | None,
        typer.Option(
            parser=parse_cut,
            metavar="SCORE",
            help="Least score of a hit: 300, or 20% of the greatest that a document could have.",
        ),
    ] = None
    passages: Annotated[
        str | None,
        typer.Option(help="Hits are documents of passages DOC#N: max (MaxP), sum:N (of the best N) or sum (of all)."),
    ] = None
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine, for batches of topics.")] = 1

    def __post_init__(self) -> None:
        check_count("threads", self.threads, most=MOST_THREADS)
        check_count("batch_size", self.batch_size)
        for name in ("query_terms", "first_terms", "candidates"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count)
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"threshold {self.threshold}: expected a share between 0 and 1 of the largest weight")
        if not 0 <= self.text_weight < SCORE_LIMIT:
            raise UsageError(f"text weight {self.text_weight}: expected a number from 0 to {SCORE_LIMIT - 1:,}")
        _ = self.rocchio, self.bm25_expansion
        best = read_best(self.passages)
        if self.min_score is not None and self.min_score.relative and best > 1:
            raise UsageError(f"least score {self.min_score}: a sum over passages has no bound; give a score, no share")
        if best and (self.feedback or self.rm3):
            raise UsageError("feedback reads the vectors of hits, and documents in passages have none; leave out one")
        if self.approximate is not None:
            check_recall(self.approximate)
            exact = ("where", "text_weight", "first_terms", "feedback", "passages")
            if others := [name.replace("_", " ") for name in exact if getattr(self, name)]:
                raise UsageError(
                    f"approximate search excludes {' and '.join(others)}, where no recall is measured; leave one out"
                )

    @property
    def rocchio(self) -> Feedback | None:
        """Feedback of impacts; None without."""
        if not self.feedback:
            return None
        return Feedback(self.feedback, self.feedback_terms, self.feedback_alpha, self.feedback_beta)

    @property
    def bm25_expansion(self) -> RM3 | None:
        """Feedback of BM25; None without."""
        return RM3(self.rm3, self.rm3_terms, self.rm3_weight) if self.rm3 else None

    @property
    def refines(self) -> bool:
        """Whether a setting needs the vectors of an impact index."""
        by_share = self.min_score is not None and self.min_score.relative
        return by_share or any(getattr(self, name) != getattr(Search, name) for name in REFINING)

    def note(self) -> dict[str, Any]:
        """The settings that decide lists, as a run's manifest names them; a list of terms by its size and digest."""
        changed = {
            "only_terms": self.only_terms and describe_terms(self.only_terms),
            "without_terms": self.without_terms and describe_terms(self.without_terms),
            "two_phase": self.first_terms and [self.first_terms, self.candidates],
            "feedback": self.rocchio and list(vars(self.rocchio).values()),
            "rm3": self.bm25_expansion and list(vars(self.bm25_expansion).values()),
            "min_score": self.min_score and str(self.min_score),
        }
        noted = {name: changed[name] if name in changed else getattr(self, name) for name in NOTED_SETTINGS}
        return {name: value for name, value in noted.items() if value}


def describe_terms(terms: frozenset[str]) -> str:
    """Returns what a run's manifest says of listed terms: their file, else their number and a digest."""
    if isinstance(terms, TermFile):
        return terms.source
    lines = "\n".join(sorted(terms))
    return f"{len(terms)}@{sha256(lines.encode()).hexdigest()[:NAMED]}"


def compute_least_score(cut: Cut, clause: Clause, engine: ImpactEngine) -> float:
    """The least score of a hit of a query tree."""
    return cut.value * compute_greatest_score(clause, engine) / 100 if cut.relative else cut.value


def compute_greatest_score(clause: Clause, engine: ImpactEngine) -> float:
    """The greatest score that a document could have: sum over terms of weight x greatest impact in the index.

    It is the same in every exact engine. A document has it if it has the greatest impact of each term.
    """
    if any(isinstance(node, Text) for node in walk(clause)):
        raise UsageError("a share of the query's bound: BM25 of texts has no bound; give a score instead of a share")
    scaled = bound(clause, lambda vector: engine.bound({term: SCALE * weight for term, weight in vector.items()}))
    return scaled / SCALE
