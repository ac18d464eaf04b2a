"""A run -> the same run with the first documents of each topic scored anew by a model's own inner product, in floats.

python -m lexvl_anserini.rerank --run runs/scifact.svdr.trec --output runs/scifact.svdr-reranked.trec

SVDR's late parametric search: documents are indexed as bags of tokens without a network (beta), and only the first
`depth` that a query finds are encoded, on the fly, and scored by both towers. FDT's: found by weights, re-ranked by
features. The documents below `depth` keep their order, below those above.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini import cli
from lexvl_anserini.cli import DataDir, Overwrite, Verbose, check_style, parse_settings, print_rows
from lexvl_anserini.encoders.cards import card_of
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.hybrid import Part, hybrid_lists, topics_of
from lexvl_anserini.manifest import Counts, EncoderRef, RunManifest, read_run_manifest
from lexvl_anserini.ranking.runs import is_finished, lists_of, write_run
from lexvl_anserini.records import ScoredDoc, Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.records import Document

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.rerank")

# The published protocol (model cards of SVDR).
DEPTH = 100


def rerank_lists(
    topics: Iterable[Topic],
    lists: Mapping[str, Sequence[ScoredDoc]],
    model: Encoder,
    documents: Callable[[], Iterator[Document]],
    depth: int = DEPTH,
    batch_size: int = 32,
) -> Iterator[list[ScoredDoc]]:
    """One list per topic: its first `depth` documents by the model's inner product, then the others as they were.

    Args:
        lists: per topic the documents of the first search, in rank order.
        documents: the corpus, from the start at each call; only documents that are scored are encoded.

    Raises:
        UsageError: the model has no vectors.
        DataError: a document of the lists is not in the corpus.
    """
    candidates = {query_id: [d.doc_id for d in found[:depth]] for query_id, found in lists.items()}
    part = Part(model, 1.0, documents)
    for first in hybrid_lists(topics, candidates, [part], hits=depth, batch_size=batch_size):
        rest = lists[first[0].query_id][depth:] if first else ()
        yield [*first, *below(rest, first)]


def below(rest: Sequence[ScoredDoc], first: Sequence[ScoredDoc]) -> list[ScoredDoc]:
    """The documents of another scale in their order, from 1 below the last of `first` on; their distances stay."""
    shift = first[-1].score - 1 - rest[0].score if rest else 0.0
    return [d._replace(rank=rank, score=d.score + shift) for rank, d in enumerate(rest, start=len(first) + 1)]


def model_of(
    about: RunManifest, checkpoint: str | None, tokenizer: str | None, device: str, settings: Mapping[str, Any]
) -> Encoder:
    """The encoder of a run for its second look (see `rerank_options` of its card), with the user's settings.

    Raises:
        ArtefactError: the checkpoint is not the one that made the run.
    """
    settings = {**card_of(about.encoder.name).rerank_options, **settings}
    # No vocabulary: the second look need not have the index's.
    return load_encoder_of(about.encoder, checkpoint, tokenizer, device, settings)


def reranked_manifest(about: RunManifest, model: Encoder, depth: int) -> RunManifest:
    """What is known of the new run: its model and depth beside the encoder of the first search."""
    encoder = EncoderRef({**model.identity(), "reranks": {"depth": depth, "encoder": dict(about.encoder)}})
    return replace(about, encoder=encoder, quantiser={}, efficiency={}, counts=Counts())


def command(
    run: Annotated[Path, typer.Option("--run", help="A run that search wrote, with its manifest.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    depth: Annotated[int, typer.Option(min=1, help="Documents of each topic that are scored anew.")] = DEPTH,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the run's encoder, KEY=VALUE; repeatable.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the run's checkpoint lies now.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Where its tokenizer lies now.")] = None,
    topics: Annotated[str | None, typer.Option(help="The topics' file, if the run's topics came from one.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Items per forward pass.")] = 32,
    overwrite: Overwrite = False,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Score the first documents of a run anew by its encoder's full vectors.

    For svdr and vdr: both sides parametric, with a text's own tokens; for fdt: features.

    Example: python -m lexvl_anserini.rerank --run runs/demo.svdr.trec --output runs/demo.svdr-reranked.trec
    """
    from lexvl_anserini.data.dataset import noted_dataset

    check_style(style)
    about = read_run_manifest(run)
    if about is None:
        raise ArtefactError(f"{run}: no manifest beside it that names its encoder; make the run with search")
    model = model_of(about, checkpoint, tokenizer, device, parse_settings(settings or ()))
    wanted = reranked_manifest(about, model, depth)
    if is_finished(output, wanted, overwrite):
        log.info("%s: finished already, nothing to do", output)
        written = read_run_manifest(output)
        assert written is not None
    else:
        dataset = noted_dataset(about.corpus, data_dir)
        stream = topics_of(about, topics, data_dir)
        lists = rerank_lists(stream, lists_of(run), model, dataset.documents, depth, batch_size)
        written = write_run(output, lists, wanted, tag=f"{model.name}-reranked")
    print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    cli.run(command)
