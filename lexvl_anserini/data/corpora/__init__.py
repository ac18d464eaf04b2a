"""Loaders of corpora, one module per format."""
