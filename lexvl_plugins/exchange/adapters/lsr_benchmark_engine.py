"""lsr-benchmark: a retrieval engine, `python -m lexvl_plugins.exchange.adapters.lsr_benchmark_engine --help`.

It has the options, the output and the measured steps of the engines in lsr-benchmark's `step-03-retrieval-approaches`
(lsr-benchmark 0.1). Embeddings of a data set become impacts in Lucene, which are searched exactly. Folders in the place
of names need no network: a data set of `corpus.jsonl.gz`, `queries.jsonl`, `qrels.txt`; embeddings of
`doc/doc-embeddings.npz`, `doc/doc-ids.txt`, and the same of `query`.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import ir_datasets
import lsr_benchmark
from lsr_benchmark.click import retrieve_command
from tirex_tracker import ExportFormat, register_metadata, tracking

from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.runs.trec import strict_scores
from lexvl_plugins.exchange.adapters.sparse_embeddings import (
    Decoded,
    Found,
    index_rows,
    measure_loss,
    read_queries,
    read_rows,
    search_rows,
)


@retrieve_command()
@click.option("--bits", type=click.IntRange(1, 16), default=8, show_default=True, help="Bits of document impacts.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of the search.")
def main(dataset: str, embedding: str, output: Path, k: int, bits: int, threads: int) -> None:
    """Index and search the embeddings of a data set; write run.txt.gz, and ir_metadata of both steps."""
    output.mkdir(parents=True, exist_ok=True)
    lsr_benchmark.register_to_ir_datasets(dataset)
    collection = ir_datasets.load(f"lsr-benchmark/{dataset}")
    tag = f"lexvl-{bits}-bits-{Path(embedding).name}-{k}"
    register_metadata({"actor": {"team": "lexvl-anserini"}, "tag": tag, "method": {"score ties": "order of documents"}})
    ids, vectors = _split_ids(collection.doc_embeddings(model_name=embedding))
    corpus = read_rows(vectors, "embeddings of documents")
    with _track(output / "index-metadata.yml"):
        index = index_rows(corpus, quantiser=Quantiser.named(bits=bits))
    query_ids, vectors = _split_ids(collection.query_embeddings(model_name=embedding))
    with _track(output / "retrieval-metadata.yml"):
        queries = read_queries(index, vectors)
        lists = search_rows(index, queries, k, threads)
    with atomic_write(output / "run.txt.gz") as file, gzip.open(file, "wt") as text:
        text.writelines(_format_lines(query_ids, ids, lists))
    click.echo(str(measure_loss(index, corpus, queries, lists)))


def _split_ids(embeddings: Iterable[tuple[str, Any, Any]]) -> tuple[list[str], Decoded]:
    """Splits the (id, terms, weights) of lsr-benchmark into ids and pairs."""
    rows = list(embeddings)
    pairs = [list(zip(map(str, terms.tolist()), weights.tolist(), strict=True)) for _, terms, weights in rows]
    return [name for name, _, _ in rows], pairs


@contextmanager
def _track(path: Path) -> Iterator[None]:
    """Measures time, memory and energy into a file of ir_metadata, without a copy of the working folder beside it."""
    with tracking(export_file_path=path, export_format=ExportFormat.IR_METADATA):
        yield
    shutil.rmtree(path.parent / ".tirex-tracker", ignore_errors=True)


def _format_lines(query_ids: Sequence[str], ids: Sequence[str], lists: Iterable[Found]) -> Iterator[str]:
    """Formats lists as TREC's lines; equal scores are lowered, because the evaluation orders them by itself."""
    for query_id, hits in zip(query_ids, lists, strict=True):
        scores = strict_scores([score for _, score in hits])
        for rank, ((row, _), score) in enumerate(zip(hits, scores, strict=True), 1):
            yield f"{query_id} Q0 {ids[row]} {rank} {score} lexvl\n"


if __name__ == "__main__":
    main()
