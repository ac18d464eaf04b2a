"""Engines: what builds an index from shards and answers queries with ranked lists."""
