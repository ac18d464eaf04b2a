"""Measures what quantising costs: `python -m eval.analyses.quantisation --corpus demo --bits 4 --bits 8`.

The ranking by integer impacts is compared with the ranking by float weights, both exact.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from lexvl_anserini.cli import (
    BatchSize,
    Checkpoint,
    DataDir,
    Device,
    Settings,
    Verbose,
    corpus_names,
    encoder_names,
    parse_settings,
    run,
)
from lexvl_anserini.encoders.cards import choose_encoder, choose_natural_direction, make_direction_option
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.runs.order import select_top_positions

from .. import options
from ..measures.inputs import sort_strictly
from ..measures.metrics import evaluate, means, measure_overlap, parse_measure
from ..report.tables import build_setting_table, render

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.quantise import Quantiser

log = logging.getLogger(__name__)

# Cells of one dense block of scores: 2^23 float64 are 64 MB.
BLOCK_CELLS = 1 << 23
DEPTHS = (10, 100)
DEFAULT_BITS = [4, 8]


def command(
    corpus: Annotated[
        str, typer.Option(help="demo, beir/<name>, beir:<path>, folder:<path>.", autocompletion=corpus_names)
    ] = "demo",
    encoder: Annotated[
        str | None, typer.Option(help="A lexical encoder; default as in encode.", autocompletion=encoder_names)
    ] = None,
    checkpoint: Checkpoint = None,
    split: Annotated[str | None, typer.Option(help="Split of topics and judgements; default test.")] = None,
    direction: Annotated[str | None, typer.Option(help="Direction of captioned images; default as in encode.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    settings: Settings = None,
    quantiser: Annotated[
        Literal["calibrated", "fixed", "naver"], typer.Option(help="How impacts are made; fixed needs --scale.")
    ] = "calibrated",
    bits: Annotated[list[int], typer.Option("--bits", help="Bits of document impacts; repeatable.")] = DEFAULT_BITS,
    query_bits: Annotated[int, typer.Option(help="Bits of query weights, lowered where a score could reach 2^24.")] = 8,
    scale: Annotated[float | None, typer.Option(help="Impacts per unit of weight, for fixed.")] = None,
    percentile: Annotated[
        float, typer.Option(help="Percentile of the sample's maxima that becomes the largest impact.")
    ] = 100.0,
    measure: Annotated[
        str, typer.Option(help="Compared on both rankings.", autocompletion=options.measure_names)
    ] = "nDCG@10",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State what quantising costs on a corpus: overlap with the float ranking, change of a measure, lost postings.

    All vectors are kept in memory.

    Example: python -m eval.analyses.quantisation --corpus demo --bits 4 --bits 8
    """
    parse_measure(measure)
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.ground.quantise import Quantiser

    quantisers = {b: Quantiser.named(quantiser, b, query_bits, scale, percentile) for b in bits}
    dataset = load_dataset(corpus, split, data_dir, direction=choose_natural_direction(encoder, direction))
    name, default_checkpoint = choose_encoder(corpus, dataset.direction, encoder)
    encoder_options = make_direction_option(name, dataset.direction) | parse_settings(settings or ())
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **encoder_options)
    losses = measure_losses(dataset, model, quantisers.values(), measure, batch_size)
    rows: list[dict[str, Any]] = [
        {"bits": b, "query bits": query_bits, **loss.figures(), "ties": "rank"}
        for b, loss in zip(quantisers, losses, strict=True)
    ]
    sys.stdout.write(render(build_setting_table(rows, {"delta": "{:+.4f}"}), rows, output_format))


@dataclass(frozen=True)
class QuantisationLoss:
    """Integer impacts against float weights: shared first k of both rankings, a measure on both, and lost postings.

    `clipped` is the share of the documents' postings at the largest impact, `dropped` the share that is rounded to 0.
    """

    measure: str
    overlap: Mapping[int, float]
    value_float: float
    value_integer: float
    clipped: float
    dropped: float

    def figures(self) -> dict[str, float]:
        """The loss as named figures, in the order of the table; a negative delta is a loss."""
        return {
            **{f"overlap@{k}": share for k, share in self.overlap.items()},
            f"{self.measure} float": self.value_float,
            f"{self.measure} integer": self.value_integer,
            "delta": self.value_integer - self.value_float,
            "clipped": self.clipped,
            "dropped": self.dropped,
        }


