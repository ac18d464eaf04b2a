"""Qdrant: one collection of sparse vectors, on a server or in a folder that the client itself serves.

A published collection has the index's name as an alias. A point's id is a digest of the document's id, which is in its
payload. The index of the vectors is Float32 by default, in which integer scores below 2^24 are exact; `datatype` may
make it smaller.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lexvl_anserini.doors.stores.engine import StoreEngine, option_names
from lexvl_anserini.doors.stores.qdrant_edge import DATATYPES, EdgeStore
from lexvl_anserini.doors.stores.store import (
    MISSING,
    UNREACHABLE,
    ImpactStore,
    StoreRow,
    Trouble,
    disk_bytes,
    key_of,
    note_name,
    vector_of,
)
from lexvl_anserini.doors.stores.urls import StorePlace
from lexvl_anserini.ground.errors import ArtefactError, StoreError

# Queries over any kind of vector, which replaced one call per kind.
LEAST_VERSION = (1, 10)

TIMEOUT_S = 120
# For the server to index what it stored.
INDEXING_S = 1800

# The name of the vector in a point.
VECTOR = "impacts"

# In a folder that the client serves.
META = "meta.json"


class QdrantStore(ImpactStore):
    """A collection of Qdrant, by qdrant-client."""

    title = "Qdrant"
    package = "qdrant_client"
    extra = "qdrant"
    variables = "QDRANT_API_KEY"
    settings: ClassVar[Mapping[str, tuple[str, ...]]] = {"datatype": tuple(DATATYPES)}

    def _connect(self) -> None:
        self.models = self.client().models
        self.served: Any = None
        self.significant_bits = DATATYPES[self.chosen.get("datatype", "float32")]
        if not self.place.local or (Path(self.place.path) / META).is_file():
            self._serve()

    def _serve(self) -> None:
        """Makes the client; a folder that does not exist is made."""
        qdrant, place = self.client(), self.place
        key = place.login.password or place.login.user or os.environ.get("QDRANT_API_KEY")
        # The client logs every request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            # About keys over http, versions, which are compared here, and large collections in a folder.
            warnings.simplefilter("ignore")
            if place.local:
                self.served = qdrant.QdrantClient(path=place.path, force_disable_check_same_thread=True)
                return
            self.served = qdrant.QdrantClient(
                url=place.address, prefix=place.path or None, api_key=key, timeout=TIMEOUT_S, check_compatibility=False
            )
        self.refuse_version(self.served.info().version, LEAST_VERSION, "queries of sparse vectors")

    def _trouble(self, error: Exception) -> Trouble | None:
        status = getattr(error, "status_code", None)
        if type(error).__name__ == "ResponseHandlingException":
            return UNREACHABLE
        if status in (401, 403):
            return self.refused_login()
        if status == 404 or isinstance(error, ValueError) and "not found" in str(error):
            return MISSING
        if isinstance(error, RuntimeError) and "already accessed" in str(error):
            return Trouble("another process has the folder open", "wait for it, or run a Qdrant server")
        return None

    def open(self) -> bool:
        """The alias's collection."""
        if self.served is None:
            return False
        tables = self._alias()
        if self.place.name in tables:
            self.table = tables[self.place.name]
        elif self.served.collection_exists(self.place.name):
            raise ArtefactError(f"{self.place}: a collection that is no index of ours; name another index")
        return self.place.name in tables

    def _alias(self) -> dict[str, str]:
        return {alias.alias_name: alias.collection_name for alias in self.served.get_aliases().aliases}

    def _fresh(self) -> list[str]:
        """Collections of this index that are not published."""
        published = set(self._alias().values())
        names = [collection.name for collection in self.served.get_collections().collections]
        return [name for name in names if self.is_ours(name) and name not in published]

    def begin(self, width: int) -> None:
        """A collection without dense vectors; the sparse index is in memory."""
        if self.served is None:
            if Path(self.place.path).is_dir() and any(Path(self.place.path).iterdir()):
                raise ArtefactError(f"{self.place.path}: a folder of something else than Qdrant; name another folder")
            self._serve()
        for left in self._fresh():
            self.served.delete_collection(left)
        self.table = self.fresh_name()
        models = self.models
        datatype = models.Datatype(self.chosen.get("datatype", "float32"))
        index = models.SparseIndexParams(datatype=datatype)
        self.served.create_collection(
            self.table, vectors_config={}, sparse_vectors_config={VECTOR: models.SparseVectorParams(index=index)}
        )

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Points; one without postings has no vector."""
        sparse, point = self.models.SparseVector, self.models.PointStruct
        points = [
            point(
                id=key_of(row.doc_id),
                payload={"id": row.doc_id},
                vector={VECTOR: sparse(indices=row.dims, values=[float(i) for i in row.impacts])} if row.dims else {},
            )
            for row in rows
        ]
        self._upsert(points)

    def _upsert(self, points: list[Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.served.upsert(self.table, points, wait=True)

    def settle(self) -> None:
        """Waits until the server has indexed all segments."""
        end = time.monotonic() + INDEXING_S
        while (status := self.served.get_collection(self.table).status) != "green":
            if status == "red" or time.monotonic() > end:
                raise StoreError(f"{self.place}: Qdrant does not index what it stored (status {status}); see its log")
            time.sleep(0.2)

    def write_notes(self, notes: Sequence[str]) -> None:
        """Points without a vector."""
        for number, text in enumerate(notes):
            self._upsert([self.models.PointStruct(id=key_of(note_name(number)), payload={"note": text}, vector={})])

    def publish(self) -> None:
        """Moves the alias."""
        models, older = self.models, self._alias().get(self.place.name)
        moves = [
            models.CreateAliasOperation(
                create_alias=models.CreateAlias(collection_name=self.table, alias_name=self.place.name)
            )
        ]
        if older:
            moves.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self.place.name)))
        self.served.update_collection_aliases(moves)
        if older and self.is_ours(older):
            self.served.delete_collection(older)

    def abandon(self) -> None:
        """Deletes the collection."""
        self.served.delete_collection(self.table)

    def remove(self) -> None:
        """Deletes the collection, and the alias with it."""
        self.served.delete_collection(self.table)

    def read_notes(self, first: int, count: int) -> list[str]:
        """Payloads by id."""
        keys = [key_of(note_name(number)) for number in range(first, first + count)]
        notes = {str(point.id): point.payload["note"] for point in self.served.retrieve(self.table, keys)}
        return [notes[key] for key in keys if key in notes]

    def count(self) -> int:
        """Exact."""
        return int(self.served.count(self.table, exact=True).count)

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Points by score; ties have any order."""
        query = self.models.SparseVector(indices=list(dims), values=[float(weight) for weight in weights])
        answer = self.served.query_points(self.table, query=query, using=VECTOR, limit=count, with_payload=["id"])
        return [(point.payload["id"], point.score) for point in answer.points]

    def vectors(self, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
        """Points by id."""
        keys = [key_of(doc_id) for doc_id in doc_ids]
        vectors_by_id = {}
        for point in self.served.retrieve(self.table, keys, with_payload=["id"], with_vectors=[VECTOR]):
            vector = (point.vector or {}).get(VECTOR)
            vectors_by_id[point.payload["id"]] = vector_of(vector.indices, vector.values) if vector else {}
        return vectors_by_id

    def size(self) -> int | None:
        """Bytes of the folder; a server does not say."""
        if not self.place.local:
            return None
        return disk_bytes(file for file in Path(self.place.path).rglob("*") if self.table in file.parts)

    def close(self) -> None:
        """Closes the client."""
        if self.served is not None:
            self.served.close()


class QdrantEngine(StoreEngine):
    """An index of impacts in Qdrant."""

    name = "qdrant"
    option_names = option_names(QdrantStore)

    @classmethod
    def store_class(cls, place: StorePlace) -> type[ImpactStore]:
        """Qdrant Edge for its folders, else the client."""
        return EdgeStore if place.form == "edge" else QdrantStore
