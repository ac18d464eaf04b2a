"""What quantising costs: the ranking by integer impacts against the ranking by float weights, both searched exactly.

python -m eval.quantisation --corpus demo --encoder vdr --checkpoint minilm --bits 4 --bits 8
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import orjson
import typer

from eval.measures.metrics import evaluate, mean, means, parse_measure
from eval.measures.order import strict_order
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format
from lexvl_anserini.cli import DataDir, Verbose, parse_settings, run
from lexvl_anserini.encoders.cards import default_encoder, direction_option, natural_direction
from lexvl_anserini.errors import UsageError
from lexvl_anserini.ranking.order import top_positions
from lexvl_anserini.records import Qrel, ScoredDoc

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from lexvl_anserini.quantise import Quantiser

log = logging.getLogger("eval.quantisation")

# Cells of one dense block of scores: 2^23 float64 are 64 MB.
BLOCK_CELLS = 1 << 23

DEPTHS = (10, 100)

DEFAULT_BITS = [4, 8]

FORMATS = (*TABLE_FORMATS, "json")


@dataclass(frozen=True)
class QuantisationLoss:
    """Integer impacts against float weights.

    overlap           by depth k: mean share of the float ranking's first k that the integer ranking's first k holds
    value_float       the measure on the ranking by float weights
    value_integer     the measure on the ranking by integer impacts
    clipped           share of the documents' postings cut to the largest impact
    dropped           share of the documents' postings rounded to 0
    """

    measure: str
    overlap: Mapping[int, float]
    value_float: float
    value_integer: float
    clipped: float
    dropped: float

    @property
    def delta(self) -> float:
        """Integer minus float: negative is a loss."""
        return self.value_integer - self.value_float


def exact_search(
    queries: csr_matrix, documents: csr_matrix, query_ids: Sequence[str], doc_ids: Sequence[str], k: int
) -> Iterator[ScoredDoc]:
    """Ranks by the dot product, in float64 or int64 as the matrices are; a document of score 0 is no hit.

    Args:
        queries: [Q, V].
        documents: [N, V].
        query_ids: Q of them.
        doc_ids: N of them.
        k: hits per topic; order is score descending, then doc_id ascending.
    """
    assert queries.shape[0] == len(query_ids) and documents.shape[0] == len(doc_ids)
    exact = np.int64 if np.issubdtype(documents.dtype, np.integer) else np.float64
    # With the documents sorted by id, the place decides between equal scores.
    order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
    terms = documents[order].astype(exact).T.tocsr()  # [V, N]
    step = max(1, BLOCK_CELLS // max(1, len(doc_ids)))
    for start in range(0, len(query_ids), step):
        block = (queries[start : start + step].astype(exact) @ terms).toarray()  # [step, N]
        for query_id, scores in zip(query_ids[start : start + step], block, strict=True):
            for rank, place in enumerate(top_positions(scores, k), 1):
                yield ScoredDoc(query_id, doc_ids[order[place]], rank, scores[place].item())


def overlap(reference: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]], k: int) -> float:
    """Mean over the reference's topics of the share of its first k documents that the other's first k hold."""
    return mean(
        len(set(ranking[:k]) & set(other.get(query_id, ())[:k])) / len(ranking[:k])
        for query_id, ranking in reference.items()
        if ranking
    )


def quantisation_loss(
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
    """Ranks by float weights and by integer impacts, both exactly, and compares.

    Args:
        document_weights: float [N, V].
        query_weights: float [Q, V].
        doc_ids: N of them.
        query_ids: Q of them.
        qrels: judgements of the topics.
        quantiser: of both sides, calibrated.
        measure: compared on both rankings.
        depths: of the overlap.
        remove_query: a hit whose doc_id is the query_id does not count.

    Raises:
        DataError: no document matches any query, or the topics have no judgements.
        LexvlError: a score could reach 2^24.
    """
    documents = quantiser.documents(document_weights)
    largest = int(documents.impacts.data.max(initial=0)) or None
    sides = {
        "float": (query_weights, document_weights),
        "integer": (quantiser.queries(query_weights, largest).impacts, documents.impacts),
    }
    qrels = list(qrels)
    depth = max(*depths, parse_measure(measure).k or len(doc_ids)) + remove_query
    rankings, values = {}, {}
    for name, (queries, vectors) in sides.items():
        hits = list(exact_search(queries, vectors, query_ids, doc_ids, depth))
        told = f"ranking by {name}"
        rankings[name] = strict_order(hits, remove_query=remove_query, name=told)
        [values[name]] = means(evaluate(hits, qrels, [measure], name=told, remove_query=remove_query)).values()
    postings = documents.impacts.nnz + documents.dropped
    return QuantisationLoss(
        measure=measure,
        overlap={k: overlap(rankings["float"], rankings["integer"], k) for k in depths},
        value_float=values["float"],
        value_integer=values["integer"],
        clipped=documents.clipped / max(1, postings),
        dropped=documents.dropped / max(1, postings),
    )


def figures(loss: QuantisationLoss) -> dict[str, float]:
    """The loss as named figures, in the order of the table."""
    return {
        **{f"overlap@{k}": share for k, share in loss.overlap.items()},
        f"{loss.measure} float": loss.value_float,
        f"{loss.measure} integer": loss.value_integer,
        "delta": loss.delta,
        "clipped": loss.clipped,
        "dropped": loss.dropped,
    }


def loss_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per quantiser."""

    def cell(name: str, value: int | float) -> str:
        return str(value) if isinstance(value, int) else f"{value:{'+' if name == 'delta' else ''}.4f}"

    cells = tuple(tuple(cell(name, value) for name, value in row.items()) for row in rows)
    return Table(tuple(map(Column, rows[0])), cells)


