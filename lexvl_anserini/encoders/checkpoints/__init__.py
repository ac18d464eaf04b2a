"""Checkpoints: how they are found, read without running their code, and translated from published layouts."""
