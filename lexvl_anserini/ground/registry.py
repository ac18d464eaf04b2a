"""What has a name: tables of rows by name. The core has its rows here, in `cli.py`, `encoders/cards.py` and `eval`.

A plug-in is a package that adds rows by entry points, in the group of their table:

    lexvl.engines =
        mystore = mypackage:MYSTORE

The entry point names a row: a record that names a module, which is imported when the row is used. The module that
defines the row imports nothing heavy, because the help of `lexvl` reads all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import Any, NamedTuple, TypeVar

from lexvl_anserini.ground.errors import ArtefactError, MissingExtra, UnknownName, UsageError

log = logging.getLogger(__name__)

Row = TypeVar("Row")


class Registry(Mapping[str, Row]):
    """Rows by name: those of the core, and those of plug-ins, which add rows and replace none."""

    def __init__(self, kind: str, group: str, core: Mapping[str, Row]):
        self.kind, self.group, self.core = kind, group, core

    @cached_property
    def plugins(self) -> Mapping[str, Row]:
        """The rows of installed plug-ins; an entry point of a package whose files are gone adds none."""
        from importlib.metadata import entry_points  # with thirty modules of mail and sockets

        rows: dict[str, Row] = {}
        for point in entry_points(group=self.group):
            if point.name in rows or point.name in self.core:
                what = f"a second {self.kind} of the name {point.name!r}"
                raise UsageError(f"{point.value}: {what}; uninstall one of their packages")
            try:
                rows[point.name] = point.load()
            except ModuleNotFoundError as error:
                log.debug("%s %r is not there: %s", self.kind, point.name, error)
        return rows

    def __getitem__(self, name: str) -> Row:
        if name in self.core:
            return self.core[name]
        if name not in self.plugins:
            raise UnknownName(self.kind, name, self)
        return self.plugins[name]

    def __contains__(self, name: object) -> bool:
        return name in self.core or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        return iter([*self.core, *sorted(self.plugins)])

    def __len__(self) -> int:
        return len(self.core) + len(self.plugins)

    def get(self, name: str, default: Any = None) -> Any:
        """The row of a name, or the default."""
        return self[name] if name in self else default  # noqa: SIM401  Mapping.get expects a KeyError


class CommandRow(NamedTuple):
    """A command of `lexvl`: the module of its `command`, the title of its section in the help, and its line there."""

    module: str
    group: str
    summary: str


class CorpusRow(NamedTuple):
    """A family of corpora, the part of a corpus's name before `/` or `:`.

    Attributes:
        home: "module:function" that loads one.
        has_path: a path follows the name, `folder:PATH`; others have a fixed place in the data folder, or are packaged.
        checkpoint: the key of the checkpoint that encodes it where the user names none (`Card.default_checkpoints`);
            "" is the published one, which people want for published test splits.
    """

    home: str
    has_path: bool = False
    checkpoint: str = ""


class EngineRow(NamedTuple):
    """An engine.

    Attributes:
        home: "module:class".
        kinds: of shards that it indexes.
        urls: for an engine whose indexes have URLs that begin with its name: "module:object" with the methods
            `copied` and `target` (`engines.engine.find_urls`).
    """

    home: str
    kinds: tuple[str, ...]
    urls: str = ""


class RuntimeRow(NamedTuple):
    """What computes the networks of an encoder: "module:function", with the parameters of `loading.load_by_torch`.

    Manifests note the version of `package`, which decides the last bits of weights; None where they do anyway.
    """

    home: str
    package: str | None


_CAPTIONED = "lexvl_anserini.data.corpora.captioned"
_FOLDER = "lexvl_anserini.data.corpora.folder"
CORPORA: Registry[CorpusRow] = Registry(
    "corpus",
    "lexvl.corpora",
    {
        "beir": CorpusRow("lexvl_anserini.data.corpora.beir:load_beir", has_path=True),
        "coco": CorpusRow(f"{_CAPTIONED}:load_captions"),
        "demo": CorpusRow("lexvl_anserini.data.corpora.captioned:load_demo", checkpoint="demo"),
        "embeddings": CorpusRow("lexvl_anserini.data.corpora.embeddings:load_embeddings", has_path=True),
        "flickr30k": CorpusRow(f"{_CAPTIONED}:load_captions"),
        "flickr8k": CorpusRow(f"{_CAPTIONED}:load_captions", checkpoint="photos"),
        "folder": CorpusRow(f"{_FOLDER}:load_folder", has_path=True, checkpoint="photos"),
        "irds": CorpusRow("lexvl_anserini.data.corpora.irds:load_irds", has_path=True),
        "karpathy": CorpusRow(f"{_CAPTIONED}:load_karpathy", has_path=True),
        "pictures": CorpusRow(f"{_FOLDER}:load_pictures", has_path=True, checkpoint="photos"),
    },
)

ENGINES: Registry[EngineRow] = Registry(
    "engine",
    "lexvl.engines",
    {
        "bm25": EngineRow("lexvl_anserini.engines.bm25:BM25Engine", ("text",)),
        "faiss": EngineRow("lexvl_anserini.engines.faiss:FaissEngine", ("dense",)),
        "lucene": EngineRow("lexvl_anserini.engines.lucene.engine:LuceneEngine", ("impact",)),
        "pyserini": EngineRow("lexvl_anserini.engines.pyserini:PyseriniEngine", ("impact",)),
    },
)
# Which engine indexes shards of a kind unless the user names another.
DEFAULT_ENGINES: Mapping[str, str] = {"dense": "faiss", "impact": "lucene", "text": "bm25"}
GONE_ENGINES = frozenset({"milvus", "pgvector"})  # engines of 0.3.0, the last version that reads their indexes
TORCH = "torch"  # a runtime other than torch is an option of the encoder in manifests: `--set runtime=NAME`
RUNTIMES: Registry[RuntimeRow] = Registry(
    "runtime", "lexvl.runtimes", {TORCH: RuntimeRow("lexvl_anserini.encoders.loading:load_by_torch", None)}
)

# Options of any encoder: name -> "module:function", which makes of an encoder and the option's value another encoder.
WRAPPERS: Registry[str] = Registry("option", "lexvl.wrappers", {})

# Forms of references to pictures that are no files, and "module:function" that opens one: `a.pdf#3`.
NUMBERED = "FILE#NUMBER"
PICTURES: Registry[str] = Registry("form of picture", "lexvl.pictures", {})

# Packages that not every installation has, and the extra that brings each.
EXTRA_PACKAGES: Mapping[str, str] = {
    "accelerate": "train",
    "anyio": "serve",
    "fastapi": "serve",
    "fsspec": "ray",
    "matplotlib": "plots",  # of [train] too
    "mcp": "mcp",
    "onnxruntime": "onnx",
    "pebble": "pages",
    "pypdfium2": "pages",
    "rapidocr": "pages",
    "ray": "ray",
    "sentence_transformers": "sparse",  # of [train] too
    "uvicorn": "serve",
}


class Way(NamedTuple):
    """How `reproduce` measures a part of a row of a published table; its functions are imported when they are used.

    Attributes:
        target: `module:function` that measures a part.
        needing: of one that lists what it reads, without reading it; empty for nothing.
        costing: of one that estimates bytes and time; empty for what takes seconds and writes nothing.
        fitting: of one that says whether a part of its task can be measured; empty for every part.
    """

    target: str
    needing: str = ""
    costing: str = ""
    fitting: str = ""

    def measure(self, part: Any, place: Any) -> Any:
        """Measures a part."""
        return import_home(self.target)(part, place)

    def needs(self, part: Any, place: Any) -> list[Any]:
        """What a part reads."""
        return list(import_home(self.needing)(part, place)) if self.needing else []

    def cost(self, part: Any, place: Any) -> Any:
        """What a part costs; None where that is nothing, or not known."""
        return import_home(self.costing)(part, place) if self.costing else None

    def fits(self, part: Any) -> bool:
        """Whether a part of its task can be measured."""
        return not self.fitting or bool(import_home(self.fitting)(part))


def import_home(home: str) -> Any:
    """The object of a row "module:object", or a module, imported now."""
    module, _, attribute = home.partition(":")
    imported = import_module(module)
    return getattr(imported, attribute) if attribute else imported


def require(*packages: str) -> None:
    """Raises MissingExtra unless packages of extras are installed, without importing them, before long work."""
    for package in packages:
        if find_spec(package) is None:
            raise describe_extra(package)


def describe_extra(package: str) -> MissingExtra:
    """The error for a package of an extra that is not installed."""
    return MissingExtra(f"this command ({package} is not installed)", EXTRA_PACKAGES[package])


def refuse_gone_engine(where: str | PathLike[str], engine: str | None) -> None:
    """Raises ArtefactError for an index of an engine that only older versions have."""
    if engine in GONE_ENGINES:
        remedy = "0.3.0 is the last version that reads it; build one of another engine from its shards"
        raise ArtefactError(f"{where}: an index of the engine {engine}; {remedy}")
