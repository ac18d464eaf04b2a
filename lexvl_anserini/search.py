"""Index x topics -> run: topics are encoded as the index's manifest says, searched, and written as ranked lists."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import DataDir, Overwrite, Verbose, check_style, file_name, print_rows, progress_bar, run
from lexvl_anserini.encode import encode_queries, load_encoder_of, parse_settings
from lexvl_anserini.engines.folder import read_report
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.files import read_json, write_json
from lexvl_anserini.queries import Query, topic_source, vocabulary_file
from lexvl_anserini.records import MANIFEST, DenseQuery, ImpactQuery, Index, Manifest, ScoredDoc, Topic
from lexvl_anserini.registry import ENGINES, resolve
from lexvl_anserini.runs import OUTPUT_FORMATS, RunManifest, manifest_path, read_run_manifest, write_run

if TYPE_CHECKING:
    from lexvl_anserini.encoders.base import Encoder
    from lexvl_anserini.engines.base import Engine

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.search")

DEFAULT_HITS = 1000
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


def index_manifest(index: Path, manifest: Path | None = None) -> Manifest:
    """The manifest of an index, or of the shards a stock index was built from.

    Raises:
        ArtefactError: there is no such index, or no manifest.
    """
    if not index.is_dir():
        raise ArtefactError(f"{index}: no such index; build it with python -m lexvl_anserini.index")
    path = manifest or index / MANIFEST
    if path.is_dir():
        path = path / MANIFEST
    if not path.is_file():
        raise ArtefactError(
            f"{path}: no manifest; for an index that stock Pyserini built, name the manifest.json of its shards with "
            "--manifest"
        )
    return Manifest.from_json(read_json(path, "manifest"), str(path))


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
) -> Iterator[list[ScoredDoc]]:
    """Searches an index; one ranked list per topic, in their order, empty where nothing matches.

    Args:
        index: an index, or its folder.
        topics: topics, encoded here; or queries that are encoded already. All of one sort.
        hits: length of a list at most.
        remove_query: leave out a document whose id is the topic's (BEIR's rule), before the cut.
        threads: of the engine, where it can use more than one.
        model: encodes the topics; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.
        batch_size: topics per forward pass.
        tally: counts what it costs.

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
    if isinstance(first, Topic):
        if model is None:
            model = load_encoder_of(about, device=device)
        _refuse_other_vocabulary(model, about, path)
        queries = encode_queries(model, queries, about, batch_size)
    tally = tally or Tally()
    engine: Engine = resolve("engine", about.kind, ENGINES)(path, about)
    try:
        asked = tally.encoded(_of_kind(queries, about.kind))
        for documents in tally.found(engine.search(asked, hits + remove_query, threads)):
            yield without_query(documents, hits) if remove_query else documents
    finally:
        engine.close()


def without_query(documents: list[ScoredDoc], hits: int) -> list[ScoredDoc]:
    """The list without the document that is the topic itself, cut at `hits`, ranks again from 1."""
    kept = [d for d in documents if d.doc_id != d.query_id][:hits]
    return [d._replace(rank=rank) for rank, d in enumerate(kept, start=1)]


def is_finished(output: Path, wanted: RunManifest, overwrite: bool) -> bool:
    """True if the run is there and was made as wanted; False if it may be written.

    Raises:
        ArtefactError: there is a run of another or of unknown making, and it may not be overwritten.
    """
    if not output.exists() or overwrite:
        return False
    found = read_run_manifest(output)
    if found is None:
        raise ArtefactError(f"{output}: exists without {manifest_path(output).name}; --overwrite replaces it")
    ours, theirs = wanted.making(), found.making()
    if differing := [name for name in ours if ours[name] != theirs[name]]:
        raise ArtefactError(
            f"{output}: a run of another making (they differ in {', '.join(differing)}); --overwrite replaces it"
        )
    return True


