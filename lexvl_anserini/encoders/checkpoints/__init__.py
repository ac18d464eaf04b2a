"""Checkpoints: found, read without running their code, and translated from their published layouts."""
