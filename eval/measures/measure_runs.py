"""Measures several runs in one process: each dataset's judgements are read once.

Integer scores tie often, and a foreign evaluator orders ties in its own way, so one run has two values. A run whose
manifest vouches for it keeps the order of its ranks, which is the order of the index; a run of another system is
measured as its authors measured it, with trec_eval. Values by different rules cannot be compared, so a table has one
rule, and the log says what the other would change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import CorpusRef, Measurement, Qrel
from lexvl_anserini.runs.columns import map_run
from lexvl_anserini.runs.trec import read_lists

from .inputs import Judgements, JudgementSource, RunCard, choose_source, read_judgements
from .metrics import Measure, MeasuringRules, check_levels, compute_values, judgements, mean, measure, parse_measures
from .ties import Found, Relevant, check_ties, collect_relevant, find

log = logging.getLogger(__name__)

OTHER = {"rank": "trec_eval", "trec_eval": "rank"}

# Where a smaller share of a run's first documents is judged, the judgements may be of another collection.
FEW_JUDGED = 0.01
FIRST_RANKS = 10

# Two values of a measure count as different if they are further apart than this.
NEGLIGIBLE = 1e-4


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

    The runs' manifests complete what `source` leaves open. With None, `ties` is what the runs' origin asks for, see
    `choose_ties`, and `remove_query` the dataset's rule, else the manifest's. A line says what ties change in means,
    with `per_topic` in topics too; the folder `results` gets the result of each run, see `result_files.py`.
    """
    parsed, cards = parse_measures(measures, relevance_level), list(cards)
    sources = [choose_source(card, source) for card in cards]
    chosen_ties = choose_ties(cards, ties)
    read: dict[JudgementSource, Judgements] = {}
    measured, changed = [], list[tuple[Measurement, float]]()
    for card, chosen in zip(cards, sources, strict=True):
        if card.hits is not None and (deeper := [str(m) for m in parsed if m.k is not None and m.k > card.hits]):
            log.warning("%s: holds %d hits per topic; %s cannot see more", card.path, card.hits, ", ".join(deeper))
        judged = read[chosen] = read.get(chosen) or read_judgements(chosen)
        removals = (remove_query, judged.remove_query, card.remove_query)
        how = MeasuringRules(chosen_ties, next(removal for removal in removals if removal is not None))
        relevant = collect_relevant(judgements(judged.qrels, judged.label))
        check_levels(relevant, parsed, judged.label)
        places = map_run(card.path, partial(find, relevant=relevant, remove_query=how.remove_query))
        rows = measure(places, relevant, parsed, how, str(card.path), judged.label)
        report_unjudged(card.path, judged, places, relevant, how)
        if results:
            from .result_files import make_result, store

            store(results, make_result(card, rows, judged.qrels, how))
        measured.append(rows)
        changed += find_other_values(rows, places, relevant, parsed, how)
    report_other_values([(row, value) for row, value in changed if per_topic or row.query_id == "all"])
    return measured


def report_unjudged(path: Path, judged: Judgements, found: Found, relevant: Relevant, rules: MeasuringRules) -> None:
    """Warns where few of a run's first documents are judged; the run is read again only where few are relevant."""
    first = int(np.minimum(found.hits, FIRST_RANKS).sum())

    def share(of: Found) -> float:
        return int((of.places[rules.ties] < FIRST_RANKS).sum()) / max(first, 1)

    if share(found) >= FEW_JUDGED:
        return
    # Documents that are judged as not relevant count too.
    levels = {topic: dict.fromkeys(docs, 1) for topic, docs in judgements(judged.qrels, judged.label).items()}
    of_first = share(map_run(path, partial(find, relevant=collect_relevant(levels), remove_query=rules.remove_query)))
    if of_first >= FEW_JUDGED:
        return
    log.warning(
        "%s: %d of its %d topics and only %.1f %% of their first %d documents are judged by %s; "
        "are these the judgements of another collection?",
        *(path, sum(topic in relevant.topics for topic in found.query_ids), len(found.query_ids)),
        *(100 * of_first, FIRST_RANKS, judged.label),
    )


def choose_ties(cards: Sequence[RunCard], requested: str | None = None) -> str:
    """The one order of equal scores for all runs: the requested one, else the one that all of them ask for.

    Where they ask for different ones it is trec_eval's, which is that of other people's figures; a line says so.
    """
    if requested is not None:
        check_ties(requested)
        return requested
    asking = {card.ties: card.path for card in reversed(cards)}
    if len(asking) > 1:
        rule = "every run has trec_eval's order of equal scores; --ties rank keeps the order of ranks"
        log.info("%s has no manifest that fits, so %s", asking["trec_eval"], rule)
        return "trec_eval"
    return next(iter(asking), "rank")


