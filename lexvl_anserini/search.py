"""Index x topics -> run: topics are encoded as the index's manifest says, searched, and written as ranked lists."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.engines.approximation import measured_recall
from lexvl_anserini.engines.index_folder import BuiltIndex, index_manifest, read_report
from lexvl_anserini.engines.opening import index_path
from lexvl_anserini.ground.errors import LexvlError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import Manifest, RunManifest
from lexvl_anserini.queries.clauses import All, Clause, Not, Term
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.queries.query_source import TopicSource, build_typed_topic, find_topic_source, find_vocabulary_file
from lexvl_anserini.queries.query_vectors import MOST_RM3_DOCUMENTS, RM3, Feedback
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.runs.trec import DEFAULT_HITS, OUTPUT_FORMATS, ensure_run, is_finished
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.refine import Refinement, SearchSettings, TwoPhase, read_terms
from lexvl_anserini.searching.retrieval import IndexSearch, texts_of
from lexvl_anserini.searching.searcher import EncoderChanges

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.search")

DEFAULT_HITS_SHOWN = 10
# Characters of a document's text beside its id; json has the whole text.
SHOWN_CHARACTERS = 240


@dataclass(frozen=True)
class QueryOptions:
    """What to search, and where."""

    index: Annotated[str, typer.Option(help="Folder that index wrote, or URL of an index in a store.")]
    topics: Annotated[
        str | None,
        typer.Option(help="dataset/split, a topics file, or encoded queries Q.jsonl; default the corpus's own."),
    ] = None
    split: Annotated[
        str | None, typer.Option(help="Split of the topics' dataset; default the corpus's, else test.")
    ] = None
    query: Annotated[str | None, typer.Option(help="Search this text and print the hits.")] = None
    query_image: Annotated[
        str | None,
        typer.Option(help="Search this image and print the hits; for encoders whose query side reads images."),
    ] = None
    match: Annotated[
        str | None,
        typer.Option(help="Search this expression over terms, '+dog -cat sea^3', without an encoder; print the hits."),
    ] = None
    interactive: Annotated[
        bool,
        typer.Option("--interactive", help="Read texts from standard input, one a line, and print the hits of each."),
    ] = False

    def typed(self, output: str | None) -> tuple[str, str] | None:
        """The option and the value of a query that the user typed; None where topics are searched.

        Raises:
            UsageError: two of the options are given, the query is empty, or it has an output.
        """
        values = {"query": self.query, "query-image": self.query_image, "match": self.match, "topics": self.topics}
        values["interactive"] = "each line" if self.interactive else None
        (name, value), *others = [item for item in values.items() if item[1] is not None] or [("topics", None)]
        if others:
            raise UsageError(f"--{name} and --{others[0][0]} exclude each other; give one of them")
        if name == "topics" or value is None:
            return None
        if self.split is not None:
            raise UsageError(f"--split is of topics, --{name} is one query; leave out one of them")
        if output is not None or (name == "query" and not value.strip()):
            raise UsageError(f"--{name} prints the hits of one query; it cannot be empty, and --output needs --topics")
        return name, value

    def tree(self, fields: Collection[str]) -> Clause | None:
        """The query tree that the user typed, for an index of these fields; None for other queries."""
        return None if self.match is None else parse(self.match, fields)


@dataclass(frozen=True)
class RunOptions:
    """Where the run goes, and how long its lists are."""

    output: Annotated[str | None, typer.Option(help="Run to write; default runs/<corpus>.<encoder>.trec.")] = None
    output_format: Annotated[str, typer.Option(help="Format of the run: trec or msmarco.")] = "trec"
    hits: Annotated[int | None, typer.Option(min=1, help="Hits per topic; default 1000, of one query 10.")] = None

    def check(self) -> None:
        """Raises UsageError for an unknown format."""
        if self.output_format not in OUTPUT_FORMATS:
            raise UsageError(f"--output-format {self.output_format!r}: expected {' or '.join(OUTPUT_FORMATS)}")

    def path(self, manifest: Manifest) -> Path:
        """The run's file, for an index with this manifest."""
        suffix = "trec" if self.output_format == "trec" else "tsv"
        name = f"{cli.file_name(manifest.corpus.name)}.{manifest.encoder['name']}.{suffix}"
        return Path(self.output) if self.output else Path("runs") / name


