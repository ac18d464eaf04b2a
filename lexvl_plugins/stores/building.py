"""Builds an index in a store: reads the shards, loads them, counts, probes, and publishes.

The probe tells whether a store's lists are those of exact dot products: some documents of an index are its queries.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.engines.index_folder import REPORT
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import format_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.records import SCORE_LIMIT, VOCABULARY, Vocabulary
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.shards.reading import check_distinct, expect_counts, read_ids, read_impacts, read_vocabulary
from lexvl_plugins.stores.fetching import fetch_best
from lexvl_plugins.stores.folder import GREATEST, write_notes
from lexvl_plugins.stores.store import ImpactStore, StoreRow, name_note

# Documents and postings that one request adds: some megabytes in any store's format.
BATCH_ROWS = 500
BATCH_POSTINGS = 200_000
# Documents that become queries, the hits of their lists, and the heaviest terms that they keep.
PROBES = 20
HITS = 10
TERMS = 64
INEXACT = "encode with fewer bits, use lucene, or build in spite of this with --set allow_inexact=true"
Query = dict[int, int]


class LoadedShards(NamedTuple):
    """Shards to load."""

    folder: Path
    manifest: Manifest
    vocabulary: Vocabulary

    def read_batches(self) -> Iterator[list[StoreRow]]:
        """All documents, in batches for one request."""
        rows: list[StoreRow] = []
        postings = 0
        dimension = self.vocabulary.dimension
        for document in read_impacts(self.folder, self.manifest, self.vocabulary):
            pairs = sorted((dimension[term], impact) for term, impact in document.vector.items())
            rows.append(StoreRow(document.doc_id, [dim for dim, _ in pairs], [impact for _, impact in pairs]))
            postings += len(pairs)
            if len(rows) == BATCH_ROWS or postings >= BATCH_POSTINGS:
                yield rows
                rows, postings = [], 0
        if rows:
            yield rows


def load(
    store: ImpactStore,
    shards: Path,
    manifest: Manifest,
    allow_inexact: bool,
    progress: Progress,
    stored: Mapping[str, Any],
) -> None:
    """Loads shards into a new table of a store and publishes it; an exception removes the new table."""
    source = LoadedShards(shards, manifest, read_vocabulary(shards, manifest))
    with store.errors():
        store.begin()
        try:
            greatest, report = fill(store, source, allow_inexact, progress)
            report |= {"bytes": size} if (size := store.size()) is not None else {}
            files = {
                MANIFEST: format_json(manifest.to_json()).decode(),
                VOCABULARY: "".join(f"{term}\n" for term in source.vocabulary.terms),
                GREATEST: "".join(f"{impact}\n" for impact in greatest.tolist()),
                REPORT: format_json({**stored, **report}).decode(),
            }
            notes = write_notes(files, store.table.rpartition("_")[2])
            for number, text in enumerate(notes):
                store.add([StoreRow(name_note(number), note=text)])
            expect_rows(store, manifest.counts.documents, len(notes))
            store.publish()
        except BaseException:
            # What made the loading fail may fail this too; the next loading removes what is left.
            with suppress(Exception):
                store.abandon()
            raise


def fill(
    store: ImpactStore, source: LoadedShards, allow_inexact: bool, progress: Progress
) -> tuple[np.ndarray, dict[str, Any]]:
    """Adds all documents, and compares store and shards; returns the greatest impacts, and facts of index.json."""
    greatest = np.zeros(len(source.vocabulary), np.int64)
    seen, probes = SeenIds(), list[StoreRow]()
    # Probes are documents with postings, at equal distances in the order of the shards.
    step = max(1, source.manifest.counts.documents // PROBES)
    counts = {"documents": 0, "empty": 0, "postings": 0}
    rounded = 0
    for rows in source.read_batches():
        for row in rows:
            seen.add(row.doc_id)
            impacts = np.array(row.impacts, np.int64)
            rounded += count_rounded(store, row, impacts, source.vocabulary, allow_inexact)
            np.maximum.at(greatest, row.dims, impacts)
            if row.dims and (counts["documents"] - counts["empty"]) % step == 0 and len(probes) < PROBES:
                probes.append(row)
            counts["documents"] += 1
            counts["empty"] += not row.dims
            counts["postings"] += len(row.dims)
        store.add(rows)
        progress(len(rows))
    check_distinct(seen, lambda: read_ids(source.folder, source.manifest))
    expect_counts(str(source.folder), counts, source.manifest.counts)
    expect_rows(store, counts["documents"], 0)
    loss = measure_loss(store, source, [make_query(row, greatest) for row in probes], len(greatest))
    if loss["lists_changed"] and not allow_inexact:
        lists = f"the lists of {loss['lists_changed']:.0%} of {loss['probes']} documents as queries"
        loss_of_scores = f"scores by up to {loss['largest_difference']:,g}"
        raise ArtefactError(f"{store.place}: {store.title} changes {lists}, {loss_of_scores}; {INEXACT}")
    return greatest, {**counts, "max_impact": int(greatest.max(initial=0)), "rounded": rounded, **loss}


def count_rounded(
    store: ImpactStore, row: StoreRow, impacts: np.ndarray, vocabulary: Vocabulary, allow_inexact: bool
) -> int:
    """The number of impacts of a document that the store rounds; an error where it must not."""
    # Without the zeros at its end, a number has as many bits as a float must keep.
    rounds = impacts // (impacts & -impacts) >= 1 << store.significant_bits
    if rounds.any() and not allow_inexact:
        if not store.significant_bits:
            raise ArtefactError(f"{store.place}: {store.title} rounds impacts with {store.chosen}; {INEXACT}")
        place = int(np.flatnonzero(rounds)[0])
        impact = f"impact {row.impacts[place]} of term {vocabulary.terms[row.dims[place]]!r}"
        bits = f"more than {store.significant_bits} significant bits, which {store.title} rounds"
        raise ArtefactError(f"document {row.doc_id!r}: {impact} has {bits}; {INEXACT}")
    return int(rounds.sum())


def expect_rows(store: ImpactStore, documents: int, notes: int) -> None:
    """Raises ArtefactError unless the new table has this many documents and notes."""
    store.settle()
    if (rows := store.count()) != documents + notes:
        counts = f"{rows - notes:,} documents after {documents:,} were added"
        raise ArtefactError(f"{store.place}: {store.title} has {counts}; build again")


def make_query(row: StoreRow, greatest: np.ndarray) -> Query:
    """A document's heaviest terms as a query, whose scores stay below 2^24; `greatest` impact of each dimension."""
    heaviest = sorted(zip(row.dims, map(int, row.impacts), strict=True), key=lambda pair: (-pair[1], pair[0]))[:TERMS]
    while sum(weight * int(greatest[dim]) for dim, weight in heaviest) >= SCORE_LIMIT:
        # Half of each weight; once all are 1, fewer terms.
        halved = [(dim, weight // 2) for dim, weight in heaviest if weight > 1]
        heaviest = halved or heaviest[: len(heaviest) // 2]
    return {dim: weight for dim, weight in sorted(heaviest) if weight}


def measure_loss(store: ImpactStore, source: LoadedShards, queries: Sequence[Query], width: int) -> dict[str, Any]:
    """The share of the probes' lists that differ from integer dot products over all documents, and by how much."""
    weights = np.zeros((width, len(queries)), np.int64)  # [V, P]
    for column, query in enumerate(queries):
        weights[list(query), column] = list(query.values())
    best: list[list[tuple[int, str]]] = [[] for _ in queries]
    for rows in source.read_batches():
        if not (filled := [row for row in rows if row.dims]):
            continue
        dims = np.concatenate([row.dims for row in filled])
        impacts = np.concatenate([row.impacts for row in filled])
        starts = np.cumsum([0, *(len(row.dims) for row in filled[:-1])])
        scores = np.add.reduceat(weights[dims] * impacts[:, None], starts)  # [B, P]
        for column, hits in enumerate(best):
            matches = np.flatnonzero(scores[:, column]).tolist()
            new = [(-int(scores[place, column]), filled[place].doc_id) for place in matches]
            best[column] = heapq.nsmallest(HITS, [*hits, *new])
    changed, largest = 0, 0.0
    for query, scored in zip(queries, best, strict=True):
        exact = rank_hits("probe", ((doc_id, -score) for score, doc_id in scored))
        hits_of_store = rank_hits("probe", fetch_best(store, list(query), list(query.values()), HITS), HITS)
        changed += hits_of_store != exact
        # A list that is too short differs by the whole score.
        pairs = zip_longest((hit.score for hit in hits_of_store), (hit.score for hit in exact), fillvalue=0.0)
        largest = max([largest, *(abs(score - expected) for score, expected in pairs)])
    share = round(changed / len(queries), 4) if queries else 0.0
    return {"probes": len(queries), "lists_changed": share, "largest_difference": largest}