def asked_encoder(
    manifest: Manifest, checkpoint: str | None, tokenizer: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The index's encoder as this search uses it: what the user overrode is noted in the run's manifest."""
    moved = {key: value for key, value in (("checkpoint", checkpoint), ("tokenizer", tokenizer)) if value}
    return {**manifest.encoder, **moved, "options": {**(manifest.encoder.get("options") or {}), **options}}


def note_efficiency(output: Path, written: RunManifest, efficiency: Mapping[str, float]) -> RunManifest:
    """Adds the figures of a finished search to its run's manifest."""
    noted = replace(written, efficiency=efficiency)
    write_json(manifest_path(output), noted.to_json())
    return noted


def texts_of(documents: list[ScoredDoc], manifest: Manifest, data_dir: str | None) -> dict[str, str]:
    """The contents of some documents, found by reading their corpus once.

    Raises:
        LexvlError: the corpus is not where it was.
    """
    from lexvl_anserini.data.base import load_dataset

    about = manifest.corpus
    where = data_dir or about.get("data_dir")
    split, escape_ids, direction = about.get("split") or None, bool(about.get("escape_ids")), about.get("direction")
    dataset = load_dataset(about["name"], split, where, escape_ids, direction)
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


def command(
    index: Annotated[str, typer.Option(help="Folder that index made.")],
    topics: Annotated[
        str | None,
        typer.Option(help="dataset/split, a topics file, or encoded queries Q.jsonl[.gz]; default the corpus's own."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Search this text and print the hits.")] = None,
    output: Annotated[str | None, typer.Option(help="Run to write; default runs/<corpus>.<encoder>.trec.")] = None,
    output_format: Annotated[str, typer.Option(help="Of the run: trec or msmarco.")] = "trec",
    hits: Annotated[int | None, typer.Option(min=1, help="Per topic; default 1000, with --query 10.")] = None,
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
        bool, typer.Option("--texts", help="With --query: print each hit's text, from its corpus.")
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
    threads: Annotated[int, typer.Option(min=1, help="Of FAISS and BM25; Lucene impacts use one.")] = 1,
    overwrite: Overwrite = False,
    style: Annotated[str, typer.Option("--format", help="Of printed hits and numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Search an index and write a run, or print the hits of one query.

    Example: python -m lexvl_anserini.search --index indexes/demo --topics demo/test --output runs/demo.trec
    """
    check_style(style)
    if output_format not in OUTPUT_FORMATS:
        raise UsageError(f"--output-format {output_format!r}: expected {' or '.join(OUTPUT_FORMATS)}")
    if query is not None and topics is not None:
        raise UsageError("--query and --topics exclude each other; give one of them")
    if query is not None and (output is not None or not query.strip()):
        raise UsageError("--query prints the hits of a text; it cannot be empty, and --output needs --topics")
    options = parse_settings(settings or ())
    path, manifest_file = Path(index), Path(manifest) if manifest else None
    about = index_manifest(path, manifest_file)
    opened = Index(path, about, about.counts["documents"])

    def load() -> Encoder:
        return load_encoder_of(about, checkpoint, tokenizer, device, options)

    if query is not None:
        one = [Topic("query", query)]
        [documents] = search_index(opened, one, hits or DEFAULT_HITS_SHOWN, model=load(), batch_size=batch_size)
        show(documents, texts_of(documents, about, data_dir) if texts else {}, style)
        return
    source = topic_source(topics, path, about, data_dir, vocabulary_file(path, manifest_file))
    wanted = RunManifest(
        topics=source.label,
        topics_sha256=source.sha256,
        dataset=source.dataset,
        split=source.split,
        data_dir=source.data_dir,
        corpus=about.corpus,
        encoder=asked_encoder(about, checkpoint, tokenizer, options),
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
    if is_finished(target, wanted, overwrite):
        log.info("%s: finished already, nothing to do", target)
        written = read_run_manifest(target)
    else:
        stream = source.stream()
        first = next(stream, None)
        if first is None:
            raise DataError(f"{source.label}: no topic; nothing to search")
        model = load() if isinstance(first, Topic) else None
        asked, tally = chain([first], stream), Tally()
        lists = search_index(
            opened, asked, wanted.hits, wanted.remove_query, threads, model, batch_size=batch_size, tally=tally
        )
        with progress_bar(f"search {path}", None, "topics") as progress:
            written = write_run(target, _watched(lists, progress), wanted, tag=about.encoder["name"])
        written = note_efficiency(target, written, tally.efficiency(about, path))
    assert written is not None
    if without := written.counts["topics_without_hits"]:
        log.warning("%d of %d topics have no hit: no line in the run", without, written.counts["topics"])
    print_rows({"run": str(target), **written.counts}, style)


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
    if model.kind == "impact" and model.query.vocabulary.digest != manifest.vocabulary.get("digest"):
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {model.query.vocabulary.digest[:16]}, {index} was built with "
            f"{str(manifest.vocabulary.get('digest'))[:16]}; search with the encoder that made the index"
        )


def _of_kind(queries: Iterable[Query], kind: str) -> Iterator[Query]:
    """The queries, each checked to be what an index of `kind` is asked.

    Raises:
        UsageError: one is not.
    """
    expected = {"impact": ImpactQuery, "dense": DenseQuery, "text": Topic}[kind]
    for query in queries:
        if not isinstance(query, expected):
            raise UsageError(
                f"topic {query.query_id!r}: a {type(query).__name__}, but a {kind} index is asked {expected.__name__}"
            )
        yield query


if __name__ == "__main__":
    run(command)
