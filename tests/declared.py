"""What setup.cfg declares."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
OURS = "lexvl-anserini"

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def requirements(extra: str | None = None) -> Iterator[Requirement]:
    """What every installation needs, or what an extra brings, by the extras that it names too."""
    for needed in map(Requirement, (EXTRAS[extra] if extra else SETUP["options"]["install_requires"]).split("\n")[1:]):
        if needed.name == OURS:
            for other in sorted(needed.extras):
                yield from requirements(other)
        else:
            yield needed


REQUIREMENTS = [*requirements(), *(needed for extra in EXTRAS for needed in requirements(extra))]
