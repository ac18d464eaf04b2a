"""Milvus: one collection with a sparse vector, on a server or in a file of Milvus Lite.

A published collection has the index's name as an alias. Milvus holds no empty vector, so a document without postings
has a 1 in a dimension that no term has.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import ClassVar

from lexvl_anserini.doors.stores.engine import StoreEngine
from lexvl_anserini.doors.stores.store import MISSING, UNREACHABLE, ImpactStore, StoreRow, Trouble, disk_bytes
from lexvl_anserini.ground.errors import ArtefactError, MissingExtra
from lexvl_anserini.ground.files import make_folder

# Sparse vectors with exact inner products by one algorithm.
LEAST_VERSION = (2, 5)

TIMEOUT_S = 120

# The greatest length that a text field can have, in bytes.
LONGEST = 65_535

# The greatest number of a dimension; documents without postings, and notes, have a 1 there.
NO_TERM = 2**32 - 2

STRONG = "Strong"

# Open clients of this process by the path of their file.
_CLIENTS: Counter[str] = Counter()
_COUNTING = Lock()


class MilvusStore(ImpactStore):
    """A collection of Milvus, by pymilvus."""

    title = "Milvus"
    package = "pymilvus"
    extra = "milvus"
    variables = "MILVUS_TOKEN"
    most_hits: ClassVar[int | None] = 16_384

    def _connect(self) -> None:
        self.milvus = self.client()
        # The client logs every error that it raises, with its stack.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if not self.place.local or Path(self.place.path).exists():
            self._serve()

    def _serve(self) -> None:
        """Makes the client; a file that does not exist is made."""
        place, login = self.place, self.place.login
        if place.local:
            if find_spec("milvus_lite") is None:
                raise MissingExtra(f"{place}: Milvus in a file", self.extra)
            make_folder(Path(place.path).parent)
            # Milvus Lite is a server in this process, which logs what it does not implement.
            for name in ("grpc._server", "milvus_lite"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            self.served = self.milvus.MilvusClient(uri=place.path, timeout=TIMEOUT_S)
            with _COUNTING:
                _CLIENTS[place.path] += 1
            return
        token = ":".join(filter(None, login)) or os.environ.get("MILVUS_TOKEN", "")
        self.served = self.milvus.MilvusClient(uri=place.address, token=token, db_name=place.path, timeout=TIMEOUT_S)
        self.refuse_version(self.served.get_server_version(), LEAST_VERSION, "sparse vectors with exact scores")

    def _trouble(self, error: Exception) -> Trouble | None:
        text = str(error).lower()
        if "fail connecting" in text or "server unavailable" in text or "deadline exceeded" in text:
            return UNREACHABLE
        if "auth" in text or "permission" in text or "privilege" in text:
            return self.refused_login()
        if "open local milvus failed" in text:
            return Trouble("another process has the file open", "wait for it, or run a Milvus server")
        return MISSING if "not found" in text or "does not exist" in text else None

    def open(self) -> bool:
        """The alias's collection."""
        if self.served is None:
            return False
        name = self.place.name
        if name in self.served.list_collections():
            raise ArtefactError(f"{self.place}: a collection that is no index of ours; name another index")
        table = self._published()
        self.table = table or self.table
        if table and not self.is_ours(table):
            raise ArtefactError(f"{self.place}: an alias of {table!r}, which is no index of ours; name another index")
        if table:
            self.served.load_collection(table)
        return table is not None

    def _published(self) -> str | None:
        if not self.served.has_collection(self.place.name):
            return None
        return str(self.served.describe_alias(self.place.name)["collection_name"])

    def begin(self, width: int) -> None:
        """A collection with an inverted index of the vectors, for inner products."""
        if self.served is None:
            self._serve()
        published = self._published()
        for left in self.served.list_collections():
            if self.is_ours(left) and left != published:
                self.served.drop_collection(left)
        self.table = self.fresh_name()
        kinds = self.milvus.DataType
        schema = self.served.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=LONGEST)
        schema.add_field("impacts", kinds.SPARSE_FLOAT_VECTOR)
        schema.add_field("note", kinds.VARCHAR, max_length=LONGEST)
        index = self.served.prepare_index_params()
        index.add_index(
            "impacts",
            index_type="SPARSE_INVERTED_INDEX",
            metric_type="IP",
            params={"inverted_index_algo": "DAAT_MAXSCORE"},
        )
        self.served.create_collection(self.table, schema=schema, index_params=index, consistency_level=STRONG)

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Entities, of which Milvus counts those that it took."""
        entities = [
            {
                "id": row.doc_id,
                "impacts": dict(zip(row.dims, map(float, row.impacts), strict=True)) or {NO_TERM: 1.0},
                "note": row.note,
            }
            for row in rows
        ]
        done = self.served.insert(self.table, entities)
        if done["insert_count"] != len(rows):
            raise ArtefactError(f"{self.place}: Milvus took {done['insert_count']} of {len(rows)} rows; build again")

    def settle(self) -> None:
        """Seals and writes what was added."""
        self.served.flush(self.table)

    def publish(self) -> None:
        """Moves the alias."""
        older = self._published()
        if older is None:
            self.served.create_alias(self.table, self.place.name)
            return
        self.served.alter_alias(self.table, self.place.name)
        if self.is_ours(older):
            self.served.drop_collection(older)

    def abandon(self) -> None:
        """Drops the collection, unless the alias is there."""
        if self._published() != self.table:
            self.served.drop_collection(self.table)

    def rows(self, names: Sequence[str]) -> Iterator[StoreRow]:
        """Entities by id."""
        for row in self.served.get(self.table, ids=list(names), output_fields=["id", "impacts", "note"]):
            vector = {dim: impact for dim, impact in row["impacts"].items() if dim != NO_TERM}
            yield StoreRow(row["id"], list(vector), list(vector.values()), row["note"])

    def count(self) -> int:
        """Exact."""
        return int(self.served.query(self.table, output_fields=["count(*)"], consistency_level=STRONG)[0]["count(*)"])

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Entities by inner product; ties have any order."""
        [hits] = self.served.search(
            self.table,
            data=[dict(zip(dims, map(float, weights), strict=True))],
            anns_field="impacts",
            limit=count,
            output_fields=["id"],
            search_params={"metric_type": "IP", "params": {"drop_ratio_search": 0.0}},
            consistency_level=STRONG,
        )
        return [(hit["id"], hit["distance"]) for hit in hits]

    def size(self) -> int | None:
        """Bytes of Milvus Lite's file (a folder); a server does not say."""
        return disk_bytes(Path(self.place.path).rglob("*")) if self.place.local else None

    def close(self) -> None:
        """Closes the client."""
        super().close()
        if self.served is not None and self.place.local:
            with _COUNTING:
                _CLIENTS[self.place.path] -= 1
                last = not _CLIENTS[self.place.path]
            if last:
                # Closing a client leaves the server in this process, which holds the file's lock.
                self.client("milvus_lite.server_manager").server_manager_instance.release_server(self.place.path)
        self.served = None


class MilvusEngine(StoreEngine):
    """An index of impacts in Milvus."""

    name = "milvus"
    stores = {"": MilvusStore}
