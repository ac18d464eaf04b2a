"""Qdrant Edge: the engine of Qdrant's server inside this process, over a folder.

An index is the folder FOLDER/NAME, which appears whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from lexvl_anserini.doors.stores.store import (
    MISSING,
    ImpactStore,
    StoreRow,
    Trouble,
    disk_bytes,
    key_of,
    note_name,
    vector_of,
)
from lexvl_anserini.ground.errors import ArtefactError, StoreError
from lexvl_anserini.ground.files import new_folder

VECTOR = "impacts"

# Datatypes of Qdrant's index of vectors: significant bits of an impact that it keeps; uint8 scales them, and keeps none
# for sure.
DATATYPES: Mapping[str, int] = {"float32": 24, "float16": 11, "uint8": 0}

# A file of every shard.
CONFIG = "edge_config.json"


class EdgeStore(ImpactStore):
    """A shard of Qdrant Edge, by qdrant-edge-py."""

    title = "Qdrant Edge"
    package = "qdrant_edge"
    extra = "qdrant"
    settings: ClassVar[Mapping[str, tuple[str, ...]]] = {"datatype": tuple(DATATYPES)}

    def _connect(self) -> None:
        self.edge = self.client()
        self.shard: Any = None
        self.folder = Path(self.place.path) / self.place.name
        self.significant_bits = DATATYPES[self.chosen.get("datatype", "float32")]

    def _trouble(self, error: Exception) -> Trouble | None:
        if "WouldBlock" in str(error):
            return Trouble("another process has the folder open", "wait for it, or run a Qdrant server")
        return MISSING if "does not exist" in str(error) else None

    def open(self) -> bool:
        """Loads the folder's shard."""
        if not self.folder.exists():
            return False
        if not (self.folder / CONFIG).is_file():
            raise ArtefactError(f"{self.place}: a folder that is no index of ours; name another index")
        self._close()
        self.shard = self.edge.EdgeShard.load(str(self.folder))
        return True

    def begin(self, width: int) -> None:
        """A shard in a folder beside, which no other process writes; what a killed process left there is removed."""
        self._close()
        self.table = self.fresh_name()
        self.writing = ExitStack()
        self.part = self.writing.enter_context(new_folder(self.folder))
        # The name of the enumeration's member.
        datatype = getattr(self.edge.VectorStorageDatatype, self.chosen.get("datatype", "float32").capitalize())
        sparse = self.edge.EdgeSparseVectorParams(datatype=datatype)
        # A log of changes is for those after the last flush, and there are none.
        config = self.edge.EdgeConfig(sparse_vectors={VECTOR: sparse}, wal_enabled=False)
        self.shard = self.edge.EdgeShard.create(str(self.part), config)

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Points; one without postings has no vector."""
        sparse = self.edge.SparseVector
        self._upsert(
            [
                self.edge.Point(
                    id=key_of(row.doc_id),
                    vector={VECTOR: sparse(row.dims, [float(i) for i in row.impacts])} if row.dims else {},
                    payload={"id": row.doc_id},
                )
                for row in rows
            ]
        )

    def _upsert(self, points: list[Any]) -> None:
        self.shard.update(self.edge.UpdateOperation.upsert_points(points))

    def settle(self) -> None:
        """Writes all to the disk, and indexes segments that are large enough."""
        self.shard.flush()
        self.shard.optimize()

    def write_notes(self, notes: Sequence[str]) -> None:
        """Points without a vector."""
        self._upsert(
            [
                self.edge.Point(id=key_of(note_name(number)), vector={}, payload={"note": text})
                for number, text in enumerate(notes)
            ]
        )

    def publish(self) -> None:
        """Gives the folder its name, in one step."""
        self._close()
        self.writing.close()

    def abandon(self) -> None:
        """Removes the folder."""
        self._close()
        unfinished = StoreError(f"{self.place}: not finished")
        self.writing.__exit__(type(unfinished), unfinished, None)

    def remove(self) -> None:
        """Removes the folder."""
        self._close()
        shutil.rmtree(self.folder)

    def read_notes(self, first: int, count: int) -> list[str]:
        """Payloads by id."""
        keys = [key_of(note_name(number)) for number in range(first, first + count)]
        notes = {
            str(point.id): point.payload["note"]
            for point in self.shard.retrieve(keys, with_payload=True, with_vector=False)
        }
        return [notes[key] for key in keys if key in notes]

    def count(self) -> int:
        """Exact."""
        return int(self.shard.count(self.edge.CountRequest(exact=True)))

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Points by score; ties have any order."""
        vector = self.edge.SparseVector(list(dims), [float(weight) for weight in weights])
        query = self.edge.Query.Nearest(vector, using=VECTOR)
        points = self.shard.query(self.edge.QueryRequest(limit=count, query=query, with_payload=["id"]))
        return [(point.payload["id"], point.score) for point in points]

    def vectors(self, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
        """Points by id."""
        keys = [key_of(doc_id) for doc_id in doc_ids]
        vectors_by_id = {}
        for point in self.shard.retrieve(keys, with_payload=["id"], with_vector=True):
            vector = (point.vector or {}).get(VECTOR)
            vectors_by_id[point.payload["id"]] = vector_of(vector.indices, vector.values) if vector else {}
        return vectors_by_id

    def size(self) -> int | None:
        """Bytes of the folder."""
        folder = self.folder if self.table == self.place.name else self.part
        return disk_bytes(folder.rglob("*"))

    def _close(self) -> None:
        if self.shard is not None:
            self.shard.close()
        self.shard = None

    def close(self) -> None:
        """Closes the shard."""
        self._close()
