"""Compares FAISS's layouts with exact search: `python -m eval.analyses.ann impacts/scifact.sentence --layout hnsw`.

What approximate dense search costs and saves: each FAISS layout against the exact ranking, in one process.
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
import typer

from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import DenseQuery

from .. import options
from ..measures.metrics import overlap
from ..report.render import check_format, render
from ..report.tables import layout_table

if TYPE_CHECKING:
    from lexvl_anserini.engines.faiss_layouts import Store

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger(__name__)

DEFAULT_HITS = [10, 100]
DEFAULT_LAYOUTS = ["flat", "hnsw", "ivfpq", "sq8", "binary"]


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
    device: Annotated[str, typer.Option(help="Device of the encoder: auto, cpu, cuda, cuda:1.")] = "auto",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Compare FAISS's layouts with exact search on one corpus: recall, size, time. All vectors are kept in memory.

    Example: python -m eval.analyses.ann impacts/demo.sentence --layout flat --layout sq8
    """
    check_format(output_format)
    depths, values = sorted(set(hits or DEFAULT_HITS)), parameter_lists(settings or ())
    corpus, unit = read_dense_corpus(Path(shards), topics, data_dir, device)
    widths = dimensions or [corpus.documents.shape[1]]
    rows = []
    for row in compare_layouts(corpus, layout or DEFAULT_LAYOUTS, values, widths, depths, unit):
        log.info("%d dimensions, %s: %.2f ms per query", row.dimensions, row.layout, row.ms_per_query)
        rows.append(row)
    sys.stdout.write(render(layout_table(rows, depths), list(map(as_json, rows)), output_format))


# Document ids by query, best first.
Rankings = dict[str, list[str]]


class LayoutCost(NamedTuple):
    """One layout against the exact ranking of whole vectors; all times are of one thread.

    `bytes` are of the index's file without ids; `ms_per_query` is a median, one query at a time; `recall` is by depth k
    the mean share of the exact ranking's first k among this ranking's first k.
    """

    dimensions: int
    layout: str
    parameters: Mapping[str, int]
    bytes: int
    build_s: float
    ms_per_query: float
    recall: Mapping[int, float]


class DenseCorpus(NamedTuple):
    """Documents and queries to compare layouts on: ids, float32 [n, D], float32 [q, D]."""

    doc_ids: Sequence[str]
    documents: np.ndarray
    queries: np.ndarray


