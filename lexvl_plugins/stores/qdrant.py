"""Qdrant: one collection of sparse vectors, on a server or in a folder; or a shard of Qdrant Edge in a folder.

A published collection has the index's name as an alias; a shard of Qdrant Edge is the folder FOLDER/NAME, which appears
whole. A point's id is a digest of the document's id, which is in its payload.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from lexvl_anserini.ground.errors import ArtefactError, StoreError
from lexvl_anserini.ground.files import new_folder
from lexvl_plugins.stores.engine import StoreEngine
from lexvl_plugins.stores.store import MISSING, UNREACHABLE, ImpactStore, StoreRow, Trouble, make_key

# Queries over any kind of vector, which replaced one call per kind.
LEAST_VERSION = (1, 10)
TIMEOUT_S = 120
# For the server to index what it stored.
INDEXING_S = 1800
# The name of the vector in a point.
VECTOR = "impacts"
# Significant bits of an impact that each datatype of Qdrant's index keeps; uint8 scales, and keeps none for sure.
DATATYPES: Mapping[str, int] = {"float32": 24, "float16": 11, "uint8": 0}
# A file of a folder that the client serves, and of a folder of Qdrant Edge.
META = "meta.json"
CONFIG = "edge_config.json"
LOCKED = Trouble("another process has the folder open", "wait for it, or run a Qdrant server")


class QdrantKind(ImpactStore):
    """What a server and Qdrant Edge share."""

    extra = "qdrant"
    settings: ClassVar[Mapping[str, tuple[str, ...]]] = {"datatype": tuple(DATATYPES)}

    def _connect(self) -> None:
        self.datatype = self.chosen.get("datatype", "float32")
        self.significant_bits = DATATYPES[self.datatype]

    def _make_points(self, client: Any, point: Any, rows: Sequence[StoreRow]) -> list[Any]:
        """Rows as points of a client; a note, or a document without postings, has no vector."""
        points = []
        for row in rows:
            sparse = client.SparseVector(indices=list(row.dims), values=list(map(float, row.impacts)))
            payload = {"note": row.note} if row.note else {"id": row.doc_id}
            points.append(point(id=make_key(row.doc_id), payload=payload, vector={VECTOR: sparse} if row.dims else {}))
        return points

    def rows(self, names: Sequence[str]) -> Iterator[StoreRow]:
        """Points by id."""
        keys = {make_key(name): name for name in names}
        for point in self._retrieve(list(keys)):
            vector = (point.vector or {}).get(VECTOR)
            dims, impacts = (vector.indices, vector.values) if vector else ((), ())
            yield StoreRow(keys[str(point.id)], dims, impacts, point.payload.get("note", ""))

    @abstractmethod
    def _retrieve(self, keys: list[str]) -> Any:
        """The points of keys, with vectors."""


class QdrantStore(QdrantKind):
    """A collection of Qdrant, by qdrant-client."""

    title = "Qdrant"
    package = "qdrant_client"
    variables = "QDRANT_API_KEY"

    def _connect(self) -> None:
        super()._connect()
        self.models = self.client().models
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

    def _explain(self, error: Exception) -> Trouble | None:
        status = getattr(error, "status_code", None)
        if type(error).__name__ == "ResponseHandlingException":
            return UNREACHABLE
        if status in (401, 403):
            return self.refuse_login()
        if status == 404 or isinstance(error, ValueError) and "not found" in str(error):
            return MISSING
        if isinstance(error, RuntimeError) and "already accessed" in str(error):
            return LOCKED
        return None

    def open(self) -> bool:
        """The alias's collection."""
        if self.served is None:
            return False
        tables = self._read_aliases()
        if self.place.name in tables:
            self.table = tables[self.place.name]
        elif self.served.collection_exists(self.place.name):
            raise ArtefactError(f"{self.place}: a collection that is no index of ours; name another index")
        return self.place.name in tables

    def _read_aliases(self) -> dict[str, str]:
        return {alias.alias_name: alias.collection_name for alias in self.served.get_aliases().aliases}

    def begin(self) -> None:
        """A collection without dense vectors; the sparse index is in memory."""
        if self.served is None:
            if Path(self.place.path).is_dir() and any(Path(self.place.path).iterdir()):
                raise ArtefactError(f"{self.place.path}: a folder of something else than Qdrant; name another folder")
            self._serve()
        published = self._read_aliases().values()
        for left in self.served.get_collections().collections:
            if self.is_ours(left.name) and left.name not in published:
                self.served.delete_collection(left.name)
        self.table = self.fresh_name()
        index = self.models.SparseIndexParams(datatype=self.models.Datatype(self.datatype))
        sparse = {VECTOR: self.models.SparseVectorParams(index=index)}
        self.served.create_collection(self.table, vectors_config={}, sparse_vectors_config=sparse)

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Points."""
        points = self._make_points(self.models, self.models.PointStruct, rows)
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

    def publish(self) -> None:
        """Moves the alias."""
        models, name, older = self.models, self.place.name, self._read_aliases().get(self.place.name)
        created = models.CreateAlias(collection_name=self.table, alias_name=name)
        moves = [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))] if older else []
        self.served.update_collection_aliases([*moves, models.CreateAliasOperation(create_alias=created)])
        if older and self.is_ours(older):
            self.served.delete_collection(older)

    def abandon(self) -> None:
        """Deletes the collection, unless the alias is there."""
        if self.table not in self._read_aliases().values():
            self.served.delete_collection(self.table)

    def _retrieve(self, keys: list[str]) -> Any:
        return self.served.retrieve(self.table, keys, with_payload=True, with_vectors=[VECTOR])

    def count(self) -> int:
        """Exact."""
        return int(self.served.count(self.table, exact=True).count)

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Points by score; ties have any order."""
        query = self.models.SparseVector(indices=list(dims), values=[float(weight) for weight in weights])
        answer = self.served.query_points(self.table, query=query, using=VECTOR, limit=count, with_payload=["id"])
        return [(point.payload["id"], point.score) for point in answer.points]

    def size(self) -> int | None:
        """Bytes of the folder; a server does not say."""
        if not self.place.local:
            return None
        return count_bytes(file for file in Path(self.place.path).rglob("*") if self.table in file.parts)


