"""Index x topics -> run: topics are encoded as the index's manifest says, searched, and written as ranked lists."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib.metadata import version
from itertools import chain, tee
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import (
    DataDir,
    Overwrite,
    Verbose,
    check_style,
    file_name,
    parse_settings,
    print_rows,
    progress_bar,
    run,
)
from lexvl_anserini.encode import encode_queries
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.engines.index_folder import index_manifest, read_report
from lexvl_anserini.engines.opening import engine_of, open_impact_index, open_index
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.files import file_sha256, write_json
from lexvl_anserini.manifest import EncoderRef, Manifest, RunManifest, manifest_path, read_run_manifest
from lexvl_anserini.queries.clauses import Clause, Not, Term, TreeQuery
from lexvl_anserini.queries.feedback import Feedback, ShardVectors
from lexvl_anserini.queries.refine import Asked, Refinement, TwoPhase, read_terms, refined_queries, search_refined
from lexvl_anserini.queries.syntax import parse
from lexvl_anserini.queries.topics import (
    Query,
    TopicSource,
    check_readable,
    check_terms,
    topic_source,
    typed_topic,
    vocabulary_file,
)
from lexvl_anserini.ranking.order import with_ranks
from lexvl_anserini.ranking.runs import DEFAULT_HITS, OUTPUT_FORMATS, is_finished, write_run
from lexvl_anserini.records import DenseQuery, ImpactQuery, Index, ScoredDoc, Topic

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import Engine, ImpactEngine
    from lexvl_anserini.queries.feedback import VectorOf

Load = Callable[[], "Encoder"]
# `search_index` of one index: queries, hits, remove_query, and the rest by name.
Search = Callable[..., Iterator[list[ScoredDoc]]]

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.search")

DEFAULT_HITS_SHOWN = 10
# Of a document's text, beside its id; json has it whole.
SHOWN_CHARACTERS = 240

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


@dataclass
class Tally:
    """What a search cost, counted while its streams run."""

    queries: int = 0
    terms: int = 0
    encode_s: float = 0.0
    all_s: float = 0.0

    def encoded(self, queries: Iterator[Query]) -> Iterator[Query]:
        """Passes queries on; counts them, their terms, and the seconds spent making them."""
        while True:
            started = time.perf_counter()
            query = next(queries, None)
            self.encode_s += time.perf_counter() - started
            if query is None:
                return
            self.queries += 1
            self.terms += len(query.vector) if isinstance(query, ImpactQuery) else 0
            yield query

    def found(self, lists: Iterator[list[ScoredDoc]]) -> Iterator[list[ScoredDoc]]:
        """Passes lists on; counts the seconds spent making them, encoding included."""
        while True:
            started = time.perf_counter()
            documents = next(lists, None)
            self.all_s += time.perf_counter() - started
            if documents is None:
                return
            yield documents

    def efficiency(self, manifest: Manifest, index: Path) -> dict[str, float]:
        """Figures for tables; milliseconds are the engine's alone, queries already encoded."""
        figures: dict[str, float] = {"index_documents": manifest.counts["documents"]}
        if "bytes" in (report := read_report(index)):
            figures["index_bytes"] = report["bytes"]
        if self.queries:
            figures["ms_per_query"] = round((self.all_s - self.encode_s) * 1000 / self.queries, 3)
        if manifest.kind == "impact" and self.queries:
            figures["mean_query_terms"] = round(self.terms / self.queries, 2)
            figures["mean_document_terms"] = round(manifest.counts["postings"] / manifest.counts["documents"], 2)
        return figures


