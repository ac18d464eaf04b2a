"""The checkout: its commands and test data, what setup.cfg declares, and the packages that modules are of."""

import configparser
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lexvl_anserini import cli

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs/site"
GOLDEN = ROOT / "tests/golden"
SHARED = ROOT.parent / "shared"
OURS = "lexvl-anserini"
# Modules of six lines, `python -m lexvl_anserini.train`, which forward to commands of plug-ins.
FORWARDERS = {"train.py", "photos.py", "mine.py", "demo.py", "reproduce.py"}

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


# The modules of commands by name; lexvl_eval is the folder eval/.
COMMANDS = {name: row.module.replace("lexvl_eval", "eval", 1) for name, row in cli.COMMANDS.items()}

REQUIREMENTS = [*requirements(), *(needed for extra in EXTRAS for needed in requirements(extra))]

# Modules whose package has another name.
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "faiss": "faiss-cpu",
    "jnius_config": "pyjnius",
    "jnius": "pyjnius",
    "opensearchpy": "opensearch-py",
    "pyterrier": "python-terrier",
    "qdrant_edge": "qdrant-edge-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "xdist": "pytest-xdist",
    "yaml": "pyyaml",
}


def package_of(module: str) -> str:
    top = module.partition(".")[0]
    return PACKAGES.get(top, canonicalize_name(top))


def packages(extra: str | None = None) -> set[str]:
    return {canonicalize_name(needed.name) for needed in requirements(extra)}


def load_from_site(name: str) -> Any:
    """A module of docs/site, which is no package."""
    spec: Any = spec_from_file_location(f"lexvl_docs_{name}", SITE / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
