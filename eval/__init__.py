"""Evaluation: a run and its judgements become measurements, measurements become tables.

run, qrels -> relevant documents and their places -> values -> table -> text, Markdown, LaTeX, CSV, JSON
(measures/inputs)                            (measures/metrics) (report/tables)

Each command is one file: options, one call, print. `measures/` computes, `report/` formats, `analyses/` reads vectors.

score ....................... any run against any judgements
beir, msmarco ............... the same with the measures and rules of these datasets
coco, flickr30k, flickr8k, demo ... images with captions: R@k as the papers define it (`lexvl score-demo`)
table, compare, results ..... systems side by side; against a baseline, with significance; stored results
sheet ....................... a contact sheet of queries and their hits

Importing the package loads nothing heavy; `measures/metrics` loads ranx's measures when it computes the first.

The package is installed as `lexvl_eval`. In a checkout `eval` is a second name of it, with the same modules.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import lexvl_anserini

_LIBRARY, _OURS = (Path(file).resolve().parents[1] for file in (lexvl_anserini.__file__, __file__))
if _LIBRARY != _OURS:
    raise SystemExit(
        f"error: lexvl_anserini is in {_LIBRARY}, but its evaluation in {_OURS}, expected one folder; "
        "install the checkout that you use: pip install -e CHECKOUT"
    )


class SecondName(SourceFileLoader):
    """Finds `lexvl_eval` in the folder eval/, and loads `eval.X` as the module `lexvl_eval.X`."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The specification of a module by one of the names; None for other modules."""
        if name == "lexvl_eval":
            return spec_from_file_location(name, __file__)
        spec = PathFinder.find_spec(name, path) if name.startswith("eval.") else None
        if spec and spec.origin:
            spec.loader = cls(name, spec.origin)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of the first name in the place of an empty one."""
        sys.modules[module.__name__] = import_module(f"lexvl_{module.__name__}")


if __name__ == "eval":  # only in a checkout: a user's folder of this name is another package
    sys.meta_path.insert(0, SecondName)
    sys.modules[__name__] = import_module("lexvl_eval")
