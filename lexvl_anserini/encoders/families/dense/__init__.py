"""Families of dense vectors, the baselines beside the lexical ones."""
