"""Results on disk: a JSON file per run and dataset, and one line each in `results.jsonl`, which only grows.

Each result has the machine that measured it, and the versions of the packages that decide a value or a time.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import compute_sha256, disk_errors, exclusive, make_folder, read_json, write_json
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.records import Measurement, Qrel
from lexvl_anserini.ground.typed import check

from .inputs import RunCard, run_name
from .metrics import MeasuringRules, means

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
    """What one run scored on one dataset, and how.

    Attributes:
        run: its path, and `run_sha256` the digest of its file
        dataset: label of the judgements, and `judgements_sha256` the digest of their sorted lines
        topics: that were judged; each counts
        calls: that measured, each with its measures
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
    with disk_errors(folder):
        make_folder(folder)
        with exclusive(folder, wait=True):
            write_json(path, asdict(merge_earlier(result, path)))
            with open(folder / LOG, "ab") as log:
                log.write(orjson.dumps(asdict(result)) + b"\n")
    return path


def merge_earlier(result: StoredResult, path: Path) -> StoredResult:
    """The result with the measures, and their calls, of an earlier one that had the same judgements and rules."""
    if not path.exists():
        return result
    earlier = read_result(path)
    rules = attrgetter("judgements_sha256", "ties", "remove_query")
    if rules(earlier) != rules(result):
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
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no results; --results of score, table and similar commands writes some")
    yield from map(read_result, files)


def make_slug(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "x"


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
