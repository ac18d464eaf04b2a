"""Measures several runs in one process: each dataset's judgements are read once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from lexvl_anserini.ground.records import Measurement

from .found import find_in_run, relevant_of
from .inputs import Judgements, JudgementSource, RunCard, choose_source, read_judgements
from .metrics import MeasuringRules, check_levels, judgements, measure
from .names import parse_measures
from .result_files import result_of, store
from .tie_rules import OtherValue, common_ties, other_values, report_other_values

log = logging.getLogger(__name__)


def measure_runs(
    cards: Iterable[RunCard],
    source: JudgementSource,
    measures: Iterable[str],
    *,
    relevance_level: int = 1,
    ties: str | None = None,
    remove_query: bool | None = None,
    per_topic: bool = False,
    results: Path | None = None,
) -> list[list[Measurement]]:
    """Measures several runs, one list of measurements per run, as `evaluate` returns it.

    Args:
        cards: the runs; their manifests complete what `source` leaves open.
        source: the judgements that the caller names.
        measures: their names.
        relevance_level: least relevance that counts, of measures without their own (not for nDCG); it is part of
            their names in the measurements.
        ties: "rank" or "trec_eval"; None for the one that the runs' origin asks for, see `tie_rules.py`.
        remove_query: None follows the dataset's rule, else what the run's manifest says.
        per_topic: a line says what ties change in topics too, not only in means.
        results: a folder that gets the result of each run, see `result_files.py`.
    """
    parsed, cards = parse_measures(measures, relevance_level), list(cards)
    sources = [choose_source(card, source) for card in cards]
    chosen_ties = common_ties(cards, ties)
    read: dict[JudgementSource, Judgements] = {}
    measured, changed = [], list[OtherValue]()
    for card, chosen in zip(cards, sources, strict=True):
        if card.hits is not None and (deeper := [str(m) for m in parsed if m.k is not None and m.k > card.hits]):
            log.warning("%s: holds %d hits per topic; %s cannot see more", card.path, card.hits, ", ".join(deeper))
        judged = read[chosen] = read.get(chosen) or read_judgements(chosen)
        rules = (remove_query, judged.remove_query, card.remove_query)
        how = MeasuringRules(chosen_ties, next(rule for rule in rules if rule is not None))
        relevant = relevant_of(judgements(judged.qrels, judged.label))
        check_levels(relevant, parsed, judged.label)
        places = find_in_run(card.path, relevant, how.remove_query)
        rows = measure(places, relevant, parsed, how, str(card.path), judged.label)
        if results:
            store(results, result_of(card, rows, judged.qrels, how))
        measured.append(rows)
        changed += other_values(rows, places, relevant, parsed, how)
    report_other_values([one for one in changed if per_topic or one.row.query_id == "all"])
    return measured
