"""Index x topics -> run: topics are encoded as the index's manifest says, searched, and written as ranked lists."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Literal, NamedTuple

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.engines.engine import index_path
from lexvl_anserini.engines.index_folder import BuiltIndex, index_manifest, read_recall, read_report
from lexvl_anserini.ground.errors import LexvlError, UsageError
from lexvl_anserini.ground.manifest import Manifest, RunManifest
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.clauses import All, Clause, Not, Query, Term, TreeQuery
from lexvl_anserini.queries.query_source import (
    TYPED,
    TopicSource,
    build_typed_topic,
    check_readable,
    check_terms,
    find_topic_source,
    find_vocabulary_file,
)
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.runs.trec import DEFAULT_HITS, ensure_run, is_finished
from lexvl_anserini.searching.index_runs import plan_run, read_texts, write_index_run
from lexvl_anserini.searching.search import Cut, EncoderChanges, Search
from lexvl_anserini.searching.searcher import Searcher, check_kind

log = logging.getLogger("lexvl_anserini.search")  # __name__ is "__main__" when the module runs as the command

DEFAULT_HITS_SHOWN = 10
SHOWN_CHARACTERS = 240  # characters of a document's text beside its id; json has the whole text


class Shown(NamedTuple):
    """How the hits of one query are printed: how many at most, whether with texts, in which style."""

    hits: int
    texts: bool
    data_dir: str | None
    style: str
    cut: Cut | None


@dataclass(frozen=True)
class QueryOptions:
    """What is searched: topics, or one query that the user types."""

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

    def choose(self, output: Path | None) -> tuple[str, str]:
        """Returns the option and the value of the query that the user types; `topics` where there is none."""
        values = {"query": self.query, "query-image": self.query_image, "match": self.match, "topics": self.topics}
        values["interactive"] = "each line" if self.interactive else None
        named = [(name, value) for name, value in values.items() if value is not None]
        (name, value), *others = named or [("topics", "")]
        if others:
            raise UsageError(f"--{name} and --{others[0][0]} exclude each other; give one of them")
        if name != "topics":
            if self.split is not None:
                raise UsageError(f"--split is of topics, --{name} is one query; leave out one of them")
            if output is not None or (name == "query" and not value.strip()):
                raise UsageError(
                    f"--{name} prints the hits of one query; it cannot be empty, and --output needs --topics"
                )
        return name, value


@dataclass(frozen=True)
class Filters:
    """What a document must match; scores do not change."""

    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only documents that match: terms, metadata and ids, 'sea AND NOT cat', 'meta.year:[2010 TO 2020]'; "
            "repeatable. Scores stay."
        ),
    ] = None
    require: Annotated[list[str] | None, typer.Option(help="Only documents with this term; repeatable.")] = None
    forbid: Annotated[list[str] | None, typer.Option(help="Only documents without this term; repeatable.")] = None

    def join(self, fields: Collection[str] = ()) -> Clause | None:
        """Joins the conditions to one tree, for an index of these fields; None without conditions."""
        from lexvl_anserini.queries.parser import parse

        expressions = (parse(expression, fields) for expression in self.where or ())
        terms = (*map(Term, self.require or ()), *(Not(Term(term)) for term in self.forbid or ()))
        clauses: list[Clause] = [*expressions, *terms]
        return clauses[0] if len(clauses) == 1 else All(tuple(clauses)) if clauses else None

    def note(self) -> dict[str, list[str]]:
        """Returns the conditions, for a run's manifest."""
        return {name: values for name, values in vars(self).items() if values}


@dataclass(frozen=True)
class RunOptions:
    """Where the run goes, and what its lists hold."""

    output: Annotated[Path | None, typer.Option(help="Run to write; default runs/<corpus>.<encoder>.trec.")] = None
    output_format: Annotated[Literal["trec", "msmarco"], typer.Option(help="Format of the run.")] = "trec"
    hits: Annotated[int | None, typer.Option(min=1, help="Hits per topic; default 1000, of one query 10.")] = None
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

    def name_run(self, manifest: Manifest) -> Path:
        """Names the run of an index with this manifest."""
        suffix = "trec" if self.output_format == "trec" else "tsv"
        return self.output or Path("runs") / f"{cli.file_name(manifest.corpus.name)}.{manifest.encoder.name}.{suffix}"


