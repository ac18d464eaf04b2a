"""Databases that hold indexes: OpenSearch and Qdrant."""

from lexvl_anserini.ground.registry import EngineRow

OPENSEARCH = EngineRow("lexvl_plugins.stores.opensearch:OpenSearchEngine", ("impact",), "lexvl_plugins.stores.folder")
QDRANT = EngineRow("lexvl_plugins.stores.qdrant:QdrantEngine", ("impact",), "lexvl_plugins.stores.folder")
