"""Pairs of towers that read queries and passages: their data, networks, batches, and validation."""