def search_index(
    index: Index | Path | str,
    topics: Iterable[Query],
    hits: int = DEFAULT_HITS,
    remove_query: bool = False,
    threads: int = 1,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
    batch_size: int = 32,
    tally: Tally | None = None,
    refinement: Refinement | None = None,
    feedback_shards: Path | str | None = None,
) -> Iterator[list[ScoredDoc]]:
    """Searches an index; one ranked list per topic, in their order, empty where nothing matches.

    Args:
        index: an index, or its folder.
        topics: topics, encoded here; or queries that are encoded already, or query trees. All of one sort.
        hits: length of a list at most.
        remove_query: leave out a document whose id is the topic's (BEIR's rule), before the cut.
        threads: of the engine, where it can use more than one.
        model: encodes the topics; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.
        batch_size: topics per forward pass.
        tally: counts what it costs.
        refinement: lists, cuts, filters, texts and feedback, for an impact index.
        feedback_shards: the index's shards, for feedback where the index holds no term vectors.

    Raises:
        ArtefactError: not an index, or one of another vocabulary than the model's.
        UsageError: a topic the encoder cannot read, or a query of another kind than the index.
    """
    if isinstance(index, Index):
        path, about = index.path, index.manifest
    else:
        path = Path(index)
        about = index_manifest(path, Path(manifest) if manifest else None)
    stream = iter(topics)
    first = next(stream, None)
    if first is None:
        return
    queries: Iterator[Any] = chain([first], stream)
    texts: Iterator[Any] | None = None
    if refinement is not None or isinstance(first, TreeQuery):
        _refuse_other_kinds(about, path)
    if isinstance(first, Topic):
        if model is None:
            model = load_encoder_of(about.encoder, device=device, vocabulary=about.vocabulary_digest)
        _refuse_other_vocabulary(model, about, path)
        if refinement is not None and refinement.text_weight:
            queries, texts = tee(queries)
        queries = encode_queries(model, queries, about, batch_size)
    if refinement is None and isinstance(first, TreeQuery):
        refinement = Refinement()
    tally = tally or Tally()
    asked = _of_kind(queries, about.kind)
    fetch = hits + remove_query
    engine: Engine
    lists: Iterator[list[ScoredDoc]]
    if refinement is None:
        engine = open_index(path, about)
    else:
        engine = refining = open_impact_index(path, about)
    try:
        if refinement is None:
            lists = engine.search(tally.encoded(asked), fetch, threads)
        else:
            counted: Iterator[Any] = tally.encoded(refined_queries(asked, refinement))
            lists = search_refined(
                refining,
                refining.search_tree,
                (Asked(query, next(texts).text if texts else None) for query in counted),
                refinement,
                fetch,
                threads,
                _vectors(refining, about, refinement, feedback_shards),
                remove_query,
            )
        for documents in tally.found(lists):
            yield without_query(documents, hits) if remove_query else documents
    finally:
        engine.close()


def _vectors(
    engine: ImpactEngine, manifest: Manifest, refinement: Refinement, shards: Path | str | None
) -> VectorOf | None:
    """Where feedback reads a document's vector: the shards if the user names them, else the index."""
    if refinement.feedback is None:
        return None
    return engine.vector if shards is None else ShardVectors(Path(shards), manifest)


def without_query(documents: list[ScoredDoc], hits: int) -> list[ScoredDoc]:
    """The list without the document that is the topic itself, cut at `hits`, ranks again from 1."""
    return with_ranks([d for d in documents if d.doc_id != d.query_id][:hits])


def asked_encoder(
    manifest: Manifest, checkpoint: str | None, tokenizer: str | None, options: Mapping[str, Any]
) -> EncoderRef:
    """The index's encoder as this search uses it: what the user overrode is noted in the run's manifest."""
    moved = {key: value for key, value in (("checkpoint", checkpoint), ("tokenizer", tokenizer)) if value}
    return EncoderRef({**manifest.encoder, **moved, "options": {**manifest.encoder.options, **options}})


def note_efficiency(output: Path, written: RunManifest, efficiency: Mapping[str, float]) -> RunManifest:
    """Adds the figures of a finished search to its run's manifest."""
    noted = replace(written, efficiency=efficiency)
    write_json(manifest_path(output), noted.to_json())
    return noted


def texts_of(documents: list[ScoredDoc], index: Index, data_dir: str | None) -> dict[str, str]:
    """The contents of some documents: stored in the index, else found by reading their corpus once.

    Raises:
        LexvlError: the corpus is not where it was.
    """
    from lexvl_anserini.data.dataset import noted_dataset

    engine = engine_of(index.path, index.manifest.kind)
    if (stored := engine.stored_texts(index.path, [document.doc_id for document in documents])) is not None:
        return stored
    dataset = noted_dataset(index.manifest.corpus, data_dir)
    wanted = {document.doc_id for document in documents}
    return {d.doc_id: d.contents or str(d.image or "") for d in dataset.documents() if d.doc_id in wanted}