def find_other_values(
    rows: Sequence[Measurement], found: Found, relevant: Relevant, measures: Sequence[Measure], rules: MeasuringRules
) -> list[tuple[Measurement, float]]:
    """The measurements of a run that the other rule changes by more than `NEGLIGIBLE`, and its values.

    Only topics in which a relevant document has another place are measured again.
    """
    other = OTHER[rules.ties]
    moved = found.documents[found.places[other] != found.places[rules.ties]]
    topics = np.unique(relevant.split_topics(moved))
    if not len(topics):
        return []
    values = compute_values(found, relevant, topics, measures, rules._replace(ties=other))
    count = len(relevant.topics)
    paired = list[tuple[Measurement, float]]()
    for number, metric in enumerate(measures):
        of_measure = rows[number * (count + 1) : (number + 1) * (count + 1)]
        by_other = np.array([row.value for row in of_measure[:count]])
        by_other[topics] = values[metric]
        paired += zip(of_measure, [*by_other.tolist(), mean(by_other)], strict=True)
    return [(row, value) for row, value in paired if abs(value - row.value) > NEGLIGIBLE]


def report_other_values(changed: Sequence[tuple[Measurement, float]]) -> None:
    """Logs one line if the other rule changes values."""
    if changed:
        row, value = changed[0]
        topic = "" if row.query_id == "all" else f", topic {row.query_id!r}"
        more = f"; other values that differ: {len(changed) - 1}" if len(changed) > 1 else ""
        text = "%s%s: the order of equal scores decides; %s is %.4f by %s and %.4f by %s%s"
        log.warning(text, row.run, topic, row.measure, row.value, row.ties, value, OTHER[row.ties], more)


class Subsets(NamedTuple):
    """The first captions of each image that count, None for all, and the folds of images whose mean the values are."""

    captions: int | None = None
    folds: int = 1

    @property
    def is_whole(self) -> bool:
        """True if everything counts, at once."""
        return self.captions is None and self.folds == 1

    def __str__(self) -> str:
        """What follows the name of the dataset in tables."""
        captions = f"{self.captions} captions per image" if self.captions else ""
        folds = f"mean of {self.folds} folds" if self.folds > 1 else ""
        return ", ".join(filter(None, (captions, folds)))


def measure_subsets(
    card: RunCard, source: JudgementSource, measures: Sequence[str], subsets: Subsets, ties: str | None = None
) -> list[Measurement]:
    """The means of a run over its subsets, as `measure_runs` returns them for all judged topics."""
    chosen = choose_source(card, source)
    judged, lists = read_judgements(chosen), read_lists(card.path)
    deepest = max((measure.k or 0 for measure in parse_measures(measures)), default=0)
    rows: list[list[Measurement]] = []
    with TemporaryDirectory(prefix="lexvl-folds-") as folder:
        for number, qrels in enumerate(split_qrels(judged, chosen.corpus.direction or "", subsets)):
            doc_ids = {qrel.doc_id for qrel in qrels}
            of_fold = {
                query_id: [hit for hit in lists.get(query_id, ()) if hit.doc_id in doc_ids]
                for query_id in dict.fromkeys(qrel.query_id for qrel in qrels)
            }
            needed = min(deepest, len(doc_ids))
            full = [hits for topic, hits in of_fold.items() if len(lists.get(topic, ())) == card.hits]
            if short := sum(len(hits) < needed for hits in full):
                raise UsageError(
                    f"{card.path}: {short} lists of {card.hits} hits hold fewer than {needed} documents of a fold; "
                    "search with more --hits"
                )
            part, judgements = Path(folder) / f"{number}.trec", Path(folder) / f"{number}.qrels"
            lines = (
                f"{topic} Q0 {hit.doc_id} {rank} {hit.score!r} fold\n"
                for topic, hits in of_fold.items()
                for rank, hit in enumerate(hits, 1)
            )
            part.write_text("".join(lines), encoding="utf-8")
            lines = (f"{qrel.query_id} 0 {qrel.doc_id} {qrel.relevance}\n" for qrel in qrels)
            judgements.write_text("".join(lines), encoding="utf-8")
            of_labels = JudgementSource(judgements, CorpusRef(judged.label))
            [measured] = measure_runs([replace(card, path=part)], of_labels, measures, ties=ties)
            rows.append([row for row in measured if row.query_id == "all"])
    run, dataset = str(card.path), f"{judged.label} ({subsets})"
    return [
        first._replace(run=run, dataset=dataset, value=float(np.mean([row.value for row in (first, *others)])))
        for first, *others in zip(*rows, strict=True)
    ]


def split_qrels(judged: Judgements, direction: str, subsets: Subsets) -> Iterator[list[Qrel]]:
    """The judgements of each fold, in the order of the images."""
    images_ask = direction == "image-to-text"
    by_image: dict[str, list[Qrel]] = {}
    for qrel in judged.qrels:
        by_image.setdefault(qrel.query_id if images_ask else qrel.doc_id, []).append(qrel)
    if len(by_image) < subsets.folds:
        raise UsageError(f"{judged.label}: {len(by_image)} images, fewer than {subsets.folds} folds")
    for fold in np.array_split(np.array([*by_image], dtype=object), subsets.folds):
        yield [qrel for image in fold for qrel in by_image[image][: subsets.captions]]