def measure_loss(
    document_weights: csr_matrix,
    query_weights: csr_matrix,
    doc_ids: Sequence[str],
    query_ids: Sequence[str],
    qrels: Iterable[Qrel],
    quantiser: Quantiser,
    *,
    measure: str = "nDCG@10",
    depths: Sequence[int] = DEPTHS,
    remove_query: bool = False,
) -> QuantisationLoss:
    """Ranks documents [N, V] for queries [Q, V] by float weights and by integer impacts, both exactly, and compares."""
    documents = quantiser.documents(document_weights)
    largest = int(documents.impacts.data.max(initial=0)) or None
    sides = {
        "float": (query_weights, document_weights),
        "integer": (quantiser.queries(query_weights, largest).impacts, documents.impacts),
    }
    qrels = list(qrels)
    depth = max(*depths, parse_measure(measure).k or len(doc_ids)) + remove_query
    rankings, values = {}, {}
    for side, (queries, vectors) in sides.items():
        hits = list(search_exactly(queries, vectors, query_ids, doc_ids, depth))
        name = f"ranking by {side}"
        rankings[side] = sort_strictly(hits, remove_query=remove_query, name=name)
        [values[side]] = means(evaluate(hits, qrels, [measure], name=name, remove_query=remove_query)).values()
    postings = documents.impacts.nnz + documents.dropped
    overlap = {k: measure_overlap(rankings["float"], rankings["integer"], k) for k in depths}
    lost = (documents.clipped / max(1, postings), documents.dropped / max(1, postings))
    return QuantisationLoss(measure, overlap, values["float"], values["integer"], *lost)


def search_exactly(
    queries: csr_matrix, documents: csr_matrix, query_ids: Sequence[str], doc_ids: Sequence[str], k: int
) -> Iterator[ScoredDoc]:
    """The first k documents [N, V] of each query [Q, V] by the dot product, in float64 or int64 as the matrices are.

    A document of score 0 is no hit. The order is score descending, then doc_id ascending.
    """
    assert queries.shape[0] == len(query_ids) and documents.shape[0] == len(doc_ids)
    exact = np.int64 if np.issubdtype(documents.dtype, np.integer) else np.float64
    # The documents are sorted by id, so that the place decides between equal scores.
    order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
    terms = documents[order].astype(exact).T.tocsr()  # [V, N]
    step = max(1, BLOCK_CELLS // max(1, len(doc_ids)))
    for start in range(0, len(query_ids), step):
        block = (queries[start : start + step].astype(exact) @ terms).toarray()  # [step, N]
        for query_id, scores in zip(query_ids[start : start + step], block, strict=True):
            for rank, place in enumerate(select_top_positions(scores, k), 1):
                yield ScoredDoc(query_id, doc_ids[order[place]], rank, scores[place].item())


def measure_losses(
    dataset: Dataset, model: Encoder, quantisers: Iterable[Quantiser], measure: str, batch_size: int = 32
) -> Iterator[QuantisationLoss]:
    """The loss by each quantiser; the corpus and the topics are encoded once and kept in memory."""
    from lexvl_anserini.shards.encoding import calibrate

    expect_lexical(f"encoder {model.name!r}", model.kind, "only lexical encoders are quantised")
    documents, topics = list(dataset.documents()), list(dataset.topics())
    log.info("%s: encodes %d documents and %d topics with %s", dataset.name, len(documents), len(topics), model.name)
    document_weights = as_lexical(model.document).weights([model.document.read(d) for d in documents], batch_size)
    query_weights = as_lexical(model.query).weights([model.query.read_topic(topic) for topic in topics], batch_size)
    ids = [d.doc_id for d in documents], [topic.query_id for topic in topics]
    for quantiser in quantisers:
        fitted = calibrate(quantiser, documents, len(documents), model, batch_size, name=dataset.name)
        facts = (document_weights, query_weights, *ids, dataset.qrels(), fitted)
        yield measure_loss(*facts, measure=measure, remove_query=dataset.remove_query)


if __name__ == "__main__":
    run(command)