def command(
    corpus: Annotated[str, typer.Option(help="demo, beir/<name>, beir:<path>, folder:<path>.")] = "demo",
    encoder: Annotated[str | None, typer.Option(help="A lexical encoder; default as in encode.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder, hub id (owner/name[@revision]) or packaged.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of topics and judgements; default test.")] = None,
    direction: Annotated[str | None, typer.Option(help="Of captioned images; default as in encode.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 32,
    settings: Annotated[list[str] | None, typer.Option("--set", help="An encoder's option, KEY=VALUE.")] = None,
    quantiser: Annotated[str, typer.Option(help="calibrated, fixed (with --scale) or naver.")] = "calibrated",
    bits: Annotated[list[int], typer.Option("--bits", help="Of document impacts; repeat for several.")] = DEFAULT_BITS,
    query_bits: Annotated[int, typer.Option(help="Of query weights, lowered where a score could reach 2^24.")] = 8,
    scale: Annotated[float | None, typer.Option(help="Impacts per unit of weight, for fixed.")] = None,
    percentile: Annotated[float, typer.Option(help="Of the sample's maxima that becomes the largest impact.")] = 100.0,
    measure: Annotated[str, typer.Option(help="Compared on both rankings.")] = "nDCG@10",
    output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """State what quantising costs on a corpus: overlap with the float ranking, change of a measure, postings lost.

    All vectors are held in memory.

    Example: python -m eval.quantisation --corpus demo --bits 4 --bits 8
    """
    check_format(output_format, FORMATS)
    parse_measure(measure)
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.quantise import Quantiser
    from lexvl_anserini.shards.writing import calibrated

    wanted = {b: Quantiser.named(quantiser, b, query_bits, scale, percentile) for b in bits}
    dataset = load_dataset(corpus, split, data_dir, direction=natural_direction(encoder, direction))
    name, default_checkpoint = default_encoder(corpus, dataset.direction, encoder)
    options = direction_option(name, dataset.direction) | parse_settings(settings or ())
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **options)
    if model.kind != "impact":
        raise UsageError(f"encoder {model.name!r} is {model.kind}; only lexical encoders are quantised")
    documents, topics = list(dataset.documents()), list(dataset.topics())
    log.info("%s: encoding %d documents and %d topics with %s", corpus, len(documents), len(topics), name)
    document_weights = model.document.weights([model.document.read(d) for d in documents], batch_size)
    query_weights = model.query.weights([model.query.read_topic(topic) for topic in topics], batch_size)
    rows = []
    for b, requested in wanted.items():
        ready = calibrated(requested, dataset, len(documents), model, batch_size)
        loss = quantisation_loss(
            document_weights,
            query_weights,
            [d.doc_id for d in documents],
            [topic.query_id for topic in topics],
            dataset.qrels(),
            ready,
            measure=measure,
            remove_query=dataset.remove_query,
        )
        rows.append({"bits": b, "query bits": query_bits, **figures(loss)})
    if output_format == "json":
        sys.stdout.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write(TABLE_FORMATS[output_format](loss_table(rows)))


if __name__ == "__main__":
    run(command)
