"""How queries are searched: `Search` and `EncoderChanges`, which the command line expands, and what applies them.

An index of several fields has several encoders; a search uses them as one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from hashlib import sha256
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lexvl_anserini.data.lines import log_once, read_entries
from lexvl_anserini.encoders.cards import remark_on
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import FIELDS, NAMED, EncoderRef, FieldEntry, Manifest
from lexvl_anserini.ground.progress import make_batches
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery, heaviest
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.clauses import All, AnyOf, Clause, Ids, Text, TreeQuery, Unscored, bound, build_clause, walk
from lexvl_anserini.queries.query_vectors import (
    MOST_RM3_DOCUMENTS,
    RM3,
    Feedback,
    FieldsTower,
    QueryField,
    VectorOf,
    integers,
    rocchio,
)
from lexvl_anserini.runs.order import RankedList, group_by_documents, read_best

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
    """The least score of a hit; if it is relative, a share of the query's bound in percent, which needs impacts.

    A score by itself says little: a query of more or heavier terms has higher ones. A share of the query's bound, the
    greatest score that a document could have, can be compared between queries.
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
    terms = TermFile(map(str.strip, read_entries(Path(path), "term").values()))
    terms.source = f"{Path(path).name}@{compute_sha256(Path(path))[:NAMED]}"
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
        threshold: keep weights of at least this share (0 to 1) of the query's largest.
        first_terms: search in two phases: that many heaviest terms find documents, then the whole query ranks them.
        feedback: expand the query by that many of its best documents, see `Feedback`.
        feedback_shards: the index's shards, for feedback where the index holds no term vectors.
        rm3: as feedback, for an index of texts, where it is the only refinement, see `RM3`.
        approximate: find this share of the hits at least, as the index measured it, with exact scores; None finds all.
        min_score: the least score of a hit; the cut at a number of hits comes first.
        passages: of an index of passages `doc#n`: hits are documents, scored by the best passage (`max`), by the sum of
            the best N (`sum:N`) or of all (`sum`).
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
            if not 0 < self.approximate < 1:
                expected = "expected a recall above 0 and below 1, such as 0.99"
                raise UsageError(f"approximate {self.approximate}: {expected}")
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
    """The least score of a hit of a query tree; a share is a whole number, as the scores are: 1.1% of 3000 is 33."""
    if not cut.relative:
        return cut.value
    share = Fraction(str(cut).removesuffix("%")) / 100
    return float(ceil(share * Fraction(compute_greatest_score(clause, engine))))


def compute_greatest_score(clause: Clause, engine: ImpactEngine) -> float:
    """The greatest score that a document could have: sum over terms of weight x greatest impact in the index.

    It is the same in every exact engine. A document has it if it has the greatest impact of each term.
    """
    if any(isinstance(node, Text) for node in walk(clause)):
        raise UsageError("a share of the query's bound: BM25 of texts has no bound; give a score instead of a share")
    scaled = bound(clause, lambda vector: engine.bound({term: SCALE * weight for term, weight in vector.items()}))
    return scaled / SCALE


PIECE = 256  # queries held at once

Vector = Mapping[str, int]


class RefinedQuery(NamedTuple):
    """A query after lists of terms and cuts, or a tree as it was; and the topic's text, if the search needs it."""

    query: ImpactQuery | TreeQuery
    text: str | None = None

    @property
    def vector(self) -> Vector:
        """The terms and weights of an encoded query."""
        assert isinstance(self.query, ImpactQuery)
        return self.query.vector

    def with_vector(self, vector: Vector) -> RefinedQuery:
        """Replaces the vector."""
        return self._replace(query=ImpactQuery(self.query.query_id, vector))


def filter_terms(vector: Vector, search: Search) -> dict[str, int]:
    """Keeps the terms that the lists allow."""
    only, without = search.only_terms, search.without_terms or ()
    return {t: w for t, w in vector.items() if t not in without and (only is None or t in only)}


def cut_vector(vector: Vector, search: Search) -> dict[str, int]:
    """Applies the lists of terms, the threshold and the number of terms."""
    vector = filter_terms(vector, search)
    least = search.threshold * max(vector.values(), default=0)
    return heaviest({t: w for t, w in vector.items() if w >= least}, search.query_terms)


