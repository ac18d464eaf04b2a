"""A contact sheet: queries, the first hits of each, and the terms that made them; of a run, the right hit is framed.

python -m eval.sheet --run runs/demo.vdr-crossmodal.trec --index indexes/demo --output sheet.png
python -m eval.sheet --query "two dogs" --query "a red boat" --index indexes/photos --output sheet.png
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eval.measures.inputs import describe_run
from eval.report.strips import Cell, Item, Strip, draw_sheet
from lexvl_anserini.cli import DataDir, Verbose, check_style, print_rows, run
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.explain import Explanation, as_cut, encoded, encoder_options, explain, warn_of_other_scores
from lexvl_anserini.manifest import Manifest, read_run_manifest
from lexvl_anserini.queries.topics import typed_topic
from lexvl_anserini.ranking.runs import in_rank_order, read_run
from lexvl_anserini.records import Document, Index, ScoredDoc, Topic

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder

DEFAULT_QUERIES = 3
DEFAULT_HITS = 5
DEFAULT_TERMS = 5
OWN_TERMS = 6


def source_of(run_path: Path, about: Manifest, data_dir: str | None) -> dict[str, Any]:
    """The data set that a run answers, as `load_dataset` takes it: by the run's manifest, else by the index's.

    Raises:
        DataError: there is no such run.
        UsageError: the run is about other documents than the index's.
    """
    known, corpus = describe_run(run_path).source, about.corpus
    indexed = {"direction": corpus.get("direction"), "name": corpus["name"], "split": corpus.get("split")}
    asked = {"direction": known.direction, "name": known.dataset, "split": known.split}
    for key, value in asked.items():
        if known.dataset and value and indexed[key] and value != indexed[key]:
            raise UsageError(f"{run_path}: a run over {value}, but the index is of {indexed[key]}; name its own index")
    return {
        **{key: asked[key] or indexed[key] or None for key in asked},
        "data_dir": data_dir or known.data_dir or corpus.get("data_dir"),
        "escape_ids": known.escape_ids or bool(corpus.get("escape_ids")),
    }


def sample_queries(run_path: Path, count: int) -> list[str]:
    """So many topics of a run, evenly spaced in their order, so that nobody has chosen them.

    Raises:
        DataError: the run is empty or malformed.
    """
    answered = list(dict.fromkeys(document.query_id for document in read_run(run_path)))
    if not answered:
        raise DataError(f"{run_path}: no line; nothing to show")
    count = min(count, len(answered))
    return [answered[(2 * number + 1) * len(answered) // (2 * count)] for number in range(count)]


def hits_of(run_path: Path, query_ids: Sequence[str]) -> dict[str, list[ScoredDoc]]:
    """The documents of some topics in a run, best first; none for a topic that found nothing.

    Raises:
        DataError: the run is malformed.
    """
    found: dict[str, list[ScoredDoc]] = {query_id: [] for query_id in query_ids}
    for document in read_run(run_path):
        if document.query_id in found:
            found[document.query_id].append(document)
    return {query_id: in_rank_order(documents) for query_id, documents in found.items()}


def first_right(listed: Sequence[ScoredDoc], right: Collection[str]) -> str:
    """Where the first relevant document is among a topic's hits."""
    ranks = (rank for rank, scored in enumerate(listed, start=1) if scored.doc_id in right)
    rank = next(ranks, None)
    return f"relevant at rank {rank}" if rank else f"not among {len(listed)} hits"


def item_of(record: Document | Topic) -> Item:
    """A document or topic as it is shown: pictures under the names of their files.

    Raises:
        DataError: the picture cannot be read.
    """
    from lexvl_anserini.data.images import open_image

    text = record.contents if isinstance(record, Document) else record.text or ""
    name = record.doc_id if isinstance(record, Document) else record.query_id
    if record.image is None:
        return Item(name, None, text)
    return Item(Path(record.image.rpartition("::")[2]).name, open_image(record.image), text)


def own_terms(model: Encoder, documents: Sequence[Document]) -> dict[str, list[str]]:
    """Document id -> its heaviest terms."""
    weights = model.document.weights([model.document.read(document) for document in documents])
    terms = model.decode(weights, OWN_TERMS)
    return {d.doc_id: [term for term, _ in own] for d, own in zip(documents, terms, strict=True)}


def documents_of(dataset: Dataset, wanted: Collection[str]) -> dict[str, Document]:
    """Of the documents wanted, by id, those that the data set has."""
    return {document.doc_id: document for document in dataset.documents() if document.doc_id in wanted}


def cell_of(document: Document, why: Explanation, score: float, right: bool, own: Mapping[str, Sequence[str]]) -> Cell:
    """A hit with the terms of its score."""
    return Cell(item_of(document), score, right, why.terms, own[document.doc_id])


