"""Index x topics -> run: topics are encoded as the index's manifest says, searched, and written as ranked lists."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import DataDir, Overwrite, Verbose, progress_bar, run
from lexvl_anserini.encode import check_style, encode_queries, file_name, load_encoder_of, print_rows
from lexvl_anserini.engines.folder import MANIFEST, VOCABULARY
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.files import file_sha256, read_json
from lexvl_anserini.records import DenseQuery, ImpactQuery, Index, Manifest, ScoredDoc, Topic
from lexvl_anserini.registry import ENGINES, resolve
from lexvl_anserini.runs import OUTPUT_FORMATS, RunManifest, manifest_path, read_run_manifest, write_run

if TYPE_CHECKING:
    from lexvl_anserini.encoders.base import Encoder
    from lexvl_anserini.engines.base import Engine

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.search")

Query = ImpactQuery | DenseQuery | Topic

DEFAULT_HITS = 1000
DEFAULT_HITS_SHOWN = 10

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


@dataclass(frozen=True)
class TopicSource:
    """Where topics come from.

    stream        starts reading them: topics still to be encoded, or encoded queries
    label         as the user named them
    dataset, split, data_dir   where their judgements are; empty for a file
    remove_query  the data set's own rule
    sha256        of a file
    """

    stream: Callable[[], Iterator[Query]]
    label: str
    dataset: str = ""
    split: str = ""
    data_dir: str | None = None
    remove_query: bool = False
    sha256: str = ""


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
    engine: Engine = resolve("engine", about.kind, ENGINES)(path, about)
    try:
        for documents in engine.search(_of_kind(queries, about.kind), hits + remove_query, threads):
            yield without_query(documents, hits) if remove_query else documents
    finally:
        engine.close()


def without_query(documents: list[ScoredDoc], hits: int) -> list[ScoredDoc]:
    """The list without the document that is the topic itself, cut at `hits`, ranks again from 1."""
    kept = [d for d in documents if d.doc_id != d.query_id][:hits]
    return [d._replace(rank=rank) for rank, d in enumerate(kept, start=1)]


def read_queries(path: Path, index: Path, manifest: Manifest, vocabulary: Path | None = None) -> Iterator[ImpactQuery]:
    """Streams encoded queries `{"id", "contents", "vector": {term: weight}}`, as `encode --topics` writes them.

    Args:
        path: JSON lines, gzipped if the name ends in .gz; a `<path>.manifest.json` beside it is compared.
        index: what they are for, named in errors.
        manifest: of the index.
        vocabulary: `vocab.txt` of the index; without one, unknown terms cannot be told from terms without postings.

    Raises:
        DataError: a line is malformed, an id comes twice, or there is no query.
        ArtefactError: another vocabulary or quantiser than the index's.
    """
    if manifest.kind != "impact":
        raise UsageError(f"{path}: encoded lexical queries, but {index} is {manifest.kind}")
    _compare_manifest(path, index, manifest)
    known = set(vocabulary.read_text(encoding="utf-8").split("\n")) if vocabulary else None
    seen: set[str] = set()
    for where, row in _json_rows(path):
        query = _query(row, where)
        if query.query_id in seen:
            raise DataError(f"{where}: query id {query.query_id!r} a second time; ids must be distinct")
        seen.add(query.query_id)
        if known is not None and not query.vector.keys() <= known:
            strange = next(term for term in query.vector if term not in known)
            raise ArtefactError(
                f"{where}: term {strange!r} is not in the vocabulary of {index}; another encoder's query?"
            )
        yield query
    if not seen:
        raise DataError(f"{path}: no query in it")


def topic_source(
    topics: str | None, index: Path, manifest: Manifest, data_dir: str | None, vocabulary: Path | None
) -> TopicSource:
    """Finds the topics: a file of topics or of encoded queries, a data set's split, or the corpus's own.

    Raises:
        LexvlError: as `load_dataset`, `read_topics` and `read_queries`.
    """
    from lexvl_anserini.data.base import load_dataset
    from lexvl_anserini.data.topics import read_topics

    if topics and Path(topics).is_file():
        path = Path(topics)
        escape_ids = bool(manifest.corpus.get("escape_ids"))
        stream: Callable[[], Iterator[Query]] = partial(read_topics, path, escape_ids)
        if _holds_vectors(path):
            stream = partial(read_queries, path, index, manifest, vocabulary)
        return TopicSource(stream, path.name, sha256=file_sha256(path))
    corpus = manifest.corpus
    name, split = (topics, None) if topics else (corpus["name"], corpus.get("split"))
    where = data_dir or corpus.get("data_dir")
    dataset = load_dataset(name, split, where, bool(corpus.get("escape_ids")))
    return TopicSource(
        dataset.topics, f"{dataset.name}/{dataset.split}", dataset.name, dataset.split, where, dataset.remove_query
    )


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


def show(documents: list[ScoredDoc], style: str) -> None:
    """Prints one ranked list."""
    if style == "json":
        rows = [{"rank": d.rank, "score": d.score, "doc_id": d.doc_id} for d in documents]
        sys.stdout.write(orjson.dumps(rows).decode() + "\n")
        return
    if not documents:
        log.info("no document has a term of the query")
    for document in documents:
        typer.echo(f"{document.rank:4}  {document.score:12.6g}  {document.doc_id}")


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
    path, manifest_file = Path(index), Path(manifest) if manifest else None
    about = index_manifest(path, manifest_file)
    opened = Index(path, about, about.counts["documents"])

    def load() -> Encoder:
        return load_encoder_of(about, checkpoint, tokenizer, device)

    if query is not None:
        asked = [Topic("query", query)]
        [documents] = search_index(opened, asked, hits or DEFAULT_HITS_SHOWN, model=load(), batch_size=batch_size)
        show(documents, style)
        return
    source = topic_source(topics, path, about, data_dir, _vocabulary_file(path, manifest_file))
    wanted = RunManifest(
        topics=source.label,
        topics_sha256=source.sha256,
        dataset=source.dataset,
        split=source.split,
        data_dir=source.data_dir,
        corpus=about.corpus,
        encoder={**about.encoder, **{k: v for k, v in (("checkpoint", checkpoint), ("tokenizer", tokenizer)) if v}},
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
        lists = search_index(
            opened, chain([first], stream), wanted.hits, wanted.remove_query, threads, model, batch_size=batch_size
        )
        with progress_bar(f"search {path}", None, "topics") as progress:
            written = write_run(target, _watched(lists, progress), wanted, tag=about.encoder["name"])
    assert written is not None
    if without := written.counts["topics_without_hits"]:
        log.warning("%d of %d topics have no hit: no line in the run", without, written.counts["topics"])
    print_rows({"run": str(target), **written.counts}, style)


def _watched(lists: Iterable[list[ScoredDoc]], progress: Callable[[int], None]) -> Iterator[list[ScoredDoc]]:
    for documents in lists:
        yield documents
        progress(1)


def _vocabulary_file(index: Path, manifest: Path | None) -> Path | None:
    """`vocab.txt` of the index, or of the shards beside whose manifest it lies."""
    folder = index if manifest is None else manifest if manifest.is_dir() else manifest.parent
    path = folder / VOCABULARY
    return path if path.is_file() else None


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


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each JSON object of a plain or gzipped file, and where it stands."""
    from lexvl_anserini.data.lines import parse_object, read_lines

    for line in read_lines(path):
        yield line.where, parse_object(line)


