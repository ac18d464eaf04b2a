"""Engines that keep an index in a store that people run already: OpenSearch, Qdrant, Milvus, PostgreSQL with pgvector.

urls        the URL of an index in a store, and logins
store       what a store must do (`ImpactStore`), and its errors
notes       manifest.json, index.json and the vocabulary as texts beside the documents
folder      the local folder of an index in a store, which commands open
resolving   from a URL to the local folder
loading     builds an index: loads, counts, probes, publishes
probing     whether a store's lists are those of exact dot products
fetching    the best hits of a query, with ties across the cut, and queries of more terms than a store takes
trees       query trees, evaluated on the vectors that a store returns
engine      `StoreEngine`, what all engines of stores have in common
opensearch, qdrant, qdrant_edge, milvus, pgvector   one store each
"""
