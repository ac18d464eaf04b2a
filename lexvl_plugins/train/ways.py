"""Rows of `lexvl.ways`: weights that are trained when they are measured, and numbers of parameters."""

from __future__ import annotations

from lexvl_anserini.ground.registry import Way

_HOME, _NEEDED = "lexvl_plugins.train.reproduction", "lexvl_eval.reproduction.prepared"
TRAINED = Way(f"{_HOME}:measure_trained", f"{_NEEDED}:list_retrieval_needs", f"{_NEEDED}:estimate_retrieval")
COUNT = Way(f"{_HOME}:count_parameters", fitting=f"{_HOME}:can_be_counted")
