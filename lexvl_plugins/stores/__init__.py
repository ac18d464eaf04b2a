"""Engines that keep an index in a store that people run already: OpenSearch and Qdrant.

urls        the URL of an index in a store, and logins
store       what a store must do (`ImpactStore`), and its errors
folder      notes beside the documents, and the local folder that commands open in place of a URL
building    builds an index: loads, counts, probes, publishes
fetching    the best hits of a query or a tree, with ties across the cut, and queries of more terms than a store takes
engine      `StoreEngine`, what all engines of stores have in common
opensearch, qdrant   one store each
"""