def show(documents: list[ScoredDoc], texts: Mapping[str, str], style: str) -> None:
    """Prints one ranked list, with the documents' texts if they are given."""
    if style == "json":
        rows = [
            {"rank": d.rank, "score": d.score, "doc_id": d.doc_id, **({"text": texts[d.doc_id]} if texts else {})}
            for d in documents
        ]
        sys.stdout.write(orjson.dumps(rows).decode() + "\n")
        return
    if not documents:
        log.info("no document has a term of the query")
    for document in documents:
        text = f"  {shorten(texts[document.doc_id], SHOWN_CHARACTERS, placeholder=' ...')}" if texts else ""
        score = f"{document.score:.0f}" if document.score == int(document.score) else f"{document.score:.6g}"
        typer.echo(f"{document.rank:4}  {score:>9}  {document.doc_id}{text}")


def filter_of(where: Sequence[str], require: Sequence[str], forbid: Sequence[str]) -> Clause | None:
    """All that a document must match: expressions, terms it must have, terms it may not have; None if nothing.

    Raises:
        UsageError: an expression is malformed.
    """
    clauses: list[Clause] = [*map(parse, where), *map(Term, require), *(Not(Term(term)) for term in forbid)]
    return reduce(lambda a, b: a & b, clauses) if clauses else None


def refinement_of(wishes: Mapping[str, Any]) -> Refinement | None:
    """The command's options by name as a refinement; None where nothing is wished.

    Raises:
        UsageError: an expression is malformed.
        DataError: a list of terms cannot be read.
    """
    only, without = (wishes[name] and read_terms(Path(wishes[name])) for name in ("only_terms", "without_terms"))
    refinement = Refinement(
        only_terms=only,
        without_terms=without or frozenset(),
        query_terms=wishes["query_terms"],
        threshold=wishes["threshold"],
        where=filter_of(wishes["where"] or (), wishes["require"] or (), wishes["forbid"] or ()),
        text_weight=wishes["text_weight"],
        two_phase=wishes["two_phase"] and TwoPhase(*wishes["two_phase"]),
        feedback=wishes["feedback"] and Feedback(*wishes["feedback"]),
    )
    return None if refinement == Refinement() else refinement


def noted(wishes: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's manifest says of them: what is wished at all; a list of terms by its name and its contents."""
    found: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in wishes.items() if value
    }
    for name in {"only_terms", "without_terms"} & found.keys():
        found[name] = f"{Path(found[name]).name}@{file_sha256(Path(found[name]))[:12]}"
    return found


