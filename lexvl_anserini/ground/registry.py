"""Datasets, engines and runners by name: tables of `name -> "module:object"`, imported by `resolve` when they are used.

Adding one means one module, one row here and one test. Encoders have more facts; their table is `encoders/cards.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import ArtefactError, MissingExtra, UnknownName

# A dataset's name is `family`, `family/part` or `family:path`; the row is chosen by the family.
DATASETS: Mapping[str, str] = {
    "beir": "lexvl_anserini.data.corpora.beir:load_beir",
    "coco": "lexvl_anserini.data.corpora.captioned:load_captions",
    "demo": "lexvl_anserini.data.corpora.demo:load_demo",
    "dpr": "lexvl_plugins.train.corpora.text_pairs:load_dpr_file",
    "embeddings": "lexvl_anserini.data.corpora.embeddings:load_embeddings",
    "flickr30k": "lexvl_anserini.data.corpora.captioned:load_captions",
    "flickr8k": "lexvl_anserini.data.corpora.captioned:load_captions",
    "folder": "lexvl_anserini.data.corpora.folder:load_folder",
    "irds": "lexvl_anserini.data.corpora.irds:load_irds",
    "karpathy": "lexvl_anserini.data.corpora.captioned:load_karpathy",
    "pages": "lexvl_plugins.pages.corpus:load_pages",
    "pairs": "lexvl_plugins.train.corpora.text_pairs:load_pairs",
    "pictures": "lexvl_anserini.data.corpora.folder:load_pictures",
    "samples": "lexvl_plugins.photos.samples:load_samples",
    "sentences": "lexvl_plugins.train.corpora.own_queries:load_own_queries",
    "titles": "lexvl_plugins.train.corpora.own_queries:load_own_queries",
    "triples": "lexvl_plugins.train.corpora.text_pairs:load_triples",
    "vidore": "lexvl_plugins.pages.vidore_corpus:load_vidore",
    "webdataset": "lexvl_plugins.train.corpora.webdataset:load_webdataset",
}
# Datasets that are named family:path; the others have a fixed place in the data folder, or are packaged.
FAMILIES_OF_PATHS = frozenset(
    {
        "beir",
        "dpr",
        "embeddings",
        "folder",
        "irds",
        "karpathy",
        "pages",
        "pairs",
        "pictures",
        "sentences",
        "titles",
        "triples",
        "vidore",
        "webdataset",
    }
)


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
    "lucene": EngineRow("lexvl_anserini.engines.lucene.engine:LuceneEngine", ("impact",)),
    "opensearch": EngineRow("lexvl_plugins.stores.opensearch:OpenSearchEngine", ("impact",)),
    "partitions": EngineRow("lexvl_plugins.cluster.partitions:PartitionsEngine", ("impact",)),
    "pyserini": EngineRow("lexvl_anserini.engines.pyserini:PyseriniEngine", ("impact",)),
    "qdrant": EngineRow("lexvl_plugins.stores.qdrant:QdrantEngine", ("impact",)),
}

# Engines of older versions.
GONE_ENGINES = frozenset({"milvus", "pgvector"})

# Where the work on parts of a corpus is done.
RUNNERS: Mapping[str, str] = {
    "local": "lexvl_plugins.cluster.runners:LocalRunner",
    "ray": "lexvl_plugins.cluster.ray_cluster:RayRunner",
}


class RuntimeRow(NamedTuple):
    """What computes the networks of an encoder.

    home     "module:function"
    package  whose version manifests note, because it decides the last bits of weights; None where they note it anyway
    """

    home: str
    package: str | None


# A runtime other than torch is an option of the encoder in manifests. A search may choose `AUTO`: an export of the
# encoder where there is one, else what the index was encoded with.
TORCH, AUTO = "torch", "auto"
RUNTIMES: Mapping[str, RuntimeRow] = {
    TORCH: RuntimeRow("lexvl_anserini.encoders.loading:load_by_torch", None),
    "onnx": RuntimeRow("lexvl_plugins.onnx.loading:load_exported", "onnxruntime"),
}
RUNTIME_HOMES: Mapping[str, str] = {name: row.home for name, row in RUNTIMES.items()}

# Which engine indexes shards of a kind unless the user names another.
DEFAULT_ENGINES: Mapping[str, str] = {"dense": "faiss", "impact": "lucene", "text": "bm25"}


# The doors, which no core room imports, and the extra of each.
DOORS: Mapping[str, str] = {
    "adapters": "adapters",
    "cluster": "ray",
    "onnx": "onnx",
    "pages": "pages",
    "serving": "serve",
    "sharing": "sharing",
    "stores": "stores",
}
DOORS_HOME = "lexvl_anserini.doors"

# Packages that not every installation has, and the extra that brings each.
EXTRA_PACKAGES: Mapping[str, str] = {
    "accelerate": "train",
    "anyio": "serve",
    "fastapi": "serve",
    "fsspec": "ray",
    "matplotlib": "plots",  # of [train] too
    "mcp": "mcp",
    "pebble": "pages",
    "pypdfium2": "pages",
    "rapidocr": "pages",
    "ray": "ray",
    "sentence_transformers": "train",
    "uvicorn": "serve",
}


def resolve(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Imports and returns the object that `table` registers under `name`.

    Raises:
        UnknownName: `name` is not in the table; the message suggests the nearest.
        MissingExtra: it lies behind a door that is not installed.
    """
    if name not in table:
        raise UnknownName(kind, name, table)
    return import_home(table[name])


def refuse_gone_engine(where: str | PathLike[str], engine: str | None) -> None:
    """Raises ArtefactError for an index of an engine that only older versions have."""
    if engine in GONE_ENGINES:
        raise ArtefactError(
            f"{where}: an index of the engine {engine}; 0.3.0 is the last version that reads it; build one of another "
            "engine from its shards (docs/stores.md)"
        )


def door(module: str) -> Any:
    """A module behind a door by its name below `doors`, such as `sharing.saving`."""
    return import_home(f"{DOORS_HOME}.{module}")


def require(*packages: str) -> None:
    """Raises MissingExtra unless packages of extras are installed, without importing them, before long work."""
    for package in packages:
        if find_spec(package) is None:
            raise missing_package(package)


def missing_package(package: str) -> MissingExtra:
    """The error for a package of an extra that is not installed."""
    return MissingExtra(f"this command ({package} is not installed)", EXTRA_PACKAGES[package])


def import_home(home: str) -> Any:
    """The object of a row "module:object", or a module; raises MissingExtra where its door is not installed."""
    module, _, attribute = home.partition(":")
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        name = module.removeprefix(f"{DOORS_HOME}.").partition(".")[0]
        if not module.startswith(DOORS_HOME) or name not in DOORS:
            raise
        raise MissingExtra(f"{DOORS_HOME}.{name} (there is no module {error.name})", DOORS[name]) from error
    return getattr(imported, attribute) if attribute else imported
