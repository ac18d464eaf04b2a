"""Prints the file of constraints/ of the environment that runs it: `python tests/pins.py`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions

from lexvl_anserini.engines.jvm import find_jar
from lexvl_anserini.ground.installed import lucene_of

# What installs, and this project.
LEFT_OUT = {"pip", "setuptools", "wheel", "lexvl-anserini"}


def constraints(installed: Iterable[tuple[str, str]], python: str, lucene: str) -> Iterator[str]:
    """The lines of a file of constraints.

    Args:
        installed: names and versions of packages. A local version (2.13.0+cpu) is a build, and any build will do.
        python, lucene: versions, for the first line.
    """
    pins = {re.sub("[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in installed}
    pyserini, line = (".".join(version.split(".")[:2]) for version in (pins["pyserini"], lucene))
    yield f"# The versions that were tested together: Python {python} with Pyserini {pyserini} (Lucene {line})."
    yield f"# pip install -c constraints/py{python.replace('.', '')}.txt ..."
    yield from (f"{name}=={pins[name]}" for name in sorted(pins) if name not in LEFT_OUT)


if __name__ == "__main__":
    packages = [(each.name, each.version) for each in distributions()]
    lucene = lucene_of(find_jar()) or ""
    print(*constraints(packages, "{}.{}".format(*sys.version_info), lucene), sep="\n")
