"""Stock Pyserini on the Java of this package: `python -m lexvl_anserini.stock MODULE [ARGUMENTS]`, and `prepare()`.

A module of Pyserini (`pyserini.search.lucene`, `pyserini.index.lucene`, `pyserini.eval.trec_eval`) runs with its own
arguments and its own code. What its start wants and a machine may lack is there before it is imported.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from typing import NoReturn

from lexvl_anserini.engines.stock import prepare
from lexvl_anserini.ground.errors import LexvlError

USAGE = "usage: python -m lexvl_anserini.stock pyserini.MODULE [ARGUMENTS of that module]"


def main(arguments: list[str]) -> None:
    """Runs a module of Pyserini as `python -m` does; exits with 2 if there is no such module, with 1 without Java."""
    module = arguments[0] if arguments else ""
    if not module.startswith("pyserini."):
        _refuse(f"error: {module} is no module of pyserini; {USAGE}" if module else USAGE)
    try:
        prepare()
    except LexvlError as error:
        sys.exit(f"error: {error}")
    if not _exists(module):
        _refuse(f"error: this Pyserini has no module {module}; {USAGE}")
    sys.argv = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _refuse(line: str) -> NoReturn:
    print(line, file=sys.stderr)
    sys.exit(2)


def _exists(module: str) -> bool:
    """Returns False if Pyserini has no such module; a library that it lacks raises as in Pyserini itself."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyserini"):
            raise
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
