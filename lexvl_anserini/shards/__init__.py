"""Shards of encoded documents on disk: how they lie, how they are written, read, combined and pruned."""
