"""Queries in other languages."""
