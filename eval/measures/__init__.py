"""Measures of runs: metrics, strict orders, significance tests, and where judgements come from."""
