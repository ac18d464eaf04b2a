"""The machine that measures, and the versions of the packages that decide a value or a time."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from lexvl_anserini.data.pictures.images import usable_cores
from lexvl_anserini.ground.installed import versions_of

# Packages that affect a value or a time besides our own code.
VERSIONED = (
    "lexvl-anserini",
    "pyserini",
    "faiss-cpu",
    "numba",
    "numpy",
    "pyarrow",
    "ranx",
    "torch",
    "transformers",
    "sentence-transformers",
)


def machine() -> dict[str, Any]:
    """The machine, its load, and the versions of Python and of packages."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions_of(VERSIONED),
    }


def processor() -> str:
    """The name of the processor, from the system if it is known there."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