def _holds_vectors(path: Path) -> bool:
    """True if the first line is an encoded query."""
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        return False
    first = next(_json_rows(path), None)
    return first is not None and "vector" in first[1]


def _query(row: dict[str, Any], where: str) -> ImpactQuery:
    """One encoded query.

    Raises:
        DataError: no id or vector, or weights that are no integers >= 1.
    """
    query_id, vector = row.get("id"), row.get("vector")
    if not isinstance(query_id, str) or query_id.split() != [query_id]:
        raise DataError(f"{where}: id {query_id!r}, expected a text without white space")
    if not isinstance(vector, dict):
        raise DataError(f"{where}: vector {str(vector)[:40]!r}, expected an object of term and weight")
    for term, weight in vector.items():
        if type(weight) is not int or weight < 1:
            raise DataError(f"{where}: weight {weight!r} of term {term!r}, expected an integer >= 1")
    return ImpactQuery(query_id, vector)


def _compare_manifest(path: Path, index: Path, manifest: Manifest) -> None:
    """Compares the manifest beside encoded queries, if there is one, with the index's.

    Raises:
        ArtefactError: another vocabulary or quantiser.
    """
    beside = path.with_name(path.name + ".manifest.json")
    if not beside.is_file():
        return
    theirs = read_json(beside, "manifest of the queries")
    for part, key in (("vocabulary", "digest"), ("quantiser", None)):
        found, expected = theirs.get(part, {}), getattr(manifest, part)
        if key is not None:
            found, expected = found.get(key), expected.get(key)
        if found and found != expected:
            raise ArtefactError(
                f"{path}: encoded with {part} {str(found)[:60]}, {index} was built with {str(expected)[:60]}; encode "
                "the topics again"
            )


if __name__ == "__main__":
    run(command)
