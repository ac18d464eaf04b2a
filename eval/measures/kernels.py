"""The engine of the measures: compiled functions of ranx, or functions of the same parameters, on arrays of documents.

ranx computes on document numbers. The relevant documents of a topic are numbered here, because ranx's own `Run` and
`Qrels` number documents by a 64-bit hash stored in a float64, sort equal scores by the order of a dictionary, and are
modified by `make_comparable`. ranx runs on numba's `workqueue` threads: call `compute` from one thread at a time.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lexvl_anserini.ground.errors import InstallationError

from .found import Found, Relevant
from .names import MEASURES, Measure

log = logging.getLogger(__name__)

# Topics per call of ranx: limits the padded arrays to about 16 MB at a depth of 1,000.
BLOCK = 1000


def ranx_metrics() -> ModuleType:
    """The module `ranx.metrics` without the rest of ranx, whose imports take three seconds and 150 MB."""
    name = "ranx.metrics"
    if name in sys.modules:
        return sys.modules[name]
    if (package := find_spec("ranx")) is None or package.origin is None:
        raise InstallationError("ranx is not installed; pip install ranx")
    folder = Path(package.origin).parent / "metrics"
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec and spec.loader
    import numba

    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]  # as ranx sets it
    module = sys.modules[name] = module_from_spec(spec)
    with warnings.catch_warnings():
        # From Python 3.12 on, compiling the sources of ranx 0.3 warns of backslashes in its strings.
        warnings.simplefilter("ignore", SyntaxWarning)
        spec.loader.exec_module(module)
    return module


@contextmanager
def compilation_logged() -> Iterator[None]:
    """Logs one line when numba begins to compile; what its cache on the disk holds is loaded without one."""
    from numba.core import event

    class FirstCompilation(event.Listener):
        begun = False

        def on_start(self, event: Any) -> None:
            if not self.begun:
                log.info("ranx compiles its measures, once per machine (up to half a minute)")
            self.begun = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", FirstCompilation()):
        yield


def compute(
    found: Found, ties: str, relevant: Relevant, topics: np.ndarray, measures: Sequence[Measure]
) -> dict[Measure, np.ndarray]:
    """Values [t] of each measure.

    Args:
        found: the relevant documents of a run.
        ties: the rule of their places.
        relevant: those of all judged topics.
        topics: ascending numbers of t judged topics.
        measures: what to compute.
    """
    kernels = ranx_metrics()
    # A measure with a cut reads no further than the cut; one without reads the whole ranking.
    longest = max(1, int(found.hits[topics].max(initial=0)))
    depth = min(longest, max(measure.k or longest for measure in measures))
    values: dict[Measure, list[np.ndarray]] = {measure: [] for measure in measures}
    with compilation_logged():
        for start in range(0, len(topics), BLOCK):
            judged, ranked = as_arrays(found, ties, relevant, topics[start : start + BLOCK], depth)
            for measure in measures:
                named = MEASURES[measure.name].function
                function = getattr(kernels, named) if isinstance(named, str) else named
                values[measure].append(function(judged, ranked, measure.k or 0, measure.level or 1))
    return {measure: np.concatenate(parts) for measure, parts in values.items()}


def as_arrays(
    found: Found, ties: str, relevant: Relevant, topics: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The input of ranx: judgements [t, J, 2] and rankings [t, depth, 2], rows (document number, value).

    Documents are numbered within their topic: the relevant ones 0.. by descending relevance, all others -1. Padding is
    document -1 with relevance 0, which ranx drops; the value of a ranked document decreases by 1 per rank.
    """
    counts = np.diff(relevant.starts)[topics]  # [t] relevant documents
    rows = np.repeat(np.arange(len(topics)), counts)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    judged = np.zeros((len(topics), max(1, counts.max(initial=0)), 2))  # [t, J, 2]
    judged[:, :, 0] = -1
    judged[rows, numbers, 0] = numbers
    judged[rows, numbers, 1] = relevant.relevance[relevant.starts[topics][rows] + numbers]

    owners = relevant.topics_of(found.documents)
    row_of = np.full(len(relevant.topics), -1)
    row_of[topics] = np.arange(len(topics))
    places = found.places[ties]
    here = (row_of[owners] >= 0) & (places < depth)
    ranked = np.full((len(topics), depth, 2), -1.0)  # [t, depth, 2]
    ranked[:, :, 1] = np.arange(depth, 0, -1)
    ranked[row_of[owners[here]], places[here], 0] = found.documents[here] - relevant.starts[owners[here]]
    return judged, ranked
