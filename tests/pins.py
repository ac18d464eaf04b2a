"""Prints the file of constraints/ of the environment that runs it: `python tests/pins.py`."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions

from packaging.specifiers import SpecifierSet

from lexvl_anserini.engines.jvm import find_jar
from lexvl_anserini.ground.machine import find_lucene

# What installs, and this project.
LEFT_OUT = {"pip", "setuptools", "wheel", "lexvl-anserini"}


def constraints(installed: Iterable[tuple[str, str, str]], python: str, lucene: str) -> Iterator[str]:
    """The lines of a file of constraints, of the names, versions and Pythons (">=3.11.5"; "" for all) of packages."""
    # What the first release of this Python (3.11.0) cannot install has no line: pip finds an older one there.
    fitting = ((name, version) for name, version, needs in installed if SpecifierSet(needs).contains(f"{python}.0"))
    pins = {re.sub("[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in fitting}
    pyserini, line = (".".join(version.split(".")[:2]) for version in (pins["pyserini"], lucene))
    yield f"# The versions that were tested together: Python {python} with Pyserini {pyserini} (Lucene {line})."
    yield f"# pip install -c constraints/py{python.replace('.', '')}.txt ..."
    yield from (f"{name}=={pins[name]}" for name in sorted(pins) if name not in LEFT_OUT)


if __name__ == "__main__":
    packages = [(each.name, each.version, each.metadata["Requires-Python"] or "") for each in distributions()]
    lucene = find_lucene(find_jar()) or ""
    print(*constraints(packages, "{}.{}".format(*sys.version_info), lucene), sep="\n")
