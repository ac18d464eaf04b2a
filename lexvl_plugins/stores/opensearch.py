"""OpenSearch: one index with a field of `rank_features`, searched by linear `rank_feature` queries.

Lucene keeps 9 significant bits of a feature's value. The boost of a linear query is at most 64: weights are divided by
a power of two, and scores multiplied by it, both exactly. A published index has the name as an alias.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, log2
from typing import Any, ClassVar

import numpy as np

from lexvl_anserini.ground.errors import ArtefactError, StoreError
from lexvl_plugins.stores.engine import StoreEngine
from lexvl_plugins.stores.store import MISSING, UNREACHABLE, ImpactStore, StoreRow, Trouble, make_key

TIMEOUT_S = 120
# The greatest boost of a linear query.
MOST_WEIGHT = 64
# Hits of one request; further ones follow after the last.
PAGE = 10_000
# Further requests to a server that is too busy; the pauses before them are 1, 2, 4, ... seconds.
RETRIES = 7
FIELDS = {"id": {"type": "keyword"}, "impacts": {"type": "rank_features"}, "note": {"type": "object", "enabled": False}}
SETTINGS: Mapping[str, Any] = {
    "settings": {"index": {"number_of_shards": 1}},
    "mappings": {"dynamic": False, "properties": FIELDS},
}


class OpenSearchStore(ImpactStore):
    """An index of OpenSearch, by opensearch-py."""

    title = "OpenSearch"
    package = "opensearchpy"
    extra = "opensearch"
    variables = "OPENSEARCH_USER and OPENSEARCH_PASSWORD"
    # The default of the server is 1,024 clauses in all.
    most_terms: ClassVar[int | None] = 1000
    ordered: ClassVar[bool] = True
    significant_bits = 9

    def _connect(self) -> None:
        opensearch = self.client()
        # The client logs every request that fails.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        user = self.place.login.user or os.environ.get("OPENSEARCH_USER", "")
        password = self.place.login.password or os.environ.get("OPENSEARCH_PASSWORD", "")
        self.served = opensearch.OpenSearch(
            hosts=[{"host": self.place.host, "port": self.place.port, "url_prefix": self.place.path}],
            use_ssl=self.place.form == "https",
            http_auth=(user, password) if user or password else None,
            timeout=TIMEOUT_S,
            max_retries=0,
        )
        version = self.served.info().get("version", {})
        # Elasticsearch has no distribution; rank_features with linear functions came with 7.12.
        if version.get("distribution") != "opensearch":
            self.refuse_version(str(version.get("number", "0")), (7, 12), "linear rank_feature queries")

    def _explain(self, error: Exception) -> Trouble | None:
        refusal, busy = self.refuse_login(), Trouble("too busy", "run it again later")
        troubles: dict[Any, Trouble] = {401: refusal, 403: refusal, 404: MISSING, 429: busy}
        troubles |= {"N/A": UNREACHABLE, "TIMEOUT": UNREACHABLE}
        return troubles.get(getattr(error, "status_code", None))

    def open(self) -> bool:
        """The alias's index."""
        indices, name = self.served.indices, self.place.name
        if indices.exists_alias(name=name):
            tables = sorted(indices.get_alias(name=name))
            if len(tables) != 1 or not self.is_ours(tables[0]):
                raise ArtefactError(f"{self.place}: an alias of {tables}, no index of ours; name another index")
            self.table = tables[0]
            return True
        if indices.exists(index=name):
            raise ArtefactError(f"{self.place}: an index that is none of ours; name another index")
        return False

    def _list_ours(self) -> dict[str, bool]:
        """The indices of this name, and whether each is published."""
        aliases = self.served.indices.get_alias(index=f"{self.place.name}_*", ignore_unavailable=True)
        return {table: self.place.name in index["aliases"] for table, index in aliases.items() if self.is_ours(table)}

    def begin(self) -> None:
        """An index whose documents hold features by the number of their dimension: names may have no dot."""
        for left, published in self._list_ours().items():
            if not published:
                self.served.indices.delete(index=left)
        self.table = self.fresh_name()
        self.served.indices.create(index=self.table, body=dict(SETTINGS))

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Bulk requests; rows that the server is too busy for are sent again."""
        actions = []
        for row in rows:
            # A note has neither id nor impacts, and its text is not indexed.
            source: dict[str, Any] = {"note": {"text": row.note}} if row.note else {"id": row.doc_id}
            if row.dims:
                source["impacts"] = dict(zip(map(str, row.dims), row.impacts, strict=True))
            actions.append({"_index": self.table, "_id": make_key(row.doc_id), "_source": source})
        answers = self.client("opensearchpy.helpers").streaming_bulk(
            self.served, actions, raise_on_error=False, max_retries=RETRIES, initial_backoff=1
        )
        failed = [item["index"] for done, item in answers if not done]
        if refused := [item for item in failed if item["status"] != 429]:
            reason = str(refused[0].get("error", refused[0]))[:300]
            raise StoreError(f"{self.place}: OpenSearch refuses {len(refused)} documents ({reason})")
        if failed:
            raise StoreError(f"{self.place}: OpenSearch is too busy for {len(failed)} documents; run it again later")

    def settle(self) -> None:
        """Makes all that was added searchable."""
        self.served.indices.refresh(index=self.table)

    def publish(self) -> None:
        """Moves the alias."""
        older = [table for table, published in self._list_ours().items() if published and table != self.table]
        moves: list[dict[str, Any]] = [{"remove_index": {"index": table}} for table in older]
        moves.append({"add": {"index": self.table, "alias": self.place.name}})
        self.served.indices.update_aliases(body={"actions": moves})

    def abandon(self) -> None:
        """Deletes the index, unless the alias is there."""
        if not self._list_ours()[self.table]:
            self.served.indices.delete(index=self.table)

    def rows(self, names: Sequence[str]) -> Iterator[StoreRow]:
        """Documents by id, as they were sent."""
        keys = {make_key(name): name for name in names}
        for row in self.served.mget(index=self.table, body={"ids": list(keys)})["docs"]:
            if row.get("found"):
                features = row["_source"].get("impacts", {})
                note = row["_source"].get("note", {}).get("text", "")
                yield StoreRow(keys[row["_id"]], list(map(int, features)), list(features.values()), note)

    def count(self) -> int:
        """Exact."""
        return int(self.served.count(index=self.table)["count"])

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        """Pages of at most 10,000 hits in the total order."""
        scale = 2 ** max(2, ceil(log2(max(weights) / MOST_WEIGHT)))
        features = [
            {"rank_feature": {"field": f"impacts.{dim}", "linear": {}, "boost": weight / scale}}
            for dim, weight in zip(dims, weights, strict=True)
        ]
        order = {"sort": [{"_score": "desc"}, {"id": "asc"}], "track_scores": True}
        body: dict[str, Any] = {"query": {"bool": {"should": features}}, **order}
        body |= {"track_total_hits": False, "_source": False}
        hits: list[tuple[str, float]] = []
        while True:
            size = min(PAGE, count - len(hits))
            page = self.served.search(index=self.table, body={**body, "size": size})["hits"]["hits"]
            # JSON has the shortest decimal that is nearest to the float of 32 bits, not the float itself.
            hits += [(hit["sort"][1], read_single(hit["_score"]) * scale) for hit in page]
            if len(page) < size or len(hits) == count:
                return hits
            body["search_after"] = page[-1]["sort"]

    def size(self) -> int | None:
        """Bytes of the primary shards."""
        statistics = self.served.indices.stats(index=self.table, metric="store")
        return int(statistics["_all"]["primaries"]["store"]["size_in_bytes"])


def read_single(score: float) -> float:
    """The float of 32 bits that a decimal is the shortest text of."""
    return float(np.float32(score))


class OpenSearchEngine(StoreEngine):
    """An index of impacts in OpenSearch."""

    name = "opensearch"
    stores = {"": OpenSearchStore}