def command(
    index: Annotated[str, typer.Option(help="Folder that index made.")],
    topics: Annotated[
        str | None,
        typer.Option(help="dataset/split, a topics file, or encoded queries Q.jsonl[.gz]; default the corpus's own."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Search this text and print the hits.")] = None,
    query_image: Annotated[
        str | None,
        typer.Option(help="Search this image and print the hits; for encoders whose query side reads images."),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(help="Search this expression over terms, '+dog -cat sea^3', without an encoder; print the hits."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Run to write; default runs/<corpus>.<encoder>.trec.")] = None,
    output_format: Annotated[str, typer.Option(help="Of the run: trec or msmarco.")] = "trec",
    hits: Annotated[int | None, typer.Option(min=1, help="Per topic; default 1000, of one query 10.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only documents that match: terms, metadata and ids, 'sea AND NOT cat', 'meta.year:[2010 TO 2020]'; "
            "repeatable. Scores stay."
        ),
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="Only documents with this term; repeatable.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="Only documents without this term; repeatable.")] = None,
    only_terms: Annotated[str | None, typer.Option(help="File of terms; queries keep no others.")] = None,
    without_terms: Annotated[str | None, typer.Option(help="File of terms that queries lose.")] = None,
    query_terms: Annotated[int | None, typer.Option(min=1, help="Keep that many heaviest terms of a query.")] = None,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Keep query weights of at least this share of the largest.")
    ] = 0.0,
    first_terms: Annotated[
        int | None, typer.Option(min=1, help="Two phases: that many heaviest terms find, the whole query ranks.")
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Documents that the first of two phases finds.")] = 1000,
    text_weight: Annotated[
        float, typer.Option(min=0, help="Add BM25 of the topic's text on the index's text field, times this.")
    ] = 0.0,
    feedback: Annotated[
        int | None, typer.Option(min=1, help="Expand each query by that many of its best documents (Rocchio).")
    ] = None,
    feedback_terms: Annotated[int, typer.Option(min=1, help="Terms that feedback adds.")] = Feedback.terms,
    feedback_alpha: Annotated[float, typer.Option(min=0, help="Share of the query.")] = Feedback.alpha,
    feedback_beta: Annotated[float, typer.Option(min=0, help="Share of its best documents.")] = Feedback.beta,
    feedback_shards: Annotated[
        str | None, typer.Option(help="The index's shards; default its term vectors, if it was built with them.")
    ] = None,
    remove_query: Annotated[
        bool | None,
        typer.Option(
            "--remove-query/--no-remove-query",
            help="Leave out the document whose id is the topic's; default the data set's rule (on for beir).",
        ),
    ] = None,
    strict_scores: Annotated[
        bool,
        typer.Option("--strict-scores", help="Lower tied scores by an ulp, for evaluators that order ties themselves."),
    ] = False,
    texts: Annotated[
        bool, typer.Option("--texts", help="Of one query: print each hit's text, from the index or its corpus.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the query side, KEY=VALUE (query_topk=64); repeatable."),
    ] = None,
    data_dir: DataDir = None,
    manifest: Annotated[
        str | None, typer.Option(help="manifest.json of the shards, for an index that stock Pyserini built.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint lies now.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Where its tokenizer lies now.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Topics per forward pass.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Of the engine, for batches of topics.")] = 1,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    style: Annotated[str, typer.Option("--format", help="Of printed hits and numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Search an index and write a run, or print the hits of one query.

    Example: python -m lexvl_anserini.search --index indexes/demo --topics demo/test --output runs/demo.trec
    """
    check_style(style)
    if output_format not in OUTPUT_FORMATS:
        raise UsageError(f"--output-format {output_format!r}: expected {' or '.join(OUTPUT_FORMATS)}")
    given = [
        name
        for name, value in (("query", query), ("query-image", query_image), ("match", match), ("topics", topics))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} exclude each other; give one of them")
    one = bool(given) and given[0] != "topics"
    if one and (output is not None or query is not None and not query.strip()):
        raise UsageError(f"--{given[0]} prints the hits of one query; it cannot be empty, and --output needs --topics")
    wishes: dict[str, Any] = {
        "where": where,
        "require": require,
        "forbid": forbid,
        "only_terms": only_terms,
        "without_terms": without_terms,
        "query_terms": query_terms,
        "threshold": threshold,
        "two_phase": (first_terms, candidates) if first_terms else None,
        "text_weight": text_weight,
        "feedback": (feedback, feedback_terms, feedback_alpha, feedback_beta) if feedback else None,
    }
    refinement = refinement_of(wishes)
    options = parse_settings(settings or ())
    path, manifest_file = Path(index), Path(manifest) if manifest else None
    about = index_manifest(path, manifest_file)
    opened = Index(path, about, about.counts["documents"])
    vocabulary = vocabulary_file(path, manifest_file)
    tree = parse(match) if match is not None else None
    if refinement is not None:
        _refuse_other_kinds(about, path)
    for clause in (tree, refinement and refinement.where):
        if clause:
            check_terms(clause, vocabulary)

    def load() -> Encoder:
        return load_encoder_of(
            about.encoder, checkpoint, tokenizer, device, options, vocabulary=about.vocabulary_digest
        )

    search = partial(
        search_index,
        opened,
        threads=threads,
        batch_size=batch_size,
        refinement=refinement,
        feedback_shards=feedback_shards,
    )
    if one and dry_run:
        print_rows({"index": str(path), "documents": opened.documents, given[0]: query or query_image or match}, style)
        return
    if one:
        found = one_query(search, load, tree or typed_topic(query, query_image), hits or DEFAULT_HITS_SHOWN)
        show(found, texts_of(found, opened, data_dir) if texts else {}, style)
        return
    source = topic_source(topics, path, about, data_dir, vocabulary)
    wanted = RunManifest(
        topics=source.label,
        topics_sha256=source.sha256,
        dataset=source.dataset,
        split=source.split,
        data_dir=source.data_dir,
        corpus=about.corpus,
        encoder=asked_encoder(about, checkpoint, tokenizer, {**options, **noted(wishes)}),
        quantiser=about.quantiser,
        index=path.name,
        hits=hits or DEFAULT_HITS,
        remove_query=source.remove_query if remove_query is None else remove_query,
        strict_scores=strict_scores,
        output_format=output_format,
        versions={name: version(name) for name in VERSIONED},
    )
    suffix = "trec" if output_format == "trec" else "tsv"
    name = f"{file_name(about.corpus['name'])}.{about.encoder['name']}.{suffix}"
    target = Path(output) if output else Path("runs") / name
    finished = is_finished(target, wanted, overwrite)
    if dry_run:
        print_rows({**plan(wanted, opened, target), "topics": source.count(), "finished": finished}, style)
        return
    if finished:
        log.info("%s: finished already, nothing to do", target)
        written = read_run_manifest(target)
    else:
        written = write_new_run(search, load, source, wanted, opened, target)
    assert written is not None
    if without := written.counts["topics_without_hits"]:
        log.warning("%d of %d topics have no hit: no line in the run", without, written.counts["topics"])
    print_rows({"run": str(target), **written.counts}, style)


def one_query(search: Search, load: Load, asked: Clause | Topic, hits: int) -> list[ScoredDoc]:
    """The hits of what a user typed: a tree, or a topic that is encoded first.

    Raises:
        UsageError: the encoder's query side does not read such a topic.
    """
    if isinstance(asked, Clause):
        return next(search([TreeQuery("query", asked)], hits))
    model = load()
    check_readable(asked, model)
    return next(search([asked], hits, model=model))


def write_new_run(
    search: Search, load: Load, source: TopicSource, wanted: RunManifest, index: Index, target: Path
) -> RunManifest:
    """Searches all topics of a source and writes their run.

    Raises:
        DataError: there is no topic.
    """
    stream = source.stream()
    first = next(stream, None)
    if first is None:
        raise DataError(f"{source.label}: no topic; nothing to search")
    model, tally = load() if isinstance(first, Topic) else None, Tally()
    lists = search(chain([first], stream), wanted.hits, wanted.remove_query, model=model, tally=tally)
    # Encoded queries may be millions, and are not read twice for a total.
    total = None if source.encoded else source.count()
    with progress_bar(f"search {index.path}", total, "topics") as progress:
        written = write_run(target, _watched(lists, progress), wanted, tag=wanted.encoder["name"])
    return note_efficiency(target, written, tally.efficiency(index.manifest, index.path))


def plan(wanted: RunManifest, index: Index, target: Path) -> dict[str, Any]:
    """What a dry run tells."""
    return {
        "run": str(target),
        "index": str(index.path),
        "kind": index.manifest.kind,
        "documents": index.documents,
        "encoder": wanted.encoder["name"],
        "checkpoint": wanted.encoder.get("checkpoint"),
        "options": wanted.encoder["options"],
        "asked": wanted.topics,
        "hits": wanted.hits,
        "remove_query": wanted.remove_query,
    }


def _watched(lists: Iterable[list[ScoredDoc]], progress: Callable[[int], None]) -> Iterator[list[ScoredDoc]]:
    for documents in lists:
        yield documents
        progress(1)


def _refuse_other_vocabulary(model: Encoder, manifest: Manifest, index: Path) -> None:
    """Refuses a model whose dimensions are not the index's.

    Raises:
        ArtefactError: its vocabulary or its kind is another.
    """
    if model.kind != manifest.kind:
        raise ArtefactError(f"encoder {model.name!r} is {model.kind}, {index} is {manifest.kind}")
    vocabulary = as_lexical(model.query).vocabulary.digest if model.kind == "impact" else None
    if vocabulary is not None and vocabulary != manifest.vocabulary.get("digest"):
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {vocabulary[:16]}, {index} was built with "
            f"{str(manifest.vocabulary.get('digest'))[:16]}; search with the encoder that made the index"
        )


def _refuse_other_kinds(manifest: Manifest, index: Path) -> None:
    """Refuses what only an impact index can do.

    Raises:
        UsageError: it is of another kind.
    """
    if manifest.kind != "impact":
        raise UsageError(f"{index} is {manifest.kind}; terms, filters and feedback are for impact indexes")


def _of_kind(queries: Iterable[Query], kind: str) -> Iterator[Query]:
    """The queries, each checked to be what an index of `kind` is asked.

    Raises:
        UsageError: one is not.
    """
    expected: tuple[type, ...] = {"impact": (ImpactQuery, TreeQuery), "dense": (DenseQuery,), "text": (Topic,)}[kind]
    for query in queries:
        if not isinstance(query, expected):
            raise UsageError(
                f"topic {query.query_id!r}: a {type(query).__name__}, but a {kind} index is asked "
                f"{expected[0].__name__}"
            )
        yield query


if __name__ == "__main__":
    run(command)