def answered(dataset: Dataset, index: Index, model: Encoder, texts: Sequence[str], hits: int) -> list[Strip]:
    """What is shown of queries that somebody typed: their first hits, none of which is known to be right.

    Raises:
        UsageError: an empty text, or an encoder whose queries are pictures.
        DataError: the corpus no longer has a document of the index, or a picture cannot be read.
    """
    topics = [typed_topic(text, None) for text in texts]
    found = [explain(index, encoded(topic, model, index.manifest), None, hits) for topic in topics]
    wanted = {why.doc_id for listed in found for why in listed}
    documents = documents_of(dataset, wanted)
    if missing := sorted(wanted - documents.keys()):
        raise DataError(f"{index.path}: {missing[0]!r} is no longer in {dataset.name}; encode and index it again")
    own = own_terms(model, list(documents.values()))
    return [
        Strip(Item("", None, text), tuple(cell_of(documents[w.doc_id], w, w.score, False, own) for w in listed))
        for text, listed in zip(texts, found, strict=True)
    ]


def gathered(
    dataset: Dataset, index: Index, model: Encoder, run_path: Path, query_ids: Sequence[str], hits: int
) -> list[Strip]:
    """What is shown: topics, their first hits in a run, and why they were found.

    Raises:
        DataError: the data set has no such topic or document, or a picture cannot be read.
    """
    lists = hits_of(run_path, query_ids)
    topics = {topic.query_id: topic for topic in dataset.topics() if topic.query_id in lists}
    wanted = {scored.doc_id for listed in lists.values() for scored in listed[:hits]}
    documents = documents_of(dataset, wanted)
    if missing := sorted((lists.keys() - topics.keys()) | (wanted - documents.keys())):
        raise DataError(f"{run_path}: {missing[0]!r} is not in {dataset.name}/{dataset.split}; another data set's run?")
    right: dict[str, set[str]] = defaultdict(set)
    for qrel in dataset.qrels():
        if qrel.relevance > 0 and qrel.query_id in lists:
            right[qrel.query_id].add(qrel.doc_id)
    own = own_terms(model, list(documents.values()))
    of_run = read_run_manifest(run_path)
    strips = []
    for query_id, every in lists.items():
        listed = every[:hits]
        query = as_cut(encoded(topics[query_id], model, index.manifest), of_run)
        explanations = explain(index, query, [scored.doc_id for scored in listed])
        warn_of_other_scores(run_path, {scored.doc_id: scored.score for scored in listed}, explanations)
        cells = (
            cell_of(documents[scored.doc_id], explanation, scored.score, scored.doc_id in right[query_id], own)
            for scored, explanation in zip(listed, explanations, strict=True)
        )
        strips.append(Strip(item_of(topics[query_id]), tuple(cells), first_right(every, right[query_id])))
    return strips


def command(
    index: Annotated[Path, typer.Option(help="The impact index that is, or was, searched.")],
    run_file: Annotated[Path | None, typer.Option("--run", help="A run in TREC format, plain or .gz.")] = None,
    queries: Annotated[
        list[str] | None, typer.Option("--query", help="Instead of a run: search for this text; repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option(help="PNG to write.")] = Path("sheet.png"),
    query_ids: Annotated[
        list[str] | None, typer.Option("--query-id", help="Show this topic; repeatable. Default three of the run's.")
    ] = None,
    hits: Annotated[int, typer.Option(min=1, max=10, help="Per topic.")] = DEFAULT_HITS,
    terms: Annotated[int, typer.Option(min=1, max=20, help="Under each hit.")] = DEFAULT_TERMS,
    data_dir: DataDir = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint lies now.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    style: Annotated[str, typer.Option("--format", help="Of what is printed: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Draw queries with their first hits and the terms that made them.

    Example: python -m eval.sheet --query "two dogs on the beach" --index indexes/demo --output sheet.png
    """
    check_style(style)
    about = index_manifest(index)
    if about.kind != "impact":
        raise UsageError(f"{index} is {about.kind}; only the score of an impact index is a sum over terms")
    if (run_file is None) == (not queries) or (queries and query_ids):
        raise UsageError("give --run FILE (with --query-id Q for chosen topics), or --query TEXT")
    from lexvl_anserini.data.dataset import load_dataset, noted_dataset

    opened = Index(index, about, about.counts["documents"])
    if run_file is None:
        model = load_encoder_of(about.encoder, checkpoint, None, device, vocabulary=about.vocabulary_digest)
        strips = answered(noted_dataset(about.corpus, data_dir), opened, model, queries or [], hits)
    else:
        dataset = load_dataset(**source_of(run_file, about, data_dir))
        model = load_encoder_of(
            about.encoder,
            checkpoint,
            None,
            device,
            encoder_options(read_run_manifest(run_file)),
            vocabulary=about.vocabulary_digest,
        )
        chosen = list(dict.fromkeys(query_ids or sample_queries(run_file, DEFAULT_QUERIES)))
        strips = gathered(dataset, opened, model, run_file, chosen, hits)
    draw_sheet(strips, output, terms)
    print_rows({"sheet": str(output), "queries": len(strips), "bytes": output.stat().st_size}, style)


if __name__ == "__main__":
    run(command)