class EdgeStore(QdrantKind):
    """A shard of Qdrant Edge, by qdrant-edge-py."""

    title = "Qdrant Edge"
    package = "qdrant_edge"

    def _connect(self) -> None:
        super()._connect()
        self.edge = self.client()
        self.shard: Any = None
        self.folder = Path(self.place.path) / self.place.name

    def _explain(self, error: Exception) -> Trouble | None:
        if "WouldBlock" in str(error):
            return LOCKED
        return MISSING if "does not exist" in str(error) else None

    def open(self) -> bool:
        """Loads the folder's shard."""
        if not self.folder.exists():
            return False
        if not (self.folder / CONFIG).is_file():
            raise ArtefactError(f"{self.place}: a folder that is no index of ours; name another index")
        self.close()
        self.shard = self.edge.EdgeShard.load(str(self.folder))
        return True

    def begin(self) -> None:
        """A shard in a folder beside, which no other process writes; what a killed process left there is removed."""
        self.close()
        self.table = self.fresh_name()
        self.writing = ExitStack()
        self.part = self.writing.enter_context(new_folder(self.folder))
        # The name of the enumeration's member.
        datatype = getattr(self.edge.VectorStorageDatatype, self.datatype.capitalize())
        sparse = self.edge.EdgeSparseVectorParams(datatype=datatype)
        # A log of changes is for those after the last flush, and there are none.
        config = self.edge.EdgeConfig(sparse_vectors={VECTOR: sparse}, wal_enabled=False)
        self.shard = self.edge.EdgeShard.create(str(self.part), config)

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Points."""
        points = self._make_points(self.edge, self.edge.Point, rows)
        self.shard.update(self.edge.UpdateOperation.upsert_points(points))

    def settle(self) -> None:
        """Writes all to the disk, and indexes segments that are large enough."""
        self.shard.flush()
        self.shard.optimize()

    def publish(self) -> None:
        """Gives the folder its name, in one step."""
        self.close()
        self.writing.close()

    def abandon(self) -> None:
        """Removes the folder."""
        self.close()
        unfinished = StoreError(f"{self.place}: not finished")
        self.writing.__exit__(type(unfinished), unfinished, None)

    def _retrieve(self, keys: list[str]) -> Any:
        return self.shard.retrieve(keys, with_payload=True, with_vector=True)

    def count(self) -> int:
        """Exact."""
        return int(self.shard.count(self.edge.CountRequest(exact=True)))

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Points by score; ties have any order."""
        vector = self.edge.SparseVector(list(dims), [float(weight) for weight in weights])
        query = self.edge.Query.Nearest(vector, using=VECTOR)
        points = self.shard.query(self.edge.QueryRequest(limit=count, query=query, with_payload=["id"]))
        return [(point.payload["id"], point.score) for point in points]

    def size(self) -> int | None:
        """Bytes of the folder."""
        folder = self.folder if self.table == self.place.name else self.part
        return count_bytes(folder.rglob("*"))

    def close(self) -> None:
        """Closes the shard."""
        if self.shard is not None:
            self.shard.close()
        self.shard = None


def count_bytes(files: Iterable[Path]) -> int:
    """Bytes that files take on the disk: an embedded store reserves room in files that it has not filled."""
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


class QdrantEngine(StoreEngine):
    """An index of impacts in Qdrant."""

    name = "qdrant"
    stores = {"edge": EdgeStore, "": QdrantStore}
