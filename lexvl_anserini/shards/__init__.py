"""Shards of encoded documents on disk: their formats, how they are written, read, combined and pruned."""
