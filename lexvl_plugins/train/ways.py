"""Rows of `lexvl.ways`: weights that are trained when they are measured, and numbers of parameters."""

from __future__ import annotations

from lexvl_eval.reproduction.matrix import Way, no_cost, nothing_needed
from lexvl_eval.reproduction.prepared import estimate_retrieval, list_retrieval_needs

from lexvl_plugins.train.reproduction import can_be_counted

TRAINED = Way("lexvl_plugins.train.reproduction:measure_trained", list_retrieval_needs, estimate_retrieval)
COUNT = Way("lexvl_plugins.train.reproduction:count_parameters", nothing_needed, no_cost, can_be_counted)
