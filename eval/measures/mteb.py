"""Results in the layout of MTEB: `<model>/<revision>/<task>.json`, as its leaderboard and its tools read them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json

from .averages import CQADUPSTACK
from .names import Measure, parse_measure
from .result_files import StoredResult, slug

log = logging.getLogger(__name__)

# Of retrieval tasks.
MAIN = Measure("nDCG", 10)

# Name of a model's folder of which no revision is known.
NO_REVISION = "no_revision_available"

# Our measures and MTEB's; `@10` becomes `_at_10`.
NAMES = {"nDCG": "ndcg", "AP": "map", "RR": "mrr", "Recall": "recall", "P": "precision", "HitRate": "hit_rate"}

# Our datasets and MTEB's tasks; a caption set has one per direction.
TASKS: Mapping[str, str] = {
    "beir/arguana": "ArguAna",
    "beir/climate-fever": "ClimateFEVER",
    **{f"beir/cqadupstack/{part}": f"CQADupstack{part.capitalize()}Retrieval" for part in CQADUPSTACK},
    "beir/dbpedia-entity": "DBPedia",
    "beir/fever": "FEVER",
    "beir/fiqa": "FiQA2018",
    "beir/hotpotqa": "HotpotQA",
    "beir/msmarco": "MSMARCO",
    "beir/nfcorpus": "NFCorpus",
    "beir/nq": "NQ",
    "beir/quora": "QuoraRetrieval",
    "beir/scidocs": "SCIDOCS",
    "beir/scifact": "SciFact",
    "beir/trec-covid": "TRECCOVID",
    "beir/webis-touche2020": "Touche2020",
    "coco text-to-image": "MSCOCOT2IRetrieval",
    "coco image-to-text": "MSCOCOI2TRetrieval",
    "flickr30k text-to-image": "Flickr30kT2IRetrieval",
    "flickr30k image-to-text": "Flickr30kI2TRetrieval",
}


def task_of(dataset: str) -> tuple[str, str]:
    """MTEB's task and the split of a dataset; the name of another dataset is its task.

    >>> task_of("beir/scifact/test"), task_of("coco/test text-to-image"), task_of("my.qrels")
    (('SciFact', 'test'), ('MSCOCOT2IRetrieval', 'test'), ('my.qrels', 'test'))
    """
    label, _, direction = dataset.partition(" ")
    name, _, split = label.rpartition("/")
    known = TASKS.get(f"{name} {direction}".strip())
    return (known, split) if known else (slug(Path(dataset).name if Path(dataset).is_file() else dataset), "test")


def write_mteb(results: Iterable[StoredResult], folder: Path) -> list[Path]:
    """Writes each result as MTEB's JSON, and `model_meta.json` beside it.

    Returns:
        The files of tasks.

    Raises:
        UsageError: a result lacks nDCG@10, or two results are of one system and task.
        ArtefactError: the folder cannot be written.
    """
    contents: dict[Path, tuple[str, dict[str, Any]]] = {}
    for result in results:
        task, split = task_of(result.dataset)
        path = folder / slug(result.system.replace("/", "__")) / NO_REVISION / f"{task}.json"
        if path in contents:
            raise UsageError(f"{path}: two results of {result.system!r} on {result.dataset}; keep one, or --label them")
        contents[path] = result.system, _content(result, task, split)
    for path, (system, content) in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
        write_json(path.parent / "model_meta.json", {"name": system, "revision": NO_REVISION})
    return list(contents)


def _content(result: StoredResult, task: str, split: str) -> dict[str, Any]:
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
