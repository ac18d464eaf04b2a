"""Converts our records and results to forms of other tools, and back: ranx, pandas and MTEB.

ranx has plots, fusion methods and comparisons. It orders by score alone and breaks ties arbitrarily; a run is therefore
converted in strict order, its tied scores lowered by the smallest steps of float64. Frames of pandas have one row per
value, or systems side by side. MTEB's leaderboard and tools read results as `<model>/<revision>/<task>.json`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from math import inf, nextafter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.checks import check_qrel
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.records import Measurement, Qrel, ScoredDoc
from lexvl_anserini.runs.order import rank_hits

from .averages import CQADUPSTACK
from .inputs import check_hits, find_places, make_slug, rank_by_run
from .metrics import Measure, judgements, make_ranx_importable, parse_measure

if TYPE_CHECKING:
    import pandas
    import ranx

    from .measure_runs import StoredResult

log = logging.getLogger(__name__)

# The main measure of retrieval tasks.
MAIN = Measure("nDCG", 10)

# Name of a model's folder of which no revision is known.
NO_REVISION = "no_revision_available"

# Our measures and MTEB's; `@10` becomes `_at_10`.
NAMES = {"nDCG": "ndcg", "AP": "map", "RR": "mrr", "Recall": "recall", "P": "precision", "HitRate": "hit_rate"}

# Our datasets and MTEB's tasks; a caption set has one per direction.
TASKS: Mapping[str, str] = {
    "beir/arguana": "ArguAna", "beir/climate-fever": "ClimateFEVER", "beir/dbpedia-entity": "DBPedia",
    "beir/fever": "FEVER", "beir/fiqa": "FiQA2018", "beir/hotpotqa": "HotpotQA", "beir/msmarco": "MSMARCO",
    "beir/nfcorpus": "NFCorpus", "beir/nq": "NQ", "beir/quora": "QuoraRetrieval", "beir/scidocs": "SCIDOCS",
    "beir/scifact": "SciFact", "beir/trec-covid": "TRECCOVID", "beir/webis-touche2020": "Touche2020",
    **{f"beir/cqadupstack/{part}": f"CQADupstack{part.capitalize()}Retrieval" for part in CQADUPSTACK},
    "coco text-to-image": "MSCOCOT2IRetrieval", "coco image-to-text": "MSCOCOI2TRetrieval",
    "flickr30k text-to-image": "Flickr30kT2IRetrieval", "flickr30k image-to-text": "Flickr30kI2TRetrieval",
}  # fmt: skip


def to_ranx_run(run: Iterable[ScoredDoc], name: str = "run") -> ranx.Run:
    """Converts a run to ranx."""
    with make_ranx_importable():
        from ranx import Run

    scores: dict[str, dict[str, float]] = {}
    hits = check_hits(run, name)
    order = np.lexsort((find_places(hits, rank_by_run(hits), np.arange(len(hits.ranks))), hits.topics()))
    columns = hits.topics().tolist(), hits.read_ids(order), hits.scores[order].tolist()
    for topic, doc_id, score in zip(*columns, strict=True):
        strict = scores.setdefault(hits.query_ids[topic], {})
        below = nextafter(next(reversed(strict.values())), -inf) if strict else inf
        strict[doc_id] = min(score, below)
    return Run(scores, name=name)


def from_ranx_run(run: ranx.Run) -> Iterator[ScoredDoc]:
    """Converts a run of ranx to scored documents, topics in its order, documents by score descending, then doc_id."""
    for query_id, scores in run.to_dict().items():
        yield from rank_hits(query_id, scores.items())


def to_ranx_qrels(qrels: Iterable[Qrel], name: str = "qrels") -> ranx.Qrels:
    """Converts judgements to ranx."""
    with make_ranx_importable():
        from ranx import Qrels

    return Qrels(judgements(qrels, name), name=name)


def from_ranx_qrels(qrels: ranx.Qrels) -> Iterator[Qrel]:
    """Converts judgements of ranx to ours, in its order.

    ranx itself cuts fractions (2.7 is 2) when it makes its object; `Qrel` of a fraction is refused wherever it is read.
    """
    for query_id, judged in qrels.to_dict().items():
        yield from (check_qrel(query_id, doc_id, relevance, "ranx") for doc_id, relevance in judged.items())


def frame(measurements: Iterable[Measurement]) -> pandas.DataFrame:
    """One row per value; the columns are the fields of `Measurement`, `value` is float64.

    Rows with query_id "all" are the means over the topics.
    """
    import pandas

    rows = pandas.DataFrame.from_records(list(measurements), columns=Measurement._fields)
    return rows.astype({"value": "float64"})


def make_topic_frame(measurements: Iterable[Measurement]) -> pandas.DataFrame:
    """Values of several runs on the same topics: topics as rows, pairs of measure and run as columns.

    Rows and columns are in the order of the measurements; means are left out.
    """
    rows = frame(row for row in measurements if row.query_id != "all")
    wide = rows.pivot(index="query_id", columns=["measure", "run"], values="value")
    wide = wide.reindex(index=rows["query_id"].unique())
    for measure, run in wide.columns[wide.isna().any()]:
        raise DataError(f"{run}: no {measure} of a topic that another run has; systems need the same topics")
    order = [(measure, run) for measure in rows["measure"].unique() for run in rows["run"].unique()]
    return wide[order]


def find_task(dataset: str) -> tuple[str, str]:
    """MTEB's task and the split of a dataset; the name of another dataset is its task."""
    label, _, direction = dataset.partition(" ")
    name, _, split = label.rpartition("/")
    known = TASKS.get(f"{name} {direction}".strip())
    return (known, split) if known else (make_slug(Path(dataset).name if Path(dataset).is_file() else dataset), "test")


def write_mteb(results: Iterable[StoredResult], folder: Path) -> list[Path]:
    """Writes each result as MTEB's JSON, and `model_meta.json` beside it."""
    contents: dict[Path, tuple[str, dict[str, Any]]] = {}
    for result in results:
        task, split = find_task(result.dataset)
        path = folder / make_slug(result.system.replace("/", "__")) / NO_REVISION / f"{task}.json"
        if path in contents:
            raise UsageError(f"{path}: two results of {result.system!r} on {result.dataset}; keep one, or --label them")
        contents[path] = result.system, _build_content(result, task, split)
    for path, (system, content) in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
        write_json(path.parent / "model_meta.json", {"name": system, "revision": NO_REVISION})
    return list(contents)


def _build_content(result: StoredResult, task: str, split: str) -> dict[str, Any]:
    values = {parse_measure(name): value for name, value in result.measures.items()}
    if MAIN not in values:
        raise UsageError(f"{result.system} on {result.dataset}: no {MAIN}, the main score of MTEB's tasks; measure it")
    if without := [str(measure) for measure in values if measure.level is not None]:
        log.warning("%s on %s: MTEB has no name for %s; left out", result.system, result.dataset, ", ".join(without))
    scores = {
        NAMES[measure.name] + (f"_at_{measure.k}" if measure.k else ""): value
        for measure, value in values.items()
        if measure.level is None
    }
    return {
        "dataset_revision": f"sha256:{result.judgements_sha256}",
        "evaluation_time": None,
        "kg_co2_emissions": None,
        "mteb_version": None,
        "scores": {split: [{"hf_subset": "default", "languages": ["eng-Latn"], "main_score": values[MAIN], **scores}]},
        "task_name": task,
    }