@dataclass(frozen=True)
class TwoPhaseOptions:
    """A search in two phases."""

    first_terms: Annotated[
        int | None, typer.Option(min=1, help="Two phases: that many heaviest terms find, the whole query ranks.")
    ] = None
    candidates: Annotated[int, typer.Option(min=1, help="Documents that the first of two phases finds.")] = 1000

    def two_phase(self) -> TwoPhase | None:
        """The phases; None for one phase."""
        return TwoPhase(self.first_terms, self.candidates) if self.first_terms else None


@dataclass(frozen=True)
class FeedbackOptions:
    """Feedback from the best documents."""

    feedback: Annotated[
        int | None, typer.Option(min=1, help="Expand each query by that many of its best documents (Rocchio).")
    ] = None
    feedback_terms: Annotated[int, typer.Option(min=1, help="Terms that feedback adds.")] = Feedback.terms
    feedback_alpha: Annotated[float, typer.Option(min=0, help="Share of the query.")] = Feedback.alpha
    feedback_beta: Annotated[float, typer.Option(min=0, help="Share of its best documents.")] = Feedback.beta
    feedback_shards: Annotated[
        str | None, typer.Option(help="The index's shards; default its term vectors, if it was built with them.")
    ] = None

    def rocchio(self) -> Feedback | None:
        """The feedback; None for none."""
        if not self.feedback:
            return None
        return Feedback(self.feedback, self.feedback_terms, self.feedback_alpha, self.feedback_beta)


@dataclass(frozen=True)
class RM3Options:
    """RM3, the feedback of BM25."""

    rm3: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_RM3_DOCUMENTS, help="BM25: expand each query by that many of its best documents (RM3)."
        ),
    ] = None
    rm3_terms: Annotated[int, typer.Option(min=1, help="Terms of RM3.")] = RM3.terms
    rm3_weight: Annotated[float, typer.Option(min=0, max=1, help="Share of the query in RM3.")] = RM3.weight

    def expansion(self) -> RM3 | None:
        """The expansion; None for none."""
        return RM3(self.rm3, self.rm3_terms, self.rm3_weight) if self.rm3 else None


@dataclass(frozen=True)
class RefinementOptions:
    """How queries are refined: the options, the `Refinement` that they make, and their note in a run's manifest.

    A new option is one field here. If it has the name of a field of `Refinement`, it is passed on and noted as it is.
    """

    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only documents that match: terms, metadata and ids, 'sea AND NOT cat', 'meta.year:[2010 TO 2020]'; "
            "repeatable. Scores stay."
        ),
    ] = None
    require: Annotated[list[str] | None, typer.Option(help="Only documents with this term; repeatable.")] = None
    forbid: Annotated[list[str] | None, typer.Option(help="Only documents without this term; repeatable.")] = None
    only_terms: Annotated[str | None, typer.Option(help="File of terms; queries keep no others.")] = None
    without_terms: Annotated[str | None, typer.Option(help="File of terms that queries lose.")] = None
    query_terms: Annotated[int | None, typer.Option(min=1, help="Keep that many heaviest terms of a query.")] = None
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Keep query weights of at least this share of the largest.")
    ] = 0.0
    two_phase: TwoPhaseOptions = TwoPhaseOptions()
    text_weight: Annotated[
        float, typer.Option(min=0, help="Add BM25 of the topic's text on the index's text field, times this.")
    ] = 0.0
    feedback: FeedbackOptions = FeedbackOptions()
    rm3: RM3Options = RM3Options()
    approximate: Annotated[
        float | None,
        typer.Option(help="Find this share of the hits (0.99), as index --approximate measured it; exact scores."),
    ] = None

    def refinement(self, index_fields: Collection[str] = ()) -> Refinement | None:
        """The refinement, for an index of these fields; None if no option is given."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["where"] = filter_of(
            self.where or (), values.pop("require") or (), values.pop("forbid") or (), index_fields
        )
        values["only_terms"] = read_terms(Path(self.only_terms)) if self.only_terms else None
        values["without_terms"] = read_terms(Path(self.without_terms)) if self.without_terms else frozenset()
        values["two_phase"], values["feedback"] = self.two_phase.two_phase(), self.feedback.rocchio()
        values["rm3"] = self.rm3.expansion()
        refinement = Refinement(**values)
        return None if refinement == Refinement() else refinement

    def note(self) -> dict[str, Any]:
        """The given options, for a run's manifest; a list of terms by the name and digest of its file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("only_terms", "without_terms"):
            if values[name]:
                path = Path(values[name])
                values[name] = f"{path.name}@{compute_sha256(path)[:12]}"
        two_phase, feedback, rm3 = self.two_phase.two_phase(), self.feedback.rocchio(), self.rm3.expansion()
        values |= {"two_phase": two_phase and list(two_phase), "feedback": feedback and list(astuple(feedback))}
        values["rm3"] = rm3 and list(astuple(rm3))
        return {name: value for name, value in values.items() if value}

    def measured(self, index: Path, hits: int) -> dict[str, str]:
        """The recall of an approximate search of an index, as it was measured, for a run's manifest."""
        if self.approximate is None:
            return {}
        return {"approximate": measured_recall(read_report(index), index, self.approximate, hits)}


