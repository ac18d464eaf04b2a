"""Datasets, engines and runners by name: tables of `name -> "module:object"`, imported by `resolve` when they are used.

Adding one means one module, one row here and one test. Encoders have more facts; their table is `encoders/cards.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import MissingExtra, UnknownName

# A dataset's name is `family`, `family/part` or `family:path`; the row is chosen by the family.
DATASETS: Mapping[str, str] = {
    "beir": "lexvl_anserini.data.corpora.beir:load_beir",
    "coco": "lexvl_anserini.data.corpora.captioned:load_captions",
    "demo": "lexvl_anserini.data.corpora.demo:load_demo",
    "dpr": "lexvl_anserini.data.corpora.text_pairs:load_dpr_file",
    "embeddings": "lexvl_anserini.data.corpora.embeddings:load_embeddings",
    "flickr30k": "lexvl_anserini.data.corpora.captioned:load_captions",
    "flickr8k": "lexvl_anserini.data.corpora.captioned:load_captions",
    "folder": "lexvl_anserini.data.corpora.folder:load_folder",
    "irds": "lexvl_anserini.data.corpora.irds:load_irds",
    "karpathy": "lexvl_anserini.data.corpora.captioned:load_karpathy",
    "pairs": "lexvl_anserini.data.corpora.text_pairs:load_pairs",
    "pictures": "lexvl_anserini.data.corpora.folder:load_pictures",
    "samples": "lexvl_anserini.data.corpora.samples:load_samples",
    "sentences": "lexvl_anserini.data.corpora.own_queries:load_own_queries",
    "titles": "lexvl_anserini.data.corpora.own_queries:load_own_queries",
    "triples": "lexvl_anserini.data.corpora.text_pairs:load_triples",
}


class EngineRow(NamedTuple):
    """An engine.

    home   "module:class"
    kinds  of shards that it indexes
    """

    home: str
    kinds: tuple[str, ...]


ENGINES: dict[str, EngineRow] = {
    "bm25": EngineRow("lexvl_anserini.engines.bm25:BM25Engine", ("text",)),
    "faiss": EngineRow("lexvl_anserini.engines.faiss:FaissEngine", ("dense",)),
    "lucene": EngineRow("lexvl_anserini.engines.lucene:LuceneEngine", ("impact",)),
    "milvus": EngineRow("lexvl_anserini.doors.stores.milvus:MilvusEngine", ("impact",)),
    "opensearch": EngineRow("lexvl_anserini.doors.stores.opensearch:OpenSearchEngine", ("impact",)),
    "partitions": EngineRow("lexvl_anserini.doors.cluster.partitions:PartitionsEngine", ("impact",)),
    "pgvector": EngineRow("lexvl_anserini.doors.stores.pgvector:PgvectorEngine", ("impact",)),
    "qdrant": EngineRow("lexvl_anserini.doors.stores.qdrant:QdrantEngine", ("impact",)),
}

# Modules of doors that core rooms and commands call, by what they do.
DOORS: Mapping[str, str] = {
    "parts": "lexvl_anserini.doors.cluster.parts",
    "plans": "lexvl_anserini.doors.cluster.plans",
    "storage": "lexvl_anserini.doors.cluster.storage",
}

# The extra that installs what a door needs, by its folder.
EXTRAS: Mapping[str, str] = {"cluster": "ray"}

# Where the work on parts of a corpus is done.
RUNNERS: Mapping[str, str] = {
    "local": "lexvl_anserini.ground.runners:LocalRunner",
    "ray": "lexvl_anserini.doors.cluster.ray_cluster:RayRunner",
}

# Which engine indexes shards of a kind unless the user names another.
DEFAULT_ENGINES: Mapping[str, str] = {"dense": "faiss", "impact": "lucene", "text": "bm25"}


def resolve(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Imports and returns the object that `table` registers under `name`.

    Raises:
        UnknownName: `name` is not in the table; the message suggests the nearest.
    """
    if name not in table:
        raise UnknownName(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(imported(module), attribute)


def door(name: str) -> Any:
    """A module of `DOORS`.

    Raises:
        MissingExtra: the folder of the door is not installed.
    """
    return imported(DOORS[name])


def imported(module: str) -> Any:
    """A module of the package, by its name.

    Raises:
        MissingExtra: it is of a door whose folder is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        doors, folder = f"{__package__.partition('.')[0]}.doors.", module.split(".")[2]
        if not (module.startswith(doors) and (error.name or "").startswith(doors + folder)):
            raise
        raise MissingExtra(module.removeprefix(doors), EXTRAS.get(folder, folder)) from error
