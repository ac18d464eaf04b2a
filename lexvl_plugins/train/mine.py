"""Run + judgements -> training pairs with hard negatives: `lexvl mine --run RUN --output FILE`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import orjson
import typer

from lexvl_anserini.cli import DataDir, Overwrite, Style, Verbose, print_rows, run
from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.ground.claims import refuse_existing
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import atomic_write, open_gzip
from lexvl_anserini.ground.manifest import read_run_manifest
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.trec import read_lists
from lexvl_plugins.train.corpora.text_pairs import HARD_NEGATIVES, POSITIVES, SCORE


class Mining(NamedTuple):
    """Which documents of a list are drawn: from two ranks, both included, a number per query; seeded for each query."""

    first: int = 1
    depth: int = 100
    number: int = 7
    seed: int = 12345


class Mined(NamedTuple):
    """A query with ids of documents: positives, ascending, hard negatives, in rank order, and scores of the run."""

    query_id: str
    text: str
    positives: list[str]
    negatives: list[str]
    scores: Mapping[str, float]


def mine(dataset: Dataset, run: Path, mining: Mining) -> list[Mined]:
    """The topics of a dataset that have a relevant document and a list in a run, in the order of the dataset."""
    relevant: dict[str, set[str]] = {}
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            relevant.setdefault(qrel.query_id, set()).add(qrel.doc_id)
    lists, mined = read_lists(run), []
    for topic in dataset.topics():
        if topic.query_id in lists and topic.query_id in relevant:
            positives = relevant[topic.query_id]
            left_out = positives | {topic.query_id} if dataset.remove_query else positives
            negatives = draw_negatives(topic.query_id, lists[topic.query_id], left_out, mining)
            needed = positives.union(negatives)
            scores = {hit.doc_id: hit.score for hit in lists[topic.query_id] if hit.doc_id in needed}
            mined.append(Mined(topic.query_id, topic.text or "", sorted(positives), negatives, scores))
    if not mined:
        raise DataError(
            f"{run}: none of its {len(lists)} topics has a relevant document in {dataset.name}/{dataset.split}; "
            f"search the topics of the split that trains: --topics {dataset.name}/train"
        )
    return mined


def draw_negatives(query_id: str, ranked: Sequence[ScoredDoc], left_out: Iterable[str], mining: Mining) -> list[str]:
    """Ids of negatives from the ranks of one list, in rank order; all of them where there are not enough."""
    refused = frozenset(left_out)
    offered = [hit.doc_id for hit in ranked if mining.first <= hit.rank <= mining.depth and hit.doc_id not in refused]
    if len(offered) <= mining.number:
        return offered
    digest = int.from_bytes(blake2b(query_id.encode(), digest_size=8).digest(), "big")
    chosen = np.random.default_rng((mining.seed, digest)).choice(len(offered), mining.number, replace=False)
    return [offered[number] for number in sorted(chosen.tolist())]


def write_dpr(path: Path, mined: Sequence[Mined], dataset: Dataset) -> None:
    """Writes queries with their passages as JSON lines in DPR's format; a name in `.gz` is compressed."""
    needed = {doc_id for query in mined for doc_id in (*query.positives, *query.negatives)}
    texts = {document.doc_id: document for document in dataset.documents() if document.doc_id in needed}
    if missing := sorted(needed - texts.keys()):
        raise DataError(f"{dataset.name}: {len(missing)} judged or ranked documents are not in it: {missing[0]!r}")
    with atomic_write(path) as out, open_gzip(out, path.suffix) as lines:
        for query in mined:
            lists = {POSITIVES: query.positives, HARD_NEGATIVES: query.negatives}
            record: dict[str, object] = {"query_id": query.query_id, "question": query.text, "answers": []}
            for key, doc_ids in lists.items():
                passages = [
                    {"passage_id": doc_id, "title": texts[doc_id].title or "", "text": texts[doc_id].text or ""}
                    | ({SCORE: query.scores[doc_id]} if doc_id in query.scores else {})
                    for doc_id in doc_ids
                ]
                record[key] = passages
            lines.write(orjson.dumps(record) + b"\n")


def command(
    ranked: Annotated[Path, typer.Option("--run", help="Run of the training topics, in TREC format.")],
    output: Annotated[Path, typer.Option(help="File of DPR's JSON lines to write (.jsonl or .jsonl.gz).")],
    corpus: Annotated[
        str | None, typer.Option(help="Corpus with judgements, beir/scifact/train; default the run's own.")
    ] = None,
    first_rank: Annotated[int, typer.Option(min=1, help="Draw from this rank on.")] = 1,
    depth: Annotated[int, typer.Option(min=1, help="Draw down to this rank.")] = 100,
    number: Annotated[int, typer.Option(min=1, help="Hard negatives per query.")] = 7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 12345,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Mine hard negatives for training from a run.

    Example: python -m lexvl_plugins.train.mine --run runs/train.trec --corpus beir/scifact/train --output mined.jsonl
    """
    if first_rank > depth:
        raise UsageError(f"--first-rank {first_rank} is after --depth {depth}")
    if not output.name.endswith((".jsonl", ".jsonl.gz")):
        raise UsageError(f"--output {output}: expected a name in .jsonl or .jsonl.gz, as `train` reads it (dpr:FILE)")
    refuse_existing(output, overwrite)
    if corpus:
        dataset = load_dataset(corpus, None, data_dir)
    else:
        manifest = read_run_manifest(ranked)
        if manifest is None or not manifest.dataset:
            raise UsageError(f"{ranked}: no manifest names the dataset of its topics; name it with --corpus")
        dataset = load_dataset(manifest.dataset, manifest.split, data_dir or manifest.data_dir)
    mined = mine(dataset, ranked, Mining(first_rank, depth, number, seed))
    write_dpr(output, mined, dataset)
    rows = {
        "pairs": str(output),
        "queries": len(mined),
        "positives": sum(len(query.positives) for query in mined),
        "negatives": sum(len(query.negatives) for query in mined),
        "queries_with_fewer": sum(len(query.negatives) < number for query in mined),
    }
    print_rows(rows, style)


if __name__ == "__main__":
    run(command)
