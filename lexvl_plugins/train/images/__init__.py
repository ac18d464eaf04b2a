"""Pairs of towers that read captions and images: their data, networks, batches, and validation."""
