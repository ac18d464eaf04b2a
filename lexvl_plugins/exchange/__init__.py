"""Vectors and indexes of other programs: files that they write become shards, and an index becomes a file they read."""