@cli.expand_options
def command(
    queries: QueryOptions,
    runs: RunOptions,
    filters: Filters,
    search: Search,
    texts: Annotated[
        bool, typer.Option("--texts", help="For one query: print each hit's text, from the index or its corpus.")
    ] = False,
    *,
    encoder: EncoderChanges,
    settings: cli.Settings = None,
    data_dir: cli.DataDir = None,
    manifest: cli.ShardsManifest = None,
    batch_size: cli.BatchSize = 32,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Search an index and write a run, or print the hits of one query.

    Example: python -m lexvl_anserini.search --index indexes/demo --topics demo/test --output runs/demo.trec
    """
    from lexvl_anserini.queries.parser import parse

    name, value = queries.choose(runs.output)
    if search.passages and texts:
        raise UsageError("--texts prints the texts of an index's documents, which --passages groups; leave out one")
    path = index_path(queries.index)
    built = BuiltIndex(path, index_manifest(path, manifest))
    fields, vocabulary = built.manifest.fields, find_vocabulary_file(path, manifest)
    tree = None if queries.match is None else parse(queries.match, fields)
    search = replace(search, where=filters.join(fields), batch_size=batch_size)
    check_kind(built.manifest, path, search)
    for clause in filter(None, (tree, search.where)):
        check_terms(clause, vocabulary, built.manifest)
    searcher = Searcher(built, encoder=replace(encoder, options=cli.parse_settings(settings or ())))
    if name == "topics":
        source = find_topic_source(queries.topics, path, built.manifest, data_dir, vocabulary, queries.split)
        request = plan_topics(searcher, source, runs, filters, search)
        target = runs.name_run(built.manifest)
        if dry_run:
            rows = describe_plan(built, request, source.count())
            cli.print_rows({"run": str(target), **rows, "finished": is_finished(target, request, overwrite)}, style)
        else:
            written = write_topics(searcher, source, search, request, target, overwrite)
            cli.print_rows({"run": str(target), **written.counts}, style)
    elif dry_run:
        cli.print_rows({"index": str(path), "documents": built.documents, name: value}, style)
    else:
        shown = Shown(runs.hits or DEFAULT_HITS_SHOWN, texts, data_dir, style, search.min_score)
        if search.approximate is not None:
            read_recall(read_report(path), path, search.approximate, shown.hits)
        if queries.interactive:
            answer_lines(searcher, search, shown)
            return
        query = TreeQuery(TYPED, tree) if tree else build_typed_topic(queries.query, queries.query_image)
        with searcher:
            answer = answer_query(searcher, query, search, shown.hits)
        show(answer, built, shown)


def plan_topics(
    searcher: Searcher, source: TopicSource, runs: RunOptions, filters: Filters, search: Search
) -> RunManifest:
    """Describes the run of the topics of a source."""
    depth, note = runs.hits or DEFAULT_HITS, {**filters.note(), **search.note()}
    if search.approximate is not None:
        path = searcher.index.path
        note["approximate"] = read_recall(read_report(path), path, search.approximate, depth)
    remove = source.remove_query if runs.remove_query is None else runs.remove_query
    return plan_run(searcher, source, depth, remove, runs.strict_scores, runs.output_format, note)


def write_topics(
    searcher: Searcher, source: TopicSource, search: Search, request: RunManifest, run: Path, overwrite: bool
) -> RunManifest:
    """Searches the topics of a source, and writes their run; a finished run stays as it is."""

    def write() -> RunManifest:
        # A file of encoded queries may have millions of lines, and is not read twice for a total.
        total = None if source.encoded else source.count()
        with cli.progress_bar(f"search {searcher.index.path}", total, "topics") as progress:
            return write_index_run(searcher, source, search, request, run, progress)

    written = ensure_run(run, request, overwrite, write)
    if without := written.counts.topics_without_hits:
        log.warning("%d of %d topics have no hit: no line in the run", without, written.counts.topics)
    return written


def describe_plan(built: BuiltIndex, request: RunManifest, topics: int) -> dict[str, Any]:
    """Returns the rows of a dry run."""
    return {
        "index": str(built.path),
        "kind": built.manifest.kind,
        "documents": built.documents,
        "encoder": request.encoder.name,
        "checkpoint": request.encoder.checkpoint,
        "options": request.encoder.options,
        "asked": request.topics,
        "hits": request.hits,
        "remove_query": request.remove_query,
        "topics": topics,
    }


def answer_query(searcher: Searcher, query: Query, search: Search, hits: int) -> RankedList:
    """Searches a typed query: a query tree, or a topic that is encoded first."""
    if isinstance(query, Topic):
        check_readable(query, searcher.model)
    [answer] = searcher.lists([query], hits, search)
    return answer


def answer_lines(searcher: Searcher, search: Search, shown: Shown) -> None:
    """Prints the hits of each line of standard input, from one searcher, and an empty line after each text answer.

    An error of a line ends that line.
    """
    asks = sys.stdin.isatty()
    with searcher:
        while True:
            if asks:
                print("query: ", end="", file=sys.stderr, flush=True)
            if not (line := sys.stdin.readline()):
                return
            if not line.strip():
                continue
            try:
                answer = answer_query(searcher, build_typed_topic(line.strip(), None), search, shown.hits)
                show(answer, searcher.index, shown)
                if shown.style != "json":
                    typer.echo()
            except LexvlError as error:
                log.error("error: %s", error)
            sys.stdout.flush()


def show(documents: RankedList, built: BuiltIndex, shown: Shown) -> None:
    """Prints one ranked list, with the documents' texts if the user wants them."""
    texts = read_texts(documents, built, shown.data_dir) if shown.texts else {}
    if shown.style == "json":
        rows = [
            {"rank": d.rank, "score": d.score, "doc_id": d.doc_id, **({"text": texts[d.doc_id]} if texts else {})}
            for d in documents
        ]
        sys.stdout.write(orjson.dumps(rows).decode() + "\n")
        return
    if not documents:
        cut = f"no document has a score of at least {shown.cut}"
        log.info("%s", cut if shown.cut else "no document has a term of the query")
    for document in documents:
        text = f"  {shorten(texts[document.doc_id], SHOWN_CHARACTERS, placeholder=' ...')}" if texts else ""
        score = f"{document.score:.0f}" if document.score == int(document.score) else f"{document.score:.6g}"
        typer.echo(f"{document.rank:4}  {score:>9}  {document.doc_id}{text}")


if __name__ == "__main__":
    cli.run(command)