def filter_of(
    where: Sequence[str], require: Sequence[str], forbid: Sequence[str], index_fields: Collection[str] = ()
) -> Clause | None:
    """What a document must match: expressions, terms it must have, terms it must not have; None if nothing."""
    expressions = (parse(expression, index_fields) for expression in where)
    clauses: list[Clause] = [*expressions, *map(Term, require), *(Not(Term(term)) for term in forbid)]
    return clauses[0] if len(clauses) == 1 else All(tuple(clauses)) if clauses else None


@dataclass(frozen=True)
class ListOptions:
    """What the lists hold, and what is written of them."""

    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 20% of the greatest that a document could have.")
    ] = None
    passages: Annotated[
        str | None,
        typer.Option(help="Hits are documents of passages DOC#N: max (MaxP), sum:N (of the best N) or sum (of all)."),
    ] = None
    remove_query: Annotated[
        bool | None,
        typer.Option(
            "--remove-query/--no-remove-query",
            help="Leave out the document whose id is the topic's; default the dataset's rule (on for those of BEIR).",
        ),
    ] = None
    strict_scores: Annotated[
        bool,
        typer.Option("--strict-scores", help="Lower tied scores by an ulp, for evaluators that order ties themselves."),
    ] = False
    texts: Annotated[
        bool, typer.Option("--texts", help="For one query: print each hit's text, from the index or its corpus.")
    ] = False

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        if self.passages and self.texts:
            raise UsageError("--texts prints the texts of an index's documents, which --passages groups; leave out one")

    def note(self) -> dict[str, Any]:
        """What decides the lists besides the refinement, for a run's manifest."""
        options = {"passages": self.passages, "min_score": str(self.cut) if self.cut else None}
        return {name: value for name, value in options.items() if value}

    @property
    def cut(self) -> Cut | None:
        """The least score; None for none."""
        return None if self.min_score is None else Cut.of(self.min_score)


