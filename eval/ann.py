"""What approximate dense search costs and saves: every FAISS layout against the exact ranking, in one process.

python -m eval.ann impacts/scifact.sentence --layout flat --layout hnsw --set hnsw.ef_search=16,64,256
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import orjson
import typer

from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format
from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.errors import UsageError
from lexvl_anserini.records import DenseQuery, ScoredDoc

if TYPE_CHECKING:
    from lexvl_anserini.engines.faiss_layouts import Store

log = logging.getLogger("eval.ann")

FORMATS = (*TABLE_FORMATS, "json")
DEFAULT_HITS = [10, 100]
DEFAULT_LAYOUTS = ["flat", "hnsw", "ivfpq", "sq8", "binary"]


class Row(NamedTuple):
    """One layout against the exact ranking of whole vectors.

    dimensions    of the vectors, cut (Matryoshka) or whole
    layout        and all its parameters
    bytes         of the index's file, without ids
    build_s       seconds of learning and adding, one thread
    ms_per_query  median, one query at a time, one thread
    recall        by depth k: mean share of the exact ranking's first k among this ranking's first k
    """

    dimensions: int
    layout: str
    parameters: Mapping[str, int]
    bytes: int
    build_s: float
    ms_per_query: float
    recall: Mapping[int, float]


class Vectors(NamedTuple):
    """Documents and queries to compare layouts on: ids, float32 [n, D], float32 [q, D]."""

    doc_ids: Sequence[str]
    documents: np.ndarray
    queries: np.ndarray


def parameter_lists(settings: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """`["hnsw.ef_search=16,64"]` -> `{"hnsw": {"ef_search": ["16", "64"]}}`.

    Raises:
        UsageError: an entry is not LAYOUT.PARAMETER=VALUE[,VALUE...].
    """
    found: dict[str, dict[str, list[str]]] = {}
    for setting in settings:
        key, equals, values = setting.partition("=")
        layout, dot, parameter = key.partition(".")
        if not (equals and dot and layout and parameter and values):
            raise UsageError(f"--set {setting!r}: expected LAYOUT.PARAMETER=VALUE, for example hnsw.ef_search=16,64")
        found.setdefault(layout, {})[parameter] = values.split(",")
    return found


def grid(values: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Every combination of the listed values."""
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def built(layout: str, documents: np.ndarray, parameters: Mapping[str, Any]) -> tuple[Store, float]:
    """The documents in a layout, and the seconds it took."""
    from lexvl_anserini.engines.faiss import training_sample
    from lexvl_anserini.engines.faiss_layouts import Store, parameters_of

    count, width = documents.shape
    store = Store.new(layout, width, parameters_of(layout, parameters, width, count))
    started = time.perf_counter()
    if store.training_size:
        store.train(documents[training_sample(count, store.training_size)])
    store.add(documents)
    return store, time.perf_counter() - started


def searched(store: Store, doc_ids: Sequence[str], queries: np.ndarray, hits: int) -> tuple[list[list[str]], float]:
    """The ids of each query's list, and the median milliseconds of a query."""
    from lexvl_anserini.engines.faiss import VectorSearch

    search = VectorSearch(store, doc_ids)
    lists, ms = [], []
    for number, query in enumerate(queries):
        started = time.perf_counter()
        [found] = search.search([DenseQuery(str(number), query)], hits)
        ms.append(1000 * (time.perf_counter() - started))
        lists.append(ids_of(found))
    return lists, statistics.median(ms)


def ids_of(documents: Iterable[ScoredDoc]) -> list[str]:
    """The ids of a ranked list."""
    return [document.doc_id for document in documents]


def recall(found: Sequence[Sequence[str]], exact: Sequence[Sequence[str]], depth: int) -> float:
    """Mean share of each exact list's first `depth` that the other list's first `depth` holds."""
    shares = [len({*e[:depth]} & {*f[:depth]}) / len(e[:depth]) for f, e in zip(found, exact, strict=True)]
    return float(np.mean(shares))


def file_bytes(store: Store) -> int:
    """Size of the index's file."""
    with TemporaryDirectory() as folder:
        store.write(Path(folder) / "index")
        return (Path(folder) / "index").stat().st_size


