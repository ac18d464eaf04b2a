"""Analyses of models and of indexes beyond a run's measures."""