def cut_queries(queries: Iterable[Any], search: Search) -> Iterator[Any]:
    """Applies lists and cuts to encoded queries; query trees are unchanged."""
    for query in queries:
        yield query._replace(vector=cut_vector(query.vector, search)) if isinstance(query, ImpactQuery) else query


def build_tree(refined: RefinedQuery, search: Search) -> Clause:
    """Joins a query with its text and the filter, as one tree."""
    clause = build_clause(refined.query)
    if search.text_weight:
        if refined.text is None:
            raise UsageError(
                f"topic {refined.query.query_id!r}: no text for BM25 (an image, or encoded already); give topics with "
                "texts"
            )
        clause = AnyOf((clause, Text(refined.text, search.text_weight)))
    return clause if search.where is None else All((clause, Unscored(search.where)))


def search_refined(
    engine: ImpactEngine, queries: Iterable[RefinedQuery], search: Search, hits: int, vector_of: VectorOf | None = None
) -> Iterator[RankedList]:
    """Yields one ranked list per query, whose lists of terms and cuts are already applied.

    Feedback reads documents by `vector_of`; with `remove_query` it ignores a document whose id is the query's.
    """
    passages, feedback = read_best(search.passages), search.rocchio

    def trees(piece: Sequence[RefinedQuery], hits: int, required: Clause | None = None) -> Iterator[RankedList]:
        for refined in piece:
            tree = build_tree(refined, search)
            yield engine.search_tree(refined.query.query_id, All((tree, required)) if required else tree, hits)

    def lists(piece: Sequence[RefinedQuery], hits: int, best: int = 0) -> Iterator[RankedList]:
        queries = [refined.query for refined in piece if isinstance(refined.query, ImpactQuery)]
        if len(queries) < len(piece) or search.text_weight:
            return group_by_documents(trees, piece, hits, best) if best else trees(piece, hits)
        if best:
            return engine.search_passages(queries, best, hits, search.threads, search.where)
        if search.approximate is not None:
            return engine.search_approximately(queries, hits, search.approximate, search.threads)
        if search.where is None:
            return engine.search(queries, hits, search.threads)
        return engine.search_where(queries, search.where, hits, search.threads)

    def in_phases(piece: Sequence[RefinedQuery], terms: int) -> Iterator[RankedList]:
        reduced = [refined.with_vector(heaviest(refined.vector, terms)) for refined in piece]
        for refined, first in zip(piece, lists(reduced, max(search.candidates, hits)), strict=True):
            among = partial(trees, required=Ids(tuple(first.doc_ids)))
            yield from group_by_documents(among, [refined], hits, passages) if passages else among([refined], hits)

    def expand(refined: RefinedQuery, first: RankedList, feedback: Feedback) -> RefinedQuery:
        assert vector_of is not None
        taken = first.without(refined.query.query_id) if search.remove_query else first
        documents = [vector_of(doc_id) for doc_id in taken.doc_ids[: feedback.documents]]
        moved = integers(rocchio(refined.vector, documents, feedback), engine.bound)
        return refined.with_vector(filter_terms(moved, search))

    for piece in make_batches(queries, PIECE):
        tree = next((refined.query for refined in piece if not isinstance(refined.query, ImpactQuery)), None)
        if tree and (feedback or search.first_terms or search.approximate is not None):
            lacking = "feedback, phases and approximate search need an encoded query"
            raise UsageError(f"topic {tree.query_id!r} is a query tree; {lacking}")
        if feedback:
            firsts = lists(piece, feedback.documents + search.remove_query)
            piece = [expand(refined, first, feedback) for refined, first in zip(piece, firsts, strict=True)]
        ranked_lists = in_phases(piece, search.first_terms) if search.first_terms else lists(piece, hits, passages)
        if search.min_score is None:
            yield from ranked_lists
            continue
        for refined, listed in zip(piece, ranked_lists, strict=True):
            yield listed.down_to(compute_least_score(search.min_score, build_tree(refined, search), engine))


MovedCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Where the encoder's checkpoint is now, if it was moved.")
]
MovedTokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Where its tokenizer is now, if it was moved.")]


