"""Builds an index in a store: reads the shards, loads them, counts, probes, and publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.doors.stores.folder import GREATEST, to_notes
from lexvl_anserini.doors.stores.probing import ProbePicker, exact_lists, measured_loss
from lexvl_anserini.doors.stores.store import ImpactStore, StoreRow
from lexvl_anserini.engines.index_folder import REPORT
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import json_bytes
from lexvl_anserini.ground.manifest import MANIFEST, Manifest
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.vocabulary import VOCABULARY, Vocabulary
from lexvl_anserini.shards.reading import check_distinct, expect_counts, read_ids, read_impacts, read_vocabulary

# Documents and postings that one request adds: some megabytes in any store's format.
BATCH_ROWS = 500
BATCH_POSTINGS = 200_000


class LoadedShards(NamedTuple):
    """Shards to load."""

    folder: Path
    manifest: Manifest
    vocabulary: Vocabulary

    def batches(self) -> Iterator[list[StoreRow]]:
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
    """Loads shards into a new table of a store and publishes it; an exception removes the new table.

    Args:
        stored: the engine's name and options, for index.json.
    """
    source = LoadedShards(shards, manifest, read_vocabulary(shards, manifest))
    with store.errors():
        store.begin(len(source.vocabulary))
        try:
            filled = _filled(store, source, allow_inexact, progress)
            filled |= {"bytes": size} if (size := store.size()) is not None else {}
            files = {
                MANIFEST: json_bytes(manifest.to_json()).decode(),
                VOCABULARY: "".join(f"{term}\n" for term in source.vocabulary.terms),
                GREATEST: "".join(f"{impact}\n" for impact in filled.pop("greatest")),
                REPORT: json_bytes({**stored, **filled}).decode(),
            }
            notes = to_notes(files, store.table.rpartition("_")[2])
            store.write_notes(notes)
            store.settle()
            _expect_rows(store, manifest.counts.documents, len(notes))
            store.publish()
        except BaseException:
            # What made the loading fail may fail this too; the next loading removes what is left.
            with suppress(Exception):
                store.abandon()
            raise


def _filled(store: ImpactStore, source: LoadedShards, allow_inexact: bool, progress: Progress) -> dict[str, Any]:
    """Adds all documents, and compares the store with the shards; returns what index.json says about it."""
    greatest = np.zeros(len(source.vocabulary), np.int64)
    seen, picker = SeenIds(), ProbePicker(source.manifest.counts.documents)
    counts = {"documents": 0, "empty": 0, "postings": 0}
    rounded = 0
    for rows in source.batches():
        for row in rows:
            seen.add(row.doc_id)
            impacts = np.array(row.impacts, np.int64)
            rounded += _checked(store, row, impacts, source.vocabulary, allow_inexact)
            np.maximum.at(greatest, row.dims, impacts)
        store.add(rows)
        picker.see(rows)
        counts["documents"] += len(rows)
        counts["empty"] += sum(not row.dims for row in rows)
        counts["postings"] += sum(len(row.dims) for row in rows)
        progress(len(rows))
    check_distinct(seen, lambda: read_ids(source.folder, source.manifest))
    expect_counts(str(source.folder), counts, source.manifest.counts)
    store.settle()
    _expect_rows(store, counts["documents"], 0)
    queries = picker.queries(greatest)
    loss = measured_loss(store, queries, exact_lists(queries, source.batches(), len(greatest)))
    if loss["lists_changed"] and not allow_inexact:
        raise ArtefactError(
            f"{store.place}: {store.title} changes the lists of {loss['lists_changed']:.0%} of {loss['probes']} "
            f"documents as queries, scores by up to {loss['largest_difference']:,g}; --set allow_inexact=true builds "
            "the index in spite of this, or use lucene"
        )
    most = int(greatest.max()) if len(greatest) else 0
    return {**counts, "max_impact": most, "rounded": rounded, **loss, "greatest": greatest.tolist()}


def _checked(
    store: ImpactStore, row: StoreRow, impacts: np.ndarray, vocabulary: Vocabulary, allow_inexact: bool
) -> int:
    """The number of impacts of a document that the store rounds."""
    if store.most_postings is not None and len(row.dims) > store.most_postings:
        raise ArtefactError(
            f"document {row.doc_id!r}: {len(row.dims):,} postings, {store.title} holds {store.most_postings:,}; prune "
            "the shards with python -m lexvl_anserini.prune, or use lucene"
        )
    # Without the zeros at its end, a number has as many bits as a float must keep.
    rounds = impacts // (impacts & -impacts) >= 1 << store.significant_bits
    if rounds.any() and not allow_inexact and not store.significant_bits:
        raise ArtefactError(
            f"{store.place}: {store.title} rounds impacts with {store.chosen}; leave that out, or build with --set "
            "allow_inexact=true"
        )
    if rounds.any() and not allow_inexact:
        place = int(np.flatnonzero(rounds)[0])
        raise ArtefactError(
            f"document {row.doc_id!r}: impact {row.impacts[place]} of term {vocabulary.terms[row.dims[place]]!r} has "
            f"more than {store.significant_bits} significant bits, which {store.title} rounds; encode with fewer bits, "
            "use lucene, or build with --set allow_inexact=true"
        )
    return int(rounds.sum())


def _expect_rows(store: ImpactStore, documents: int, notes: int) -> None:
    """Raises ArtefactError unless the new table has this many documents and notes."""
    if (rows := store.count()) != documents + notes:
        raise ArtefactError(
            f"{store.place}: {store.title} has {rows - notes:,} documents after {documents:,} were added; build again"
        )
