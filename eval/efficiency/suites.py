"""The table of suites: what is measured, where, and which options it heeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Suite(NamedTuple):
    """A benchmark: `module:function` that maps `Options` to a `Report`, and the options it heeds."""

    target: str
    heeds: frozenset[str]


COLLECTION = frozenset(
    {"documents", "shape", "terms", "shards", "queries", "query_count", "query_terms", "workdir", "seed"}
)

SUITES: Mapping[str, Suite] = {
    "cost": Suite(
        "eval.efficiency.cost:measure",
        frozenset({"documents", "shape", "terms", "query_count", "query_terms", "hits", "system", "workdir", "seed"}),
    ),
    "encode": Suite(
        "eval.efficiency.encode:measure",
        frozenset(
            {
                "documents",
                "shape",
                "system",
                "repeats",
                "threads",
                "batch_size",
                "corpus",
                "data_dir",
                "seed",
                "workdir",
            }
        ),
    ),
    "index": Suite(
        "eval.efficiency.index:measure",
        frozenset({"documents", "shape", "terms", "shards", "system", "repeats", "threads", "workdir", "seed"}),
    ),
    "memory": Suite("eval.efficiency.memory:measure", frozenset({"documents", "encoder", "checkpoint"})),
    "overhead": Suite("eval.efficiency.overhead:measure", frozenset({"documents", "encoder", "checkpoint"})),
    "overview": Suite("eval.efficiency.overview:measure", frozenset({"queries", "workdir", "seed"})),
    "search": Suite("eval.efficiency.search:measure", COLLECTION | {"hits", "system", "repeats", "threads"}),
    "startup": Suite("eval.efficiency.startup:measure", frozenset({"repeats"})),
}
