"""Queries: topics read, encoded, parsed, refined and searched."""