@dataclass(frozen=True)
class EncoderChanges:
    """How a search changes the encoder of an index; options are of the query side, for example `query_topk`."""

    checkpoint: MovedCheckpoint = None
    tokenizer: MovedTokenizer = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, manifest: Manifest) -> Encoder:
        """Loads the encoder of an index, with the changes."""
        if manifest.fields:
            if self.checkpoint or self.tokenizer:
                example = f"--set {manifest.fields[-1]}.checkpoint=FOLDER"
                raise UsageError(f"an index of several fields has several encoders; name the field: {example}")
            return load_fields(manifest.encoder, self.options, self.device)
        if remark := remark_on(manifest.encoder.checkpoint, manifest.corpus.name):
            log_once(remark, logging.WARNING)
        return load_encoder_from(
            manifest.encoder, self.checkpoint, self.tokenizer, self.device, self.options, manifest.vocabulary_digest
        )

    def describe(self, manifest: Manifest, note: Mapping[str, Any]) -> EncoderRef:
        """Returns the encoder's entry in a run's manifest: that of the index, with the changes and a search's note."""
        moved = {key: value for key, value in (("checkpoint", self.checkpoint), ("tokenizer", self.tokenizer)) if value}
        options = {**manifest.encoder.options, **self.options, **note}
        return EncoderRef({**manifest.encoder, **moved, "options": options})


def load_fields(ref: EncoderRef, changes: Mapping[str, Any], device: str = "auto") -> Encoder:
    """Loads the encoders of an index of several fields as one that encodes its queries.

    Changes are options by field: `text.weight`, `image.checkpoint` and `image.tokenizer` for places of the same files,
    `image.<option>` of the query side of its encoder; and the runtime of all.
    """
    entries, options = ref.fields, {**ref.options, **changes}
    by_field = split_field_options([entry.name for entry in entries], options)
    fields = tuple(load_field(entry, by_field[entry.name], device) for entry in entries)
    tower = FieldsTower(fields)
    if not any(field.weight for field in fields):
        raise UsageError(f"the fields {', '.join(by_field)} have weight 0 each; give one of them more")
    return Encoder(FIELDS, "impact", tower, tower, options=options)


def change_weights(model: Encoder, weights: Mapping[str, Any]) -> Encoder:
    """Gives the fields of an index's encoder other weights, `{"text.weight": 2}`."""
    assert isinstance(model.query, FieldsTower)
    fields = tuple(
        replace(field, weight=read_weight(field.name, weights.get(f"{field.name}.weight", field.weight)))
        for field in model.query.fields
    )
    tower = FieldsTower(fields)
    return replace(model, query=tower, document=tower, options={**model.options, **weights})


def load_field(entry: FieldEntry, options: dict[str, Any], device: str) -> QueryField:
    """Loads the query side of a field; a field of weight 0 loads no encoder."""
    weight = read_weight(entry.name, options.pop("weight"))
    if not weight:
        return QueryField(entry.name, 0)
    if entry.kind == "text":
        options.pop("runtime", None)
        if options:
            raise UsageError(
                f"option {next(iter(options))} of field {entry.name!r}: the impacts of BM25 have its options; encode "
                "and join again with other ones"
            )
        analyse = load_word_analysis(BM25Settings.of(entry.encoder.options))
        return QueryField(entry.name, weight, quantiser=Quantiser.from_json(entry["quantiser"]), analyse=analyse)
    places = (options.pop("checkpoint", None), options.pop("tokenizer", None))
    model = load_encoder_from(entry.encoder, *places, device, options, entry.vocabulary_digest)
    quantiser = Quantiser.from_json(entry["quantiser"]) if entry.get("quantiser") else model.fit_quantiser(Quantiser())
    return QueryField(entry.name, weight, model.query, quantiser)


def read_weight(name: str, value: Any) -> int:
    """The weight of a field, which the user may give as a text."""
    if not str(value).isdecimal() or len(str(value)) > 7:
        raise UsageError(f"weight {value!r:.40} of field {name!r}: expected a whole number from 0 to 9,999,999")
    return int(value)


def split_field_options(names: Iterable[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"text.weight": 2, "image.topk": 64}` by field; an option without a field, such as the runtime, is of all."""
    by_field: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if dot and name not in by_field or not dot and key != "runtime":
            examples = ", ".join(f"{name}.weight" for name in by_field)
            raise UsageError(f"option {key!r}: an index of several fields has options of a field, such as {examples}")
        for each in [name] if dot else by_field:
            by_field[each][option or key] = value
    return by_field
