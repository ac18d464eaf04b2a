"""Ranked lists: their order, runs on disk, fusion and rescoring."""