@cli.expanded
def command(
    queries: QueryOptions,
    runs: RunOptions,
    refined: RefinementOptions,
    lists: ListOptions,
    encoder: cli.QueryEncoderOptions,
    batch_size: cli.BatchSize = 32,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine, for batches of topics.")] = 1,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Search an index and write a run, or print the hits of one query.

    Example: python -m lexvl_anserini.search --index indexes/demo --topics demo/test --output runs/demo.trec
    """
    runs.check()
    lists.check()
    typed = queries.typed(runs.output)
    changes = encoder.changes()
    path, manifest_file = index_path(queries.index), Path(encoder.manifest) if encoder.manifest else None
    manifest = index_manifest(path, manifest_file)
    search = IndexSearch(
        BuiltIndex(path, manifest),
        EncoderChanges(encoder.checkpoint, encoder.tokenizer, changes, encoder.device),
        SearchSettings(
            threads=threads,
            batch_size=batch_size,
            refinement=refined.refinement(manifest.fields),
            feedback_shards=refined.feedback.feedback_shards,
            passages=lists.passages,
            cut=lists.cut,
        ),
        refined.note()
        | refined.measured(path, runs.hits or (DEFAULT_HITS if typed is None else DEFAULT_HITS_SHOWN))
        | lists.note(),
    )
    vocabulary, tree = find_vocabulary_file(path, manifest_file), queries.tree(manifest.fields)
    search.check(vocabulary, tree)
    if typed is None:
        source = find_topic_source(queries.topics, path, manifest, encoder.data_dir, vocabulary, queries.split)
        cli.print_rows(search_topics(search, source, runs, lists, overwrite, dry_run), style)
    elif dry_run:
        cli.print_rows({"index": str(path), "documents": search.index.documents, typed[0]: typed[1]}, style)
    elif queries.interactive:
        answer_lines(search, runs.hits or DEFAULT_HITS_SHOWN, lists, encoder.data_dir, style)
    else:
        typed_query = tree or build_typed_topic(queries.query, queries.query_image)
        with search.searcher() as searcher:
            hits = search.one(typed_query, runs.hits or DEFAULT_HITS_SHOWN, searcher)
        show(hits, texts_of(hits, search.index, encoder.data_dir) if lists.texts else {}, style, lists.cut)


def search_topics(
    search: IndexSearch, source: TopicSource, runs: RunOptions, lists: ListOptions, overwrite: bool, dry_run: bool
) -> dict[str, Any]:
    """Writes the run of all topics, unless it is finished already; returns the rows to print."""
    target = runs.path(search.index.manifest)
    remove_query = source.remove_query if lists.remove_query is None else lists.remove_query
    request = search.run_manifest(
        source, runs.hits or DEFAULT_HITS, remove_query, lists.strict_scores, runs.output_format
    )
    if dry_run:
        return {
            "run": str(target),
            "index": str(search.index.path),
            "kind": search.index.manifest.kind,
            "documents": search.index.documents,
            "encoder": request.encoder.name,
            "checkpoint": request.encoder.checkpoint,
            "options": request.encoder.options,
            "asked": request.topics,
            "hits": request.hits,
            "remove_query": request.remove_query,
            "topics": source.count(),
            "finished": is_finished(target, request, overwrite),
        }

    def write() -> RunManifest:
        # A file of encoded queries may have millions of lines, and is not read twice for a total.
        total = None if source.encoded else source.count()
        with cli.progress_bar(f"search {search.index.path}", total, "topics") as progress:
            return search.write(source, request, target, progress)

    written = ensure_run(target, request, overwrite, write)
    if without := written.counts.topics_without_hits:
        log.warning("%d of %d topics have no hit: no line in the run", without, written.counts.topics)
    return {"run": str(target), **written.counts}


def answer_lines(search: IndexSearch, hits: int, lists: ListOptions, data_dir: str | None, style: str) -> None:
    """Prints the hits of each line of standard input, from one searcher, and an empty line after each text answer.

    An error of a line ends that line.
    """
    asks = sys.stdin.isatty()
    with search.searcher() as searcher:
        while True:
            if asks:
                print("query: ", end="", file=sys.stderr, flush=True)
            if not (line := sys.stdin.readline()):
                return
            if not line.strip():
                continue
            try:
                answer = search.one(build_typed_topic(line.strip(), None), hits, searcher)
                show(answer, texts_of(answer, search.index, data_dir) if lists.texts else {}, style, lists.cut)
                if style != "json":
                    typer.echo()
            except LexvlError as error:
                log.error("error: %s", error)
            sys.stdout.flush()


def show(documents: RankedList, texts: Mapping[str, str], style: str, cut: Cut | None = None) -> None:
    """Prints one ranked list, after a cut, with the documents' texts if they are given."""
    if style == "json":
        rows = [
            {"rank": d.rank, "score": d.score, "doc_id": d.doc_id, **({"text": texts[d.doc_id]} if texts else {})}
            for d in documents
        ]
        sys.stdout.write(orjson.dumps(rows).decode() + "\n")
        return
    if not documents:
        reason = f"no document has a score of at least {cut}" if cut else "no document has a term of the query"
        log.info("%s", reason)
    for document in documents:
        text = f"  {shorten(texts[document.doc_id], SHOWN_CHARACTERS, placeholder=' ...')}" if texts else ""
        score = f"{document.score:.0f}" if document.score == int(document.score) else f"{document.score:.6g}"
        typer.echo(f"{document.rank:4}  {score:>9}  {document.doc_id}{text}")


if __name__ == "__main__":
    cli.run(command)
