"""Builds the partitions of an index, each from one folder of shards, by the runner that is in use.

INDEX.lexvl.room/partition-00000/   finished partitions, until all are; a call that was killed finds them again
INDEX/partition-00000/              an index of Lucene, with `partition.json`
INDEX/index.json, manifest.json     of the whole
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.engines.index_folder import (
    HEADS,
    PARTITION,
    REPORT,
    BuiltIndex,
    is_index,
    read_report,
    write_index,
    write_report,
)
from lexvl_anserini.engines.lucene.writing import IndexOptions, read_source_manifest
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import find_room, read_json, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.shards.layout import combine_manifests, source_digest
from lexvl_anserini.shards.reading import check_distinct, read_ids
from lexvl_plugins.cluster.runners import get_runner, run_all
from lexvl_plugins.cluster.storage import discard, fetch, find_url, make_place, place, publish, publish_after

# What to do about partitions that are not as they were.
REPAIR = "run the command that built the index again, which builds what is missing"


def name_partition(number: int) -> str:
    """`partition-00003`."""
    return f"partition-{number:05}"


def build_partitions(
    sources: Sequence[Path], index: Path, threads: int = 1, progress: Progress = silent, options: Any = None
) -> BuiltIndex:
    """Builds one partition from each folder, and from these the index, which is published."""
    sources, index = [place(source) for source in sources], place(index)
    manifests = [read_shards_manifest(source) for source in sources]
    manifest = combine_manifests(manifests, sources)
    if "parts" in manifest.corpus:
        refuse_common_ids(sources, manifests)
    # Where partitions wait until all are there: beside the index; in storage, where nothing is renamed, in it.
    staging = index if find_url(index) else find_room(index)
    # Names the documents of all partitions together, and the greatest impact that their queries are made for.
    digest = sha256(orjson.dumps([[*map(source_digest, manifests)], manifest.counts.max_impact])).hexdigest()
    make_place(staging)
    options = options or IndexOptions()
    names = [name_partition(number) for number in range(len(sources))]
    if staging != index:
        keep_partitions(index, staging, names, digest)
    for _, documents in run_all(
        get_runner(),
        partial(build_partition, staging, tuple(sources), options, threads, digest),
        range(len(sources)),
        lambda number: str(sources[number]),
        threads,
    ):
        progress(documents)
    reports = [read_report(fetch(staging / name, [REPORT])) for name in names]
    total = {key: sum(report[key] for report in reports) for key in ("documents", "empty", "postings", "bytes")}
    for key in ("documents", "empty", "postings"):
        if total[key] != manifest.counts[key]:
            raise ArtefactError(f"{index}: {total[key]} {key} in its partitions, {manifest.counts[key]} in the shards")
    with write_index(index, fetch(sources[0], HEADS), manifest) as part:
        for name in names if staging != index else ():
            (staging / name).rename(part / name)
        counts = {"engine": "partitions", **total, "max_impact": manifest.counts.max_impact, "partitions": len(names)}
        write_report(part, {**counts, "options": options.to_json(), "collection": digest})
    if staging != index:
        shutil.rmtree(staging)
    publish(index)
    return BuiltIndex(index, manifest)


def read_shards_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards."""
    if is_index(folder):
        raise UsageError(f"{folder}: an index; partitions are built from shards, so name those it was built from")
    return read_source_manifest(folder)


def refuse_common_ids(sources: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Reads the ids of several corpora; those of the parts of one were compared when it was planned."""

    def ids() -> Iterator[str]:
        for source, manifest in zip(sources, manifests, strict=True):
            yield from read_ids(fetch(source), manifest)

    seen = SeenIds()
    for doc_id in ids():
        seen.add(doc_id)
    check_distinct(seen, ids)


def build_partition(
    folder: Path, sources: Sequence[Path], options: IndexOptions, threads: int, collection: str, number: int
) -> int:
    """Builds one partition from its shards, unless it is finished; returns the number of its documents."""
    from lexvl_anserini.searching.building import build_plan, run_plan

    index = folder / name_partition(number)
    with publish_after(index):
        plan = build_plan(fetch(sources[number]), index, "lucene", options.to_json(), True)
        documents = run_plan(plan, threads).documents
        write_json(index / PARTITION, {"collection": collection, "number": number})
    discard(sources[number])
    return documents


def check_partition(folder: Path, collection: str) -> Manifest:
    """The manifest of a partition of this collection, which its folder names."""
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: the partition is missing; {REPAIR}")
    note = read_json(folder / PARTITION, "note of the partition")
    if (noted := note.get("collection")) != collection:
        raise ArtefactError(
            f"{folder}: a partition of the collection {str(noted)[:12]}, expected {collection[:12]}; queries are "
            f"quantised for one collection; {REPAIR}"
        )
    if name_partition(number := int(note.get("number", -1))) != folder.name:
        raise ArtefactError(f"{folder}: this is partition {number}; {REPAIR}")
    return read_manifest(folder)


def is_partition_missing(index: Path, count: int, collection: str) -> bool:
    """Whether a partition of an index is missing, or is another one."""
    try:
        for number in range(count):
            check_partition(fetch(index / name_partition(number), [PARTITION, MANIFEST]), collection)
    except ArtefactError:
        return True
    return False


def keep_partitions(index: Path, staging: Path, names: Sequence[str], collection: str) -> None:
    """Links the partitions of an older index of the same collection into the folder where partitions are gathered."""
    for name in names:
        if (index / name).is_dir() and not (staging / name).exists():
            with suppress(ArtefactError):
                check_partition(index / name, collection)
                shutil.copytree(index / name, staging / name, copy_function=os.link)
