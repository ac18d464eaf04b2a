"""Lexical vision-language retrieval on Lucene.

    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.shards.writing import write_impacts
    from lexvl_anserini.searching.building import build_index
    from lexvl_anserini.searching.searcher import search_index

Names are imported when they are first used: `import lexvl_anserini` loads neither torch nor a JVM.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

# The range of python_requires in setup.cfg, which nothing reads where a checkout runs without installation.
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    raise SystemExit(
        f"error: LexVL needs Python 3.11 to 3.14, {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}; "
        "make an environment with one of these, for example: python3.13 -m venv .venv"
    )

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset, load_dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.ground.errors import LexvlError
    from lexvl_anserini.ground.quantise import Quantiser
    from lexvl_anserini.ground.records import Document, Qrel, ScoredDoc, Topic
    from lexvl_anserini.runs.order import as_frame
    from lexvl_anserini.searching.building import build_index
    from lexvl_anserini.searching.searcher import Searcher, search_index
    from lexvl_anserini.shards.writing import write_impacts

_HOMES = {
    "Dataset": "data.dataset",
    "Document": "ground.records",
    "Encoder": "encoders.encoder",
    "LexvlError": "ground.errors",
    "Qrel": "ground.records",
    "Quantiser": "ground.quantise",
    "ScoredDoc": "ground.records",
    "Searcher": "searching.searcher",
    "Topic": "ground.records",
    "as_frame": "runs.order",
    "build_index": "searching.building",
    "load_dataset": "data.dataset",
    "load_encoder": "encoders.loading",
    "search_index": "searching.searcher",
    "write_impacts": "shards.writing",
}

__all__ = [
    "Dataset",
    "Document",
    "Encoder",
    "LexvlError",
    "Qrel",
    "Quantiser",
    "ScoredDoc",
    "Searcher",
    "Topic",
    "as_frame",
    "build_index",
    "load_dataset",
    "load_encoder",
    "search_index",
    "write_impacts",
]


def __getattr__(name: str) -> Any:
    """Imports an exported name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The exported names too, which completion in IPython shows before they are imported."""
    return sorted({*globals(), *__all__})
