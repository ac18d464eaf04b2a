"""Measures several runs in one process: each dataset's judgements are read once.

Integer scores tie often, and a foreign evaluator orders ties in its own way, so one run has two values. A run whose
manifest vouches for it keeps the order of its ranks, which is the order of the index; a run of another system is
measured as its authors measured it, with trec_eval. Values by different rules cannot be compared, so a table has one
rule, and the log says what the other would change.

Results on disk are a JSON file per run and dataset, and one line each in `results.jsonl`, which only grows. Each has
the machine that measured it, and the versions of the packages that decide a value or a time.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.data.lines import choose_files
from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import compute_sha256, disk_errors, exclusive, read_json, write_json
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.records import CorpusRef, Measurement, Qrel
from lexvl_anserini.ground.typed import check
from lexvl_anserini.runs.columns import map_run
from lexvl_anserini.runs.trec import read_lists

from .inputs import (
    Found,
    Judgements,
    JudgementSource,
    Relevant,
    RunCard,
    check_ties,
    choose_source,
    collect_relevant,
    find,
    make_slug,
    read_judgements,
    run_name,
)
from .metrics import (
    Measure,
    MeasuringRules,
    check_levels,
    compute_values,
    judgements,
    mean,
    means,
    measure,
    parse_measures,
)

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
    with `per_topic` in topics too; the folder `results` gets the result of each run, see `store`.
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

    if share(found) >= FEW_JUDGED * min(1, len(relevant.relevance) / max(first, 1)):  # captions: one in ten
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
    for row, value in changed[:1]:
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
            ranked = ((topic, rank, hit) for topic, hits in of_fold.items() for rank, hit in enumerate(hits, 1))
            lines = (f"{topic} Q0 {hit.doc_id} {rank} {hit.score!r} fold\n" for topic, rank, hit in ranked)
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


LOG = "results.jsonl"


@dataclass(frozen=True)
class Call:
    """What measured: the command, when (in UTC), where (as `machine` returns it), and the measures it gave."""

    command: str
    time: str
    machine: Mapping[str, Any]
    measures: tuple[str, ...]


@dataclass(frozen=True)
class StoredResult:
    """What one run, given by its path, scored on one dataset, the label of the judgements, and the calls that measured.

    Digests are those of the run's file and of the sorted lines of the judgements; each judged topic counts.
    """

    run: str
    run_sha256: str
    system: str
    dataset: str
    judgements_sha256: str
    topics: int
    measures: Mapping[str, float]
    ties: str
    remove_query: bool
    calls: tuple[Call, ...]

    def measurements(self) -> list[Measurement]:
        """The means, under the name of the system."""
        return [
            Measurement(self.system, self.dataset, measure, "all", value, self.ties)
            for measure, value in self.measures.items()
        ]


def make_result(
    card: RunCard, rows: Sequence[Measurement], qrels: Iterable[Qrel], rules: MeasuringRules
) -> StoredResult:
    """The result of a run that was just measured."""
    judged = "".join(sorted(f"{query_id} 0 {doc_id} {relevance}\n" for query_id, doc_id, relevance in qrels))
    values, (name, *arguments) = means(rows), sys.orig_argv
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return StoredResult(
        run=str(card.path),
        run_sha256=card.sha256 or compute_sha256(card.path),
        system=card.system,
        dataset=rows[0].dataset,
        judgements_sha256=sha256(judged.encode()).hexdigest(),
        topics=len(rows) // len(values) - 1,
        measures=values,
        ties=rules.ties,
        remove_query=rules.remove_query,
        calls=(Call(shlex.join([Path(name).name, *arguments]), now, machine(), (*values,)),),
    )


def store(folder: Path, result: StoredResult) -> Path:
    """Writes a result's file, and its line in the log.

    Measures that an earlier call stored for the same file, judgements and rules stay in the file.
    """
    dataset = Path(result.dataset).name if Path(result.dataset).is_file() else result.dataset
    path = folder / f"{make_slug(run_name(Path(result.run).name))}.{result.run_sha256[:8]}.{make_slug(dataset)}.json"
    with disk_errors(folder), exclusive(folder, wait=True):
        write_json(path, asdict(merge_earlier(result, path)))
        with open(folder / LOG, "ab") as log:
            log.write(orjson.dumps(asdict(result)) + b"\n")
    return path


def merge_earlier(result: StoredResult, path: Path) -> StoredResult:
    """The result with the measures, and their calls, of an earlier one that had the same judgements and rules."""
    rules = attrgetter("judgements_sha256", "ties", "remove_query")
    if not path.exists() or rules(earlier := read_result(path)) != rules(result):
        return result
    older = [replace(c, measures=tuple(m for m in c.measures if m not in result.measures)) for c in earlier.calls]
    calls = (*(call for call in older if call.measures), *result.calls)
    return replace(result, measures={**earlier.measures, **result.measures}, calls=calls)


def read_result(path: Path) -> StoredResult:
    """The result in a file."""
    content = read_json(path, "result of a run", DataError)
    check(content, StoredResult, str(path), "move it elsewhere")
    calls = tuple(
        Call(call["command"], call["time"], call["machine"], tuple(call["measures"])) for call in content["calls"]
    )
    return StoredResult(**{**{field.name: content[field.name] for field in fields(StoredResult)}, "calls": calls})


def read_results(folder: Path) -> Iterator[StoredResult]:
    """The results of a folder, by file name."""
    files = choose_files(folder, ".json")
    if not files:
        raise DataError(f"{folder}: no results; --results of score, table and similar commands writes some")
    yield from map(read_result, files)


# Packages that affect a value or a time besides our own code.
VERSIONED = (
    "lexvl-anserini", "pyserini", "faiss-cpu", "numba", "numpy", "pyarrow", "ranx", "torch", "transformers",
    "sentence-transformers",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """The machine, its load, and the versions of Python and of packages."""
    file = Path("/proc/cpuinfo")
    known = re.search(r"^model name\s*: *(.*\S)", file.read_text() if file.is_file() else "", re.MULTILINE)
    return {
        "processor": known[1] if known else platform.machine(),
        "cores": count_usable_cores(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": list_versions(VERSIONED),
    }