def compare(
    vectors: Vectors,
    layouts: Sequence[str],
    settings: Mapping[str, Mapping[str, Sequence[str]]],
    dimensions: Sequence[int],
    hits: Sequence[int],
    normalise: bool = True,
) -> Iterator[Row]:
    """A row per number of dimensions, layout and combination of parameters; an index is built once per build.

    Args:
        settings: by layout and parameter, the values to try.
        dimensions: numbers of first dimensions to keep (Matryoshka).
        hits: depths k of the recall.
        normalise: cut vectors are of unit length again.

    Raises:
        UsageError: settings of a layout that is not compared, or what does not fit.
    """
    from lexvl_anserini.encoders.parts.dense import checked_dimensions, cut
    from lexvl_anserini.engines.faiss_layouts import layout_named, parameters_of

    known = {name: layout_named(name) for name in layouts}
    if strange := [name for name in settings if name not in known]:
        raise UsageError(f"--set {strange[0]}....: that layout is not compared; compared: {', '.join(layouts)}")
    depth = max(hits)
    exact, _ = searched(built("flat", vectors.documents, {})[0], vectors.doc_ids, vectors.queries, depth)
    width = vectors.documents.shape[1]
    for kept in dimensions:
        whole = checked_dimensions(kept, width) == width
        documents, queries = (
            matrix if whole else cut(matrix, kept, normalise) for matrix in (vectors.documents, vectors.queries)
        )
        for name in layouts:
            values = settings.get(name, {})
            searching = {key: values[key] for key in values if key in known[name].searching}
            building = {key: values[key] for key in values if key not in searching}
            for build in grid(building):
                store, build_s = built(name, documents, build)
                size = file_bytes(store)
                for search in grid(searching):
                    store.parameters = parameters_of(name, {**build, **search}, kept, len(store))
                    found, ms = searched(store, vectors.doc_ids, queries, depth)
                    recalls = {k: recall(found, exact, k) for k in hits}
                    yield Row(kept, name, store.parameters, size, build_s, ms, recalls)


def read_all(shards: Path, topics: str | None, data_dir: str | None, device: str) -> tuple[Vectors, bool]:
    """Documents of dense shards and encoded topics; and whether the documents are of unit length.

    Raises:
        UsageError: the shards are not dense, or there is no topic.
    """
    from lexvl_anserini.encode import encode_queries
    from lexvl_anserini.encoders.loading import load_encoder_of
    from lexvl_anserini.manifest import read_manifest
    from lexvl_anserini.queries.topics import topic_source
    from lexvl_anserini.shards.reading import read_vectors

    manifest = read_manifest(shards)
    if manifest.kind != "dense":
        raise UsageError(f"{shards}: {manifest.kind} shards; FAISS indexes dense ones")
    source = topic_source(topics, shards, manifest, data_dir, None)
    model = load_encoder_of(manifest.encoder, device=device, vocabulary=manifest.vocabulary_digest)
    queries: list[Any] = list(encode_queries(model, source.stream(), manifest))  # type: ignore[arg-type]
    if not queries:
        raise UsageError(f"{source.label}: no topic; nothing to search")
    ids: list[str] = []
    pieces: list[np.ndarray] = []
    for batch in read_vectors(shards, manifest):
        ids.extend(batch.doc_ids)
        pieces.append(batch.vectors)
    documents = np.concatenate(pieces)
    unit = bool(np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-3))
    return Vectors(ids, documents, np.stack([query.vector for query in queries])), unit


def table(rows: Sequence[Row], hits: Sequence[int]) -> Table:
    """The rows as a grid of texts."""
    headings = ("bytes", "build s", "ms/query", *(f"recall@{k}" for k in hits))
    columns = (Column("dims"), Column("layout", number=False), Column("parameters", number=False))
    cells = tuple(
        (
            str(row.dimensions),
            row.layout,
            " ".join(f"{key}={value}" for key, value in row.parameters.items()),
            f"{row.bytes:,}",
            f"{row.build_s:.1f}",
            f"{row.ms_per_query:.2f}",
            *(f"{row.recall[k]:.4f}" for k in hits),
        )
        for row in rows
    )
    return Table((*columns, *map(Column, headings)), cells)


def as_json(row: Row) -> dict[str, Any]:
    """A row with its recalls as `recall@k`."""
    values = {key: value for key, value in row._asdict().items() if key != "recall"}
    return {**values, **{f"recall@{k}": value for k, value in row.recall.items()}}


def command(
    shards: Annotated[str, typer.Argument(help="Folder of dense vectors that encode wrote.")],
    topics: Annotated[
        str | None, typer.Option(help="dataset/split or a topics file; default the corpus's own.")
    ] = None,
    layout: Annotated[list[str] | None, typer.Option(help="flat, hnsw, ivfpq, sq8, binary; repeatable.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="LAYOUT.PARAMETER=VALUE[,VALUE...]: a row for each combination; repeatable."),
    ] = None,
    dimensions: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Keep the first dimensions only (Matryoshka); repeatable; default all."),
    ] = None,
    hits: Annotated[list[int] | None, typer.Option(min=1, help="Depths of the recall; default 10 and 100.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="Of the encoder: auto, cpu, cuda, cuda:1.")] = "auto",
    output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Compare FAISS's layouts with exact search on one corpus: recall, size, time. All vectors are held in memory.

    Example: python -m eval.ann impacts/demo.sentence --layout flat --layout sq8
    """
    check_format(output_format, FORMATS)
    depths, values = sorted(set(hits or DEFAULT_HITS)), parameter_lists(settings or ())
    vectors, unit = read_all(Path(shards), topics, data_dir, device)
    wanted = dimensions or [vectors.documents.shape[1]]
    rows = []
    for row in compare(vectors, layout or DEFAULT_LAYOUTS, values, wanted, depths, unit):
        log.info("%d dimensions, %s: %.2f ms a query", row.dimensions, row.layout, row.ms_per_query)
        rows.append(row)
    if output_format == "json":
        sys.stdout.write(orjson.dumps([as_json(row) for row in rows], option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(TABLE_FORMATS[output_format](table(rows, depths)))


if __name__ == "__main__":
    run(command)