def parameter_lists(settings: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """`["hnsw.ef_search=16,64"]` -> `{"hnsw": {"ef_search": ["16", "64"]}}`."""
    lists: dict[str, dict[str, list[str]]] = {}
    for setting in settings:
        key, equals, values = setting.partition("=")
        layout, dot, parameter = key.partition(".")
        if not (equals and dot and layout and parameter and values):
            raise UsageError(f"--set {setting!r}: expected LAYOUT.PARAMETER=VALUE, for example hnsw.ef_search=16,64")
        lists.setdefault(layout, {})[parameter] = values.split(",")
    return lists


def grid(values: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the listed values."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def built(layout: str, documents: np.ndarray, parameters: Mapping[str, Any]) -> tuple[Store, float]:
    """The documents in a layout, and the seconds that building took."""
    from lexvl_anserini.engines.faiss import training_sample
    from lexvl_anserini.engines.faiss_layouts import Store, parameters_of

    count, width = documents.shape
    store = Store.new(layout, width, parameters_of(layout, parameters, width, count))
    started = time.perf_counter()
    if store.training_size:
        store.train(documents[training_sample(count, store.training_size)])
    store.add(documents)
    return store, time.perf_counter() - started


def searched(store: Store, doc_ids: Sequence[str], queries: np.ndarray, hits: int) -> tuple[Rankings, float]:
    """The ids that each query finds, and the median milliseconds of a query."""
    from lexvl_anserini.engines.faiss import VectorSearch

    search = VectorSearch(store, doc_ids)
    rankings, ms = {}, []
    for number, query in enumerate(queries):
        started = time.perf_counter()
        [hits_of_query] = search.search([DenseQuery(str(number), query)], hits)
        ms.append(1000 * (time.perf_counter() - started))
        rankings[str(number)] = [document.doc_id for document in hits_of_query]
    return rankings, statistics.median(ms)


def file_bytes(store: Store) -> int:
    """Size of the index's file."""
    with TemporaryDirectory() as folder:
        store.write(Path(folder) / "index")
        return (Path(folder) / "index").stat().st_size


def compare_layouts(
    corpus: DenseCorpus,
    layouts: Sequence[str],
    settings: Mapping[str, Mapping[str, Sequence[str]]],
    dimensions: Sequence[int],
    hits: Sequence[int],
    normalise: bool = True,
) -> Iterator[LayoutCost]:
    """A row per number of dimensions, layout and combination of parameters; each index is built once."""
    from lexvl_anserini.encoders.parts.sparsify import checked_dimensions, cut
    from lexvl_anserini.engines.faiss_layouts import layout_named, parameters_of

    known = {name: layout_named(name) for name in layouts}
    if unknown := [name for name in settings if name not in known]:
        raise UsageError(f"--set {unknown[0]}....: that layout is not compared; compared: {', '.join(layouts)}")
    depth = max(hits)
    exact, _ = searched(built("flat", corpus.documents, {})[0], corpus.doc_ids, corpus.queries, depth)
    width = corpus.documents.shape[1]
    for count in dimensions:
        whole = checked_dimensions(count, width) == width
        documents, queries = (
            matrix if whole else cut(matrix, count, normalise) for matrix in (corpus.documents, corpus.queries)
        )
        for name in layouts:
            values = settings.get(name, {})
            searching = {key: values[key] for key in values if key in known[name].searching}
            building = {key: values[key] for key in values if key not in searching}
            for build in grid(building):
                store, build_s = built(name, documents, build)
                size = file_bytes(store)
                for search in grid(searching):
                    store.parameters = parameters_of(name, {**build, **search}, count, len(store))
                    lists, ms = searched(store, corpus.doc_ids, queries, depth)
                    recalls = {k: overlap(exact, lists, k) for k in hits}
                    yield LayoutCost(count, name, store.parameters, size, build_s, ms, recalls)


def read_dense_corpus(shards: Path, topics: str | None, data_dir: str | None, device: str) -> tuple[DenseCorpus, bool]:
    """The vectors of dense shards and of encoded topics; and whether the documents have unit length."""
    from lexvl_anserini.encoders.loading import load_encoder_of
    from lexvl_anserini.ground.manifest import read_manifest
    from lexvl_anserini.queries.query_source import topic_source
    from lexvl_anserini.queries.query_vectors import encode_queries
    from lexvl_anserini.shards.reading import read_vectors

    manifest = read_manifest(shards)
    if manifest.kind != "dense":
        raise UsageError(f"{shards}: {manifest.kind} shards; FAISS indexes dense ones")
    source = topic_source(topics, shards, manifest, data_dir, None)
    model = load_encoder_of(manifest.encoder, device=device, vocabulary=manifest.vocabulary_digest)
    queries: list[Any] = list(encode_queries(model, source.stream(), manifest))  # type: ignore[arg-type]
    if not queries:
        raise UsageError(f"{source.label}: no topic; nothing to search")
    batches = list(read_vectors(shards, manifest))
    ids = [doc_id for batch in batches for doc_id in batch.doc_ids]
    documents = np.concatenate([batch.vectors for batch in batches])
    unit = bool(np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-3))
    return DenseCorpus(ids, documents, np.stack([query.vector for query in queries])), unit


def as_json(row: LayoutCost) -> dict[str, Any]:
    """A row with its recalls as `recall@k`."""
    values = {key: value for key, value in row._asdict().items() if key != "recall"}
    return {**values, **{f"recall@{k}": value for k, value in row.recall.items()}}


if __name__ == "__main__":
    run(command)
